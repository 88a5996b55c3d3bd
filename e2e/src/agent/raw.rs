//! The raw driver between two processes, with no daemon in between: what a hand-off costs at the very least.

use std::os::fd::AsFd;
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

use super::memory::first_device;
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
}

/// What travels beside the descriptor.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    bytes: u64,
    legacy: Option<Vec<u8>>,
}

/// How long one side waits for the other.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn deadline() -> Option<Instant> {
    Some(Instant::now() + PATIENCE)
}

/// A buffer of the sender.
enum Source {
    Vmm(VmmAllocation, Option<Arc<std::os::fd::OwnedFd>>),
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

    fn packet(&mut self, driver: Driver, bytes: u64) -> anyhow::Result<Outgoing> {
        let (legacy, descriptors) = match self {
            Self::Vmm(memory, exported) => {
                if exported.is_none() {
                    *exported = Some(Arc::new(memory.export()?.fd));
                }
                (None, exported.iter().cloned().collect())
            }
            Self::Legacy(memory) => {
                (Some(LegacyHandle::export(driver, memory.ptr())?.as_bytes().to_vec()), Vec::new())
            }
        };
        Ok(Outgoing { bytes: serde_json::to_vec(&Note { bytes, legacy })?, descriptors })
    }
}

pub(super) fn send(
    socket: &Path,
    bytes: u64,
    rounds: usize,
    mode: Mode,
    pause: Duration,
) -> anyhow::Result<RawTimes> {
    let driver = Driver::load()?;
    let _sentinel = Sentinel::hold(driver, first_device()?)?;
    let peer = accept(socket)?;
    let mut times = RawTimes::default();
    let mut buffer = RecvBuffer::new();
    let mut source = Source::create(driver, bytes, mode)?;
    for round in 0..rounds {
        let fresh = matches!(mode, Mode::VmmFresh | Mode::LegacyFresh);
        if fresh && round > 0 {
            drop(std::mem::replace(&mut source, Source::create(driver, bytes, mode)?));
        }
        if !fresh {
            source.packet(driver, bytes)?; // Exported before the clock starts.
        }
        ops::synchronize(driver)?;
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        next(&peer, &mut buffer)?;
        times.at_ns.push(now_ns());
        let begin = Instant::now();
        let packet = source.packet(driver, bytes)?;
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
            drop(mapping);
        }
        (None, Some(fd)) => {
            let import = VmmImport::import(driver, fd.as_fd())?;
            let mapping = import.map(note.bytes, Access::ReadWrite, first_device()?)?;
            times.at_ns.push(now_ns());
            times.driver_us.push(us_since(begin));
            drop(mapping);
            let begin = Instant::now();
            inspect(driver, fd.as_fd(), note.bytes, proof)?;
            times.inspect_us.push(us_since(begin));
        }
        (None, None) => anyhow::bail!("neither a handle nor a descriptor came"),
    }
    Ok(())
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
