//! The acquires that wait for buffers to appear.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use gpu_handoff_protocol::message::{RequestId, Target, Wanted};
use gpu_handoff_protocol::{BufferId, BufferName, DeviceUuid, GroupKey};

use super::names;
use crate::registry::SessionId;
pub(super) use crate::registry::waiters::Key;
use crate::registry::waiters::{Named, Waiters, drop_from};

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
    pub(in crate::registry) waiters: Waiters,
    /// By name, those that are told when the name is announced, and were not told yet.
    untold: HashMap<Named, BTreeSet<Key>>,
    by_id: HashMap<BufferId, BTreeSet<Key>>,
}

impl Waits {
    pub(in crate::registry) fn next_deadline(&self) -> Option<Instant> {
        self.waiters.next_deadline()
    }

    pub(super) fn add(&mut self, key: Key, waiting: Waiting, restoring: bool, hears: bool) {
        self.waiters.add(key, waiting.until, restoring);
        for (name, newer_than) in wanted(&waiting.items) {
            let at = (waiting.group.clone(), name.clone());
            if hears {
                self.untold.entry(at.clone()).or_default().insert(key);
            }
            self.waiters.add_name(at, newer_than, key);
        }
        for id in ids(&waiting.items) {
            self.by_id.entry(id).or_default().insert(key);
        }
        self.waiting.insert(key, waiting);
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<Waiting> {
        let waiting = self.waiting.remove(&key)?;
        self.waiters.remove(key, waiting.until);
        for (name, newer_than) in wanted(&waiting.items) {
            let at = (waiting.group.clone(), name.clone());
            self.waiters.remove_name(&at, newer_than, key);
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
        self.waiters.name_stirred(group, name, generation);
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
            self.waiters.stir(keys);
        }
    }

    /// Anything may be otherwise now for this one, if it waits for buffers.
    pub(in crate::registry) fn stir(&mut self, key: Key) {
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
