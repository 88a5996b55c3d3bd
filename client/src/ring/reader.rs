//! The side that reads a ring.

use std::time::Duration;

use gpu_handoff_cuda::StreamRef;
use gpu_handoff_protocol::limits::ORDER_VALUES;
use gpu_handoff_protocol::{Code, Refusal};

use super::{Shape, Slot, Words, name_of};
use crate::acquire::Acquire;
use crate::client::Client;
use crate::deadline::{after, look_until};
use crate::error::{ClientError, Fault};
use crate::lease::Lease;
use crate::limits;
use crate::order::Ordered;

/// The reading side of a ring of slots.
///
/// For each hand-off: [`next_on`](Self::next_on), the work that reads the slot, then [`done_on`](Self::done_on), all on
/// one stream. Dropping it leaves the ring; let the GPU finish before.
#[derive(Debug)]
pub struct RingReader {
    lease: Lease,
    words: Words,
    shape: Shape,
    /// The hand-off that is next.
    next: u64,
    open: bool,
}

impl Client {
    /// Joins a ring as one of its readers, and waits until its writer has admitted it: the writer does so when it asks
    /// for its next slot.
    ///
    /// ```no_run
    /// # use gpu_handoff_client::{Acquire, Client, ClientError, StreamRef};
    /// # use std::time::Duration;
    /// # fn infer(slot: u64, stream: StreamRef<'_>) {}
    /// # fn frames(client: &Client, stream: StreamRef<'_>) -> Result<(), ClientError> {
    /// let wanted = Acquire::named("frames")?.wait(Duration::from_secs(60));
    /// let mut ring = client.join_ring(wanted, Duration::from_secs(10))?;
    /// loop {
    ///     let slot = ring.next_on(stream)?;
    ///     infer(slot.ptr, stream);
    ///     ring.done_on(stream)?;
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), with `NO_SEAT` when the ring has readers enough and `UNSUPPORTED_KIND` when it is no
    /// ring; [`ClientError::TimedOut`] when the writer has not admitted it in time.
    pub fn join_ring(&self, wanted: Acquire, timeout: Duration) -> Result<RingReader, ClientError> {
        let what = wanted.to_string();
        let lease = self.acquire(wanted)?;
        join(lease, timeout).map_err(|fault| fault.while_doing("join ring", what))
    }
}

fn join(lease: Lease, timeout: Duration) -> Result<RingReader, Fault> {
    let shape = Shape::of(&lease.info().facts)?;
    let Some(Ordered { timeline, order, seat }) = lease.ordered() else {
        return Err(Refusal::new(Code::UnsupportedKind)
            .compared_with("ring", "one with an order", "none")
            .into());
    };
    let (words, seat, line) = (Words(*order), *seat, &timeline.line);
    let name = name_of(lease.id());
    // The words of a seat are not greater or less than each other: each holder has a name of its own.
    let admitted = look_until(after(timeout), limits::WORD_PAUSE, || {
        // Again and again: the writer wipes out what it finds on a seat that somebody had before.
        line.write(words.hello(seat), name)?;
        if line.load(words.admitted(seat))? == Some(name) {
            return Ok(Some(()));
        }
        // Nothing reaches so much: this tells only whether the writer is still there.
        line.check(words.ready(), ORDER_VALUES - 1)?;
        Ok::<_, Fault>(None)
    });
    admitted?.ok_or(Fault::TimedOut(timeout))?;
    let next = line.load(words.start(seat))?.ok_or_else(|| Fault::unexpected("where to start"))?;
    Ok(RingReader { lease, words, shape, next, open: false })
}

impl RingReader {
    /// The lease of the ring.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The slot of the next hand-off. `stream` goes no further until it is written; what is queued on it afterwards may
    /// read the slot. Waits for nothing.
    ///
    /// If the writer dies before, the stream goes on all the same: [`check`](Self::check) after the work that reads it.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with `PEER_DIED` when the writer has died already.
    pub fn next_on(&mut self, stream: StreamRef<'_>) -> Result<Slot, ClientError> {
        let outcome =
            self.order().and_then(|o| o.timeline.line.wait(stream, self.words.ready(), self.next + 1));
        outcome.map_err(|fault| self.failed("read", fault))?;
        self.open = true;
        Ok(self.shape.slot(self.lease.ptr(), self.next))
    }

    /// The same, waiting on the calling thread.
    ///
    /// # Errors
    /// [`ClientError::TimedOut`] when nothing was handed over in time; and as [`next_on`](Self::next_on).
    pub fn next(&mut self, timeout: Duration) -> Result<Slot, ClientError> {
        let wait = |o: &Ordered| {
            let come = o.timeline.line.wait_here(self.words.ready(), self.next + 1, after(timeout))?;
            if come { Ok(()) } else { Err(Fault::TimedOut(timeout)) }
        };
        self.order().and_then(wait).map_err(|fault| self.failed("read", fault))?;
        self.open = true;
        Ok(self.shape.slot(self.lease.ptr(), self.next))
    }

    /// Gives the slot back to the writer once the work that is queued on `stream` is done: the stream that reads it. Waits
    /// for nothing.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with `NOT_FOUND` when no slot was asked for, [`ClientError::Cuda`] when the driver refuses.
    pub fn done_on(&mut self, stream: StreamRef<'_>) -> Result<(), ClientError> {
        let done = |o: &Ordered| {
            if !self.open {
                let refusal = Refusal::new(Code::NotFound).compared_with("slot", "one, from next_on", "none");
                return Err(refusal.with_remedy("ask for a slot and read it first").into());
            }
            o.timeline.line.signal(stream, o.seat_word()?, self.next + 1)
        };
        self.order().and_then(done).map_err(|fault| self.failed("give back", fault))?;
        self.open = false;
        self.next += 1;
        Ok(())
    }

    /// Whether the slot that was last asked for was really written, or still can be.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with `PEER_DIED` when the writer died before.
    pub fn check(&self) -> Result<(), ClientError> {
        let wanted = if self.open { self.next + 1 } else { self.next };
        let outcome = self.order().and_then(|o| o.timeline.line.check(self.words.ready(), wanted));
        outcome.map_err(|fault| self.failed("check", fault))
    }

    fn order(&self) -> Result<&Ordered, Fault> {
        self.lease.ordered().ok_or_else(|| Fault::unexpected("an order"))
    }

    fn failed(&self, operation: &'static str, fault: Fault) -> ClientError {
        fault.while_doing(operation, &self.lease.info().facts.name)
    }
}
