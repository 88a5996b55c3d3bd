//! What the broker says to an application.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;

use super::client::Handle;
use super::convert::{
    buffer_id, group, id_refusal, info, instance, pod, receipt, refusal, version, write_receipt,
    write_refusal, write_version,
};
use super::event::{event, write_event};
use super::parts::split;
use super::{Outgoing, check_count, expect_descriptors, lease, malformed};
use crate::buffer::Kind;
use crate::ids::{BootTag, LeaseId, Seat};
use crate::limits;
use crate::message::{BrokerBody, Carrier, Grant, PublishedAs, Reattached, RequestId, Welcome};
use crate::refusal::{Code, Refusal};
use crate::set::SetInfo;
use crate::wire;
use crate::wire::broker_packet;

pub(super) fn read_body(
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
            instance: instance(&w.instance)?,
        }),
        Body::Published(p) => {
            more = p.more;
            BrokerBody::Published(p.items.into_iter().map(read_published).collect::<Result<_, _>>()?)
        }
        Body::Acquired(a) => {
            more = a.more;
            let items = a.items.into_iter().map(|i| read_acquired(i, &mut descriptors));
            match a.set {
                None => BrokerBody::Acquired(items.collect::<Result<_, _>>()?),
                Some(set) => acquired_set(set, items.collect::<Result<_, _>>()?, more)?,
            }
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
        Body::Announced(wire::Announced {}) => BrokerBody::Announced,
        Body::Refused(r) => BrokerBody::Refused(refusal(r)),
        Body::Reattached(r) => {
            more = r.more;
            BrokerBody::Reattached(r.items.into_iter().map(read_reattached).collect::<Result<_, _>>()?)
        }
    };
    expect_descriptors(0, descriptors.count())?;
    Ok((body, more))
}

/// The first packet of a set, which may be the only one.
fn acquired_set(
    set: wire::SetInfo,
    items: Vec<Result<Grant, Refusal>>,
    more: bool,
) -> Result<BrokerBody, Refusal> {
    check_count("buffers of a set", set.total as usize, limits::SET_BUFFERS as usize, Code::TooLarge)?;
    let name = set.name.parse().map_err(id_refusal)?;
    let set = SetInfo { name, generation: set.generation, total: set.total };
    add_to_set(set, Vec::new(), items, more)
}

/// Adds a packet's grants to those of a set: all of it or nothing is answered, so there is no refusal among them, and
/// the last packet completes it.
pub(super) fn add_to_set(
    set: SetInfo,
    mut grants: Vec<Grant>,
    items: Vec<Result<Grant, Refusal>>,
    more: bool,
) -> Result<BrokerBody, Refusal> {
    for item in items {
        grants.push(item.map_err(|_| malformed("a grant for each buffer of a set"))?);
    }
    let (found, total) = (grants.len(), set.total as usize);
    if found > total || (!more && found < total) {
        let refusal = Refusal::new(Code::Malformed);
        return Err(refusal.compared_with("grants of a set", total, found));
    }
    Ok(BrokerBody::AcquiredSet { set, grants })
}

fn read_reattached(item: wire::ReattachedItem) -> Result<Result<Reattached, Refusal>, Refusal> {
    use wire::reattached_item::Outcome;
    Ok(match item.outcome.ok_or_else(|| malformed("an outcome"))? {
        Outcome::Restored(wire::Restored {}) => Ok(Reattached::Restored),
        Outcome::DescriptorWanted(wire::DescriptorWanted {}) => Ok(Reattached::DescriptorWanted),
        Outcome::Refused(r) => Err(refusal(r)),
    })
}

fn read_published(item: wire::PublishedItem) -> Result<Result<PublishedAs, Refusal>, Refusal> {
    use wire::published_item::Outcome;
    Ok(match item.outcome.ok_or_else(|| malformed("an outcome"))? {
        Outcome::Buffer(b) => {
            let (id, receipt) = (buffer_id(&b.id)?, receipt(b.receipt)?);
            let checked = Some(b.checked_ns).filter(|ns| *ns > 0).map(Duration::from_nanos);
            Ok(PublishedAs { id, generation: b.generation, receipt, checked })
        }
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
    Ok(Ok(Grant {
        lease: LeaseId(grant.lease),
        buffer: Arc::new(buffer),
        carrier,
        rewrite_pid_word: grant.rewrite_pid_word,
        receipt: receipt(grant.receipt)?,
        seat: grant.seat.map(Seat),
    }))
}

/// The packets of what the broker says, mostly one.
pub(super) fn write(request: RequestId, body: &BrokerBody) -> Vec<Outgoing> {
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
            instance: w.instance.as_bytes().to_vec(),
        }),
        BrokerBody::Published(items) => {
            let parts = split(items.iter().map(write_published));
            return packets(
                request,
                parts.map(|(items, more)| Body::Published(wire::Published { items, more })),
            );
        }
        BrokerBody::Reattached(items) => {
            let parts = split(items.iter().map(write_reattached));
            return packets(
                request,
                parts.map(|(items, more)| Body::Reattached(wire::Reattached { items, more })),
            );
        }
        BrokerBody::Released(items) => {
            let parts = split(
                items.iter().map(|i| wire::ReleasedItem { refused: i.as_ref().err().map(write_refusal) }),
            );
            return packets(
                request,
                parts.map(|(items, more)| Body::Released(wire::Released { items, more })),
            );
        }
        BrokerBody::Retired(outcome) => Body::Retired(wire::Retired {
            refused: outcome.as_ref().err().map(write_refusal),
            leases: *outcome.as_ref().unwrap_or(&0),
        }),
        BrokerBody::Event(e) => Body::Event(write_event(e)),
        BrokerBody::Cancelled => Body::Cancelled(wire::CancelDone {}),
        BrokerBody::Announced => Body::Announced(wire::Announced {}),
        BrokerBody::Refused(r) => Body::Refused(write_refusal(r)),
        BrokerBody::Acquired(items) => {
            return lease::acquired(request, items.iter().map(Result::as_ref), None);
        }
        BrokerBody::AcquiredSet { set, grants } => {
            return lease::acquired(request, grants.iter().map(Ok), Some(set));
        }
    };
    packets(request, [single])
}

/// What carries no descriptors.
fn packets(request: RequestId, bodies: impl IntoIterator<Item = broker_packet::Body>) -> Vec<Outgoing> {
    let packet = |body| wire::BrokerPacket { request, body: Some(body) }.encode_to_vec();
    let bytes = bodies.into_iter().map(packet);
    bytes.map(|bytes| Outgoing { bytes, descriptors: Vec::new() }).collect()
}

fn write_published(item: &Result<PublishedAs, Refusal>) -> wire::PublishedItem {
    use wire::published_item::Outcome;
    let outcome = match item {
        Ok(r) => {
            let (id, receipt) = (r.id.to_bytes().to_vec(), write_receipt(r.receipt.as_ref()));
            let checked_ns = r.checked.map_or(0, |took| u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            Outcome::Buffer(wire::PublishedBuffer { id, generation: r.generation, receipt, checked_ns })
        }
        Err(r) => Outcome::Refused(write_refusal(r)),
    };
    wire::PublishedItem { outcome: Some(outcome) }
}

fn write_reattached(item: &Result<Reattached, Refusal>) -> wire::ReattachedItem {
    use wire::reattached_item::Outcome;
    let outcome = match item {
        Ok(Reattached::Restored) => Outcome::Restored(wire::Restored {}),
        Ok(Reattached::DescriptorWanted) => Outcome::DescriptorWanted(wire::DescriptorWanted {}),
        Err(r) => Outcome::Refused(write_refusal(r)),
    };
    wire::ReattachedItem { outcome: Some(outcome) }
}
