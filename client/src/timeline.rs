//! Timelines: words that streams of several pods write and wait for, so that their work is ordered on the GPU.

mod hold;
mod line;
mod orders;
mod words;

use std::sync::Arc;
use std::time::Duration;

use gpu_handoff_cuda::{Driver, Stream, StreamRef, VmmAllocation};
use gpu_handoff_protocol::{Access, BufferId, BufferName, Code, Kind, Refusal};

use crate::acquire::Acquire;
use crate::buffer::Buffer;
use crate::client::Client;
use crate::deadline::after;
use crate::error::{ClientError, Fault};
use crate::import::Place;
use crate::lease::Lease;
use crate::limits;
pub(crate) use hold::Hold;
pub(crate) use line::Line;
pub(crate) use line::check_not_capturing;
use line::{Keep, Parts, Retire, WORD_BYTES, clear};
pub(crate) use orders::{Bin, Leaving, Orders, Trash, words_of};

/// 64-bit words on a GPU that streams of several pods [signal](Self::signal) and [wait](Self::wait) for.
///
/// Whoever makes a timeline publishes it: others [acquire](Client::acquire_timeline) it by its name, or get it together
/// with a buffer that is ordered by it ([`Client::publish_on`]). All words are 0 at first; values rise and stay below
/// 2^62. Words that the client gives to ordered buffers and rings are theirs; use others for your own, see
/// [`reserve`](Self::reserve).
///
/// A stream never waits for the dead: when the process ends that owns the timeline, or the one that holds the seat whose
/// word is waited for, the streams go on, and whoever asks is told `PEER_DIED`.
///
/// Clones share the timeline. When the last of them and of what is ordered by it is dropped, it is given back, or
/// retired by its owner. Where streams still wait for its words, that comes once they have gone on, and the connection
/// lives until then: dropping it waits for nothing, and a stream whose peer dies later goes on all the same.
#[derive(Debug, Clone)]
pub struct Timeline {
    pub(crate) line: Arc<Line>,
    #[expect(dead_code, reason = "held for its drop, after that of the line")]
    hold: Arc<Hold>,
}

impl From<Arc<Hold>> for Timeline {
    fn from(hold: Arc<Hold>) -> Self {
        Self { line: Arc::clone(hold.line()), hold }
    }
}

impl Client {
    /// Makes a timeline of so many words on the device of the caller's current CUDA context, and publishes it.
    ///
    /// ```no_run
    /// # use gpu_handoff_client::{Buffer, Client, ClientError, StreamRef};
    /// # fn publish(client: &Client, frame: u64, stream: StreamRef<'_>) -> Result<(), ClientError> {
    /// let timeline = client.create_timeline("frames-order", 1024)?;
    /// // Once the work that is queued on the stream is done, the frame may be read.
    /// let frame = client.publish_on(stream, Buffer::named("frame")?.pointer(frame, 1 << 20), &timeline)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`publish`](Self::publish), and [`ClientError::NoContext`] when no context is current.
    pub fn create_timeline(&self, name: &str, words: u32) -> Result<Timeline, ClientError> {
        let name = BufferName::new(name)?;
        let create = || {
            self.shared.connection.check_process()?;
            check_words(words)?;
            let driver = Driver::load()?;
            let context = driver.current_context()?.ok_or(Fault::NoContext)?;
            let device = context.device(driver)?;
            let bytes = u64::from(words) * WORD_BYTES;
            let mapping = VmmAllocation::create(driver, device, bytes)?.map(Access::ReadWrite, device)?;
            let own = Stream::create(driver)?;
            clear(driver, &own, mapping.ptr(), words)?;
            let buffer = Buffer::named(name.as_str()).map_err(|_| Fault::unexpected("a name"))?;
            let mut ready = self.shared.exporter.export(&buffer.vmm(&mapping).range(0, bytes))?;
            ready.publication.facts.kind = Kind::Timeline;
            let outcome = self.send_publications(vec![ready])?.pop();
            let id = outcome.ok_or(Fault::unexpected("one outcome"))??.receipt.id;
            let (base, shared) = (mapping.ptr(), Arc::clone(&self.shared));
            let keep = Keep::Own(mapping, Retire { shared: Arc::clone(&shared), id });
            self.add(driver, Parts { id, name: name.clone(), words, shared, context, base, own, keep })
        };
        create().map_err(|fault: Fault| fault.while_doing("create timeline", &name))
    }

    /// Acquires a timeline of another process, for the caller's current CUDA context.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`ClientError::Refused`] with `UNSUPPORTED_KIND` when it is a buffer of
    /// another kind.
    pub fn acquire_timeline(&self, wanted: Acquire) -> Result<Timeline, ClientError> {
        let what = wanted.to_string();
        let lease = self.acquire(wanted)?;
        self.timeline_of(lease).map_err(|fault| fault.while_doing("acquire timeline", what))
    }

    /// The timeline that a buffer is ordered by.
    pub(crate) fn timeline_by_id(&self, id: BufferId, place: Place) -> Result<Timeline, Fault> {
        let context = context_of(place)?;
        if let Some(hold) = self.shared.memory.orders().find(id, context) {
            return Ok(hold.into());
        }
        self.timeline_of(self.lease_of(Acquire::id(id), place)?)
    }

    fn timeline_of(&self, lease: Lease) -> Result<Timeline, Fault> {
        let facts = &lease.info().facts;
        if facts.kind != Kind::Timeline {
            let refusal = Refusal::new(Code::UnsupportedKind);
            return Err(refusal.compared_with("kind of the buffer", "timeline", facts.kind.as_str()).into());
        }
        let driver = Driver::load()?;
        let context = driver.current_context()?.ok_or(Fault::NoContext)?;
        let parts = Parts {
            id: lease.info().id,
            name: facts.name.clone(),
            words: u32::try_from(lease.bytes() / WORD_BYTES).unwrap_or(u32::MAX),
            shared: Arc::clone(&self.shared),
            context,
            base: lease.ptr(),
            own: Stream::create(driver)?,
            keep: Keep::Leased(Box::new(lease)),
        };
        self.add(driver, parts)
    }

    fn add(&self, driver: Driver, parts: Parts) -> Result<Timeline, Fault> {
        let hold = Arc::new(Hold::new(Line::new(driver, parts)?));
        self.shared.memory.orders().add(&hold)?;
        Ok(hold.into())
    }
}

fn check_words(words: u32) -> Result<(), Fault> {
    if (1..=limits::TIMELINE_WORDS).contains(&words) {
        return Ok(());
    }
    let wanted = format!("1 to {}", limits::TIMELINE_WORDS);
    Err(Refusal::new(Code::TooLarge).compared_with("words of a timeline", wanted, words).into())
}

fn context_of(place: Place) -> Result<gpu_handoff_cuda::ContextRef, Fault> {
    match place {
        Place::Context(context, _) => Ok(context),
        #[cfg(test)]
        Place::Nowhere => Err(Fault::NoContext),
    }
}

impl Timeline {
    /// Its id, by which others can acquire it.
    #[must_use]
    pub fn id(&self) -> BufferId {
        self.line.id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &BufferName {
        &self.line.name
    }

    /// How many words it has.
    #[must_use]
    pub fn words(&self) -> u32 {
        self.line.words
    }

    /// Sets words of an own timeline aside: ordered buffers and rings will not use them.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with `TOO_LARGE` when some of them are in use or not there, `NOT_OWNER` when the timeline
    /// is another process's.
    pub fn reserve(&self, words: std::ops::Range<u32>) -> Result<(), ClientError> {
        let reserve = || Ok(self.allotment()?.take_at(words.clone())?);
        self.checked(reserve()).map_err(|fault: Fault| fault.while_doing("reserve words of", self.name()))
    }

    /// Has `stream` write a word once what was queued on it before is done. Waits for nothing.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with `TOO_LARGE` when there is no such word or the value is 2^62 or more, and with
    /// `STREAM_CAPTURING` when the stream is being captured.
    pub fn signal(&self, stream: StreamRef<'_>, word: u32, value: u64) -> Result<(), ClientError> {
        self.line.signal(stream, word, value).map_err(|fault| fault.while_doing("signal", self.name()))
    }

    /// Has `stream` go no further until a word has reached a value. Waits for nothing.
    ///
    /// If the word's writer ends before, the stream goes on all the same: [`check`](Self::check) after the work that
    /// depends on it. Of the words of another's timeline that is its owner; of an own one, the holder of the seat that
    /// the word belongs to.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with `PEER_DIED` when the writer has ended already without reaching the value; and as
    /// [`signal`](Self::signal).
    pub fn wait(&self, stream: StreamRef<'_>, word: u32, value: u64) -> Result<(), ClientError> {
        self.line.wait(stream, word, value).map_err(|fault| fault.while_doing("wait for", self.name()))
    }

    /// Waits on the calling thread until a word has reached a value.
    ///
    /// # Errors
    /// [`ClientError::TimedOut`] when it has not in time; and as [`wait`](Self::wait).
    pub fn wait_here(&self, word: u32, value: u64, timeout: Duration) -> Result<(), ClientError> {
        let outcome = self.line.wait_here(word, value, after(timeout));
        let outcome = outcome.and_then(|come| if come { Ok(()) } else { Err(Fault::TimedOut(timeout)) });
        outcome.map_err(|fault| fault.while_doing("wait for", self.name()))
    }

    /// Whether what a stream [waited](Self::wait) for was really reached, or still can be.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with `PEER_DIED` when the word's writer ended before: do not use what the work after the
    /// wait has produced.
    pub fn check(&self, word: u32, value: u64) -> Result<(), ClientError> {
        self.line.check(word, value).map_err(|fault| fault.while_doing("check", self.name()))
    }

    /// A word as it is now; `None`: its writer has ended.
    ///
    /// # Errors
    /// As [`signal`](Self::signal).
    pub fn load(&self, word: u32) -> Result<Option<u64>, ClientError> {
        self.line.load(word).map_err(|fault| fault.while_doing("read", self.name()))
    }

    pub(crate) fn allotment(&self) -> Result<&words::Allotment, Fault> {
        self.line.allotment.as_ref().ok_or_else(|| {
            let refusal = Refusal::new(Code::NotOwner);
            refusal.compared_with("owner of the timeline", "this process", "another").into()
        })
    }

    fn checked<T>(&self, outcome: Result<T, Fault>) -> Result<T, Fault> {
        self.line.shared.connection.check_process()?;
        outcome
    }
}
