//! The raw driver between two processes, with no daemon in between: what a hand-off costs at the very least.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu_handoff_cuda::{
    Access, Driver, LegacyAllocation, LegacyHandle, LegacyMapping, PidWordProof, Sentinel, SizeProof,
    VmmAllocation, VmmImport, inspect, ops,
};
use gpu_handoff_protocol::codec::{Frame, Outgoing};
use gpu_handoff_protocol::socket::{RecvBuffer, SeqListener, SeqPacket, wait};
use rustix::event::PollFlags;
use serde::{Deserialize, Serialize};

use super::memory::{count_wrong, first_device};
use super::{now_ns, us_since};

/// How the raw driver is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// vmm, each time newly allocated and exported, another export of the process being alive.
    VmmFresh,
    /// vmm, exported once and sent again and again.
    VmmExported,
    /// A legacy handle of memory newly allocated each time.
    LegacyFresh,
    /// The same legacy handle, opened again and again.
    LegacyExported,
}

/// What one side measured, a value a round.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RawTimes {
    /// When the buffer was ready (sender) or readable (receiver), on the machine's monotonic clock.
    pub at_ns: Vec<u64>,
    /// Microseconds for exporting (sender) or importing and mapping (receiver).
    pub driver_us: Vec<f64>,
    /// Microseconds for looking at the descriptor as the node's GPU worker does (receiver of vmm).
    pub inspect_us: Vec<f64>,
    /// 32-bit words that were looked at (receiver, where the sender filled them).
    pub words: u64,
}

/// What travels beside the descriptor.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    bytes: u64,
    legacy: Option<Vec<u8>>,
    /// What each word should be, where that is to be looked at.
    word: Option<u32>,
}

/// How long one side waits for the other.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn deadline() -> Option<Instant> {
    Some(Instant::now() + PATIENCE)
}

/// A buffer of the sender.
enum Source {
    Vmm(VmmAllocation, Option<Arc<OwnedFd>>),
    Legacy(LegacyAllocation),
}

impl Source {
    fn create(driver: Driver, bytes: u64, mode: Mode) -> anyhow::Result<Self> {
        match mode {
            Mode::VmmFresh | Mode::VmmExported => {
                Ok(Self::Vmm(VmmAllocation::create(driver, first_device()?, bytes)?, None))
            }
            Mode::LegacyFresh | Mode::LegacyExported => {
                Ok(Self::Legacy(LegacyAllocation::create(driver, bytes)?))
            }
        }
    }

    /// Fills it as any importer could: what has been exported is mapped once more for that.
    fn fill(&mut self, driver: Driver, bytes: u64, word: u32) -> anyhow::Result<()> {
        let mapping;
        let ptr = match self {
            Self::Vmm(memory, exported) => {
                let import = VmmImport::import(driver, once_exported(memory, exported)?.as_fd())?;
                mapping = import.map(bytes, Access::ReadWrite, first_device()?)?;
                mapping.ptr()
            }
            Self::Legacy(memory) => memory.ptr(),
        };
        ops::memset_d32(driver, ptr, word, bytes / 4)?;
        ops::synchronize(driver)?;
        Ok(())
    }

    fn packet(&mut self, driver: Driver, bytes: u64, word: Option<u32>) -> anyhow::Result<Outgoing> {
        let (legacy, descriptors) = match self {
            Self::Vmm(memory, exported) => (None, vec![once_exported(memory, exported)?]),
            Self::Legacy(memory) => {
                (Some(LegacyHandle::export(driver, memory.ptr())?.as_bytes().to_vec()), Vec::new())
            }
        };
        Ok(Outgoing { bytes: serde_json::to_vec(&Note { bytes, legacy, word })?, descriptors })
    }
}

/// The descriptor of memory that is exported once, when it is needed first.
fn once_exported(
    memory: &VmmAllocation,
    exported: &mut Option<Arc<OwnedFd>>,
) -> anyhow::Result<Arc<OwnedFd>> {
    let fd = match exported {
        Some(fd) => fd,
        None => exported.insert(Arc::new(memory.export()?.fd)),
    };
    Ok(Arc::clone(fd))
}

/// What is sent.
pub(super) struct Sending {
    pub(super) bytes: u64,
    pub(super) rounds: usize,
    pub(super) mode: Mode,
    /// Rest before each round.
    pub(super) pause: Duration,
    /// What the first round's buffer is filled with, where the receiver is to look at it; one more in each round after it, so
    /// that what an earlier round wrote is not taken for it.
    pub(super) word: Option<u32>,
}

pub(super) fn send(socket: &Path, plan: &Sending) -> anyhow::Result<RawTimes> {
    let &Sending { bytes, rounds, mode, pause, word } = plan;
    let driver = Driver::load()?;
    let _sentinel = Sentinel::hold(driver, first_device()?)?;
    let peer = accept(socket)?;
    let mut times = RawTimes::default();
    let mut buffer = RecvBuffer::new();
    let mut source = Source::create(driver, bytes, mode)?;
    for round in 0..rounds {
        let word = word.map(|first| first.wrapping_add(u32::try_from(round).unwrap_or(u32::MAX)));
        let fresh = matches!(mode, Mode::VmmFresh | Mode::LegacyFresh);
        if fresh && round > 0 {
            drop(std::mem::replace(&mut source, Source::create(driver, bytes, mode)?));
        }
        if let Some(word) = word {
            source.fill(driver, bytes, word)?;
        }
        if !fresh {
            source.packet(driver, bytes, word)?; // Exported before the clock starts.
        }
        ops::synchronize(driver)?;
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        next(&peer, &mut buffer)?;
        times.at_ns.push(now_ns());
        let begin = Instant::now();
        let packet = source.packet(driver, bytes, word)?;
        times.driver_us.push(us_since(begin));
        peer.send(&packet, deadline())?;
        next(&peer, &mut buffer)?;
    }
    Ok(times)
}

pub(super) fn receive(socket: &Path, rounds: usize) -> anyhow::Result<RawTimes> {
    let driver = Driver::load()?;
    let proof = SizeProof::of_driver(driver, first_device()?)?;
    let peer = connect(socket)?;
    let mut times = RawTimes::default();
    let mut buffer = RecvBuffer::new();
    let ready = Outgoing { bytes: vec![1], descriptors: Vec::new() };
    for _ in 0..rounds {
        peer.send(&ready, deadline())?;
        let frame = next(&peer, &mut buffer)?;
        let note: Note = serde_json::from_slice(&frame.bytes)?;
        open(driver, proof, &note, &frame, &mut times)?;
        peer.send(&ready, deadline())?;
    }
    Ok(times)
}

/// Makes the buffer readable, takes the time, and lets it go again.
fn open(
    driver: Driver,
    proof: SizeProof,
    note: &Note,
    frame: &Frame,
    times: &mut RawTimes,
) -> anyhow::Result<()> {
    let begin = Instant::now();
    match (&note.legacy, frame.descriptors.first()) {
        (Some(handle), _) => {
            let handle = handle.as_slice().try_into().map_err(|_| anyhow::anyhow!("a handle of 64 bytes"))?;
            let mapping = LegacyMapping::open(driver, &readable(LegacyHandle::from_bytes(handle)))?;
            times.at_ns.push(now_ns());
            times.driver_us.push(us_since(begin));
            times.words += look(mapping.ptr(), note)?;
            drop(mapping);
        }
        (None, Some(fd)) => {
            let import = VmmImport::import(driver, fd.as_fd())?;
            let mapping = import.map(note.bytes, Access::ReadWrite, first_device()?)?;
            times.at_ns.push(now_ns());
            times.driver_us.push(us_since(begin));
            times.words += look(mapping.ptr(), note)?;
            drop(mapping);
            let begin = Instant::now();
            inspect(driver, fd.as_fd(), note.bytes, proof)?;
            times.inspect_us.push(us_since(begin));
        }
        (None, None) => anyhow::bail!("neither a handle nor a descriptor came"),
    }
    Ok(())
}

/// Looks at every word, where the sender said what it is; gives how many there are.
fn look(ptr: u64, note: &Note) -> anyhow::Result<u64> {
    let Some(word) = note.word else { return Ok(0) };
    let (words, wrong) = count_wrong(ptr, note.bytes, word)?;
    anyhow::ensure!(wrong == 0, "{wrong} of {words} words are not {word:#x}");
    Ok(words)
}

/// Both applications are PID 1 of their pods, which no driver stands: the number is rewritten, as the client does after
/// the node's self-test. Without that there would be nothing to compare with.
fn readable(handle: LegacyHandle) -> LegacyHandle {
    let own = std::process::id();
    if handle.pid_word() == own {
        handle.with_pid_word(&PidWordProof::vouched_by_node(), own + 1)
    } else {
        handle
    }
}

pub(super) fn next(peer: &SeqPacket, buffer: &mut RecvBuffer) -> anyhow::Result<Frame> {
    peer.recv(buffer, deadline())?.ok_or_else(|| anyhow::anyhow!("the other side has gone"))
}

pub(super) fn accept(socket: &Path) -> anyhow::Result<SeqPacket> {
    let listener = SeqListener::bind(socket)?;
    anyhow::ensure!(wait(&[(listener.as_fd(), PollFlags::IN)], deadline())?, "nobody connected");
    let fd = listener.try_accept()?.ok_or_else(|| anyhow::anyhow!("the connection was gone again"))?;
    Ok(SeqPacket::from_own(fd))
}

pub(super) fn connect(socket: &Path) -> anyhow::Result<SeqPacket> {
    crate::wait::until(PATIENCE, "the raw sender listens", || Ok(SeqPacket::connect(socket).ok()))
}
