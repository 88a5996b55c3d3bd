//! The acquires that wait for a set to appear.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use gpu_handoff_protocol::message::RequestId;
use gpu_handoff_protocol::{BufferName, GroupKey};

use super::WantedSet;
use crate::registry::SessionId;

type Key = (SessionId, RequestId);
type Named = (GroupKey, BufferName);
/// The least of all keys.
const FIRST: Key = (SessionId(0), RequestId::MIN);

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
    /// By name, and then by the generation above which one will do: who waits for a later one is passed over.
    by_name: HashMap<Named, BTreeSet<(u64, Key)>>,
    by_time: BTreeSet<(Instant, Key)>,
    /// Those that wait for a version that is being restored.
    restoring: BTreeSet<Key>,
    /// Names of which a version has appeared or never will, each with its highest generation of that: who waits for them is
    /// to be looked at again, once.
    stirred_names: HashMap<Named, u64>,
    /// Those to look at again for another reason.
    stirred: BTreeSet<Key>,
    /// How many were looked at again so far.
    #[cfg(test)]
    pub(in crate::registry) looked_at: usize,
}

impl Waits {
    pub(in crate::registry) fn next_deadline(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    pub(super) fn add(&mut self, key: Key, waiting: Waiting, restoring: bool) {
        let at = (waiting.group.clone(), waiting.wanted.name.clone());
        self.by_name.entry(at).or_default().insert((waiting.wanted.newer_than, key));
        self.by_time.insert((waiting.until, key));
        self.restoring.extend(restoring.then_some(key));
        self.waiting.insert(key, waiting);
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<WantedSet> {
        let Waiting { group, wanted, until, .. } = self.waiting.remove(&key)?;
        self.by_time.remove(&(until, key));
        self.restoring.remove(&key);
        self.stirred.remove(&key);
        let at = (group, wanted.name.clone());
        if let Some(keys) = self.by_name.get_mut(&at) {
            keys.remove(&(wanted.newer_than, key));
            if keys.is_empty() {
                self.by_name.remove(&at);
            }
        }
        Some(wanted)
    }

    pub(super) fn get(&self, key: Key) -> Option<&Waiting> {
        self.waiting.get(&key)
    }

    /// This version of a set is whole, or will not be.
    pub(in crate::registry) fn stir(&mut self, group: &GroupKey, name: &BufferName, generation: u64) {
        let at = (group.clone(), name.clone());
        if self.by_name.contains_key(&at) {
            let highest = self.stirred_names.entry(at).or_default();
            *highest = generation.max(*highest);
        }
    }

    /// Much that was being restored never will be there.
    pub(in crate::registry) fn stir_restoring(&mut self) {
        self.stirred.extend(&self.restoring);
    }

    /// Takes out those to look at again, each once.
    pub(super) fn take_stirred(&mut self) -> BTreeSet<Key> {
        let mut stirred = std::mem::take(&mut self.stirred);
        for (name, generation) in self.stirred_names.drain() {
            let waiting = self.by_name.get(&name).into_iter();
            stirred.extend(waiting.flat_map(|keys| keys.range(..(generation, FIRST))).map(|(_, key)| *key));
        }
        #[cfg(test)]
        {
            self.looked_at += stirred.len();
        }
        stirred
    }

    pub(super) fn expired(&self, now: Instant) -> Option<Key> {
        self.by_time.first().filter(|(at, _)| *at <= now).map(|(_, key)| *key)
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
