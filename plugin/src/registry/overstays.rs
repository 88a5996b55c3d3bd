//! Who leases a buffer whose time is over, and is to be made to let go by the policy of its namespace.
//!
//! Nobody is made to before it had its publisher's `retire-deadline`, however short the deadline was that the publisher
//! gave, or if it gave none or died: a publisher does not decide about its holders' lives. Who has let go of its leases is left
//! alone, whether it still has the memory mapped or not: the node cannot see that.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Instant;

use gpu_handoff_policy::Orphans;
use gpu_handoff_protocol::BufferId;
use gpu_handoff_protocol::message::EndReason;

use super::{DrawnMap, Effect, Overstay, Registry, SessionId};
use crate::limits;
use crate::pace;

/// The buffers that end while they are leased.
#[derive(Debug, Default)]
pub(super) struct Overstays {
    /// When who leases them is looked for next.
    due: BTreeSet<(Instant, BufferId)>,
    of: DrawnMap<BufferId, Due>,
    /// When it may be looked again at all: a look goes through all leases of those that may have some.
    not_before: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Due {
    at: Instant,
    /// How often it was looked.
    looks: u32,
}

impl Overstays {
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let (first, _) = self.due.first()?;
        Some(self.not_before.map_or(*first, |at| at.max(*first)))
    }

    /// Unless it is looked for earlier.
    fn add(&mut self, id: BufferId, at: Instant) {
        match self.of.get(&id).map(|due| due.at) {
            Some(known) if known <= at => return,
            Some(known) => drop(self.due.remove(&(known, id))),
            None => {}
        }
        self.due.insert((at, id));
        self.of.insert(id, Due { at, looks: 0 });
    }

    /// The buffer is gone.
    pub(super) fn forget(&mut self, id: BufferId) {
        if let Some(Due { at, .. }) = self.of.remove(&id) {
            self.due.remove(&(at, id));
        }
    }

    /// What it waits for, for the tests' checks.
    #[cfg(test)]
    pub(super) fn ids(&self) -> BTreeSet<BufferId> {
        assert!(self.due.iter().all(|(at, id)| self.of[id].at == *at) && self.due.len() == self.of.len());
        self.of.keys().copied().collect()
    }

    /// Those that it is time to look at, which are looked at again later.
    fn take_due(&mut self, now: Instant) -> HashSet<BufferId> {
        if self.next_deadline().is_none_or(|at| at > now) {
            return HashSet::new();
        }
        self.not_before = Some(now + limits::OVERSTAYS_PAUSE);
        let mut found = HashSet::new();
        while let Some((at, id)) = self.due.first().filter(|(at, _)| *at <= now).copied() {
            self.due.remove(&(at, id));
            let Some(due) = self.of.get_mut(&id) else { continue };
            due.at = now + pace::doubled(limits::OVERSTAY_PAUSE, due.looks, limits::OVERSTAY_LONGEST_PAUSE);
            due.looks += 1;
            self.due.insert((due.at, id));
            found.insert(id);
        }
        found
    }
}

impl Registry {
    /// A leased buffer has begun to end, or its deadline is over earlier than it was said: its holders have the time that they
    /// were told, and that of the policy.
    pub(super) fn await_overstay(&mut self, id: BufferId, now: Instant) {
        let Some(buffer) = self.buffers.get(&id) else { return };
        let Some(ending) = buffer.ending.filter(|_| self.policy.ends_orphans()) else { return };
        if ending.reason() == EndReason::Superseded {
            return; // It may be kept for as long as anybody likes.
        }
        let grace = now + self.policy.retire_deadline_of(&buffer.info.owner.namespace);
        let at = ending.until().map_or(grace, |until| until.max(grace));
        self.overstays.add(id, at);
    }

    /// Names those whose time is over to the edges.
    pub(super) fn name_overstays(&mut self, now: Instant) {
        let over = self.overstays.take_due(now);
        if over.is_empty() {
            return;
        }
        let given = over.iter().filter_map(|id| self.buffers.get(id)).flat_map(|buffer| buffer.given.iter());
        let candidates: BTreeSet<SessionId> = given.collect();
        let mut evicted = BTreeMap::new();
        let mut killed = Vec::new();
        for session in candidates {
            let Some(overstay) = self.overstay_of(session, &over) else { continue };
            match overstay.action {
                Orphans::Report => {}
                Orphans::Evict => drop(evicted.entry(overstay.member).or_insert(overstay)),
                Orphans::Kill => killed.push(overstay),
            }
        }
        self.effects.extend(evicted.into_values().chain(killed).map(|one| Effect::Overstays(Box::new(one))));
    }

    /// Whether a session leases one of these, and what its namespace's policy says of that.
    fn overstay_of(&self, session: SessionId, over: &HashSet<BufferId>) -> Option<Overstay> {
        let s = self.sessions.get(&session)?;
        let m = self.members.get(&s.facts.member)?;
        let action = self.policy.orphans_of(&m.facts.pod.namespace);
        // A pod that is being deleted cannot be evicted once more.
        if action == Orphans::Report || (action == Orphans::Evict && m.is_ending) {
            return None;
        }
        let buffers = s.leases.iter().filter_map(|lease| self.leases.get(lease));
        let buffer = *buffers.into_iter().find(|id| over.contains(id))?;
        let (slot, pod) = (m.facts.slot.clone(), m.facts.pod.clone());
        Some(Overstay { member: s.facts.member, slot, pod, process: s.facts.process, buffer, action })
    }
}
