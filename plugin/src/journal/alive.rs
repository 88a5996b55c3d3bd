//! What a journal's records add up to: what was alive when its daemon ended.

use std::collections::{HashMap, VecDeque};

use gpu_handoff_protocol::message::EndReason;
use gpu_handoff_protocol::{BufferId, LeaseId, Seat};

use super::record::{Holder, Record, SinceBoot, Tag};
use crate::limits;

/// What was alive, and what is known of what was.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Alive {
    /// Buffers that are not gone.
    pub buffers: HashMap<BufferId, AliveBuffer>,
    /// Leases that are not over.
    pub leases: HashMap<LeaseId, AliveLease>,
    /// The last buffers that ended, oldest first.
    pub ended: VecDeque<(BufferId, Tag, EndReason)>,
    /// The last version given in each group.
    pub generations: HashMap<Tag, u64>,
}

/// A buffer that is not gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AliveBuffer {
    /// Its version.
    pub generation: u64,
    /// Its group.
    pub group: Tag,
    /// Its name.
    pub name: Tag,
    /// Its member.
    pub member: Tag,
    /// Bytes of its allocation; 0: not known.
    pub bytes: u64,
    /// Whether it outlives its process.
    pub lasts: bool,
    /// How it is ending; `None`: it takes new leases.
    pub retiring: Option<Retiring>,
}

/// Why a buffer takes no new leases, and until when its holders may keep theirs; `None`: they should be gone already.
pub type Retiring = (EndReason, Option<SinceBoot>);

/// A lease that is not over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AliveLease {
    /// Its buffer.
    pub buffer: BufferId,
    /// The member that holds it.
    pub holder: Tag,
    /// The process that does.
    pub process: Holder,
    /// Its seat, where the buffer has an order.
    pub seat: Option<Seat>,
}

impl Alive {
    /// Takes in what happened next.
    pub fn take(&mut self, record: Record) {
        match record {
            Record::BufferLive { id, generation, group, name, member, bytes, lasts } => {
                let buffer = AliveBuffer { generation, group, name, member, bytes, lasts, retiring: None };
                self.buffers.insert(id, buffer);
                self.given(group, generation);
            }
            Record::LeaseLive { lease, buffer, holder, process, seat } => {
                self.leases.insert(lease, AliveLease { buffer, holder, process, seat });
            }
            Record::Retiring { id, reason, until } => {
                if let Some(buffer) = self.buffers.get_mut(&id) {
                    buffer.retiring = Some((reason, until));
                }
            }
            Record::BufferEnded { id, reason, group } => {
                self.buffers.remove(&id);
                if self.ended.len() >= limits::JOURNAL_ENDED {
                    self.ended.pop_front();
                }
                self.ended.push_back((id, group, reason));
            }
            Record::LeaseEnded { lease } => {
                self.leases.remove(&lease);
            }
            Record::Generation { group, last } => self.given(group, last),
        }
    }

    fn given(&mut self, group: Tag, generation: u64) {
        let last = self.generations.entry(group).or_default();
        *last = generation.max(*last);
    }

    /// The records that say just this.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        let generations =
            self.generations.iter().map(|(group, last)| Record::Generation { group: *group, last: *last });
        let ended = self.ended.iter().map(|(id, group, reason)| Record::BufferEnded {
            id: *id,
            reason: *reason,
            group: *group,
        });
        let buffers = self.buffers.iter().flat_map(|(id, buffer)| buffer.records(*id));
        let leases = self.leases.iter().map(|(lease, alive)| alive.record(*lease));
        generations.chain(ended).chain(buffers).chain(leases)
    }
}

impl AliveLease {
    /// The record that says just this.
    #[must_use]
    pub const fn record(self, lease: LeaseId) -> Record {
        let Self { buffer, holder, process, seat } = self;
        Record::LeaseLive { lease, buffer, holder, process, seat }
    }
}

impl AliveBuffer {
    /// The records that say just this.
    pub fn records(self, id: BufferId) -> impl Iterator<Item = Record> {
        let Self { generation, group, name, member, bytes, lasts, retiring } = self;
        let live = Record::BufferLive { id, generation, group, name, member, bytes, lasts };
        let retiring = retiring.map(|(reason, until)| Record::Retiring { id, reason, until });
        std::iter::once(live).chain(retiring)
    }
}
