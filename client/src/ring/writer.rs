//! The side that writes a ring.

use std::collections::BTreeMap;
use std::time::Duration;

use gpu_handoff_cuda::{Driver, StreamRef, VmmAllocation, VmmMapping};
use gpu_handoff_protocol::{Access, Code, Order, Refusal, Seat, limits as wire};

use super::{Shape, Slot, Words};
use crate::buffer::Buffer;
use crate::client::Client;
use crate::deadline::{after, look_until};
use crate::error::{ClientError, Fault};
use crate::limits;
use crate::publish::Published;
use crate::timeline::Timeline;

/// A reader that this side knows of.
#[derive(Debug, Clone, Copy)]
struct Reader {
    /// Which holder of the seat it is, counted.
    turn: u64,
    /// What it called itself when it was admitted.
    name: Option<u64>,
    /// Nobody else has said hello on its seat, or that was wiped out.
    is_alone: bool,
}

/// The writing side of a ring of slots. Its readers are waited for on the GPU, and the node has no part in a hand-off.
///
/// For each hand-off: [`next_slot_on`](Self::next_slot_on), the work that writes the slot, then
/// [`hand_over_on`](Self::hand_over_on), all on one stream.
///
/// Dropping it retires the ring. Where a stream still waits for a reader, its memory stays until that stream has gone on.
#[derive(Debug)]
pub struct RingWriter {
    // Dropped in this order: the buffer is retired before its memory goes.
    buffer: Published,
    timeline: Timeline,
    /// Taken out in the drop.
    memory: Option<VmmMapping>,
    base: u64,
    words: Words,
    shape: Shape,
    readers: BTreeMap<Seat, Reader>,
    /// Hand-offs that were begun and not handed over yet.
    open: bool,
    next: u64,
}

impl Client {
    /// Makes a ring of so many slots of at least `bytes` bytes each on the device of the caller's current CUDA context,
    /// and publishes it. It has as many readers at a time as it has `seats`.
    ///
    /// Its timeline is published as `NAME.order`.
    ///
    /// ```no_run
    /// # use gpu_handoff_client::{Client, ClientError, StreamRef};
    /// # fn decode(slot: u64, stream: StreamRef<'_>) {}
    /// # fn frames(client: &Client, stream: StreamRef<'_>) -> Result<(), ClientError> {
    /// let mut ring = client.create_ring("frames", 4, 1 << 20, 2)?;
    /// loop {
    ///     let slot = ring.next_slot_on(stream)?;
    ///     decode(slot.ptr, stream);
    ///     ring.hand_over_on(stream)?;
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`create_timeline`](Self::create_timeline) and [`publish`](Self::publish).
    pub fn create_ring(
        &self,
        name: &str,
        slots: u32,
        bytes: u64,
        seats: u32,
    ) -> Result<RingWriter, ClientError> {
        let words = seats.saturating_add(Words::more(seats)).saturating_add(1);
        let timeline = self.create_timeline(&format!("{name}.order"), words)?;
        let buffer = Buffer::named(name)?.seats(seats);
        self.ring(timeline, buffer, slots, bytes).map_err(|fault| fault.while_doing("create ring", name))
    }

    fn ring(
        &self,
        timeline: Timeline,
        buffer: Buffer<'_>,
        slots: u32,
        bytes: u64,
    ) -> Result<RingWriter, Fault> {
        // Aligned for whatever is written into it.
        let step = bytes.max(1).checked_next_multiple_of(limits::SLOT_ALIGNMENT);
        let total = step.and_then(|step| step.checked_mul(u64::from(slots))).filter(|total| *total > 0);
        let (Some(step), Some(total)) = (step, total) else {
            let found = format!("{slots} of {bytes} bytes");
            return Err(Refusal::new(Code::SizeMismatch)
                .compared_with("slots", "one at least", found)
                .into());
        };
        let driver = Driver::load()?;
        let device = timeline.line.context.device(driver)?;
        let memory = VmmAllocation::create(driver, device, total)?.map(Access::ReadWrite, device)?;
        let shape = Shape { slots, step };
        let seats = buffer.seats;
        let buffer = buffer.metadata(shape.to_metadata());
        // Nothing else uses this timeline.
        let order = Order { timeline: timeline.id(), ready_word: 0, value: 1, first_seat_word: 1, seats };
        let buffer = self.publish_ordered(&buffer.vmm(&memory).range(0, total), &timeline, order)?;
        let (words, readers) = (Words(order), BTreeMap::new());
        let (base, memory) = (memory.ptr(), Some(memory));
        Ok(RingWriter { buffer, timeline, memory, base, words, shape, readers, open: false, next: 0 })
    }
}

impl RingWriter {
    /// The ring as a buffer that was published.
    #[must_use]
    pub fn published(&self) -> &Published {
        &self.buffer
    }

    /// How many readers it hands over to at the moment.
    #[must_use]
    pub fn readers(&self) -> usize {
        self.readers.values().filter(|reader| reader.name.is_some()).count()
    }

    /// Waits until so many readers have joined. Whoever joins later gets what is handed over from then on.
    ///
    /// # Errors
    /// [`ClientError::TimedOut`] when they have not in time.
    pub fn wait_for_readers(&mut self, count: usize, timeout: Duration) -> Result<(), ClientError> {
        let all = look_until(after(timeout), limits::WORD_PAUSE, || {
            self.admit()?;
            Ok((self.readers() >= count).then_some(()))
        });
        let all = all.and_then(|all| all.ok_or(Fault::TimedOut(timeout)));
        all.map_err(|fault: Fault| fault.while_doing("wait for readers of", self.buffer.name()))
    }

    /// The slot of the next hand-off. `stream` goes no further until all readers are done with what the slot held
    /// before; what is queued on it afterwards may write the slot. Waits for nothing.
    ///
    /// # Errors
    /// [`ClientError::Cuda`] when the driver refuses.
    pub fn next_slot_on(&mut self, stream: StreamRef<'_>) -> Result<Slot, ClientError> {
        self.next_slot(stream).map_err(|fault| fault.while_doing("write", self.buffer.name()))
    }

    fn next_slot(&mut self, stream: StreamRef<'_>) -> Result<Slot, Fault> {
        self.admit()?;
        // So many hand-offs must be done with before this one may use their slot.
        let before = (self.next + 1).saturating_sub(u64::from(self.shape.slots));
        for (seat, _) in self.readers.iter().filter(|(_, reader)| reader.name.is_some() && before > 0) {
            match self.timeline.line.wait(stream, self.words.done(*seat), before) {
                // It has left or died: nobody to wait for.
                Err(Fault::Refused(refusal)) if refusal.code() == Code::PeerDied => {}
                other => other?,
            }
        }
        self.open = true;
        Ok(self.shape.slot(self.base, self.next))
    }

    /// Hands the slot over once the work that is queued on `stream` is done: the stream of
    /// [`next_slot_on`](Self::next_slot_on). Waits for nothing.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with `NOT_FOUND` when no slot was asked for, [`ClientError::Cuda`] when the driver refuses.
    pub fn hand_over_on(&mut self, stream: StreamRef<'_>) -> Result<(), ClientError> {
        let mut hand_over = || {
            if !std::mem::take(&mut self.open) {
                let refusal =
                    Refusal::new(Code::NotFound).compared_with("slot", "one, from next_slot_on", "none");
                return Err(refusal.with_remedy("ask for a slot and write it first").into());
            }
            self.timeline.line.signal(stream, self.words.ready(), self.next + 1)?;
            self.next += 1;
            Ok(())
        };
        hand_over().map_err(|fault: Fault| fault.while_doing("hand over", self.buffer.name()))
    }

    /// Takes in who has joined, and lets go of who has left.
    fn admit(&mut self) -> Result<(), Fault> {
        self.timeline.line.shared.connection.check_process()?;
        let seats = self.timeline.line.shared.memory.orders().seats(self.buffer.id());
        for (seat, seating) in seats {
            if !seating.taken {
                self.readers.remove(&seat);
                continue;
            }
            let fresh = Reader { turn: seating.turns, name: None, is_alone: seating.turns == 1 };
            let reader = self.readers.entry(seat).or_insert(fresh);
            if reader.turn != seating.turns {
                *reader = fresh;
            }
            if reader.name.is_some() || !seating.is_clean() {
                continue;
            }
            if std::mem::replace(&mut reader.is_alone, true) {
                self.greet(seat)?;
            } else {
                // Whoever sits there now says it again.
                self.timeline.line.write(self.words.hello(seat), 0)?;
            }
        }
        Ok(())
    }

    /// Admits the reader of a seat, if it has said who it is.
    fn greet(&mut self, seat: Seat) -> Result<(), Fault> {
        let (line, words) = (&self.timeline.line, self.words);
        let Some(name) = line.load(words.hello(seat))?.filter(|name| *name > 0) else { return Ok(()) };
        // It is done with all before, and reads what comes from now on.
        let done = words.done(seat);
        line.renew(done..done + 1, self.next)?;
        line.write(done, self.next)?;
        line.write(words.start(seat), self.next)?;
        line.write(words.admitted(seat), name)?;
        if let Some(reader) = self.readers.get_mut(&seat) {
            reader.name = Some(name);
        }
        Ok(())
    }
}

// The words of a ring with all the seats that there can be are within a timeline.
const _: () = assert!(4 * wire::SEATS < limits::TIMELINE_WORDS);

impl Drop for RingWriter {
    fn drop(&mut self) {
        let line = &self.timeline.line;
        line.shared.connection.retire_later(std::iter::once(self.buffer.id()));
        line.shared.memory.orders().keep_while_waited_for(line, self.memory.take());
    }
}
