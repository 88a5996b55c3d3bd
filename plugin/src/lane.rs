//! Where strangers' bytes and descriptors are received: one thread for each member.
//!
//! Closing a foreign file can block for as long as its sender likes. So everything that a member sends is received,
//! looked at and closed in that member's own thread, and a member that makes its thread wait hurts only itself. A
//! descriptor that is refused is dropped right here; one that is being checked is kept here until its verdict; one that
//! was found to be GPU memory is the registry's, which gives it back here to be closed when its buffer ends. Only such
//! proven ones are ever sent to other members, and may be closed last by them or by what waits for them. The
//! thread runs a small runtime of its own: a listener on the slot, the sidecar's connections, and one task for each
//! application's connection that a sidecar handed on.
//!
//! | concern | file |
//! |---|---|
//! | the sidecar's connection; connections handed on | [`slot`] |
//! | an application's connection | [`session`] |
//! | staying awake for what is announced to it | [`announced`] |
//! | what waits to be sent to it | [`outbox`] |
//! | descriptors that were sent and are unread | [`in_flight`] |
//! | what is published, before the registry sees it | [`vet`] |
//! | what the sidecar keeps for the next daemon | [`keepsakes`] |
//! | what comes back from an earlier one | [`restore`], [`offers`] |
//! | how many connections there may be | [`places`] |
//! | how much of it is told to the log | [`chatter`] |
//! | its thread, from its start to its end | [`thread`] |

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gpu_handoff_policy::Quota;
use gpu_handoff_protocol::message::{BrokerBody, BrokerMessage, Grant};
use gpu_handoff_protocol::socket::RecvBuffer;
use gpu_handoff_protocol::socket_tokio::{AsyncSeqListener, AsyncSeqPacket};
use gpu_handoff_protocol::{BootTag, GroupKey, Instance, PodRef, PodUid, Refusal, SlotId};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{Instrument, info, warn};

use crate::awake::Room;
use crate::gpu::{Inspector, Reach};
use crate::identity::{Door, Home};
use crate::limits;
use crate::members::Holds;
use crate::node::client::{DeviceNodes, SlotDeviceNodes};
use crate::owner::{LaneCommand, LaneHandle, Owner};
use crate::receipts::Sealer;
use crate::registry::{Input, MemberId, SessionId};
use crate::tells::{Teller, Tells};

mod announced;
mod chatter;
pub(crate) mod in_flight;
mod keepsakes;
mod offers;
mod outbox;
mod places;
mod restore;
mod session;
mod slot;
mod thread;
mod vet;

use announced::Vigil;
use chatter::Chatter;
use in_flight::InFlight;
use keepsakes::Keepsakes;
use outbox::Tally;
use places::{Place, Places};
use restore::Absent;
use session::Peer;
pub use thread::{Lane, start};

/// What a lane serves.
#[derive(Debug, Clone)]
pub struct LaneSpec {
    /// The member.
    pub member: MemberId,
    /// Its pod.
    pub pod: PodRef,
    /// Its slot.
    pub slot: SlotId,
    /// Which of all pods of that name it is.
    pub uid: PodUid,
    /// Its group.
    pub group: GroupKey,
    /// Who may speak for it.
    pub door: Door,
    /// Where they are; `None`: the node knows of no containers.
    pub home: Option<Arc<Home>>,
    /// What it may hold.
    pub quota: watch::Receiver<Quota>,
    /// What its connections are refused with, if they are: its applications are not to be started yet.
    pub held_back: watch::Receiver<Option<Refusal>>,
    /// The GPUs it holds.
    pub holds: watch::Receiver<Holds>,
}

/// What all lanes use.
#[derive(Debug, Clone)]
pub struct Shared {
    /// The registry.
    pub owner: Arc<Owner>,
    /// The GPU workers.
    pub workers: Reach,
    /// The node's boot.
    pub boot: BootTag,
    /// What makes and reads receipts.
    pub sealer: Arc<Sealer>,
    /// Which broker this is.
    pub instance: Instance,
    /// Numbers for sessions.
    pub next_session: Arc<AtomicU64>,
    /// How many descriptors a member may have in flight.
    pub in_flight: usize,
    /// Room for those that poll for a moment instead of sleeping.
    pub awake: Room,
    /// What owners of pods are to read.
    pub tells: Arc<Tells>,
    /// Whether the self-test of legacy handles has passed.
    pub pid_word_proven: Arc<AtomicBool>,
    /// Of which GPUs a process has the device nodes.
    pub device_nodes: DeviceNodes,
    /// Told when the daemon stops.
    pub stop: watch::Receiver<bool>,
}

/// A state of the lane's thread that all of its tasks see.
pub(crate) struct Context {
    pub(crate) spec: LaneSpec,
    pub(crate) shared: Shared,
    /// What the registry says to the lane.
    queue: LaneHandle,
    /// The sessions by number: where that goes.
    sessions: RefCell<HashMap<SessionId, Rc<Peer>>>,
    /// How many connections to the slot there are.
    slot_connections: Places,
    /// Tasks to be run by the lane, so that they outlive the sidecar that brought them.
    newcomers: mpsc::Sender<Newcomer>,
    /// Connections of applications, from the door to their end.
    connections: Places,
    /// What waits to be sent to all of the member's processes.
    outboxes: Tally,
    /// Descriptors that were sent to them, and are unread.
    in_flight: Rc<InFlight>,
    /// What is being vetted: it outlives the session that asked.
    vetting: vet::Desk,
    /// What the sidecar keeps for the next daemon.
    keepsakes: Keepsakes,
    /// Answers to the sidecars' offers, by their number.
    offers: offers::Answers,
    /// Processes that have not reattached.
    absent: Absent,
    /// The context itself, for what is watched on its behalf.
    this: Weak<Context>,
    /// What its member has it write to the log.
    chatter: Chatter,
    /// What the pod's owner is to read.
    teller: Teller,
    /// Of which GPUs a process of the member has the device nodes.
    device_nodes: SlotDeviceNodes,
    /// The way to the GPU workers.
    inspector: Rc<Inspector>,
    /// Whether the lane's thread sleeps.
    vigil: Rc<Vigil>,
    /// Room for the packet that is being received, whoever sent it: no task keeps it while it waits.
    buffer: Rc<RefCell<RecvBuffer>>,
}

/// An application's connection that passed the door.
pub(crate) struct Newcomer {
    connection: AsyncSeqPacket,
    process: crate::identity::Process,
    place: Place,
}

impl Context {
    fn new_session_id(&self) -> SessionId {
        SessionId(self.shared.next_session.fetch_add(1, Ordering::Relaxed))
    }

    /// Applies an input in this thread. What it means for the lane's own sessions is done when this comes back.
    pub(crate) fn tell(&self, input: Input) {
        let notes = self.shared.owner.apply(Some(self.spec.member), input);
        self.obey();
        notes.log();
    }

    /// Does what waits in the lane's queue, in order.
    fn obey(&self) {
        // Not what is added meanwhile: the lane is woken for that.
        for _ in 0..self.queue.waiting() {
            match self.queue.next() {
                Some(command) => self.obey_one(command),
                None => break,
            }
        }
        if self.queue.was_overrun() {
            self.keepsakes.forget_fresh();
            // What the sidecar was to keep or to forget may be among what was lost.
            self.keepsakes.depose();
            // And so may whose end was to be watched.
            self.absent.let_all_go();
            for peer in self.sessions.borrow().values() {
                peer.end();
            }
        }
    }

    fn obey_one(&self, command: LaneCommand) {
        match command {
            LaneCommand::Send(session, messages) => self.send(session, messages),
            LaneCommand::EndSession(session) => {
                if let Some(peer) = self.peer(session) {
                    peer.end();
                }
            }
            LaneCommand::Dispose(carrier) => drop(carrier),
            LaneCommand::Keep(all) => self.keepsakes.keep(&self.spec, &self.shared.sealer, all),
            LaneCommand::Forget(ended) => {
                for (id, carrier) in ended {
                    self.keepsakes.forget(id);
                    drop(carrier);
                }
            }
            LaneCommand::Offered(token, outcomes) => self.offers.answer(token, outcomes),
            LaneCommand::AwaitEnd(holder, process) => {
                if let Some(this) = self.this.upgrade() {
                    self.absent.watch(&this, holder, process);
                }
            }
            LaneCommand::AwaitNoMore(holder) => self.absent.let_go(holder),
        }
    }

    fn peer(&self, session: SessionId) -> Option<Rc<Peer>> {
        self.sessions.borrow().get(&session).cloned()
    }

    fn send(&self, session: SessionId, messages: Vec<BrokerMessage>) {
        let peer = self.peer(session);
        for mut message in messages {
            self.add_receipts(&mut message.body, peer.as_deref());
            if let Some(peer) = &peer {
                peer.say(&message);
            }
        }
    }

    /// Whoever gets something that is to outlive the daemon gets its receipt along.
    fn add_receipts(&self, body: &mut BrokerBody, peer: Option<&Peer>) {
        match (body, peer) {
            (BrokerBody::Published(items), _) => {
                for published in items.iter_mut().flatten() {
                    published.receipt = self.keepsakes.fresh(published.id);
                }
            }
            (BrokerBody::Acquired(items), Some(peer)) => {
                items.iter_mut().flatten().for_each(|grant| self.add_receipt(grant, peer));
            }
            (BrokerBody::AcquiredSet { grants, .. }, Some(peer)) => {
                grants.iter_mut().for_each(|grant| self.add_receipt(grant, peer));
            }
            _ => {}
        }
    }

    fn add_receipt(&self, grant: &mut Grant, peer: &Peer) {
        let receipt = keepsakes::lease_receipt(&self.spec, &self.shared.sealer, peer.process(), grant);
        grant.receipt = receipt;
    }
}

async fn run(
    spec: LaneSpec,
    shared: Shared,
    listener: AsyncSeqListener,
    queue: LaneHandle,
    mut leave: watch::Receiver<bool>,
) {
    let mut stop = shared.stop.clone();
    let (newcomers, mut arrivals) = mpsc::channel(limits::SLOT_CONNECTIONS);
    let buffer = Rc::new(RefCell::new(RecvBuffer::new()));
    let in_flight = shared.in_flight;
    let inspector =
        Inspector::new(shared.workers.clone(), spec.member.0, spec.holds.clone(), Rc::clone(&buffer));
    let device_nodes = shared.device_nodes.of_slot(spec.slot.clone());
    let teller = Teller::new(Arc::clone(&shared.tells), spec.slot.clone());
    let vigil = Rc::new(Vigil::new(shared.awake.clone()));
    let desk = vet::Desk::new(in_flight, spec.quota.clone());
    let context = Rc::new_cyclic(|this| Context {
        spec,
        shared,
        queue,
        sessions: RefCell::default(),
        slot_connections: Places::default(),
        newcomers,
        connections: Places::default(),
        outboxes: Tally::default(),
        in_flight: InFlight::new(in_flight),
        vetting: desk,
        keepsakes: Keepsakes::default(),
        offers: offers::Answers::default(),
        absent: Absent::default(),
        this: Weak::clone(this),
        chatter: Chatter::new(),
        teller,
        device_nodes,
        inspector: Rc::new(inspector),
        vigil: Rc::clone(&vigil),
        buffer,
    });
    info!("serving");
    let mut tasks = JoinSet::new();
    tasks.spawn_local(async move { vigil.keep().await });
    let mut rest_until = Instant::now();
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stopping| *stopping) => break,
            _ = leave.wait_for(|leaving| *leaving) => {
                // What its end means for its sessions and its descriptors is in the queue.
                context.obey();
                break;
            }
            () = context.queue.stirred() => context.obey(),
            Some(newcomer) = arrivals.recv() => {
                tasks.spawn_local(session::serve(Rc::clone(&context), newcomer).in_current_span());
            }
            accepted = listener.accept_from(rest_until) => match accepted {
                Ok(fd) => { tasks.spawn_local(slot::serve(Rc::clone(&context), fd).in_current_span()); }
                Err(e) => {
                    warn!(error = %e, "a sidecar could not be accepted");
                    rest_until = Instant::now() + limits::ACCEPT_PAUSE;
                }
            },
            Some(done) = tasks.join_next() => {
                if let Err(e) = done {
                    warn!(error = %e, "a connection's task broke off");
                }
            }
        }
    }
    session::farewell(&context).await;
    tasks.shutdown().await;
    context.vetting.finish().await;
    context.absent.finish().await;
}
