//! A receiver that has no room for more open files: the kernel cuts the control data, and that is said.
//!
//! The limit is the whole process's, so the test runs itself again as a child and lowers the limit there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;

use gpu_handoff_protocol::Code;
use gpu_handoff_protocol::codec::{Frame, Outgoing, decode_client, encode_client};
use gpu_handoff_protocol::message::{ClientBody, ClientMessage};
use gpu_handoff_protocol::socket::{Received, RecvBuffer, SeqPacket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CHILD: &str = "GPU_HANDOFF_EXHAUSTED_CHILD";

#[test]
fn a_receiver_without_room_says_that_descriptors_were_lost() {
    if std::env::var_os(CHILD).is_some() {
        child();
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_receiver_without_room_says_that_descriptors_were_lost", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

fn child() {
    let null: Arc<OwnedFd> = Arc::new(std::fs::File::open("/dev/null").unwrap().into());
    let watch = encode_client(&ClientMessage { request: 1, body: ClientBody::Watch }).bytes;
    let packet = Outgoing { bytes: watch, descriptors: vec![null; 8] };
    let before = open_descriptors();
    for room in [0, 1, 3, 7] {
        let frame = receive_with_room_for(room, &packet);
        assert!(frame.control_truncated, "room for {room}");
        assert_eq!(frame.descriptors.len(), room);
        assert_eq!(frame.bytes, packet.bytes);
        assert_eq!(decode_client(frame).unwrap_err().code(), Code::TruncatedControl);
        assert_eq!(open_descriptors(), before, "what did arrive is closed");
    }
    let frame = receive_with_room_for(8, &packet);
    assert!(!frame.control_truncated);
    assert_eq!(frame.descriptors.len(), 8);
    assert_eq!(decode_client(frame).unwrap_err().code(), Code::DescriptorCount);
    assert_eq!(open_descriptors(), before);
}

fn receive_with_room_for(room: usize, packet: &Outgoing) -> Frame {
    let mut buffer = RecvBuffer::new();
    let (a, b) = SeqPacket::pair().unwrap();
    assert!(a.try_send(packet).unwrap());
    let whole = getrlimit(Resource::Nofile);
    // The number that comes after `room` free ones; those in between may be taken.
    let probes: Vec<_> = (0..=room).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
    let current = u64::try_from(probes[room].as_raw_fd()).unwrap();
    drop(probes);
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..whole }).unwrap();
    let received = b.try_recv(&mut buffer);
    setrlimit(Resource::Nofile, whole).unwrap();
    match received.unwrap() {
        Received::Frame(frame) => frame,
        other => panic!("{other:?}"),
    }
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
