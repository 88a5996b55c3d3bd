//! Having another broker restore what this process has.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_protocol::codec::batches;
use gpu_handoff_protocol::message::{BrokerBody, Claim, ClientBody, Reattached};
use gpu_handoff_protocol::socket::wait;
use gpu_handoff_protocol::{Code, Receipt, Refusal, limits as wire};
use rustix::event::PollFlags;

use super::{Failed, Talk, unexpected};
use crate::connection::claims::Subject;
use crate::connection::state::Listener;
use crate::limits;

/// Something that this process has, and what proves it.
type Had = (Subject, Receipt);

/// What is claimed, and its descriptor where that was asked for.
type Item = (Subject, Receipt, Option<Arc<OwnedFd>>);

/// What there is still to do after claims.
#[derive(Debug, Default)]
struct Left {
    /// The broker wants the memory of these.
    wanted: Vec<Had>,
    /// Refused for what passes by itself.
    again: Vec<Had>,
}

/// Whether a claim that was refused with this may be granted a moment later.
fn passes(refusal: &Refusal) -> bool {
    matches!(
        refusal.code(),
        Code::QuotaInFlight
            | Code::QuotaDescriptors
            | Code::TooManyRequests
            | Code::WorkerTimeout
            | Code::WorkerFailed
            | Code::BrokerUnavailable
            | Code::ShuttingDown
    )
}

impl Talk<'_> {
    /// Claims all of this. What is refused for what passes is claimed again for as long as the broker waits for it;
    /// what is refused then, or for something else, is lost.
    pub(super) fn claim_all(&mut self, mut had: Vec<Had>) -> Result<(), Failed> {
        let (until, mut pause) = (self.until.min(Instant::now() + limits::REATTACH), limits::RETRY_FIRST);
        loop {
            had = self.claim_once(had)?;
            if had.is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                return had.into_iter().try_for_each(|(subject, _)| self.lost(subject));
            }
            self.pause(until.min(Instant::now() + pause))?;
            pause = (pause * 2).min(limits::RETRY_LONGEST);
        }
    }

    /// Claims all of this, then brings the memory that is wanted. Gives what is to be claimed again.
    fn claim_once(&mut self, had: Vec<Had>) -> Result<Vec<Had>, Failed> {
        let items = had.into_iter().map(|(subject, receipt)| (subject, receipt, None)).collect();
        let Left { wanted, mut again } = self.claim(items)?;
        let mut wanted = VecDeque::from(wanted);
        while !wanted.is_empty() {
            // As many descriptors at a time as a packet takes; they are closed before the next are made.
            let items = self.export(&mut wanted)?;
            let left = self.claim(items)?;
            // A broker that wants the memory once more has lost what was sent.
            again.extend(left.again.into_iter().chain(left.wanted));
        }
        Ok(again)
    }

    /// Claims these; what is refused for good is lost.
    fn claim(&mut self, items: Vec<Item>) -> Result<Left, Failed> {
        let (subjects, claims): (Vec<_>, Vec<_>) = items
            .into_iter()
            .map(|(subject, receipt, descriptor)| (subject, Claim { receipt, descriptor }))
            .unzip();
        let (mut subjects, mut left) = (VecDeque::from(subjects), Left::default());
        for part in batches(claims) {
            let receipts: Vec<Receipt> = part.iter().map(|claim| claim.receipt.clone()).collect();
            let outcomes = match self.ask(ClientBody::Reattach(part))? {
                BrokerBody::Reattached(outcomes) if outcomes.len() == receipts.len() => outcomes,
                BrokerBody::Refused(refusal) => receipts.iter().map(|_| Err(refusal.clone())).collect(),
                _ => return Err(unexpected("an outcome for each claim")),
            };
            let had = subjects.drain(..receipts.len()).zip(receipts);
            for (outcome, (subject, receipt)) in outcomes.into_iter().zip(had) {
                match outcome {
                    Ok(Reattached::Restored) => {}
                    Ok(Reattached::DescriptorWanted) => left.wanted.push((subject, receipt)),
                    Err(refusal) if passes(&refusal) => left.again.push((subject, receipt)),
                    Err(_) => self.lost(subject)?,
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
            && let Some((subject, receipt)) = wanted.pop_front()
        {
            let again = self.connection.lock()?.claims.again(subject);
            match again.map(|again| again.export()) {
                Some(Ok(Some(descriptor))) => items.push((subject, receipt, Some(descriptor))),
                Some(Err(_)) if !items.is_empty() => {
                    wanted.push_front((subject, receipt));
                    break;
                }
                _ => self.lost(subject)?,
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

    /// Waits, unless the connection is closed or the broker goes meanwhile.
    fn pause(&self, until: Instant) -> Result<(), Failed> {
        let mut state = self.connection.lock()?;
        if state.end.is_some() {
            return Err(Failed::ForNow);
        }
        state.listener = Listener::Polls;
        drop(state);
        let on = [(self.socket.as_fd(), PollFlags::empty()), (self.connection.bell.as_fd(), PollFlags::IN)];
        let ready = wait(&on, Some(until));
        drop(self.connection.answer_bell()?);
        ready?;
        Ok(())
    }
}
