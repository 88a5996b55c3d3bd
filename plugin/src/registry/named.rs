//! The live buffers of one name. Mostly there is one: a tree of its own for each would be most of what a buffer takes.

use gpu_handoff_protocol::BufferId;

/// Live buffers by generation, in a row without room to spare.
#[derive(Debug, Default)]
pub(super) struct Named(Vec<(u64, BufferId)>);

impl Named {
    /// Adds a buffer. Generations mostly rise, so it mostly comes last.
    pub(super) fn insert(&mut self, generation: u64, id: BufferId) {
        let at = self.0.partition_point(|(older, _)| *older < generation);
        self.0.reserve_exact(1);
        self.0.insert(at, (generation, id));
    }

    pub(super) fn remove(&mut self, generation: u64) {
        self.0.retain(|(other, _)| *other != generation);
        self.0.shrink_to_fit();
    }

    pub(super) fn newest(&self) -> Option<BufferId> {
        self.0.last().map(|(_, id)| *id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = BufferId> + '_ {
        self.0.iter().map(|(_, id)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_handoff_protocol::BootTag;

    #[test]
    fn the_newest_is_the_one_of_the_highest_generation() {
        let id = |n: u64| BufferId { boot: BootTag(1), random: n.into() };
        let mut versions = Named::default();
        for n in [3, 9, 5] {
            versions.insert(n, id(n));
        }
        assert_eq!(versions.newest(), Some(id(9)));
        assert_eq!(versions.ids().collect::<Vec<_>>(), [id(3), id(5), id(9)]);
        versions.remove(9);
        assert_eq!(versions.newest(), Some(id(5)));
        versions.remove(3);
        versions.remove(5);
        assert!(versions.is_empty());
    }
}
