//! Room in members' quotas that is kept for what is expected back: what is new is held against what a member has and
//! what it had, so that a restart loses nothing to what comes first after it.

use std::collections::HashMap;

use gpu_handoff_policy::{Held, Usage};
use gpu_handoff_protocol::BufferId;

use super::past::Awaited;
use super::{Member, Registry};
use crate::journal::{AliveBuffer, Tag};

/// The expected buffers that are not counted as their members' yet.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    buffers: HashMap<BufferId, AliveBuffer>,
    /// By member.
    of: HashMap<Tag, Usage>,
    of_groups: HashMap<Tag, Usage>,
}

impl Reserved {
    pub(super) fn keep(&mut self, id: BufferId, alive: &AliveBuffer) {
        self.buffers.insert(id, *alive);
        for usage in
            [self.of.entry(alive.member).or_default(), self.of_groups.entry(alive.group).or_default()]
        {
            usage.buffers += 1;
            usage.bytes += alive.bytes;
            usage.pod_lifetime_bytes += lasting_bytes(alive);
        }
    }

    /// A buffer is counted as its member's, or over.
    pub(super) fn settle(&mut self, id: BufferId) {
        let Some(alive) = self.buffers.remove(&id) else { return };
        for (all, tag) in [(&mut self.of, alive.member), (&mut self.of_groups, alive.group)] {
            let Some(usage) = all.get_mut(&tag) else { continue };
            usage.buffers -= 1;
            usage.bytes -= alive.bytes;
            usage.pod_lifetime_bytes -= lasting_bytes(&alive);
            if usage.buffers == 0 {
                all.remove(&tag);
            }
        }
    }

    /// Whether nothing is kept for anybody.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.buffers.is_empty() && self.of.is_empty() && self.of_groups.is_empty()
    }
}

impl Registry {
    /// What a member and its group have, and what they had and may still bring back.
    pub(super) fn held_by(&self, member: &Member) -> Held {
        let Reserved { of, of_groups, .. } = &self.expected.reserved;
        let leases = self.expected.members.get(&member.tag).map_or(0, |awaited| awaited.leases.len() as u64);
        let held = self.has(member);
        Held {
            pod: with(held.pod, of.get(&member.tag), leases),
            group: with(held.group, of_groups.get(&member.group_tag), leases),
        }
    }

    /// The descriptors of one member, and those that may come back.
    pub(super) fn descriptors_held_by(&self, member: &Member) -> u64 {
        let awaited = self.expected.members.get(&member.tag).map_or(0, |awaited| awaited.buffers.len());
        member.usage.descriptors.saturating_add(awaited as u64)
    }

    /// What a member and its group have.
    pub(super) fn has(&self, member: &Member) -> Held {
        let group = self.groups.get(&member.facts.group).map(|group| group.usage);
        Held { pod: member.usage, group: group.unwrap_or(member.usage) }
    }

    /// Descriptors that are kept open, and those that may come back. Whether a buffer that is expected has one, nobody
    /// knows before it is there.
    pub(super) fn descriptors_held(&self) -> u64 {
        let awaited: usize =
            self.expected.members.values().map(|awaited: &Awaited| awaited.buffers.len()).sum();
        self.descriptors.saturating_add(awaited as u64)
    }
}

const fn lasting_bytes(alive: &AliveBuffer) -> u64 {
    if alive.lasts { alive.bytes } else { 0 }
}

/// What is had together with what may still be brought back.
fn with(has: Usage, had: Option<&Usage>, leases: u64) -> Usage {
    let had = had.copied().unwrap_or_default();
    Usage {
        buffers: has.buffers.saturating_add(had.buffers),
        bytes: has.bytes.saturating_add(had.bytes),
        pod_lifetime_bytes: has.pod_lifetime_bytes.saturating_add(had.pod_lifetime_bytes),
        leases: has.leases.saturating_add(leases),
        ..has
    }
}
