//! Acquiring leases.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu_handoff_protocol::message::{BrokerBody, ClientBody, Grant, Target, Wanted};
use gpu_handoff_protocol::{BufferId, BufferName, Code, Refusal, limits as wire};

use crate::client::Client;
use crate::connection::Pending;
use crate::deadline::after;
use crate::error::{ClientError, Fault};
use crate::import::Place;
use crate::lease::{Held, Lease, Took};
use crate::limits;

/// What to acquire: the newest buffer of a name, or one buffer by its id.
///
/// ```no_run
/// # use gpu_handoff_client::{Acquire, Client, ClientError};
/// # fn next(client: &Client, seen: u64) -> Result<(), ClientError> {
/// use std::time::Duration;
///
/// let next = Acquire::named("weights")?.newer_than(seen).wait(Duration::from_secs(60));
/// let lease = client.acquire(next)?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acquire {
    wanted: Wanted,
    wait: Duration,
}

impl Acquire {
    /// The newest buffer of this name in the group.
    ///
    /// # Errors
    /// [`ClientError::Name`] when no buffer can have that name.
    pub fn named(name: &str) -> Result<Self, ClientError> {
        Ok(Self::of(Target::Name(BufferName::new(name)?)))
    }

    /// Just this buffer.
    #[must_use]
    pub fn id(id: BufferId) -> Self {
        Self::of(Target::Id(id))
    }

    fn of(target: Target) -> Self {
        Self { wanted: Wanted { target, newer_than: 0 }, wait: Duration::ZERO }
    }

    /// Only a generation above this one will do.
    #[must_use]
    pub fn newer_than(mut self, generation: u64) -> Self {
        self.wanted.newer_than = generation;
        self
    }

    /// Waits so long for what is not there yet: at most ten minutes; if not set, not at all.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}

/// The name, or the id.
impl fmt::Display for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.wanted.target {
            Target::Id(id) => id.fmt(f),
            Target::Name(name) => name.fmt(f),
        }
    }
}

impl Client {
    /// Acquires a lease of a buffer and maps its memory for the device of the caller's current CUDA context.
    ///
    /// No context is made: one must be current on this thread. A buffer that was leased before in this context is still
    /// mapped, so that acquiring it again costs one round trip to the node and no mapping.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with `NOT_FOUND`, `WAIT_TIMEOUT`, `RETIRED`, where that device does not reach the memory
    /// `NO_PEER_ACCESS`, `GPU_NOT_REACHABLE` or `MIG_ISOLATED`, and what else the node answers;
    /// [`ClientError::NoContext`] when no context is current, [`ClientError::Cuda`] when the driver cannot map the
    /// memory. After an error no lease is left behind.
    pub fn acquire(&self, wanted: Acquire) -> Result<Lease, ClientError> {
        let acquire = || {
            self.shared.connection.check_process()?;
            let place = self.shared.memory.place()?;
            self.lease_of(wanted.clone(), place)
        };
        acquire().map_err(|fault: Fault| fault.while_doing("acquire", &wanted))
    }

    /// Acquires a lease for this place.
    pub(crate) fn lease_of(&self, wanted: Acquire, place: Place) -> Result<Lease, Fault> {
        let asked = Instant::now();
        let deadline = answer_deadline(wanted.wait)?;
        let mut outcomes =
            self.grants(self.ask(std::slice::from_ref(&wanted), wanted.wait, place)?, 1, deadline)?;
        let grant = outcomes.pop().ok_or(Fault::unexpected("one outcome"))?;
        self.take(grant, place, asked)
    }

    /// Acquires many buffers in as few packets as possible: outcomes in order, each on its own. Waits the longest of
    /// their waits. [`limits::PACKETS_AHEAD`](limits::PACKETS_AHEAD) packets are asked for before the first is answered,
    /// each further one when another is: so what comes is never more than the node lets be under way.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), when the request as a whole fails. After that no lease is left behind.
    pub fn acquire_many(&self, wanted: &[Acquire]) -> Result<Vec<Result<Lease, ClientError>>, ClientError> {
        let acquire = || {
            let asked = Instant::now();
            let place = self.shared.memory.place()?;
            let wait = wanted.iter().map(|item| item.wait).max().unwrap_or_default();
            answer_deadline(wait)?;
            let mut parts = wanted.chunks(wire::MESSAGE_ITEMS);
            let (mut ahead, mut leases) = (VecDeque::new(), Vec::with_capacity(wanted.len()));
            loop {
                while ahead.len() < limits::PACKETS_AHEAD
                    && let Some(part) = parts.next()
                {
                    let left = wait.saturating_sub(asked.elapsed());
                    ahead.push_back((part, self.ask(part, left, place)?, answer_deadline(left)?));
                }
                let Some((part, pending, deadline)) = ahead.pop_front() else { break };
                let outcomes = self.grants(pending, part.len(), deadline)?;
                leases.extend(outcomes.into_iter().map(|grant| self.take(grant, place, asked)));
            }
            Ok(leases)
        };
        let leases = acquire()
            .map_err(|fault: Fault| fault.while_doing("acquire", format!("{} buffers", wanted.len())))?;
        let named = leases.into_iter().zip(wanted);
        Ok(named.map(|(lease, item)| lease.map_err(|fault| fault.while_doing("acquire", item))).collect())
    }

    /// The outcomes of one packet. A node that answers for another number of items is not believed any more.
    fn grants(
        &self,
        pending: Pending<'_>,
        count: usize,
        deadline: Instant,
    ) -> Result<Vec<Result<Grant, Refusal>>, Fault> {
        match pending.answer(deadline)? {
            BrokerBody::Acquired(outcomes) if outcomes.len() == count => Ok(outcomes),
            _ => {
                self.shared.connection.end();
                Err(Fault::unexpected("an outcome for each item"))
            }
        }
    }

    fn ask(&self, wanted: &[Acquire], wait: Duration, place: Place) -> Result<Pending<'_>, Fault> {
        let items = wanted.iter().map(|item| item.wanted.clone()).collect();
        // So that the node says what is not within its reach, and not the driver in the middle of the mapping.
        let device = Some(place.device());
        self.shared.connection.start(ClientBody::Acquire { items, wait, device })
    }

    /// Makes a grant a lease, or gives it back.
    pub(crate) fn take(
        &self,
        grant: Result<Grant, Refusal>,
        place: Place,
        asked: Instant,
    ) -> Result<Lease, Fault> {
        let grant = grant?;
        let held = Held::new(Arc::clone(&self.shared), grant.lease, grant.buffer.id);
        let mapping_began = Instant::now();
        let (phase, mapping) = self.shared.memory.map(&grant, place)?;
        let took = Took { granted: mapping_began - asked, mapped: mapping_began.elapsed() };
        let ordered = self.ordered(&grant, place)?;
        Ok(Lease::new(held, grant.buffer, phase, mapping, took).ordered_by(ordered))
    }
}

/// Until when the answer must have come, for a wait within its limit.
pub(crate) fn answer_deadline(wait: Duration) -> Result<Instant, Fault> {
    let most = Duration::from_millis(wire::ACQUIRE_WAIT_MS);
    if wait <= most {
        return Ok(after(wait + limits::ANSWER));
    }
    let (wanted, found) = (format!("at most {most:?}"), format!("{wait:?}"));
    Err(Refusal::new(Code::TooLarge).compared_with("wait", wanted, found).into())
}
