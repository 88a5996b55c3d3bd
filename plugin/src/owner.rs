//! The one task that owns the registry: everybody else sends it inputs, it hands out the effects.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use gpu_handoff_protocol::message::{BrokerMessage, Carrier};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tracing::{debug, info, warn};

use crate::limits;
use crate::registry::{Counters, Effect, Input, MemberId, Note, Registry, SessionId};

/// What the owner tells a lane.
#[derive(Debug)]
pub enum LaneCommand {
    /// Send these to a session, in order.
    Send(SessionId, Vec<BrokerMessage>),
    /// Close this.
    Dispose(Carrier),
    /// End a session's connection.
    EndSession(SessionId),
}

/// Where the owner reaches a lane.
#[derive(Debug, Clone)]
pub struct LaneHandle {
    commands: mpsc::Sender<LaneCommand>,
    overrun: Arc<AtomicBool>,
}

impl LaneHandle {
    /// A handle on a lane's command queue. The lane ends all its sessions when it finds `overrun` set.
    #[must_use]
    pub fn new(commands: mpsc::Sender<LaneCommand>, overrun: Arc<AtomicBool>) -> Self {
        Self { commands, overrun }
    }

    /// Hands a command over without waiting. A full queue means that the lane is stuck on a descriptor of its member:
    /// only that member suffers, by losing its sessions.
    fn give(&self, member: MemberId, command: LaneCommand) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.commands.try_send(command)
            && !self.overrun.swap(true, Ordering::Relaxed)
        {
            warn!(member = member.0, "the member's lane does not keep up: its sessions end");
        }
    }
}

/// What the owner is sent.
#[derive(Debug)]
pub struct Mail {
    /// What happened.
    pub input: Input,
    /// The sender's place in the queue, given back when the input has been dealt with. A member has few: however much it
    /// asks, the others do not wait long.
    pub turn: Option<OwnedSemaphorePermit>,
}

impl From<Input> for Mail {
    fn from(input: Input) -> Self {
        Self { input, turn: None }
    }
}

/// The registry with its mail.
#[derive(Debug)]
pub struct Owner {
    registry: Registry,
    inbox: mpsc::Receiver<Mail>,
    lanes: HashMap<MemberId, LaneHandle>,
    sessions: HashMap<SessionId, MemberId>,
}

impl Owner {
    /// An owner that serves these lanes.
    #[must_use]
    pub fn new(
        registry: Registry,
        inbox: mpsc::Receiver<Mail>,
        lanes: HashMap<MemberId, LaneHandle>,
    ) -> Self {
        Self { registry, inbox, lanes, sessions: HashMap::new() }
    }

    /// Serves until told to stop, or until nobody is left to send inputs.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        loop {
            let due = self.registry.next_deadline();
            let Mail { input, turn } = tokio::select! {
                mail = self.inbox.recv() => match mail { Some(mail) => mail, None => break },
                () = sleep_until(due) => Input::Tick.into(),
                _ = stop.wait_for(|stopping| *stopping) => break,
            };
            let begun = Instant::now();
            self.take(input);
            drop(turn);
            if begun.elapsed() >= limits::OWNER_TIME {
                // Answers of the GPU worker wait for this thread too.
                tokio::task::yield_now().await;
            }
        }
        let (buffers, leases, sessions) = self.registry.counts();
        let Counters { published, granted, released, refused } = self.registry.counters();
        info!(buffers, leases, sessions, published, granted, released, refused, "the registry stops");
    }

    fn take(&mut self, input: Input) {
        let mut ended = None;
        match &input {
            Input::SessionOpened(session, facts) => {
                self.sessions.insert(*session, facts.member);
            }
            Input::SessionEnded(session, reason) => {
                debug!(session = session.0, reason = reason.as_str(), "session ended");
                ended = Some(*session);
            }
            _ => {}
        }
        // What is written to the log waits until everybody has been told.
        let mut notes = Vec::new();
        let mut effects = self.registry.apply(input, Instant::now()).into_iter().peekable();
        while let Some(effect) = effects.next() {
            match effect {
                Effect::Note(note) => notes.push(note),
                Effect::Send(session, message) => {
                    // What is said to one session at a time is one command: a watch may begin with very much.
                    let mut messages = vec![message];
                    while let Some(Effect::Send(_, more)) = effects.next_if(|e| e.is_said_to(session)) {
                        messages.push(more);
                    }
                    self.to_session(session, LaneCommand::Send(session, messages));
                }
                Effect::EndSession(session) => self.to_session(session, LaneCommand::EndSession(session)),
                Effect::Dispose(member, carrier) => self.to_lane(member, LaneCommand::Dispose(carrier)),
            }
        }
        for note in &notes {
            self.log(note);
        }
        if let Some(session) = ended {
            self.sessions.remove(&session);
        }
    }

    fn to_session(&self, session: SessionId, command: LaneCommand) {
        if let Some(member) = self.sessions.get(&session) {
            self.to_lane(*member, command);
        }
    }

    fn to_lane(&self, member: MemberId, command: LaneCommand) {
        if let Some(lane) = self.lanes.get(&member) {
            lane.give(member, command);
        }
    }

    fn log(&self, note: &Note) {
        match note {
            Note::Published(b) => info!(
                buffer = %b.id, pod = %b.owner, name = %b.facts.name, generation = b.generation,
                kind = b.facts.kind.as_str(), bytes = b.facts.size, device = %b.facts.device, verified = b.verified,
                "buffer published"
            ),
            Note::Leased(lease, buffer, session) => {
                let member = self.sessions.get(session).map(|m| m.0);
                debug!(%buffer, %lease, member, "lease given");
            }
            Note::Ending(buffer, reason, leases) => {
                info!(%buffer, reason = reason.as_str(), leases, "buffer takes no new leases");
            }
            Note::Orphaned(buffer, reason, leases) => {
                warn!(%buffer, reason = reason.as_str(), leases, "buffer ended, and leases are left");
            }
            Note::Gone(buffer, reason) => info!(%buffer, reason = reason.as_str(), "buffer gone"),
        }
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
