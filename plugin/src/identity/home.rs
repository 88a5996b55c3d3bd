//! Whether a process is in a container of the pod that its slot is of.

use std::collections::BTreeSet;
use std::io::Read;

use gpu_handoff_protocol::{Code, PodUid, Refusal};
use tokio::sync::watch;
use tokio::time::timeout;

use super::Process;
use super::cgroup::{ContainerId, InPod, Root, locate};
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
        let place = place_of(process, &self.root)?;
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
    let place = place_of(process, root)?;
    if place.pod != *pod {
        return Err(unknown("pod", pod, &place.pod));
    }
    if !containers.contains(&place.container) {
        let wanted = format!("one that the status of pod {pod} names");
        return Err(unknown("container", &wanted, &place.container));
    }
    Ok(())
}

fn place_of(process: &Process, root: &Root) -> Result<InPod, Refusal> {
    let wanted = "in a container of a pod of this node";
    let text = read_groups(process.key.pid).map_err(|e| unknown("process", &wanted, &e))?;
    let place = locate(&text, root).map_err(|e| unknown("process", &wanted, &e))?;
    // What was read is of this process only if it still lives: its number may have been given to another.
    if process.has_ended() {
        return Err(unknown("process", &"alive", &"it has ended"));
    }
    Ok(place)
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
}
