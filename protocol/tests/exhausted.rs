//! A receiver that has no room for more open files: the kernel cuts the control data, and that is said.
//!
//! The limit is the whole process's, so the test runs itself again as a child and lowers the limit there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;

use gpu_handoff_protocol::codec::{
    Frame, Outgoing, Short, decode_broker, decode_client, decode_short, encode_broker, encode_client,
};
use gpu_handoff_protocol::message::{BrokerBody, BrokerMessage, Carrier, ClientBody, ClientMessage, Grant};
use gpu_handoff_protocol::socket::{Received, RecvBuffer, SeqPacket};
use gpu_handoff_protocol::{
    Access, BootTag, BufferFacts, BufferId, BufferInfo, Code, DeviceUuid, Kind, LeaseId, Lifetime, Metadata,
    PodRef, Refusal,
};
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
    what_was_granted_is_known();
    assert_eq!(open_descriptors(), before);
}

/// Of an answer that lost descriptors: what is to be given back.
fn what_was_granted_is_known() {
    let items = vec![Ok(grant(3)), Err(Refusal::new(Code::NotFound)), Ok(grant(5))];
    let packets = encode_broker(&BrokerMessage { request: 9, body: BrokerBody::Acquired(items) });
    assert_eq!(
        decode_broker(receive_with_room_for(1, &packets[0])).unwrap_err().code(),
        Code::TruncatedControl
    );
    let Short { request, leases, refusal } = decode_short(receive_with_room_for(1, &packets[0])).unwrap();
    assert_eq!((request, leases), (9, vec![LeaseId(3), LeaseId(5)]));
    let text = refusal.to_string();
    assert!(text.contains("TRUNCATED_CONTROL (descriptors of the answer: wanted 2, found 1)"), "{text}");
    // What brings no descriptors has lost none, whatever the kernel says.
    let watch = encode_broker(&BrokerMessage { request: 9, body: BrokerBody::Cancelled });
    let cut = Frame { bytes: watch[0].bytes.clone(), control_truncated: true, ..Frame::default() };
    assert_eq!(decode_short(cut).unwrap_err().code(), Code::TruncatedControl);
}

fn grant(lease: u64) -> Grant {
    let facts = BufferFacts {
        name: "weights".parse().unwrap(),
        kind: Kind::Vmm,
        device: DeviceUuid::from_bytes([1; 16]),
        offset: 0,
        size: 4096,
        allocation_size: 2 << 20,
        access: Access::ReadOnly,
        lifetime: Lifetime::Process,
        metadata: Metadata::default(),
        order: None,
    };
    let owner = PodRef { namespace: "ml".parse().unwrap(), name: "trainer-0".parse().unwrap() };
    let id = BufferId { boot: BootTag(1), random: 1 };
    let fd: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    Grant {
        lease: LeaseId(lease),
        buffer: Arc::new(BufferInfo { id, generation: 1, owner, verified: true, facts, set: None }),
        carrier: Carrier::Descriptor(Arc::new(fd)),
        rewrite_pid_word: false,
        receipt: None,
        seat: None,
    }
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
