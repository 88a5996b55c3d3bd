//! Stand-ins for the two things that unit tests lack, a node and a GPU; and what the client does against them.

mod conversation;
mod fake;
mod leases;
mod rejoin;
mod room;
mod sets;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use gpu_handoff_protocol::message::Grant;
use gpu_handoff_protocol::{
    Access, BootTag, BufferFacts, BufferId, BufferInfo, Code, DeviceUuid, Kind, Lifetime, Metadata, PodRef,
    Refusal,
};

use crate::error::Fault;
use crate::import::{Importer, Mapping, Place};

pub(crate) fn facts(name: &str) -> BufferFacts {
    BufferFacts {
        name: name.parse().unwrap(),
        kind: Kind::Vmm,
        device: DeviceUuid::from_bytes([1; 16]),
        offset: 256,
        size: 4096,
        allocation_size: 2 << 20,
        access: Access::ReadOnly,
        lifetime: Lifetime::Process,
        metadata: Metadata::default(),
        order: None,
    }
}

pub(crate) fn id(random: u128) -> BufferId {
    BufferId { boot: BootTag(7), random }
}

pub(crate) fn info(random: u128, name: &str) -> BufferInfo {
    let owner = PodRef { namespace: "ml".parse().unwrap(), name: "trainer-0".parse().unwrap() };
    BufferInfo { id: id(random), generation: 1, owner, verified: true, facts: facts(name), set: None }
}

/// A mapping that counts itself.
#[derive(Debug)]
pub(crate) struct Pretended {
    pub(crate) base: u64,
    live: Arc<AtomicUsize>,
    blocked: Arc<Mutex<()>>,
}

impl Drop for Pretended {
    fn drop(&mut self) {
        let _open = self.blocked.lock();
        self.live.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Where [`Pretender`] maps.
pub(crate) const DEVICE: DeviceUuid = DeviceUuid::from_bytes([9; 16]);

/// Maps without a driver, and counts. Buffers named `bad` cannot be mapped.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pretender {
    pub(crate) live: Arc<AtomicUsize>,
    pub(crate) made: Arc<AtomicUsize>,
    /// While it is locked nothing is unmapped.
    pub(crate) blocked: Arc<Mutex<()>>,
}

impl Importer for Pretender {
    fn place(&self) -> Result<Place, Fault> {
        Ok(Place::Nowhere)
    }

    fn map(&self, grant: &Grant, _: Place) -> Result<Mapping, Fault> {
        if grant.buffer.facts.name.as_str() == "bad" {
            return Err(Refusal::new(Code::SizeMismatch).into());
        }
        self.live.fetch_add(1, Ordering::SeqCst);
        let made = self.made.fetch_add(1, Ordering::SeqCst) as u64;
        let (live, blocked) = (Arc::clone(&self.live), Arc::clone(&self.blocked));
        Ok(Mapping::Pretended(Pretended { base: 0x7000_0000 + (made << 24), live, blocked }))
    }
}
