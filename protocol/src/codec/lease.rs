//! What the fast path writes, straight into its packet: grants, and what receipts say.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use prost::Message as _;

use super::convert::{access_number, kind_number, lifetime_number, write_refusal};
use super::direct::{self, Fields};
use super::{Outgoing, descriptor, parts};
use crate::buffer::{BufferFacts, BufferInfo, Metadata, Order, Tensor};
use crate::ids::GroupKey;
use crate::limits;
use crate::message::{Carrier, Grant, RequestId};
use crate::receipt::{BufferReceipt, LeaseReceipt, ReceiptBody, Subject};
use crate::refusal::Refusal;
use crate::set::{SetInfo, SetRef};

/// Items of one packet.
#[derive(Default)]
struct Part {
    /// As they stand in the list.
    items: Vec<u8>,
    count: usize,
    descriptors: Vec<Arc<OwnedFd>>,
}

/// The packets of an answer to an acquire, at least one.
pub(super) fn acquired<'a>(
    request: RequestId,
    items: impl Iterator<Item = Result<&'a Grant, &'a Refusal>>,
    set: Option<&SetInfo>,
) -> Vec<Outgoing> {
    let (mut parts, mut part) = (Vec::with_capacity(1), Part::default());
    for item in items {
        let before = part.items.len();
        direct::message(&mut part.items, |f| f.message(1, |f| put_item(f, item)));
        if part.count == limits::MESSAGE_ITEMS || (part.count > 0 && part.items.len() > parts::ROOM) {
            let items = part.items.split_off(before);
            parts.push(std::mem::replace(&mut part, Part { items, ..Part::default() }));
        }
        part.count += 1;
        part.descriptors.extend(item.ok().and_then(|grant| descriptor(&grant.carrier)));
    }
    let parts = parts.into_iter().map(|part| (part, true)).chain([(part, false)]);
    parts.enumerate().map(|(i, (part, more))| packet(request, part, more, set.filter(|_| i == 0))).collect()
}

fn packet(request: RequestId, part: Part, more: bool, set: Option<&SetInfo>) -> Outgoing {
    let mut bytes = Vec::with_capacity(part.items.len() + parts::ENVELOPE_BYTES);
    direct::message(&mut bytes, |f| {
        f.number(1, request);
        f.message(4, |f| {
            f.whole(&part.items);
            f.number(2, more);
            if let Some(SetInfo { name, generation, total }) = set {
                f.message(3, |f| {
                    f.bytes(1, name.as_str());
                    f.number(2, *generation);
                    f.number(3, *total);
                });
            }
        });
    });
    Outgoing { bytes, descriptors: part.descriptors }
}

fn put_item(f: &mut Fields<'_>, item: Result<&Grant, &Refusal>) {
    match item {
        Ok(grant) => f.message(1, |f| put_grant(f, grant)),
        Err(refusal) => f.message(2, |f| f.whole(&write_refusal(refusal).encode_to_vec())),
    }
}

fn put_grant(f: &mut Fields<'_>, grant: &Grant) {
    f.number(1, grant.lease.0);
    f.message(2, |f| put_info(f, &grant.buffer, &grant.buffer.facts.metadata));
    if let Carrier::Legacy(handle) = &grant.carrier {
        f.bytes(3, handle);
    }
    f.number(4, grant.rewrite_pid_word);
    if let Some(receipt) = &grant.receipt {
        f.bytes(5, receipt.as_bytes());
    }
    if let Some(seat) = grant.seat {
        f.present(6, seat.0);
    }
}

fn put_info(f: &mut Fields<'_>, info: &BufferInfo, metadata: &Metadata) {
    f.bytes(1, info.id.to_bytes());
    f.number(2, info.generation);
    f.bytes(3, info.owner.namespace.as_str());
    f.bytes(4, info.owner.name.as_str());
    f.number(5, info.verified);
    f.message(6, |f| put_facts(f, &info.facts, metadata));
    if let Some(SetRef { name, index, total }) = &info.set {
        f.message(7, |f| {
            f.bytes(1, name.as_str());
            f.number(2, *index);
            f.number(3, *total);
        });
    }
}

fn put_facts(f: &mut Fields<'_>, facts: &BufferFacts, metadata: &Metadata) {
    f.bytes(1, facts.name.as_str());
    f.number(2, kind_number(facts.kind));
    f.bytes(3, facts.device.as_bytes());
    f.number(4, facts.offset);
    f.number(5, facts.size);
    f.number(6, facts.allocation_size);
    f.number(7, access_number(facts.access));
    f.number(8, lifetime_number(facts.lifetime));
    if let Some(Tensor { dtype, shape, strides }) = &metadata.tensor {
        f.message(9, |f| {
            f.bytes(1, dtype);
            f.numbers(2, shape);
            f.signed_numbers(3, strides);
        });
    }
    f.bytes(10, &metadata.user);
    if let Some(Order { timeline, ready_word, value, first_seat_word, seats }) = &facts.order {
        f.message(11, |f| {
            f.bytes(1, timeline.to_bytes());
            f.number(2, *ready_word);
            f.number(3, *value);
            f.number(4, *first_seat_word);
            f.number(5, *seats);
        });
    }
}

/// What a receipt says. Of a lease's buffer, metadata and tensor are left out.
pub(super) fn receipt_body(body: &ReceiptBody) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(parts::ENVELOPE_BYTES);
    direct::message(&mut bytes, |f| {
        f.fixed(1, body.boot.0);
        f.message(2, |f| {
            f.number(1, body.process.pid);
            f.number(2, body.process.started);
            f.number(3, body.process.pidfs_inode.unwrap_or(0));
        });
        f.bytes(3, body.slot.as_str());
        f.bytes(4, body.pod_uid.as_str());
        match &body.subject {
            Subject::Buffer(buffer) => f.message(5, |f| put_buffer_receipt(f, buffer)),
            Subject::Lease(lease) => f.message(6, |f| put_lease_receipt(f, lease)),
        }
    });
    bytes
}

fn put_buffer_receipt(f: &mut Fields<'_>, receipt: &BufferReceipt) {
    f.message(1, |f| put_info(f, &receipt.info, &receipt.info.facts.metadata));
    put_group(f, 2, &receipt.group);
    if let Some(handle) = &receipt.legacy_handle {
        f.bytes(4, handle);
    }
    f.number(5, receipt.own_pid);
    f.bytes(6, &receipt.container);
}

fn put_lease_receipt(f: &mut Fields<'_>, receipt: &LeaseReceipt) {
    f.number(1, receipt.lease.0);
    f.message(2, |f| put_info(f, &receipt.buffer, &Metadata::default()));
    put_group(f, 3, &receipt.group);
    if let Some(seat) = receipt.seat {
        f.present(5, seat.0);
    }
}

/// A group's two names, from this field on.
fn put_group(f: &mut Fields<'_>, first: u32, group: &GroupKey) {
    f.bytes(first, group.namespace.as_str());
    f.bytes(first + 1, group.name.as_str());
}
