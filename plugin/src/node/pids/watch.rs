//! Who of a group has the same process number as another: the driver takes them for one process. Pure.

use std::collections::{BTreeMap, BTreeSet};

use gpu_handoff_protocol::{Code, GroupKey, PodRef, PodUid, Refusal};

use super::Ranged;
use super::census::Inhabitant;

/// Digits of a container's number that are told.
const DIGITS: usize = 12;

/// A process, whatever else gets its number here.
type Key = (u32, u64);

/// Two of which it was told.
type Pair = (Key, Key);

/// A refusal, and whose pod's owner is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// The pod.
    pub uid: PodUid,
    /// What is said.
    pub refusal: Refusal,
}

/// Remembers of whom it was told.
#[derive(Debug, Default)]
pub struct Watch {
    told: BTreeSet<Pair>,
}

impl Watch {
    /// What is to be told of these, and was not.
    pub fn look(&mut self, members: &BTreeMap<PodUid, Ranged>, there: &[Inhabitant]) -> Vec<Told> {
        let mut by_number: BTreeMap<(&GroupKey, u32), Vec<&Inhabitant>> = BTreeMap::new();
        for one in there.iter().filter(|one| one.has_gpu) {
            if let Some(member) = members.get(&one.place.pod) {
                by_number.entry((&member.group, one.number)).or_default().push(one);
            }
        }
        let (mut pairs, mut told) = (BTreeSet::new(), Vec::new());
        for same in by_number.values_mut().filter(|same| same.len() > 1) {
            same.sort_by_key(|one| (one.started, one.pid));
            // Each with the one that was first: of many that is enough to say, and as many as they are.
            let (first, others) = (same[0], &same[1..]);
            for other in others {
                let pair = (key(first), key(other));
                pairs.insert(pair);
                if !self.told.contains(&pair) {
                    told.push(tell(members, other, first));
                    told.push(tell(members, first, other));
                }
            }
        }
        self.told = pairs;
        told.into_iter().flatten().collect()
    }
}

const fn key(one: &Inhabitant) -> Key {
    (one.pid, one.started)
}

fn tell(members: &BTreeMap<PodUid, Ranged>, one: &Inhabitant, other: &Inhabitant) -> Option<Told> {
    let (pod, other_pod) = (&members.get(&one.place.pod)?.pod, &members.get(&other.place.pod)?.pod);
    let found = format!(
        "{} of a process in container {}, and of one in container {} of {}",
        one.number,
        short(one),
        short(other),
        named(pod, other_pod)
    );
    let wanted = "a number that no other process of the group has that uses a GPU";
    let refusal = Refusal::new(Code::PidCollision).compared_with("process number", wanted, found);
    Some(Told { uid: one.place.pod.clone(), refusal })
}

fn short(one: &Inhabitant) -> String {
    one.place.container.to_string().chars().take(DIGITS).collect()
}

/// Who is of another namespace is not named: the policy may not let the two know of each other.
fn named(own: &PodRef, other: &PodRef) -> String {
    if own == other {
        "this pod".to_owned()
    } else if own.namespace == other.namespace {
        format!("pod {other}")
    } else {
        "a pod of another namespace".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::cgroup::InPod;

    const PODS: [&str; 3] = [
        "2c48913c-b29f-11e7-9350-020968147796",
        "3c48913c-b29f-11e7-9350-020968147796",
        "4c48913c-b29f-11e7-9350-020968147796",
    ];

    fn members(groups: [&str; 3], namespaces: [&str; 3]) -> BTreeMap<PodUid, Ranged> {
        let names = ["a", "b", "c"];
        let all =
            PODS.iter().zip(groups).zip(namespaces).zip(names).map(|(((uid, group), namespace), name)| {
                let pod = PodRef { namespace: namespace.parse().unwrap(), name: name.parse().unwrap() };
                let group = GroupKey { namespace: "n".parse().unwrap(), name: group.parse().unwrap() };
                (uid.parse().unwrap(), Ranged { pod, group, index: 0 })
            });
        all.collect()
    }

    fn process(pid: u32, pod: usize, number: u32) -> Inhabitant {
        let place = InPod { pod: PODS[pod].parse().unwrap(), container: "a".repeat(64).parse().unwrap() };
        let (started, namespace) = (u64::from(pid), pod as u64);
        Inhabitant { pid, started, place, namespace, depth: 2, number, has_gpu: true }
    }

    fn told_to(told: &[Told]) -> Vec<&str> {
        told.iter().map(|told| told.uid.as_str()).collect()
    }

    #[test]
    fn two_of_a_group_with_one_number_are_both_told_once_by_name() {
        let members = members(["g", "g", "other"], ["n", "n", "n"]);
        let mut watch = Watch::default();
        let mut there = vec![process(10, 0, 7), process(11, 1, 8), process(12, 2, 7), process(13, 1, 9)];
        assert_eq!(watch.look(&members, &there), []);
        there.push(process(14, 1, 7));
        let told = watch.look(&members, &there);
        assert_eq!(told_to(&told), [PODS[1], PODS[0]]);
        let said = told[0].refusal.to_string();
        assert_eq!(told[0].refusal.code(), Code::PidCollision);
        assert!(
            said.contains(
                "7 of a process in container aaaaaaaaaaaa, and of one in container aaaaaaaaaaaa of pod n/a"
            ),
            "{said}"
        );
        assert_eq!(watch.look(&members, &there), [], "it was told");
        // And again when it is another.
        there.pop();
        assert_eq!(watch.look(&members, &there), []);
        there.push(process(15, 1, 7));
        assert_eq!(watch.look(&members, &there).len(), 2);
    }

    #[test]
    fn who_uses_no_gpu_or_is_no_member_has_whatever_number_it_likes() {
        let mut members = members(["g", "g", "g"], ["n", "n", "n"]);
        let mut there = vec![process(10, 0, 1), process(11, 1, 1), process(12, 2, 1)];
        there[1].has_gpu = false;
        members.remove(&PODS[2].parse().unwrap());
        assert_eq!(Watch::default().look(&members, &there), []);
    }

    #[test]
    fn a_pod_of_another_namespace_is_not_named_and_a_pods_own_is() {
        let members = members(["g", "g", "g"], ["n", "guest", "n"]);
        let told = Watch::default().look(&members, &[process(10, 0, 1), process(11, 1, 1)]);
        assert!(
            told.iter().all(|told| told.refusal.to_string().contains("of a pod of another namespace")),
            "{told:?}"
        );
        let told = Watch::default().look(&members, &[process(10, 0, 1), process(11, 0, 1)]);
        assert!(told.iter().all(|told| told.refusal.to_string().contains("of this pod")), "{told:?}");
        assert_eq!(told_to(&told), [PODS[0], PODS[0]]);
    }
}
