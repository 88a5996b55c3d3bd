//! Requests that are given up, spoilt, or ended, each at a moment that is hard to meet from outside.

use super::*;
use crate::memory::Memory;
use crate::tests::{Pretender, id};
use gpu_handoff_protocol::message::{ClientBody, PublishedAs};

#[test]
fn of_an_answer_given_up_half_way_all_parts_are_revoked() {
    let (socket, _peer) = SeqPacket::pair().unwrap();
    let (mut state, memory) = (State::new(socket), Memory::new(Box::new(Pretender::default())));
    let request = state.number();
    state.open(request, Slot::new(ClientBody::Publish(Vec::new()), Vec::new())).unwrap();
    let part = |random| {
        let receipt = PublishedAs { id: id(random), generation: 1, receipt: None, checked: None };
        BrokerMessage { request, body: BrokerBody::Published(vec![Ok(receipt)]) }
    };
    assert!(state.dispatch(part(1), true, &memory).is_none());
    assert!(state.close(request, true, &memory).unwrap().0, "the node still works on it");
    assert!(state.dispatch(part(2), false, &memory).is_none());
    for random in [1, 2] {
        let revoked = state.unsent.first();
        assert!(matches!(revoked, Some(ClientBody::Retire { id: it, .. }) if it == id(random)));
        state.unsent.sent(1);
    }
    assert!(state.unsent.first().is_none());
}

#[test]
fn what_an_unanswered_publication_kept_outlives_the_lock() {
    let (socket, _peer) = SeqPacket::pair().unwrap();
    let (mut state, memory) = (State::new(socket), Memory::new(Box::new(Pretender::default())));
    let kept = Kept::new(crate::again::Again::Nothing);
    let held = Arc::downgrade(&kept.again);
    let request = state.number();
    state.open(request, Slot::new(ClientBody::Publish(Vec::new()), vec![kept])).unwrap();
    let closed = state.close(request, true, &memory);
    assert!(state.close(request, true, &memory).is_none(), "it is closed");
    assert!(held.upgrade().is_some(), "not dropped where the connection is locked");
    drop(closed);
    assert!(held.upgrade().is_none());
}

#[test]
fn an_answer_that_lost_descriptors_is_refused_and_all_of_it_given_back() {
    use crate::tests::info;
    use gpu_handoff_protocol::message::Carrier;
    use gpu_handoff_protocol::{LeaseId, SetInfo};
    let (socket, _peer) = SeqPacket::pair().unwrap();
    let (mut state, memory) = (State::new(socket), Memory::new(Box::new(Pretender::default())));
    let request = state.number();
    state
        .open(
            request,
            Slot::new(
                ClientBody::Acquire { items: Vec::new(), wait: Default::default(), device: None },
                Vec::new(),
            ),
        )
        .unwrap();
    let grant = |lease| Grant {
        lease: LeaseId(lease),
        buffer: Arc::new(info(u128::from(lease), "layer")),
        carrier: Carrier::Legacy([0; 64]),
        rewrite_pid_word: false,
        receipt: None,
        seat: None,
    };
    let set = SetInfo { name: "model".parse().unwrap(), generation: 1, total: 3 };
    let first = BrokerBody::AcquiredSet { set, grants: vec![grant(1)] };
    assert!(state.dispatch(BrokerMessage { request, body: first }, true, &memory).is_none());
    let refusal = Refusal::new(Code::TruncatedControl);
    state.spoil(Short { request, leases: vec![LeaseId(2)], refusal }, &memory);
    let last = BrokerBody::Acquired(vec![Ok(grant(3))]);
    assert!(state.dispatch(BrokerMessage { request, body: last }, false, &memory).is_none());
    let answer = state.slot(request).and_then(Slot::answered).unwrap().unwrap();
    assert!(matches!(answer, BrokerBody::Refused(refusal) if refusal.code() == Code::TruncatedControl));
    let ClientBody::Release(mut leases) = state.unsent.first().unwrap() else { panic!("no release") };
    leases.sort_unstable();
    assert_eq!(leases, [1, 2, 3].map(LeaseId));
    assert!(!state.close(request, true, &memory).unwrap().0, "the node is done with it");
}
