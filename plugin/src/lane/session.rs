//! An application's connection: its requests go to the registry, what the registry says goes back.
//!
//! The session ends with the connection or with the process that opened it, whichever comes first; a child that
//! inherited the connection does not keep it alive.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use gpu_handoff_protocol::codec;
use gpu_handoff_protocol::message::{
    BrokerBody, BrokerMessage, ClientBody, ClientMessage, EndReason, RequestId, Version, Welcome,
};
use gpu_handoff_protocol::receipt::ProcessKey;
use gpu_handoff_protocol::{Code, PROTOCOL_VERSION, Refusal, limits as wire};
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::{Instrument, debug, info, info_span};

use super::announced::Announced;
use super::in_flight::Line;
use super::outbox::{Outbox, Queued};
use super::vet::WithoutRoom;
use super::{Context, Newcomer, restore, slot};
use crate::identity::Process;
use crate::limits;
use crate::registry::{Ask, Input, SessionFacts, SessionId, WantedSet};
use crate::tells::Teller;

/// The sending side of a session, shared with the lane that brings it the owner's words.
pub(super) struct Peer {
    connection: Rc<Line>,
    /// Whose it is.
    process: ProcessKey,
    outbox: RefCell<Outbox>,
    /// Watches that overflowed and must be ended in the registry.
    overflown: RefCell<Vec<RequestId>>,
    stirred: Notify,
    ended: Cell<bool>,
    announced: Announced,
    teller: Teller,
}

impl Peer {
    fn new(connection: Rc<Line>, process: ProcessKey, context: &Context) -> Self {
        let outbox = RefCell::new(Outbox::new(&context.outboxes));
        let (overflown, stirred, ended) = (RefCell::default(), Notify::new(), Cell::new(false));
        let (announced, teller) = (Announced::new(Rc::clone(&context.vigil)), context.teller.clone());
        Self { connection, process, outbox, overflown, stirred, ended, announced, teller }
    }

    /// Which process it is.
    pub(super) const fn process(&self) -> ProcessKey {
        self.process
    }

    /// Sends now if nothing waits and there is room, else queues.
    pub(super) fn say(&self, message: &BrokerMessage) {
        let watch = match message.body {
            BrokerBody::Event(_) if message.request != 0 => Some(message.request),
            _ => None,
        };
        if matches!(message.body, BrokerBody::Cancelled) {
            self.outbox.borrow_mut().watch_ended(message.request);
        }
        self.announced.tells(message);
        self.teller.overhear(message);
        for packet in codec::encode_broker(message) {
            if self.outbox.borrow().is_empty() {
                match self.connection.try_send(&packet) {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(_) => return self.end(),
                }
            }
            let queued = self.outbox.borrow_mut().push(packet, watch);
            match queued {
                Queued::Yes => self.stirred.notify_one(),
                Queued::Dropped => {}
                Queued::NoRoom => return self.end(),
                Queued::WatchOverflow => self.end_watch(message.request),
            }
        }
    }

    /// Tells the process that its watch has a gap, and the registry that it is over.
    fn end_watch(&self, request: RequestId) {
        self.overflown.borrow_mut().push(request);
        self.stirred.notify_one();
        let refusal = Refusal::new(Code::WatchOverflow);
        self.say(&BrokerMessage { request, body: BrokerBody::Refused(refusal) });
    }

    /// Ends the connection; the session's task notices.
    pub(super) fn end(&self) {
        self.ended.set(true);
        self.connection.end();
        self.stirred.notify_one();
    }

    /// Sends what waits; comes back only if the connection failed.
    async fn flush(&self) {
        loop {
            let first = self.outbox.borrow().first().cloned();
            match first {
                None => std::future::pending().await,
                Some(packet) => match self.connection.send(&packet).await {
                    Ok(()) => self.outbox.borrow_mut().first_is_sent(),
                    Err(_) => return,
                },
            }
        }
    }
}

/// Serves a connection from its hello to its end.
pub(super) async fn serve(context: Rc<Context>, newcomer: Newcomer) {
    let Newcomer { connection, process, place: _place } = newcomer;
    let connection = Line::new(connection, &context.in_flight);
    converse(&context, &connection, process).await;
    // What it has not read stays in flight, and its place is taken, until its end is closed.
    connection.is_read().await;
}

async fn converse(context: &Rc<Context>, connection: &Rc<Line>, process: Process) {
    let id = context.new_session_id();
    let peer = Rc::new(Peer::new(Rc::clone(connection), process.key.into(), context));
    let span = info_span!("session", id = id.0, pid = process.key.pid);
    context.sessions.borrow_mut().insert(id, Rc::clone(&peer));
    let _present = Present { id, context, peer: &peer };
    let session = Session { id, context, peer: &peer, process: &process };
    session.run().instrument(span).await;
}

/// A session that the lane knows. However its task ends, the connection ends and the registry can be told.
struct Present<'a> {
    id: SessionId,
    context: &'a Context,
    peer: &'a Peer,
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.peer.connection.end();
        self.context.sessions.borrow_mut().remove(&self.id);
        if std::thread::panicking() {
            // The orderly way tells it with the true reason. The lane is woken for its own part: here it may be in the
            // middle of anything.
            let ended = Input::SessionEnded(self.id, EndReason::OwnerClosed);
            self.context.shared.owner.apply(None, ended).log();
        }
    }
}

/// Tells every session that the daemon stops, and ends it.
pub(super) async fn farewell(context: &Context) {
    let peers: Vec<Rc<Peer>> = context.sessions.borrow().values().cloned().collect();
    for peer in peers {
        peer.say(&refused(0, Refusal::new(Code::ShuttingDown)));
        peer.end();
    }
    // Lets the sessions' tasks tell the registry.
    tokio::task::yield_now().await;
}

fn refused(request: RequestId, refusal: Refusal) -> BrokerMessage {
    BrokerMessage { request, body: BrokerBody::Refused(refusal) }
}

/// The answer to a request for descriptors, while the member's processes have too many to read.
fn too_many_in_flight(ask: &Ask, refusal: &Refusal) -> BrokerBody {
    match ask {
        Ask::Acquire { items, .. } => {
            BrokerBody::Acquired(items.iter().map(|_| Err(refusal.clone())).collect())
        }
        _ => BrokerBody::Refused(refusal.clone()),
    }
}

/// What has to be done before the registry is asked; or the answer, where it is not asked at all.
type Vetting = Pin<Box<dyn Future<Output = Result<Ask, BrokerBody>>>>;

struct Session<'a> {
    id: SessionId,
    context: &'a Context,
    peer: &'a Rc<Peer>,
    process: &'a Process,
}

impl Session<'_> {
    async fn run(&self) {
        if let Some(home) = &self.context.spec.home
            && let Err(refusal) = home.admit(self.process).await
        {
            return self.refuse(&refusal);
        }
        let patience = Duration::from_millis(wire::HELLO_MS);
        match timeout(patience, self.hello()).await {
            Ok(Ok(())) => {}
            Ok(Err(refusal)) => return self.refuse(&refusal),
            Err(_elapsed) => {
                let limit = format!("within {} ms", wire::HELLO_MS);
                return self.refuse(&Refusal::new(Code::HelloExpected).compared_with("hello", limit, "none"));
            }
        }
        let reason = self.converse().await;
        debug!(session = self.id.0, reason = reason.as_str(), "session ended");
        self.tell(Input::SessionEnded(self.id, reason));
    }

    fn refuse(&self, refusal: &Refusal) {
        if let Some(untold) = self.context.chatter.may_tell() {
            info!(%refusal, untold, "connection refused");
        }
        self.peer.say(&refused(0, refusal.clone()));
        self.peer.end();
    }

    /// The first packet. The registry knows the session before the process is told so.
    async fn hello(&self) -> Result<(), Refusal> {
        let Some(message) = self.next().await? else {
            return Err(Refusal::new(Code::HelloExpected).compared_with(
                "hello",
                "one",
                "end of the connection",
            ));
        };
        let ClientBody::Hello { version, program } = message.body else {
            return Err(Refusal::new(Code::HelloExpected).compared_with("first message", "hello", "another"));
        };
        slot::check_version(version)?;
        if let Some(refusal) = &*self.context.spec.held_back.borrow() {
            return Err(refusal.clone());
        }
        let facts = SessionFacts {
            member: self.context.spec.member,
            own_pid: self.process.own_pid,
            process: self.peer.process(),
            hears_announcements: version >= limits::ANNOUNCEMENTS_SINCE,
            reachable: self.context.device_nodes.of(self.process.key, self.context.spec.home.is_some()).await,
        };
        self.tell(Input::SessionOpened(self.id, facts));
        if let Some(untold) = self.context.chatter.may_tell() {
            info!(program, process = %self.process, untold, "application connected");
        }
        self.peer.say(&BrokerMessage { request: message.request, body: self.welcome(PROTOCOL_VERSION) });
        Ok(())
    }

    fn welcome(&self, version: Version) -> BrokerBody {
        let proven = &self.context.shared.pid_word_proven;
        BrokerBody::Welcome(Welcome {
            version,
            pod: self.context.spec.pod.clone(),
            group: self.context.spec.group.clone(),
            boot: self.context.shared.boot,
            legacy_pid_word_proven: proven.load(std::sync::atomic::Ordering::Relaxed),
            instance: self.context.shared.instance,
        })
    }

    /// Requests and answers until the end; says what ended it.
    async fn converse(&self) -> EndReason {
        let mut vetting: Option<(RequestId, Vetting)> = None;
        loop {
            tokio::select! {
                biased;
                () = self.process.died() => {
                    if let Some(untold) = self.context.chatter.may_tell() {
                        info!(untold, "the process has ended");
                    }
                    return EndReason::OwnerDied;
                }
                ask = async { match &mut vetting { Some((_, v)) => v.await, None => std::future::pending().await } } => {
                    if let Some((request, _)) = vetting.take() {
                        match ask {
                            Ok(ask) => self.tell(Input::Ask(self.id, request, ask)),
                            Err(body) => self.peer.say(&BrokerMessage { request, body }),
                        }
                    }
                }
                () = self.peer.stirred.notified() => {
                    if self.peer.ended.get() {
                        return self.end_reason();
                    }
                    self.end_overflown_watches();
                }
                () = self.peer.flush() => return self.end_reason(),
                received = self.next(), if vetting.is_none() => match received {
                    Ok(Some(message)) => {
                        vetting = self.take(message);
                        // A process that floods must not keep the other tasks of its lane from running.
                        tokio::task::consume_budget().await;
                    }
                    Ok(None) => return self.end_reason(),
                    Err(refusal) => {
                        self.refuse(&refusal);
                        return EndReason::OwnerClosed;
                    }
                },
            }
        }
    }

    /// A connection's end mostly means that its process is ending.
    fn end_reason(&self) -> EndReason {
        if self.process.is_ending() { EndReason::OwnerDied } else { EndReason::OwnerClosed }
    }

    fn end_overflown_watches(&self) {
        let overflown = std::mem::take(&mut *self.peer.overflown.borrow_mut());
        for request in overflown {
            self.tell(Input::Ask(self.id, request, Ask::Cancel(request)));
        }
    }

    async fn next(&self) -> Result<Option<ClientMessage>, Refusal> {
        match self.peer.connection.recv_in(&self.context.buffer).await {
            Ok(Some(frame)) => {
                self.process.check_sender(frame.sender)?;
                codec::decode_client(frame).map(Some)
            }
            Ok(None) => Ok(None),
            Err(e) => {
                debug!(error = %e, "receiving failed");
                Ok(None)
            }
        }
    }

    /// Passes a request on to the registry; a publish has to be vetted first, and comes back as that.
    fn take(&self, message: ClientMessage) -> Option<(RequestId, Vetting)> {
        let ClientMessage { request, body } = message;
        let after = |d: Duration| Some(d).filter(|d| !d.is_zero()).map(|d| Instant::now() + d);
        let ask = match body {
            ClientBody::Publish(items) => {
                self.peer.announced.publishes(request, &items);
                let (boot, inspector) = (self.context.shared.boot, Rc::clone(&self.context.inspector));
                let vetted = self.context.vetting.begin(items, boot, inspector, WithoutRoom::Refused);
                return Some((request, Box::pin(async move { Ok(Ask::Publish(vetted.await)) })));
            }
            ClientBody::PublishSet { part, items } => {
                let (boot, inspector) = (self.context.shared.boot, Rc::clone(&self.context.inspector));
                let vetted = self.context.vetting.begin(items, boot, inspector, WithoutRoom::Refused);
                return Some((request, Box::pin(async move { Ok(Ask::PublishSet(part, vetted.await)) })));
            }
            ClientBody::AcquireSet { name, newer_than, wait, device } => {
                Ask::AcquireSet { wanted: WantedSet { name, newer_than, device }, until: after(wait) }
            }
            ClientBody::Acquire { items, wait, device } => Ask::Acquire { items, until: after(wait), device },
            ClientBody::Release(leases) => Ask::Release(leases),
            ClientBody::Retire { id, deadline } => Ask::Retire { id, until: after(deadline) },
            ClientBody::Watch => Ask::Watch,
            ClientBody::Cancel { request } => Ask::Cancel(request),
            ClientBody::Announce(names) => {
                self.context.inspector.announce();
                self.peer.announced.by_process(&names);
                Ask::Announce(names)
            }
            ClientBody::Reattach(claims) => {
                let shown =
                    restore::check(self.context, claims.into_iter().map(restore::Item::from).collect());
                return Some((request, Box::pin(async move { Ok(Ask::Reattach(shown.await)) })));
            }
            ClientBody::Hello { .. } => {
                self.refuse(&Refusal::new(Code::HelloExpected).compared_with("hello", "one", "a second"));
                return None;
            }
        };
        let wants_descriptors = matches!(ask, Ask::Acquire { .. } | Ask::AcquireSet { .. });
        let Context { in_flight, outboxes, .. } = self.context;
        if wants_descriptors && in_flight.check(outboxes.descriptors()).is_err() {
            return Some((request, self.wait_for_room(ask)));
        }
        self.tell(Input::Ask(self.id, request, ask));
        None
    }

    /// Waits for room in flight before a request for descriptors is passed on.
    fn wait_for_room(&self, ask: Ask) -> Vetting {
        let (in_flight, waiting) = (Rc::clone(&self.context.in_flight), self.context.outboxes.clone());
        Box::pin(async move {
            match in_flight.room(&waiting).await {
                Ok(()) => Ok(ask),
                Err(refusal) => Err(too_many_in_flight(&ask, &refusal)),
            }
        })
    }

    fn tell(&self, input: Input) {
        self.context.tell(input);
    }
}
