//! The slots: a folder with a listening socket for each member, those that come and those that go.
//!
//! The sockets are the node's own: while a broker is away, connections wait in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_policy::Policy;
use gpu_handoff_protocol::codec::Outgoing;
use gpu_handoff_protocol::socket::SeqListener;
use gpu_handoff_protocol::{Namespace, Refusal, SlotId};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::error;

use super::policy::packed;
use super::words::{FromNode, Refused};
use crate::closer::{Closer, Unclosed};
use crate::config::slot_socket;
use crate::identity::cgroup::ContainerId;
use crate::limits;
use crate::members::{Holds, Member};

/// What becomes of a member while the daemon runs.
#[derive(Debug)]
pub enum Change {
    /// It comes. Answered with the folder of its slot when that is served.
    Join(Member, oneshot::Sender<Result<PathBuf, JoinError>>),
    /// It goes, and its slot. Answered when nobody can connect there any more.
    Leave(SlotId, oneshot::Sender<()>),
    /// The containers that it has by now.
    Containers(SlotId, BTreeSet<ContainerId>),
    /// Its applications are not to be started yet, and why; or may be now.
    HeldBack(SlotId, Option<Refused>),
    /// The GPUs that it holds, as far as that is known by now.
    Holds(SlotId, Holds),
    /// Its pod is being deleted, and will be gone by then.
    Ending(SlotId, Instant),
    /// Another policy is in force.
    Policy(Arc<Policy>),
}

/// Why a member cannot come.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// There is no slot left.
    #[error(
        "all {limit} slots of this node are taken: one is free when a pod that takes part has gone from it (--slots)"
    )]
    NoSlot {
        /// How many there are.
        limit: usize,
    },
    /// Too many of its namespace are not closed.
    #[error(
        "{} slots of namespace {namespace} that are gone stay open: what its pods sent there does not close",
        limits::UNCLOSED_OF_NAMESPACE
    )]
    Unclosed {
        /// The namespace.
        namespace: Namespace,
    },
    /// Another member has it.
    #[error("slot {slot} is pod {pod}'s, of UID {uid}")]
    Taken {
        /// The slot.
        slot: SlotId,
        /// Whose it is.
        pod: String,
        /// Which of all pods of that name that is.
        uid: String,
    },
    /// It cannot be made.
    #[error("slot {slot} cannot be made")]
    Make {
        /// The slot.
        slot: SlotId,
        /// What the system answered.
        source: io::Error,
    },
}

/// All slots that there are.
#[derive(Debug)]
pub(super) struct Slots {
    run_dir: PathBuf,
    /// How many there may be.
    limit: usize,
    slots: BTreeMap<SlotId, Slot>,
    changes: mpsc::Receiver<Change>,
    /// Whether a broker serves them at present.
    serving: watch::Sender<bool>,
    /// What the node's status tells of each.
    seen: watch::Sender<BTreeMap<SlotId, Seen>>,
    /// The one that was read last.
    policy: watch::Sender<Arc<Policy>>,
    /// The one that the broker goes by, or the last one went by.
    gone_by: watch::Sender<Arc<Policy>>,
    closer: Closer,
}

/// What the node's status tells of a slot.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) member: Member,
    /// When its pod will be gone, where that is known.
    pub(super) ending: Option<Instant>,
    /// Why it is not served, by the word of the broker that there is.
    pub(super) unserved: Option<Refusal>,
}

/// A member's slot. Its socket is removed with it, and closed by nobody who drops it.
#[derive(Debug)]
struct Slot {
    member: Member,
    ending: Option<Instant>,
    unserved: Option<Refusal>,
    listener: Unclosed,
    file: SocketFile,
}

/// A socket's place, which goes with this.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody may have removed it already.
        drop(std::fs::remove_file(&self.0));
    }
}

/// A word for the broker, with the descriptors that go along.
pub(super) type Word = (FromNode, Vec<Arc<OwnedFd>>);

impl Slots {
    /// None yet, and never more than so many. Members that come and go, and other policies, are told of through what comes along.
    pub(super) fn new(run_dir: &Path, limit: usize, policy: Policy) -> (Self, mpsc::Sender<Change>) {
        let policy = Arc::new(policy);
        let (changes, told) = mpsc::channel(limits::NODE_NEWS);
        (
            Self {
                run_dir: run_dir.to_path_buf(),
                limit,
                slots: BTreeMap::new(),
                changes: told,
                serving: watch::Sender::new(false),
                seen: watch::Sender::new(BTreeMap::new()),
                gone_by: watch::Sender::new(Arc::clone(&policy)),
                policy: watch::Sender::new(policy),
                closer: Closer::default(),
            },
            changes,
        )
    }

    /// What a broker that begins is told of the members: first those that there are, then, after its start, what is known of them beside.
    pub(super) fn first_words(&self, now: Instant) -> (Vec<Word>, Vec<Word>) {
        let member = |slot: &Slot| (FromNode::Member(slot.member.clone()), vec![slot.listener.shared()]);
        let ending = |slot: &Slot| slot.ending.map(|until| ending(&slot.member.slot, until, now));
        (self.slots.values().map(member).collect(), self.slots.values().filter_map(ending).collect())
    }

    /// How many there may be.
    pub(super) const fn limit(&self) -> usize {
        self.limit
    }

    /// Whether a broker serves the slots, whenever that changes.
    pub(super) fn readiness(&self) -> watch::Receiver<bool> {
        self.serving.subscribe()
    }

    /// What the node's status tells of them.
    pub(super) fn seen(&self) -> watch::Receiver<BTreeMap<SlotId, Seen>> {
        self.seen.subscribe()
    }

    /// Has the node's status tell of a slot as it is now.
    fn tell(&self, name: &SlotId) {
        self.seen.send_modify(|seen| match self.slots.get(name) {
            Some(Slot { member, ending, unserved, .. }) => {
                let (member, unserved) = (member.clone(), unserved.clone());
                seen.insert(name.clone(), Seen { member, ending: *ending, unserved });
            }
            None => {
                seen.remove(name);
            }
        });
    }

    /// A broker serves them from now on, or none does. Each says itself which of them it does not.
    pub(super) fn are_served(&mut self, serving: bool) {
        self.serving.send_replace(serving);
        let told = self.slots.iter().filter(|(_, slot)| slot.unserved.is_some());
        for name in told.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.is_unserved(&name, None);
        }
    }

    /// The broker that serves them is silent, so that none counts as doing so, or is heard again.
    pub(super) fn are_heard(&self, heard: bool) {
        self.serving.send_replace(heard);
    }

    /// The broker goes by this policy.
    pub(super) fn go_by(&self, policy: &Arc<Policy>) {
        self.gone_by.send_if_modified(|by| {
            let before = std::mem::replace(by, Arc::clone(policy));
            !Arc::ptr_eq(&before, policy)
        });
    }

    /// The broker does not serve a slot for this, or does.
    pub(super) fn is_unserved(&mut self, name: &SlotId, with: Option<Refusal>) {
        if let Some(slot) = self.slots.get_mut(name) {
            slot.unserved = with;
            self.tell(name);
        }
    }

    /// The member that has a slot.
    pub(super) fn member(&self, slot: &SlotId) -> Option<&Member> {
        self.slots.get(slot).map(|slot| &slot.member)
    }

    /// The policy that the broker goes by, whenever it becomes another one.
    pub(super) fn gone_by(&self) -> watch::Receiver<Arc<Policy>> {
        self.gone_by.subscribe()
    }

    /// The policy that was read last.
    pub(super) fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy.borrow())
    }

    /// The policy that was read last, whenever it becomes another one.
    pub(super) fn policies(&self) -> watch::Receiver<Arc<Policy>> {
        self.policy.subscribe()
    }

    /// The next change, when there is one. Safe to cancel.
    pub(super) async fn next_change(&mut self) -> Change {
        match self.changes.recv().await {
            Some(change) => change,
            // Nobody knows of any.
            None => std::future::pending().await,
        }
    }

    /// Does what is to be done for a change; gives the word for the broker.
    pub(super) fn apply(&mut self, change: Change) -> Option<Word> {
        match change {
            Change::Join(member, asker) => {
                let joined = self.join(member);
                let (word, outcome) = match joined {
                    Ok((word, folder)) => (word, Ok(folder)),
                    Err(e) => (None, Err(e)),
                };
                // Whoever asked may be gone; the slot is there for when it asks again.
                let _ = asker.send(outcome);
                word
            }
            Change::Leave(slot, asker) => {
                let word = self.leave(slot);
                let _ = asker.send(());
                word
            }
            Change::Containers(slot, containers) => {
                self.slots.get_mut(&slot)?.member.containers = Some(containers.clone());
                self.tell(&slot);
                Some((FromNode::Containers { slot, containers }, Vec::new()))
            }
            Change::Holds(slot, holds) => {
                self.slots.get_mut(&slot)?.member.holds.clone_from(&holds);
                Some((FromNode::Holds { slot, holds }, Vec::new()))
            }
            Change::HeldBack(slot, with) => {
                self.slots.get_mut(&slot)?.member.held_back.clone_from(&with);
                Some((FromNode::HeldBack { slot, with }, Vec::new()))
            }
            Change::Policy(policy) => {
                self.policy.send_replace(Arc::clone(&policy));
                match packed(&policy) {
                    Ok(file) => Some((FromNode::Policy, vec![Arc::new(file)])),
                    Err(e) => {
                        error!(error = %e, "the broker could not be told of another policy: it goes by the one before it until its next start");
                        None
                    }
                }
            }
            Change::Ending(slot, until) => {
                self.slots.get_mut(&slot)?.ending = Some(until);
                self.tell(&slot);
                Some(ending(&slot, until, Instant::now()))
            }
        }
    }

    /// Makes a slot, unless the member has it already.
    pub(super) fn join(&mut self, member: Member) -> Result<(Option<Word>, PathBuf), JoinError> {
        let name = member.slot.clone();
        let folder = folder(&self.run_dir, &name);
        if let Some(there) = self.slots.get(&name) {
            if there.member.uid == member.uid && there.member.pod == member.pod {
                return Ok((None, folder));
            }
            let (pod, uid) = (there.member.pod.to_string(), there.member.uid.to_string());
            return Err(JoinError::Taken { slot: name, pod, uid });
        }
        let namespace = &member.pod.namespace;
        if self.slots.len() + self.closer.waiting() >= self.limit {
            return Err(JoinError::NoSlot { limit: self.limit });
        }
        if self.closer.waiting_of(namespace) >= limits::UNCLOSED_OF_NAMESPACE {
            return Err(JoinError::Unclosed { namespace: namespace.clone() });
        }
        let slot =
            make(&self.run_dir, member).map_err(|source| JoinError::Make { slot: name.clone(), source })?;
        let word = (FromNode::Member(slot.member.clone()), vec![slot.listener.shared()]);
        self.slots.insert(name.clone(), slot);
        self.tell(&name);
        Ok((Some(word), folder))
    }

    fn leave(&mut self, slot: SlotId) -> Option<Word> {
        let Slot { member, listener, file, .. } = self.slots.remove(&slot)?;
        drop(file);
        // What was sent to it is not closed here.
        self.closer.close(&member.pod.namespace, listener);
        self.tell(&slot);
        // What somebody else put there is left alone.
        drop(std::fs::remove_dir(folder(&self.run_dir, &slot)));
        Some((FromNode::Left(slot), Vec::new()))
    }
}

fn ending(slot: &SlotId, until: Instant, now: Instant) -> Word {
    let left = until.saturating_duration_since(now).as_millis();
    let within_ms = u64::try_from(left).unwrap_or(u64::MAX);
    (FromNode::Ending { slot: slot.clone(), within_ms }, Vec::new())
}

fn folder(run_dir: &Path, slot: &SlotId) -> PathBuf {
    run_dir.join("slots").join(slot.as_str())
}

/// A word as a packet.
pub(super) fn packet((word, descriptors): Word) -> io::Result<Outgoing> {
    Ok(Outgoing { bytes: serde_json::to_vec(&word)?, descriptors })
}

/// Makes the folder that is mounted into the member's sidecar, and the socket in it. The folder is the daemon's own: if the
/// member could write there, it could put something else in the place of the socket, and have that given to it.
///
/// Where the node knows the pod's containers, whoever the folder is mounted for may connect, as whatever user, and is looked at then.
fn make(run_dir: &Path, member: Member) -> io::Result<Slot> {
    let folder = folder(run_dir, &member.slot);
    DirBuilder::new().recursive(true).mode(0o711).create(&folder)?;
    std::os::unix::fs::chown(&folder, Some(rustix::process::geteuid().as_raw()), None)?;
    std::fs::set_permissions(&folder, Permissions::from_mode(0o711))?;
    let path = slot_socket(run_dir, &member.slot);
    let listener = SeqListener::bind(&path)?;
    let user = member.user;
    let mode = if member.containers.is_some() { 0o666 } else { 0o600 };
    let (listener, file) = (Unclosed::new(listener.into_fd()), SocketFile(path));
    std::fs::set_permissions(&file.0, Permissions::from_mode(mode))?;
    if let Some(user) = user {
        std::os::unix::fs::chown(&file.0, Some(user), None)?;
    }
    Ok(Slot { member, ending: None, unserved: None, listener, file })
}

#[cfg(test)]
mod tests;
