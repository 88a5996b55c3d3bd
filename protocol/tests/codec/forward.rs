//! What a newer peer may send: unknown fields are ignored at every depth, unknown bodies are refused.

use gpu_handoff_protocol::Code;
use gpu_handoff_protocol::codec::{
    Frame, Outgoing, decode_broker, decode_client, decode_sidecar, decode_slot, encode_broker, encode_client,
    encode_sidecar, encode_slot,
};
use proptest::prelude::*;

use crate::print::{Print, frame};
use crate::proto::{Schema, bytes, int};
use crate::strategies::{broker, client, sidecar, slot};

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
