//! The acquires that wait for a set to appear.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use gpu_handoff_protocol::message::RequestId;
use gpu_handoff_protocol::{BufferName, GroupKey};

use super::WantedSet;
use crate::registry::SessionId;
use crate::registry::waiters::{Key, Waiters};

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) group: GroupKey,
    pub(super) wanted: WantedSet,
    /// Until when.
    pub(super) until: Instant,
    /// Where it is not there, too, and not only while it is being restored.
    pub(super) for_missing: bool,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::registry) struct Waits {
    waiting: BTreeMap<Key, Waiting>,
    pub(in crate::registry) waiters: Waiters,
}

impl Waits {
    pub(in crate::registry) fn next_deadline(&self) -> Option<Instant> {
        self.waiters.next_deadline()
    }

    pub(super) fn add(&mut self, key: Key, waiting: Waiting, restoring: bool) {
        let at = (waiting.group.clone(), waiting.wanted.name.clone());
        self.waiters.add_name(at, waiting.wanted.newer_than, key);
        self.waiters.add(key, waiting.until, restoring);
        self.waiting.insert(key, waiting);
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<WantedSet> {
        let Waiting { group, wanted, until, .. } = self.waiting.remove(&key)?;
        self.waiters.remove(key, until);
        self.waiters.remove_name(&(group, wanted.name.clone()), wanted.newer_than, key);
        Some(wanted)
    }

    pub(super) fn get(&self, key: Key) -> Option<&Waiting> {
        self.waiting.get(&key)
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> impl Iterator<Item = (Key, &Waiting)> {
        self.waiting.iter().map(|(key, waiting)| (*key, waiting))
    }

    /// This version of a set is whole, or will not be.
    pub(in crate::registry) fn stir(&mut self, group: &GroupKey, name: &BufferName, generation: u64) {
        self.waiters.name_stirred(group, name, generation);
    }

    /// Anything may be otherwise now for this one, if it waits for a set.
    pub(in crate::registry) fn stir_one(&mut self, key: Key) {
        self.waiters.stir([&key]);
    }

    /// Much that was being restored never will be there.
    pub(in crate::registry) fn stir_restoring(&mut self) {
        self.waiters.stir_restoring();
    }

    /// Takes out those to look at again, each once.
    pub(super) fn take_stirred(&mut self) -> BTreeSet<Key> {
        self.waiters.take_stirred()
    }

    pub(super) fn expired(&self, now: Instant) -> Option<Key> {
        self.waiters.expired(now)
    }

    /// Forgets all that a session waits for.
    pub(in crate::registry) fn forget(&mut self, session: SessionId) {
        let (first, last) = ((session, RequestId::MIN), (session, RequestId::MAX));
        let keys: Vec<Key> = self.waiting.range(first..=last).map(|(key, _)| *key).collect();
        for key in keys {
            self.remove(key);
        }
    }
}
