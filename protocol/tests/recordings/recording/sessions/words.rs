//! Names and numbers that the conversations share.

use std::sync::Arc;
use std::time::Duration;

use gpu_handoff_protocol::codec::{encode_receipt_body, seal_receipt};
use gpu_handoff_protocol::message::{Carrier, Grant, Keepsake, Publication, PublishedAs, Welcome};
use gpu_handoff_protocol::receipt::{BufferReceipt, LeaseReceipt, ProcessKey, Receipt, ReceiptBody, Subject};
use gpu_handoff_protocol::{
    Access, BootTag, BufferFacts, BufferId, BufferInfo, BufferName, Code, DeviceUuid, GroupKey, Instance,
    Kind, LeaseId, Lifetime, Metadata, Order, PROTOCOL_VERSION, PodRef, Refusal, Seat, SetRef, Tensor,
};

use super::super::packet::descriptor;

pub(super) const BOOT: BootTag = BootTag(0x9b2f_1c3e_5a70_4c1d);
pub(super) const GPU: DeviceUuid =
    DeviceUuid::from_bytes(*b"\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef");
pub(super) const OTHER_GPU: DeviceUuid = DeviceUuid::from_bytes([0xfe; 16]);
pub(super) const HANDLE: [u8; 64] = [0x5a; 64];

pub(super) fn name(text: &str) -> BufferName {
    text.parse().expect("a name")
}

pub(super) fn id(random: u128) -> BufferId {
    BufferId { boot: BOOT, random: 0x0a1b_2c3d_4e5f_6071_8293_a4b5_c6d7_0000 + random }
}

pub(super) fn pod(text: &str) -> PodRef {
    PodRef { namespace: "ml".parse().expect("a namespace"), name: text.parse().expect("a pod") }
}

pub(super) fn group() -> GroupKey {
    GroupKey { namespace: "ml".parse().expect("a namespace"), name: "llama".parse().expect("a group") }
}

pub(super) fn welcome(instance: u8) -> Welcome {
    Welcome {
        version: PROTOCOL_VERSION,
        pod: pod("trainer-0"),
        group: group(),
        boot: BOOT,
        legacy_pid_word_proven: true,
        instance: Instance::from_bytes([instance; 16]),
    }
}

/// A plain vmm buffer.
pub(super) fn vmm(text: &str) -> BufferFacts {
    BufferFacts {
        name: name(text),
        kind: Kind::Vmm,
        device: GPU,
        offset: 0,
        size: 2 << 20,
        allocation_size: 2 << 20,
        access: Access::ReadWrite,
        lifetime: Lifetime::Process,
        metadata: Metadata::default(),
        order: None,
    }
}

/// A tensor in a part of an allocation, with all that can be said of it.
pub(super) fn tensor(text: &str) -> BufferFacts {
    BufferFacts {
        offset: 512,
        size: 4096,
        access: Access::ReadOnly,
        lifetime: Lifetime::Pod,
        metadata: Metadata {
            tensor: Some(Tensor {
                dtype: "bfloat16".to_owned(),
                shape: vec![2, 1024],
                strides: vec![-1024, 1],
            }),
            user: br#"{"layer":0}"#.to_vec(),
        },
        ..vmm(text)
    }
}

pub(super) fn legacy(text: &str) -> BufferFacts {
    BufferFacts { kind: Kind::Legacy, offset: 256, size: 1024, ..vmm(text) }
}

pub(super) fn timeline(text: &str) -> BufferFacts {
    BufferFacts { kind: Kind::Timeline, size: 4096, ..vmm(text) }
}

/// A buffer that may be read once word 2 of the timeline says 17.
pub(super) fn ordered(text: &str, timeline: BufferId) -> BufferFacts {
    let order = Order { timeline, ready_word: 2, value: 17, first_seat_word: 8, seats: 4 };
    BufferFacts { order: Some(order), ..vmm(text) }
}

pub(super) fn publication(facts: BufferFacts) -> Publication {
    let carrier = carrier(facts.kind);
    Publication { facts, carrier }
}

fn carrier(kind: Kind) -> Carrier {
    match kind {
        Kind::Legacy => Carrier::Legacy(HANDLE),
        Kind::Vmm | Kind::Timeline => Carrier::Descriptor(descriptor()),
    }
}

pub(super) fn info(random: u128, generation: u64, facts: BufferFacts) -> BufferInfo {
    let verified = facts.kind != Kind::Legacy;
    BufferInfo { id: id(random), generation, owner: pod("trainer-0"), verified, facts, set: None }
}

/// One of a set's buffers.
pub(super) fn of_set(index: u32, total: u32, facts: BufferFacts) -> BufferInfo {
    let set = Some(SetRef { name: name("model"), index, total });
    BufferInfo { set, ..info(u128::from(0x100 + index), 9, facts) }
}

pub(super) fn published(random: u128, generation: u64) -> Result<PublishedAs, Refusal> {
    let receipt = Some(buffer_receipt(random, tensor("weights/layer-0")));
    Ok(PublishedAs { id: id(random), generation, receipt, checked: Some(Duration::from_nanos(71_000)) })
}

pub(super) fn grant(lease: u64, buffer: BufferInfo, seat: Option<u32>) -> Grant {
    Grant {
        lease: LeaseId(lease),
        carrier: carrier(buffer.facts.kind),
        rewrite_pid_word: buffer.facts.kind == Kind::Legacy,
        buffer: Arc::new(buffer),
        receipt: Some(sealed(&lease_body(lease, seat))),
        seat: seat.map(Seat),
    }
}

pub(super) fn refusal(code: Code) -> Refusal {
    Refusal::new(code)
}

pub(super) fn size_mismatch() -> Refusal {
    refusal(Code::SizeMismatch).compared_with("bytes", 4096, 2 << 20).with_remedy("state the true size")
}

fn body(subject: Subject) -> ReceiptBody {
    ReceiptBody {
        boot: BOOT,
        process: ProcessKey { pid: 4711, started: 123_456, pidfs_inode: Some(77_001) },
        slot: "slot-3".parse().expect("a slot"),
        pod_uid: "0b5b9e4c-1f0e-4e5e-9d0c-9c0a6f4f2a11".parse().expect("a pod uid"),
        subject,
    }
}

/// What the receipt of a buffer says.
pub(super) fn buffer_body(random: u128, facts: BufferFacts) -> ReceiptBody {
    let legacy_handle = Some(HANDLE).filter(|_| facts.kind == Kind::Legacy);
    body(Subject::Buffer(BufferReceipt {
        info: Arc::new(info(random, 7, facts)),
        group: group(),
        legacy_handle,
        own_pid: 17,
        container: "7f".repeat(32),
    }))
}

/// What the receipt of a lease says.
pub(super) fn lease_body(lease: u64, seat: Option<u32>) -> ReceiptBody {
    let buffer = Arc::new(info(1, 7, vmm("weights/layer-0")));
    body(Subject::Lease(LeaseReceipt { lease: LeaseId(lease), buffer, group: group(), seat: seat.map(Seat) }))
}

/// A receipt; its MAC is nobody's.
pub(super) fn sealed(body: &ReceiptBody) -> Receipt {
    seal_receipt(encode_receipt_body(body), &[0xa5; 32]).expect("a body fits into a receipt")
}

pub(super) fn buffer_receipt(random: u128, facts: BufferFacts) -> Receipt {
    sealed(&buffer_body(random, facts))
}

pub(super) fn keepsake(random: u128, facts: BufferFacts) -> Keepsake {
    let descriptor = Some(descriptor()).filter(|_| facts.kind != Kind::Legacy);
    Keepsake { id: id(random), receipt: buffer_receipt(random, facts), descriptor }
}
