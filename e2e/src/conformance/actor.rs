//! Puppets that somebody else started, in pods of a cluster: what the driver answers when one hands memory to the other.
//!
//! Each listens at a socket in a folder that it shares with the test, which tells both what to do and carries what one gives
//! to the other: so nothing of gpu-handoff has a part in it.

use std::fmt;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use gpu_handoff_protocol::socket::SeqPacket;

use super::memory::{self, MIB, Mapped};
use super::puppet::{End, Puppet, Step, outcome};
use super::wire::Request;

/// How long a puppet may take until it listens, and how long for all that one test has it do.
const START: Duration = Duration::from_secs(20);
const TEST: Duration = Duration::from_secs(120);

/// Size of what is handed over, in bytes.
const BYTES: u64 = 16 * MIB;

/// A puppet with the driver initialised and device 0's primary context current.
pub struct Actor(Puppet);

impl fmt::Debug for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Actor")
    }
}

/// What is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `cuMemAlloc` memory, by a handle of 64 bytes.
    Legacy,
    /// An event, by a handle of 64 bytes.
    Event,
    /// `cuMemCreate` memory, by a descriptor.
    Vmm,
    /// Memory of a pool, by a descriptor and a pointer's data.
    Pool,
}

/// vmm memory of one process that another has mapped.
#[derive(Debug)]
pub struct Shared {
    made: Mapped,
    there: Mapped,
}

impl Actor {
    /// Meets the puppet that listens at this name in a folder, which may be far down in the file system.
    ///
    /// # Errors
    /// When there is none in time, or its driver has no GPU.
    pub fn meet(folder: &Path, name: &str) -> anyhow::Result<Self> {
        Self::meet_for(folder, name, TEST)
    }

    /// The same, for a test that takes so long.
    ///
    /// # Errors
    /// As above.
    pub fn meet_for(folder: &Path, name: &str, time: Duration) -> anyhow::Result<Self> {
        let folder = std::fs::File::open(folder)?;
        let path = format!("/proc/self/fd/{}/{name}", folder.as_raw_fd());
        let connection = crate::wait::until(START, &format!("a puppet listens at {name}"), || {
            Ok(SeqPacket::connect(Path::new(&path)).ok())
        })?;
        let connection = connection.into_fd();
        rustix::io::ioctl_fionbio(&connection, false)?;
        let puppet = Puppet::at(connection, Instant::now() + time);
        worked("initialise the driver", puppet.tell(Request::Init))?;
        worked("make a context", memory::enter(&puppet, 0))?;
        Ok(Self(puppet))
    }

    /// Its number in its own PID namespace.
    ///
    /// # Errors
    /// When it is gone.
    pub fn pid(&self) -> anyhow::Result<u64> {
        worked("ask for its number", self.0.word(Request::Pid))
    }

    /// Bytes of the GPU's memory that are in use, by whomever.
    ///
    /// # Errors
    /// When it is gone.
    pub fn used_memory(&self) -> anyhow::Result<u64> {
        let (free, total) = worked("ask for free memory", self.0.words(Request::MemInfo))?;
        Ok(total - free)
    }

    /// Makes memory or an event, and gives it to the other: what the driver answers there, `OK` where the bytes are right.
    ///
    /// # Errors
    /// When it cannot be made, or the other cannot look at it.
    pub fn hand_over(&self, kind: Kind, to: &Actor) -> anyhow::Result<String> {
        let (from, to) = (&self.0, &to.0);
        let said = match kind {
            Kind::Legacy => {
                let (ptr, handle) = worked("share memory", memory::legacy(from, BYTES))?;
                let said = seen(to, memory::open(to, &handle));
                worked("free memory", from.tell(Request::Free { ptr }))?;
                said
            }
            Kind::Event => {
                let handle = worked("share an event", from.bytes(Request::EventShare))?;
                Ok(outcome(&to.tell(Request::EventOpen { handle })))
            }
            Kind::Vmm => {
                let (mapped, fd) = worked("share memory", memory::shared_vmm(from, BYTES))?;
                let said = seen(to, memory::import_map(to, &fd, BYTES).map(|there| there.ptr));
                worked("free memory", memory::unmap(from, mapped))?;
                said
            }
            Kind::Pool => {
                let (fd, data) = worked("share memory", memory::pooled(from, BYTES))?;
                seen(to, memory::import_pooled(to, &fd, data))
            }
        };
        worked("look at it", said)
    }

    /// Makes vmm memory and has the other map it.
    ///
    /// # Errors
    /// When either cannot be done.
    pub fn share(&self, bytes: u64, to: &Actor) -> anyhow::Result<Shared> {
        let (made, fd): (Mapped, OwnedFd) = worked("share memory", memory::shared_vmm(&self.0, bytes))?;
        let there = worked("map memory", memory::import_map(&to.0, &fd, bytes))?;
        Ok(Shared { made, there })
    }

    /// The maker lets go of shared memory.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn let_go(&self, shared: &Shared) -> anyhow::Result<()> {
        worked("free memory", memory::unmap(&self.0, shared.made))
    }

    /// The other looks at it: `OK` where the bytes are right.
    ///
    /// # Errors
    /// When it cannot.
    pub fn look(&self, shared: &Shared) -> anyhow::Result<String> {
        worked("look at it", memory::verify(&self.0, shared.there.ptr, shared.there.bytes))
    }
}

/// The bytes that the importer sees, or why there are none. Also a crash of its process is an outcome.
fn seen(importer: &Puppet, ptr: Step<u64>) -> Step<String> {
    match ptr {
        Ok(ptr) => memory::verify(importer, ptr, BYTES),
        Err(end @ End::NotRun(_)) => Err(end),
        refused => Ok(outcome(&refused)),
    }
}

fn worked<T>(what: &str, step: Step<T>) -> anyhow::Result<T> {
    step.map_err(|end| match end {
        End::Answered { request, status } => anyhow::anyhow!("{what}: {request} answered {status}"),
        other => anyhow::anyhow!("{what}: {other}"),
    })
}
