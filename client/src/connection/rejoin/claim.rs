//! Having another broker restore what this process has.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu_handoff_cuda::leaving::go_in;
use gpu_handoff_protocol::codec::batches;
use gpu_handoff_protocol::message::{BrokerBody, Claim, ClientBody, Reattached};
use gpu_handoff_protocol::{Code, Receipt, Refusal, limits as wire};
use rustix::event::PollFlags;

use super::{Failed, Talk, unexpected};
use crate::again::Again;
use crate::connection::claims::Subject;
use crate::error::Fault;
use crate::limits;

/// Something that this process has, and what proves it.
#[derive(Debug)]
struct Had {
    subject: Subject,
    receipt: Receipt,
    /// How often a worker of the broker failed over it.
    failures: u32,
}

/// What is claimed, and its descriptor where that was asked for.
type Item = (Had, Option<Arc<OwnedFd>>);

/// What there is still to do after claims.
#[derive(Debug, Default)]
struct Left {
    /// The broker wants the memory of these.
    wanted: Vec<Had>,
    /// Refused for what passes by itself.
    again: Vec<Had>,
    /// A worker failed over them, or over what was checked beside them.
    suspect: Vec<Had>,
}

/// Whether a claim that was refused with this may be granted a moment later, however often it is made.
fn passes(refusal: &Refusal) -> bool {
    matches!(
        refusal.code(),
        Code::QuotaInFlight
            | Code::QuotaDescriptors
            | Code::TooManyRequests
            | Code::BrokerUnavailable
            | Code::ShuttingDown
    )
}

/// Whether the broker's worker failed. If it was this memory's doing, the broker counts it, and suspends the pod after a
/// few.
fn worker_failed(refusal: &Refusal) -> bool {
    matches!(refusal.code(), Code::WorkerTimeout | Code::WorkerFailed)
}

impl Talk<'_> {
    /// Claims all of this. What is refused for what passes is claimed again for as long as the broker waits for it;
    /// what is refused then, or for something else, is lost. What a worker failed over comes after all else, one by one,
    /// so that it costs nothing else, and not more often than [`limits::CLAIM_TRIES`].
    pub(super) fn claim_all(&mut self, had: Vec<(Subject, Receipt)>) -> Result<(), Failed> {
        let until = self.until.min(Instant::now() + limits::REATTACH);
        let mut had: Vec<Had> =
            had.into_iter().map(|(subject, receipt)| Had { subject, receipt, failures: 0 }).collect();
        let (mut suspects, mut pause) = (VecDeque::new(), limits::RETRY_FIRST);
        loop {
            let left = self.claim_once(had)?;
            had = left.again;
            let next = if !had.is_empty() {
                let next = pause;
                pause = (pause * 2).min(limits::RETRY_LONGEST);
                next
            } else if !left.suspect.is_empty() {
                limits::CLAIM_PAUSE
            } else {
                Duration::ZERO
            };
            for suspect in left.suspect {
                match suspect.failures < limits::CLAIM_TRIES {
                    true => suspects.push_back(suspect),
                    false => self.lost(suspect.subject)?,
                }
            }
            if had.is_empty() && suspects.is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                return had.into_iter().chain(suspects).try_for_each(|it| self.lost(it.subject));
            }
            if !next.is_zero() {
                self.wait_until(PollFlags::empty(), until.min(Instant::now() + next))?;
            }
            if had.is_empty() {
                had.extend(suspects.pop_front());
            }
        }
    }

    /// Claims all of this, then brings the memory that is wanted. Gives what is to be claimed again.
    fn claim_once(&mut self, had: Vec<Had>) -> Result<Left, Failed> {
        let mut all = self.claim(had.into_iter().map(|had| (had, None)).collect())?;
        let mut wanted = VecDeque::from(std::mem::take(&mut all.wanted));
        while !wanted.is_empty() {
            // As many descriptors at a time as a packet takes; they are closed before the next are made.
            let items = self.export(&mut wanted)?;
            let left = self.claim(items)?;
            // A broker that wants the memory once more has lost what was sent.
            all.again.extend(left.again.into_iter().chain(left.wanted));
            all.suspect.extend(left.suspect);
        }
        Ok(all)
    }

    /// Claims these; what is refused for good is lost.
    fn claim(&mut self, items: Vec<Item>) -> Result<Left, Failed> {
        let claim = |(had, descriptor): Item| {
            let receipt = had.receipt.clone();
            (had, Claim { receipt, descriptor })
        };
        let (had, claims): (VecDeque<_>, Vec<_>) = items.into_iter().map(claim).unzip();
        let (mut had, mut left) = (had, Left::default());
        for part in batches(claims) {
            let count = part.len();
            let outcomes = match self.ask(ClientBody::Reattach(part))? {
                BrokerBody::Reattached(outcomes) if outcomes.len() == count => outcomes,
                BrokerBody::Refused(refusal) => (0..count).map(|_| Err(refusal.clone())).collect(),
                _ => return Err(unexpected("an outcome for each claim")),
            };
            for (outcome, mut had) in outcomes.into_iter().zip(had.drain(..count)) {
                match outcome {
                    Ok(Reattached::Restored) => {}
                    Ok(Reattached::DescriptorWanted) => left.wanted.push(had),
                    Err(refusal) if passes(&refusal) => left.again.push(had),
                    Err(refusal) if worker_failed(&refusal) => {
                        had.failures += 1;
                        left.suspect.push(had);
                    }
                    Err(_) => self.lost(had.subject)?,
                }
            }
        }
        Ok(left)
    }

    /// Exports the memory of the first of these again, as many as fit into a packet. Where this process has no room for
    /// as many descriptors, fewer; what cannot be exported alone is lost.
    fn export(&self, wanted: &mut VecDeque<Had>) -> Result<Vec<Item>, Failed> {
        let mut items = Vec::new();
        while items.len() < wire::MESSAGE_DESCRIPTORS
            && let Some(had) = wanted.pop_front()
        {
            let again = self.connection.lock()?.claims.again(had.subject);
            match again.map(export) {
                Some(Ok(Some(descriptor))) => items.push((had, Some(descriptor))),
                Some(Err(_)) if !items.is_empty() => {
                    wanted.push_front(had);
                    break;
                }
                _ => self.lost(had.subject)?,
            }
        }
        Ok(items)
    }

    fn lost(&self, subject: Subject) -> Result<(), Failed> {
        let mut state = self.connection.lock()?;
        state.claims.lost(subject, &*self.connection.sink);
        state.sweep = true;
        Ok(())
    }
}

/// This thread works in the background. What is exported may have ended meanwhile, and this be the last hold on it, whose end
/// asks the driver as well.
fn export(again: Arc<Again>) -> Result<Option<Arc<OwnedFd>>, Fault> {
    let inside = go_in();
    let exported = again.export();
    drop(again);
    drop(inside);
    exported
}
