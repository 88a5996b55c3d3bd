//! Room in members' quotas that is kept for what is expected back: what is new is held against what a member has and
//! what it had, so that a restart loses nothing to what comes first after it.

use std::collections::HashMap;

use gpu_handoff_policy::Usage;
use gpu_handoff_protocol::BufferId;

use super::past::Awaited;
use super::{Member, Registry};
use crate::journal::{AliveBuffer, Tag};

/// The expected buffers that are not counted as their members' yet.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    buffers: HashMap<BufferId, (Tag, u64)>,
    of: HashMap<Tag, Usage>,
}

impl Reserved {
    pub(super) fn keep(&mut self, id: BufferId, alive: &AliveBuffer) {
        self.buffers.insert(id, (alive.member, alive.bytes));
        let usage = self.of.entry(alive.member).or_default();
        usage.buffers += 1;
        usage.bytes += alive.bytes;
    }

    /// A buffer is counted as its member's, or over.
    pub(super) fn settle(&mut self, id: BufferId) {
        let Some((member, bytes)) = self.buffers.remove(&id) else { return };
        let Some(usage) = self.of.get_mut(&member) else { return };
        usage.buffers -= 1;
        usage.bytes -= bytes;
        if usage.buffers == 0 {
            self.of.remove(&member);
        }
    }

    fn of(&self, member: Tag) -> Usage {
        self.of.get(&member).copied().unwrap_or_default()
    }

    /// Whether nothing is kept for anybody.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.buffers.is_empty() && self.of.is_empty()
    }
}

impl Registry {
    /// What a member has, and what it had and may still bring back.
    pub(super) fn held_by(&self, member: &Member) -> Usage {
        let (has, had) = (member.usage, self.expected.reserved.of(member.tag));
        let leases = self.expected.members.get(&member.tag).map_or(0, |awaited| awaited.leases.len() as u64);
        Usage {
            buffers: has.buffers.saturating_add(had.buffers),
            bytes: has.bytes.saturating_add(had.bytes),
            leases: has.leases.saturating_add(leases),
        }
    }

    /// Those of one member.
    pub(super) fn descriptors_held_by(&self, member: &Member) -> u64 {
        let awaited = self.expected.members.get(&member.tag).map_or(0, |awaited| awaited.buffers.len());
        member.descriptors.saturating_add(awaited as u64)
    }

    /// Descriptors that are kept open, and those that may come back. Whether a buffer that is expected has one, nobody
    /// knows before it is there.
    pub(super) fn descriptors_held(&self) -> u64 {
        let awaited: usize =
            self.expected.members.values().map(|awaited: &Awaited| awaited.buffers.len()).sum();
        self.descriptors.saturating_add(awaited as u64)
    }
}
