//! Who holds which memory: the simulated machine's books, for tests and for people.

mod holders;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use holders::File;

use crate::header::Creator;
use crate::process::is_alive;
use crate::rendezvous::Rendezvous;
use crate::store::Store;

/// Time between two looks of a wait.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// All memory that somebody pins, at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dump {
    /// Each live allocation, oldest process first.
    pub allocations: Vec<Allocation>,
}

/// One physical allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Allocation {
    /// Its name: the maker's client number and the object's number.
    pub id: String,
    /// Index of the GPU in the machine.
    pub device: usize,
    /// `legacy` (`cuMemAlloc`), `vmm` (`cuMemCreate`), `pool` (a pool itself, without memory) or `pool-memory`.
    pub kind: &'static str,
    /// Physical size; legacy blocks are multiples of 2 MiB that small allocations share.
    pub bytes: u64,
    /// Who made it.
    pub creator: Maker,
    /// Always true: what nobody pins is freed before the dump is taken.
    pub pinned: bool,
    /// Processes seen to hold it, as far as this process may look.
    pub holders: Vec<Holder>,
    /// Pinned, but by no process that mapped or imported it: only by descriptors, perhaps in flight.
    pub process_less: bool,
}

/// The process that made an allocation, as it saw itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Maker {
    /// Its PID in its own namespace.
    pub pid: u32,
    /// Inode of that PID namespace, 0 if it could not see it.
    pub pid_namespace: u64,
    /// Its UID in its own user namespace.
    pub uid: u32,
    /// Its command name.
    pub comm: String,
    /// Whether it lives.
    pub alive: bool,
}

/// A process that holds an allocation, as `/proc` of this process shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// PID in the namespace of this process.
    pub pid: u32,
    /// Command name.
    pub comm: String,
    /// Bytes of it that the process mapped.
    pub mapped_bytes: u64,
    /// Whether the CUDA library of the process has it: made, imported or mapped.
    pub imported: bool,
    /// Descriptors of it that the process has open.
    pub descriptors: u32,
}

impl Dump {
    /// Frees what nobody pins, then lists the rest of a rendezvous directory.
    ///
    /// # Errors
    ///
    /// If the directory is none or cannot be read.
    pub fn read(dir: &Path) -> io::Result<Self> {
        Self::read_with(dir, holders::find)
    }

    /// The same without looking at every process of the machine for holders, which takes most of the time: nobody is
    /// listed as holding anything, and `process_less` says nothing.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_without_holders(dir: &Path) -> io::Result<Self> {
        Self::read_with(dir, |_| HashMap::new())
    }

    fn read_with(dir: &Path, find: impl Fn(&[File]) -> HashMap<File, Vec<Holder>>) -> io::Result<Self> {
        let Some(dir) = Rendezvous::open(dir)? else { return Ok(Self { allocations: Vec::new() }) };
        let store = Store::new(dir, Vec::new());
        let live = store.collect()?;
        let files: Vec<_> = live.iter().map(|(_, stat)| (stat.st_dev, stat.st_ino)).collect();
        let mut holders = find(&files);
        let mut allocations: Vec<_> = live
            .iter()
            .map(|(header, stat)| {
                let holders = holders.remove(&(stat.st_dev, stat.st_ino)).unwrap_or_default();
                Allocation {
                    id: header.name(),
                    device: header.device,
                    kind: header.kind.word(),
                    bytes: header.bytes,
                    creator: Maker::new(&header.creator, is_alive(&store, header.client)),
                    pinned: true,
                    process_less: !holders.iter().any(|holder| holder.imported || holder.mapped_bytes > 0),
                    holders,
                }
            })
            .collect();
        allocations.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(Self { allocations })
    }

    /// Bytes in use on a GPU.
    pub fn device_used(&self, device: usize) -> u64 {
        self.allocations
            .iter()
            .filter(|allocation| allocation.device == device)
            .map(|allocation| allocation.bytes)
            .sum()
    }

    /// Bytes in use on all GPUs.
    pub fn used(&self) -> u64 {
        self.allocations.iter().map(|allocation| allocation.bytes).sum()
    }

    /// Bytes in use by GPU.
    pub fn used_by_device(&self) -> BTreeMap<usize, u64> {
        let mut used = BTreeMap::new();
        for allocation in &self.allocations {
            *used.entry(allocation.device).or_default() += allocation.bytes;
        }
        used
    }
}

impl Maker {
    fn new(creator: &Creator, alive: bool) -> Self {
        let comm: Vec<u8> = creator.comm.iter().copied().take_while(|&byte| byte != 0).collect();
        Self {
            pid: creator.pid,
            pid_namespace: creator.pid_namespace,
            uid: creator.uid,
            comm: String::from_utf8_lossy(&comm).into_owned(),
            alive,
        }
    }
}

/// Waits until a dump satisfies a condition, at most until the deadline, and returns that dump.
///
/// # Errors
///
/// `TimedOut`, naming what was still held, or why the directory cannot be read.
pub fn wait_until(dir: &Path, deadline: Instant, done: impl Fn(&Dump) -> bool) -> io::Result<Dump> {
    loop {
        let dump = Dump::read(dir)?;
        if done(&dump) {
            return Ok(dump);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("still held at the deadline: {dump:?}"),
            ));
        }
        // A released lock is no event that one could wait for, so the wait is a bounded poll.
        std::thread::sleep(LOOK_AGAIN.min(left));
    }
}

/// Waits until nothing is held.
///
/// # Errors
///
/// As [`wait_until`].
pub fn wait_until_free(dir: &Path, deadline: Instant) -> io::Result<()> {
    wait_until(dir, deadline, |dump| dump.allocations.is_empty()).map(drop)
}
