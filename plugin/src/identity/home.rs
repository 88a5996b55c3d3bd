//! Whether a process is in a container of the pod that its slot is of.

use std::collections::BTreeSet;
use std::io::Read;

use gpu_handoff_protocol::{Code, PodUid, Refusal};
use tokio::sync::watch;
use tokio::time::timeout;

use super::cgroup::{ContainerId, InPod, Root, locate};
use super::{Process, has_ended_since};
use crate::limits;

/// The pod of a slot, and its containers as the node tells of them. Whoever is refused learns where it is itself, and nothing of whose
/// the slot is.
#[derive(Debug)]
pub struct Home {
    pod: PodUid,
    containers: watch::Receiver<BTreeSet<ContainerId>>,
    root: Root,
}

impl Home {
    /// Of this pod.
    #[must_use]
    pub fn new(pod: PodUid, containers: watch::Receiver<BTreeSet<ContainerId>>, root: Root) -> Self {
        Self { pod, containers, root }
    }

    /// Lets a process in that is in a container of the pod. A container that has just started may be named by its pod's status a
    /// moment later: that is waited for.
    ///
    /// # Errors
    /// `PEER_UNKNOWN`, with what was seen.
    pub async fn admit(&self, process: &Process) -> Result<(), Refusal> {
        let place = place_of_process(process, &self.root)?;
        if place.pod != self.pod {
            return Err(unknown("pod", &"the one that the slot is of", &place.pod));
        }
        let mut containers = self.containers.clone();
        let named = containers.wait_for(|known| known.contains(&place.container));
        match timeout(limits::CONTAINER_NEWS_TIME, named).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => return Err(Refusal::new(Code::ShuttingDown).compared_with("pod", "here", "gone")),
            Err(_elapsed) => {
                return Err(unknown("container", &"one that its pod's status names", &place.container));
            }
        }
        // It may have ended while its status was waited for; what was read of /proc is then of nobody.
        if process.is_ending() {
            return Err(unknown("process", &"alive", &"it has ended"));
        }
        Ok(())
    }
}

/// Whether a process is in one of these containers of a pod.
///
/// # Errors
/// `PEER_UNKNOWN`, with what was seen.
pub fn is_in(
    process: &Process,
    pod: &PodUid,
    containers: &BTreeSet<ContainerId>,
    root: &Root,
) -> Result<(), Refusal> {
    check(&place_of_process(process, root)?, pod, containers)
}

/// The same of a process that is known by its number and its start alone.
///
/// # Errors
/// `PEER_UNKNOWN`, with what was seen.
pub fn is_named_in(
    pid: u32,
    started: u64,
    pod: &PodUid,
    containers: &BTreeSet<ContainerId>,
    root: &Root,
) -> Result<(), Refusal> {
    let place = place(pid, root)?;
    // After it, as a process that has the number now, and had begun before it was named, had it then.
    if has_ended_since(pid, started) {
        return Err(unknown("process", &"alive", &"it has ended"));
    }
    check(&place, pod, containers)
}

/// Of which pod the process is that has this number, if it is in a container of one.
pub(crate) fn pod_of(pid: u32, root: &Root) -> Option<PodUid> {
    place_of(pid, root).map(|place| place.pod)
}

/// Where the process is that has this number now; `None`: in no container of a pod of this node.
pub(crate) fn place_of(pid: u32, root: &Root) -> Option<InPod> {
    locate(&read_groups(pid).ok()?, root).ok()
}

fn check(place: &InPod, pod: &PodUid, containers: &BTreeSet<ContainerId>) -> Result<(), Refusal> {
    if place.pod != *pod {
        return Err(unknown("pod", pod, &place.pod));
    }
    if !containers.contains(&place.container) {
        let wanted = format!("one that the status of pod {pod} names");
        return Err(unknown("container", &wanted, &place.container));
    }
    Ok(())
}

fn place_of_process(process: &Process, root: &Root) -> Result<InPod, Refusal> {
    let place = place(process.key.pid, root)?;
    // What was read is of this process only if it still lives: its number may have been given to another.
    if process.has_ended() {
        return Err(unknown("process", &"alive", &"it has ended"));
    }
    Ok(place)
}

fn place(pid: u32, root: &Root) -> Result<InPod, Refusal> {
    let wanted = "in a container of a pod of this node";
    let text = read_groups(pid).map_err(|e| unknown("process", &wanted, &e))?;
    locate(&text, root).map_err(|e| unknown("process", &wanted, &e))
}

fn read_groups(pid: u32) -> std::io::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(format!("/proc/{pid}/cgroup"))?;
    file.take(limits::CGROUP_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

fn unknown(what: &'static str, wanted: &impl std::fmt::Display, found: &impl std::fmt::Display) -> Refusal {
    Refusal::new(Code::PeerUnknown).compared_with(what, wanted, found)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use gpu_handoff_protocol::socket::SeqPacket;

    use super::*;
    use crate::identity::{Door, identify};

    /// This very process, which is in no pod, or in one that is not ours to name.
    #[tokio::test]
    async fn a_process_that_is_elsewhere_is_refused_with_where_it_is() {
        let (a, _b) = SeqPacket::pair().unwrap();
        let process = identify(a.as_fd(), Door { user: None, daemon: 0 }).unwrap();
        let (_told, known) = watch::channel(BTreeSet::new());
        let home = Home::new("2c48913c-b29f-11e7-9350-020968147796".parse().unwrap(), known, Root::default());
        let refusal = home.admit(&process).await.unwrap_err();
        assert_eq!(refusal.code(), Code::PeerUnknown);
        assert!(!refusal.compared()[0].found.is_empty());
    }

    #[test]
    fn a_process_is_in_a_container_when_both_are_the_pods() {
        let [pod, other] = ["2c48913c-b29f-11e7-9350-020968147796", "3c48913c-b29f-11e7-9350-020968147796"];
        let [one, two]: [ContainerId; 2] = ["a", "b"].map(|c| c.repeat(64).parse().unwrap());
        let place = InPod { pod: pod.parse().unwrap(), container: one.clone() };
        let is_in = |pod: &str, containers: &[&ContainerId]| {
            check(&place, &pod.parse().unwrap(), &containers.iter().map(|c| (*c).clone()).collect()).is_ok()
        };
        assert!(is_in(pod, &[&two, &one]));
        assert!(!is_in(other, &[&one]) && !is_in(pod, &[&two]) && !is_in(pod, &[]));
    }
}
