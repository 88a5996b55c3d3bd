//! Members and sessions come and go.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_policy::Usage;
use gpu_handoff_protocol::message::EndReason;

use super::lasting::Lasting;
use super::leaving::Leaving;
use super::{Effect, Member, MemberFacts, MemberId, Registry, Session, SessionFacts, SessionId};
use crate::journal::Tag;
use crate::members::Holds;

impl Registry {
    pub(super) fn member_joined(&mut self, member: MemberId, facts: MemberFacts) {
        let tag = Tag::of(&[facts.slot.as_str(), facts.uid.as_str()]);
        let group = Tag::of_group(&facts.group);
        let (ended, last) = (self.expected.ended.remove(&group), self.expected.generations.remove(&group));
        let g = self.groups.entry(facts.group.clone()).or_default();
        g.members += 1;
        g.last_generation = g.last_generation.max(last.unwrap_or_default());
        for (id, reason) in ended.into_iter().flatten() {
            g.ended.remember(id, reason);
        }
        self.members.insert(
            member,
            Member {
                group: Arc::new(facts.group.clone()),
                facts,
                tag,
                group_tag: group,
                usage: Usage::default(),
                waited: 0,
                lists_from: None,
                sessions: BTreeSet::new(),
                is_ending: false,
                lasting: Lasting::default(),
            },
        );
    }

    /// Its holders learn of it while its processes still run, and have until the pod's end to let go.
    pub(super) fn member_holds(&mut self, member: MemberId, holds: Holds) {
        if let Some(m) = self.members.get_mut(&member) {
            m.facts.holds = holds;
        }
    }

    pub(super) fn member_ending(&mut self, member: MemberId, until: Instant, now: Instant) {
        let Some(m) = self.members.get_mut(&member) else { return };
        m.is_ending = true;
        let until = until.min(now + self.policy.retire_deadline_of(&m.facts.pod.namespace));
        let sessions = m.sessions.clone();
        let of_session = |session| self.sessions.get(&session).map(|s| s.published.clone());
        let lasting: Vec<_> = m.lasting.ids().collect();
        let published: Vec<_> =
            sessions.into_iter().filter_map(of_session).flatten().chain(lasting).collect();
        for id in published {
            if self.buffers.get(&id).is_some_and(|buffer| buffer.ending.is_none()) {
                self.retire_known(id, Some(until), now);
            }
        }
    }

    pub(super) fn member_left(&mut self, member: MemberId, now: Instant) {
        let Some(sessions) = self.members.get(&member).map(|m| m.sessions.clone()) else { return };
        for session in sessions {
            if !self.is_away(session) {
                self.effects.push(Effect::EndSession(session));
            }
            self.leave(session, EndReason::MemberLeft);
        }
        if let Some(m) = self.members.get(&member).filter(|m| !m.lasting.is_empty()) {
            self.leaving.push_back(Leaving::of_member(member, m.lasting.ids().collect()));
        }
        self.end_expected(self.member_tag(member), EndReason::MemberLeft);
        self.take_apart(now);
        let Some(left) = self.members.remove(&member) else { return };
        if let Some(group) = self.groups.get_mut(&left.facts.group) {
            group.members -= 1;
            // What others still lease of it is nobody's to answer for any more.
            subtract(&mut group.usage, &left.usage);
            if group.members == 0 {
                self.groups.remove(&left.facts.group);
            }
        }
    }

    pub(super) fn session_opened(&mut self, session: SessionId, facts: SessionFacts) {
        let Some(member) = self.members.get_mut(&facts.member) else {
            self.effects.push(Effect::EndSession(session));
            return;
        };
        member.sessions.insert(session);
        self.sessions.insert(session, Session::new(facts));
    }

    /// Rights end with the session: its waits, watches and leases, and its buffers as soon as nobody leases them. One that
    /// has much is taken apart piece by piece, so that others' inputs get in between; nobody finds anything of it by name or
    /// is given it meanwhile.
    pub(super) fn session_ended(&mut self, session: SessionId, reason: EndReason, now: Instant) {
        self.leave(session, reason);
        self.take_apart(now);
    }

    /// Ends the session, and leaves what it had to be [taken apart](Self::take_apart).
    pub(super) fn leave(&mut self, session: SessionId, reason: EndReason) {
        let Some(group) = self.group_of(session).cloned() else { return };
        let Some(ended) = self.sessions.remove(&session) else { return };
        self.waits.forget(session, ended.open.keys().copied());
        self.set_waits.forget(session);
        self.listings.forget(session);
        if let Some(group) = self.groups.get_mut(&group) {
            group.watchers.retain(|(watcher, _)| *watcher != session);
        }
        if let Some(member) = self.members.get_mut(&ended.facts.member) {
            member.sessions.remove(&session);
            member.waited -= ended.open.values().sum::<u64>();
        }
        let Session { facts, published, leases, .. } = ended;
        let (member, staged) = (facts.member, self.staging.take_items(session));
        let leaving = Leaving { session: Some(session), member, reason, published, leases, staged };
        self.leaving.push_back(leaving);
        if self.is_away(session) {
            self.holder_is_gone(session, facts);
        }
    }
}

fn subtract(from: &mut Usage, what: &Usage) {
    from.buffers -= what.buffers;
    from.bytes -= what.bytes;
    from.pod_lifetime_bytes -= what.pod_lifetime_bytes;
    from.leases -= what.leases;
    from.descriptors -= what.descriptors;
}
