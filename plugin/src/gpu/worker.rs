//! The worker process: imports what it is sent without a context, looks at it, answers, lets it go.
//!
//! Started by the daemon as `gpu-handoff-plugin gpu-worker` with the request socket as standard input. Its first word
//! says whether the driver could be loaded; without it the worker is of no use and ends, so that the next one tries
//! afresh. Else it ends when the socket does, when the driver fails, or when nobody has asked for long.
//!
//! With its first word goes a descriptor of memory that it made itself: the measure of what memory looks like. Nobody keeps
//! that memory.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_cuda::{Driver, ExportedFd, InspectError, LoadError, SizeProof, VmmAllocation, inspect};
use gpu_handoff_logs::chain;
use gpu_handoff_protocol::DeviceUuid;
use gpu_handoff_protocol::codec::Frame;
use gpu_handoff_protocol::socket::{self, Received, RecvBuffer, SeqPacket};
use rustix::event::PollFlags;
use rustix::fs::MemfdFlags;

use super::Verdict;
use super::wire::{Begun, Note, Reply, Request, Word};
use crate::awake::{self, Awake, Room};
use crate::limits;

/// Size of the memory that serves as the measure, in bytes: one granule.
const SAMPLE_BYTES: u64 = 2 << 20;

/// Serves requests until the daemon ends the socket, or nobody has asked for long. With `gpu`, memory of that one serves
/// as the measure. `stays_awake`: it polls for a moment where it is told that something is about to come.
///
/// # Errors
/// When the socket fails, or the daemon sends what is no request.
pub fn run(requests: OwnedFd, gpu: Option<DeviceUuid>, stays_awake: bool) -> io::Result<()> {
    let socket = SeqPacket::from_own(requests);
    let driver = match Driver::load() {
        Ok(driver) => driver,
        Err(e) => {
            let no_device = matches!(e, LoadError::NoDevice);
            return say(&socket, &Word::NoDriver { why: chain(&e), no_device }, Vec::new());
        }
    };
    let notes = Arc::new(rustix::fs::memfd_create("gpu-worker-notes", MemfdFlags::CLOEXEC)?);
    let mut descriptors = vec![Arc::clone(&notes)];
    let (proof, no_sample) = match sample(driver, gpu) {
        Ok((sample, proof)) => {
            descriptors.push(Arc::new(sample.fd));
            (proof, None)
        }
        Err(why) => (SizeProof::Thorough, Some(why)),
    };
    let devices = match driver.devices() {
        Ok(devices) => devices.iter().map(|device| device.uuid()).collect(),
        Err(e) => {
            return say(&socket, &Word::NoDriver { why: chain(&e), no_device: false }, Vec::new());
        }
    };
    say(&socket, &Word::Ready { devices, no_sample }, descriptors)?;
    let (lanes, awake) = (HashMap::new(), Awake::new(Room::new(usize::from(stays_awake))));
    Worker { driver, proof, socket, notes, lanes, awake }.serve()
}

/// Memory, exported: of the one GPU, or of the first; it is there for as long as somebody has the descriptor. And what it
/// takes to prove the size of such memory.
fn sample(driver: Driver, gpu: Option<DeviceUuid>) -> Result<(ExportedFd, SizeProof), String> {
    let devices = driver.devices().map_err(|e| chain(&e))?;
    let wanted = devices.into_iter().find(|device| gpu.is_none_or(|gpu| gpu == device.uuid()));
    let device = wanted.ok_or_else(|| "the driver does not show this GPU".to_owned())?;
    let memory = VmmAllocation::create(driver, device, SAMPLE_BYTES).map_err(|e| chain(&e))?;
    let proof = SizeProof::of_driver(driver, device).map_err(|e| chain(&e))?;
    Ok((memory.export().map_err(|e| chain(&e))?, proof))
}

fn say(socket: &SeqPacket, word: &Word, descriptors: Vec<Arc<OwnedFd>>) -> io::Result<()> {
    socket.send(&word.packet(descriptors)?, None)
}

struct Worker {
    driver: Driver,
    /// What a size takes to be proven on this driver.
    proof: SizeProof,
    socket: SeqPacket,
    /// What is begun is noted here, so that the daemon knows whose descriptor it was if this process does not survive it.
    notes: Arc<OwnedFd>,
    /// Where each lane is answered.
    lanes: HashMap<u32, SeqPacket>,
    /// Whether it sleeps while it waits for what is about to come.
    awake: Awake,
}

impl Worker {
    fn serve(mut self) -> io::Result<()> {
        let mut buffer = RecvBuffer::new();
        loop {
            let frame = match self.next(&mut buffer) {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::TimedOut => return self.last_word(&Word::Idle),
                Err(e) => return Err(e),
            };
            if let Some(why) = self.take(frame)? {
                return self.last_word(&Word::Failed { why });
            }
        }
    }

    /// The next packet, which may be awaited without sleeping.
    fn next(&self, buffer: &mut RecvBuffer) -> io::Result<Option<Frame>> {
        while self.awake.is_on() {
            match self.socket.try_recv(buffer)? {
                Received::Frame(frame) => return Ok(Some(frame)),
                Received::Closed => return Ok(None),
                Received::Nothing => awake::give_way(),
            }
        }
        self.socket.recv(buffer, Some(Instant::now() + limits::WORKER_IDLE_TIME))
    }

    /// What was not begun is asked of the next worker, as the daemon learns by this one's end.
    fn last_word(&self, word: &Word) -> io::Result<()> {
        say(&self.socket, word, Vec::new())
    }

    /// Does what one packet says; `Some`: the driver failed.
    fn take(&mut self, frame: Frame) -> io::Result<Option<String>> {
        let request = Request::read(&frame.bytes).ok_or(io::ErrorKind::InvalidData)?;
        let mut descriptors = frame.descriptors.into_iter();
        let descriptor = descriptors.next();
        match request {
            Request::Register { lane } => {
                // Lanes come and go.
                self.lanes.retain(|_, lane| !has_ended(lane));
                if let Some(fd) = descriptor {
                    self.lanes.insert(lane, SeqPacket::from_own(fd));
                }
                Ok(None)
            }
            Request::Inspect { number, bytes } => {
                self.awake.end();
                self.note(number)?;
                let failed = self.inspect(number, bytes, descriptor);
                self.note(Begun::default())?;
                Ok(failed)
            }
            Request::Awake => {
                self.awake.begin();
                Ok(None)
            }
        }
    }

    fn note(&self, number: Begun) -> io::Result<()> {
        rustix::io::pwrite(&self.notes, &Note::now(number).to_bytes(), 0).map(drop).map_err(io::Error::from)
    }

    /// Inspects and answers; `Some`: the driver failed.
    fn inspect(&mut self, number: Begun, bytes: u64, descriptor: Option<OwnedFd>) -> Option<String> {
        let outcome = match &descriptor {
            Some(fd) => inspect(self.driver, fd.as_fd(), bytes, self.proof).map_err(refused),
            None => Err(Verdict::Failed { why: "the descriptor did not arrive".to_owned() }),
        };
        match outcome {
            Ok(found) => {
                // It is memory, and letting it go takes the driver its time: the lane need not wait for that.
                self.answer(number, Verdict::GpuMemory { device: found.device });
                None
            }
            Err(verdict) => {
                // Closed before the answer: the daemon keeps its own until then.
                drop(descriptor);
                let failed = match &verdict {
                    Verdict::Failed { why } | Verdict::GpuLost { answer: why } => Some(why.clone()),
                    _ => None,
                };
                self.answer(number, verdict);
                failed
            }
        }
    }

    fn answer(&mut self, number: Begun, verdict: Verdict) {
        let reply = Reply { id: number.id, verdict }.packet();
        let sent = self.lanes.get(&number.lane).map(|lane| lane.try_send(&reply));
        // A lane asks so few at a time that there is room; one that has none, or is gone, is not waited for.
        if !matches!(sent, Some(Ok(true))) {
            self.lanes.remove(&number.lane);
        }
    }
}

fn has_ended(lane: &SeqPacket) -> bool {
    socket::wait(&[(lane.as_fd(), PollFlags::empty())], Some(Instant::now())).unwrap_or(true)
}

fn refused(error: InspectError) -> Verdict {
    match error {
        InspectError::NotGpuMemory(e) => Verdict::NotGpuMemory { answer: chain(&e) },
        InspectError::GpuNotReachable(_) => Verdict::GpuMemory { device: None },
        InspectError::SizeMismatch { actual, .. } => Verdict::SizeMismatch { actual },
        InspectError::GpuLost(e) => Verdict::GpuLost { answer: chain(&e) },
        InspectError::OutOfMemory(e) => Verdict::OutOfMemory { answer: chain(&e) },
        other @ InspectError::Cuda(_) => Verdict::Failed { why: chain(&other) },
    }
}
