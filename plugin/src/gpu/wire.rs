//! What is said between lane, supervisor and worker. All three are of one build: there is no version.
//!
//! A lane asks on the worker's request socket, which all lanes and the supervisor share, and is answered on its own. What
//! is said for each descriptor is a few bytes; the rest, said once in a worker's life, is JSON.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use gpu_handoff_protocol::DeviceUuid;
use gpu_handoff_protocol::codec::Outgoing;
use serde::{Deserialize, Serialize};

use super::Verdict;

/// Which request of which lane: what the worker notes before it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Begun {
    /// The lane's number.
    pub(super) lane: u32,
    /// The lane's number of the request; 0: none has begun.
    pub(super) id: u64,
}

impl Begun {
    /// Length of its form, in bytes.
    pub(super) const BYTES: usize = 12;

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.lane.to_le_bytes());
        bytes[4..].copy_from_slice(&self.id.to_le_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let mut rest = &bytes[..];
        Self { lane: u32::from_le_bytes(array(&mut rest)), id: u64::from_le_bytes(array(&mut rest)) }
    }
}

/// What the worker has in its notes: what it is at, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Note {
    /// What it is at.
    pub(super) begun: Begun,
    /// Since when, by the clock that all processes share.
    since: u64,
}

impl Note {
    /// Length of its form, in bytes.
    pub(super) const BYTES: usize = Begun::BYTES + 8;

    /// It is at this from now on.
    pub(super) fn now(begun: Begun) -> Self {
        Self { begun, since: clock() }
    }

    /// For how long it has been at it.
    pub(super) fn age(&self) -> Duration {
        Duration::from_nanos(clock().saturating_sub(self.since))
    }

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..Begun::BYTES].copy_from_slice(&self.begun.to_bytes());
        bytes[Begun::BYTES..].copy_from_slice(&self.since.to_le_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let mut rest = &bytes[..];
        let begun = Begun::from_bytes(array(&mut rest));
        Self { begun, since: u64::from_le_bytes(array(&mut rest)) }
    }
}

/// Nanoseconds on the clock that is the same for all processes of the machine.
fn clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let part = |n: i64| u64::try_from(n).unwrap_or_default();
    part(now.tv_sec).saturating_mul(1_000_000_000).saturating_add(part(now.tv_nsec))
}

/// What a lane says to a worker; a descriptor comes along with each but the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// The descriptor is the socket on which this lane is answered.
    Register {
        /// The lane's number.
        lane: u32,
    },
    /// What is the descriptor?
    Inspect {
        /// Which request it is.
        number: Begun,
        /// Size that the memory is said to have, in bytes.
        bytes: u64,
    },
    /// Something to inspect is about to come: be awake.
    Awake,
}

const REGISTER: u8 = 1;
const INSPECT: u8 = 2;
const AWAKE: u8 = 3;

impl Request {
    pub(super) fn packet(self, descriptor: Option<Arc<OwnedFd>>) -> Outgoing {
        let mut out = Vec::with_capacity(1 + Begun::BYTES + size_of::<u64>());
        match self {
            Self::Register { lane } => {
                out.push(REGISTER);
                out.extend(lane.to_le_bytes());
            }
            Self::Inspect { number, bytes } => {
                out.push(INSPECT);
                out.extend(number.to_bytes());
                out.extend(bytes.to_le_bytes());
            }
            Self::Awake => out.push(AWAKE),
        }
        Outgoing { bytes: out, descriptors: descriptor.into_iter().collect() }
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (kind, mut rest) = bytes.split_first()?;
        match (*kind, rest.len()) {
            (REGISTER, 4) => Some(Self::Register { lane: u32::from_le_bytes(array(&mut rest)) }),
            (INSPECT, 20) => {
                let number = Begun::from_bytes(array(&mut rest));
                Some(Self::Inspect { number, bytes: u64::from_le_bytes(array(&mut rest)) })
            }
            (AWAKE, 0) => Some(Self::Awake),
            _ => None,
        }
    }
}

/// What a worker answers a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    /// The lane's number of the request that this answers.
    pub(super) id: u64,
    /// What was found.
    pub(super) verdict: Verdict,
}

const MEMORY: u8 = 1;
const MEMORY_ELSEWHERE: u8 = 2;
const NO_MEMORY: u8 = 3;
const SIZE: u8 = 4;
const SIZE_UNKNOWN: u8 = 5;
const FAILED: u8 = 6;
const LOST: u8 = 7;
const NO_ROOM: u8 = 8;

impl Reply {
    pub(super) fn packet(&self) -> Outgoing {
        let mut bytes = Vec::with_capacity(32);
        bytes.extend(self.id.to_le_bytes());
        match &self.verdict {
            Verdict::GpuMemory { device: Some(device) } => {
                bytes.push(MEMORY);
                bytes.extend(device.as_bytes());
            }
            Verdict::GpuMemory { device: None } => bytes.push(MEMORY_ELSEWHERE),
            Verdict::NotGpuMemory { answer } => {
                bytes.push(NO_MEMORY);
                bytes.extend(answer.as_bytes());
            }
            Verdict::SizeMismatch { actual: Some(actual) } => {
                bytes.push(SIZE);
                bytes.extend(actual.to_le_bytes());
            }
            Verdict::SizeMismatch { actual: None } => bytes.push(SIZE_UNKNOWN),
            Verdict::GpuLost { answer } => {
                bytes.push(LOST);
                bytes.extend(answer.as_bytes());
            }
            Verdict::OutOfMemory { answer } => {
                bytes.push(NO_ROOM);
                bytes.extend(answer.as_bytes());
            }
            Verdict::Failed { why } => {
                bytes.push(FAILED);
                bytes.extend(why.as_bytes());
            }
        }
        Outgoing { bytes, descriptors: Vec::new() }
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk()?;
        let (kind, mut rest) = rest.split_first()?;
        let text = || String::from_utf8_lossy(rest).into_owned();
        let verdict = match (*kind, rest.len()) {
            (MEMORY, 16) => Verdict::GpuMemory { device: Some(DeviceUuid::from_bytes(array(&mut rest))) },
            (MEMORY_ELSEWHERE, 0) => Verdict::GpuMemory { device: None },
            (NO_MEMORY, _) => Verdict::NotGpuMemory { answer: text() },
            (SIZE, 8) => Verdict::SizeMismatch { actual: Some(u64::from_le_bytes(array(&mut rest))) },
            (SIZE_UNKNOWN, 0) => Verdict::SizeMismatch { actual: None },
            (LOST, _) => Verdict::GpuLost { answer: text() },
            (NO_ROOM, _) => Verdict::OutOfMemory { answer: text() },
            (FAILED, _) => Verdict::Failed { why: text() },
            _ => return None,
        };
        Some(Self { id: u64::from_le_bytes(*id), verdict })
    }
}

/// What a worker says to its supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Word {
    /// Its first word: the driver is loaded. Along come the file in which it notes what it begins, and, unless there was no
    /// memory for it, a descriptor of GPU memory that it made itself.
    Ready {
        /// The GPUs that it sees.
        devices: Vec<DeviceUuid>,
        /// Why there is no memory of its own.
        no_sample: Option<String>,
    },
    /// Its first and last word: the driver could not be loaded.
    NoDriver {
        /// What the driver answered.
        why: String,
        /// Whether it works, but shows no GPU.
        no_device: bool,
    },
    /// Its last word: the driver failed, and many of its errors stay with a process.
    Failed {
        /// What the driver answered.
        why: String,
    },
    /// Its last word: nobody has asked it anything for long.
    Idle,
}

impl Word {
    pub(super) fn packet(&self, descriptors: Vec<Arc<OwnedFd>>) -> std::io::Result<Outgoing> {
        Ok(Outgoing { bytes: serde_json::to_vec(self)?, descriptors })
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// Takes the first so many bytes off; the callers have counted them.
fn array<const N: usize>(from: &mut &[u8]) -> [u8; N] {
    let mut taken = [0; N];
    let count = N.min(from.len());
    taken[..count].copy_from_slice(&from[..count]);
    *from = &from[count..];
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_the_same() {
        let fd: Arc<OwnedFd> = Arc::new(std::fs::File::open("/dev/null").unwrap().into());
        let number = Begun { lane: 7, id: u64::MAX - 1 };
        assert_eq!(Begun::from_bytes(number.to_bytes()), number);
        let note = Note::now(number);
        assert_eq!(Note::from_bytes(note.to_bytes()), note);
        assert!(note.age() < Duration::from_secs(60) && Note::default().age() > note.age());
        for request in [Request::Register { lane: 7 }, Request::Inspect { number, bytes: 1 << 40 }] {
            let packet = request.packet(Some(Arc::clone(&fd)));
            assert_eq!((Request::read(&packet.bytes), packet.descriptors.len()), (Some(request), 1));
            assert_eq!(Request::read(&packet.bytes[1..]), None);
        }
        let awake = Request::Awake.packet(None);
        assert_eq!((Request::read(&awake.bytes), awake.descriptors.len()), (Some(Request::Awake), 0));
        let device = DeviceUuid::from_bytes([9; 16]);
        for verdict in [
            Verdict::GpuMemory { device: Some(device) },
            Verdict::GpuMemory { device: None },
            Verdict::NotGpuMemory { answer: "UNKNOWN (999)".to_owned() },
            Verdict::SizeMismatch { actual: Some(5) },
            Verdict::SizeMismatch { actual: None },
            Verdict::GpuLost { answer: "DEVICE_UNAVAILABLE (46)".to_owned() },
            Verdict::OutOfMemory { answer: "OUT_OF_MEMORY (2)".to_owned() },
            Verdict::Failed { why: String::new() },
        ] {
            let reply = Reply { id: 3, verdict };
            assert_eq!(Reply::read(&reply.packet().bytes), Some(reply));
        }
        assert_eq!((Reply::read(b"short"), Reply::read(&[0; 9])), (None, None));
    }
}
