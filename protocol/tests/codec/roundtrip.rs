//! Every message survives: encoded, sent through a real socket, received, decoded.

use std::time::{Duration, Instant};

use gpu_handoff_protocol::codec::{
    Frame, Outgoing, decode_broker, decode_client, decode_sidecar, decode_slot, encode_broker, encode_client,
    encode_sidecar, encode_slot, join, join_slot,
};
use gpu_handoff_protocol::message::{BrokerMessage, ClientBody, ClientMessage, SlotMessage, Target, Wanted};
use gpu_handoff_protocol::socket::{RecvBuffer, SeqPacket};
use gpu_handoff_protocol::{BootTag, BufferId};
use proptest::prelude::*;

use crate::print::{Print, frame};
use crate::strategies::{broker, client, sidecar, slot};

/// Sends a packet from one end of a connection to the other.
pub(crate) fn carry(packet: &Outgoing) -> Frame {
    let soon = Some(Instant::now() + Duration::from_secs(10));
    let (a, b) = SeqPacket::pair().unwrap();
    a.send(packet, soon).unwrap();
    b.recv(&mut RecvBuffer::new(), soon).unwrap().unwrap()
}

/// Carries all parts of an answer and joins them.
pub(crate) fn carry_all(packets: &[Outgoing]) -> BrokerMessage {
    let mut whole: Option<BrokerMessage> = None;
    for (i, packet) in packets.iter().enumerate() {
        let (part, more) = decode_broker(carry(packet)).unwrap();
        assert_eq!(more, i + 1 < packets.len());
        whole = Some(match whole {
            None => part,
            Some(first) => {
                assert_eq!(first.request, part.request);
                BrokerMessage { request: part.request, body: join(first.body, part.body, more).unwrap() }
            }
        });
    }
    whole.unwrap()
}

/// The same for what the broker says to a sidecar.
pub(crate) fn carry_all_to_sidecar(packets: &[Outgoing]) -> SlotMessage {
    let mut whole: Option<SlotMessage> = None;
    for (i, packet) in packets.iter().enumerate() {
        let (part, more) = decode_slot(carry(packet)).unwrap();
        assert_eq!(more, i + 1 < packets.len());
        whole = Some(match whole {
            None => part,
            Some(first) => {
                assert_eq!(first.request, part.request);
                SlotMessage { request: part.request, body: join_slot(first.body, part.body).unwrap() }
            }
        });
    }
    whole.unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_a_client_says(message in client(12)) {
        let read = decode_client(carry(&encode_client(&message))).unwrap();
        prop_assert_eq!(read.print(), message.print());
    }

    #[test]
    fn what_the_broker_says(message in broker(12)) {
        let read = carry_all(&encode_broker(&message));
        prop_assert_eq!(read.print(), message.print());
    }

    #[test]
    fn what_a_sidecar_says(message in sidecar(12)) {
        let said = message.print();
        let read = decode_sidecar(carry(&encode_sidecar(message))).unwrap();
        prop_assert_eq!(read.print(), said);
    }

    #[test]
    fn what_the_broker_says_to_a_sidecar(message in slot(12)) {
        let read = carry_all_to_sidecar(&encode_slot(&message));
        prop_assert_eq!(read.print(), message.print());
    }
}

#[test]
fn a_short_time_never_becomes_no_time() {
    // 0 means "do not wait" and "revoke": half a millisecond must not turn into either.
    let short = Duration::from_micros(500);
    let id = BufferId { boot: BootTag(1), random: 2 };
    let items = vec![Wanted { target: Target::Id(id), newer_than: 0 }];
    for body in
        [ClientBody::Acquire { items, wait: short, device: None }, ClientBody::Retire { id, deadline: short }]
    {
        let packet = encode_client(&ClientMessage { request: 1, body });
        match decode_client(frame(&packet)).unwrap().body {
            ClientBody::Acquire { wait: time, .. } | ClientBody::Retire { deadline: time, .. } => {
                assert_eq!(time, Duration::from_millis(1));
            }
            other => panic!("{other:?}"),
        }
    }
}
