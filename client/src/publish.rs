//! Publishing buffers and retiring them.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use gpu_handoff_protocol::message::{BrokerBody, ClientBody, EndReason, PublishedAs};
use gpu_handoff_protocol::{BufferId, BufferName, Code, Order, Refusal, limits as wire};

use crate::again::Kept;
use crate::buffer::Buffer;
use crate::client::{Client, Shared};
use crate::connection::Pending;
use crate::deadline::after;
use crate::error::{ClientError, Fault};
use crate::export::Ready;
use crate::limits;
use crate::timeline::Timeline;

/// Most bytes that a publication's fixed part takes in a packet; the texts come on top.
const PUBLICATION_BYTES: usize = 512;
/// Room that a packet keeps for its envelope, in bytes.
const ENVELOPE_BYTES: usize = 64;

/// A buffer that others can acquire now.
///
/// Dropping this ends nothing: the buffer stays until it is [retired](Self::retire), until a policy of the node ends
/// it, or until the connection ends; one that [outlives its process](Buffer::outlives_process), until its pod does.
#[derive(Debug)]
pub struct Published {
    shared: Arc<Shared>,
    name: BufferName,
    taken: Taken,
    took: PublishTook,
    /// What orders its readers and its owner, where it was published on a stream.
    pub(crate) order: Option<(Timeline, Order)>,
}

/// What the node has taken.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) receipt: PublishedAs,
    over: Arc<OnceLock<PublishedState>>,
}

impl Taken {
    /// Whether it has ended already.
    pub(crate) fn is_over(&self) -> bool {
        self.over.get().is_some()
    }
}

/// How a publication stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PublishedState {
    /// Others can acquire it, or those that did are asked to give it back.
    Live,
    /// It has ended at the node.
    Ended(EndReason),
    /// The connection to the node has ended, and the buffer with it; or the node's daemon was replaced, and the new one
    /// did not restore this buffer. Publish it again.
    Lost,
}

/// Where the time of a publish went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishTook {
    /// Exporting the memory.
    pub exported: Duration,
    /// From telling the node to its answer, the check of the memory included. Of a call for many buffers: of that call.
    pub answered: Duration,
}

impl Published {
    /// The buffer's identity, by which others can acquire just this one. Not a secret.
    #[must_use]
    pub fn id(&self) -> BufferId {
        self.taken.receipt.id
    }

    /// Its version, drawn from one rising counter of the group: a later buffer of a name always has a higher one, also
    /// after its publisher was restarted. Numbers may be skipped.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.taken.receipt.generation
    }

    /// Where the time of publishing it went.
    #[must_use]
    pub fn took(&self) -> PublishTook {
        self.took
    }

    /// How long the node's check of its memory took, a part of [`PublishTook::answered`]: from the moment that the node had
    /// read the publication to the GPU worker's verdict. `None` where nothing can be checked.
    #[must_use]
    pub fn checked(&self) -> Option<Duration> {
        self.taken.receipt.checked
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &BufferName {
        &self.name
    }

    /// How it stands. Asks nobody: the node's news are read in the background, within milliseconds.
    #[must_use]
    pub fn state(&self) -> PublishedState {
        self.taken.over.get().copied().unwrap_or(PublishedState::Live)
    }

    /// Retires the buffer: nobody can acquire it any more, and its holders are asked to release it within `deadline`
    /// (at most an hour; zero revokes it). Gives the number of leases that were left at that moment; 0 where a daemon went
    /// before it answered and the next one knows the buffer as retired already. Watch for
    /// [`Event::Gone`](crate::Event::Gone) to learn when the last one ended.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when it has ended already, or the deadline is over its limit.
    pub fn retire(self, deadline: Duration) -> Result<u32, ClientError> {
        self.retire_now(deadline).map_err(|fault| fault.while_doing("retire", &self.name))
    }

    pub(crate) fn retire_now(&self, deadline: Duration) -> Result<u32, Fault> {
        self.retired(self.begin_to_retire(deadline)?)
    }

    /// Asks the node to retire it.
    pub(crate) fn begin_to_retire(&self, deadline: Duration) -> Result<Pending<'_>, Fault> {
        check_deadline(deadline)?;
        self.shared.connection.start(ClientBody::Retire { id: self.id(), deadline })
    }

    /// Waits until it is retired. Gives the number of leases that were left.
    pub(crate) fn retired(&self, pending: Pending<'_>) -> Result<u32, Fault> {
        match pending.answer(after(limits::ANSWER))? {
            BrokerBody::Retired(outcome) => {
                let leases = outcome?;
                // Given up here and not with the news of its end: whoever frees the memory next frees it, and not a thread
                // in the background in the middle of the next publish, which the driver would make wait.
                self.shared.connection.retired(self.taken.receipt.id);
                Ok(leases)
            }
            _ => Err(Fault::unexpected("the outcome of a retire")),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

fn check_deadline(deadline: Duration) -> Result<(), Fault> {
    let most = Duration::from_millis(wire::RETIRE_DEADLINE_MS);
    if deadline <= most {
        return Ok(());
    }
    let (wanted, found) = (format!("at most {most:?}"), format!("{deadline:?}"));
    Err(Refusal::new(Code::TooLarge).compared_with("deadline", wanted, found).into())
}

impl Client {
    /// Retires a buffer that [outlives its process](Buffer::outlives_process) and that another process of this pod
    /// published: one that is gone by now, mostly. Gives the number of leases that are left.
    ///
    /// # Errors
    /// [`ClientError::Refused`]: it has ended already, it is another pod's or ends with its process (`NOT_OWNER`), or the deadline is
    /// over its limit.
    pub fn retire(&self, id: BufferId, deadline: Duration) -> Result<u32, ClientError> {
        let retire = || {
            check_deadline(deadline)?;
            let pending = self.shared.connection.start(ClientBody::Retire { id, deadline })?;
            match pending.answer(after(limits::ANSWER))? {
                BrokerBody::Retired(outcome) => Ok(outcome?),
                _ => Err(Fault::unexpected("the outcome of a retire")),
            }
        };
        retire().map_err(|fault: Fault| fault.while_doing("retire", id))
    }

    /// Publishes a buffer, so that the other members of the group can acquire it.
    ///
    /// ```no_run
    /// # use gpu_handoff_client::{Buffer, Client, ClientError};
    /// # fn publish(client: &Client, tensor: u64) -> Result<(), ClientError> {
    /// let buffer = Buffer::named("weights")?.pointer(tensor, 4096 * 4096 * 2).tensor("bfloat16", &[4096, 4096]);
    /// let weights = client.publish(buffer.read_only())?;
    /// println!("{} is generation {} of weights", weights.id(), weights.generation());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ClientError::Refused`] when the memory cannot be exported (`NOT_EXPORTABLE`, with what to do about it) or the
    /// node says no, [`ClientError::NoDriver`] and [`ClientError::Cuda`] when it cannot be asked,
    /// [`ClientError::TimedOut`] when the node has not answered after [`limits::ANSWER`](limits::ANSWER) and
    /// [`limits::PUBLISH_ITEM`](limits::PUBLISH_ITEM). After an error nothing stays published: an answer that comes too
    /// late is answered with a retire.
    pub fn publish(&self, buffer: Buffer<'_>) -> Result<Published, ClientError> {
        let name = buffer.name.clone();
        match self.publish_one(&buffer, None) {
            Ok((taken, took)) => Ok(self.published(name, taken, took)),
            Err(fault) => Err(fault.while_doing("publish", &name)),
        }
    }

    /// Publishes one, with an order where it has one; says before what takes it long that it is about to come.
    pub(crate) fn publish_one(
        &self,
        buffer: &Buffer<'_>,
        order: Option<Order>,
    ) -> Result<(Taken, PublishTook), Fault> {
        self.shared.connection.check_process()?;
        let began = Instant::now();
        let announce = || self.shared.connection.announce(&buffer.name);
        let mut ready = self.shared.exporter.export_announced(buffer, &announce)?;
        ready.publication.facts.order = order;
        let told = Instant::now();
        let taken = self.send_publications(vec![ready])?.pop().ok_or(Fault::unexpected("one outcome"))??;
        Ok((taken, PublishTook { exported: told - began, answered: told.elapsed() }))
    }

    /// Publishes many buffers in as few packets as possible: outcomes in order, each on its own. The node may take
    /// [`limits::ANSWER`](limits::ANSWER) for each packet, and [`limits::PUBLISH_ITEM`](limits::PUBLISH_ITEM) more for
    /// each buffer in it.
    ///
    /// # Errors
    /// As [`publish`](Self::publish), when the request as a whole fails. What was published before that is retired.
    pub fn publish_many<'a>(
        &self,
        buffers: impl IntoIterator<Item = Buffer<'a>>,
    ) -> Result<Vec<Result<Published, ClientError>>, ClientError> {
        let buffers: Vec<Buffer<'a>> = buffers.into_iter().collect();
        self.shared.connection.check_process().map_err(|fault| fault.while_doing("publish", "buffers"))?;
        let mut outcomes = Vec::with_capacity(buffers.len());
        for part in packets(&buffers) {
            if let Err(fault) = self.publish_part(part, &mut outcomes) {
                // Nobody will have a handle of these.
                let published = outcomes.iter().flatten().map(Published::id);
                self.shared.connection.retire_later(published);
                return Err(fault.while_doing("publish", format!("{} buffers", buffers.len())));
            }
        }
        Ok(outcomes)
    }

    /// Publishes what fits into one packet. What cannot be exported is left out of it and has its error as outcome.
    fn publish_part(
        &self,
        buffers: &[Buffer<'_>],
        outcomes: &mut Vec<Result<Published, ClientError>>,
    ) -> Result<(), Fault> {
        let began = Instant::now();
        let mut sent = Vec::new();
        let exported: Vec<Result<(), Fault>> = buffers
            .iter()
            .map(|buffer| self.shared.exporter.export(buffer).map(|ready| sent.push(ready)))
            .collect();
        let told = Instant::now();
        let mut taken = self.send_publications(sent)?.into_iter();
        let took = PublishTook { exported: told - began, answered: told.elapsed() };
        for (buffer, exported) in buffers.iter().zip(exported) {
            let taken = exported.and_then(|()| taken.next().ok_or(Fault::unexpected("an outcome"))?);
            let name = &buffer.name;
            outcomes.push(match taken {
                Ok(taken) => Ok(self.published(name.clone(), taken, took)),
                Err(fault) => Err(fault.while_doing("publish", name)),
            });
        }
        Ok(())
    }

    pub(crate) fn send_publications(&self, items: Vec<Ready>) -> Result<Vec<Result<Taken, Fault>>, Fault> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let (items, kept) = Ready::split(items);
        self.send_kept(ClientBody::Publish(items), kept)
    }

    /// Sends a packet of publications; gives the outcome of each.
    pub(crate) fn send_kept(
        &self,
        body: ClientBody,
        kept: Vec<Kept>,
    ) -> Result<Vec<Result<Taken, Fault>>, Fault> {
        let over: Vec<_> = kept.iter().map(|kept| Arc::clone(&kept.over)).collect();
        let deadline = after(answer_time(over.len()));
        match self.shared.connection.publish(body, kept, deadline)? {
            BrokerBody::Published(outcomes) if outcomes.len() == over.len() => {
                let taken = |(outcome, over): (Result<_, _>, _)| Ok(Taken { receipt: outcome?, over });
                Ok(outcomes.into_iter().zip(over).map(taken).collect())
            }
            // Not believed any more; and with the connection ends what it may have published.
            _ => {
                self.shared.connection.end();
                Err(Fault::unexpected("an outcome for each publication"))
            }
        }
    }

    pub(crate) fn published(&self, name: BufferName, taken: Taken, took: PublishTook) -> Published {
        Published { shared: Arc::clone(&self.shared), name, taken, took, order: None }
    }
}

/// How long the node may take to answer for so many publications in a packet.
pub(crate) fn answer_time(count: usize) -> Duration {
    let items = u32::try_from(count).unwrap_or(u32::MAX);
    limits::ANSWER.saturating_add(limits::PUBLISH_ITEM.saturating_mul(items))
}

/// Splits buffers so that each part fits into one packet.
pub(crate) fn packets<'a, 'b>(mut buffers: &'b [Buffer<'a>]) -> impl Iterator<Item = &'b [Buffer<'a>]> {
    std::iter::from_fn(move || {
        let mut room = wire::MESSAGE_BYTES - ENVELOPE_BYTES;
        let fits = buffers.iter().take(wire::MESSAGE_ITEMS).take_while(|buffer| {
            let bytes = PUBLICATION_BYTES + buffer.name.as_str().len() + buffer.metadata.user.len();
            room.checked_sub(bytes).map(|left| room = left).is_some()
        });
        // A buffer alone always fits, or is refused for its metadata before it is sent.
        let count = fits.count().max(1).min(buffers.len());
        let (part, rest) = buffers.split_at(count);
        buffers = rest;
        (!part.is_empty()).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_has_time_to_check_every_buffer_of_a_packet() {
        assert_eq!(answer_time(1), Duration::from_secs(32));
        assert_eq!(answer_time(wire::MESSAGE_ITEMS), Duration::from_secs(158));
    }

    #[test]
    fn no_part_is_larger_than_a_packet() {
        let buffer = Buffer::named(&"n".repeat(128))
            .unwrap()
            .metadata([1; 1024])
            .tensor(&"f".repeat(32), &[u64::MAX; wire::TENSOR_DIMENSIONS]);
        let many = vec![buffer; 200];
        let parts: Vec<usize> = packets(&many).map(<[_]>::len).collect();
        assert_eq!(parts.iter().sum::<usize>(), 200);
        assert!(parts[..parts.len() - 1].iter().all(|&n| n > 30 && n < 60), "{parts:?}");
        assert_eq!(packets(&many[..0]).count(), 0);
    }
}
