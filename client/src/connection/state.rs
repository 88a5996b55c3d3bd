//! What is open on a connection, and how a packet finds whom it belongs to. No socket, no clock, no driver.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar};

use gpu_handoff_protocol::message::{BrokerBody, BrokerMessage, Event, Grant, RequestId};
use gpu_handoff_protocol::socket::RecvBuffer;
use gpu_handoff_protocol::{Code, Refusal, codec};

use super::Sink;
use super::unsent::Unsent;
use crate::error::Fault;
use crate::limits;

/// Why the connection has ended.
#[derive(Debug)]
pub(super) enum End {
    /// The peer, or this side, has ended it; with what the node gave as reason.
    Lost(Option<Refusal>),
    /// A packet could not be read.
    Unreadable(Refusal),
}

impl End {
    pub(super) fn fault(&self) -> Fault {
        match self {
            Self::Lost(refusal) => Fault::Lost(refusal.clone()),
            Self::Unreadable(refusal) => Fault::Protocol(refusal.clone()),
        }
    }
}

/// An open request.
#[derive(Debug)]
pub(super) struct Slot {
    content: Content,
    /// Where its owner sleeps while another thread reads.
    wake: Arc<Condvar>,
    asleep: bool,
}

#[derive(Debug)]
enum Content {
    /// The parts so far, and whether that is all.
    Answer { so_far: Option<BrokerBody>, whole: bool },
    /// Events not read yet, why no more will come, and whether the node works on it.
    Events { unread: VecDeque<Event>, end: Option<Refusal>, open: bool },
}

impl Slot {
    fn new(content: Content) -> Self {
        Self { content, wake: Arc::new(Condvar::new()), asleep: false }
    }

    pub(super) fn answer() -> Self {
        Self::new(Content::Answer { so_far: None, whole: false })
    }

    pub(super) fn events() -> Self {
        Self::new(Content::Events { unread: VecDeque::new(), end: None, open: true })
    }

    /// Takes the answer once it is whole.
    pub(super) fn answered(&mut self) -> Option<Result<BrokerBody, Fault>> {
        match &mut self.content {
            Content::Answer { so_far, whole: true } => so_far.take().map(Ok),
            _ => None,
        }
    }

    /// Takes the next event, or the reason why there are no more.
    pub(super) fn next_event(&mut self) -> Option<Result<Event, Fault>> {
        match &mut self.content {
            Content::Events { unread, end, .. } => {
                let event = unread.pop_front().map(Ok);
                event.or_else(|| end.clone().map(|refusal| Err(Fault::Refused(refusal))))
            }
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

    fn wake(&self) {
        if self.asleep {
            self.wake.notify_one();
        }
    }
}

/// What the listener does, and so how it is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listener {
    /// It looks by itself soon, or waits where a notice of the condition variable reaches it.
    Awake,
    /// It wants to be told when the last waiting thread leaves.
    Sleeps,
    /// It polls the socket and the bell, or is about to.
    Polls,
    /// It was called by the bell.
    Called,
}

/// Everything of a connection that changes.
#[derive(Debug)]
pub(super) struct State {
    last_number: RequestId,
    slots: HashMap<RequestId, Slot>,
    /// The read token: only its holder receives.
    pub(super) reader: Option<RecvBuffer>,
    /// Threads that wait for something, and how often one began to.
    pub(super) waiting: usize,
    pub(super) waits: u64,
    /// What found no room yet.
    pub(super) unsent: Unsent,
    pub(super) end: Option<End>,
    pub(super) listener: Listener,
    /// The listener has something to unmap.
    pub(super) sweep: bool,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            last_number: 0,
            slots: HashMap::new(),
            reader: Some(RecvBuffer::new()),
            waiting: 0,
            waits: 0,
            unsent: Unsent::default(),
            end: None,
            listener: Listener::Awake,
            sweep: false,
        }
    }

    /// A request number that is not in use.
    pub(super) fn number(&mut self) -> RequestId {
        // 64 bits counted up one by one do not come round in the life of a process.
        self.last_number = self.last_number.wrapping_add(1).max(1);
        self.last_number
    }

    pub(super) fn open(&mut self, slot: Slot) -> Result<RequestId, Fault> {
        if let Some(end) = &self.end {
            return Err(end.fault());
        }
        let request = self.number();
        self.slots.insert(request, slot);
        Ok(request)
    }

    pub(super) fn slot(&mut self, request: RequestId) -> Option<&mut Slot> {
        self.slots.get_mut(&request)
    }

    /// Closes a request and gives back what came for it. True: the node still works on it.
    pub(super) fn close(&mut self, request: RequestId, sink: &dyn Sink) -> bool {
        let Some(slot) = self.slots.remove(&request) else { return false };
        let open = match slot.content {
            // An answer that was taken leaves nothing behind: the request is over.
            Content::Answer { so_far, whole } => {
                match so_far {
                    Some(BrokerBody::Acquired(items)) => self.give_back(items.iter().flatten(), Some(sink)),
                    Some(BrokerBody::AcquiredSet { grants, .. }) => self.give_back(grants.iter(), Some(sink)),
                    Some(BrokerBody::Published(outcomes)) => self.unsent.retire_all(&outcomes),
                    _ => {}
                }
                !whole
            }
            Content::Events { open, .. } => open,
        };
        open && self.end.is_none()
    }

    fn give_back<'g>(&mut self, grants: impl Iterator<Item = &'g Grant>, known_to: Option<&dyn Sink>) {
        for grant in grants {
            self.unsent.release(grant.lease);
            if let Some(sink) = known_to {
                sink.ungranted(grant.buffer.id);
                self.sweep = true;
            }
        }
    }

    /// Gives a packet to whom it belongs. `Some`: the connection ends.
    pub(super) fn dispatch(&mut self, message: BrokerMessage, more: bool, sink: &dyn Sink) -> Option<End> {
        if message.request == 0 {
            return self.notice(message.body, sink);
        }
        let Some(slot) = self.slots.get_mut(&message.request) else {
            // An answer that nobody waits for any more.
            match message.body {
                BrokerBody::Acquired(items) => self.give_back(items.iter().flatten(), None),
                BrokerBody::AcquiredSet { grants, .. } => self.give_back(grants.iter(), None),
                BrokerBody::Published(outcomes) => self.unsent.retire_all(&outcomes),
                _ => {}
            }
            return None;
        };
        match &mut slot.content {
            Content::Answer { so_far, whole } => {
                // Known before the next packet is read: that may already say that the buffer ends.
                match &message.body {
                    BrokerBody::Acquired(items) => {
                        items.iter().flatten().for_each(|grant| sink.granted(&grant.buffer));
                    }
                    BrokerBody::AcquiredSet { grants, .. } => {
                        grants.iter().for_each(|grant| sink.granted(&grant.buffer));
                    }
                    _ => {}
                }
                let joined = match so_far.take() {
                    None => Ok(message.body),
                    Some(first) => codec::join(first, message.body, more),
                };
                match joined {
                    Ok(body) => *so_far = Some(body),
                    Err(refusal) => return Some(End::Unreadable(refusal)),
                }
                *whole = !more;
                if more {
                    return None;
                }
            }
            Content::Events { unread, end, open } => match message.body {
                // After an overflow nothing more is taken: there would be a gap before it.
                BrokerBody::Event(_) if end.is_some() => {}
                BrokerBody::Event(event) if unread.len() < limits::WATCH_EVENTS => unread.push_back(event),
                BrokerBody::Event(_) => {
                    let wanted = format!("at most {}", limits::WATCH_EVENTS);
                    let refusal = Refusal::new(Code::WatchOverflow);
                    *end = Some(refusal.compared_with("unread events", wanted, "more"));
                }
                BrokerBody::Refused(refusal) => {
                    *open = false;
                    end.get_or_insert(refusal);
                }
                BrokerBody::Cancelled => *open = false,
                _ => return Some(End::Unreadable(Refusal::new(Code::Malformed))),
            },
        }
        slot.wake();
        None
    }

    /// What nobody asked for: news of leased buffers, or the end of the connection.
    fn notice(&mut self, body: BrokerBody, sink: &dyn Sink) -> Option<End> {
        match body {
            BrokerBody::Event(event) => {
                self.sweep |= sink.notice(&event);
                None
            }
            BrokerBody::Refused(refusal) => Some(End::Lost(Some(refusal))),
            // A newer node may say more than this version knows.
            _ => None,
        }
    }

    /// Wakes one sleeping thread, which then takes the read token.
    pub(super) fn wake_one(&self) {
        if self.reader.is_some()
            && let Some(slot) = self.slots.values().find(|slot| slot.asleep)
        {
            slot.wake();
        }
    }

    pub(super) fn wake_all(&self) {
        self.slots.values().for_each(Slot::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use crate::tests::{Pretender, id};
    use gpu_handoff_protocol::message::{ClientBody, PublishedAs};

    #[test]
    fn of_an_answer_given_up_half_way_all_parts_are_revoked() {
        let (mut state, memory) = (State::new(), Memory::new(Box::new(Pretender::default())));
        let request = state.open(Slot::answer()).unwrap();
        let part = |random| {
            let receipt = PublishedAs { id: id(random), generation: 1, receipt: None };
            BrokerMessage { request, body: BrokerBody::Published(vec![Ok(receipt)]) }
        };
        assert!(state.dispatch(part(1), true, &memory).is_none());
        assert!(state.close(request, &memory), "the node still works on it");
        assert!(state.dispatch(part(2), false, &memory).is_none());
        for random in [1, 2] {
            let revoked = state.unsent.first();
            assert!(matches!(revoked, Some(ClientBody::Retire { id: it, .. }) if it == id(random)));
            state.unsent.sent(0);
        }
        assert!(state.unsent.first().is_none());
    }
}
