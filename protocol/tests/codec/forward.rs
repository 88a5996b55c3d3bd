//! What a newer peer may send: unknown fields are ignored at every depth, unknown bodies are refused.

use gpu_handoff_protocol::Code;
use gpu_handoff_protocol::codec::{
    Frame, Outgoing, decode_broker, decode_client, decode_sidecar, decode_slot, encode_broker, encode_client,
    encode_receipt_body, encode_sidecar, encode_slot, seal_receipt,
};
use gpu_handoff_protocol::message::{BrokerBody, BrokerMessage};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::print::{Print, frame};
use crate::proto::{Schema, Seen, bytes, int};
use crate::strategies::{broker, client, event, receipt_body, sidecar, slot};

fn from_the_future(message: &str, packet: &Outgoing) -> Frame {
    let mut frame = frame(packet);
    frame.bytes = Schema::of_the_protocol().sprinkle(message, &frame.bytes);
    frame
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn unknown_fields_of_a_client_are_ignored(message in client(4)) {
        let read = decode_client(from_the_future("ClientPacket", &encode_client(&message))).unwrap();
        prop_assert_eq!(read.print(), message.print());
    }

    #[test]
    fn unknown_fields_of_the_broker_are_ignored(message in broker(3)) {
        let packets = encode_broker(&message);
        prop_assert_eq!(packets.len(), 1);
        let (read, more) = decode_broker(from_the_future("BrokerPacket", &packets[0])).unwrap();
        prop_assert!(!more);
        prop_assert_eq!(read.print(), message.print());
    }

    #[test]
    fn unknown_fields_of_a_sidecar_are_ignored(message in sidecar(4)) {
        let said = message.print();
        let read = decode_sidecar(from_the_future("SidecarPacket", &encode_sidecar(message))).unwrap();
        prop_assert_eq!(read.print(), said);
    }

    #[test]
    fn unknown_fields_of_a_slot_are_ignored(message in slot(3)) {
        let packets = encode_slot(&message);
        prop_assert_eq!(packets.len(), 1);
        let (read, more) = decode_slot(from_the_future("SlotPacket", &packets[0])).unwrap();
        prop_assert!(!more);
        prop_assert_eq!(read.print(), message.print());
    }
}

#[test]
fn an_unknown_body_is_malformed() {
    let packet = || Frame { bytes: [int(1, 7), bytes(99, &[])].concat(), ..Frame::default() };
    assert_eq!(decode_client(packet()).unwrap_err().code(), Code::Malformed);
    assert_eq!(decode_broker(packet()).unwrap_err().code(), Code::Malformed);
    assert_eq!(decode_sidecar(packet()).unwrap_err().code(), Code::Malformed);
    assert_eq!(decode_slot(packet()).unwrap_err().code(), Code::Malformed);
}

#[test]
fn an_unknown_reason_and_an_unknown_code_are_kept_as_such() {
    use gpu_handoff_protocol::message::{BrokerBody, EndReason, Event};
    let gone = bytes(4, &[bytes(1, &[0; 24]), int(2, 77)].concat());
    let event = Frame { bytes: [int(1, 7), bytes(7, &gone)].concat(), ..Frame::default() };
    let (message, _) = decode_broker(event).unwrap();
    assert!(matches!(message.body, BrokerBody::Event(Event::Gone { reason: EndReason::Other, .. })));
    let refused = Frame { bytes: [int(1, 7), bytes(9, &int(1, 4_711))].concat(), ..Frame::default() };
    let BrokerBody::Refused(refusal) = decode_broker(refused).unwrap().0.body else { panic!("not refused") };
    assert_eq!(refusal.code(), Code::Unknown(4_711));
    assert!(refusal.to_string().starts_with("refused: UNKNOWN_4711"), "{refusal}");
}

#[test]
fn the_random_messages_have_every_field_of_the_protocol() {
    let (schema, mut seen) = (Schema::of_the_protocol(), Seen::default());
    let mut runner = TestRunner::deterministic();
    for _ in 0..150 {
        let mut visit = |message: &str, packet: &Outgoing| schema.visit(message, &packet.bytes, &mut seen);
        visit("ClientPacket", &encode_client(&client(3).new_tree(&mut runner).unwrap().current()));
        let told = BrokerBody::Event(event().new_tree(&mut runner).unwrap().current());
        for packet in encode_broker(&BrokerMessage { request: 1, body: told }) {
            visit("BrokerPacket", &packet);
        }
        for packet in encode_broker(&broker(3).new_tree(&mut runner).unwrap().current()) {
            visit("BrokerPacket", &packet);
        }
        visit("SidecarPacket", &encode_sidecar(sidecar(3).new_tree(&mut runner).unwrap().current()));
        for packet in encode_slot(&slot(3).new_tree(&mut runner).unwrap().current()) {
            visit("SlotPacket", &packet);
        }
        let body = encode_receipt_body(&receipt_body().new_tree(&mut runner).unwrap().current());
        let receipt = seal_receipt(body.clone(), &[7; 32]).unwrap();
        schema.visit("Receipt", receipt.as_bytes(), &mut seen);
        schema.visit("ReceiptBody", &body, &mut seen);
    }
    let mut missing: Vec<_> = schema.declared().difference(&seen.names).cloned().collect();
    // An answer goes on in a next packet where it is long: `parts.rs` has those. Choices are rare, and all recorded.
    missing.retain(|name| !name.ends_with(".more") && !name.contains(' '));
    assert!(missing.is_empty(), "{missing:?}");
}
