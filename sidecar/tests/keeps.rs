//! The real sidecar as the pod's memory, with a daemon that the test plays: how much room it takes, what it does with
//! more than it can keep, and what its own end changes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests: a failure is a failed test")]

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu_handoff_protocol::codec::{self, Outgoing};
use gpu_handoff_protocol::message::{
    Keepsake, RequestId, SidecarBody, SidecarMessage, SlotBody, SlotMessage,
};
use gpu_handoff_protocol::socket::{RecvBuffer, SeqListener, SeqPacket, wait};
use gpu_handoff_protocol::{BootTag, BufferId, GroupKey, PROTOCOL_VERSION, PodRef, Receipt, limits as wire};
use gpu_handoff_sidecar::limits;
use rustix::event::PollFlags;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn patience() -> Option<Instant> {
    Some(Instant::now() + PATIENCE)
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "{what} never came true");
        std::thread::yield_now();
    }
}

/// A slot's socket and the sidecar behind it.
struct Scene {
    listener: SeqListener,
    folder: tempfile::TempDir,
    sidecar: Sidecar,
}

/// The program; killed when dropped.
struct Sidecar(Child);

impl Drop for Sidecar {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Sidecar {
    /// Starts it with at most so many descriptors.
    fn start(folder: &Path, descriptors: u64) -> Self {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={}:{descriptors}", descriptors.min(300)));
        command.arg(env!("CARGO_BIN_EXE_gpu-handoff-sidecar")).arg("serve");
        command.arg("--slot").arg(folder.join("slot.sock")).arg("--listen").arg(folder.join("app.sock"));
        Self(command.stderr(File::create(folder.join("log")).unwrap()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn proc(&self, file: &str) -> PathBuf {
        format!("/proc/{}/{file}", self.0.id()).into()
    }

    fn descriptors(&self) -> Vec<PathBuf> {
        let open = fs::read_dir(self.proc("fd")).unwrap().flatten();
        open.map(|fd| fd.path()).collect()
    }

    /// Copies of this file that it has open.
    fn copies(&self, file: &Path) -> usize {
        self.descriptors().iter().filter(|fd| fs::read_link(fd).is_ok_and(|it| it == file)).count()
    }

    /// Proportional share of its memory, in KiB: all, and what is not of a file.
    fn pss(&self) -> [u64; 2] {
        let rollup = fs::read_to_string(self.proc("smaps_rollup")).unwrap();
        ["Pss:", "Pss_Anon:"].map(|what| {
            let line = rollup.lines().find_map(|line| line.strip_prefix(what)).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        })
    }
}

impl Scene {
    fn new(descriptors: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = SeqListener::bind(&folder.path().join("slot.sock")).unwrap();
        let sidecar = Sidecar::start(folder.path(), descriptors);
        Self { listener, folder, sidecar }
    }

    /// A daemon that the sidecar has connected to and said hello.
    fn daemon(&self) -> Daemon {
        assert!(wait(&[(self.listener.as_fd(), PollFlags::IN)], patience()).unwrap());
        let socket = SeqPacket::from_own(self.listener.try_accept().unwrap().unwrap());
        let mut daemon = Daemon { socket, buffer: RecvBuffer::new() };
        let SidecarMessage { request, body } = daemon.hear();
        assert!(matches!(body, SidecarBody::Hello { .. }), "{body:?}");
        let pod = PodRef { namespace: "ml".parse().unwrap(), name: "pod".parse().unwrap() };
        let group = GroupKey { namespace: "ml".parse().unwrap(), name: "group".parse().unwrap() };
        daemon.say(request, SlotBody::Welcome { version: PROTOCOL_VERSION, pod, group });
        daemon
    }

    fn application(&self) -> SeqPacket {
        SeqPacket::connect(&self.folder.path().join("app.sock")).unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Comes back once the sidecar has read everything: it answers a connection after that.
    fn settled(&self, daemon: &mut Daemon) -> SeqPacket {
        let application = self.application();
        loop {
            match daemon.hear() {
                SidecarMessage { request, body: SidecarBody::HandOn(_) } => {
                    daemon.say(request, SlotBody::HandedOn(Ok(())));
                    return application;
                }
                SidecarMessage { body: SidecarBody::OfferDone, .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

struct Daemon {
    socket: SeqPacket,
    buffer: RecvBuffer,
}

impl Daemon {
    fn hear(&mut self) -> SidecarMessage {
        codec::decode_sidecar(self.socket.recv(&mut self.buffer, patience()).unwrap().unwrap()).unwrap()
    }

    fn say(&self, request: RequestId, body: SlotBody) {
        for packet in codec::encode_slot(&SlotMessage { request, body }) {
            self.socket.send(&packet, patience()).unwrap();
        }
    }

    /// Has these kept, 64 a packet.
    fn keep(&self, ids: std::ops::Range<u32>, descriptor: &Arc<OwnedFd>) {
        let items: Vec<Keepsake> = ids.map(|n| keepsake(n, descriptor)).collect();
        codec::batches(items).into_iter().for_each(|part| self.say(0, SlotBody::Keep(part)));
    }

    /// Answers all offers; gives the ids.
    fn hear_offers(&mut self) -> Vec<u128> {
        let mut ids = Vec::new();
        loop {
            match self.hear() {
                SidecarMessage { request, body: SidecarBody::Offer(items) } => {
                    self.say(request, SlotBody::Offered(vec![Ok(()); items.len()]));
                    assert!(items.iter().all(|item| item.descriptor.is_some()));
                    ids.extend(items.into_iter().map(|item| item.id.random));
                }
                SidecarMessage { body: SidecarBody::OfferDone, .. } => return ids,
                other => panic!("{other:?}"),
            }
        }
    }
}

/// What the node would send for one of many tensors of a pod: facts that repeat, and numbers and a MAC that do not.
fn keepsake(n: u32, descriptor: &Arc<OwnedFd>) -> Keepsake {
    let scattered = |salt: u64| (u64::from(n) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ salt).rotate_left(29);
    let random = u128::from(scattered(1)) << 64 | u128::from(scattered(2));
    let mut bytes = b"boot....process.........ml-nodes/slot-0123456789abcdef".to_vec();
    bytes.extend_from_slice(
        b"0b54c9a1-7f7b-4f3a-9a59-6a6de8d0ad3c ml trainer-0-7d9c4b7f5-x2x9k ml llama-shared ",
    );
    bytes.extend_from_slice(
        b"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 device-uuid.....",
    );
    bytes.extend_from_slice(format!("model.layers.{}.mlp.{n}.weight", n % 80).as_bytes());
    bytes.extend_from_slice(&random.to_be_bytes());
    (3..7).for_each(|salt| bytes.extend_from_slice(&scattered(salt << 40 | salt << 7).to_le_bytes()));
    let receipt = Receipt::new(bytes).unwrap();
    Keepsake { id: BufferId { boot: BootTag(7), random }, receipt, descriptor: Some(Arc::clone(descriptor)) }
}

/// A file whose descriptors can be counted.
fn countable() -> (tempfile::NamedTempFile, Arc<OwnedFd>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let descriptor = Arc::new(file.as_file().try_clone().unwrap().into());
    (file, descriptor)
}

#[test]
fn fifteen_thousand_are_kept_in_little_room_given_back_and_forgotten() {
    const ITEMS: u32 = 15_000;
    // The program itself is far larger where it is not optimised.
    const MOST_KIB: [u64; 2] = [if cfg!(debug_assertions) { 12 } else { 8 } * 1024, 5 * 1024];
    let scene = Scene::new(20_000);
    let mut daemon = scene.daemon();
    let (file, descriptor) = countable();
    assert!(daemon.hear_offers().is_empty());
    let before = scene.sidecar.pss();
    daemon.keep(0..ITEMS, &descriptor);
    let application = scene.settled(&mut daemon);
    assert_eq!(scene.sidecar.copies(file.path()), ITEMS as usize);
    let kept = scene.sidecar.pss();
    daemon.socket.end();

    let mut daemon = scene.daemon();
    let began = Instant::now();
    let mut ids = daemon.hear_offers();
    let offered = began.elapsed();
    let mut wanted: Vec<u128> = (0..ITEMS).map(|n| keepsake(n, &descriptor).id.random).collect();
    wanted.sort_unstable();
    ids.sort_unstable();
    assert!(ids == wanted, "{} came back", ids.len());
    let after = scene.sidecar.pss();
    eprintln!("PSS in KiB, all and without files: {before:?} with nothing, {kept:?} with {ITEMS}");
    eprintln!("{after:?} once they were offered, which took {offered:?}");
    assert!((0..2).all(|n| kept[n].max(after[n]) <= MOST_KIB[n]));

    for part in wanted.chunks(wire::MESSAGE_ITEMS) {
        let ids = part.iter().map(|random| BufferId { boot: BootTag(7), random: *random });
        daemon.say(0, SlotBody::Forget(ids.collect()));
    }
    until("the closing", || scene.sidecar.copies(file.path()) == 0);
    drop(application);
}

#[test]
fn a_sidecar_with_few_descriptors_says_so_drops_the_rest_and_serves_on() {
    const LIMIT: usize = 300;
    let room = LIMIT - limits::OWN_DESCRIPTORS;
    let scene = Scene::new(LIMIT as u64);
    let mut daemon = scene.daemon();
    let (file, descriptor) = countable();
    assert!(daemon.hear_offers().is_empty());
    for round in 0..20 {
        daemon.keep(round * 500..(round + 1) * 500, &descriptor);
        scene.settled(&mut daemon);
    }
    until("the closing", || scene.sidecar.copies(file.path()) == room);
    let log = scene.log();
    assert!(log.contains(&format!("room={room}")), "{log}");
    assert_eq!(log.matches("no room to keep more").count(), 1, "{log}");
    for fd in scene.sidecar.descriptors() {
        let info = scene.sidecar.proc(&format!("fdinfo/{}", fd.file_name().unwrap().display()));
        // What the list of descriptors was read by, or what is closed meanwhile, is gone.
        let Ok(info) = fs::read_to_string(info) else { continue };
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        let flags = u32::from_str_radix(flags.trim(), 8).unwrap();
        let is_kept = fs::read_link(&fd).is_ok_and(|link| link == file.path());
        assert!(!is_kept || flags & 0o2_000_000 != 0, "{} would leak to a child", fd.display());
    }
}

#[test]
fn where_not_even_one_packet_can_be_received_nothing_is_kept_and_the_door_stays_open() {
    let scene = Scene::new(40);
    let mut daemon = scene.daemon();
    let (file, descriptor) = countable();
    assert!(daemon.hear_offers().is_empty());
    for _ in 0..3 {
        daemon.keep(0..64, &descriptor);
        scene.settled(&mut daemon);
    }
    until("the closing", || scene.sidecar.copies(file.path()) == 0);
    assert!(scene.log().contains("too few descriptors"), "{}", scene.log());
}

#[test]
fn a_sidecar_that_is_killed_and_comes_back_changes_nothing_for_those_connected() {
    let mut scene = Scene::new(1_024);
    let mut daemon = scene.daemon();
    let (_file, descriptor) = countable();
    assert!(daemon.hear_offers().is_empty());
    let application = scene.application();
    let SidecarMessage { request, body: SidecarBody::HandOn(handed) } = daemon.hear() else { panic!() };
    daemon.say(request, SlotBody::HandedOn(Ok(())));
    daemon.keep(0..10, &descriptor);
    let handed = SeqPacket::from_own(handed);
    let mut buffer = RecvBuffer::new();
    let mut talk = |n: u8| {
        for (from, to) in [(&application, &handed), (&handed, &application)] {
            from.send(&Outgoing { bytes: vec![n; 3], descriptors: Vec::new() }, patience()).unwrap();
            assert_eq!(to.recv(&mut buffer, patience()).unwrap().unwrap().bytes, [n; 3]);
        }
    };
    talk(1);
    scene.sidecar.0.kill().unwrap();
    scene.sidecar.0.wait().unwrap();
    talk(2);
    scene.sidecar = Sidecar::start(scene.folder.path(), 1_024);
    let mut again = scene.daemon();
    assert!(again.hear_offers().is_empty(), "it has nothing, so that the daemon sends all of it anew");
    talk(3);
    again.keep(0..10, &descriptor);
    scene.settled(&mut again);
    again.socket.end();
    assert_eq!(scene.daemon().hear_offers().len(), 10);
}

#[test]
fn what_cannot_be_read_ends_the_connection_and_what_is_kept_is_offered_again() {
    let scene = Scene::new(1_024);
    let mut daemon = scene.daemon();
    let (file, descriptor) = countable();
    assert!(daemon.hear_offers().is_empty());
    daemon.keep(0..5, &descriptor);
    let item = keepsake(9, &descriptor);
    let mut packets = codec::encode_slot(&SlotMessage { request: 0, body: SlotBody::Keep(vec![item]) });
    let mut two_for_one = packets.pop().unwrap();
    two_for_one.descriptors.push(Arc::clone(&descriptor));
    daemon.socket.send(&two_for_one, patience()).unwrap();
    let mut daemon = scene.daemon();
    assert_eq!(daemon.hear_offers().len(), 5);
    assert_eq!(scene.sidecar.copies(file.path()), 5, "what came with a packet that is refused is closed");
}
