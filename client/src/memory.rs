//! The buffers that this process leases or has mapped, shared between leases and the connection.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use gpu_handoff_protocol::message::{Event, Grant};
use gpu_handoff_protocol::{BufferId, BufferInfo, LeaseId};

use crate::again::Again;
use crate::cache::{Cache, Phase};
use crate::connection::Sink;
use crate::error::Fault;
use crate::import::{Importer, Mapping, Place};
use crate::timeline::{Orders, Trash};

/// The table of buffers behind its lock, with what maps them.
pub(crate) struct Memory {
    importer: Box<dyn Importer>,
    table: Mutex<Cache<Place, Mapping>>,
    orders: Arc<Orders>,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

impl Memory {
    pub(crate) fn new(importer: Box<dyn Importer>) -> Self {
        Self { importer, table: Mutex::new(Cache::new()), orders: Arc::default() }
    }

    /// What is known of timelines, and of the seats of buffers that are ordered by them.
    pub(crate) fn orders(&self) -> &Arc<Orders> {
        &self.orders
    }

    /// The caller's current context.
    pub(crate) fn place(&self) -> Result<Place, Fault> {
        self.importer.place()
    }

    /// The mapping of a granted buffer: the cached one, or a new one.
    pub(crate) fn map(&self, grant: &Grant, place: Place) -> Result<(Arc<Phase>, Arc<Mapping>), Fault> {
        let id = grant.buffer.id;
        let (phase, cached) = self.lock()?.find(id, &place);
        if let Some(mapping) = cached {
            return Ok((phase, mapping));
        }
        let new = self.importer.map(grant, place)?;
        let (mapping, unmap) = self.lock()?.keep(id, place, new, grant.buffer.facts.allocation_size);
        drop(unmap);
        Ok((phase, mapping))
    }

    /// A lease has ended. Gives what nobody needs any more, to be unmapped by its drop.
    pub(crate) fn released(&self, id: BufferId) -> Vec<Arc<Mapping>> {
        self.lock().map(|mut table| table.released(id)).unwrap_or_default()
    }

    fn lock(&self) -> Result<MutexGuard<'_, Cache<Place, Mapping>>, Fault> {
        Ok(self.table.lock()?)
    }
}

impl Sink for Memory {
    fn granted(&self, buffer: &BufferInfo) {
        if let Ok(mut table) = self.lock() {
            table.granted(buffer.id);
        }
    }

    fn ungranted(&self, id: BufferId) {
        if let Ok(mut table) = self.lock() {
            table.ungranted(id);
        }
    }

    fn notice(&self, event: &Event) -> bool {
        self.orders.notice(event);
        self.lock().is_ok_and(|mut table| table.notice(event, Instant::now()))
    }

    fn lease_lost(&self, buffer: BufferId, lease: LeaseId) {
        self.orders.lease_lost(buffer, lease);
        if let Ok(mut table) = self.lock() {
            table.lease_lost(buffer, lease);
        }
    }

    fn buffer_lost(&self, id: BufferId) {
        self.orders.buffer_lost(id);
    }

    fn rejoined(&self) {
        if let Ok(mut table) = self.lock() {
            table.rejoined();
        }
    }

    fn lost(&self) {
        self.orders.lost();
        if let Ok(mut table) = self.lock() {
            table.lost();
        }
    }

    fn sweep(&self, over: Vec<Arc<Again>>) {
        let unmap = self.lock().map(|mut table| table.sweep()).unwrap_or_default();
        // Not on this thread, as it may wait for streams which wait for news that this thread reads.
        if !over.is_empty() {
            self.orders.bin().discard(Trash::Published(over));
        }
        if !unmap.is_empty() {
            self.orders.bin().discard(Trash::Mappings(unmap));
        }
    }
}
