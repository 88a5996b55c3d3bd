use std::collections::BTreeSet;
use std::hash::RandomState;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use gpu_handoff_protocol::codec;
use gpu_handoff_protocol::message::{SidecarBody, SidecarMessage, SlotBody};
use gpu_handoff_protocol::socket::RecvBuffer;
use gpu_handoff_protocol::socket_tokio::AsyncSeqPacket;
use gpu_handoff_protocol::{BootTag, DeviceUuid, Instance, PROTOCOL_VERSION};
use tokio::sync::watch;

use super::*;
use crate::awake::Room;
use crate::closer::testing::{LINGER, is_closed, send_late};
use crate::gpu::{Gpus, Starter, Workers};
use crate::identity::cgroup::{ContainerId, Root};
use crate::journal::NodeKey;
use crate::members::Holds;
use crate::node::client::DeviceNodes;
use crate::node::words::FromBroker;
use crate::owner::Owner;
use crate::receipts::Sealer;
use crate::registry::{Capacity, Past, Registry};
use crate::tells::Tells;

const BOOT: BootTag = BootTag(7);
const PATIENCE: Duration = Duration::from_secs(20);
/// A guest of namespace `guest` may be in group `n/g`.
const WITH_GUEST: &str = "version: gpu-handoff.io/v1
exchange:
  - name: guests
    publish: [{namespaces: [n], groups: [g]}]
    acquire: [{namespaces: [guest], groups: [n/g]}]
";

struct Stage {
    lanes: Lanes,
    ended: mpsc::Receiver<MemberId>,
    tells: Arc<Tells>,
    folder: tempfile::TempDir,
    /// Lanes end with it.
    _stop: watch::Sender<bool>,
}

impl Stage {
    fn new() -> Self {
        let tells = Arc::new(Tells::default());
        let (_, node, _) = crate::node::client::testing::line(Arc::clone(&tells));
        let (_, workers) = Workers::new(Starter::new(node.clone()), Gpus::new([], []));
        let (stop, stopped) = watch::channel(false);
        let (capacity, past) = (Capacity { descriptors: 100 }, Past::none(Instant::now()));
        let registry = Registry::new(Policy::default(), capacity, BOOT, RandomState::new(), past);
        let shared = Shared {
            owner: Owner::new(registry, None),
            workers,
            boot: BOOT,
            sealer: Arc::new(Sealer::new(&NodeKey::from_bytes([1; 32]), BOOT)),
            instance: Instance::from_bytes([1; 16]),
            next_session: Arc::new(AtomicU64::new(1)),
            in_flight: 16,
            awake: Room::new(0),
            tells: Arc::clone(&tells),
            pid_word_proven: Arc::new(AtomicBool::new(false)),
            device_nodes: DeviceNodes::new(node, &[]),
            stop: stopped,
        };
        let daemon_user = rustix::process::geteuid().as_raw();
        let (boot, cgroup_root) = (BOOT.0, Root::default());
        let setup = Setup { boot, cgroup_root, gpus: Vec::new(), awake: 0, daemon_user };
        let (lanes, ended) = Lanes::new(&setup, Policy::default(), shared, limits::UNCLOSED);
        Self { lanes, ended, tells, folder: tempfile::tempdir().unwrap(), _stop: stop }
    }

    fn path(&self, slot: &str) -> PathBuf {
        self.folder.path().join(slot)
    }

    /// A member of group `n/g` comes.
    fn come(&mut self, namespace: &str, slot: &str) {
        let listener = SeqListener::bind(&self.path(slot)).unwrap();
        self.lanes.hear(News::Came(member(namespace, slot), listener)).unwrap();
    }

    fn go_by(&mut self, policy: &str) {
        self.lanes.hear(News::Policy(Box::new(Policy::read(policy).unwrap()))).unwrap();
    }

    /// A lane that has ended is taken note of.
    async fn one_ends(&mut self) {
        let id = tokio::time::timeout(PATIENCE, self.ended.recv()).await.unwrap().unwrap();
        self.lanes.has_ended(id);
    }

    /// A sidecar connects and says hello.
    fn connect(&self, slot: &str) -> Sidecar {
        let socket = AsyncSeqPacket::connect(&self.path(slot)).unwrap();
        let hello = SidecarMessage { request: 1, body: SidecarBody::Hello { version: PROTOCOL_VERSION } };
        assert!(socket.try_send(&codec::encode_sidecar(hello)).unwrap());
        Sidecar { socket, buffer: RecvBuffer::new() }
    }

    fn serving(&self, slot: &str) -> &Serving {
        match &self.lanes.members[&slot_id(slot)].state {
            State::Served(serving) => serving,
            State::Uninvited | State::Failed(_) => panic!("{slot} is not served"),
        }
    }

    /// How often the owner of a slot's pod is to read that something was refused.
    fn refusals_of(&self, slot: &str) -> u32 {
        let of = |word: FromBroker| match word {
            FromBroker::Tell(tell) if tell.slot == slot_id(slot) => Some(tell.times),
            _ => None,
        };
        self.tells.take().into_iter().filter_map(of).sum()
    }

    /// Whether the node was told that a slot is served, in order.
    fn told_of(&self, slot: &str) -> Vec<bool> {
        let of = |word: FromBroker| match word {
            FromBroker::Unserved { slot: of, with } if of == slot_id(slot) => Some(with.is_none()),
            _ => None,
        };
        self.tells.take().into_iter().filter_map(of).collect()
    }
}

struct Sidecar {
    socket: AsyncSeqPacket,
    buffer: RecvBuffer,
}

impl Sidecar {
    /// The next word of the slot; `None`: the connection has ended.
    async fn hear(&mut self) -> Option<SlotBody> {
        let frame = tokio::time::timeout(PATIENCE, self.socket.recv(&mut self.buffer)).await.unwrap();
        frame.unwrap().map(|frame| codec::decode_slot(frame).unwrap().0.body)
    }

    async fn is_welcome(&mut self) -> bool {
        matches!(self.hear().await, Some(SlotBody::Welcome { .. }))
    }
}

fn slot_id(slot: &str) -> SlotId {
    slot.parse().unwrap()
}

fn member(namespace: &str, slot: &str) -> Member {
    let text = format!(
        r#"{{"slot":"{slot}","pod":{{"namespace":"{namespace}","name":"{slot}"}},"uid":"u","group":{{"namespace":"n","name":"g"}}}}"#
    );
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn what_is_said_of_a_member_while_it_is_not_served_holds_when_it_is() {
    let mut stage = Stage::new();
    let listener = SeqListener::bind(&stage.path("a")).unwrap();
    let guest = Member { containers: Some(BTreeSet::new()), ..member("guest", "a") };
    stage.lanes.hear(News::Came(guest, listener)).unwrap();
    assert_eq!(stage.lanes.len(), 0);
    let id: ContainerId = "a".repeat(64).parse().unwrap();
    let (containers, holds) = (BTreeSet::from([id]), Holds::These(vec![DeviceUuid::from_bytes([3; 16])]));
    let (refusal, until) = (Refusal::new(Code::NoPeerOnNode), Instant::now() + PATIENCE);
    stage.lanes.hear(News::Containers(slot_id("a"), containers.clone())).unwrap();
    stage.lanes.hear(News::Holds(slot_id("a"), holds.clone())).unwrap();
    stage.lanes.hear(News::HeldBack(slot_id("a"), Some(refusal.clone()))).unwrap();
    stage.lanes.hear(News::Ending(slot_id("a"), until)).unwrap();
    stage.go_by(WITH_GUEST);
    let serving = stage.serving("a");
    assert_eq!(*serving.containers.as_ref().unwrap().borrow(), containers);
    assert_eq!((&*serving.holds.borrow(), serving.ending), (&holds, Some(until)));
    assert_eq!(*serving.held_back.borrow(), Some(refusal));
    // As it does for one that is served, and so does what the next policy gives it.
    stage.go_by(&format!("{WITH_GUEST}quota: {{connections: 1}}\n"));
    assert_eq!(stage.serving("a").quota.borrow().connections, 1);
    stage.lanes.hear(News::HeldBack(slot_id("a"), None)).unwrap();
    assert_eq!(*stage.serving("a").held_back.borrow(), None);
}

#[tokio::test]
async fn a_guest_that_a_policy_puts_out_comes_back_by_the_next() {
    let mut stage = Stage::new();
    stage.come("guest", "a");
    stage.come("n", "b");
    assert_eq!((stage.lanes.len(), stage.told_of("a")), (1, vec![false]));
    for _ in 0..2 {
        stage.go_by(WITH_GUEST);
        let mut sidecar = stage.connect("a");
        assert!(sidecar.is_welcome().await);
        stage.go_by("version: gpu-handoff.io/v1\n");
        while sidecar.hear().await.is_some() {}
        stage.one_ends().await;
        assert_eq!((stage.lanes.len(), stage.lanes.ending.len()), (1, 0));
    }
    // Whoever connects meanwhile waits.
    let mut sidecar = stage.connect("a");
    stage.go_by(WITH_GUEST);
    assert!(sidecar.is_welcome().await);
    assert_eq!(stage.told_of("a"), [true]);
    stage.lanes.hear(News::Left(slot_id("a"))).unwrap();
    while sidecar.hear().await.is_some() {}
    assert!(stage.connect("b").is_welcome().await);
}

#[tokio::test]
async fn a_guest_that_is_not_invited_is_told_so_once_by_each_policy() {
    let mut stage = Stage::new();
    stage.come("guest", "a");
    assert_eq!(stage.refusals_of("a"), 1);
    stage.go_by(WITH_GUEST);
    assert_eq!(stage.refusals_of("a"), 0);
    // Put out, and not invited by the next one either.
    for _ in 0..2 {
        stage.go_by("version: gpu-handoff.io/v1\n");
        assert_eq!(stage.refusals_of("a"), 1);
    }
    // Nor is one whose lane could not be started.
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    stage.go_by(WITH_GUEST);
    stage.lanes.come(member("guest", "b"), SeqListener::from_own(null));
    while stage.lanes.next_try().is_none() {
        stage.one_ends().await;
    }
    assert_eq!(stage.refusals_of("b"), 1);
    stage.go_by("version: gpu-handoff.io/v1\n");
    assert_eq!((stage.lanes.next_try(), stage.refusals_of("b")), (None, 1));
}

#[tokio::test]
async fn a_member_that_cannot_be_served_is_told_of_and_tried_again_and_the_others_are_served() {
    let mut stage = Stage::new();
    // Nobody can be heard there.
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    stage.lanes.come(member("n", "a"), SeqListener::from_own(null));
    stage.come("n", "b");
    assert_eq!(stage.lanes.next_try(), None);
    stage.one_ends().await;
    assert_eq!((stage.lanes.len(), stage.told_of("a")), (1, vec![false]));
    assert!(stage.connect("b").is_welcome().await);
    let first = stage.lanes.next_try().unwrap();
    stage.lanes.try_again(first - Duration::from_millis(1));
    assert_eq!(stage.lanes.len(), 1);
    stage.lanes.try_again(first);
    stage.one_ends().await;
    let second = stage.lanes.next_try().unwrap();
    assert!(second > Instant::now() + limits::LANE_PAUSE, "the second pause is longer");
    let listener = SeqListener::bind(&stage.path("a")).unwrap();
    stage.lanes.members.get_mut(&slot_id("a")).unwrap().listener = listener;
    stage.lanes.try_again(second);
    assert!(stage.connect("a").is_welcome().await);
    assert_eq!((stage.lanes.len(), stage.lanes.next_try(), stage.told_of("a")), (2, None, vec![true]));
}

#[tokio::test]
async fn what_was_sent_to_a_member_that_leaves_is_closed_and_nobody_waits_for_that() {
    let mut stage = Stage::new();
    // One that is not served, and one whose lane broke off.
    stage.come("guest", "a");
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    stage.lanes.come(member("n", "b"), SeqListener::from_own(null));
    stage.one_ends().await;
    let listener = SeqListener::bind(&stage.path("b")).unwrap();
    stage.lanes.members.get_mut(&slot_id("b")).unwrap().listener = listener;
    let begin = Instant::now();
    let mut silent = Vec::new();
    for slot in ["a", "b"] {
        silent.push(send_late(&stage.path(slot)));
        stage.lanes.hear(News::Left(slot_id(slot))).unwrap();
    }
    // And so with those that are there when it ends.
    stage.come("guest", "c");
    silent.push(send_late(&stage.path("c")));
    assert!(stage.lanes.into_threads().is_empty());
    assert!(begin.elapsed() < LINGER / 2, "{:?}", begin.elapsed());
}

#[tokio::test]
async fn slots_that_do_not_close_are_too_many_at_a_limit_and_no_more_when_they_have() {
    let mut stage = Stage::new();
    stage.lanes.unclosed = 1;
    let mut silent = Vec::new();
    let most = limits::CLOSERS_OF_NAMESPACE + stage.lanes.unclosed;
    for i in 0..=most {
        assert!(!stage.lanes.has_too_many_unclosed(), "{i} of {most}");
        let slot = format!("g-{i}");
        stage.come("guest", &slot);
        silent.push(send_late(&stage.path(&slot)));
        let heard = stage.lanes.hear(News::Left(slot_id(&slot)));
        assert!(heard.is_ok() || i == most, "{i} of {most}: {heard:?}");
    }
    let deadline = Instant::now() + LINGER / 2;
    while !stage.lanes.has_too_many_unclosed() {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    // Whatever the broker hears next, it ends.
    let word = || News::HeldBack(slot_id("none"), None);
    assert_eq!(stage.lanes.hear(word()), Err(TOO_MANY_UNCLOSED));
    silent.drain(..2).for_each(|one| is_closed(&one));
    while stage.lanes.has_too_many_unclosed() {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    stage.lanes.hear(word()).unwrap();
}
