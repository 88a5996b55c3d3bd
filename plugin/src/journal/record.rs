//! One record of the journal: 64 bytes, the last eight a keyed hash of the others and of the record's place in the file.
//!
//! ```text
//! 0     1       2      4           8     24       32      40     48       56    64
//! kind  reason  zeros  life, seat  id    number   group   name   member   hash
//! ```
//! A live buffer has in the place of a reason whether it outlives its process (1), and the bytes of its allocation from 2 to 8; more than fit there are written as the most that do.
//! A lease has its process's start in the place of a group, and its number in the place of a name.
//! What a kind does not use is zero.

use gpu_handoff_protocol::message::EndReason;
use gpu_handoff_protocol::{BootTag, BufferId, GroupKey, LeaseId, Seat};

/// Length of a record, in bytes.
pub const RECORD_BYTES: usize = 64;
/// Where its hash begins.
const HASH_AT: usize = RECORD_BYTES - 8;

/// A short hash that stands for a name which the journal need not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

impl Tag {
    /// Stands for a group.
    #[must_use]
    pub fn of_group(group: &GroupKey) -> Self {
        Self::of(&[group.namespace.as_str(), group.name.as_str()])
    }

    /// Stands for these texts in this order; none of them may hold a zero byte.
    #[must_use]
    pub fn of(parts: &[&str]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(part.as_bytes());
            hasher.update(&[0]);
        }
        Self(head(&hasher.finalize()))
    }
}

/// Time since the machine's boot, suspended time included (`CLOCK_BOOTTIME`), in nanoseconds: it goes on when the daemon
/// does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SinceBoot(pub u64);

/// A process, as far as it takes to see that it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Its number on the node; 0: not known.
    pub pid: u32,
    /// When it started, in clock ticks after boot.
    pub started: u64,
}

/// What happened to something that is alive, or was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// A buffer was published.
    BufferLive {
        /// Which one.
        id: BufferId,
        /// Its version.
        generation: u64,
        /// Its group.
        group: Tag,
        /// Its name.
        name: Tag,
        /// Its member.
        member: Tag,
        /// Bytes of its allocation; 0: not known.
        bytes: u64,
        /// Whether it outlives its process.
        lasts: bool,
    },
    /// A lease was given.
    LeaseLive {
        /// Which one.
        lease: LeaseId,
        /// Its buffer.
        buffer: BufferId,
        /// The member that holds it.
        holder: Tag,
        /// The process that does.
        process: Holder,
        /// Its seat, where the buffer has an order.
        seat: Option<Seat>,
    },
    /// A buffer takes no new leases.
    Retiring {
        /// Which one.
        id: BufferId,
        /// Why.
        reason: EndReason,
        /// Until when its holders may keep their leases; `None`: they should be gone already.
        until: Option<SinceBoot>,
    },
    /// A buffer is gone.
    BufferEnded {
        /// Which one.
        id: BufferId,
        /// Why.
        reason: EndReason,
        /// Its group.
        group: Tag,
    },
    /// A lease is over.
    LeaseEnded {
        /// Which one.
        lease: LeaseId,
    },
    /// The last version given in a group.
    Generation {
        /// The group.
        group: Tag,
        /// The version.
        last: u64,
    },
}

/// The first record of a file: whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// The boot.
    pub(super) boot: BootTag,
    /// How many daemons have served in this boot, this one included.
    pub(super) life: u32,
}

const HEADER: u8 = 1;
const BUFFER_LIVE: u8 = 2;
const LEASE_LIVE: u8 = 3;
const RETIRING: u8 = 4;
const BUFFER_ENDED: u8 = 5;
const LEASE_ENDED: u8 = 6;
const GENERATION: u8 = 7;

/// Most bytes of an allocation that a record can tell.
const MOST_BYTES: u64 = (1 << 48) - 1;

/// A record as bytes, fields by their place.
type Raw = [u8; RECORD_BYTES];

/// What seals records: a key of this node and boot.
#[derive(Clone)]
pub(super) struct Seal([u8; 32]);

impl Seal {
    pub(super) fn new(key: &[u8; 32]) -> Self {
        Self(blake3::derive_key("gpu-handoff 2026 journal of what is alive", key))
    }

    fn hash(&self, raw: &Raw, place: u64) -> u64 {
        let mut block = *raw;
        block[HASH_AT..].copy_from_slice(&place.to_le_bytes());
        head(&blake3::keyed_hash(&self.0, &block))
    }

    fn close(&self, mut raw: Raw, place: u64) -> Raw {
        let hash = self.hash(&raw, place);
        raw[HASH_AT..].copy_from_slice(&hash.to_le_bytes());
        raw
    }

    /// The header as it stands at the beginning of a file.
    pub(super) fn header(&self, header: Header) -> Raw {
        let mut raw = blank(HEADER, 0);
        raw[4..8].copy_from_slice(&header.life.to_le_bytes());
        put_u64(&mut raw, 24, header.boot.0);
        self.close(raw, 0)
    }

    /// Reads a header; `None`: it is of another key, or none.
    pub(super) fn read_header(&self, raw: &Raw) -> Option<Header> {
        if self.hash(raw, 0) != get_u64(raw, HASH_AT) || raw[0] != HEADER {
            return None;
        }
        let life = u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]);
        Some(Header { boot: BootTag(get_u64(raw, 24)), life })
    }

    /// A record as it stands at a place of the file, counted from the header's, which is 0.
    pub(super) fn record(&self, record: Record, place: u64) -> Raw {
        self.close(write(record), place)
    }

    /// Reads the record at a place; `None`: it is torn, or not this journal's.
    pub(super) fn read_record(&self, raw: &Raw, place: u64, boot: BootTag) -> Option<Record> {
        if self.hash(raw, place) != get_u64(raw, HASH_AT) {
            return None;
        }
        read(raw, boot)
    }
}

fn head(hash: &blake3::Hash) -> u64 {
    get_u64(hash.as_bytes(), 0)
}

fn blank(kind: u8, reason: u8) -> Raw {
    let mut raw = [0; RECORD_BYTES];
    (raw[0], raw[1]) = (kind, reason);
    raw
}

fn put_u64(raw: &mut Raw, at: usize, value: u64) {
    raw[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn get_u64(raw: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&raw[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn put_id(raw: &mut Raw, id: BufferId) {
    raw[8..24].copy_from_slice(&id.random.to_le_bytes());
}

fn write(record: Record) -> Raw {
    let mut raw = blank(0, 0);
    match record {
        Record::BufferLive { id, generation, group, name, member, bytes, lasts } => {
            raw = blank(BUFFER_LIVE, u8::from(lasts));
            raw[2..8].copy_from_slice(&bytes.min(MOST_BYTES).to_le_bytes()[..6]);
            put_id(&mut raw, id);
            for (at, value) in [(24, generation), (32, group.0), (40, name.0), (48, member.0)] {
                put_u64(&mut raw, at, value);
            }
        }
        Record::LeaseLive { lease, buffer, holder, process, seat } => {
            raw[0] = LEASE_LIVE;
            raw[4..8].copy_from_slice(&seat.map_or(0, |s| s.0.saturating_add(1)).to_le_bytes());
            put_id(&mut raw, buffer);
            let (started, pid) = (process.started, u64::from(process.pid));
            for (at, value) in [(24, lease.0), (32, started), (40, pid), (48, holder.0)] {
                put_u64(&mut raw, at, value);
            }
        }
        Record::Retiring { id, reason, until } => {
            raw = blank(RETIRING, reason_number(reason));
            put_id(&mut raw, id);
            put_u64(&mut raw, 24, until.map_or(0, |at| at.0.max(1)));
        }
        Record::BufferEnded { id, reason, group } => {
            raw = blank(BUFFER_ENDED, reason_number(reason));
            put_id(&mut raw, id);
            put_u64(&mut raw, 32, group.0);
        }
        Record::LeaseEnded { lease } => {
            raw[0] = LEASE_ENDED;
            put_u64(&mut raw, 24, lease.0);
        }
        Record::Generation { group, last } => {
            raw[0] = GENERATION;
            put_u64(&mut raw, 24, last);
            put_u64(&mut raw, 32, group.0);
        }
    }
    raw
}

fn read(raw: &Raw, boot: BootTag) -> Option<Record> {
    let mut random = [0; 16];
    random.copy_from_slice(&raw[8..24]);
    let id = BufferId { boot, random: u128::from_le_bytes(random) };
    let (number, group) = (get_u64(raw, 24), Tag(get_u64(raw, 32)));
    let (name, member) = (Tag(get_u64(raw, 40)), Tag(get_u64(raw, 48)));
    let seat = u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]).checked_sub(1).map(Seat);
    let (lease, reason) = (LeaseId(number), reason_of(raw[1]));
    Some(match raw[0] {
        BUFFER_LIVE => {
            let mut bytes = [0; 8];
            bytes[..6].copy_from_slice(&raw[2..8]);
            let bytes = u64::from_le_bytes(bytes);
            let lasts = raw[1] == 1;
            Record::BufferLive { id, generation: number, group, name, member, bytes, lasts }
        }
        LEASE_LIVE => {
            // Where other records have tags.
            let process = Holder { pid: u32::try_from(name.0).ok()?, started: group.0 };
            Record::LeaseLive { lease, buffer: id, holder: member, process, seat }
        }
        RETIRING => Record::Retiring { id, reason, until: (number > 0).then_some(SinceBoot(number)) },
        BUFFER_ENDED => Record::BufferEnded { id, reason, group },
        LEASE_ENDED => Record::LeaseEnded { lease },
        GENERATION => Record::Generation { group, last: number },
        _ => return None,
    })
}

/// The reasons by number, which a later daemon must read as they were meant.
const REASONS: [(u8, EndReason); 6] = [
    (1, EndReason::Retired),
    (2, EndReason::OwnerClosed),
    (3, EndReason::OwnerDied),
    (4, EndReason::MemberLeft),
    (5, EndReason::Superseded),
    (6, EndReason::NotAllowed),
];

fn reason_number(reason: EndReason) -> u8 {
    REASONS.iter().find(|(_, known)| *known == reason).map_or(0, |(number, _)| *number)
}

fn reason_of(number: u8) -> EndReason {
    REASONS.iter().find(|(known, _)| *known == number).map_or(EndReason::Other, |(_, reason)| *reason)
}
