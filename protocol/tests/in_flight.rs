//! Too many descriptors in flight: others of the same user have to wait, and lose nothing.
//!
//! The kernel counts for each user, and never refuses root: so the test runs itself again as a child, as a user that
//! nobody else is if it can choose, and with a low limit of open files, which is also the limit in flight.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu_handoff_protocol::codec::Outgoing;
use gpu_handoff_protocol::socket::{RecvBuffer, SeqPacket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CHILD: &str = "GPU_HANDOFF_IN_FLIGHT_CHILD";
/// A user that nobody is, most likely.
const USER: u32 = 61_947;
/// Open files that the child may have, and so descriptors in flight before the kernel says no.
const LIMIT: u64 = 64;
/// Descriptors in the parked packet: the most that the kernel lets one carry.
const PARKED: usize = 253;

#[test]
fn who_has_to_wait_for_descriptors_in_flight_loses_nothing() {
    if std::env::var_os(CHILD).is_some() {
        child();
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "who_has_to_wait_for_descriptors_in_flight_loses_nothing", "--nocapture"])
        .env(CHILD, "1");
    if rustix::process::geteuid().is_root() {
        command.uid(USER).gid(USER);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(e) => return skip(&format!("cannot run as another user: {e}")),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
    if text.contains(PRIVILEGED) {
        skip(PRIVILEGED);
    }
}

/// What the child says where the limit does not hold for it.
const PRIVILEGED: &str = "this user may have any number of descriptors in flight";

fn skip(reason: &str) {
    assert!(std::env::var("GPU_HANDOFF_TESTS").as_deref() != Ok("all"), "{reason}");
    eprintln!("skipped: {reason}");
}

fn packet(descriptors: usize) -> Outgoing {
    let null: Arc<OwnedFd> = Arc::new(std::fs::File::open("/dev/null").unwrap().into());
    Outgoing { bytes: vec![7], descriptors: vec![null; descriptors] }
}

fn after(milliseconds: u64) -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(milliseconds))
}

/// Descriptors in flight, in one packet that waits in a socket: gone with it.
fn park() -> (SeqPacket, SeqPacket) {
    let (parking, place) = SeqPacket::pair().unwrap();
    assert!(parking.try_send(&packet(PARKED)).unwrap());
    (parking, place)
}

/// Lets `act` run while there are too many in flight, which ends only after a while.
fn while_parked(act: impl FnOnce()) {
    let parked = park();
    let began = Instant::now();
    let freeing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        drop(parked);
    });
    act();
    assert!(began.elapsed() >= Duration::from_millis(200), "there was nothing to wait for");
    freeing.join().unwrap();
}

fn child() {
    let whole = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), ..whole }).unwrap();
    let (a, b) = SeqPacket::pair().unwrap();
    let mut buffer = RecvBuffer::new();
    let mut arrives = || b.recv(&mut buffer, after(0)).unwrap().unwrap().descriptors.len();

    let parked = park();
    if a.try_send(&packet(1)).unwrap() {
        println!("{PRIVILEGED}");
        return;
    }
    let late = a.send(&packet(1), after(100)).unwrap_err();
    assert_eq!(late.kind(), std::io::ErrorKind::TimedOut);
    assert!(a.try_send(&packet(0)).unwrap(), "packets without descriptors pass");
    assert_eq!(arrives(), 0);
    drop(parked);

    while_parked(|| a.send(&packet(1), after(10_000)).unwrap());
    assert_eq!(arrives(), 1);
    while_parked(|| a.send(&packet(2), None).unwrap());
    assert_eq!(arrives(), 2);

    let parked = park();
    let (c, d) = SeqPacket::pair().unwrap();
    drop(d);
    assert_eq!(c.send(&packet(1), None).unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    drop(parked);

    #[cfg(feature = "tokio")]
    with_tokio();
}

#[cfg(feature = "tokio")]
fn with_tokio() {
    use gpu_handoff_protocol::socket_tokio::AsyncSeqPacket;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (a, b) = SeqPacket::pair().unwrap();
    while_parked(|| {
        runtime.block_on(async {
            let a = AsyncSeqPacket::new(a).unwrap();
            assert!(!a.try_send(&packet(1)).unwrap());
            a.send(&packet(1)).await.unwrap();
        });
    });
    let frame = b.recv(&mut RecvBuffer::new(), after(0)).unwrap().unwrap();
    assert_eq!(frame.descriptors.len(), 1);
}
