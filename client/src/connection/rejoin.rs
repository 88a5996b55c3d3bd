//! Looking for another broker when one is gone, and having it restore what this process has.
//!
//! This runs on the listener's thread, over a connection that nobody else sees before all is settled.

mod claim;

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu_handoff_protocol::codec;
use gpu_handoff_protocol::message::{BrokerBody, BrokerMessage, ClientBody, ClientMessage};
use gpu_handoff_protocol::socket::{RecvBuffer, SeqPacket, wait};
use gpu_handoff_protocol::{Code, Instance, PROTOCOL_VERSION, Refusal};
use rustix::event::PollFlags;

use super::Connection;
use super::reading::{Read, read};
use super::state::{End, Link, Listener};
use crate::client::check_version;
use crate::error::Fault;
use crate::limits;

/// How a connection is made.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    /// The socket.
    pub(crate) path: PathBuf,
    /// What the hello says.
    pub(crate) program: String,
    /// How long another broker is looked for; zero: not at all.
    pub(crate) patience: Duration,
    /// Whether who waits for what is about to come polls instead of sleeping.
    pub(crate) polls: bool,
}

impl Way {
    pub(crate) fn hello(&self) -> ClientBody {
        ClientBody::Hello { version: PROTOCOL_VERSION, program: self.program.clone() }
    }
}

/// Why an attempt came to nothing.
enum Failed {
    /// It may go better next time.
    ForNow,
    /// It will not.
    ForGood(End),
    /// The lock is poisoned.
    Broken(Fault),
}

impl From<io::Error> for Failed {
    fn from(_: io::Error) -> Self {
        Self::ForNow
    }
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Self::Broken(fault)
    }
}

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Self {
        let end = End::Lost(Some(refusal));
        match &end {
            // Those that the last broker served may not be gone yet.
            End::Lost(Some(refusal)) if refusal.code() == Code::TooManyConnections => Self::ForNow,
            end if end.may_pass() => Self::ForNow,
            _ => Self::ForGood(end),
        }
    }
}

fn unexpected(wanted: &str) -> Failed {
    unreadable(Refusal::new(Code::Malformed).compared_with("answer", wanted, "another"))
}

fn unreadable(refusal: Refusal) -> Failed {
    Failed::ForGood(End::Unreadable(refusal))
}

impl Connection {
    /// Tries until there is another broker, or there is no time left, or the connection was closed.
    pub(super) fn rejoin(&self) -> Result<(), Fault> {
        let mut pause = limits::RETRY_FIRST;
        loop {
            let mut state = self.lock()?;
            let Link::Away { why, until } = &state.link else { return Ok(()) };
            let (why, until) = (why.clone(), *until);
            if state.end.is_some() || Instant::now() >= until {
                self.finish(&mut state, why);
                return Ok(());
            }
            drop(state);
            let outcome = Talk::begin(self, until).and_then(Talk::restore);
            let mut state = self.lock()?;
            match outcome {
                Ok(()) => return Ok(()),
                Err(Failed::Broken(fault)) => return Err(fault),
                Err(Failed::ForGood(end)) => {
                    self.finish(&mut state, end);
                    return Ok(());
                }
                Err(Failed::ForNow) => {}
            }
            if std::mem::take(&mut state.sweep) {
                drop(state);
                self.sweep();
                state = self.lock()?;
            }
            let left = until.saturating_duration_since(Instant::now());
            drop(self.quiet.wait_timeout_while(state, pause.min(left), |state| state.end.is_none())?);
            pause = (pause * 2).min(limits::RETRY_LONGEST);
        }
    }
}

/// A new connection until all is settled on it.
struct Talk<'a> {
    connection: &'a Connection,
    socket: SeqPacket,
    buffer: RecvBuffer,
    until: Instant,
}

impl<'a> Talk<'a> {
    fn begin(connection: &'a Connection, until: Instant) -> Result<Self, Failed> {
        let socket = SeqPacket::connect(&connection.way.path)?;
        Ok(Self { connection, socket, buffer: RecvBuffer::new(), until })
    }

    /// Says hello, claims what this process has, and lets everybody use the connection.
    fn restore(mut self) -> Result<(), Failed> {
        let welcome = match self.ask(self.connection.way.hello())? {
            BrokerBody::Welcome(welcome) => welcome,
            BrokerBody::Refused(refusal) => return Err(refusal.into()),
            _ => return Err(unexpected("a welcome")),
        };
        let welcome = check_version(welcome).map_err(|fault| match fault {
            Fault::Refused(refusal) => Failed::ForGood(End::Lost(Some(refusal))),
            other => Failed::Broken(other),
        })?;
        let sink = &*self.connection.sink;
        let claims = {
            let mut state = self.connection.lock()?;
            // Kept only once all is settled: what a broker was not asked for yet, it expects still, though an attempt
            // ended half way. What had been restored by then has ended, and its claim is refused.
            if state.instance == Some(welcome.instance) {
                // With the last connection this broker has ended all of it.
                state.claims.lose_all(sink);
            }
            state.claims.claimable(sink)
        };
        self.claim_all(claims)?;
        self.hand_over(welcome.instance)
    }

    /// From here on the connection is everybody's; what waits to be asked or told goes out.
    fn hand_over(self, instance: Instance) -> Result<(), Failed> {
        let connection = self.connection;
        let mut state = connection.lock()?;
        if state.end.is_some() {
            self.socket.end();
            return Err(Failed::ForNow);
        }
        state.instance = Some(instance);
        state.link = Link::Up(Arc::new(self.socket));
        connection.sink.rejoined();
        state.sweep = true;
        connection.flush(&mut state);
        state.wake_all();
        Ok(())
    }

    /// Asks, and waits for the whole answer.
    fn ask(&mut self, body: ClientBody) -> Result<BrokerBody, Failed> {
        let request = self.connection.lock()?.number();
        let packet = codec::encode_client(&ClientMessage { request, body });
        while !self.socket.try_send(&packet)? {
            self.wait_for(PollFlags::OUT)?;
        }
        let mut so_far: Option<BrokerBody> = None;
        loop {
            let (message, more) = self.hear()?;
            if message.request != request {
                self.notice(message)?;
                continue;
            }
            let body = match so_far.take() {
                None => message.body,
                Some(first) => codec::join(first, message.body, more).map_err(unreadable)?,
            };
            if !more {
                return Ok(body);
            }
            so_far = Some(body);
        }
    }

    /// The next packet.
    fn hear(&mut self) -> Result<(BrokerMessage, bool), Failed> {
        loop {
            match read(&self.socket, &mut self.buffer) {
                Read::Packet(packet) => return packet.map_err(unreadable),
                // Nothing was asked for yet that brings descriptors.
                Read::Short(short) => return Err(unreadable(short.refusal)),
                Read::Closed => return Err(Failed::ForNow),
                Read::Nothing => {}
            }
            self.wait_for(PollFlags::IN)?;
        }
    }

    /// Until the socket is ready, unless the time is over or the connection was closed.
    fn wait_for(&self, events: PollFlags) -> Result<(), Failed> {
        if self.wait_until(events, self.until)? { Ok(()) } else { Err(Failed::ForNow) }
    }

    /// Waits for the socket or until then; says whether it is ready. Not if the connection is closed meanwhile.
    fn wait_until(&self, events: PollFlags, until: Instant) -> Result<bool, Failed> {
        let mut state = self.connection.lock()?;
        if state.end.is_some() {
            return Err(Failed::ForNow);
        }
        // The bell tells that the connection was closed.
        state.listener = Listener::Polls;
        drop(state);
        let on = [(self.socket.as_fd(), events), (self.connection.bell.as_fd(), PollFlags::IN)];
        let ready = wait(&on, Some(until));
        drop(self.connection.answer_bell()?);
        Ok(ready?)
    }

    /// What nobody asked for: news of what was restored, or that this broker does not want us.
    fn notice(&self, message: BrokerMessage) -> Result<(), Failed> {
        match message.body {
            BrokerBody::Refused(refusal) if message.request == 0 => Err(refusal.into()),
            body if message.request == 0 => {
                // Only a refusal ends the connection.
                let _ = self.connection.lock()?.notice(body, &*self.connection.sink);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
