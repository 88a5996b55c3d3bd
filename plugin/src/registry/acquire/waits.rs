//! The acquires that wait for buffers to appear.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Instant;

use gpu_handoff_protocol::message::{RequestId, Target, Wanted};
use gpu_handoff_protocol::{BufferId, BufferName, DeviceUuid, GroupKey};

use super::names;
use crate::registry::SessionId;

pub(super) type Key = (SessionId, RequestId);
type Named = (GroupKey, BufferName);
/// The least of all keys.
const FIRST: Key = (SessionId(0), RequestId::MIN);

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) group: GroupKey,
    pub(super) items: Vec<Wanted>,
    /// Until when.
    pub(super) until: Instant,
    /// For what is not there, too, and not only for what is being restored.
    pub(super) for_missing: bool,
    pub(super) device: Option<DeviceUuid>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::registry) struct Waits {
    pub(super) waiting: HashMap<Key, Waiting>,
    /// By name, and then by the generation above which one will do: who waits for a later one is passed over.
    by_name: HashMap<Named, BTreeSet<(u64, Key)>>,
    /// Of these, those that are told when the name is announced, and were not told yet.
    untold: HashMap<Named, BTreeSet<Key>>,
    by_id: HashMap<BufferId, BTreeSet<Key>>,
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
    pub(in crate::registry) looked_at: usize,
}

impl Waits {
    pub(in crate::registry) fn next_deadline(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    pub(super) fn add(&mut self, key: Key, waiting: Waiting, restoring: bool, hears: bool) {
        self.by_time.insert((waiting.until, key));
        self.restoring.extend(restoring.then_some(key));
        for (name, newer_than) in wanted(&waiting.items) {
            let at = (waiting.group.clone(), name.clone());
            if hears {
                self.untold.entry(at.clone()).or_default().insert(key);
            }
            self.by_name.entry(at).or_default().insert((newer_than, key));
        }
        for id in ids(&waiting.items) {
            self.by_id.entry(id).or_default().insert(key);
        }
        self.waiting.insert(key, waiting);
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<Waiting> {
        let waiting = self.waiting.remove(&key)?;
        self.by_time.remove(&(waiting.until, key));
        self.restoring.remove(&key);
        self.stirred.remove(&key);
        for (name, newer_than) in wanted(&waiting.items) {
            let at = (waiting.group.clone(), name.clone());
            drop_from(&mut self.by_name, &at, &(newer_than, key));
            drop_from(&mut self.untold, &at, &key);
        }
        for id in ids(&waiting.items) {
            drop_from(&mut self.by_id, &id, &key);
        }
        Some(waiting)
    }

    pub(in crate::registry) fn forget(
        &mut self,
        session: SessionId,
        requests: impl Iterator<Item = RequestId>,
    ) {
        for request in requests {
            self.remove((session, request));
        }
    }

    /// This version of a name has appeared, or is not being restored any more.
    pub(in crate::registry) fn name_stirred(&mut self, group: &GroupKey, name: &BufferName, generation: u64) {
        let at = (group.clone(), name.clone());
        if self.by_name.contains_key(&at) {
            let highest = self.stirred_names.entry(at).or_default();
            *highest = generation.max(*highest);
        }
    }

    /// Those that wait for a name of this group, and are told for the first time that what they wait for is about to come:
    /// whoever announces again and again finds nobody.
    pub(super) fn announce(&mut self, group: &GroupKey, name: &BufferName) -> BTreeSet<Key> {
        let told = self.untold.remove(&(group.clone(), name.clone())).unwrap_or_default();
        for key in &told {
            let Some(waiting) = self.waiting.get(key) else { continue };
            for other in names(&waiting.items) {
                drop_from(&mut self.untold, &(group.clone(), other.clone()), key);
            }
        }
        told
    }

    /// A buffer that was being restored is there, or never will be.
    pub(in crate::registry) fn buffer_settled(&mut self, id: BufferId) {
        if let Some(keys) = self.by_id.get(&id) {
            self.stirred.extend(keys);
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
}

fn drop_from<K: Eq + Hash, V: Ord>(index: &mut HashMap<K, BTreeSet<V>>, at: &K, value: &V) {
    if let Some(values) = index.get_mut(at) {
        values.remove(value);
        if values.is_empty() {
            index.remove(at);
        }
    }
}

fn ids(items: &[Wanted]) -> impl Iterator<Item = BufferId> {
    items.iter().filter_map(|i| match i.target {
        Target::Id(id) => Some(id),
        Target::Name(_) => None,
    })
}

/// The names that are wanted, and above which generation.
fn wanted(items: &[Wanted]) -> impl Iterator<Item = (&BufferName, u64)> {
    items.iter().filter_map(|i| match &i.target {
        Target::Name(name) => Some((name, i.newer_than)),
        Target::Id(_) => None,
    })
}
