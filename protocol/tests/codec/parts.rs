//! Answers that do not fit into one packet.

use std::sync::Arc;

use gpu_handoff_protocol::codec::{
    Listed, batches, decode_broker, encode_broker, encode_client, encode_sidecar, encode_slot, join,
    join_slot,
};
use gpu_handoff_protocol::message::{
    BrokerBody, BrokerMessage, Carrier, Claim, ClientBody, ClientMessage, Grant, Keepsake, Publication,
    SidecarBody, SidecarMessage, SlotBody, SlotMessage,
};
use gpu_handoff_protocol::{
    Access, BootTag, BufferFacts, BufferId, BufferInfo, BufferName, Code, DeviceUuid, Kind, LeaseId,
    Lifetime, Metadata, Order, PodRef, Receipt, Refusal, Seat, SetInfo, SetPart, SetRef, Tensor, limits,
};
use proptest::prelude::*;

use crate::print::{Print, frame, inode};
use crate::roundtrip::{carry_all, carry_all_to_sidecar};
use crate::strategies::{grant, memfd, refusal};

/// The largest grant there can be.
pub(crate) fn largest(number: u64) -> Grant {
    let facts = BufferFacts {
        name: "n".repeat(limits::BUFFER_NAME_BYTES).parse().unwrap(),
        kind: Kind::Vmm,
        device: DeviceUuid::from_bytes([0xff; 16]),
        offset: u64::MAX,
        size: u64::MAX,
        allocation_size: u64::MAX,
        access: Access::ReadOnly,
        lifetime: Lifetime::Pod,
        metadata: Metadata {
            tensor: Some(Tensor {
                dtype: "d".repeat(limits::DTYPE_BYTES),
                shape: vec![u64::MAX; limits::TENSOR_DIMENSIONS],
                strides: vec![i64::MIN; limits::TENSOR_DIMENSIONS],
            }),
            user: vec![0xff; limits::METADATA_BYTES],
        },
        order: Some(Order {
            timeline: BufferId { boot: BootTag(u64::MAX), random: u128::MAX },
            ready_word: u32::MAX,
            value: limits::ORDER_VALUES - 1,
            first_seat_word: u32::MAX - limits::SEATS,
            seats: limits::SEATS,
        }),
    };
    let owner = PodRef {
        namespace: "s".repeat(limits::NAMESPACE_BYTES).parse().unwrap(),
        name: "p".repeat(limits::POD_NAME_BYTES).parse().unwrap(),
    };
    let id = BufferId { boot: BootTag(u64::MAX), random: u128::MAX };
    let set = Some(SetRef {
        name: "t".repeat(limits::BUFFER_NAME_BYTES).parse().unwrap(),
        index: limits::SET_BUFFERS - 1,
        total: limits::SET_BUFFERS,
    });
    let buffer = Arc::new(BufferInfo { id, generation: u64::MAX, owner, verified: true, facts, set });
    Grant {
        lease: LeaseId(u64::MAX - number),
        buffer,
        carrier: Carrier::Descriptor(Arc::new(memfd())),
        rewrite_pid_word: true,
        receipt: Some(Receipt::new(vec![0xff; limits::RECEIPT_BYTES]).unwrap()),
        seat: Some(Seat(u32::MAX)),
    }
}

/// The largest refusal there can be.
fn longest_no() -> Refusal {
    let text = "x".repeat(limits::REFUSAL_TEXT_BYTES);
    (0..limits::REFUSAL_COMPARED)
        .fold(Refusal::new(Code::Unknown(u32::MAX)), |r, _| r.compared_with(&text, &text, &text))
        .with_remedy(text)
}

fn acquired(items: Vec<Result<Grant, Refusal>>) -> BrokerMessage {
    BrokerMessage { request: u64::MAX, body: BrokerBody::Acquired(items) }
}

#[test]
fn the_largest_answer_is_split_and_joined_with_its_descriptors_in_order() {
    let message = acquired((0..limits::MESSAGE_ITEMS as u64).map(|n| Ok(largest(n))).collect());
    let packets = encode_broker(&message);
    assert!(packets.len() > 1, "{} packet", packets.len());
    for packet in &packets {
        assert!(packet.bytes.len() <= limits::MESSAGE_BYTES, "{} bytes", packet.bytes.len());
        assert!(packet.descriptors.len() <= limits::MESSAGE_DESCRIPTORS);
        assert!(!packet.descriptors.is_empty());
    }
    let BrokerBody::Acquired(sent) = &message.body else { unreachable!() };
    let sent: Vec<u64> = sent
        .iter()
        .map(|g| match &g.as_ref().unwrap().carrier {
            Carrier::Descriptor(fd) => inode(fd),
            Carrier::Legacy(_) => unreachable!(),
        })
        .collect();
    let carried: Vec<u64> = packets.iter().flat_map(|p| p.descriptors.iter().map(|fd| inode(fd))).collect();
    assert_eq!(carried, sent);
    assert_eq!(carry_all(&packets).print(), message.print());
}

#[test]
fn the_longest_refusals_are_split_and_joined() {
    let no = longest_no();
    let count = limits::MESSAGE_ITEMS;
    for body in [
        BrokerBody::Published(vec![Err(no.clone()); count]),
        BrokerBody::Acquired(vec![Err(no.clone()); count]),
        BrokerBody::Released(vec![Err(no.clone()); count]),
        BrokerBody::Reattached(vec![Err(no.clone()); count]),
    ] {
        let message = BrokerMessage { request: u64::MAX, body };
        let packets = encode_broker(&message);
        assert!(packets.len() > 1);
        assert!(packets.iter().all(|p| p.bytes.len() <= limits::MESSAGE_BYTES));
        assert_eq!(carry_all(&packets).print(), message.print());
    }
}

#[test]
fn an_answer_without_items_is_one_packet() {
    let packets = encode_broker(&acquired(vec![]));
    assert_eq!(packets.len(), 1);
    assert_eq!(carry_all(&packets).print(), acquired(vec![]).print());
}

#[test]
fn parts_of_different_answers_do_not_join() {
    let part = |body| BrokerMessage { request: 1, body }.body;
    let refused =
        join(part(BrokerBody::Published(vec![])), part(BrokerBody::Released(vec![])), false).unwrap_err();
    assert_eq!(refused.code(), Code::Malformed);
    assert_eq!(
        join(BrokerBody::Cancelled, BrokerBody::Cancelled, false).unwrap_err().code(),
        Code::Malformed
    );
}

#[test]
fn a_part_that_lost_a_descriptor_is_refused() {
    let packets = encode_broker(&acquired((0..64).map(|n| Ok(largest(n))).collect()));
    for packet in packets {
        let mut cut = frame(&packet);
        cut.descriptors.pop();
        assert_eq!(decode_broker(cut).unwrap_err().code(), Code::DescriptorCount);
        let mut extra = frame(&packet);
        extra.descriptors.push(memfd());
        assert_eq!(decode_broker(extra).unwrap_err().code(), Code::DescriptorCount);
    }
}

fn name() -> BufferName {
    "n".repeat(limits::BUFFER_NAME_BYTES).parse().unwrap()
}

#[test]
fn a_large_set_is_split_and_joined() {
    for total in [1, 64, 65, 200_u32] {
        let grants = (0..total.into()).map(largest).collect();
        let set = SetInfo { name: name(), generation: u64::MAX, total };
        let body = BrokerBody::AcquiredSet { set, grants };
        let message = BrokerMessage { request: u64::MAX, body };
        let packets = encode_broker(&message);
        for packet in &packets {
            assert!(packet.bytes.len() <= limits::MESSAGE_BYTES, "{} bytes", packet.bytes.len());
            assert!(packet.descriptors.len() <= limits::MESSAGE_DESCRIPTORS);
        }
        assert_eq!(carry_all(&packets).print(), message.print());
    }
}

#[test]
fn a_set_that_is_not_whole_is_refused() {
    let grants = |count: u64| (0..count).map(largest).collect::<Vec<_>>();
    let set = SetInfo { name: name(), generation: 1, total: 3 };
    let begun = || BrokerBody::AcquiredSet { set: set.clone(), grants: grants(1) };
    let next = |count| BrokerBody::Acquired(grants(count).into_iter().map(Ok).collect());
    assert!(join(begun(), next(2), false).is_ok());
    assert!(join(begun(), next(1), true).is_ok());
    assert_eq!(join(begun(), next(1), false).unwrap_err().code(), Code::Malformed);
    assert_eq!(join(begun(), next(3), true).unwrap_err().code(), Code::Malformed);
    let refused = BrokerBody::Acquired(vec![Err(Refusal::new(Code::NotFound))]);
    assert_eq!(join(begun(), refused, true).unwrap_err().code(), Code::Malformed);
    assert_eq!(join(begun(), begun(), true).unwrap_err().code(), Code::Malformed);
}

#[test]
fn the_longest_outcomes_of_an_offer_are_split_and_joined() {
    let body = SlotBody::Offered(vec![Err(longest_no()); limits::MESSAGE_ITEMS]);
    let message = SlotMessage { request: u64::MAX, body };
    let packets = encode_slot(&message);
    assert!(packets.len() > 1);
    assert!(packets.iter().all(|p| p.bytes.len() <= limits::MESSAGE_BYTES));
    assert_eq!(carry_all_to_sidecar(&packets).print(), message.print());
    let none = SlotBody::Offered(Vec::new());
    assert_eq!(join_slot(none, SlotBody::HandedOn(Ok(()))).unwrap_err().code(), Code::Malformed);
}

#[test]
fn long_lists_make_as_many_requests_as_they_take() {
    let facts = || largest(0).buffer.facts.clone();
    let descriptor = || Arc::new(memfd());
    let receipt = || Receipt::new(vec![0xff; limits::RECEIPT_BYTES]).unwrap();
    let id = BufferId { boot: BootTag(u64::MAX), random: u128::MAX };
    let count = limits::MESSAGE_ITEMS + 1;
    let part = SetPart { name: name(), total: limits::SET_BUFFERS, first: limits::SET_BUFFERS - 65 };
    let legacy = BufferFacts { kind: Kind::Legacy, order: None, ..facts() };
    let publications: Vec<_> = (0..count)
        .map(|n| match n % 2 {
            0 => Publication { facts: facts(), carrier: Carrier::Descriptor(descriptor()) },
            _ => Publication { facts: legacy.clone(), carrier: Carrier::Legacy([0xff; 64]) },
        })
        .collect();
    let claims = vec![Claim { receipt: receipt(), descriptor: Some(descriptor()) }; count];
    let keepsakes = vec![Keepsake { id, receipt: receipt(), descriptor: Some(descriptor()) }; count];
    let mut packets = Vec::new();
    let request = u64::MAX;
    for items in checked_batches(publications) {
        let body = ClientBody::PublishSet { part: part.clone(), items };
        packets.push(encode_client(&ClientMessage { request, body }));
    }
    for claims in checked_batches(claims) {
        packets.push(encode_client(&ClientMessage { request, body: ClientBody::Reattach(claims) }));
    }
    for items in checked_batches(keepsakes.clone()) {
        packets.push(encode_sidecar(SidecarMessage { request, body: SidecarBody::Offer(items) }));
    }
    for items in checked_batches(keepsakes) {
        packets.extend(encode_slot(&SlotMessage { request: 0, body: SlotBody::Keep(items) }));
    }
    for packet in packets {
        assert!(packet.bytes.len() <= limits::MESSAGE_BYTES, "{} bytes", packet.bytes.len());
    }
    assert!(batches(Vec::<Claim>::new()).is_empty());
    let small = vec![Claim { receipt: Receipt::new(vec![1]).unwrap(), descriptor: None }; 130];
    let sizes: Vec<usize> = batches(small).iter().map(Vec::len).collect();
    assert_eq!(sizes, [64, 64, 2]);
}

/// More than one batch, none of them empty or beyond the limit, and nothing lost.
fn checked_batches<T: Listed>(items: Vec<T>) -> Vec<Vec<T>> {
    let count = items.len();
    let batches = batches(items);
    assert!(batches.len() > 1);
    assert!(batches.iter().all(|b| (1..=limits::MESSAGE_ITEMS).contains(&b.len())));
    assert_eq!(batches.iter().map(Vec::len).sum::<usize>(), count);
    batches
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn any_mix_of_grants_and_refusals_keeps_its_order(
        items in proptest::collection::vec(
            prop_oneof![2 => grant().prop_map(Ok), 1 => refusal().prop_map(Err)], 0..=limits::MESSAGE_ITEMS),
    ) {
        let message = acquired(items);
        let packets = encode_broker(&message);
        for packet in &packets {
            prop_assert!(packet.bytes.len() <= limits::MESSAGE_BYTES);
        }
        prop_assert_eq!(carry_all(&packets).print(), message.print());
    }
}
