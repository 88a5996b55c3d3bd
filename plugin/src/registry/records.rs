//! What the journal is to know: each change as it happens, and all that is alive when it is written anew.

use gpu_handoff_protocol::receipt::ProcessKey;
use gpu_handoff_protocol::{BufferId, BufferInfo, BufferName, GroupKey, LeaseId};

use super::lasting::lasts;
use super::{Buffer, MemberId, Registry};
use crate::journal::{AliveBuffer, Holder, Record, SinceBoot, Tag};

impl Registry {
    /// What has changed since this was asked last, to be written down before any effect is carried out.
    pub fn take_records(&mut self, into: &mut Vec<Record>) {
        into.append(&mut self.records);
    }

    /// All that is alive, and what is remembered of what was.
    pub fn alive(&self) -> impl Iterator<Item = Record> + '_ {
        let groups = self.groups.iter().map(|(key, g)| (Tag::of_group(key), g));
        let of_groups = groups.flat_map(|(group, g)| {
            let last = Record::Generation { group, last: g.last_generation };
            let ended = g.ended.iter().map(move |(id, reason)| Record::BufferEnded {
                id: *id,
                reason: *reason,
                group,
            });
            std::iter::once(last).chain(ended)
        });
        let past = &self.expected;
        let generations =
            past.generations.iter().map(|(group, last)| Record::Generation { group: *group, last: *last });
        let ended = past.ended.iter().flat_map(|(group, ended)| {
            ended.iter().map(|(id, reason)| Record::BufferEnded { id: *id, reason: *reason, group: *group })
        });
        let buffers = self.buffers.iter().filter(|(id, _)| !past.buffers.contains_key(*id));
        let buffers = buffers.flat_map(|(id, buffer)| self.alive_buffer(buffer).records(*id));
        let expected = past.buffers.iter().flat_map(|(id, alive)| alive.records(*id));
        let unclaimed = past.leases.iter().map(|(lease, alive)| alive.record(*lease));
        of_groups
            .chain(generations)
            .chain(ended)
            .chain(buffers)
            .chain(expected)
            .chain(unclaimed)
            .chain(self.held())
    }

    /// The leases that somebody holds.
    fn held(&self) -> impl Iterator<Item = Record> + '_ {
        self.sessions.values().flat_map(move |s| {
            let (holder, process) = (self.member_tag(s.facts.member), journaled(s.facts.process));
            s.leases.iter().filter_map(move |lease| {
                let (lease, buffer) = (*lease, *self.leases.get(lease)?);
                let seat = self.seat_of(buffer, lease);
                Some(Record::LeaseLive { lease, buffer, holder, process, seat })
            })
        })
    }

    fn alive_buffer(&self, buffer: &Buffer) -> AliveBuffer {
        let retiring = buffer.ending.map(|e| (e.reason(), e.until().map(|at| self.clock.since_boot(at))));
        AliveBuffer {
            generation: buffer.info.generation,
            group: self.group_tag(buffer.member, &buffer.group),
            name: tag_of(&buffer.info),
            member: self.member_tag(buffer.member),
            bytes: buffer.info.facts.allocation_size,
            lasts: buffer.lasts(),
            retiring,
        }
    }

    /// Members that have left are nobody's.
    pub(super) fn member_tag(&self, member: MemberId) -> Tag {
        self.members.get(&member).map_or(Tag(0), |m| m.tag)
    }

    /// The group of a member, or one that its buffers outlived.
    pub(super) fn group_tag(&self, member: MemberId, group: &GroupKey) -> Tag {
        self.members.get(&member).map_or_else(|| Tag::of_group(group), |m| m.group_tag)
    }

    pub(super) fn record_published(&mut self, info: &BufferInfo, group: &GroupKey, member: MemberId) {
        let record = Record::BufferLive {
            id: info.id,
            generation: info.generation,
            group: self.group_tag(member, group),
            name: tag_of(info),
            member: self.member_tag(member),
            bytes: info.facts.allocation_size,
            lasts: lasts(info),
        };
        self.records.push(record);
    }

    pub(super) fn record_leased(
        &mut self,
        lease: LeaseId,
        buffer: BufferId,
        member: MemberId,
        process: ProcessKey,
    ) {
        let (holder, process) = (self.member_tag(member), journaled(process));
        let seat = self.seat_of(buffer, lease);
        self.records.push(Record::LeaseLive { lease, buffer, holder, process, seat });
    }

    pub(super) fn record_retiring(&mut self, id: BufferId) {
        let Some(ending) = self.buffers.get(&id).and_then(|b| b.ending) else { return };
        let until: Option<SinceBoot> = ending.until().map(|at| self.clock.since_boot(at));
        self.records.push(Record::Retiring { id, reason: ending.reason(), until });
    }
}

/// A process, for the journal.
const fn journaled(process: ProcessKey) -> Holder {
    Holder { pid: process.pid, started: process.started }
}

/// What a buffer is found by, for the journal: its name, or that of its set.
fn tag_of(info: &BufferInfo) -> Tag {
    match &info.set {
        Some(set) => set_tag(&set.name),
        None => name_tag(&info.facts.name),
    }
}

/// A buffer's name, for the journal.
pub(super) fn name_tag(name: &BufferName) -> Tag {
    Tag::of(&["buffer", name.as_str()])
}

/// A set's name, for the journal.
pub(super) fn set_tag(name: &BufferName) -> Tag {
    Tag::of(&["set", name.as_str()])
}
