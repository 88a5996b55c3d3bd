//! What is open on a connection, and how a packet finds whom it belongs to. No clock, no driver.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_protocol::codec::{self, Outgoing, Short};
use gpu_handoff_protocol::message::{BrokerBody, BrokerMessage, ClientBody, ClientMessage, Grant, RequestId};
use gpu_handoff_protocol::socket::{RecvBuffer, SeqPacket};
use gpu_handoff_protocol::{Code, Instance, Refusal};

use super::Sink;
use super::claims::Claims;
use super::slot::{Content, Slot};
use super::unsent::Unsent;
use crate::again::Kept;
use crate::error::Fault;

/// Why the connection has ended.
#[derive(Debug, Clone)]
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

    /// Whether it is no fault of this process, so that it is worth connecting again.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Lost(None) => true,
            Self::Lost(Some(refusal)) => {
                matches!(refusal.code(), Code::ShuttingDown | Code::BrokerUnavailable)
            }
            Self::Unreadable(_) => false,
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

/// The way to the node.
#[derive(Debug)]
pub(super) enum Link {
    Up(Arc<SeqPacket>),
    /// The listener looks for another broker.
    Away {
        /// Why the last one is gone.
        why: End,
        /// When it gives up.
        until: Instant,
    },
}

/// Everything of a connection that changes.
#[derive(Debug)]
pub(super) struct State {
    last_number: RequestId,
    pub(super) link: Link,
    /// The broker that gave what we have. `None`: not welcome yet.
    pub(super) instance: Option<Instance>,
    slots: HashMap<RequestId, Slot>,
    /// Requests that this broker was not asked yet.
    to_ask: VecDeque<RequestId>,
    pub(super) claims: Claims,
    /// The read token: only its holder receives.
    pub(super) reader: Option<RecvBuffer>,
    /// Threads that wait for something, and how often one began to.
    pub(super) waiting: usize,
    pub(super) waits: u64,
    /// What found no room yet.
    pub(super) unsent: Unsent,
    /// What somebody waits for was announced: until then it is awaited without sleeping.
    pub(super) awake_until: Option<Instant>,
    pub(super) end: Option<End>,
    pub(super) listener: Listener,
    /// The listener's poll looks for room, too.
    pub(super) room_watched: bool,
    /// The listener has something to unmap or to drop.
    pub(super) sweep: bool,
}

impl State {
    pub(super) fn new(socket: SeqPacket) -> Self {
        Self {
            last_number: 0,
            link: Link::Up(Arc::new(socket)),
            instance: None,
            slots: HashMap::new(),
            to_ask: VecDeque::new(),
            claims: Claims::default(),
            reader: Some(RecvBuffer::new()),
            waiting: 0,
            waits: 0,
            unsent: Unsent::default(),
            awake_until: None,
            end: None,
            listener: Listener::Awake,
            room_watched: false,
            sweep: false,
        }
    }

    /// The connection's socket, while there is one.
    pub(super) fn socket(&self) -> Option<Arc<SeqPacket>> {
        match &self.link {
            Link::Up(socket) => Some(Arc::clone(socket)),
            Link::Away { .. } => None,
        }
    }

    /// A request number that is not in use.
    pub(super) fn number(&mut self) -> RequestId {
        // 64 bits counted up one by one do not come round in the life of a process.
        self.last_number = self.last_number.wrapping_add(1).max(1);
        self.last_number
    }

    /// Opens a request; gives the socket on which it is to be asked. `None`: it is asked once there is a broker again.
    pub(super) fn open(&mut self, request: RequestId, slot: Slot) -> Result<Option<Arc<SeqPacket>>, Fault> {
        if let Some(end) = &self.end {
            return Err(end.fault());
        }
        self.slots.insert(request, slot);
        let socket = self.socket();
        if socket.is_none() {
            self.to_ask.push_back(request);
        }
        Ok(socket)
    }

    pub(super) fn slot(&mut self, request: RequestId) -> Option<&mut Slot> {
        self.slots.get_mut(&request)
    }

    /// Closes a request and gives back what came for it. True: the node still works on it. The slot is to be dropped
    /// after unlocking: it may hold memory, which the driver frees, and descriptors.
    pub(super) fn close(
        &mut self,
        request: RequestId,
        was_sent: bool,
        sink: &dyn Sink,
    ) -> Option<(bool, Slot)> {
        let slot = self.slots.remove(&request)?;
        // Where this broker was not asked, there is nothing to cancel, but a release is still to be told.
        let was_asked = !self.to_ask.contains(&request);
        let open = match &slot.content {
            // An answer that was taken leaves nothing behind: the request is over.
            Content::Answer { so_far, whole } => {
                so_far.iter().for_each(|body| self.turn_down(body, Some(sink)));
                match &slot.body {
                    ClientBody::Release(leases) if !whole && was_sent => {
                        if was_asked {
                            self.unsent.release_sent(request, leases.clone());
                        } else {
                            leases.iter().for_each(|lease| self.unsent.release(*lease));
                        }
                        false
                    }
                    _ => !whole,
                }
            }
            Content::Events(events) => events.open,
        };
        Some((open && was_asked && self.end.is_none(), slot))
    }

    /// Gives back what nobody takes.
    fn turn_down(&mut self, body: &BrokerBody, known_to: Option<&dyn Sink>) {
        match body {
            BrokerBody::Acquired(items) => self.give_back(items.iter().flatten(), known_to),
            BrokerBody::AcquiredSet { grants, .. } => self.give_back(grants.iter(), known_to),
            BrokerBody::Published(outcomes) => {
                outcomes.iter().flatten().for_each(|it| self.claims.disown(it.id));
                self.unsent.retire_all(outcomes);
            }
            _ => {}
        }
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
        let BrokerMessage { request, body } = message;
        if request == 0 {
            return self.notice(body, sink);
        }
        let Some(slot) = self.slots.get_mut(&request).filter(|slot| !slot.is_spoilt()) else {
            // An answer that nobody waits for any more.
            let released = self.unsent.answered(request);
            self.claims.released(&released);
            self.turn_down(&body, None);
            return None;
        };
        match &mut slot.content {
            Content::Answer { so_far, whole } => {
                // Known before the next packet is read: that may already say that the buffer ends.
                learn(&mut self.claims, so_far.as_ref(), &body, &slot.kept, sink);
                let joined = match so_far.take() {
                    None => Ok(body),
                    Some(first) => codec::join(first, body, more),
                };
                match joined {
                    Ok(body) => *so_far = Some(body),
                    Err(refusal) => return Some(End::Unreadable(refusal)),
                }
                *whole = !more;
                if more {
                    return None;
                }
                if let ClientBody::Release(leases) = &slot.body {
                    self.claims.released(leases);
                }
                slot.settle();
            }
            Content::Events(events) => {
                if !events.take(body) {
                    return Some(End::Unreadable(Refusal::new(Code::Malformed)));
                }
            }
        }
        slot.wake();
        None
    }

    /// This process has no room for a part of an answer: it is refused as a whole, and what it grants is given back.
    pub(super) fn spoil(&mut self, short: Short, sink: &dyn Sink) {
        short.leases.into_iter().for_each(|lease| self.unsent.release(lease));
        let Some(slot) = self.slots.get_mut(&short.request) else { return };
        let Some(before) = slot.spoil(short.refusal) else { return };
        slot.wake();
        before.iter().for_each(|body| self.turn_down(body, Some(sink)));
        // Its descriptors are closed where nothing is locked.
        if let Some(slot) = self.slots.get_mut(&short.request) {
            slot.spoilt = before;
        }
    }

    /// What nobody asked for: news of leased buffers, or the end of the connection.
    pub(super) fn notice(&mut self, body: BrokerBody, sink: &dyn Sink) -> Option<End> {
        match body {
            BrokerBody::Event(event) => {
                self.sweep |= self.claims.notice(&event) | sink.notice(&event);
                None
            }
            BrokerBody::Refused(refusal) => Some(End::Lost(Some(refusal))),
            // A newer node may say more than this version knows.
            _ => None,
        }
    }

    /// The broker is gone: whatever it has not answered is asked of the next one.
    pub(super) fn away(&mut self, why: End, until: Instant, sink: &dyn Sink) {
        self.link = Link::Away { why, until };
        self.to_ask.clear();
        let mut asked: Vec<RequestId> = self.slots.keys().copied().collect();
        asked.sort_unstable();
        for request in asked {
            let Some(so_far) = self.slots.get_mut(&request).and_then(Slot::ask_again) else { continue };
            self.to_ask.push_back(request);
            so_far.iter().for_each(|body| self.turn_down(body, Some(sink)));
        }
        self.unsent.again();
    }

    /// Whether nothing waits to be sent.
    pub(super) fn all_sent(&self) -> bool {
        self.to_ask.is_empty() && self.unsent.is_empty()
    }

    /// What is to be sent next.
    pub(super) fn next_packet(&mut self) -> Option<(RequestId, Outgoing)> {
        while let Some(&request) = self.to_ask.front() {
            if let Some(slot) = self.slots.get_mut(&request) {
                return Some((request, slot.packet(request)));
            }
            self.to_ask.pop_front();
        }
        let body = self.unsent.first()?;
        let request = self.number();
        Some((request, codec::encode_client(&ClientMessage { request, body })))
    }

    /// The [`next_packet`](Self::next_packet) was sent.
    pub(super) fn sent(&mut self, request: RequestId) {
        if self.to_ask.front() == Some(&request) {
            self.to_ask.pop_front();
        } else {
            self.unsent.sent(request);
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

/// Takes down what this process has from now on.
fn learn(
    claims: &mut Claims,
    so_far: Option<&BrokerBody>,
    body: &BrokerBody,
    kept: &[Kept],
    sink: &dyn Sink,
) {
    let mut granted = |grant: &Grant| {
        claims.granted(grant);
        sink.granted(&grant.buffer);
    };
    match body {
        BrokerBody::Acquired(items) => items.iter().flatten().for_each(&mut granted),
        BrokerBody::AcquiredSet { grants, .. } => grants.iter().for_each(&mut granted),
        BrokerBody::Published(outcomes) => {
            let before = match so_far {
                Some(BrokerBody::Published(outcomes)) => outcomes.len(),
                _ => 0,
            };
            for (outcome, kept) in outcomes.iter().zip(kept.iter().skip(before)) {
                if let Ok(published) = outcome {
                    claims.published(published, kept.clone());
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
