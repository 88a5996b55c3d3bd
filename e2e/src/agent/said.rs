//! What an application can be told, and what it answers.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::many::HandedOff;
use super::order::{Outcome, Step};
use super::stream::{Plan, StreamTimes};
use super::{MemoryKind, RawMode, RawTimes, Told, churn};

/// What an application can be told to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Command {
    /// Connect to the pod's socket.
    Connect {
        /// The socket.
        socket: PathBuf,
    },
    /// Make memory, or take what this name has already, and fill it by a GPU operation.
    Fill {
        /// What to call it.
        memory: String,
        /// Its size.
        bytes: u64,
        /// How it is made.
        kind: MemoryKind,
        /// The 32-bit word that it is filled with.
        word: u32,
    },
    /// Free memory.
    Free {
        /// Which.
        memory: String,
    },
    /// Export memory (vmm only) and keep the descriptor for later publications.
    Export {
        /// Which.
        memory: String,
    },
    /// Publish memory.
    Publish {
        /// Which.
        memory: String,
        /// Under which name.
        name: String,
    },
    /// Publish memory that outlives this process.
    PublishLasting {
        /// Which.
        memory: String,
        /// Under which name.
        name: String,
    },
    /// Fill a part of memory with a word, and publish it by a pointer into that memory.
    PublishRange {
        /// Which.
        memory: String,
        /// Under which name.
        name: String,
        /// Where the part begins, in bytes.
        offset: u64,
        /// Its size.
        bytes: u64,
        /// The word.
        word: u32,
    },
    /// Retire a buffer that another process of the pod published.
    RetireId {
        /// Which.
        id: String,
        /// How long its holders may keep their leases, in milliseconds.
        deadline_ms: u64,
    },
    /// Make many pieces of exportable memory, and publish each under the next name of [`many::name`](super::many::name).
    PublishMany {
        /// The number of the first.
        first: usize,
        /// How many.
        count: usize,
        /// The size of each.
        bytes: u64,
        /// Bytes of metadata that each gets.
        metadata_bytes: usize,
    },
    /// Hand buffers of `PublishMany` off, again and again: acquire, close the descriptor, release. The first time, on a
    /// connection of its own.
    HandOff {
        /// The pod's socket.
        socket: PathBuf,
        /// How many buffers there are.
        buffers: usize,
        /// Items in a message.
        batch: usize,
        /// When to begin, on the machine's monotonic clock.
        begin_ns: u64,
        /// For how long.
        millis: u64,
        /// What the choice of buffers begins with.
        seed: u64,
    },
    /// Acquire a buffer.
    Acquire {
        /// By name.
        name: Option<String>,
        /// By id.
        id: Option<String>,
        /// Only a generation above this one.
        newer_than: u64,
        /// How long to wait for it, in milliseconds.
        wait_ms: u64,
        /// What to call the lease.
        lease: String,
        /// Answer `Waiting` first, just before asking.
        announce: bool,
    },
    /// Check every word of a leased buffer.
    Verify {
        /// Which lease.
        lease: String,
        /// What each word should be.
        word: u32,
    },
    /// Release a lease.
    Release {
        /// Which.
        lease: String,
    },
    /// Retire a published buffer.
    Retire {
        /// Its name.
        name: String,
        /// How long its holders may keep their leases, in milliseconds.
        deadline_ms: u64,
    },
    /// Begin to watch the group.
    Watch,
    /// Wait for the next event of the watch.
    NextEvent {
        /// How long, in milliseconds.
        timeout_ms: u64,
    },
    /// Wait until the watch tells this of this buffer, and pass over the rest.
    AwaitEvent {
        /// What is told, as in [`Told`].
        what: String,
        /// Of which buffer.
        id: String,
        /// How long, in milliseconds.
        timeout_ms: u64,
    },
    /// Tell how a lease stands.
    LeaseState {
        /// Which lease.
        lease: String,
    },
    /// Keep the connection, and let it go when the process ends, in a handler that is registered now.
    KeepToTheEnd,
    /// Begin to publish and acquire all the time.
    Churn {
        /// How.
        work: churn::Work,
    },
    /// End that, and tell what became of it.
    EndChurn,
    /// Tell the open descriptors of this process.
    Descriptors,
    /// The raw driver between two processes: export and send over this socket, again and again.
    RawSend {
        /// Where to listen.
        socket: PathBuf,
        /// Size of the buffer.
        bytes: u64,
        /// How often.
        rounds: usize,
        /// How.
        mode: RawMode,
        /// How long to rest before each round, in microseconds.
        pause_us: u64,
        /// What each buffer is filled with, where the receiver is to look at it.
        word: Option<u32>,
    },
    /// Hand buffers over to one consumer, round by round.
    Produce {
        /// The rounds.
        plan: Plan,
        /// How the memory is made.
        kind: MemoryKind,
        /// Size of each buffer.
        bytes: u64,
    },
    /// Take buffers over from one producer, round by round.
    Consume {
        /// The rounds.
        plan: Plan,
    },
    /// Streams, timelines, ordered buffers, rings, sets.
    Order(Step),
    /// The raw driver between two processes: receive, import, map.
    RawReceive {
        /// Where the sender listens.
        socket: PathBuf,
        /// How often.
        rounds: usize,
    },
}

/// What an application answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Answer {
    /// Connected, as this pod of this group.
    Connected {
        /// The pod.
        pod: String,
        /// The group.
        group: String,
    },
    /// Done, in so many microseconds.
    Done {
        /// Microseconds.
        us: f64,
    },
    /// Published.
    Published {
        /// The buffer.
        id: String,
        /// Its version.
        generation: u64,
        /// When the publish began, on the machine's monotonic clock.
        began_ns: u64,
        /// How long it took.
        us: f64,
        /// How long of that the driver took to export it.
        exported_us: f64,
    },
    /// About to ask.
    Waiting,
    /// Acquired.
    Acquired {
        /// The buffer.
        id: String,
        /// Its version.
        generation: u64,
        /// Its size.
        bytes: u64,
        /// When it was readable, on the machine's monotonic clock.
        done_ns: u64,
        /// How long the acquire took.
        us: f64,
        /// How long of that the node took to grant it.
        granted_us: f64,
        /// How long of that the driver took to map it.
        mapped_us: f64,
    },
    /// Verified.
    Verified {
        /// Words looked at.
        words: u64,
        /// Words that are not what they should be.
        wrong: u64,
    },
    /// Retired, with so many leases left.
    Retired {
        /// Leases left.
        leases: u32,
    },
    /// Told by the watch.
    Event(Told),
    /// Nothing was told in time.
    Nothing,
    /// How a lease stands, in words.
    LeaseState {
        /// `held`, `retiring`, `ended` or `lost`.
        state: String,
    },
    /// What became of a churn.
    Churned(churn::Churned),
    /// Open descriptors.
    Descriptors {
        /// How many.
        count: usize,
    },
    /// Times of the raw driver.
    Raw(RawTimes),
    /// Times of hand-offs.
    Stream(StreamTimes),
    /// What came of a step.
    Order(Outcome),
    /// What became of hand-offs.
    HandedOff(HandedOff),
    /// Refused.
    Refused {
        /// The stable code.
        code: String,
        /// The whole refusal as a sentence.
        text: String,
    },
    /// Something else went wrong.
    Failed {
        /// What.
        error: String,
    },
}
