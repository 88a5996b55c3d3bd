//! The first 2 MiB of a memory file: who made it, what it is, and which parts were exported as legacy handles.
//!
//! A file under `alloc/` is one physical allocation. Its header is written before anyone can see it and read back by
//! everyone who opens it; peers are other programs, so nothing in it is trusted beyond what the checks here say. Only the
//! export table changes later: slot N tells whether the allocation at offset N x 512 may be opened by handle.

use std::os::fd::BorrowedFd;

use rustix::io::{pread, pwrite};

use crate::config::GPUS_MAX;

/// Device memory begins here in the file, so that its blocks are aligned as the driver's are.
pub(crate) const DATA_OFFSET: u64 = 2 << 20;
/// Granularity of physical memory.
pub(crate) const BLOCK_BYTES: u64 = 2 << 20;
/// Alignment of an allocation inside a shared block.
pub(crate) const SUBALLOCATION_ALIGN: u64 = 512;
/// Bytes of the header page, the only part that is mapped just to keep the memory alive.
pub(crate) const HEADER_BYTES: usize = 4096;

const MAGIC: &[u8; 16] = b"simcuda memory 1";
const SLOT_BYTES: u64 = 32;
const COMM_BYTES: usize = 16;

/// What a physical allocation is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAlloc`: opened by 64-byte handles.
    Legacy,
    /// `cuMemCreate`: opened by descriptor.
    Vmm,
    /// A memory pool itself: no memory, only an identity that a descriptor can carry.
    Pool,
    /// Memory of a pool: opened by the pool's descriptor and pointer data.
    PoolMemory,
}

impl Kind {
    fn from_raw(raw: u32) -> Option<Self> {
        [Self::Legacy, Self::Vmm, Self::Pool, Self::PoolMemory].into_iter().find(|kind| kind.raw() == raw)
    }

    const fn raw(self) -> u32 {
        match self {
            Self::Legacy => 1,
            Self::Vmm => 2,
            Self::Pool => 3,
            Self::PoolMemory => 4,
        }
    }

    /// The word used in the dump.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Vmm => "vmm",
            Self::Pool => "pool",
            Self::PoolMemory => "pool-memory",
        }
    }
}

/// Who made an allocation, as it saw itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Creator {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) pid_namespace: u64,
    pub(crate) comm: [u8; COMM_BYTES],
}

/// The unchanging part of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) device: usize,
    pub(crate) bytes: u64,
    pub(crate) handle_types: u32,
    /// Number of the process that made it and of this object in that process: together the file's name.
    pub(crate) client: u32,
    pub(crate) object: u32,
    /// For pool memory: the pool's own client and object.
    pub(crate) pool: (u32, u32),
    pub(crate) creator: Creator,
}

impl Header {
    pub(crate) fn name(&self) -> String {
        file_name(self.client, self.object)
    }

    pub(crate) fn write(&self, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let mut page = Vec::with_capacity(128);
        page.extend_from_slice(MAGIC);
        let device = u32::try_from(self.device).unwrap_or(u32::MAX);
        for word in
            [self.kind.raw(), device, self.handle_types, self.client, self.object, self.pool.0, self.pool.1]
        {
            page.extend_from_slice(&word.to_le_bytes());
        }
        page.extend_from_slice(&self.creator.pid.to_le_bytes());
        page.extend_from_slice(&self.creator.uid.to_le_bytes());
        page.extend_from_slice(&0_u32.to_le_bytes());
        page.extend_from_slice(&self.bytes.to_le_bytes());
        page.extend_from_slice(&self.creator.pid_namespace.to_le_bytes());
        page.extend_from_slice(&self.creator.comm);
        pwrite(fd, &page, 0).map(drop)
    }

    /// `None` for anything that is not a whole memory file.
    pub(crate) fn read(fd: BorrowedFd<'_>) -> Option<Self> {
        let mut page = [0_u8; 128];
        if pread(fd, &mut page, 0).ok()? < page.len() || !page.starts_with(MAGIC) {
            return None;
        }
        let word = |index: usize| u32_at(&page, 16 + 4 * index);
        let header = Self {
            kind: Kind::from_raw(word(0)?)?,
            device: usize::try_from(word(1)?).ok().filter(|&device| device < GPUS_MAX)?,
            handle_types: word(2)?,
            client: word(3)?,
            object: word(4)?,
            pool: (word(5)?, word(6)?),
            bytes: u64_at(&page, 56)?,
            creator: Creator {
                pid: word(7)?,
                uid: word(8)?,
                pid_namespace: u64_at(&page, 64)?,
                comm: page.get(72..72 + COMM_BYTES)?.try_into().ok()?,
            },
        };
        header.bytes.is_multiple_of(BLOCK_BYTES).then_some(header)
    }
}

/// The file's name under `alloc/`.
pub(crate) fn file_name(client: u32, object: u32) -> String {
    format!("{client:08x}-{object:08x}")
}

/// One entry of the export table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExportSlot {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) generation: u32,
    pub(crate) open: bool,
}

impl ExportSlot {
    pub(crate) fn write(&self, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let mut raw = Vec::with_capacity(32);
        raw.extend_from_slice(&self.offset.to_le_bytes());
        raw.extend_from_slice(&self.bytes.to_le_bytes());
        raw.extend_from_slice(&self.generation.to_le_bytes());
        raw.extend_from_slice(&u32::from(self.open).to_le_bytes());
        pwrite(fd, &raw, Self::position(self.offset)).map(drop)
    }

    /// The slot for an offset, or `None` if the offset can have none. A slot never written reads as not open.
    pub(crate) fn read(fd: BorrowedFd<'_>, offset: u64) -> Option<Self> {
        if offset >= BLOCK_BYTES || !offset.is_multiple_of(SUBALLOCATION_ALIGN) {
            return None;
        }
        let mut raw = [0_u8; 32];
        if pread(fd, &mut raw, Self::position(offset)).ok()? < 24 {
            return None;
        }
        let open = u32_at(&raw, 20)? == 1;
        Some(Self { offset: u64_at(&raw, 0)?, bytes: u64_at(&raw, 8)?, generation: u32_at(&raw, 16)?, open })
    }

    const fn position(offset: u64) -> u64 {
        HEADER_BYTES as u64 + offset / SUBALLOCATION_ALIGN * SLOT_BYTES
    }
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}
