//! Who reads the socket, and what becomes of what was read.
//!
//! Of the threads that wait, one holds the read token (the receive buffer) and polls the socket; it hands the others
//! what is theirs. When it leaves, the next takes the token.

use std::os::fd::AsFd;
use std::sync::MutexGuard;
use std::time::Instant;

use gpu_handoff_protocol::Refusal;
use gpu_handoff_protocol::codec::{self, Short};
use gpu_handoff_protocol::message::{BrokerBody, BrokerMessage, RequestId};
use gpu_handoff_protocol::socket::{Received, RecvBuffer, SeqPacket, wait};
use rustix::event::PollFlags;

use super::Connection;
use super::slot::Slot;
use super::state::{End, Link, Listener, State};
use crate::deadline::after;
use crate::error::Fault;
use crate::limits;

/// What reading the socket gave.
pub(super) enum Read {
    Packet(Result<(BrokerMessage, bool), Refusal>),
    /// A part of an answer for whose descriptors this process has no room.
    Short(Short),
    Nothing,
    Closed,
}

impl Connection {
    /// Waits until `take` finds something in the slot, reading the socket if nobody else does.
    pub(super) fn wait<T>(
        &self,
        request: RequestId,
        deadline: Instant,
        mut take: impl FnMut(&mut Slot) -> Option<Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let (started, mut tried) = (Instant::now(), false);
        let mut state = self.lock()?;
        state.waiting += 1;
        state.waits = state.waits.wrapping_add(1);
        let outcome = loop {
            if let Some(outcome) = state.slot(request).and_then(&mut take) {
                break outcome;
            }
            if let Some(end) = &state.end {
                break Err(end.fault());
            }
            // Looked at after one attempt, so that no time at all is still enough for what is there.
            if tried && Instant::now() >= deadline {
                break Err(Fault::TimedOut(started.elapsed()));
            }
            tried = true;
            // Where there is no broker nobody reads: the listener wakes all once there is one again.
            let lead = state.socket().and_then(|socket| Some((socket, state.reader.take()?)));
            state = match lead {
                Some((socket, buffer)) => self.lead(state, &socket, buffer, deadline)?,
                None => Self::follow(state, request, deadline)?,
            };
        };
        self.leave(&mut state);
        outcome
    }

    /// Holds the read token until one packet has come, or the deadline.
    fn lead<'a>(
        &'a self,
        unlocked: MutexGuard<'a, State>,
        socket: &SeqPacket,
        mut buffer: RecvBuffer,
        deadline: Instant,
    ) -> Result<MutexGuard<'a, State>, Fault> {
        let awake_until = unlocked.awake_until;
        drop(unlocked);
        let early =
            awake_until.map_or(Read::Nothing, |until| watch(socket, &mut buffer, until.min(deadline)));
        let read = match early {
            Read::Nothing => match wait(&[(socket.as_fd(), PollFlags::IN)], Some(deadline)) {
                Ok(true) => read(socket, &mut buffer),
                Ok(false) => Read::Nothing,
                Err(_) => Read::Closed,
            },
            early => early,
        };
        let mut state = self.lock()?;
        state.awake_until = None;
        state.reader = Some(buffer);
        self.take_in(&mut state, read);
        Ok(state)
    }

    /// Sleeps until the holder of the read token has something for this request, or hands the token on.
    fn follow(
        mut state: MutexGuard<'_, State>,
        request: RequestId,
        deadline: Instant,
    ) -> Result<MutexGuard<'_, State>, Fault> {
        let Some(wake) = state.slot(request).map(Slot::enter) else {
            return Err(Fault::unexpected("an open request"));
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let (mut state, _) = wake.wait_timeout(state, left)?;
        if let Some(slot) = state.slot(request) {
            slot.leave();
        }
        Ok(state)
    }

    /// Hands the read token on, and wakes the listener if it sleeps until the last waiting thread has left.
    fn leave(&self, state: &mut State) {
        state.waiting -= 1;
        if state.waiting > 0 {
            state.wake_one();
        } else if state.listener == Listener::Sleeps {
            self.quiet.notify_one();
        }
    }

    /// Gives what was read to whom it belongs.
    pub(super) fn take_in(&self, state: &mut State, read: Read) {
        match read {
            Read::Nothing => return,
            Read::Closed => self.lose(state, End::Lost(None)),
            Read::Short(short) => state.spoil(short, &*self.sink),
            // Whoever waits for it is awake now, and waits on.
            Read::Packet(Ok((BrokerMessage { body: BrokerBody::Announced, .. }, _))) => {
                state.awake_until = self.way.polls.then(|| after(limits::AWAKE));
            }
            Read::Packet(packet) => {
                let end = match packet {
                    Ok((message, more)) => state.dispatch(message, more, &*self.sink),
                    Err(refusal) => Some(End::Unreadable(refusal)),
                };
                if let Some(end) = end {
                    self.lose(state, end);
                }
            }
        }
        if state.sweep {
            self.wake_listener(state);
        }
        self.flush(state);
    }

    /// The broker is gone. Another one is looked for, unless it is gone for a fault of this process.
    pub(super) fn lose(&self, state: &mut State, end: End) {
        if self.way.patience.is_zero() || state.instance.is_none() || state.end.is_some() || !end.may_pass() {
            return self.finish(state, end);
        }
        if let Link::Up(socket) = &state.link {
            socket.end();
        }
        state.away(end, after(self.way.patience), &*self.sink);
        // Those that wait have no use for the read token.
        state.wake_all();
        self.wake_listener(state);
    }

    /// It is all over.
    pub(super) fn finish(&self, state: &mut State, end: End) {
        if let Link::Up(socket) = &state.link {
            socket.end();
        }
        if state.end.is_none() {
            state.end = Some(end);
            state.unsent.clear();
            state.claims.lose_all(&*self.sink);
            state.sweep = true;
            self.sink.lost();
        }
        state.wake_all();
        self.wake_listener(state);
    }
}

/// Reads the packet that is about to come, without sleeping.
fn watch(socket: &SeqPacket, buffer: &mut RecvBuffer, until: Instant) -> Read {
    while Instant::now() < until {
        match read(socket, buffer) {
            // What is awaited may be done by this very processor.
            Read::Nothing => std::thread::yield_now(),
            other => return other,
        }
    }
    Read::Nothing
}

/// Reads one packet, if there is one.
pub(super) fn read(socket: &SeqPacket, buffer: &mut RecvBuffer) -> Read {
    match socket.try_recv(buffer) {
        Ok(Received::Frame(frame)) if frame.control_truncated => match codec::decode_short(frame) {
            Ok(short) => Read::Short(short),
            Err(refusal) => Read::Packet(Err(refusal)),
        },
        Ok(Received::Frame(frame)) => Read::Packet(codec::decode_broker(frame)),
        Ok(Received::Nothing) => Read::Nothing,
        Ok(Received::Closed) | Err(_) => Read::Closed,
    }
}
