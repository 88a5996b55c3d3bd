//! What is kept, and how a daemon that comes anew gets it.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use gpu_handoff_protocol::message::Keepsake;
use gpu_handoff_protocol::{BootTag, BufferId, Receipt, limits as wire};

use super::*;

fn id(random: u128) -> BufferId {
    BufferId { boot: BootTag(7), random }
}

fn receipt(random: u128, version: &str) -> Receipt {
    Receipt::new(format!("receipt {version} of {random}").into_bytes()).unwrap()
}

fn keepsake(random: u128, version: &str, file: &File) -> Keepsake {
    let descriptor = Some(Arc::new(file.as_fd().try_clone_to_owned().unwrap()));
    Keepsake { id: id(random), receipt: receipt(random, version), descriptor }
}

fn inode(fd: impl AsFd) -> u64 {
    rustix::fs::fstat(fd).unwrap().st_ino
}

/// Copies of this file that the process has open.
fn copies(file: &File) -> usize {
    let wanted = inode(file);
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let inodes = open.filter_map(|fd| std::fs::metadata(fd.path()).ok());
    inodes.filter(|it| std::os::unix::fs::MetadataExt::ino(it) == wanted).count()
}

fn until(what: &str, so: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what} never came true");
        std::thread::yield_now();
    }
}

impl Scene {
    /// Lets the uplink work until the daemon has heard something.
    async fn heard(&mut self, daemon: &Daemon) -> SidecarMessage {
        loop {
            tokio::select! {
                biased;
                message = daemon.hear() => return message,
                given_back = self.uplink.changed() => assert!(given_back.is_empty()),
            }
        }
    }

    /// Hears one offer.
    async fn offered(&mut self, daemon: &Daemon) -> (RequestId, Vec<Keepsake>) {
        let SidecarMessage { request, body } = self.heard(daemon).await;
        let SidecarBody::Offer(items) = body else { panic!("{body:?}") };
        (request, items)
    }

    /// Lets the daemon say something and the uplink hear it: the answer to a connection handed on tells.
    async fn say_and_wait(&mut self, daemon: &Daemon, body: SlotBody) {
        daemon.say(0, body).await;
        let (held, _application) = held();
        self.uplink.hand_on(held).unwrap();
        let request = loop {
            let message = self.heard(daemon).await;
            if matches!(message.body, SidecarBody::HandOn(_)) {
                break message.request;
            }
        };
        daemon.say(request, SlotBody::HandedOn(Ok(()))).await;
        while !self.uplink.in_flight.is_empty() {
            assert!(self.uplink.changed().await.is_empty());
        }
    }

    /// Another daemon in the place of this one.
    async fn another(&mut self, daemon: Daemon) -> Daemon {
        drop(daemon);
        self.uplink.changed().await;
        open(&mut self.uplink).await;
        let daemon = self.daemon().await;
        daemon.greet().await;
        assert!(self.uplink.changed().await.is_empty());
        daemon
    }

    fn kept(&self) -> Vec<u128> {
        self.uplink.keeper.memory().after(None, usize::MAX).into_iter().map(|it| it.id.random).collect()
    }
}

#[tokio::test]
async fn another_daemon_gets_what_was_kept_and_refuses_what_it_does_not_want() {
    let (mut scene, daemon) = Scene::connected("anew").await;
    let files: Vec<tempfile::NamedTempFile> =
        (0..5).map(|_| tempfile::NamedTempFile::new().unwrap()).collect();
    let item = |n: usize| keepsake(n as u128, "1", files[n].as_file());
    let legacy = Keepsake { descriptor: None, ..item(4) };
    scene.say_and_wait(&daemon, SlotBody::Keep(vec![item(2), item(0), item(1), item(3), legacy])).await;
    scene.say_and_wait(&daemon, SlotBody::Forget(vec![id(1), id(99)])).await;
    until("the closing", || copies(files[1].as_file()) == 1);
    let replaced = Keepsake { receipt: receipt(3, "2"), ..keepsake(3, "2", files[1].as_file()) };
    scene.say_and_wait(&daemon, SlotBody::Keep(vec![replaced])).await;

    let daemon = scene.another(daemon).await;
    let (request, items) = scene.offered(&daemon).await;
    let facts = |k: &Keepsake| (k.id.random, k.receipt.clone(), k.descriptor.as_ref().map(inode));
    let file = |n: usize| Some(inode(files[n].as_file()));
    let expected = [
        (0, receipt(0, "1"), file(0)),
        (2, receipt(2, "1"), file(2)),
        (3, receipt(3, "2"), file(1)),
        (4, receipt(4, "1"), None),
    ];
    assert_eq!(items.iter().map(facts).collect::<Vec<_>>(), expected);
    drop(items);
    let invalid = || Err(Refusal::new(Code::ReceiptInvalid));
    daemon.say(request, SlotBody::Offered(vec![Ok(()), invalid(), Ok(()), invalid()])).await;
    assert!(matches!(scene.heard(&daemon).await.body, SidecarBody::OfferDone));
    assert_eq!(scene.kept(), [0, 3]);
    until("the closing", || copies(files[2].as_file()) == 1);
    assert_eq!([0, 1].map(|n| copies(files[n].as_file())), [2, 2], "what was not refused is kept on");
}

#[tokio::test]
async fn a_daemon_is_told_a_few_packets_at_a_time_and_hand_ons_go_between() {
    let (mut scene, daemon) = Scene::connected("many").await;
    let file = tempfile::tempfile().unwrap();
    let count = (limits::OFFERS_UNANSWERED + 2) * wire::MESSAGE_ITEMS + 1;
    for n in 0..count as u128 {
        scene.uplink.keeper.keep(vec![keepsake(n, "1", &file)]);
    }
    let daemon = scene.another(daemon).await;
    let (mut requests, mut heard) = (Vec::new(), 0);
    for _ in 0..limits::OFFERS_UNANSWERED {
        let (request, items) = scene.offered(&daemon).await;
        assert_eq!(items.len(), wire::MESSAGE_ITEMS);
        requests.push((request, items.len()));
        heard += items.len();
    }
    begin(&mut scene.uplink);
    let (held, _application) = held();
    scene.uplink.hand_on(held).unwrap();
    assert!(
        matches!(daemon.hear().await.body, SidecarBody::HandOn(_)),
        "not one offer more before an answer"
    );
    // Answers may come in parts, and in any order.
    requests.reverse();
    while heard < count {
        let (request, _) = requests.pop().unwrap();
        let refusals =
            vec![Err(Refusal::new(Code::ReceiptInvalid).with_remedy("x".repeat(300))); wire::MESSAGE_ITEMS];
        daemon.say(request, SlotBody::Offered(refusals)).await;
        let (request, items) = scene.offered(&daemon).await;
        requests.insert(0, (request, items.len()));
        heard += items.len();
    }
    assert_eq!(heard, count);
    for (request, items) in requests {
        daemon.say(request, SlotBody::Offered(vec![Ok(()); items])).await;
    }
    assert!(matches!(scene.heard(&daemon).await.body, SidecarBody::OfferDone));
    assert_eq!(scene.kept().len(), count - 3 * wire::MESSAGE_ITEMS);
}

#[tokio::test]
async fn what_is_kept_anew_is_not_lost_by_the_answer_about_what_it_replaced() {
    let (mut scene, daemon) = Scene::connected("renewed").await;
    let file = tempfile::tempfile().unwrap();
    scene.uplink.keeper.keep(vec![keepsake(1, "1", &file), keepsake(2, "1", &file)]);
    let daemon = scene.another(daemon).await;
    let (request, _) = scene.offered(&daemon).await;
    daemon.say(0, SlotBody::Keep(vec![keepsake(1, "2", &file)])).await;
    let refused = || Err(Refusal::new(Code::ReceiptInvalid));
    daemon.say(request, SlotBody::Offered(vec![refused(), refused()])).await;
    while scene.kept().len() > 1 {
        assert!(scene.uplink.changed().await.is_empty());
    }
    assert_eq!(scene.kept(), [1]);
}

#[tokio::test]
async fn what_is_refused_for_a_reason_that_passes_is_offered_again_before_the_end() {
    let (mut scene, daemon) = Scene::connected("again").await;
    let file = tempfile::tempfile().unwrap();
    scene.uplink.keeper.keep((0..4).map(|n| keepsake(n, "1", &file)).collect());
    let daemon = scene.another(daemon).await;
    let randoms = |items: &[Keepsake]| items.iter().map(|item| item.id.random).collect::<Vec<_>>();
    let refused = |code| Err(Refusal::new(code));
    let (request, items) = scene.offered(&daemon).await;
    assert_eq!(randoms(&items), [0, 1, 2, 3]);
    let answer = [Code::QuotaInFlight, Code::ReceiptInvalid, Code::WorkerFailed, Code::WorkerTimeout];
    daemon.say(request, SlotBody::Offered(answer.map(refused).to_vec())).await;
    // Not that this was all: the daemon would wait for nothing more.
    let (request, items) = scene.offered(&daemon).await;
    assert_eq!(randoms(&items), [0, 2, 3]);
    assert_eq!(scene.kept(), [0, 2, 3]);
    let answer = vec![refused(Code::QuotaInFlight), Ok(()), refused(Code::WorkerTimeout)];
    daemon.say(request, SlotBody::Offered(answer)).await;
    // A worker that fails again does so over this very buffer.
    let (request, items) = scene.offered(&daemon).await;
    assert_eq!((randoms(&items), scene.kept()), (vec![0], vec![0, 2]));
    daemon.say(request, SlotBody::Offered(vec![Ok(())])).await;
    assert!(matches!(scene.heard(&daemon).await.body, SidecarBody::OfferDone));
    assert_eq!(scene.kept(), [0, 2]);
}

#[tokio::test]
async fn a_daemon_that_stops_while_it_is_offered_something_costs_nothing() {
    let (mut scene, daemon) = Scene::connected("stopping").await;
    scene.uplink.keeper.keep(vec![keepsake(0, "1", &tempfile::tempfile().unwrap())]);
    let daemon = scene.another(daemon).await;
    let (request, _) = scene.offered(&daemon).await;
    daemon.say(request, SlotBody::Offered(vec![Err(Refusal::new(Code::ShuttingDown))])).await;
    assert!(matches!(scene.heard(&daemon).await.body, SidecarBody::OfferDone));
    assert_eq!(scene.kept(), [0]);
    let daemon = scene.another(daemon).await;
    assert_eq!(scene.offered(&daemon).await.1.len(), 1, "the next one is offered it");
}

#[tokio::test]
async fn what_goes_on_being_refused_is_given_up() {
    let (mut scene, daemon) = Scene::connected("given-up").await;
    scene.uplink.keeper.keep(vec![keepsake(0, "1", &tempfile::tempfile().unwrap())]);
    let daemon = scene.another(daemon).await;
    let begin = Instant::now();
    let mut offers = 0;
    loop {
        match scene.heard(&daemon).await {
            SidecarMessage { request, body: SidecarBody::Offer(_) } => {
                offers += 1;
                let refusal = Refusal::new(Code::QuotaInFlight);
                daemon.say(request, SlotBody::Offered(vec![Err(refusal)])).await;
            }
            SidecarMessage { body: SidecarBody::OfferDone, .. } => break,
            other => panic!("{other:?}"),
        }
        assert!(begin.elapsed() < limits::OFFER_AGAIN_TIME * 4, "it never ends");
    }
    assert!(offers > 2 && scene.kept().is_empty(), "{offers}");
}

#[tokio::test]
async fn an_answer_to_no_offer_or_for_other_items_ends_the_connection() {
    for (number, items) in [(1_000, 1), (0, 0), (0, 2)] {
        let (mut scene, daemon) = Scene::connected(&format!("strange-{number}-{items}")).await;
        scene.uplink.keeper.keep(vec![keepsake(1, "1", &tempfile::tempfile().unwrap())]);
        let daemon = scene.another(daemon).await;
        let (request, _) = scene.offered(&daemon).await;
        daemon.say(request + number, SlotBody::Offered(vec![Ok(()); items])).await;
        while scene.uplink.link.is_some() {
            assert!(scene.uplink.changed().await.is_empty());
        }
        assert_eq!(scene.kept(), [1], "it is offered again");
    }
}

#[tokio::test]
async fn more_than_can_be_kept_is_dropped_and_closed() {
    let (mut scene, daemon) = Scene::connected("over").await;
    scene.uplink.keeper = Keeper::new(3).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let many = (0..wire::MESSAGE_ITEMS as u128).map(|n| keepsake(n, "1", file.as_file())).collect();
    scene.say_and_wait(&daemon, SlotBody::Keep(many)).await;
    assert_eq!(scene.kept(), [0, 1, 2]);
    assert_eq!(copies(file.as_file()), 4);
    scene.say_and_wait(&daemon, SlotBody::Forget(vec![id(0)])).await;
    until("the closing", || copies(file.as_file()) == 3);
    scene.say_and_wait(&daemon, SlotBody::Keep(vec![keepsake(9, "1", file.as_file())])).await;
    assert_eq!(scene.kept(), [1, 2, 9]);
}
