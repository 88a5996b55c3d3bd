//! The descriptor table before and after a hostile conversation through real sockets.
//!
//! One test, in a binary of its own: it counts the descriptors of the whole process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpu_handoff_protocol::codec::{
    Outgoing, decode_broker, decode_client, decode_sidecar, decode_slot, encode_client,
};
use gpu_handoff_protocol::limits;
use gpu_handoff_protocol::message::{ClientBody, ClientMessage};
use gpu_handoff_protocol::socket::{Received, RecvBuffer, SeqPacket};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn null() -> Arc<OwnedFd> {
    Arc::new(std::fs::File::open("/dev/null").unwrap().into())
}

/// Bytes that are random, a right message, or more than a packet may have.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let watch = encode_client(&ClientMessage { request: 1, body: ClientBody::Watch }).bytes;
    prop_oneof![
        4 => vec(any::<u8>(), 1..300),
        2 => Just(watch),
        1 => Just(vec![0x0a; limits::MESSAGE_BYTES + 500]),
    ]
}

#[test]
fn nothing_that_comes_along_is_kept() {
    let null = null();
    let room = std::cell::RefCell::new(RecvBuffer::new());
    let before = open_descriptors();
    let packets = vec((bytes(), 0..=253_usize, 0..4_u8), 1..6);
    let config = Config { cases: 300, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&packets, |packets| {
            let (a, b) = SeqPacket::pair().unwrap();
            for (bytes, count, decoder) in packets {
                a.try_send(&Outgoing { bytes, descriptors: vec![Arc::clone(&null); count] }).unwrap();
                if let Received::Frame(frame) = b.try_recv(&mut room.borrow_mut()).unwrap() {
                    prop_assert_eq!(frame.descriptors.len(), count);
                    match decoder {
                        0 => drop(decode_client(frame)),
                        1 => drop(decode_broker(frame)),
                        2 => drop(decode_sidecar(frame)),
                        _ => drop(decode_slot(frame)),
                    }
                }
            }
            // And one that nobody reads: it is closed with the connection.
            a.try_send(&Outgoing { bytes: vec![1], descriptors: vec![Arc::clone(&null); 9] }).unwrap();
            Ok(())
        })
        .unwrap();
    assert_eq!(open_descriptors(), before);
}
