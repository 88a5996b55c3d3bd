//! What a runtime says in Synchronize, which may come in many parts.

use std::collections::BTreeMap;

use prost::Message as _;

use crate::limits;
use crate::proto::nri::SynchronizeRequest;
use crate::view::{Container, Pod};

/// What has come so far.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    pods: Vec<Pod>,
    containers: Vec<Container>,
    bytes: usize,
    left_out: u64,
}

/// All of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Gathered {
    pub(crate) all: Vec<(Pod, Vec<Container>)>,
    /// Pods and containers that were too many, and containers whose pod was not said.
    pub(crate) left_out: u64,
}

impl Gathering {
    /// Takes a part.
    pub(crate) fn add(&mut self, part: SynchronizeRequest) {
        for pod in part.pods {
            if self.has_room(self.pods.len() < limits::PODS, pod.encoded_len()) {
                self.pods.push(pod.into());
            }
        }
        for mut container in part.containers {
            // Most of a container's text, and nobody asks for it once the container is there.
            container.env = Vec::new();
            if self.has_room(self.containers.len() < limits::CONTAINERS, container.encoded_len()) {
                self.containers.push(container.into());
            }
        }
    }

    /// Counts what is to be kept, or left out.
    fn has_room(&mut self, by_number: bool, bytes: usize) -> bool {
        let has = by_number && self.bytes.saturating_add(bytes) <= limits::SYNCHRONIZE_BYTES;
        if has {
            self.bytes += bytes;
        } else {
            self.left_out += 1;
        }
        has
    }

    /// Puts containers to their pods, which may have come in another part.
    pub(crate) fn finish(self) -> Gathered {
        let mut left_out = self.left_out;
        let mut places = BTreeMap::new();
        let mut all: Vec<(Pod, Vec<Container>)> = Vec::with_capacity(self.pods.len());
        for pod in self.pods {
            if pod.id.is_empty() || places.contains_key(&pod.id) {
                left_out += 1;
            } else {
                places.insert(pod.id.clone(), all.len());
                all.push((pod, Vec::new()));
            }
        }
        for container in self.containers {
            match places.get(&container.pod_id).and_then(|place| all.get_mut(*place)) {
                Some((_, of_it)) => of_it.push(container),
                None => left_out += 1,
            }
        }
        Gathered { all, left_out }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proto::nri as proto;

    fn pod(id: usize) -> proto::PodSandbox {
        proto::PodSandbox { id: format!("p{id}"), uid: format!("u{id}"), ..Default::default() }
    }

    fn container(id: usize, pod: usize) -> proto::Container {
        proto::Container {
            id: format!("c{id}"),
            pod_sandbox_id: format!("p{pod}"),
            env: vec!["A=1".into()],
            ..Default::default()
        }
    }

    fn gathered(parts: Vec<SynchronizeRequest>) -> Gathered {
        let mut gathering = Gathering::default();
        parts.into_iter().for_each(|part| gathering.add(part));
        gathering.finish()
    }

    proptest! {
        #[test]
        fn parts_make_the_same_whole(
            pods in 0_usize..20,
            containers in prop::collection::vec(0_usize..25, 0..40),
            size in 1_usize..12,
        ) {
            let all_pods: Vec<_> = (0..pods).map(pod).collect();
            let all_containers: Vec<_> = containers.iter().enumerate().map(|(id, of)| container(id, *of)).collect();
            let whole = SynchronizeRequest { pods: all_pods.clone(), containers: all_containers.clone(), more: false };
            let mut parts: Vec<_> = all_containers
                .chunks(size)
                .map(|containers| SynchronizeRequest { containers: containers.to_vec(), more: true, ..Default::default() })
                .collect();
            // The pods come last, all of them.
            parts.push(SynchronizeRequest { pods: all_pods, ..Default::default() });
            let whole = gathered(vec![whole]);
            let podless = containers.iter().filter(|of| **of >= pods).count();
            prop_assert_eq!(&gathered(parts), &whole);
            prop_assert_eq!(usize::try_from(whole.left_out), Ok(podless));
            prop_assert!(whole.all.iter().flat_map(|(_, containers)| containers).all(|container| container.env.is_empty()));
        }
    }

    #[test]
    fn what_is_too_much_is_counted() {
        let part = |of: usize| SynchronizeRequest {
            pods: if of == 0 { (0..5_000).map(pod).collect() } else { vec![] },
            containers: (of * 1_000..(of + 1) * 1_000).map(|id| container(id, 0)).collect(),
            more: true,
        };
        let all = gathered((0..100).map(part).collect());
        assert_eq!(all.all.len(), limits::PODS);
        assert_eq!(all.all[0].1.len(), limits::CONTAINERS);
        let too_many = 5_000 - limits::PODS + 100_000 - limits::CONTAINERS;
        assert_eq!(usize::try_from(all.left_out), Ok(too_many));

        let long = |id| {
            let mut container = container(id, 0);
            container.mounts = vec![proto::Mount { source: "x".repeat(3 << 20), ..Default::default() }];
            SynchronizeRequest { pods: vec![pod(id)], containers: vec![container], more: true }
        };
        let all = gathered((0..100).map(long).collect());
        assert_eq!((all.all.len(), all.all[0].1.len(), all.left_out), (100, 21, 79));
    }

    #[test]
    fn pods_that_cannot_be_told_apart_are_left_out_and_those_without_uid_are_not() {
        let nameless = proto::PodSandbox::default();
        let without_uid = proto::PodSandbox { id: "p9".into(), ..Default::default() };
        let all = gathered(vec![SynchronizeRequest {
            pods: vec![nameless, pod(1), pod(1), without_uid],
            containers: vec![container(1, 9)],
            more: false,
        }]);
        assert_eq!((all.all.len(), all.left_out), (2, 2));
        assert_eq!((all.all[1].0.uid.as_str(), all.all[1].1.len()), ("", 1));
    }
}
