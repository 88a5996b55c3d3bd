//! What sidecar and broker say to each other.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use prost::Message as _;

use super::convert::{buffer_id, group, pod, receipt, refusal, version, write_refusal, write_version};
use super::parts::split;
use super::{check_items, expect_descriptors, malformed, take_flagged};
use crate::message::{Keepsake, SidecarBody, SlotBody};
use crate::refusal::{Code, Refusal};
use crate::wire;
use crate::wire::{sidecar_packet, slot_packet};

type Descriptors = Vec<Arc<OwnedFd>>;

pub(super) fn read_body(
    body: sidecar_packet::Body,
    descriptors: Vec<OwnedFd>,
) -> Result<SidecarBody, Refusal> {
    use sidecar_packet::Body;
    if matches!(body, Body::Hello(_) | Body::OfferDone(_)) {
        expect_descriptors(0, descriptors.len())?;
    }
    Ok(match body {
        Body::Hello(h) => SidecarBody::Hello { version: version(h.version)? },
        Body::HandOn(wire::HandOn {}) => {
            let found = descriptors.len();
            let [fd] = <[OwnedFd; 1]>::try_from(descriptors)
                .map_err(|_| Refusal::new(Code::DescriptorCount).compared_with("descriptors", 1, found))?;
            SidecarBody::HandOn(fd)
        }
        Body::Offer(o) => SidecarBody::Offer(keepsakes(o.items, descriptors)?),
        Body::OfferDone(wire::OfferDone {}) => SidecarBody::OfferDone,
    })
}

pub(super) fn write_body(body: SidecarBody) -> (sidecar_packet::Body, Descriptors) {
    use sidecar_packet::Body;
    match body {
        SidecarBody::Hello { version } => {
            (Body::Hello(wire::SidecarHello { version: write_version(version) }), Vec::new())
        }
        SidecarBody::HandOn(fd) => (Body::HandOn(wire::HandOn {}), vec![Arc::new(fd)]),
        SidecarBody::Offer(items) => {
            let (items, descriptors) = write_keepsakes(&items);
            (Body::Offer(wire::Offer { items }), descriptors)
        }
        SidecarBody::OfferDone => (Body::OfferDone(wire::OfferDone {}), Vec::new()),
    }
}

fn keepsakes(items: Vec<wire::Keepsake>, descriptors: Vec<OwnedFd>) -> Result<Vec<Keepsake>, Refusal> {
    check_items(items.len())?;
    let flags: Vec<bool> = items.iter().map(|k| k.descriptor).collect();
    items
        .into_iter()
        .zip(take_flagged(&flags, descriptors)?)
        .map(|(k, descriptor)| {
            let receipt = receipt(k.receipt)?.ok_or_else(|| malformed("a receipt"))?;
            Ok(Keepsake { id: buffer_id(&k.id)?, receipt, descriptor })
        })
        .collect()
}

fn write_keepsakes(items: &[Keepsake]) -> (Vec<wire::Keepsake>, Descriptors) {
    let descriptors = items.iter().filter_map(|k| k.descriptor.clone()).collect();
    (items.iter().map(write_keepsake).collect(), descriptors)
}

fn write_keepsake(k: &Keepsake) -> wire::Keepsake {
    wire::Keepsake {
        id: k.id.to_bytes().to_vec(),
        receipt: k.receipt.as_bytes().to_vec(),
        descriptor: k.descriptor.is_some(),
    }
}

/// Length of a keepsake in its packet.
pub(super) fn wire_keepsake_len(item: &Keepsake) -> usize {
    write_keepsake(item).encoded_len()
}

/// Reads what the broker says to a sidecar. The flag tells that the answer goes on in the next packet.
pub(super) fn read_slot_body(
    body: slot_packet::Body,
    descriptors: Vec<OwnedFd>,
) -> Result<(SlotBody, bool), Refusal> {
    use slot_packet::Body;
    if !matches!(body, Body::Keep(_)) {
        expect_descriptors(0, descriptors.len())?;
    }
    let mut more = false;
    let body = match body {
        Body::Welcome(w) => SlotBody::Welcome {
            version: version(w.version)?,
            pod: pod(&w.pod_namespace, &w.pod_name)?,
            group: group(&w.group_namespace, &w.group_name)?,
        },
        Body::HandedOn(h) => SlotBody::HandedOn(h.refused.map_or(Ok(()), |r| Err(refusal(r)))),
        Body::Refused(r) => SlotBody::Refused(refusal(r)),
        Body::Keep(k) => SlotBody::Keep(keepsakes(k.items, descriptors)?),
        Body::Forget(f) => {
            check_items(f.ids.len())?;
            SlotBody::Forget(f.ids.iter().map(|id| buffer_id(id)).collect::<Result<_, _>>()?)
        }
        Body::Offered(o) => {
            more = o.more;
            let items = o.items.into_iter();
            SlotBody::Offered(items.map(|i| i.refused.map_or(Ok(()), |r| Err(refusal(r)))).collect())
        }
    };
    Ok((body, more))
}

/// The packets of what the broker says to a sidecar, with the descriptors of each.
pub(super) fn write_slot_bodies(body: &SlotBody) -> Vec<(slot_packet::Body, Descriptors)> {
    use slot_packet::Body;
    let single = match body {
        SlotBody::Welcome { version, pod, group } => Body::Welcome(wire::SidecarWelcome {
            version: write_version(*version),
            pod_namespace: pod.namespace.to_string(),
            pod_name: pod.name.to_string(),
            group_namespace: group.namespace.to_string(),
            group_name: group.name.to_string(),
        }),
        SlotBody::HandedOn(outcome) => {
            Body::HandedOn(wire::HandedOn { refused: outcome.as_ref().err().map(write_refusal) })
        }
        SlotBody::Refused(r) => Body::Refused(write_refusal(r)),
        SlotBody::Keep(items) => {
            let (items, descriptors) = write_keepsakes(items);
            return vec![(Body::Keep(wire::Keep { items }), descriptors)];
        }
        SlotBody::Forget(ids) => {
            Body::Forget(wire::Forget { ids: ids.iter().map(|id| id.to_bytes().to_vec()).collect() })
        }
        SlotBody::Offered(items) => {
            let parts = split(
                items.iter().map(|i| wire::OfferedItem { refused: i.as_ref().err().map(write_refusal) }),
            );
            return parts
                .map(|(items, more)| (Body::Offered(wire::Offered { items, more }), vec![]))
                .collect();
        }
    };
    vec![(single, Vec::new())]
}
