//! The worker process: imports what it is sent without a context, looks at it, answers, lets it go.
//!
//! Started by the daemon as `gpu-handoff-plugin gpu-worker` with the request socket as standard input. Its first word
//! says whether the driver could be loaded; without it the worker is of no use and ends, so that the next one tries
//! afresh. Else it ends when the socket does.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use gpu_handoff_cuda::{Driver, InspectError, inspect};
use gpu_handoff_logs::chain;
use gpu_handoff_protocol::codec::{Frame, Outgoing};
use gpu_handoff_protocol::socket::{RecvBuffer, SeqPacket};

use super::{Reply, Request, Verdict, Word};

/// Serves requests until the daemon ends the socket.
///
/// # Errors
/// When the socket fails, or the daemon sends what is no request.
pub fn run(requests: OwnedFd) -> io::Result<()> {
    let socket = SeqPacket::from_own(requests);
    let driver = match Driver::load() {
        Ok(driver) => driver,
        Err(e) => return say(&socket, &Word::NoDriver { why: chain(&e) }),
    };
    say(&socket, &Word::Ready)?;
    let mut buffer = RecvBuffer::new();
    while let Some(frame) = socket.recv(&mut buffer, None)? {
        // The descriptor is closed before the answer: the daemon keeps its own until then.
        let reply = answer(driver, frame)?;
        say(&socket, &Word::Answer(reply))?;
    }
    Ok(())
}

fn say(socket: &SeqPacket, word: &Word) -> io::Result<()> {
    let bytes = serde_json::to_vec(word)?;
    socket.send(&Outgoing { bytes, descriptors: Vec::new() }, None)
}

fn answer(driver: Driver, frame: Frame) -> io::Result<Reply> {
    let request: Request = serde_json::from_slice(&frame.bytes)?;
    let verdict = match frame.descriptors.first() {
        Some(fd) => verdict(inspect(driver, fd.as_fd(), request.bytes)),
        None => Verdict::Failed { why: "the descriptor did not arrive".to_owned() },
    };
    Ok(Reply { id: request.id, verdict })
}

fn verdict(outcome: Result<gpu_handoff_cuda::Inspection, InspectError>) -> Verdict {
    match outcome {
        Ok(found) => Verdict::GpuMemory { device: found.device },
        Err(InspectError::NotGpuMemory(e)) => Verdict::NotGpuMemory { answer: chain(&e) },
        Err(InspectError::GpuNotReachable(_)) => Verdict::GpuMemory { device: None },
        Err(InspectError::SizeMismatch { actual, .. }) => Verdict::SizeMismatch { actual },
        Err(other) => Verdict::Failed { why: chain(&other) },
    }
}
