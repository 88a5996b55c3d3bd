//! Vocabulary to protobuf and back. Reading checks everything; writing cannot fail.

use std::sync::Arc;
use std::time::Duration;

use super::{check_count, malformed};
use crate::buffer::{Access, BufferFacts, BufferInfo, Kind, Lifetime, Metadata, Tensor};
use crate::ids::{BufferId, DeviceUuid, GroupKey, IdError, PodRef};
use crate::limits;
use crate::message::{EndReason, Event, Version};
use crate::refusal::{Code, Compared, Refusal};
use crate::wire;

/// An identifier that does not read as one makes the packet malformed.
pub(super) fn id_refusal(error: IdError) -> Refusal {
    match error {
        IdError::TooLong { what, bytes, limit } => {
            Refusal::new(Code::TooLarge).compared_with(what, format!("at most {limit} bytes"), bytes)
        }
        other => malformed(&other.to_string()),
    }
}

pub(super) fn version(v: Option<wire::Version>) -> Result<Version, Refusal> {
    v.map(|v| (v.major, v.minor)).ok_or_else(|| malformed("a version"))
}

pub(super) fn write_version((major, minor): Version) -> Option<wire::Version> {
    Some(wire::Version { major, minor })
}

pub(super) fn buffer_id(bytes: &[u8]) -> Result<BufferId, Refusal> {
    BufferId::from_bytes(bytes).map_err(id_refusal)
}

pub(super) fn pod(namespace: &str, name: &str) -> Result<PodRef, Refusal> {
    Ok(PodRef { namespace: namespace.parse().map_err(id_refusal)?, name: name.parse().map_err(id_refusal)? })
}

pub(super) fn group(namespace: &str, name: &str) -> Result<GroupKey, Refusal> {
    Ok(GroupKey {
        namespace: namespace.parse().map_err(id_refusal)?,
        name: name.parse().map_err(id_refusal)?,
    })
}

/// Milliseconds, rounded up: 0 has a meaning of its own and must not come of a short time.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A time in milliseconds, refused over its limit.
pub(super) fn bounded_millis(what: &str, ms: u64, limit: u64) -> Result<Duration, Refusal> {
    if ms > limit {
        return Err(Refusal::new(Code::TooLarge).compared_with(what, format!("at most {limit} ms"), ms));
    }
    Ok(Duration::from_millis(ms))
}

pub(super) fn facts(f: wire::BufferFacts) -> Result<BufferFacts, Refusal> {
    let kind = match wire::Kind::try_from(f.kind) {
        Ok(wire::Kind::Vmm) => Kind::Vmm,
        Ok(wire::Kind::Legacy) => Kind::Legacy,
        Ok(wire::Kind::Timeline) => Kind::Timeline,
        Ok(wire::Kind::Unspecified) | Err(_) => {
            let found = f.kind;
            return Err(Refusal::new(Code::UnsupportedKind).compared_with(
                "kind",
                "vmm, legacy or timeline",
                found,
            ));
        }
    };
    let device: [u8; 16] =
        f.device.as_slice().try_into().map_err(|_| malformed("a device uuid of 16 bytes"))?;
    check_count("bytes of metadata", f.user_metadata.len(), limits::METADATA_BYTES, Code::TooLarge)?;
    Ok(BufferFacts {
        name: f.name.parse().map_err(id_refusal)?,
        kind,
        device: DeviceUuid::from_bytes(device),
        offset: f.offset,
        size: f.size,
        allocation_size: f.allocation_size,
        access: access(f.access)?,
        lifetime: lifetime(f.lifetime)?,
        metadata: Metadata { tensor: f.tensor.map(tensor).transpose()?, user: f.user_metadata },
    })
}

fn access(number: i32) -> Result<Access, Refusal> {
    match wire::Access::try_from(number) {
        Ok(wire::Access::ReadWrite) => Ok(Access::ReadWrite),
        Ok(wire::Access::ReadOnly) => Ok(Access::ReadOnly),
        Err(_) => Err(malformed("access read-write or read-only")),
    }
}

fn lifetime(number: i32) -> Result<Lifetime, Refusal> {
    match wire::Lifetime::try_from(number) {
        Ok(wire::Lifetime::Process) => Ok(Lifetime::Process),
        Ok(wire::Lifetime::Pod) => Ok(Lifetime::Pod),
        Err(_) => Err(malformed("lifetime process or pod")),
    }
}

fn tensor(t: wire::Tensor) -> Result<Tensor, Refusal> {
    check_count("bytes of dtype", t.dtype.len(), limits::DTYPE_BYTES, Code::TooLarge)?;
    check_count("dimensions", t.shape.len().max(t.strides.len()), limits::TENSOR_DIMENSIONS, Code::TooLarge)?;
    Ok(Tensor { dtype: t.dtype, shape: t.shape, strides: t.strides })
}

pub(super) fn write_facts(f: &BufferFacts) -> wire::BufferFacts {
    let kind = match f.kind {
        Kind::Vmm => wire::Kind::Vmm,
        Kind::Legacy => wire::Kind::Legacy,
        Kind::Timeline => wire::Kind::Timeline,
    };
    let access = match f.access {
        Access::ReadWrite => wire::Access::ReadWrite,
        Access::ReadOnly => wire::Access::ReadOnly,
    };
    let lifetime = match f.lifetime {
        Lifetime::Process => wire::Lifetime::Process,
        Lifetime::Pod => wire::Lifetime::Pod,
    };
    let tensor = f.metadata.tensor.as_ref().map(|t| wire::Tensor {
        dtype: t.dtype.clone(),
        shape: t.shape.clone(),
        strides: t.strides.clone(),
    });
    wire::BufferFacts {
        name: f.name.to_string(),
        kind: kind.into(),
        device: f.device.as_bytes().to_vec(),
        offset: f.offset,
        size: f.size,
        allocation_size: f.allocation_size,
        access: access.into(),
        lifetime: lifetime.into(),
        tensor,
        user_metadata: f.metadata.user.clone(),
    }
}

pub(super) fn info(i: wire::BufferInfo) -> Result<BufferInfo, Refusal> {
    Ok(BufferInfo {
        id: buffer_id(&i.id)?,
        generation: i.generation,
        owner: pod(&i.owner_namespace, &i.owner_name)?,
        verified: i.verified,
        facts: facts(i.facts.ok_or_else(|| malformed("the facts of a buffer"))?)?,
    })
}

pub(super) fn write_info(i: &BufferInfo) -> wire::BufferInfo {
    wire::BufferInfo {
        id: i.id.to_bytes().to_vec(),
        generation: i.generation,
        owner_namespace: i.owner.namespace.to_string(),
        owner_name: i.owner.name.to_string(),
        verified: i.verified,
        facts: Some(write_facts(&i.facts)),
    }
}

pub(super) fn refusal(r: wire::Refusal) -> Refusal {
    let mut out = Refusal::new(Code::from_number(r.code));
    for Compared { what, wanted, found } in
        r.compared.into_iter().map(|c| Compared { what: c.what, wanted: c.wanted, found: c.found })
    {
        out = out.compared_with(&what, wanted, found);
    }
    if r.remedy.is_empty() { out } else { out.with_remedy(r.remedy) }
}

pub(super) fn write_refusal(r: &Refusal) -> wire::Refusal {
    wire::Refusal {
        code: r.code().number(),
        compared: r
            .compared()
            .iter()
            .map(|c| wire::Compared {
                what: c.what.clone(),
                wanted: c.wanted.clone(),
                found: c.found.clone(),
            })
            .collect(),
        remedy: r.own_remedy().unwrap_or_default().to_owned(),
    }
}

fn reason(number: i32) -> EndReason {
    match wire::EndReason::try_from(number) {
        Ok(wire::EndReason::Retired) => EndReason::Retired,
        Ok(wire::EndReason::OwnerClosed) => EndReason::OwnerClosed,
        Ok(wire::EndReason::OwnerDied) => EndReason::OwnerDied,
        Ok(wire::EndReason::MemberLeft) => EndReason::MemberLeft,
        Ok(wire::EndReason::Unspecified) | Err(_) => EndReason::Other,
    }
}

fn write_reason(reason: EndReason) -> i32 {
    match reason {
        EndReason::Retired => wire::EndReason::Retired,
        EndReason::OwnerClosed => wire::EndReason::OwnerClosed,
        EndReason::OwnerDied => wire::EndReason::OwnerDied,
        EndReason::MemberLeft => wire::EndReason::MemberLeft,
        EndReason::Other => wire::EndReason::Unspecified,
    }
    .into()
}

pub(super) fn event(e: wire::Event) -> Result<Event, Refusal> {
    use wire::event::Body;
    Ok(match e.body.ok_or_else(|| malformed("an event that this version knows"))? {
        Body::Appeared(i) => Event::Appeared(Arc::new(info(i)?)),
        Body::SnapshotDone(wire::SnapshotDone {}) => Event::SnapshotDone,
        Body::Retiring(r) => {
            Event::Retiring { id: buffer_id(&r.id)?, deadline: Duration::from_millis(r.deadline_ms) }
        }
        Body::Gone(g) => Event::Gone { id: buffer_id(&g.id)?, reason: reason(g.reason) },
        Body::Orphaned(o) => {
            Event::Orphaned { id: buffer_id(&o.id)?, reason: reason(o.reason), leases: o.leases }
        }
    })
}

pub(super) fn write_event(e: &Event) -> wire::Event {
    use wire::event::Body;
    let body = match e {
        Event::Appeared(i) => Body::Appeared(write_info(i)),
        Event::SnapshotDone => Body::SnapshotDone(wire::SnapshotDone {}),
        Event::Retiring { id, deadline } => {
            Body::Retiring(wire::Retiring { id: id.to_bytes().to_vec(), deadline_ms: millis(*deadline) })
        }
        Event::Gone { id, reason } => {
            Body::Gone(wire::Gone { id: id.to_bytes().to_vec(), reason: write_reason(*reason) })
        }
        Event::Orphaned { id, reason, leases } => Body::Orphaned(wire::Orphaned {
            id: id.to_bytes().to_vec(),
            reason: write_reason(*reason),
            leases: *leases,
        }),
    };
    wire::Event { body: Some(body) }
}
