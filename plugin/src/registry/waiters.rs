//! Who waits for something of a name to appear, by name and by time, and who of them is to be looked at again. Shared by the
//! waits for buffers and those for sets.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Instant;

use gpu_handoff_protocol::message::RequestId;
use gpu_handoff_protocol::{BufferName, GroupKey};

use super::SessionId;

pub(super) type Key = (SessionId, RequestId);
pub(super) type Named = (GroupKey, BufferName);
/// The least of all keys.
const FIRST: Key = (SessionId(0), RequestId::MIN);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// By name, and then by the generation above which one will do: who waits for a later one is passed over.
    by_name: HashMap<Named, BTreeSet<(u64, Key)>>,
    by_time: BTreeSet<(Instant, Key)>,
    /// Those that wait for something that is being restored.
    restoring: BTreeSet<Key>,
    /// Names of which something has appeared or never will, each with its highest generation of that: who waits for them is
    /// to be looked at again, once for all that a packet brings.
    stirred_names: HashMap<Named, u64>,
    /// Those to look at again for another reason.
    stirred: BTreeSet<Key>,
    /// How many were looked at again so far.
    #[cfg(test)]
    pub(super) looked_at: usize,
}

impl Waiters {
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    pub(super) fn expired(&self, now: Instant) -> Option<Key> {
        self.by_time.first().filter(|(at, _)| *at <= now).map(|(_, key)| *key)
    }

    pub(super) fn add(&mut self, key: Key, until: Instant, restoring: bool) {
        self.by_time.insert((until, key));
        self.restoring.extend(restoring.then_some(key));
    }

    pub(super) fn add_name(&mut self, at: Named, newer_than: u64, key: Key) {
        self.by_name.entry(at).or_default().insert((newer_than, key));
    }

    pub(super) fn remove(&mut self, key: Key, until: Instant) {
        self.by_time.remove(&(until, key));
        self.restoring.remove(&key);
        self.stirred.remove(&key);
    }

    pub(super) fn remove_name(&mut self, at: &Named, newer_than: u64, key: Key) {
        drop_from(&mut self.by_name, at, &(newer_than, key));
    }

    /// This version of a name has appeared, or is not being restored any more.
    pub(super) fn name_stirred(&mut self, group: &GroupKey, name: &BufferName, generation: u64) {
        let at = (group.clone(), name.clone());
        if self.by_name.contains_key(&at) {
            let highest = self.stirred_names.entry(at).or_default();
            *highest = generation.max(*highest);
        }
    }

    pub(super) fn stir<'a>(&mut self, keys: impl IntoIterator<Item = &'a Key>) {
        self.stirred.extend(keys);
    }

    /// It was looked at again, and waits for something that is being restored, which may have come after it.
    pub(super) fn waits_for_restoring(&mut self, key: Key) {
        self.restoring.insert(key);
    }

    /// Much that was being restored never will be there.
    pub(super) fn stir_restoring(&mut self) {
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
}

/// Takes a value out of an index, and its entry with the last one.
pub(super) fn drop_from<K: Eq + Hash, V: Ord>(index: &mut HashMap<K, BTreeSet<V>>, at: &K, value: &V) {
    if let Some(values) = index.get_mut(at) {
        values.remove(value);
        if values.is_empty() {
            index.remove(at);
        }
    }
}
