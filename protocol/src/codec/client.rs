//! What an application says.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use prost::Message as _;

use super::convert::{
    bounded_millis, buffer_id, facts, id_refusal, millis, optional_device, receipt, version, write_device,
    write_facts, write_version,
};
use super::{check_count, check_items, expect_descriptors, malformed, take_flagged};
use crate::buffer::Kind;
use crate::ids::LeaseId;
use crate::limits;
use crate::message::{Carrier, Claim, ClientBody, Publication, Target, Wanted};
use crate::refusal::{Code, Refusal};
use crate::set::SetPart;
use crate::wire;
use crate::wire::client_packet;

pub(super) type Handle = [u8; limits::LEGACY_HANDLE_BYTES];

pub(super) fn read_body(body: client_packet::Body, descriptors: Vec<OwnedFd>) -> Result<ClientBody, Refusal> {
    use client_packet::Body;
    if !matches!(body, Body::Publish(_) | Body::Reattach(_)) {
        expect_descriptors(0, descriptors.len())?;
    }
    Ok(match body {
        Body::Hello(h) => {
            check_count("bytes of program name", h.program.len(), limits::CLIENT_NAME_BYTES, Code::TooLarge)?;
            ClientBody::Hello { version: version(h.version)?, program: h.program }
        }
        Body::Publish(mut p) => match p.set.take() {
            None => ClientBody::Publish(publications(p, descriptors)?),
            Some(part) => ClientBody::PublishSet {
                part: set_part(part, p.items.len())?,
                items: publications(p, descriptors)?,
            },
        },
        Body::Acquire(a) => {
            let wait = bounded_millis("wait", a.wait_ms, limits::ACQUIRE_WAIT_MS)?;
            check_items(a.items.len())?;
            let items = a.items.into_iter().map(wanted).collect::<Result<_, _>>()?;
            ClientBody::Acquire { items, wait, device: optional_device(&a.device)? }
        }
        Body::AcquireSet(a) => ClientBody::AcquireSet {
            name: a.name.parse().map_err(id_refusal)?,
            newer_than: a.newer_than,
            wait: bounded_millis("wait", a.wait_ms, limits::ACQUIRE_WAIT_MS)?,
            device: optional_device(&a.device)?,
        },
        Body::Release(r) => {
            check_items(r.leases.len())?;
            ClientBody::Release(r.leases.into_iter().map(LeaseId).collect())
        }
        Body::Retire(r) => ClientBody::Retire {
            id: buffer_id(&r.id)?,
            deadline: bounded_millis("deadline", r.deadline_ms, limits::RETIRE_DEADLINE_MS)?,
        },
        Body::Watch(wire::Watch {}) => ClientBody::Watch,
        Body::Cancel(c) => ClientBody::Cancel { request: c.request },
        Body::Reattach(r) => ClientBody::Reattach(claims(r.items, descriptors)?),
        Body::Announce(a) => {
            check_items(a.names.len())?;
            let names = a.names.iter().map(|name| name.parse().map_err(id_refusal));
            ClientBody::Announce(names.collect::<Result<_, _>>()?)
        }
    })
}

/// A part lies within its set.
fn set_part(part: wire::SetPart, items: usize) -> Result<SetPart, Refusal> {
    check_count("buffers of a set", part.total as usize, limits::SET_BUFFERS as usize, Code::TooLarge)?;
    if part.first as usize + items > part.total as usize {
        return Err(malformed("a part within its set"));
    }
    Ok(SetPart { name: part.name.parse().map_err(id_refusal)?, total: part.total, first: part.first })
}

fn claims(items: Vec<wire::Claim>, descriptors: Vec<OwnedFd>) -> Result<Vec<Claim>, Refusal> {
    check_items(items.len())?;
    let flags: Vec<bool> = items.iter().map(|c| c.descriptor).collect();
    items
        .into_iter()
        .zip(take_flagged(&flags, descriptors)?)
        .map(|(c, descriptor)| {
            let receipt = receipt(c.receipt)?.ok_or_else(|| malformed("a receipt"))?;
            Ok(Claim { receipt, descriptor })
        })
        .collect()
}

/// Pairs each item with its descriptor or handle, in order.
fn publications(p: wire::Publish, descriptors: Vec<OwnedFd>) -> Result<Vec<Publication>, Refusal> {
    check_items(p.items.len())?;
    let items = p.items.into_iter().map(facts).collect::<Result<Vec<_>, _>>()?;
    expect_descriptors(items.iter().map(|f| f.kind.descriptors()).sum(), descriptors.len())?;
    let legacy = items.iter().filter(|f| f.kind == Kind::Legacy).count();
    if legacy != p.legacy_handles.len() {
        return Err(malformed("one handle for each legacy item"));
    }
    let mut descriptors = descriptors.into_iter();
    let mut handles = p.legacy_handles.into_iter();
    items
        .into_iter()
        .map(|facts| {
            let carrier = match facts.kind {
                Kind::Legacy => handles.next().and_then(|h| Handle::try_from(h).ok()).map(Carrier::Legacy),
                Kind::Vmm | Kind::Timeline => descriptors.next().map(|fd| Carrier::Descriptor(Arc::new(fd))),
            };
            let carrier = carrier.ok_or_else(|| malformed("a handle of 64 bytes for each legacy item"))?;
            Ok(Publication { facts, carrier })
        })
        .collect()
}

fn wanted(item: wire::AcquireItem) -> Result<Wanted, Refusal> {
    use wire::acquire_item::Target as T;
    let target = match item.target.ok_or_else(|| malformed("an id or a name"))? {
        T::Id(bytes) => Target::Id(buffer_id(&bytes)?),
        T::Name(name) => Target::Name(name.parse().map_err(id_refusal)?),
    };
    Ok(Wanted { target, newer_than: item.newer_than })
}

pub(super) fn write_body(body: &ClientBody) -> client_packet::Body {
    use client_packet::Body;
    match body {
        ClientBody::Hello { version, program } => {
            Body::Hello(wire::Hello { version: write_version(*version), program: program.clone() })
        }
        ClientBody::Publish(items) => Body::Publish(write_publish(items, None)),
        ClientBody::PublishSet { part, items } => Body::Publish(write_publish(items, Some(part))),
        ClientBody::Acquire { items, wait, device } => Body::Acquire(wire::Acquire {
            items: items.iter().map(write_wanted).collect(),
            wait_ms: millis(*wait),
            device: write_device(*device),
        }),
        ClientBody::AcquireSet { name, newer_than, wait, device } => Body::AcquireSet(wire::AcquireSet {
            name: name.to_string(),
            newer_than: *newer_than,
            wait_ms: millis(*wait),
            device: write_device(*device),
        }),
        ClientBody::Release(leases) => {
            Body::Release(wire::Release { leases: leases.iter().map(|l| l.0).collect() })
        }
        ClientBody::Retire { id, deadline } => {
            Body::Retire(wire::Retire { id: id.to_bytes().to_vec(), deadline_ms: millis(*deadline) })
        }
        ClientBody::Watch => Body::Watch(wire::Watch {}),
        ClientBody::Cancel { request } => Body::Cancel(wire::Cancel { request: *request }),
        ClientBody::Announce(names) => {
            Body::Announce(wire::Announce { names: names.iter().map(ToString::to_string).collect() })
        }
        ClientBody::Reattach(claims) => Body::Reattach(wire::Reattach {
            items: claims
                .iter()
                .map(|c| wire::Claim {
                    receipt: c.receipt.as_bytes().to_vec(),
                    descriptor: c.descriptor.is_some(),
                })
                .collect(),
        }),
    }
}

fn write_publish(items: &[Publication], part: Option<&SetPart>) -> wire::Publish {
    wire::Publish {
        items: items.iter().map(|i| write_facts(&i.facts)).collect(),
        legacy_handles: items.iter().filter_map(|i| handle(&i.carrier)).collect(),
        set: part.map(|p| wire::SetPart { name: p.name.to_string(), total: p.total, first: p.first }),
    }
}

/// Length of a publication in its packet, with its handle.
pub(super) fn wire_publication_len(item: &Publication) -> usize {
    let handle = if item.facts.kind == Kind::Legacy { limits::LEGACY_HANDLE_BYTES + 2 } else { 0 };
    write_facts(&item.facts).encoded_len() + handle
}

fn write_wanted(item: &Wanted) -> wire::AcquireItem {
    use wire::acquire_item::Target as T;
    let target = match &item.target {
        Target::Id(id) => T::Id(id.to_bytes().to_vec()),
        Target::Name(name) => T::Name(name.to_string()),
    };
    wire::AcquireItem { target: Some(target), newer_than: item.newer_than }
}

pub(super) fn handle(carrier: &Carrier) -> Option<Vec<u8>> {
    match carrier {
        Carrier::Legacy(bytes) => Some(bytes.to_vec()),
        Carrier::Descriptor(_) => None,
    }
}
