//! A ring of slots that is handed over again and again without asking the node: one buffer, leased once.
//!
//! | word of the timeline | written by | means |
//! |---|---|---|
//! | ready | the writer's GPU | so many hand-offs have been written |
//! | seat of a reader | its GPU | it is done with so many hand-offs |
//! | hello of a seat | the reader, until it is admitted; the writer wipes out what is of an earlier one | the number of its lease |
//! | start of a seat | the writer | the first hand-off that is kept until that reader is done with it |
//! | admitted of a seat | the writer | the number of the lease that it has admitted |
//!
//! A reader waits until it is admitted, so that the writer never overwrites what a reader reads that it did not know of.
//! The number of the lease tells a reader from the one that had its seat before.

use gpu_handoff_protocol::limits::ORDER_VALUES;
use gpu_handoff_protocol::{BufferFacts, Code, LeaseId, Order, Refusal, Seat};

use crate::error::Fault;

mod reader;
mod writer;

pub use reader::RingReader;
pub use writer::RingWriter;

/// What the metadata of a ring begins with.
const MARK: &[u8; 8] = b"ring\0\0\0\x01";
/// Length of a ring's metadata, in bytes: mark, slots, bytes between slots.
const METADATA_BYTES: usize = 20;

/// A part of the ring for one hand-off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Where it begins, a `CUdeviceptr`.
    pub ptr: u64,
    /// Its size, in bytes.
    pub bytes: u64,
    /// Number of the hand-off, counted from 0.
    pub number: u64,
}

/// How the ring's memory is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    slots: u32,
    /// From the beginning of a slot to that of the next.
    step: u64,
}

impl Shape {
    fn slot(self, base: u64, number: u64) -> Slot {
        let ptr = base + (number % u64::from(self.slots)) * self.step;
        Slot { ptr, bytes: self.step, number }
    }

    fn to_metadata(self) -> Vec<u8> {
        [&MARK[..], &self.slots.to_le_bytes(), &self.step.to_le_bytes()].concat()
    }

    /// Reads what another process says of its ring, and holds it against the buffer.
    fn of(facts: &BufferFacts) -> Result<Self, Fault> {
        let bytes: Option<&[u8; METADATA_BYTES]> = facts.metadata.user.as_slice().try_into().ok();
        let shape = bytes.filter(|bytes| bytes.starts_with(MARK)).map(|bytes| {
            let (mut slots, mut step) = ([0; 4], [0; 8]);
            slots.copy_from_slice(&bytes[8..12]);
            step.copy_from_slice(&bytes[12..]);
            Self { slots: u32::from_le_bytes(slots), step: u64::from_le_bytes(step) }
        });
        let fits = |shape: &Self| {
            shape.slots > 0 && u64::from(shape.slots).checked_mul(shape.step) == Some(facts.size)
        };
        shape.filter(fits).ok_or_else(|| {
            let refusal = Refusal::new(Code::UnsupportedKind);
            let refusal = refusal.compared_with("buffer", "a ring of slots", &facts.name);
            refusal.with_remedy("acquire it as a buffer, or have its owner make it with create_ring").into()
        })
    }
}

/// Where the words of a ring are: behind the seats, three more for each.
#[derive(Debug, Clone, Copy)]
struct Words(Order);

impl Words {
    /// How many follow the words of an order with so many seats.
    fn more(seats: u32) -> u32 {
        seats.saturating_mul(3)
    }

    fn ready(self) -> u32 {
        self.0.ready_word
    }

    fn done(self, seat: Seat) -> u32 {
        self.0.first_seat_word + seat.0
    }

    fn hello(self, seat: Seat) -> u32 {
        self.done(seat) + self.0.seats
    }

    fn start(self, seat: Seat) -> u32 {
        self.hello(seat) + self.0.seats
    }

    fn admitted(self, seat: Seat) -> u32 {
        self.start(seat) + self.0.seats
    }
}

/// What a reader calls itself; never 0, which is what words are at first.
fn name_of(lease: LeaseId) -> u64 {
    (lease.0 % ORDER_VALUES).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_known_by_its_metadata_and_its_size() {
        let shape = Shape { slots: 3, step: 4096 };
        let mut facts = crate::tests::facts("ring");
        facts.metadata.user = shape.to_metadata();
        facts.size = 3 * 4096;
        assert_eq!(Shape::of(&facts).unwrap(), shape);
        assert_eq!((shape.slot(100, 0).ptr, shape.slot(100, 5).ptr), (100, 100 + 2 * 4096));
        for spoil in [
            (|f: &mut BufferFacts| f.size += 1) as fn(&mut BufferFacts),
            |f| f.metadata.user[8] = 0,
            |f| f.metadata.user[0] ^= 1,
            |f| f.metadata.user.truncate(19),
            |f| f.metadata.user[12..].fill(0xff),
        ] {
            let mut bad = facts.clone();
            spoil(&mut bad);
            assert!(Shape::of(&bad).is_err(), "{bad:?}");
        }
    }
}
