//! What an earlier daemon allowed is held against what is allowed today: the policy, the quota, and the pod's group and GPUs
//! may have been changed between the two.

use std::time::Instant;

use gpu_handoff_protocol::message::EndReason;
use gpu_handoff_protocol::receipt::{BufferReceipt, LeaseReceipt};
use gpu_handoff_protocol::{Code, GroupKey, Refusal};

use super::holders::NOBODY;
use super::publish::remove_buffer;
use super::{Member, MemberId, Registry, SessionId};
use crate::members::Holds;

impl Registry {
    /// Whether a member may have this buffer of before.
    pub(super) fn may_still_publish(&self, member: MemberId, receipt: &BufferReceipt) -> Result<(), Refusal> {
        let m = self.members.get(&member).ok_or_else(|| Refusal::new(Code::ShuttingDown))?;
        self.is_of_todays_group(m, &receipt.group)?;
        let facts = &receipt.info.facts;
        // Where nobody says what it holds, its process had the device node when it published: the receipt is of that.
        if m.facts.holds != Holds::WhatItReaches {
            m.check_holds(facts.device, None)?;
        }
        let mut others = self.has(m);
        if self.buffers.get(&receipt.info.id).is_some_and(|b| b.member == member) {
            // It is counted already, since one of its leases was claimed.
            remove_buffer(&mut others.pod, facts);
            remove_buffer(&mut others.group, facts);
        }
        self.policy.may_publish(&m.facts.party(), &others, facts)
    }

    /// Whether a session's member may have this lease of before.
    pub(super) fn may_still_lease(&self, session: SessionId, receipt: &LeaseReceipt) -> Result<(), Refusal> {
        let member = self.sessions.get(&session).map(|s| s.facts.member);
        let m = member.and_then(|m| self.members.get(&m)).ok_or_else(|| Refusal::new(Code::ShuttingDown))?;
        self.sees_still(m, receipt)?;
        self.policy.may_lease(&m.facts.party(), &self.has(m), 1)
    }

    /// Whether a member may still have what it leased.
    fn sees_still(&self, member: &Member, receipt: &LeaseReceipt) -> Result<(), Refusal> {
        let info = &receipt.buffer;
        let owner = self.expected.buffers.get(&info.id).map(|alive| self.member_of(alive.member));
        let owner =
            owner.or_else(|| self.buffers.get(&info.id).map(|buffer| buffer.member)).unwrap_or(NOBODY);
        let publisher = self.publisher(owner, &info.owner.namespace, &receipt.group);
        if self.policy.may_acquire(&publisher, &member.facts.party(), info.facts.kind) {
            return Ok(());
        }
        self.is_of_todays_group(member, &receipt.group)?;
        Err(Refusal::new(Code::PolicyDenied).compared_with("exchange", "a rule for both pods", "none"))
    }

    fn is_of_todays_group(&self, member: &Member, group: &GroupKey) -> Result<(), Refusal> {
        if *group == member.facts.group {
            return Ok(());
        }
        let wanted = format!("{group}, where it was given");
        Err(Refusal::new(Code::PolicyDenied)
            .compared_with("group", wanted, &member.facts.group)
            .with_remedy("publish or acquire it anew: the pod is in another group than before"))
    }

    /// A buffer that is not allowed any more ends, whoever leases it. Those that wait for it are looked at after the packet
    /// that it was shown with.
    pub(super) fn forbid_buffer(&mut self, receipt: &BufferReceipt, now: Instant) {
        self.end_expected_buffer(receipt.info.id, EndReason::NotAllowed, now);
        match &receipt.info.set {
            Some(set) => self.set_waits.stir(&receipt.group, &set.name, receipt.info.generation),
            None => {
                let (name, generation) = (&receipt.info.facts.name, receipt.info.generation);
                self.waits.name_stirred(&receipt.group, name, generation);
            }
        }
    }
}
