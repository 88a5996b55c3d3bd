//! The pod's memory with what closes its descriptors, and a word in the log about what finds no room.

use std::io;

use gpu_handoff_protocol::BufferId;
use gpu_handoff_protocol::message::Keepsake;
use tracing::{debug, warn};

use crate::closer::Closer;
use crate::memory::{Descriptor, Memory, Outcome};

/// Keeps what the daemon sends.
#[derive(Debug)]
pub struct Keeper {
    memory: Memory,
    closer: Closer,
    /// That there is no room was said, and nothing was forgotten since.
    said_full: bool,
}

impl Keeper {
    /// Room for so many items.
    ///
    /// # Errors
    /// When the system has no room for a thread.
    pub fn new(room: usize) -> io::Result<Self> {
        Ok(Self { memory: Memory::new(room), closer: Closer::start()?, said_full: false })
    }

    /// What is kept.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Keeps these, as far as there is room.
    pub fn keep(&mut self, items: Vec<Keepsake>) {
        let mut dropped = 0_usize;
        for item in items {
            match self.memory.keep(item, self.closer.waiting()) {
                Outcome::Kept => {}
                Outcome::Replaced(descriptor) => descriptor.into_iter().for_each(|it| self.closer.close(it)),
                Outcome::NoRoom => dropped += 1,
            }
        }
        let kept = self.memory.len();
        if dropped > 0 && !self.said_full {
            self.said_full = true;
            warn!(
                kept,
                dropped,
                "no room to keep more buffers: should the daemon restart, their publishers have to export them again"
            );
        }
        debug!(kept, dropped, "the daemon wants buffers kept");
    }

    /// Forgets this one.
    pub fn forget(&mut self, id: BufferId) {
        if let Some(descriptor) = self.memory.forget(id) {
            self.closer.close(descriptor);
        }
        self.said_full = false;
    }

    /// Lets go of descriptors that may be the last ones.
    pub fn close(&self, descriptors: Vec<Descriptor>) {
        descriptors.into_iter().for_each(|it| self.closer.close(it));
    }
}
