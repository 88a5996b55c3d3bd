//! Which groups share what on this node, and with whom: decided here, mounted by [`Mounts`].
//!
//! A group's `/dev/shm` and its IPC namespace are there from its first member that asks for them until its last one has left.
//! What is mounted says what there is: after a restart of the daemon it is held against the members on record, what is
//! missing is made, and what belongs to nobody is taken down.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

use gpu_handoff_policy::{NodeMemory, Policy};
use gpu_handoff_protocol::{GroupKey, PodUid, Refusal};
use tracing::{info, warn};

use super::mounts::{Found, Mounts};
use crate::limits;

/// Bytes of a group's hash in the name of its folder: no two groups have the same.
const FOLDER_BYTES: usize = 16;

/// A thing that a group may share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::node) enum Part {
    /// `/dev/shm`: a tmpfs.
    Shm,
    /// An IPC namespace: a file that keeps it.
    Ipc,
}

/// What a member asks to share with its group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::node) struct Wish {
    /// `/dev/shm`.
    pub(in crate::node) shm: bool,
    /// How large that is to be, in bytes; `None`: as the policy says.
    pub(in crate::node) size: Option<u64>,
    /// An IPC namespace.
    pub(in crate::node) ipc: bool,
}

impl Part {
    pub(super) const ALL: [Self; 2] = [Self::Shm, Self::Ipc];
}

impl Wish {
    /// Whether it asks for anything.
    pub(in crate::node) fn is_some(self) -> bool {
        Part::ALL.into_iter().any(|part| self.wants(part))
    }

    const fn wants(self, part: Part) -> bool {
        match part {
            Part::Shm => self.shm,
            Part::Ipc => self.ipc,
        }
    }
}

/// A thing that is shared: where it is, and by which number it is known from within.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::node) struct Thing {
    pub(in crate::node) path: PathBuf,
    /// A file system's, as `stat` has it; a namespace's, as `/proc/PID/ns` has it.
    pub(in crate::node) number: u64,
}

/// What a member gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::node) struct Shared {
    pub(in crate::node) shm: Option<Thing>,
    pub(in crate::node) ipc: Option<Thing>,
}

/// Why it gets nothing.
#[derive(Debug, thiserror::Error)]
pub(in crate::node) enum EnterError {
    /// It may not.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It cannot be made.
    #[error("what group {group} is to share cannot be made")]
    Failed {
        /// The group.
        group: GroupKey,
        /// What was answered.
        source: io::Error,
    },
    /// There are too many already.
    #[error("{} groups share something on this node, which is the most", limits::SHARING_GROUPS)]
    Full,
    /// The daemon is about to end.
    #[error("the daemon ends")]
    Ending,
}

/// A group that shares something here.
#[derive(Debug)]
struct Group {
    folder: String,
    members: BTreeMap<PodUid, Wish>,
    shm: Option<Shm>,
    /// The namespace's number.
    ipc: Option<u64>,
}

/// A group's `/dev/shm`.
#[derive(Debug, Clone, Copy)]
struct Shm {
    bytes: u64,
    device: u64,
}

impl Group {
    fn wants(&self, part: Part) -> bool {
        self.members.values().any(|wish| wish.wants(part))
    }

    /// Whether something that it wants is not there.
    fn lacks(&self) -> bool {
        Part::ALL.into_iter().any(|part| self.wants(part) && !self.has(part))
    }

    const fn has(&self, part: Part) -> bool {
        match part {
            Part::Shm => self.shm.is_some(),
            Part::Ipc => self.ipc.is_some(),
        }
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Shares<M> {
    mounts: M,
    /// The node's memory, in bytes.
    memory: u64,
    groups: BTreeMap<GroupKey, Group>,
    /// Folders with what could not be taken down: it is tried again.
    left: BTreeSet<String>,
}

impl<M: Mounts> Shares<M> {
    /// With the members that are on record: what they share is there, or made anew, and what nobody shares is taken down.
    pub(super) fn new(
        mounts: M,
        memory: u64,
        members: Vec<(GroupKey, PodUid, Wish)>,
        policy: &Policy,
    ) -> io::Result<Self> {
        let mut shares = Self { mounts, memory, groups: BTreeMap::new(), left: BTreeSet::new() };
        for (key, member, wish) in members.into_iter().filter(|(.., wish)| wish.is_some()) {
            let group = shares.groups.entry(key).or_insert_with_key(Group::new);
            group.members.insert(member, wish);
        }
        for found in shares.mounts.found()? {
            shares.adopt(found);
        }
        shares.tidy(policy);
        Ok(shares)
    }

    /// What an earlier life of the daemon has left in a folder of ours: a group's, or to be taken down.
    fn adopt(&mut self, found: Found) {
        let Found { folder, shm, ipc, other } = found;
        let group = self.groups.values_mut().find(|group| group.folder == folder);
        let (mut adopted, there) = (0, usize::from(shm.is_some()) + usize::from(ipc.is_some()));
        if let Some(group) = group {
            group.shm = shm.filter(|_| group.wants(Part::Shm)).map(|(bytes, device)| Shm { bytes, device });
            group.ipc = ipc.filter(|_| group.wants(Part::Ipc));
            adopted = usize::from(group.has(Part::Shm)) + usize::from(group.has(Part::Ipc));
        }
        if other || adopted == 0 || adopted < there {
            self.left.insert(folder);
        }
    }

    /// Has a member share what it asks for. Asked for again it is what is there.
    pub(super) fn enter(
        &mut self,
        policy: &Policy,
        key: &GroupKey,
        member: &PodUid,
        wish: Wish,
    ) -> Result<Shared, EnterError> {
        if !wish.is_some() {
            return Ok(Shared::default());
        }
        if !self.groups.contains_key(key) && self.groups.len() >= limits::SHARING_GROUPS {
            return Err(EnterError::Full);
        }
        let asked = wish.size.unwrap_or_else(|| policy.shm_of(&key.namespace)).max(1);
        let has = self.groups.get(key).and_then(|group| group.shm).map(|shm| shm.bytes);
        if wish.shm && has.is_none_or(|has| has < asked) {
            policy.may_share_memory(key, asked, self.node(key, policy))?;
        }
        let group = self.groups.entry(key.clone()).or_insert_with_key(Group::new);
        let before = group.members.insert(member.clone(), wish);
        if let Err(source) = self.make(key, policy) {
            // As it was.
            if let Some(group) = self.groups.get_mut(key) {
                match before {
                    Some(before) => group.members.insert(member.clone(), before),
                    None => group.members.remove(member),
                };
            }
            self.settle(key);
            return Err(EnterError::Failed { group: key.clone(), source });
        }
        self.settle(key);
        Ok(self.shared(key, wish))
    }

    /// What members of a group that ask for this have.
    pub(super) fn shared(&self, key: &GroupKey, wish: Wish) -> Shared {
        let Some(group) = self.groups.get(key) else { return Shared::default() };
        let thing = |part, number: Option<u64>| {
            let path = self.mounts.path(&group.folder, part);
            number.filter(|_| wish.wants(part)).map(|number| Thing { path, number })
        };
        Shared { shm: thing(Part::Shm, group.shm.map(|shm| shm.device)), ipc: thing(Part::Ipc, group.ipc) }
    }

    /// A member is gone: what nobody of its group asks for any more is taken down.
    pub(super) fn leave(&mut self, key: &GroupKey, member: &PodUid) {
        if let Some(group) = self.groups.get_mut(key) {
            group.members.remove(member);
            self.settle(key);
        }
    }

    /// Makes what members ask for and is not there, and takes down what nobody asks for, as far as that failed before.
    pub(super) fn tidy(&mut self, policy: &Policy) {
        let lacking = self.groups.iter().filter(|(_, group)| group.lacks()).map(|(key, _)| key.clone());
        for key in lacking.collect::<Vec<_>>() {
            if let Err(e) = self.make(&key, policy) {
                warn!(group = %key, error = %e, "what the group shares cannot be made again: it is tried again");
            }
        }
        for folder in std::mem::take(&mut self.left) {
            let parts = self.idle(&folder);
            self.take_down(&folder, &parts);
        }
    }

    /// Whether something of that is to be tried again.
    pub(super) fn is_untidy(&self) -> bool {
        !self.left.is_empty() || self.groups.values().any(Group::lacks)
    }

    /// The groups, each with what its members share.
    pub(super) fn all(&self) -> impl Iterator<Item = (&GroupKey, Shared, impl Iterator<Item = &PodUid>)> {
        let everything = Wish { shm: true, size: None, ipc: true };
        self.groups.iter().map(move |(key, group)| (key, self.shared(key, everything), group.members.keys()))
    }

    /// How large a group's `/dev/shm` has to be at least, by its members: nothing where none asks for it.
    fn asked(&self, key: &GroupKey, policy: &Policy) -> u64 {
        let wishes = self.groups.get(key).into_iter().flat_map(|group| group.members.values());
        let otherwise = policy.shm_of(&key.namespace);
        wishes.filter(|wish| wish.shm).map(|wish| wish.size.unwrap_or(otherwise).max(1)).max().unwrap_or(0)
    }

    /// What there is on the node beside a group's: also of those whose own cannot be made for now.
    fn node(&self, key: &GroupKey, policy: &Policy) -> NodeMemory {
        let mut node = NodeMemory { all: self.memory, ..NodeMemory::default() };
        for (other, group) in self.groups.iter().filter(|(other, _)| *other != key) {
            let bytes = group.shm.map_or(0, |shm| shm.bytes).max(self.asked(other, policy));
            node.others = node.others.saturating_add(bytes);
            if other.namespace == key.namespace {
                node.others_of_namespace = node.others_of_namespace.saturating_add(bytes);
            }
        }
        node
    }

    /// Has all there that a group's members ask for. Whatever was begun and is not theirs afterwards is taken down later.
    fn make(&mut self, key: &GroupKey, policy: &Policy) -> io::Result<()> {
        let Some(folder) = self.groups.get(key).map(|group| group.folder.clone()) else { return Ok(()) };
        if self.left.contains(&folder) {
            // Nothing new on top of what is over, or not ours.
            self.mounts.take_down(&folder, &self.idle(&folder))?;
            self.left.remove(&folder);
        }
        let made = self.make_parts(key, self.asked(key, policy));
        if made.is_err() {
            self.left.insert(folder);
        }
        made
    }

    fn make_parts(&mut self, key: &GroupKey, bytes: u64) -> io::Result<()> {
        let Some(group) = self.groups.get_mut(key) else { return Ok(()) };
        match group.shm {
            Some(shm) if shm.bytes < bytes => {
                self.mounts.grow(&group.folder, bytes)?;
                group.shm = Some(Shm { bytes, ..shm });
            }
            None if group.wants(Part::Shm) => {
                let device = self.mounts.shm(&group.folder, bytes)?;
                info!(group = %key, bytes, "the group shares a /dev/shm on this node");
                group.shm = Some(Shm { bytes, device });
            }
            _ => {}
        }
        if group.ipc.is_none() && group.wants(Part::Ipc) {
            group.ipc = Some(self.mounts.ipc(&group.folder)?);
            info!(group = %key, "the group shares an IPC namespace on this node");
        }
        Ok(())
    }

    /// Takes down what nobody of a group asks for, and the group where it has no member.
    fn settle(&mut self, key: &GroupKey) {
        let Some(group) = self.groups.get_mut(key) else { return };
        let over = Part::ALL.into_iter().filter(|part| !group.wants(*part) && group.has(*part));
        let over: Vec<Part> = over.collect();
        if over.contains(&Part::Shm) {
            group.shm = None;
        }
        if over.contains(&Part::Ipc) {
            group.ipc = None;
        }
        let (folder, is_over) = (group.folder.clone(), group.members.is_empty());
        if is_over {
            self.groups.remove(key);
            info!(group = %key, "the group shares nothing on this node any more");
            self.take_down(&folder, &Part::ALL);
        } else if !over.is_empty() {
            self.take_down(&folder, &over);
        }
    }

    /// The parts of a folder that no group has.
    fn idle(&self, folder: &str) -> Vec<Part> {
        let group = self.groups.values().find(|group| group.folder == folder);
        let is_idle = |part: &Part| group.is_none_or(|group| !group.has(*part));
        Part::ALL.into_iter().filter(is_idle).collect()
    }

    fn take_down(&mut self, folder: &str, parts: &[Part]) {
        if let Err(e) = self.mounts.take_down(folder, parts) {
            warn!(folder, error = %e, "what a group shared cannot be taken down: it is tried again");
            self.left.insert(folder.to_owned());
        } else if parts.len() == Part::ALL.len() {
            self.left.remove(folder);
        }
    }
}

impl Group {
    fn new(key: &GroupKey) -> Self {
        let hash = blake3::hash(key.to_string().as_bytes());
        let folder = hash.as_bytes()[..FOLDER_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
        Self { folder, members: BTreeMap::new(), shm: None, ipc: None }
    }
}

#[cfg(test)]
mod tests;
