//! Bodies between sidecar and broker.

use std::os::fd::OwnedFd;

use super::convert::{group, pod, refusal, version, write_refusal, write_version};
use super::expect_descriptors;
use crate::message::{SidecarBody, SlotBody, Version};
use crate::refusal::{Code, Refusal};
use crate::wire;
use crate::wire::{sidecar_packet, slot_packet};

pub(super) fn read_body(
    body: sidecar_packet::Body,
    descriptors: Vec<OwnedFd>,
) -> Result<SidecarBody, Refusal> {
    use sidecar_packet::Body;
    let found = descriptors.len();
    match (body, <[OwnedFd; 1]>::try_from(descriptors)) {
        (Body::HandOn(wire::HandOn {}), Ok([fd])) => Ok(SidecarBody::HandOn(fd)),
        (Body::HandOn(_), Err(_)) => {
            Err(Refusal::new(Code::DescriptorCount).compared_with("descriptors", 1, found))
        }
        (Body::Hello(h), rest) => {
            expect_descriptors(0, rest.map_or_else(|v| v.len(), |v| v.len()))?;
            Ok(SidecarBody::Hello { version: version(h.version)? })
        }
    }
}

pub(super) fn hello(version: Version) -> sidecar_packet::Body {
    sidecar_packet::Body::Hello(wire::SidecarHello { version: write_version(version) })
}

pub(super) fn hand_on() -> sidecar_packet::Body {
    sidecar_packet::Body::HandOn(wire::HandOn {})
}

pub(super) fn read_slot_body(body: slot_packet::Body) -> Result<SlotBody, Refusal> {
    use slot_packet::Body;
    Ok(match body {
        Body::Welcome(w) => SlotBody::Welcome {
            version: version(w.version)?,
            pod: pod(&w.pod_namespace, &w.pod_name)?,
            group: group(&w.group_namespace, &w.group_name)?,
        },
        Body::HandedOn(h) => SlotBody::HandedOn(h.refused.map_or(Ok(()), |r| Err(refusal(r)))),
        Body::Refused(r) => SlotBody::Refused(refusal(r)),
    })
}

pub(super) fn write_slot_body(body: &SlotBody) -> slot_packet::Body {
    use slot_packet::Body;
    match body {
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
    }
}
