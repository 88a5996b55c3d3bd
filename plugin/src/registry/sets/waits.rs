//! The acquires that wait for a set to appear.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Instant;

use gpu_handoff_protocol::message::RequestId;
use gpu_handoff_protocol::{BufferName, GroupKey};

use super::WantedSet;
use crate::registry::SessionId;

type Key = (SessionId, RequestId);

#[derive(Debug)]
struct Waiting {
    group: GroupKey,
    wanted: WantedSet,
    /// Until when; `None`: only while it is being restored.
    until: Option<Instant>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::registry) struct Waits {
    waiting: BTreeMap<Key, Waiting>,
    by_name: HashMap<(GroupKey, BufferName), BTreeSet<Key>>,
    by_time: BTreeSet<(Instant, Key)>,
    /// Names that are waited for and will not be restored: who waits for them is to be looked at again, once.
    stirred: HashSet<(GroupKey, BufferName)>,
}

impl Waits {
    pub(in crate::registry) fn next_deadline(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    pub(super) fn add(&mut self, key: Key, group: GroupKey, wanted: WantedSet, until: Option<Instant>) {
        self.by_name.entry((group.clone(), wanted.name.clone())).or_default().insert(key);
        self.by_time.extend(until.map(|until| (until, key)));
        self.waiting.insert(key, Waiting { group, wanted, until });
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<WantedSet> {
        let Waiting { group, wanted, until } = self.waiting.remove(&key)?;
        if let Some(until) = until {
            self.by_time.remove(&(until, key));
        }
        let index = (group, wanted.name.clone());
        if let Some(keys) = self.by_name.get_mut(&index) {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_name.remove(&index);
            }
        }
        Some(wanted)
    }

    /// What a wait is for, and until when.
    pub(super) fn wanted(&self, key: Key) -> Option<(&GroupKey, &WantedSet, Option<Instant>)> {
        self.waiting.get(&key).map(|w| (&w.group, &w.wanted, w.until))
    }

    /// A version of a set that was being restored will not be there.
    pub(in crate::registry) fn stir(&mut self, group: &GroupKey, name: &BufferName) {
        let key = (group.clone(), name.clone());
        if self.by_name.contains_key(&key) {
            self.stirred.insert(key);
        }
    }

    pub(super) fn take_stirred(&mut self) -> HashSet<(GroupKey, BufferName)> {
        std::mem::take(&mut self.stirred)
    }

    /// All of them: any may wait for a version that was being restored.
    pub(super) fn all(&self) -> Vec<Key> {
        self.waiting.keys().copied().collect()
    }

    pub(super) fn for_name(&self, group: &GroupKey, name: &BufferName) -> Vec<Key> {
        let keys = self.by_name.get(&(group.clone(), name.clone()));
        keys.map(|keys| keys.iter().copied().collect()).unwrap_or_default()
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
