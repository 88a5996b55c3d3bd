//! Buffers that outlive their process: they are their pod's from the beginning, and no session owns them.
//!
//! They end when their pod leaves, when a process of it retires them, and when it publishes their name anew: then nobody
//! needs to know what a process that is gone had published.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use gpu_handoff_protocol::message::EndReason;
use gpu_handoff_protocol::receipt::ProcessKey;
use gpu_handoff_protocol::{BufferId, BufferInfo, BufferName, GroupKey, Lifetime};

use super::{Buffer, MemberId, Registry, SessionId};

/// Who published such a buffer, for its receipt: a process that may be gone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Publisher {
    pub(super) process: ProcessKey,
    pub(super) own_pid: u32,
}

/// Those of one member.
#[derive(Debug, Default)]
pub(super) struct Lasting {
    /// All, each with its publisher; `None`: known from a lease alone.
    all: BTreeMap<BufferId, Option<Publisher>>,
    /// The one that takes leases under a name of its own, by generation.
    named: HashMap<BufferName, (u64, BufferId)>,
}

impl Lasting {
    pub(super) fn ids(&self) -> impl Iterator<Item = BufferId> + '_ {
        self.all.keys().copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn publisher(&self, id: BufferId) -> Option<Publisher> {
        self.all.get(&id).copied().flatten()
    }

    fn add(&mut self, info: &BufferInfo, publisher: Option<Publisher>) {
        let known = self.all.entry(info.id).or_default();
        *known = publisher.or(*known);
        let newest = |(generation, _): &(u64, BufferId)| *generation < info.generation;
        if publisher.is_some() && info.set.is_none() && self.named.get(&info.facts.name).is_none_or(newest) {
            self.named.insert(info.facts.name.clone(), (info.generation, info.id));
        }
    }

    /// It takes no new leases.
    pub(super) fn unname(&mut self, info: &BufferInfo) {
        if self.named.get(&info.facts.name).is_some_and(|(_, id)| *id == info.id) {
            self.named.remove(&info.facts.name);
        }
    }

    pub(super) fn remove(&mut self, info: &BufferInfo) {
        self.unname(info);
        self.all.remove(&info.id);
    }

    /// The one of this buffer's name that came before it.
    fn before(&self, info: &BufferInfo) -> Option<BufferId> {
        let (generation, id) = self.named.get(&info.facts.name)?;
        (info.set.is_none() && *generation < info.generation).then_some(*id)
    }

    /// All of them, and those with a name, for the tests' checks.
    #[cfg(test)]
    pub(super) fn parts(&self) -> (Vec<BufferId>, Vec<(&BufferName, BufferId)>) {
        (self.ids().collect(), self.named.iter().map(|(name, (_, id))| (name, *id)).collect())
    }
}

/// Whether a buffer outlives its process.
pub(super) fn lasts(info: &BufferInfo) -> bool {
    info.facts.lifetime == Lifetime::Pod
}

impl Registry {
    /// A buffer that outlives its process is its member's; whose process published it, where that is known.
    pub(super) fn make_last(&mut self, member: MemberId, info: &BufferInfo, publisher: Option<Publisher>) {
        if let Some(m) = self.members.get_mut(&member).filter(|_| lasts(info)) {
            m.lasting.add(info, publisher);
        }
    }

    /// Whoever speaks in this session, as the publisher of what it publishes.
    pub(super) fn as_publisher(&self, session: SessionId) -> Option<Publisher> {
        let facts = &self.sessions.get(&session)?.facts;
        Some(Publisher { process: facts.process, own_pid: facts.own_pid })
    }

    /// Such a buffer whose name its pod has published anew by this one.
    pub(super) fn lasting_before(&self, member: MemberId, info: &BufferInfo) -> Option<BufferId> {
        self.members.get(&member)?.lasting.before(info)
    }

    /// A buffer of an earlier daemon is there again, after or before others of its name.
    pub(super) fn settle_versions(
        &mut self,
        member: MemberId,
        group: &GroupKey,
        info: &BufferInfo,
        now: Instant,
    ) {
        if let Some(older) = self.lasting_before(member, info) {
            self.end_buffer(older, EndReason::Superseded, None, now);
        }
        if lasts(info) && self.is_outdated(member, group, info) {
            self.end_buffer(info.id, EndReason::Superseded, None, now);
        }
    }

    /// Whether its pod has published its name anew.
    fn is_outdated(&self, member: MemberId, group: &GroupKey, info: &BufferInfo) -> bool {
        let named = self.groups.get(group).and_then(|g| g.names.get(&info.facts.name));
        let newest = named.filter(|_| info.set.is_none()).and_then(|named| self.buffers.get(&named.newest()));
        newest.is_some_and(|newest| newest.member == member && newest.info.generation > info.generation)
    }
}

impl Buffer {
    /// Whether it outlives its process.
    pub(super) fn lasts(&self) -> bool {
        lasts(&self.info)
    }
}
