//! An open request: what was asked, and what has come for it.

use std::sync::{Arc, Condvar};
use std::time::Instant;

use gpu_handoff_protocol::codec::{self, Outgoing};
use gpu_handoff_protocol::message::{BrokerBody, ClientBody, ClientMessage, Event, RequestId};
use gpu_handoff_protocol::{Code, Refusal};

use super::events::Events;
use crate::again::Kept;
use crate::error::Fault;

/// An open request.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) content: Content,
    pub(super) body: ClientBody,
    /// Of each publication that is asked for.
    pub(super) kept: Vec<Kept>,
    asked: Instant,
    /// It was asked before, of a broker that did not answer.
    again: bool,
    /// Where its owner sleeps while another thread reads.
    wake: Arc<Condvar>,
    pub(super) asleep: bool,
    /// What there was of an answer that did not become whole.
    pub(super) spoilt: Option<BrokerBody>,
}

#[derive(Debug)]
pub(super) enum Content {
    /// The parts so far, and whether that is all.
    Answer {
        so_far: Option<BrokerBody>,
        whole: bool,
    },
    Events(Events),
}

impl Slot {
    /// A request that has one answer, or is a watch.
    pub(super) fn new(body: ClientBody, kept: Vec<Kept>) -> Self {
        let content = match body {
            ClientBody::Watch => Content::Events(Events::default()),
            _ => Content::Answer { so_far: None, whole: false },
        };
        let asked = Instant::now();
        Self { content, body, kept, asked, again: false, wake: Arc::default(), asleep: false, spoilt: None }
    }

    /// Takes the answer once it is whole.
    pub(super) fn answered(&mut self) -> Option<Result<BrokerBody, Fault>> {
        match &mut self.content {
            Content::Answer { so_far, whole: true } => so_far.take().map(Ok),
            _ => None,
        }
    }

    /// This answer will not be whole: refuses it, and gives what there is of it. `None`: it was whole already.
    pub(super) fn spoil(&mut self, refusal: Refusal) -> Option<Option<BrokerBody>> {
        let Content::Answer { so_far, whole: whole @ false } = &mut self.content else { return None };
        *whole = true;
        Some(so_far.replace(BrokerBody::Refused(refusal)))
    }

    /// Whether what still comes of the answer is of no use.
    pub(super) fn is_spoilt(&self) -> bool {
        matches!(self.content, Content::Answer { whole: true, .. })
    }

    /// Takes the next event, or the reason why there are no more.
    pub(super) fn next_event(&mut self) -> Option<Result<Event, Fault>> {
        match &mut self.content {
            Content::Events(events) => events.next(),
            Content::Answer { .. } => None,
        }
    }

    /// Marks the owner as asleep and gives what it sleeps on.
    pub(super) fn enter(&mut self) -> Arc<Condvar> {
        self.asleep = true;
        Arc::clone(&self.wake)
    }

    pub(super) fn leave(&mut self) {
        self.asleep = false;
    }

    pub(super) fn wake(&self) {
        if self.asleep {
            self.wake.notify_one();
        }
    }

    /// Another broker is to be asked: gives what there was of an answer. `None`: nothing is to be asked.
    pub(super) fn ask_again(&mut self) -> Option<Option<BrokerBody>> {
        match &mut self.content {
            Content::Answer { whole: true, .. } => return None,
            Content::Events(events) => {
                if !events.begin_anew() {
                    return None;
                }
            }
            Content::Answer { .. } => {}
        }
        self.again = true;
        match &mut self.content {
            Content::Answer { so_far, .. } => Some(so_far.take()),
            Content::Events(_) => Some(None),
        }
    }

    /// The question; an acquire waits for what is left of its time.
    pub(super) fn packet(&mut self, request: RequestId) -> Outgoing {
        let mut body = std::mem::replace(&mut self.body, ClientBody::Watch);
        let whole = match &mut body {
            ClientBody::Acquire { wait, .. } | ClientBody::AcquireSet { wait, .. } => {
                let whole = *wait;
                *wait = wait.saturating_sub(self.asked.elapsed());
                Some(whole)
            }
            _ => None,
        };
        let message = ClientMessage { request, body };
        let packet = codec::encode_client(&message);
        self.body = message.body;
        if let ClientBody::Acquire { wait, .. } | ClientBody::AcquireSet { wait, .. } = &mut self.body {
            *wait = whole.unwrap_or(*wait);
        }
        packet
    }

    /// Of what was asked twice, that it was done already is a success.
    pub(super) fn settle(&mut self) {
        let Content::Answer { so_far: Some(body), whole: true } = &mut self.content else { return };
        if !self.again {
            return;
        }
        match body {
            BrokerBody::Released(outcomes) => {
                for outcome in outcomes.iter_mut().filter(|outcome| is(outcome, &[Code::NotLeased])) {
                    *outcome = Ok(());
                }
            }
            BrokerBody::Retired(outcome) if is(outcome, &[Code::Retired, Code::NotFound]) => *outcome = Ok(0),
            _ => {}
        }
    }
}

fn is<T>(outcome: &Result<T, Refusal>, codes: &[Code]) -> bool {
    outcome.as_ref().is_err_and(|refusal| codes.contains(&refusal.code()))
}
