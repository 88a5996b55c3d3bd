//! What is left of sessions that have ended, and ends piece by piece. Nobody finds it by name or is given it meanwhile.

use std::collections::BTreeSet;
use std::time::Instant;

use gpu_handoff_protocol::message::{EndReason, SeatEnd, Wanted};
use gpu_handoff_protocol::{BufferId, BufferName, GroupKey, LeaseId};

use super::acquire::names;
use super::sets::StagedItem;
use super::{Buffer, MemberId, Registry, SessionId};
use crate::limits;

impl Registry {
    /// Does some of what is much: ends what did not come back and what ended sessions had, and tells sidecars what to keep;
    /// [`limits::ENDINGS_AT_A_TIME`] leases and buffers at most.
    pub(super) fn take_apart(&mut self, now: Instant) {
        let mut steps = limits::ENDINGS_AT_A_TIME;
        self.end_overdue(&mut steps, now);
        self.end_leaving(&mut steps, now);
        self.keep_some(&mut steps);
    }

    fn end_leaving(&mut self, steps: &mut usize, now: Instant) {
        while let Some(leaving) = self.leaving.front_mut() {
            if leaving.leases.is_empty() && leaving.published.is_empty() && leaving.staged.is_empty() {
                self.leaving.pop_front();
                continue;
            }
            if *steps == 0 {
                return;
            }
            *steps -= 1;
            let (member, reason) = (leaving.member, leaving.reason);
            if let Some(lease) = leaving.leases.pop_first() {
                self.end_lease(lease, member, SeatEnd::Died);
            } else if let Some(id) = leaving.published.pop_first() {
                self.end_buffer(id, reason, None, now);
            } else if let Some(item) = leaving.staged.pop() {
                self.give_up_staged(member, item);
            }
        }
    }

    /// Whether there is more to be done piece by piece, by [`Input::GoOn`](super::Input::GoOn): mostly there is nothing.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.any_is_leaving() || self.expected.is_overdue() || !self.keeping.is_empty()
    }

    /// Whether there is more of ended sessions to be taken apart.
    pub(super) fn any_is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Why a buffer is about to end, whose owner has ended already.
    pub(super) fn is_about_to_end(&self, buffer: &Buffer) -> Option<EndReason> {
        if buffer.lasts() {
            // Its member has left, and its turn has not come yet.
            let stays = buffer.carrier.is_none() || self.members.contains_key(&buffer.member);
            return (!stays).then_some(EndReason::MemberLeft);
        }
        let owner = buffer.owner.filter(|owner| !self.sessions.contains_key(owner))?;
        let leaving = self.leaving.iter().find(|leaving| leaving.session == Some(owner));
        Some(leaving.map_or(EndReason::OwnerClosed, |leaving| leaving.reason))
    }

    /// The same of one that is known by its id.
    pub(super) fn is_leaving(&self, id: BufferId) -> bool {
        self.any_is_leaving() && self.buffers.get(&id).is_some_and(|b| self.is_about_to_end(b).is_some())
    }

    /// Takes those versions of a name out that are about to end, newest first, down to one that is not: each once, so that
    /// looking for a name does not take longer for it again and again.
    pub(super) fn unname_leaving(&mut self, group: &GroupKey, name: &BufferName) {
        let Some(group) = self.groups.get_mut(group) else { return };
        let Some(named) = group.names.get_mut(name) else { return };
        let is_leaving = |id| {
            let Some(buffer) = self.buffers.get(&id) else { return false };
            let owner_is_gone = buffer.owner.is_some_and(|owner| !self.sessions.contains_key(&owner));
            owner_is_gone || buffer.lasts() && !self.members.contains_key(&buffer.member)
        };
        while is_leaving(named.newest()) {
            if !named.keeps_without(named.newest_generation()) {
                group.names.remove(name);
                return;
            }
        }
    }

    /// Before these are looked for: what is about to end is not to be found by its name.
    pub(super) fn unname_leaving_of(&mut self, session: SessionId, items: &[Wanted]) {
        if !self.any_is_leaving() {
            return;
        }
        let Some(group) = self.group_of(session).cloned() else { return };
        names(items).for_each(|name| self.unname_leaving(&group, name));
    }
}

/// What a session had that has ended.
#[derive(Debug)]
pub(super) struct Leaving {
    /// `None`: what outlived its process ends with its member.
    pub(super) session: Option<SessionId>,
    pub(super) member: MemberId,
    pub(super) reason: EndReason,
    pub(super) published: BTreeSet<BufferId>,
    pub(super) leases: BTreeSet<LeaseId>,
    /// Of a set that has not come whole.
    pub(super) staged: Vec<StagedItem>,
}

impl Leaving {
    /// What outlived its process ends with its member.
    pub(super) fn of_member(member: MemberId, published: BTreeSet<BufferId>) -> Self {
        let (leases, staged) = (BTreeSet::new(), Vec::new());
        Self { session: None, member, reason: EndReason::MemberLeft, published, leases, staged }
    }
}
