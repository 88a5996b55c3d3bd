//! A physical allocation as this process holds it, and the bytes of it that it can touch.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::abi::HANDLE_TYPE_NONE;
use crate::error::{CuResult, Result};
use crate::header::{BLOCK_BYTES, DATA_OFFSET, ExportSlot, HEADER_BYTES, Header};
use crate::mapping::Mapping;
use crate::store::{Store, io};

/// One hold on a memory file. It is a mapping of the header page, not a descriptor: like the driver, the simulator does
/// not use up descriptors for memory.
#[derive(Debug)]
pub(crate) struct Physical {
    store: Arc<Store>,
    header: Header,
    /// Came here by a descriptor or a handle.
    imported: bool,
    view: Mutex<Weak<View>>,
    pin: Option<Mapping>,
}

impl Physical {
    /// Makes new memory.
    pub(crate) fn create(store: &Arc<Store>, header: Header) -> Result<Arc<Self>> {
        let fd = store.create(&header)?;
        Self::pin(store, fd, header, false)
    }

    /// Takes over a descriptor of another process's memory, which holds the shared lock.
    pub(crate) fn adopt(store: &Arc<Store>, fd: OwnedFd, header: Header) -> Result<Arc<Self>> {
        Self::pin(store, fd, header, true)
    }

    fn pin(store: &Arc<Store>, fd: OwnedFd, header: Header, imported: bool) -> Result<Arc<Self>> {
        let pin = Some(Mapping::new(fd.as_fd(), 0, HEADER_BYTES, false).map_err(io)?);
        Ok(Arc::new(Self { store: Arc::clone(store), header, imported, view: Mutex::new(Weak::new()), pin }))
    }

    /// How this process may share the memory: not at all if it was imported, whatever its maker asked for.
    pub(crate) const fn handle_types(&self) -> u32 {
        if self.imported { HANDLE_TYPE_NONE } else { self.header.handle_types }
    }

    pub(crate) const fn header(&self) -> &Header {
        &self.header
    }

    /// A new descriptor of this memory, with a description of its own: what an export hands out.
    pub(crate) fn reopen(&self) -> Result<OwnedFd> {
        // It cannot have been collected: `pin` holds the shared lock.
        self.store.open(&self.header.name()).map(|(fd, _)| fd).ok_or(CuResult::ERROR_OPERATING_SYSTEM)
    }

    /// Says in the file whether a part may be opened by handle.
    pub(crate) fn set_export(&self, slot: &ExportSlot) -> Result<()> {
        slot.write(self.reopen()?.as_fd()).map_err(io)
    }

    /// The bytes, mapped once a process however often they are used.
    pub(crate) fn view(self: &Arc<Self>) -> Result<Arc<View>> {
        let mut known = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(view) = known.upgrade() {
            return Ok(view);
        }
        let bytes = usize::try_from(self.header.bytes).map_err(|_| CuResult::ERROR_OUT_OF_MEMORY)?;
        let mapping = Mapping::new(self.reopen()?.as_fd(), DATA_OFFSET, bytes, true).map_err(io)?;
        let backed = (0..self.header.bytes.div_ceil(BLOCK_BYTES)).map(|_| AtomicBool::new(false)).collect();
        let view = Arc::new(View { mapping, backed, physical: Arc::clone(self) });
        *known = Arc::downgrade(&view);
        Ok(view)
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        self.pin = None;
        // A file that could not be collected now is collected by whoever allocates or looks next.
        let _collected_later = self.store.collect_one(&self.header);
    }
}

/// The mapped bytes of a physical allocation; keeps it alive.
#[derive(Debug)]
pub(crate) struct View {
    // Dropped before `physical`, whose end may free the file.
    mapping: Mapping,
    /// Per block: known to be backed by host memory.
    backed: Box<[AtomicBool]>,
    physical: Arc<Physical>,
}

impl View {
    pub(crate) const fn physical(&self) -> &Arc<Physical> {
        &self.physical
    }
}

/// A piece of device memory that an operation may touch; keeps the mapping alive, also after a free or unmap.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    view: Arc<View>,
    offset: usize,
    bytes: usize,
}

impl Span {
    /// The part of a view; `None` if it does not lie inside.
    pub(crate) fn new(view: &Arc<View>, offset: u64, bytes: u64) -> Option<Self> {
        let (offset, bytes) = (usize::try_from(offset).ok()?, usize::try_from(bytes).ok()?);
        (offset.checked_add(bytes)? <= view.mapping.bytes()).then(|| Self {
            view: Arc::clone(view),
            offset,
            bytes,
        })
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The host address of the piece, `bytes` long, valid while `self` lives.
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.view.mapping.at(self.offset)
    }

    /// Makes sure that touching the piece cannot fail for want of host memory.
    pub(crate) fn back(&self) -> Result<()> {
        let block = usize::try_from(BLOCK_BYTES).unwrap_or(usize::MAX);
        let end = self.offset + self.bytes;
        let mut blocks = self.offset / block..end.div_ceil(block);
        if blocks.all(|index| self.view.backed.get(index).is_some_and(|known| known.load(Ordering::Relaxed)))
        {
            return Ok(());
        }
        self.view.mapping.populate(self.offset, self.bytes).map_err(|_| CuResult::ERROR_OUT_OF_MEMORY)?;
        for index in self.offset.div_ceil(block)..end / block {
            if let Some(known) = self.view.backed.get(index) {
                known.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}
