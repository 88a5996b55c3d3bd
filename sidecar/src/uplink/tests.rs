//! The way to a daemon that is played by the test.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use gpu_handoff_protocol::codec::decode_sidecar;
use gpu_handoff_protocol::socket::SeqPacket;
use gpu_handoff_protocol::socket_tokio::AsyncSeqListener;
use gpu_handoff_protocol::{GroupKey, GroupName, Namespace, PodName, PodRef};

use super::*;

mod keeping;

struct Scene {
    listener: AsyncSeqListener,
    uplink: Uplink,
    path: PathBuf,
}

impl Drop for Scene {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.path));
    }
}

impl Scene {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gpu-handoff-uplink-{name}-{}", std::process::id()));
        let uplink = Uplink::new(path.clone(), Keeper::new(limits::KEPT_ITEMS).unwrap());
        Self { listener: AsyncSeqListener::bind(&path).unwrap(), uplink, path }
    }
}

/// A daemon that the sidecar is connected to.
struct Daemon(AsyncSeqPacket);

impl Daemon {
    async fn hear(&self) -> SidecarMessage {
        decode_sidecar(self.0.recv(&mut RecvBuffer::new()).await.unwrap().unwrap()).unwrap()
    }

    async fn say(&self, request: RequestId, body: SlotBody) {
        for packet in codec::encode_slot(&SlotMessage { request, body }) {
            self.0.send(&packet).await.unwrap();
        }
    }

    /// Hears the hello and answers it.
    async fn greet(&self) {
        let request = self.hear().await.request;
        let namespace = Namespace::new("team").unwrap();
        let pod = PodRef { namespace: namespace.clone(), name: PodName::new("pod").unwrap() };
        let group = GroupKey { namespace, name: GroupName::new("group").unwrap() };
        self.say(request, SlotBody::Welcome { version: PROTOCOL_VERSION, pod, group }).await;
    }
}

impl Scene {
    async fn daemon(&self) -> Daemon {
        let accepted = self.listener.accept().await.unwrap();
        Daemon(AsyncSeqPacket::new(SeqPacket::from_own(accepted)).unwrap())
    }

    async fn connected(name: &str) -> (Self, Daemon) {
        let mut scene = Self::new(name);
        open(&mut scene.uplink).await;
        let daemon = scene.daemon().await;
        daemon.greet().await;
        // The welcome, then that nothing is kept.
        for _ in 0..2 {
            assert!(scene.uplink.changed().await.is_empty());
            assert!(scene.uplink.takes_more());
        }
        assert!(matches!(daemon.hear().await.body, SidecarBody::OfferDone));
        (scene, daemon)
    }
}

/// Waits for a change for one moment, and is then cancelled.
fn begin(uplink: &mut Uplink) {
    let mut changed = pin!(tokio::task::unconstrained(uplink.changed()));
    let outcome = changed.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(outcome, Poll::Pending));
}

/// Until hello is said; timers have their own idea of now.
async fn open(uplink: &mut Uplink) {
    while uplink.opening.is_none() {
        begin(uplink);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn held() -> (Held, SeqPacket) {
    let (ours, application) = SeqPacket::pair().unwrap();
    (Held { connection: ours.into_fd(), until: Instant::now() + limits::HOLD_TIME }, application)
}

#[tokio::test]
async fn a_handshake_goes_on_where_it_was_cancelled() {
    let mut scene = Scene::new("cancelled");
    open(&mut scene.uplink).await;
    for _ in 0..5 {
        begin(&mut scene.uplink);
    }
    let daemon = scene.daemon().await;
    daemon.greet().await;
    assert!(scene.uplink.changed().await.is_empty());
    assert!(scene.uplink.takes_more());
    let another = tokio::time::timeout(Duration::from_millis(50), scene.listener.accept()).await;
    assert!(another.is_err(), "one connection is enough");
}

#[tokio::test]
async fn a_connection_is_given_back_with_the_time_it_had() {
    let (mut scene, daemon) = Scene::connected("back").await;
    let untils: Vec<Instant> = (0..3)
        .map(|_| {
            let (held, _application) = held();
            let until = held.until;
            scene.uplink.hand_on(held).unwrap();
            until
        })
        .collect();
    drop(daemon);
    let back = scene.uplink.changed().await;
    assert_eq!(back.iter().map(|h| h.until).collect::<Vec<_>>(), untils);
    assert!(!scene.uplink.takes_more());
}

#[tokio::test]
async fn a_daemon_that_does_not_answer_gets_no_more_than_the_limit_and_is_overdue() {
    let (mut scene, daemon) = Scene::connected("silent").await;
    let mut applications = Vec::new();
    let mut taken = 0;
    while scene.uplink.takes_more() {
        let (held, application) = held();
        scene.uplink.hand_on(held).unwrap();
        applications.push(application);
        taken += 1;
    }
    assert!(taken <= limits::HELD_CONNECTIONS);
    // The queue of the socket may be full before: what is read makes room.
    while taken < limits::HELD_CONNECTIONS {
        daemon.hear().await;
        while !scene.uplink.takes_more() {
            assert!(scene.uplink.changed().await.is_empty());
        }
        let (held, application) = held();
        scene.uplink.hand_on(held).unwrap();
        applications.push(application);
        taken += 1;
    }
    assert!(!scene.uplink.takes_more());
    let due = scene.uplink.due().unwrap();
    assert_eq!(scene.uplink.overdue(due - Duration::from_millis(1)).len(), 0);
    let overdue = scene.uplink.overdue(Instant::now() + limits::ANSWER_TIME);
    assert_eq!(overdue.len(), limits::HELD_CONNECTIONS);
    assert!(scene.uplink.takes_more() && scene.uplink.due().is_none());
    // An answer that comes too late changes nothing.
    daemon.say(daemon.hear().await.request, SlotBody::HandedOn(Ok(()))).await;
    assert!(scene.uplink.changed().await.is_empty());
    assert!(scene.uplink.takes_more());
}

#[tokio::test]
async fn a_sidecar_whose_slot_is_taken_over_stays_away_longer_each_time() {
    let (mut scene, mut daemon) = Scene::connected("displaced").await;
    let newer =
        Refusal::new(Code::TooManyConnections).compared_with("sidecars of the slot", 1, "a newer one");
    for pause in [1, 2, 4].map(|times| limits::DISPLACED_FIRST * times) {
        daemon.say(0, SlotBody::Refused(newer.clone())).await;
        let begin = Instant::now();
        while scene.uplink.link.is_some() {
            assert!(scene.uplink.changed().await.is_empty());
        }
        assert_eq!(scene.uplink.displaced(), Some(&newer));
        assert!(scene.uplink.next_try >= begin + pause && scene.uplink.next_try <= Instant::now() + pause);
        scene.uplink.next_try = Instant::now();
        daemon = welcome(&mut scene).await;
        assert_eq!(scene.uplink.displaced(), None);
    }
    // A daemon that ends is another matter, and is looked for at once.
    drop(daemon);
    scene.uplink.changed().await;
    assert!(scene.uplink.next_try <= Instant::now() + limits::RETRY_FIRST);
    assert_eq!(scene.uplink.displaced_pause, limits::DISPLACED_FIRST);
    // Where there is no daemon any more, that is why nobody is served, whoever had the slot last.
    let daemon = welcome(&mut scene).await;
    daemon.say(0, SlotBody::Refused(newer)).await;
    while scene.uplink.displaced().is_none() {
        assert!(scene.uplink.changed().await.is_empty());
    }
    std::fs::remove_file(&scene.path).unwrap();
    assert!(scene.uplink.changed().await.is_empty());
    assert_eq!(scene.uplink.displaced(), None);
}

/// A daemon comes, or the same again.
async fn welcome(scene: &mut Scene) -> Daemon {
    open(&mut scene.uplink).await;
    let daemon = scene.daemon().await;
    daemon.greet().await;
    while scene.uplink.link.is_none() {
        assert!(scene.uplink.changed().await.is_empty());
    }
    daemon
}
