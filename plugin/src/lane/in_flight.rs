//! Descriptors in flight: sent to a member's processes, and not read. The kernel counts them for the daemon's user, over
//! all members, and sends none at all where they are too many; so each member may have a limited number of them.
//!
//! Nothing tells when a packet is read. But the kernel says how much of what was sent on a connection is unread, and
//! packets are read in order: what does not fit into that was read. This is looked at only when the count says that the
//! limit is reached. A connection that is over counts on, and keeps its place, until its other end is read or gone.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::{Rc, Weak};

use gpu_handoff_protocol::codec::{Frame, Outgoing};
use gpu_handoff_protocol::limits::MESSAGE_DESCRIPTORS;
use gpu_handoff_protocol::socket::RecvBuffer;
use gpu_handoff_protocol::socket_tokio::AsyncSeqPacket;
use gpu_handoff_protocol::{Code, Refusal};
use gpu_handoff_sys::options;
use tokio::time::{Instant, sleep};

use super::outbox::Tally;
use crate::limits;

/// How many descriptors one member may have in flight, where the daemon may have so many open.
pub(crate) fn limit(descriptors: u64) -> usize {
    let share = limits::IN_FLIGHT_OF_MEMBER.min(descriptors / limits::IN_FLIGHT_SHARE);
    usize::try_from(share).unwrap_or(usize::MAX).max(MESSAGE_DESCRIPTORS)
}

/// What one member has in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    limit: usize,
    /// At least as many as there are.
    count: Cell<usize>,
    lines: RefCell<Vec<Weak<Line>>>,
}

impl InFlight {
    pub(super) fn new(limit: usize) -> Rc<Self> {
        Rc::new(Self { limit, count: Cell::new(0), lines: RefCell::default() })
    }

    /// Whether as many more may be sent.
    fn has_room(&self, more: usize) -> bool {
        self.count.get() + more <= self.limit || {
            self.settle();
            self.count.get() + more <= self.limit
        }
    }

    /// Refuses to promise further ones, while so many wait to be sent.
    pub(super) fn check(&self, waiting: usize) -> Result<(), Refusal> {
        if self.has_room(waiting + 1) {
            return Ok(());
        }
        let (wanted, found) = (format!("fewer than {}", self.limit), self.count.get() + waiting);
        Err(Refusal::new(Code::QuotaInFlight).compared_with("unread descriptors", wanted, found))
    }

    /// Waits until further ones may be promised, but not for long.
    pub(super) async fn room(&self, waiting: &Tally) -> Result<(), Refusal> {
        let until = Instant::now() + limits::IN_FLIGHT_PATIENCE;
        loop {
            match self.check(waiting.descriptors()) {
                Err(_) if Instant::now() < until => sleep(limits::IN_FLIGHT_PAUSE).await,
                outcome => return outcome,
            }
        }
    }

    /// Looks what was read meanwhile.
    fn settle(&self) {
        for line in self.lines.borrow().iter().filter_map(Weak::upgrade) {
            line.settle();
        }
    }

    fn reserve(self: &Rc<Self>, more: usize) -> Option<Reserved> {
        self.has_room(more).then(|| {
            self.count.set(self.count.get() + more);
            Reserved { of_member: Rc::clone(self), descriptors: more }
        })
    }
}

/// Room in flight, given back when it is dropped.
#[derive(Debug)]
struct Reserved {
    of_member: Rc<InFlight>,
    descriptors: usize,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let count = &self.of_member.count;
        count.set(count.get() - self.descriptors);
    }
}

/// A packet with descriptors that was sent.
#[derive(Debug)]
struct Sent {
    bytes: usize,
    _room: Reserved,
}

/// A connection of a member's, and what is in flight on it.
#[derive(Debug)]
pub(super) struct Line {
    connection: AsyncSeqPacket,
    of_member: Rc<InFlight>,
    /// Packets with descriptors that may be unread, in order.
    sent: RefCell<VecDeque<Sent>>,
}

impl Line {
    pub(super) fn new(connection: AsyncSeqPacket, of_member: &Rc<InFlight>) -> Rc<Self> {
        let (sent, member) = (RefCell::default(), Rc::clone(of_member));
        let line = Rc::new(Self { connection, of_member: member, sent });
        let mut lines = of_member.lines.borrow_mut();
        lines.retain(|line| line.strong_count() > 0);
        lines.push(Rc::downgrade(&line));
        line
    }

    /// Sends without waiting; `Ok(false)`: there is no room, in flight or in the peer's queue.
    pub(super) fn try_send(&self, packet: &Outgoing) -> io::Result<bool> {
        if packet.descriptors.is_empty() {
            return self.connection.try_send(packet);
        }
        let Some(room) = self.of_member.reserve(packet.descriptors.len()) else { return Ok(false) };
        let sent = self.connection.try_send(packet)?;
        if sent {
            self.note(packet, room);
        }
        Ok(sent)
    }

    /// Sends, waiting for room. Safe to cancel.
    pub(super) async fn send(&self, packet: &Outgoing) -> io::Result<()> {
        if packet.descriptors.is_empty() {
            return self.connection.send(packet).await;
        }
        let mut pause = limits::IN_FLIGHT_FIRST_PAUSE;
        let room = loop {
            match self.of_member.reserve(packet.descriptors.len()) {
                Some(room) => break room,
                None => sleep(pause).await,
            }
            pause = limits::IN_FLIGHT_PAUSE.min(pause * 2);
        };
        self.connection.send(packet).await?;
        self.note(packet, room);
        Ok(())
    }

    fn note(&self, packet: &Outgoing, room: Reserved) {
        let bytes = packet.bytes.len() + limits::PACKET_OVERHEAD_BYTES;
        self.sent.borrow_mut().push_back(Sent { bytes, _room: room });
    }

    /// Forgets what was read. Packets without descriptors are not counted, so what is kept is not less than what is there.
    fn settle(&self) {
        let mut sent = self.sent.borrow_mut();
        if sent.is_empty() {
            return;
        }
        // A kernel that does not tell leaves everything counted until the connection is over.
        let unread = options::unread_bytes(self.connection.as_fd()).unwrap_or(usize::MAX);
        let mut newest = 0usize;
        let kept = sent.iter().rev().take_while(|packet| {
            newest = newest.saturating_add(packet.bytes);
            newest <= unread
        });
        let read = sent.len() - kept.count();
        sent.drain(..read);
    }

    /// Comes back when nothing of what was sent is unread: read, or thrown away with the other end.
    pub(super) async fn is_read(&self) {
        loop {
            self.settle();
            if self.sent.borrow().is_empty() {
                return;
            }
            sleep(limits::IN_FLIGHT_PAUSE).await;
        }
    }

    pub(super) async fn recv_in(&self, buffer: &RefCell<RecvBuffer>) -> io::Result<Option<Frame>> {
        self.connection.recv_in(buffer).await
    }

    /// Ends the connection for both sides.
    pub(super) fn end(&self) {
        self.connection.end();
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

#[cfg(test)]
mod tests;
