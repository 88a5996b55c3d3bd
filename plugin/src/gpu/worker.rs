//! The worker process: imports what it is sent without a context, looks at it, answers, lets it go.
//!
//! Started by the daemon as `gpu-handoff-plugin gpu-worker` with the request socket as standard input. It ends when
//! that socket does.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use gpu_handoff_cuda::{Driver, InspectError, inspect};
use gpu_handoff_protocol::codec::{Frame, Outgoing};
use gpu_handoff_protocol::socket::{RecvBuffer, SeqPacket};

use super::{Reply, Request, Verdict, chain};

/// Serves requests until the daemon ends the socket.
///
/// # Errors
/// When the socket fails, or the daemon sends what is no request.
pub fn run(requests: OwnedFd) -> io::Result<()> {
    let socket = SeqPacket::from_own(requests);
    let driver = Driver::load().map_err(|e| chain(&e));
    let mut buffer = RecvBuffer::new();
    while let Some(frame) = socket.recv(&mut buffer, None)? {
        let reply = answer(driver.as_ref(), frame)?;
        let bytes = serde_json::to_vec(&reply)?;
        socket.send(&Outgoing { bytes, descriptors: Vec::new() }, None)?;
    }
    Ok(())
}

fn answer(driver: Result<&Driver, &String>, frame: Frame) -> io::Result<Reply> {
    let request: Request = serde_json::from_slice(&frame.bytes)?;
    let verdict = match (driver, frame.descriptors.first()) {
        (Ok(driver), Some(fd)) => verdict(inspect(*driver, fd.as_fd(), request.bytes)),
        (Ok(_), None) => Verdict::Failed { why: "the descriptor did not arrive".to_owned() },
        (Err(why), _) => Verdict::Failed { why: why.clone() },
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
