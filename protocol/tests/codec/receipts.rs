//! Receipts: what is signed reads back the same, fits, and nothing else is taken for one.

use std::sync::Arc;

use gpu_handoff_protocol::codec::{decode_receipt_body, encode_receipt_body, open_receipt, seal_receipt};
use gpu_handoff_protocol::receipt::{
    BufferReceipt, LeaseReceipt, Mac, ProcessKey, Receipt, ReceiptBody, Subject,
};
use gpu_handoff_protocol::{BootTag, BufferInfo, Code, GroupKey, LeaseId, Metadata, Seat, limits};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::parts::largest;
use crate::proto::Schema;
use crate::strategies::receipt_body;

/// What a body is after it was written and read: a lease's buffer comes back without metadata and tensor.
fn as_signed(mut body: ReceiptBody) -> ReceiptBody {
    if let Subject::Lease(lease) = &mut body.subject {
        Arc::make_mut(&mut lease.buffer).facts.metadata = Metadata::default();
    }
    body
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_was_signed_reads_back(body in receipt_body(), mac in any::<[u8; limits::RECEIPT_MAC_BYTES]>()) {
        let bytes = encode_receipt_body(&body);
        let receipt = seal_receipt(bytes.clone(), &mac).unwrap();
        prop_assert_eq!(open_receipt(&receipt).unwrap(), (bytes.clone(), mac));
        prop_assert_eq!(decode_receipt_body(&bytes).unwrap(), as_signed(body));
    }

    #[test]
    fn unknown_fields_are_ignored(body in receipt_body()) {
        let bytes = Schema::of_the_protocol().sprinkle("ReceiptBody", &encode_receipt_body(&body));
        prop_assert_eq!(decode_receipt_body(&bytes).unwrap(), as_signed(body));
    }

    #[test]
    fn anything_else_is_refused_as_a_receipt(bytes in vec(any::<u8>(), 1..300)) {
        if let Err(refusal) = decode_receipt_body(&bytes) {
            prop_assert_eq!(refusal.code(), Code::ReceiptInvalid);
        }
        if let Err(refusal) = open_receipt(&Receipt::new(bytes).unwrap()) {
            prop_assert_eq!(refusal.code(), Code::ReceiptInvalid);
        }
    }

    #[test]
    fn a_cut_receipt_is_refused(body in receipt_body(), at in any::<prop::sample::Index>()) {
        let whole = seal_receipt(encode_receipt_body(&body), &[7; 32]).unwrap();
        let cut = &whole.as_bytes()[..at.index(whole.as_bytes().len())];
        if !cut.is_empty() {
            let refusal = open_receipt(&Receipt::new(cut).unwrap()).unwrap_err();
            prop_assert_eq!(refusal.code(), Code::ReceiptInvalid);
        }
    }
}

fn longest(subject: Subject) -> ReceiptBody {
    ReceiptBody {
        boot: BootTag(u64::MAX),
        process: ProcessKey { pid: u32::MAX, started: u64::MAX, pidfs_inode: Some(u64::MAX) },
        slot: "s".repeat(limits::SLOT_ID_BYTES).parse().unwrap(),
        pod_uid: "u".repeat(limits::POD_UID_BYTES).parse().unwrap(),
        subject,
    }
}

fn longest_group() -> GroupKey {
    GroupKey {
        namespace: "n".repeat(limits::NAMESPACE_BYTES).parse().unwrap(),
        name: "g".repeat(limits::GROUP_NAME_BYTES).parse().unwrap(),
    }
}

fn longest_info() -> Arc<BufferInfo> {
    largest(0).buffer
}

#[test]
fn the_longest_body_fits_into_a_receipt() {
    let (info, group) = (longest_info(), longest_group());
    let buffer = Subject::Buffer(BufferReceipt {
        info,
        group: group.clone(),
        legacy_handle: Some([0xff; limits::LEGACY_HANDLE_BYTES]),
        own_pid: u32::MAX,
        container: "c".repeat(limits::CONTAINER_BYTES),
    });
    let lease = Subject::Lease(LeaseReceipt {
        lease: LeaseId(u64::MAX),
        buffer: longest_info(),
        group,
        seat: Some(Seat(u32::MAX)),
    });
    for subject in [buffer, lease] {
        let mac: Mac = [0xff; limits::RECEIPT_MAC_BYTES];
        let receipt = seal_receipt(encode_receipt_body(&longest(subject)), &mac).unwrap();
        assert!(receipt.as_bytes().len() <= limits::RECEIPT_BYTES);
    }
}

#[test]
fn a_receipt_has_bytes_and_not_too_many() {
    assert!(Receipt::new(Vec::new()).is_err());
    assert!(Receipt::new(vec![0; limits::RECEIPT_BYTES]).is_ok());
    assert!(Receipt::new(vec![0; limits::RECEIPT_BYTES + 1]).is_err());
    let refusal = seal_receipt(vec![0; limits::RECEIPT_BYTES], &[0; 32]).unwrap_err();
    assert_eq!(refusal.code(), Code::TooLarge);
}

#[test]
fn it_does_not_show_its_bytes_in_logs() {
    let receipt = Receipt::new(vec![1, 2, 3]).unwrap();
    assert_eq!(format!("{receipt:?}"), "receipt of 3 bytes");
}
