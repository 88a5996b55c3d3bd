//! What node and broker say to each other: JSON. The node says one object a packet, over the socket pair whose other end is the
//! broker's standard input, and hears nothing there; the broker says one a line, by the pipe that is its standard output ([`pipe`]).
//!
//! Nothing that the broker says names a path, a program, a user or a signal. It names things by numbers that the node gave
//! it, and by what the node can look up.

use std::collections::BTreeSet;

use gpu_handoff_protocol::{Code, DeviceUuid, Refusal, SlotId, limits as wire};
use serde::{Deserialize, Serialize};

use crate::identity::cgroup::{ContainerId, Root};
use crate::members::{Holds, Member};
use crate::registry::Topology;

pub mod pipe;

/// What the node says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FromNode {
    /// First: how to serve. Three descriptors come along: the state folder, the node's lock, which the broker holds for as
    /// long as it lives, so that no other daemon begins before it has ended, and the policy.
    Setup(Setup),
    /// A member, with the descriptor of its slot's listening socket. Before [`FromNode::Begin`] those that there are, afterwards
    /// those that come.
    Member(Member),
    /// The member of this slot is gone, and its slot with it.
    Left(SlotId),
    /// What containers the member of this slot has by now.
    Containers {
        /// The slot.
        slot: SlotId,
        /// All of them.
        containers: BTreeSet<ContainerId>,
    },
    /// What GPUs the member of this slot holds has become known, or unknown.
    Holds {
        /// The slot.
        slot: SlotId,
        /// Which.
        holds: Holds,
    },
    /// The applications of the pod of this slot are not to be started yet, and why; or may be now.
    HeldBack {
        /// The slot.
        slot: SlotId,
        /// What its connections are refused with.
        with: Option<Refused>,
    },
    /// The pod of this slot is being deleted: nothing new of it, and what it has published is retired.
    Ending {
        /// The slot.
        slot: SlotId,
        /// When it will be gone at the latest, in milliseconds from now.
        within_ms: u64,
    },
    /// Another policy is in force, which comes along as a descriptor: it may be larger than a packet.
    Policy,
    /// All that there is at the start has been said: serve.
    Begin,
    /// The answer to a command; where a worker was started, with the broker's end of its request socket.
    Answer {
        /// The command's number.
        id: u64,
        /// What came of it; else why nothing did.
        outcome: Result<Answer, String>,
    },
    /// Say farewell to everybody, and end.
    Stop,
}

/// How the broker is to serve.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Setup {
    /// The node's boot.
    pub boot: u64,
    /// Where the pods of this node are among the groups of its processes.
    pub cgroup_root: Root,
    /// The node's GPUs, as the driver's part of `/proc` names them.
    pub gpus: Vec<DeviceUuid>,
    /// How many connections may have the broker poll at the same time.
    pub awake: usize,
    /// The user that people started the daemon as: its processes may speak for every member, as root's may.
    pub daemon_user: u32,
}

/// What the broker says.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum FromBroker {
    /// It serves, by the policy of its setup.
    Ready,
    /// It still does, which it says again and again, and at once when it goes by another policy.
    Alive {
        /// How many policies it has taken in since its setup: it goes by the last of them.
        policies: u64,
    },
    /// It wants something done.
    Ask {
        /// A number for the answer.
        id: u64,
        /// What.
        command: Command,
    },
    /// Something that the owner of a pod may want to read. The node holds it against the slots that there are and to its own
    /// rate. Not answered.
    Tell(Tell),
    /// What a slot is not served for; `None`: it is, as all are of which it says nothing. For the node's status alone. Not
    /// answered.
    Unserved {
        /// The slot.
        slot: SlotId,
        /// Why.
        with: Option<Refused>,
    },
}

/// Something that the owner of a pod may want to read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Tell {
    /// The pod's slot.
    pub slot: SlotId,
    /// How often it happened since it was told last.
    pub times: u32,
    /// What.
    pub what: Told,
}

/// What happened to a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Told {
    /// A connection or a request of it was refused.
    Refused(Refused),
    /// A buffer that it published, or holds a lease of, has ended, and so many leases are left that keep its memory.
    Orphaned {
        /// How many.
        leases: u32,
    },
}

/// A refusal, bounded as it is on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Refused {
    code: u32,
    /// What was looked at, what was wanted, what was found.
    compared: Vec<[String; 3]>,
    /// Where it is another than the code's.
    remedy: Option<String>,
}

impl From<&Refusal> for Refused {
    fn from(refusal: &Refusal) -> Self {
        let compared = refusal.compared().iter();
        let compared = compared.map(|c| [c.what.clone(), c.wanted.clone(), c.found.clone()]).collect();
        let remedy = Some(refusal.remedy()).filter(|own| *own != refusal.code().remedy()).map(str::to_owned);
        Self { code: refusal.code().number(), compared, remedy }
    }
}

impl Refused {
    /// The refusal, cut to what one may have; `None` where its code is none of ours.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        let code = Code::from_number(self.code);
        if matches!(code, Code::Unknown(_)) {
            return None;
        }
        let compared = self.compared.iter().take(wire::REFUSAL_COMPARED);
        let refusal = compared.fold(Refusal::new(code), |refusal, [what, wanted, found]| {
            refusal.compared_with(what, wanted, found)
        });
        Some(match &self.remedy {
            Some(remedy) => refusal.with_remedy(remedy.as_str()),
            None => refusal,
        })
    }
}

/// What the broker may have done: all that a broker that was taken over can get from the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// Start a GPU worker. The node makes its request socket, so that no descriptor comes from the broker.
    StartWorker {
        /// The GPU that it sees; all of them where there is none.
        gpu: Option<DeviceUuid>,
    },
    /// End a worker that was started for this broker. Answered when it has ended.
    EndWorker {
        /// The number that it was given.
        worker: u64,
    },
    /// Run the self-test of legacy handles, if it has not been run with this driver.
    ProveLegacy,
    /// Say what GPUs there are and which reach each other.
    Survey,
    /// Say of which GPUs a process has the device nodes. The answer is about GPUs alone, and the same for a process that does
    /// not exist, that is another one by now, that may not be looked at, or whose files do not answer.
    Reachable {
        /// The slot whose process it is said to be, which has so many looks at a time.
        slot: SlotId,
        /// The process.
        pid: u32,
        /// When it started, in clock ticks after boot.
        started: u64,
    },
    /// Kill a process that leases a buffer whose time is over. The node does it where the policy says so of the pod's
    /// namespace, and the process is one of that pod's by what the node itself sees.
    Kill {
        /// The slot that it connected through.
        slot: SlotId,
        /// The process.
        pid: u32,
        /// When it started, in clock ticks after boot.
        started: u64,
        /// The number of its pidfd, where there are such.
        pidfs_inode: Option<u64>,
    },
    /// Evict the pod of a slot, one of whose processes leases a buffer whose time is over. The node does it where the policy
    /// says so of its namespace.
    Evict {
        /// The slot.
        slot: SlotId,
    },
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// A worker was started.
    Started {
        /// Its number, for [`Command::EndWorker`].
        worker: u64,
        /// Its process, for the log.
        pid: u32,
    },
    /// A worker has ended.
    Ended {
        /// How.
        ending: Ending,
        /// With what status, for the log.
        how: String,
    },
    /// Whether the self-test proved that the process-number word may be rewritten.
    Proven(bool),
    /// What the driver says of the GPUs.
    Surveyed(Topology),
    /// GPUs whose device nodes a process has.
    Reachable(Vec<DeviceUuid>),
    /// The process was killed.
    Killed,
    /// The pod is being evicted, or gone already.
    Evicted,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// By itself, having nothing to complain of.
    InOrder,
    /// By a fault of its own: a signal that the kernel sends for those, or an exit code other than 0.
    Crash,
    /// Killed by somebody, or nobody knows how.
    Killed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_comes_back_as_it_was_and_a_forged_one_is_cut() {
        let refusal = Refusal::new(Code::NotFound).compared_with("buffer", "w", "none").with_remedy("look");
        for refusal in [refusal, Refusal::new(Code::Forked)] {
            assert_eq!(Refused::from(&refusal).refusal(), Some(refusal));
        }
        let long = || ["x".repeat(100_000), "y".repeat(100_000), String::new()];
        let forged = Refused { code: 20, compared: (0..100).map(|_| long()).collect(), remedy: None };
        let cut = forged.refusal().unwrap();
        assert_eq!(cut.compared().len(), wire::REFUSAL_COMPARED);
        assert!(cut.to_string().len() < 16 * wire::REFUSAL_TEXT_BYTES);
        assert_eq!(Refused { code: 9_999, compared: Vec::new(), remedy: None }.refusal(), None);
    }

    #[test]
    fn the_broker_can_say_nothing_else() {
        let read = |text: &str| serde_json::from_str::<FromBroker>(text);
        let ask = read(r#"{"ask":{"id":7,"command":{"end-worker":{"worker":3}}}}"#).unwrap();
        assert!(matches!(ask, FromBroker::Ask { id: 7, command: Command::EndWorker { worker: 3 } }));
        for strange in [
            r#"{"ask":{"id":7,"command":{"end-worker":{"worker":-3}}}}"#,
            r#"{"ask":{"id":7,"command":{"end-worker":{"worker":3,"signal":9}}}}"#,
            r#"{"ask":{"id":7,"command":{"kill":{"slot":"p-1","pid":1,"started":1,"signal":15}}}}"#,
            r#"{"ask":{"id":7,"command":{"kill":{"slot":"../p","pid":1,"started":1}}}}"#,
            r#"{"ask":{"id":7,"command":{"evict":{"slot":"p-1","namespace":"kube-system","pod":"etcd"}}}}"#,
            r#"{"ask":{"id":7,"command":{"start-program":{"path":"/bin/sh"}}}}"#,
            r#"{"ask":{"id":7,"command":"start-worker","user":0}}"#,
            r#"{"tell":{"slot":"a","times":1,"what":{"said":"anything"}}}"#,
            r#"{"tell":{"slot":"../a","times":1,"what":{"orphaned":{"leases":1}}}}"#,
            r#"{"unserved":{"slot":"../a","with":null}}"#,
            r#"{"unserved":{"slot":"a","with":"a text of any length"}}"#,
            r#"{"alive":{}}"#,
            r#"{"alive":{"policies":-1}}"#,
            r#"{"setup":{}}"#,
            "",
        ] {
            assert!(read(strange).is_err(), "{strange}");
        }
    }
}
