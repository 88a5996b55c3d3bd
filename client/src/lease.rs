//! A lease of a buffer and the memory that comes with it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu_handoff_cuda::{ContextRef, Driver};
use gpu_handoff_protocol::message::{BrokerBody, ClientBody, EndReason};
use gpu_handoff_protocol::{BufferId, BufferInfo, LeaseId, limits as wire};

use crate::cache::Phase;
use crate::client::Shared;
use crate::connection::Connection;
use crate::deadline::after;
use crate::error::{ClientError, Fault};
use crate::import::Mapping;
use crate::limits;
use crate::order::Ordered;

/// How a lease stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseState {
    /// The buffer is there for as long as you need it.
    Held,
    /// Its owner wants it back by this time: release the lease before.
    Retiring(Instant),
    /// The buffer has ended. Its memory stays mapped until the lease is dropped, but nobody reckons with you any more.
    Ended(EndReason),
    /// The connection to the node has ended, and the lease with it; or the node's daemon was replaced, and the new one
    /// did not restore this lease. Its memory stays mapped until the lease is dropped.
    Lost,
}

/// Where the time of an acquire went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Took {
    /// From the question to the node's grant, waiting included.
    pub granted: Duration,
    /// Importing and mapping the memory; next to nothing where it was mapped already.
    pub mapped: Duration,
}

/// The right to use a buffer, with its memory mapped. Released on drop.
///
/// Dropping a lease never waits for the node. If the buffer lives on, its memory stays mapped in this process, so that
/// the next lease of it is cheap; otherwise it is unmapped. Let the GPU finish its work on the memory first:
/// synchronize the streams that use it.
#[derive(Debug)]
pub struct Lease {
    held: Held,
    buffer: Arc<BufferInfo>,
    phase: Arc<Phase>,
    ptr: u64,
    took: Took,
    ordered: Option<Ordered>,
}

impl Lease {
    pub(crate) fn new(
        mut held: Held,
        buffer: Arc<BufferInfo>,
        phase: Arc<Phase>,
        mapping: Arc<Mapping>,
        took: Took,
    ) -> Self {
        // Within the address space: the buffer was checked to lie within what is mapped.
        let ptr = mapping.base().saturating_add(buffer.facts.offset);
        held.mapping = Some(mapping);
        Self { held, buffer, phase, ptr, took, ordered: None }
    }

    pub(crate) fn ordered_by(mut self, ordered: Option<Ordered>) -> Self {
        self.ordered = ordered;
        self
    }

    pub(crate) fn ordered(&self) -> Option<&Ordered> {
        self.ordered.as_ref()
    }

    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    /// The context in which the lease was acquired, where that matters.
    pub(crate) fn context(&self, driver: Driver) -> Result<Option<ContextRef>, Fault> {
        match &self.ordered {
            Some(ordered) => Ok(Some(ordered.timeline.line.context)),
            None => Ok(driver.current_context()?),
        }
    }

    pub(crate) fn into_parts(self) -> (Held, Option<Ordered>) {
        (self.held, self.ordered)
    }

    /// Where the buffer begins, a `CUdeviceptr` that is valid in the context in which it was acquired.
    #[must_use]
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Size of the buffer from [`ptr`](Self::ptr) on, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.buffer.facts.size
    }

    /// The buffer: its id, generation, owner, and what its publisher said of it.
    #[must_use]
    pub fn info(&self) -> &BufferInfo {
        &self.buffer
    }

    /// The lease's identity, as the node's log and metrics name it.
    #[must_use]
    pub fn id(&self) -> LeaseId {
        self.held.lease
    }

    /// Where the time of acquiring it went.
    #[must_use]
    pub fn took(&self) -> Took {
        self.took
    }

    /// How the lease stands. Asks nobody: the node's news are read in the background, within milliseconds.
    #[must_use]
    pub fn state(&self) -> LeaseState {
        let Phase { retiring, ended, .. } = &*self.phase;
        match (ended.get(), retiring.get()) {
            _ if self.phase.has_lost(self.held.lease) => LeaseState::Lost,
            (Some(reason), _) => LeaseState::Ended(*reason),
            (_, Some(deadline)) => LeaseState::Retiring(*deadline),
            (None, None) => LeaseState::Held,
        }
    }

    /// Is it time to release: does the owner want the buffer back, or has it ended?
    #[must_use]
    pub fn is_retiring(&self) -> bool {
        self.state() != LeaseState::Held
    }

    /// Gives the lease back and waits until the node has taken note. Where that does not matter, drop it.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with `NOT_LEASED` when the lease had ended already, and what a lost connection gives.
    /// The memory is given up in any case, and so is the lease: a release that found no room in the connection in time
    /// is sent as soon as there is some.
    pub fn release(mut self) -> Result<(), ClientError> {
        let outcome = self.held.release();
        outcome.map_err(|fault| fault.while_doing("release", &self.buffer.facts.name))
    }
}

/// A granted lease until it is given back, and with it the hold on its mapping.
#[derive(Debug)]
pub(crate) struct Held {
    shared: Arc<Shared>,
    lease: LeaseId,
    buffer: BufferId,
    mapping: Option<Arc<Mapping>>,
    /// What nobody needs any more, unmapped with this.
    unmap: Vec<Arc<Mapping>>,
    given_back: bool,
}

impl Held {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn new(shared: Arc<Shared>, lease: LeaseId, buffer: BufferId) -> Self {
        Self { shared, lease, buffer, mapping: None, unmap: Vec::new(), given_back: false }
    }

    /// Gives up the memory. What is to be unmapped is unmapped before the node hears of the release, so that the owner
    /// may rely on it.
    fn let_go(&mut self) {
        self.given_back = true;
        drop(self.mapping.take());
        drop(self.shared.memory.released(self.buffer));
    }

    /// Gives the lease back at once, without a call of the driver. What is to be unmapped is left for the drop of this:
    /// that may wait for streams, and those for somebody who waits for the end of this very lease.
    pub(crate) fn give_back(&mut self) {
        self.given_back = true;
        self.unmap = self.shared.memory.released(self.buffer);
        self.shared.connection.release_later(self.lease);
    }

    fn release(&mut self) -> Result<(), Fault> {
        self.shared.connection.check_process()?;
        self.let_go();
        release_all(&self.shared.connection, vec![self.lease])
    }
}

/// Gives many leases back in as few packets as possible and waits until the node has taken note of all. Gives the first
/// failure; what found no room in the connection is sent later.
fn release_all(connection: &Connection, leases: Vec<LeaseId>) -> Result<(), Fault> {
    let (mut parts, mut ahead, mut first) = (leases.chunks(wire::MESSAGE_ITEMS), VecDeque::new(), Ok(()));
    loop {
        while ahead.len() < limits::PACKETS_AHEAD
            && let Some(part) = parts.next()
        {
            match connection.start(ClientBody::Release(part.to_vec())) {
                Ok(pending) => ahead.push_back((part.len(), pending)),
                Err(fault) => {
                    part.iter().for_each(|lease| connection.release_later(*lease));
                    first = first.and(Err(fault));
                }
            }
        }
        let Some((count, pending)) = ahead.pop_front() else { return first };
        first = first.and(match pending.answer(after(limits::ANSWER)) {
            Ok(BrokerBody::Released(outcomes)) if outcomes.len() == count => {
                outcomes.into_iter().collect::<Result<(), _>>().map_err(Fault::from)
            }
            Ok(_) => Err(Fault::unexpected("the outcomes of a release")),
            Err(fault) => Err(fault),
        });
    }
}

/// Gives leases back together, as [`Lease::release`] does each.
pub(crate) fn release_together(leases: Vec<Lease>) -> Result<(), Fault> {
    let Some(shared) = leases.first().map(|lease| Arc::clone(&lease.held.shared)) else { return Ok(()) };
    shared.connection.check_process()?;
    let given_back = leases.into_iter().map(|mut lease| {
        lease.held.let_go();
        lease.held.lease
    });
    release_all(&shared.connection, given_back.collect())
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.shared.connection.is_own_process() {
            // CUDA does not work in a forked child, and the lease is its parent's.
            std::mem::forget((self.mapping.take(), std::mem::take(&mut self.unmap)));
        } else if !self.given_back {
            self.let_go();
            self.shared.connection.release_later(self.lease);
        }
    }
}
