//! Sets: many buffers as one version of a name, all or nothing.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use gpu_handoff_protocol::message::{BrokerBody, ClientBody, Publication};
use gpu_handoff_protocol::{BufferName, Code, Refusal, SetInfo, SetPart, limits as wire};

use crate::acquire::answer_deadline;
use crate::buffer::{Buffer, check_limit};
use crate::client::Client;
use crate::error::{ClientError, Fault};
use crate::export::Ready;
use crate::lease::{Lease, release_together};
use crate::limits;
use crate::publish::{PublishTook, Published, Taken, packets};

/// A set that others can acquire now, such as the 300 tensors of a model.
///
/// Dropping this ends nothing. Publishing the same name again supersedes this version: nobody gets new leases of it,
/// and it is gone with its last one.
#[derive(Debug)]
pub struct PublishedSet {
    name: BufferName,
    generation: u64,
    buffers: Vec<Published>,
}

impl PublishedSet {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &BufferName {
        &self.name
    }

    /// Its version, which is that of each of its buffers; see [`Published::generation`].
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Its buffers, in the order in which they were given.
    #[must_use]
    pub fn buffers(&self) -> &[Published] {
        &self.buffers
    }

    /// Retires all of its buffers, as [`Published::retire`] does, [`limits::RETIRES_AHEAD`](limits::RETIRES_AHEAD) at a time. Gives the number of leases that were left.
    ///
    /// # Errors
    /// As [`Published::retire`]: of the first buffer that could not be retired; the others were.
    pub fn retire(self, deadline: Duration) -> Result<u32, ClientError> {
        let mut retiring = VecDeque::new();
        let mut buffers = self.buffers.iter();
        let mut outcome = Ok(0_u32);
        loop {
            while retiring.len() < limits::RETIRES_AHEAD
                && let Some(buffer) = buffers.next()
            {
                retiring.push_back((buffer, buffer.begin_to_retire(deadline)));
            }
            let Some((buffer, begun)) = retiring.pop_front() else { return outcome };
            let left = begun.and_then(|pending| buffer.retired(pending));
            let left = left.map_err(|fault| fault.while_doing("retire", buffer.name()));
            outcome = match (outcome, left) {
                (Ok(sum), Ok(left)) => Ok(sum.saturating_add(left)),
                (Ok(_), Err(error)) | (Err(error), _) => Err(error),
            };
        }
    }
}

/// Which set to acquire.
///
/// ```no_run
/// # use gpu_handoff_client::{AcquireSet, Client, ClientError};
/// # fn next(client: &Client, seen: u64) -> Result<(), ClientError> {
/// use std::time::Duration;
///
/// let model = client.acquire_set(AcquireSet::named("model")?.newer_than(seen).wait(Duration::from_secs(60)))?;
/// for lease in model.leases() {
///     println!("{}: {} bytes at {:#x}", lease.info().facts.name, lease.bytes(), lease.ptr());
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireSet {
    name: BufferName,
    newer_than: u64,
    wait: Duration,
}

impl AcquireSet {
    /// The newest version of this set in the group. Names of sets are apart from those of buffers.
    ///
    /// # Errors
    /// [`ClientError::Name`] when no set can have that name.
    pub fn named(name: &str) -> Result<Self, ClientError> {
        Ok(Self { name: BufferName::new(name)?, newer_than: 0, wait: Duration::ZERO })
    }

    /// Only a generation above this one will do.
    #[must_use]
    pub fn newer_than(mut self, generation: u64) -> Self {
        self.newer_than = generation;
        self
    }

    /// Waits so long for a set that is not there yet: at most ten minutes; if not set, not at all.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}

impl fmt::Display for AcquireSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "set {}", self.name)
    }
}

/// Leases of all buffers of one version of a set. Released on drop.
#[derive(Debug)]
pub struct LeaseSet {
    info: SetInfo,
    leases: Vec<Lease>,
}

impl LeaseSet {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &BufferName {
        &self.info.name
    }

    /// Its version.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.info.generation
    }

    /// The leases, in the order in which the publisher gave the buffers.
    #[must_use]
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// The lease of the buffer of this name; the first, where the publisher gave several the same name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Lease> {
        self.leases.iter().find(|lease| lease.info().facts.name.as_str() == name)
    }

    /// The leases, each on its own from now on.
    #[must_use]
    pub fn into_leases(self) -> Vec<Lease> {
        self.leases
    }

    /// Gives all leases back, in as few packets as possible, and waits until the node has taken note of it.
    ///
    /// # Errors
    /// As [`Lease::release`]: of the first that could not be released; the others were.
    pub fn release(self) -> Result<(), ClientError> {
        release_together(self.leases).map_err(|fault| fault.while_doing("release set", self.info.name))
    }
}

impl Client {
    /// Publishes buffers as one version of a set: others see all of them at once, or none. The version before it, of
    /// the same pod, is superseded.
    ///
    /// ```no_run
    /// # use gpu_handoff_client::{Buffer, Client, ClientError};
    /// # fn publish(client: &Client, tensors: &[(String, u64, u64)]) -> Result<(), ClientError> {
    /// let buffers = tensors.iter().map(|(name, ptr, bytes)| Ok(Buffer::named(name)?.pointer(*ptr, *bytes)));
    /// let model = client.publish_set("model", buffers.collect::<Result<Vec<_>, ClientError>>()?)?;
    /// println!("model is generation {}", model.generation());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`publish`](Self::publish), for the first buffer that is refused, and with `SET_BROKEN` when another process
    /// of this pod has begun to publish the same set. After an error nothing of it stays published, and the version
    /// before it is what it was.
    pub fn publish_set<'a>(
        &self,
        name: &str,
        buffers: impl IntoIterator<Item = Buffer<'a>>,
    ) -> Result<PublishedSet, ClientError> {
        let name = BufferName::new(name)?;
        let buffers: Vec<Buffer<'a>> = buffers.into_iter().collect();
        self.shared.connection.check_process().map_err(|fault| fault.while_doing("publish set", &name))?;
        match self.publish_parts(&name, &buffers) {
            Ok(taken) => {
                let generation = taken.first().map_or(0, |(taken, _)| taken.receipt.generation);
                let named = taken.into_iter().zip(buffers);
                let buffers = named.map(|((taken, took), b)| self.published(b.name, taken, took)).collect();
                Ok(PublishedSet { name, generation, buffers })
            }
            Err((index, fault)) => {
                let object = match buffers.get(index) {
                    Some(buffer) => format!("set {name}, its buffer {index}, {}", buffer.name),
                    None => format!("set {name}"),
                };
                Err(fault.while_doing("publish", object))
            }
        }
    }

    /// Publishes all parts; begins anew where another broker, which knows nothing of the parts before, breaks the set.
    fn publish_parts(
        &self,
        name: &BufferName,
        buffers: &[Buffer<'_>],
    ) -> Result<Vec<(Taken, PublishTook)>, (usize, Fault)> {
        let mut tries = 0;
        loop {
            let broker = self.shared.connection.instance();
            let mut parts = Parts { client: self, name, total: 0, taken: Vec::new(), last: None };
            let Err((index, fault)) = parts.publish(buffers) else { return Ok(parts.taken) };
            tries += 1;
            let broken = matches!(&fault, Fault::Refused(refusal) if refusal.code() == Code::SetBroken);
            if !broken || tries == limits::SET_TRIES || broker == self.shared.connection.instance() {
                return Err((index, fault));
            }
        }
    }

    /// Acquires leases of all buffers of a set and maps their memory, as [`acquire`](Self::acquire) does.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire). After an error no lease is left behind.
    pub fn acquire_set(&self, wanted: AcquireSet) -> Result<LeaseSet, ClientError> {
        let acquire = || {
            let asked = Instant::now();
            let place = self.shared.memory.place()?;
            let deadline = answer_deadline(wanted.wait)?;
            let AcquireSet { name, newer_than, wait } = wanted.clone();
            let device = Some(place.device());
            let body = ClientBody::AcquireSet { name, newer_than, wait, device };
            let (info, grants) = match self.shared.connection.call(body, deadline)? {
                BrokerBody::AcquiredSet { set, grants } if grants.len() == set.total as usize => {
                    (set, grants)
                }
                _ => {
                    self.shared.connection.end();
                    return Err(Fault::unexpected("all buffers of the set"));
                }
            };
            // Each becomes a lease before the first failure is looked at, so that all of them are given back.
            let leases: Vec<_> = grants.into_iter().map(|grant| self.take(Ok(grant), place, asked)).collect();
            Ok(LeaseSet { info, leases: leases.into_iter().collect::<Result<_, Fault>>()? })
        };
        acquire().map_err(|fault: Fault| fault.while_doing("acquire", &wanted))
    }
}

/// A set on its way to the node.
struct Parts<'c> {
    client: &'c Client,
    name: &'c BufferName,
    total: u32,
    /// What the node has taken so far.
    taken: Vec<(Taken, PublishTook)>,
    /// The last publication that was sent.
    last: Option<Publication>,
}

impl Parts<'_> {
    /// Publishes all parts; gives the index of the buffer that could not be, and why.
    fn publish(&mut self, buffers: &[Buffer<'_>]) -> Result<(), (usize, Fault)> {
        self.total = count(buffers.len()).map_err(|fault| (buffers.len(), fault))?;
        for part in packets(buffers) {
            let began = Instant::now();
            let mut items = Vec::with_capacity(part.len());
            for (index, buffer) in part.iter().enumerate() {
                match self.client.shared.exporter.export(buffer) {
                    Ok(ready) => items.push(ready),
                    Err(fault) => {
                        self.break_off();
                        return Err((self.taken.len() + index, fault));
                    }
                }
            }
            self.send(items, began)?;
        }
        Ok(())
    }

    fn send(&mut self, items: Vec<Ready>, began: Instant) -> Result<(), (usize, Fault)> {
        let first = self.taken.len();
        let told = Instant::now();
        let (items, kept) = Ready::split(items);
        self.last = items.last().cloned();
        let body = ClientBody::PublishSet { part: self.part(first), items };
        let outcomes = self.client.send_kept(body, kept).map_err(|fault| {
            // The part may still be taken, and the set be whole with it: nobody will have a handle of it.
            let taken = self.taken.iter().map(|(taken, _)| taken.receipt.id);
            self.client.shared.connection.retire_later(taken);
            (first, fault)
        })?;
        let took = PublishTook { exported: told - began, answered: told.elapsed() };
        let refused = |fault: &Fault, broken| match fault {
            Fault::Refused(refusal) => broken || refusal.code() != Code::SetBroken,
            _ => true,
        };
        let first_of = |broken| outcomes.iter().position(|it| it.as_ref().is_err_and(|f| refused(f, broken)));
        if let Some(at) = first_of(false).or_else(|| first_of(true)) {
            let fault = outcomes.into_iter().nth(at).and_then(Result::err);
            return Err((first + at, fault.unwrap_or_else(|| Fault::unexpected("a refusal"))));
        }
        self.taken.extend(outcomes.into_iter().flatten().map(|taken| (taken, took)));
        Ok(())
    }

    fn part(&self, first: usize) -> SetPart {
        let first = u32::try_from(first).unwrap_or(u32::MAX);
        SetPart { name: self.name.clone(), total: self.total, first }
    }

    /// Has the node drop what it has taken: a part that was there already does not follow.
    fn break_off(&mut self) {
        let Some(again) = self.last.take() else { return };
        let body = ClientBody::PublishSet {
            part: self.part(self.taken.len().saturating_sub(1)),
            items: vec![again],
        };
        // Whatever becomes of it: the node drops a set that does not go on by itself, only later.
        let _ = self.client.shared.connection.start(body);
    }
}

/// How many buffers a set has.
fn count(buffers: usize) -> Result<u32, Fault> {
    check_limit("buffers of a set", buffers, wire::SET_BUFFERS as usize)?;
    match u32::try_from(buffers) {
        Ok(total) if total > 0 => Ok(total),
        _ => {
            let refusal =
                Refusal::new(Code::SetBroken).compared_with("buffers of a set", "at least 1", buffers);
            Err(refusal.with_remedy("give the set its buffers").into())
        }
    }
}
