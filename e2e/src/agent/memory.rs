//! The application's GPU memory.

use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_client::Buffer;
use gpu_handoff_cuda::{
    Access, Device, Driver, ExportedFd, LegacyAllocation, VmmAllocation, VmmMapping, ops,
};
use serde::{Deserialize, Serialize};

use super::us_since;

/// Bytes that are copied to the host at a time to be looked at.
const CHUNK_BYTES: u64 = 16 << 20;

/// How memory is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryKind {
    /// `cuMemCreate`, exportable.
    Vmm,
    /// `cuMemCreate`, not exportable.
    VmmPrivate,
    /// `cuMemAlloc`, what `cudaMalloc` gives.
    Legacy,
}

/// A piece of it.
pub(super) enum Memory {
    Vmm { mapping: VmmMapping, exported: Option<Arc<ExportedFd>> },
    Legacy(LegacyAllocation),
}

pub(super) fn first_device() -> anyhow::Result<Device> {
    let devices = Driver::load()?.devices()?;
    devices.first().copied().ok_or_else(|| anyhow::anyhow!("the driver shows no device"))
}

impl Memory {
    pub(super) fn create(kind: MemoryKind, bytes: u64) -> anyhow::Result<Self> {
        let (driver, device) = (Driver::load()?, first_device()?);
        Ok(match kind {
            MemoryKind::Legacy => Self::Legacy(LegacyAllocation::create(driver, bytes)?),
            MemoryKind::Vmm | MemoryKind::VmmPrivate => {
                let make = if kind == MemoryKind::Vmm {
                    VmmAllocation::create
                } else {
                    VmmAllocation::create_private
                };
                let mapping = make(driver, device, bytes)?.map(Access::ReadWrite, device)?;
                Self::Vmm { mapping, exported: None }
            }
        })
    }

    pub(super) fn is_vmm(&self) -> bool {
        matches!(self, Self::Vmm { .. })
    }

    pub(super) fn ptr(&self) -> u64 {
        match self {
            Self::Vmm { mapping, .. } => mapping.ptr(),
            Self::Legacy(memory) => memory.ptr(),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Vmm { mapping, .. } => mapping.bytes(),
            Self::Legacy(memory) => memory.bytes(),
        }
    }

    pub(super) fn fill(&self, word: u32) -> anyhow::Result<()> {
        self.fill_range(0, self.bytes(), word)
    }

    pub(super) fn fill_range(&self, offset: u64, bytes: u64, word: u32) -> anyhow::Result<()> {
        let driver = Driver::load()?;
        ops::memset_d32(driver, self.ptr() + offset, word, bytes / 4)?;
        ops::synchronize(driver)?;
        Ok(())
    }

    /// Exports once, and says how long it took, in microseconds.
    pub(super) fn export(&mut self) -> anyhow::Result<f64> {
        match self {
            Self::Vmm { mapping, exported } => {
                let begin = Instant::now();
                let descriptor = VmmAllocation::of_pointer(Driver::load()?, mapping.ptr())?.export()?;
                let us = us_since(begin);
                *exported = Some(Arc::new(descriptor));
                Ok(us)
            }
            Self::Legacy(_) => anyhow::bail!("legacy memory has no descriptor"),
        }
    }

    /// A descriptor of it that is said to be of so many bytes.
    pub(super) fn exported_as(&self, bytes: u64) -> anyhow::Result<ExportedFd> {
        let exported = VmmAllocation::of_pointer(Driver::load()?, self.ptr())?.export()?;
        Ok(ExportedFd { bytes, ..exported })
    }

    pub(super) fn as_buffer(&self, name: &str) -> anyhow::Result<Buffer<'_>> {
        let buffer = Buffer::named(name)?;
        Ok(match self {
            Self::Vmm { exported: Some(descriptor), .. } => buffer.exported(Arc::clone(descriptor)),
            _ => buffer.pointer(self.ptr(), self.bytes()),
        })
    }
}

/// Looks at every word of a buffer: how many there are, and how many are not `word`.
pub(super) fn count_wrong(ptr: u64, bytes: u64, word: u32) -> anyhow::Result<(u64, u64)> {
    let driver = Driver::load()?;
    let mut chunk = vec![0; usize::try_from(CHUNK_BYTES.min(bytes))?];
    let (mut at, mut wrong) = (0, 0);
    while at < bytes {
        let length = usize::try_from(CHUNK_BYTES.min(bytes - at))?;
        ops::read(driver, ptr + at, &mut chunk[..length])?;
        let differs = |w: &&[u8]| **w != word.to_ne_bytes();
        wrong += chunk[..length].chunks_exact(4).filter(differs).count() as u64;
        at += length as u64;
    }
    Ok((bytes / 4, wrong))
}
