//! Which range of process numbers a member has, in its group.

use gpu_handoff_inject::Pids;

use super::{Membership, Volume};
use crate::node::pids::Settled;
use crate::node::pids::ranges::free_index;

impl Membership {
    /// Has the processes of a member that has numbers of its own let in when they are set.
    pub(in crate::node) fn waiting_for_numbers(mut self, settled: Settled) -> Self {
        self.settled = Some(settled);
        self
    }

    /// With a range that no other of the group has, where the pod asked for that. One that waits for its slot keeps its own.
    pub(super) fn with_range(&self, mut volume: Volume) -> Volume {
        if volume.parts.pids == Pids::Distinct {
            let all = self.volumes.values().map(|served| &served.volume).chain(self.left_out());
            let mates = all.filter(|other| other.group == volume.group && other.id != volume.id);
            volume.range = Some(free_index(mates.filter_map(|other| other.range)));
        }
        volume
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::volume;
    use super::super::tests::ground;
    use super::super::{Served, Start};
    use super::*;
    use crate::node::parts::Parts;

    fn asking(id: &str, group: &str) -> Volume {
        let mut volume = volume(id);
        volume.parts = Parts { pids: Pids::Distinct, ..volume.parts };
        volume.group.name = group.parse().unwrap();
        volume
    }

    #[tokio::test]
    async fn each_of_a_group_that_asks_has_a_range_of_its_own_and_it_is_on_record() {
        let mut ground = ground();
        let mut come = |volume: Volume| {
            let volume = ground.membership.with_range(volume);
            let record = serde_json::to_vec(&volume).unwrap();
            assert_eq!(serde_json::from_slice::<Volume>(&record).unwrap().plan().range, volume.range);
            let (id, range) = (volume.id.clone(), volume.range);
            let served = Served { volume, ending: false, start: Start::new(false) };
            ground.membership.volumes.insert(id, served);
            range
        };
        let given = ["a", "b", "c"].map(|id| come(asking(id, "g")));
        assert_eq!(given, [Some(0), Some(1), Some(2)]);
        assert_eq!(come(asking("d", "other")), Some(0), "another group");
        assert_eq!(come(volume("e")), None, "it did not ask");
        assert_eq!(come(asking("a", "g")), Some(0), "the same once more");
        ground.membership.volumes.remove("b").unwrap();
        let again = ground.membership.with_range(asking("f", "g"));
        assert_eq!(again.range, Some(1), "that of one that has gone");
    }

    #[test]
    fn a_record_of_an_earlier_version_has_none() {
        let mut record = serde_json::to_value(volume("a")).unwrap();
        assert!(record.as_object_mut().unwrap().remove("range").unwrap().is_null());
        assert_eq!(serde_json::from_value::<Volume>(record).unwrap().range, None);
    }
}
