//! Bodies between application and broker.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::convert::{
    bounded_millis, buffer_id, event, facts, group, id_refusal, info, millis, pod, refusal, version,
    write_event, write_facts, write_info, write_refusal, write_version,
};
use super::{check_count, expect_descriptors, grant_descriptor, malformed};
use crate::buffer::Kind;
use crate::ids::{BootTag, LeaseId};
use crate::limits;
use crate::message::{
    BrokerBody, Carrier, ClientBody, Grant, Publication, PublishedAs, Target, Wanted, Welcome,
};
use crate::refusal::{Code, Refusal};
use crate::wire;
use crate::wire::{broker_packet, client_packet};

type Handle = [u8; limits::LEGACY_HANDLE_BYTES];

pub(super) fn read_body(body: client_packet::Body, descriptors: Vec<OwnedFd>) -> Result<ClientBody, Refusal> {
    use client_packet::Body;
    if !matches!(body, Body::Publish(_)) {
        expect_descriptors(0, descriptors.len())?;
    }
    Ok(match body {
        Body::Hello(h) => {
            check_count("bytes of program name", h.program.len(), limits::CLIENT_NAME_BYTES, Code::TooLarge)?;
            ClientBody::Hello { version: version(h.version)?, program: h.program }
        }
        Body::Publish(p) => ClientBody::Publish(publications(p, descriptors)?),
        Body::Acquire(a) => {
            let wait = bounded_millis("wait", a.wait_ms, limits::ACQUIRE_WAIT_MS)?;
            check_items(a.items.len())?;
            ClientBody::Acquire { items: a.items.into_iter().map(wanted).collect::<Result<_, _>>()?, wait }
        }
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
    })
}

fn check_items(count: usize) -> Result<(), Refusal> {
    if count == 0 {
        return Err(malformed("at least one item"));
    }
    check_count("items", count, limits::MESSAGE_ITEMS, Code::TooLarge)
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
        ClientBody::Publish(items) => Body::Publish(wire::Publish {
            items: items.iter().map(|i| write_facts(&i.facts)).collect(),
            legacy_handles: items.iter().filter_map(|i| handle(&i.carrier)).collect(),
        }),
        ClientBody::Acquire { items, wait } => Body::Acquire(wire::Acquire {
            items: items.iter().map(write_wanted).collect(),
            wait_ms: millis(*wait),
        }),
        ClientBody::Release(leases) => {
            Body::Release(wire::Release { leases: leases.iter().map(|l| l.0).collect() })
        }
        ClientBody::Retire { id, deadline } => {
            Body::Retire(wire::Retire { id: id.to_bytes().to_vec(), deadline_ms: millis(*deadline) })
        }
        ClientBody::Watch => Body::Watch(wire::Watch {}),
        ClientBody::Cancel { request } => Body::Cancel(wire::Cancel { request: *request }),
    }
}

fn write_wanted(item: &Wanted) -> wire::AcquireItem {
    use wire::acquire_item::Target as T;
    let target = match &item.target {
        Target::Id(id) => T::Id(id.to_bytes().to_vec()),
        Target::Name(name) => T::Name(name.to_string()),
    };
    wire::AcquireItem { target: Some(target), newer_than: item.newer_than }
}

fn handle(carrier: &Carrier) -> Option<Vec<u8>> {
    match carrier {
        Carrier::Legacy(bytes) => Some(bytes.to_vec()),
        Carrier::Descriptor(_) => None,
    }
}

pub(super) fn read_broker_body(
    body: broker_packet::Body,
    descriptors: Vec<OwnedFd>,
) -> Result<(BrokerBody, bool), Refusal> {
    use broker_packet::Body;
    let mut descriptors = descriptors.into_iter();
    let mut more = false;
    let body = match body {
        Body::Welcome(w) => BrokerBody::Welcome(Welcome {
            version: version(w.version)?,
            pod: pod(&w.pod_namespace, &w.pod_name)?,
            group: group(&w.group_namespace, &w.group_name)?,
            boot: BootTag(w.boot),
            legacy_pid_word_proven: w.legacy_pid_word_proven,
        }),
        Body::Published(p) => {
            more = p.more;
            BrokerBody::Published(p.items.into_iter().map(read_published).collect::<Result<_, _>>()?)
        }
        Body::Acquired(a) => {
            more = a.more;
            let items = a.items.into_iter().map(|i| read_acquired(i, &mut descriptors));
            BrokerBody::Acquired(items.collect::<Result<_, _>>()?)
        }
        Body::Released(r) => {
            more = r.more;
            BrokerBody::Released(
                r.items.into_iter().map(|i| i.refused.map_or(Ok(()), |r| Err(refusal(r)))).collect(),
            )
        }
        Body::Retired(r) => BrokerBody::Retired(r.refused.map_or(Ok(r.leases), |r| Err(refusal(r)))),
        Body::Event(e) => BrokerBody::Event(event(e)?),
        Body::Cancelled(wire::CancelDone {}) => BrokerBody::Cancelled,
        Body::Refused(r) => BrokerBody::Refused(refusal(r)),
    };
    expect_descriptors(0, descriptors.count())?;
    Ok((body, more))
}

fn read_published(item: wire::PublishedItem) -> Result<Result<PublishedAs, Refusal>, Refusal> {
    use wire::published_item::Outcome;
    Ok(match item.outcome.ok_or_else(|| malformed("an outcome"))? {
        Outcome::Buffer(b) => Ok(PublishedAs { id: buffer_id(&b.id)?, generation: b.generation }),
        Outcome::Refused(r) => Err(refusal(r)),
    })
}

fn read_acquired(
    item: wire::AcquiredItem,
    descriptors: &mut std::vec::IntoIter<OwnedFd>,
) -> Result<Result<Grant, Refusal>, Refusal> {
    use wire::acquired_item::Outcome;
    let grant = match item.outcome.ok_or_else(|| malformed("an outcome"))? {
        Outcome::Grant(g) => g,
        Outcome::Refused(r) => return Ok(Err(refusal(r))),
    };
    let buffer = info(grant.buffer.ok_or_else(|| malformed("a buffer"))?)?;
    let carrier = match buffer.facts.kind {
        Kind::Legacy => {
            let bytes =
                Handle::try_from(grant.legacy_handle).map_err(|_| malformed("a handle of 64 bytes"))?;
            Carrier::Legacy(bytes)
        }
        Kind::Vmm | Kind::Timeline => {
            let fd = descriptors.next().ok_or_else(|| {
                Refusal::new(Code::DescriptorCount).compared_with("descriptors", "more", "none left")
            })?;
            Carrier::Descriptor(Arc::new(fd))
        }
    };
    let lease = LeaseId(grant.lease);
    Ok(Ok(Grant { lease, buffer, carrier, rewrite_pid_word: grant.rewrite_pid_word }))
}

/// The packets of an answer with the descriptors of each.
pub(super) fn write_broker_bodies(body: &BrokerBody) -> Vec<(broker_packet::Body, Vec<Arc<OwnedFd>>)> {
    use broker_packet::Body;
    let single = match body {
        BrokerBody::Welcome(w) => Body::Welcome(wire::Welcome {
            version: write_version(w.version),
            pod_namespace: w.pod.namespace.to_string(),
            pod_name: w.pod.name.to_string(),
            group_namespace: w.group.namespace.to_string(),
            group_name: w.group.name.to_string(),
            boot: w.boot.0,
            legacy_pid_word_proven: w.legacy_pid_word_proven,
        }),
        BrokerBody::Published(items) => {
            let parts = split(items.iter().map(write_published));
            return parts
                .map(|(items, more)| (Body::Published(wire::Published { items, more }), vec![]))
                .collect();
        }
        BrokerBody::Acquired(items) => return write_acquired(items),
        BrokerBody::Released(items) => {
            let parts = split(
                items.iter().map(|i| wire::ReleasedItem { refused: i.as_ref().err().map(write_refusal) }),
            );
            return parts
                .map(|(items, more)| (Body::Released(wire::Released { items, more }), vec![]))
                .collect();
        }
        BrokerBody::Retired(outcome) => Body::Retired(wire::Retired {
            refused: outcome.as_ref().err().map(write_refusal),
            leases: *outcome.as_ref().unwrap_or(&0),
        }),
        BrokerBody::Event(e) => Body::Event(write_event(e)),
        BrokerBody::Cancelled => Body::Cancelled(wire::CancelDone {}),
        BrokerBody::Refused(r) => Body::Refused(write_refusal(r)),
    };
    vec![(single, Vec::new())]
}

fn write_published(item: &Result<PublishedAs, Refusal>) -> wire::PublishedItem {
    use wire::published_item::Outcome;
    let outcome = match item {
        Ok(r) => {
            Outcome::Buffer(wire::PublishedBuffer { id: r.id.to_bytes().to_vec(), generation: r.generation })
        }
        Err(r) => Outcome::Refused(write_refusal(r)),
    };
    wire::PublishedItem { outcome: Some(outcome) }
}

fn write_acquired(items: &[Result<Grant, Refusal>]) -> Vec<(broker_packet::Body, Vec<Arc<OwnedFd>>)> {
    let mut next = items.iter();
    split(items.iter().map(write_grant))
        .map(|(part, more)| {
            let descriptors = next.by_ref().take(part.len()).filter_map(grant_descriptor).collect();
            (broker_packet::Body::Acquired(wire::Acquired { items: part, more }), descriptors)
        })
        .collect()
}

fn write_grant(item: &Result<Grant, Refusal>) -> wire::AcquiredItem {
    use wire::acquired_item::Outcome;
    let outcome = match item {
        Ok(g) => Outcome::Grant(wire::Grant {
            lease: g.lease.0,
            buffer: Some(write_info(&g.buffer)),
            legacy_handle: handle(&g.carrier).unwrap_or_default(),
            rewrite_pid_word: g.rewrite_pid_word,
        }),
        Err(r) => Outcome::Refused(write_refusal(r)),
    };
    wire::AcquiredItem { outcome: Some(outcome) }
}

/// Room that a packet keeps for its envelope, in bytes.
const ENVELOPE_BYTES: usize = 64;
/// Most bytes that a list item's own tag and length take.
const ITEM_OVERHEAD_BYTES: usize = 8;

/// Splits items so that each part fits into one packet; the flag says that another part follows.
fn split<T: prost::Message>(items: impl Iterator<Item = T>) -> impl Iterator<Item = (Vec<T>, bool)> {
    let room = limits::MESSAGE_BYTES - ENVELOPE_BYTES;
    let mut parts: Vec<Vec<T>> = vec![Vec::new()];
    let mut used = 0;
    for item in items {
        let bytes = item.encoded_len() + ITEM_OVERHEAD_BYTES;
        if used + bytes > room {
            parts.push(Vec::new());
            used = 0;
        }
        used += bytes;
        if let Some(last) = parts.last_mut() {
            last.push(item);
        }
    }
    let last = parts.len() - 1;
    parts.into_iter().enumerate().map(move |(i, part)| (part, i < last))
}
