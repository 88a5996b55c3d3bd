//! The live buffers of one name, by generation.

use std::collections::BTreeMap;

use gpu_handoff_protocol::BufferId;

/// Never empty. Most names have one buffer, for which a tree's node would be much room.
#[derive(Debug)]
pub(super) struct Named {
    newest: (u64, BufferId),
    older: BTreeMap<u64, BufferId>,
}

impl Named {
    /// A name's first buffer.
    pub(super) const fn new(generation: u64, id: BufferId) -> Self {
        Self { newest: (generation, id), older: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, generation: u64, id: BufferId) {
        // What is restored may be older than what is there.
        let (newest, (generation, id)) = match generation > self.newest.0 {
            true => ((generation, id), self.newest),
            false => (self.newest, (generation, id)),
        };
        self.newest = newest;
        self.older.insert(generation, id);
    }

    /// Takes one out. Whether others are left: where not, the last one stays, and all of this is to be dropped.
    pub(super) fn keeps_without(&mut self, generation: u64) -> bool {
        if self.newest.0 != generation {
            self.older.remove(&generation);
            return true;
        }
        match self.older.pop_last() {
            Some(newest) => self.newest = newest,
            None => return false,
        }
        true
    }

    /// The one of the highest generation.
    pub(super) const fn newest(&self) -> BufferId {
        self.newest.1
    }

    pub(super) const fn newest_generation(&self) -> u64 {
        self.newest.0
    }

    /// All of them, oldest first.
    pub(super) fn buffers(&self) -> impl Iterator<Item = BufferId> + '_ {
        self.older.values().copied().chain([self.newest()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_handoff_protocol::BootTag;

    #[test]
    fn the_newest_is_the_one_of_the_highest_generation() {
        let id = |n: u64| BufferId { boot: BootTag(1), random: n.into() };
        let mut named = Named::new(3, id(3));
        named.add(9, id(9));
        named.add(5, id(5));
        assert_eq!(named.newest(), id(9));
        assert_eq!(named.buffers().collect::<Vec<_>>(), [id(3), id(5), id(9)]);
        assert!(named.keeps_without(9));
        assert_eq!(named.newest(), id(5));
        assert!(named.keeps_without(3));
        assert!(!named.keeps_without(5));
    }
}
