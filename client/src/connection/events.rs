//! The events of one watch. A broker that comes anew tells again what is there; the watch gives what is new in that,
//! and the end of what is missing, so that its reader has no gap.

use std::collections::{HashSet, VecDeque};

use gpu_handoff_protocol::message::{BrokerBody, EndReason, Event};
use gpu_handoff_protocol::{BufferId, Code, Refusal};

use crate::error::Fault;
use crate::limits;

#[derive(Debug)]
pub(super) struct Events {
    unread: VecDeque<Event>,
    /// Why no more will come.
    end: Option<Refusal>,
    /// Whether the node works on it.
    pub(super) open: bool,
    /// Buffers of which the reader is told that they are there.
    known: HashSet<BufferId>,
    /// While another broker tells what is there: what it has told.
    found: Option<HashSet<BufferId>>,
}

impl Default for Events {
    fn default() -> Self {
        Self { unread: VecDeque::new(), end: None, open: true, known: HashSet::new(), found: None }
    }
}

impl Events {
    /// Takes the next event, or the reason why there are no more.
    pub(super) fn next(&mut self) -> Option<Result<Event, Fault>> {
        let event = self.unread.pop_front().map(Ok);
        event.or_else(|| self.end.clone().map(|refusal| Err(Fault::Refused(refusal))))
    }

    /// Another broker is to be asked. False: this watch is over.
    pub(super) fn begin_anew(&mut self) -> bool {
        self.found = Some(HashSet::new());
        self.open && self.end.is_none()
    }

    /// What came for the watch. False: that is no answer to one.
    pub(super) fn take(&mut self, body: BrokerBody) -> bool {
        match body {
            // After an overflow nothing more is taken: there would be a gap before it.
            BrokerBody::Event(_) if self.end.is_some() => {}
            BrokerBody::Event(event) => self.event(event),
            BrokerBody::Refused(refusal) => {
                self.open = false;
                self.end.get_or_insert(refusal);
            }
            BrokerBody::Cancelled => self.open = false,
            _ => return false,
        }
        true
    }

    fn event(&mut self, event: Event) {
        match &event {
            Event::Appeared(buffer) => {
                if let Some(found) = &mut self.found {
                    found.insert(buffer.id);
                }
                if !self.known.insert(buffer.id) && self.found.is_some() {
                    return;
                }
            }
            Event::Gone { id, .. } => {
                if let Some(found) = &mut self.found {
                    found.remove(id);
                }
                self.known.remove(id);
            }
            Event::SnapshotDone => {
                if let Some(found) = self.found.take() {
                    let known = std::mem::replace(&mut self.known, found);
                    for id in known.into_iter().filter(|id| !self.known.contains(id)).collect::<Vec<_>>() {
                        self.push(Event::Gone { id, reason: EndReason::Other });
                    }
                }
            }
            _ => {}
        }
        self.push(event);
    }

    fn push(&mut self, event: Event) {
        if self.end.is_some() {
            return;
        }
        if self.unread.len() < limits::WATCH_EVENTS {
            return self.unread.push_back(event);
        }
        let wanted = format!("at most {}", limits::WATCH_EVENTS);
        let refusal = Refusal::new(Code::WatchOverflow);
        self.end = Some(refusal.compared_with("unread events", wanted, "more"));
    }
}
