//! Buffers whose readers and owner are ordered on the GPU: ready after work on a stream, done after work on a stream.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use gpu_handoff_cuda::{Driver, StreamRef, call_on};
use gpu_handoff_protocol::message::Grant;
use gpu_handoff_protocol::{Code, Order, Refusal, Seat};

use crate::buffer::Buffer;
use crate::client::Client;
use crate::deadline::after;
use crate::error::{ClientError, Fault};
use crate::import::Place;
use crate::lease::Lease;
use crate::publish::Published;
use crate::timeline::{Bin, Leaving, Timeline, Trash, check_not_capturing, words_of};

/// What a lease of an ordered buffer waits for and writes.
#[derive(Debug)]
pub(crate) struct Ordered {
    pub(crate) timeline: Timeline,
    pub(crate) order: Order,
    pub(crate) seat: Seat,
}

impl Ordered {
    /// The word that the holder writes when its work is done.
    pub(crate) fn seat_word(&self) -> Result<u32, Fault> {
        self.order.seat_word(self.seat).ok_or_else(|| Fault::unexpected("a seat of the buffer's order"))
    }
}

impl Client {
    /// Publishes a buffer that may be read once the work that is queued on `stream` is done. Waits for the node, not for
    /// the GPU.
    ///
    /// Its holders wait for it on their streams ([`Lease::wait_on`]) and say on their streams when they are done
    /// ([`Lease::release_on`]). It can be leased [`Buffer::seats`] times at a time. `timeline` must have that many words
    /// free, and one more; it must be of this process, and live as long as the buffer.
    ///
    /// # Errors
    /// As [`publish`](Self::publish); `TOO_LARGE` when the timeline has not enough words free, `STREAM_CAPTURING` when the
    /// stream is being captured. The words of a buffer come back when it is gone; a moment later, where a holder died that
    /// might still write them; never, where the node has not answered in time.
    pub fn publish_on(
        &self,
        stream: StreamRef<'_>,
        buffer: Buffer<'_>,
        timeline: &Timeline,
    ) -> Result<Published, ClientError> {
        let name = buffer.name.clone();
        let publish = || {
            self.shared.connection.check_process()?;
            timeline.line.check_stream(stream)?;
            let order = self.order_of(&buffer, timeline)?;
            let published = self.publish_ordered(&buffer, timeline, order).inspect_err(|fault| {
                if !may_be_published(fault) {
                    give_back(timeline, &order);
                }
            })?;
            if let Err(fault) = timeline.line.signal(stream, order.ready_word, order.value) {
                // It would never be ready. Its words come back when the node says that it is gone.
                self.shared.connection.retire_later(std::iter::once(published.id()));
                return Err(fault);
            }
            Ok(published)
        };
        publish().map_err(|fault: Fault| fault.while_doing("publish", &name))
    }

    /// Words for a buffer: one for its readiness, then one for each seat, all below the new value.
    pub(crate) fn order_of(&self, buffer: &Buffer<'_>, timeline: &Timeline) -> Result<Order, Fault> {
        let allotment = timeline.allotment()?;
        let words = allotment.take(buffer.seats.saturating_add(1))?;
        let order = |value: u64| Order {
            timeline: timeline.id(),
            ready_word: words.start,
            value,
            first_seat_word: words.start + 1,
            seats: buffer.seats,
        };
        let value = allotment.next_value().map_err(Fault::from);
        let renewed = value.and_then(|value| {
            timeline.line.renew(words.clone(), value - 1)?;
            Ok(value)
        });
        match renewed {
            Ok(value) => Ok(order(value)),
            Err(fault) => {
                allotment.give_back(words);
                Err(fault)
            }
        }
    }

    pub(crate) fn publish_ordered(
        &self,
        buffer: &Buffer<'_>,
        timeline: &Timeline,
        order: Order,
    ) -> Result<Published, Fault> {
        let (taken, took) = self.publish_one(buffer, Some(order))?;
        let orders = self.shared.memory.orders();
        orders.add_order(taken.receipt.id, &timeline.line, order);
        if taken.is_over() {
            // Told before the order was known here.
            orders.gone(taken.receipt.id);
        }
        let mut published = self.published(buffer.name.clone(), taken, took);
        published.order = Some((timeline.clone(), order));
        Ok(published)
    }

    /// The timeline and the seat of a lease, where its buffer has an order.
    pub(crate) fn ordered(&self, grant: &Grant, place: Place) -> Result<Option<Ordered>, Fault> {
        let Some(order) = grant.buffer.facts.order else { return Ok(None) };
        let seat = grant.seat.ok_or_else(|| Fault::unexpected("a seat"))?;
        let timeline = self.timeline_by_id(order.timeline, place)?;
        Ok(Some(Ordered { timeline, order, seat }))
    }
}

/// Whether the node may have published what this came of, or may still. Then somebody can have a lease of it for a moment,
/// and write its words.
fn may_be_published(fault: &Fault) -> bool {
    matches!(fault, Fault::TimedOut(_) | Fault::Lost(_) | Fault::Protocol(_))
}

fn give_back(timeline: &Timeline, order: &Order) {
    if let Ok(allotment) = timeline.allotment() {
        allotment.give_back(words_of(order));
    }
}

impl Lease {
    /// Has `stream` go no further until the buffer may be read. Waits for nothing; for a buffer without an order, which
    /// may be read at once, this does nothing.
    ///
    /// If the buffer's owner dies before it was ready, the stream goes on all the same: [`check`](Self::check) after the
    /// work that reads it.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with `PEER_DIED` when the owner has died already.
    pub fn wait_on(&self, stream: StreamRef<'_>) -> Result<(), ClientError> {
        let wait = |o: &Ordered| o.timeline.line.wait(stream, o.order.ready_word, o.order.value);
        self.for_order(wait).map_err(|fault| fault.while_doing("wait for", &self.info().facts.name))
    }

    /// Waits on the calling thread until the buffer may be read.
    ///
    /// # Errors
    /// [`ClientError::TimedOut`] when it may not in time; and as [`wait_on`](Self::wait_on).
    pub fn wait(&self, timeout: Duration) -> Result<(), ClientError> {
        let wait = |o: &Ordered| {
            let come = o.timeline.line.wait_here(o.order.ready_word, o.order.value, after(timeout))?;
            if come { Ok(()) } else { Err(Fault::TimedOut(timeout)) }
        };
        self.for_order(wait).map_err(|fault| fault.while_doing("wait for", &self.info().facts.name))
    }

    /// Whether the buffer is or still can become ready.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with `PEER_DIED` when its owner died before: what was read is not what should have been
    /// written.
    pub fn check(&self) -> Result<(), ClientError> {
        let check = |o: &Ordered| o.timeline.line.check(o.order.ready_word, o.order.value);
        self.for_order(check).map_err(|fault| fault.while_doing("check", &self.info().facts.name))
    }

    /// Gives the lease back once the work that is queued on `stream` is done: first the buffer's owner learns it on the
    /// GPU, then the node. Waits for nothing. The memory stays mapped until then; where it is to be unmapped, that comes
    /// after the node was told.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with `STREAM_CAPTURING` when the stream is being captured and with `TOO_MANY_REQUESTS` when
    /// [`limits::LEASES_ON_STREAMS`](crate::limits::LEASES_ON_STREAMS) leases are on streams, [`ClientError::Cuda`] when the driver refuses. The lease is given back at once then, as if it was dropped.
    pub fn release_on(self, stream: StreamRef<'_>) -> Result<(), ClientError> {
        let name = self.info().facts.name.clone();
        let release = || {
            self.held().shared().connection.check_process()?;
            let orders = Arc::clone(self.held().shared().memory.orders());
            orders.start()?;
            let driver = Driver::load()?;
            let context = self.context(driver)?;
            let _current = context.map(|context| context.enter(driver)).transpose()?;
            check_not_capturing(driver, stream)?;
            let on_stream = orders.bin().on_stream()?;
            self.for_order(|o| o.timeline.line.signal(stream, o.seat_word()?, o.order.value))?;
            let (held, ordered) = self.into_parts();
            let leaving = Box::new((held, ordered, on_stream));
            let give_back = move || come_to_end(leaving, orders.bin());
            Ok(call_on(driver, stream, give_back)?)
        };
        release().map_err(|fault: Fault| fault.while_doing("release", name))
    }

    fn for_order(&self, act: impl FnOnce(&Ordered) -> Result<(), Fault>) -> Result<(), Fault> {
        self.held().shared().connection.check_process()?;
        self.ordered().map_or(Ok(()), act)
    }
}

/// A stream has come so far that a lease on it is given back. On a thread of the driver, which must not call it: so only
/// the node is told here. Unmapping is left to another thread, and comes later: it may wait for streams.
pub(crate) fn come_to_end(mut leaving: Box<Leaving>, bin: &Arc<Bin>) {
    leaving.0.give_back();
    bin.discard(Trash::Lease(leaving));
}

impl Published {
    /// Retires the buffer, and has `stream` go no further until the work of all its holders is done: what is queued on it
    /// afterwards may overwrite the memory. Waits for the node, not for the GPU. Gives the number of leases that were left.
    ///
    /// Holders that [release on a stream](Lease::release_on) are waited for on the GPU alone; of others, and of those
    /// that die, the node tells.
    ///
    /// # Errors
    /// As [`retire`](Self::retire). A buffer without an order cannot be waited for: `NOT_FOUND`.
    pub fn retire_on(self, stream: StreamRef<'_>, deadline: Duration) -> Result<u32, ClientError> {
        let name = self.name().clone();
        let retire = || {
            self.shared().connection.check_process()?;
            let (timeline, order) = self.order.clone().ok_or_else(no_order)?;
            timeline.line.check_stream(stream)?;
            // A word of its own, for holders whose seat somebody had before: that one has written the seat's word already.
            let gate = timeline.allotment()?.take(1)?;
            let value = timeline.allotment()?.next_value().map_err(Fault::from);
            let retired = value.and_then(|value| {
                timeline.line.renew(gate.clone(), value - 1)?;
                let left = self.retire_now(deadline)?;
                Ok((left, self.wait_for_holders(stream, &timeline, order, (gate.start, value))?))
            });
            // Where it is waited for, it comes back once it was written.
            if !matches!(retired, Ok((_, true))) {
                timeline.allotment()?.give_back(gate);
            }
            retired.map(|(left, _)| left)
        };
        retire().map_err(|fault: Fault| fault.while_doing("retire", name))
    }

    /// Has `stream` wait for all who sit on a seat of the buffer. True: for the gate, too, a word and its value.
    fn wait_for_holders(
        &self,
        stream: StreamRef<'_>,
        timeline: &Timeline,
        order: Order,
        (gate, value): (u32, u64),
    ) -> Result<bool, Fault> {
        let orders = self.shared().memory.orders();
        let mut again = BTreeSet::new();
        for (seat, seating) in orders.seats(self.id()).into_iter().filter(|(_, seating)| seating.taken) {
            match order.seat_word(seat).filter(|_| seating.turns == 1) {
                Some(word) => match timeline.line.wait(stream, word, order.value) {
                    // It got up or died meanwhile: nobody to wait for.
                    Err(Fault::Refused(refusal)) if refusal.code() == Code::PeerDied => {}
                    other => other?,
                },
                None => {
                    again.insert(seat);
                }
            }
        }
        let is_needed = !again.is_empty();
        if is_needed {
            timeline.line.wait(stream, gate, value)?;
            orders.open_when_up(self.id(), &timeline.line, again, gate, value);
        }
        Ok(is_needed)
    }
}

fn no_order() -> Fault {
    let refusal =
        Refusal::new(Code::NotFound).compared_with("order of the buffer", "one, from publish_on", "none");
    refusal.with_remedy("publish it with publish_on, or use retire and synchronize yourself").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_at_once_only_where_nobody_can_have_been_given_them() {
        let refused = Refusal::new(Code::NameTaken);
        assert!(!may_be_published(&Fault::Refused(refused.clone())));
        assert!(!may_be_published(&Fault::NoContext));
        for unsure in [Fault::TimedOut(Duration::ZERO), Fault::Lost(None), Fault::Protocol(refused)] {
            assert!(may_be_published(&unsure), "{unsure:?}");
        }
    }
}
