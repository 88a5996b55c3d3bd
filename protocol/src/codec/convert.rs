//! Vocabulary to protobuf and back. Reading checks everything; writing cannot fail.

use std::time::Duration;

use super::{check_count, malformed};
use crate::buffer::{Access, BufferFacts, BufferInfo, Kind, Lifetime, Metadata, Order, Tensor};
use crate::ids::{BufferId, DeviceUuid, GroupKey, IdError, Instance, PodRef};
use crate::limits;
use crate::message::Version;
use crate::receipt::Receipt;
use crate::refusal::{Code, Compared, Refusal};
use crate::set::SetRef;
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

/// A device that must be named.
fn device(bytes: &[u8]) -> Result<DeviceUuid, Refusal> {
    let bytes = bytes.try_into().map_err(|_| malformed("a device uuid of 16 bytes"))?;
    Ok(DeviceUuid::from_bytes(bytes))
}

pub(super) fn optional_device(bytes: &[u8]) -> Result<Option<DeviceUuid>, Refusal> {
    if bytes.is_empty() { Ok(None) } else { device(bytes).map(Some) }
}

pub(super) fn write_device(device: Option<DeviceUuid>) -> Vec<u8> {
    device.map_or_else(Vec::new, |d| d.as_bytes().to_vec())
}

pub(super) fn instance(bytes: &[u8]) -> Result<Instance, Refusal> {
    let bytes = bytes.try_into().map_err(|_| malformed("an instance of 16 bytes"))?;
    Ok(Instance::from_bytes(bytes))
}

/// A receipt where there may be none.
pub(super) fn receipt(bytes: Vec<u8>) -> Result<Option<Receipt>, Refusal> {
    if bytes.is_empty() { Ok(None) } else { Receipt::new(bytes).map(Some).map_err(id_refusal) }
}

pub(super) fn write_receipt(receipt: Option<&Receipt>) -> Vec<u8> {
    receipt.map_or_else(Vec::new, |r| r.as_bytes().to_vec())
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
    let order = f.order.as_ref().map(order).transpose()?;
    if order.is_some() && kind != Kind::Vmm {
        return Err(malformed("an order with a vmm buffer only"));
    }
    check_count("bytes of metadata", f.user_metadata.len(), limits::METADATA_BYTES, Code::TooLarge)?;
    Ok(BufferFacts {
        name: f.name.parse().map_err(id_refusal)?,
        kind,
        device: device(&f.device)?,
        offset: f.offset,
        size: f.size,
        allocation_size: f.allocation_size,
        access: access(f.access)?,
        lifetime: lifetime(f.lifetime)?,
        metadata: Metadata { tensor: f.tensor.map(tensor).transpose()?, user: f.user_metadata },
        order,
    })
}

fn order(o: &wire::Order) -> Result<Order, Refusal> {
    check_count("seats", o.seats as usize, limits::SEATS as usize, Code::TooLarge)?;
    if o.value >= limits::ORDER_VALUES {
        return Err(Refusal::new(Code::TooLarge).compared_with("value of an order", "below 2^62", o.value));
    }
    if o.first_seat_word.checked_add(o.seats).is_none() {
        return Err(malformed("seats within a timeline"));
    }
    Ok(Order {
        timeline: buffer_id(&o.timeline)?,
        ready_word: o.ready_word,
        value: o.value,
        first_seat_word: o.first_seat_word,
        seats: o.seats,
    })
}

fn write_order(o: &Order) -> wire::Order {
    wire::Order {
        timeline: o.timeline.to_bytes().to_vec(),
        ready_word: o.ready_word,
        value: o.value,
        first_seat_word: o.first_seat_word,
        seats: o.seats,
    }
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

/// Numbers of these choices on the wire.
pub(super) fn kind_number(kind: Kind) -> u32 {
    match kind {
        Kind::Vmm => wire::Kind::Vmm as u32,
        Kind::Legacy => wire::Kind::Legacy as u32,
        Kind::Timeline => wire::Kind::Timeline as u32,
    }
}

pub(super) fn access_number(access: Access) -> u32 {
    match access {
        Access::ReadWrite => wire::Access::ReadWrite as u32,
        Access::ReadOnly => wire::Access::ReadOnly as u32,
    }
}

pub(super) fn lifetime_number(lifetime: Lifetime) -> u32 {
    match lifetime {
        Lifetime::Process => wire::Lifetime::Process as u32,
        Lifetime::Pod => wire::Lifetime::Pod as u32,
    }
}

pub(super) fn write_facts(f: &BufferFacts) -> wire::BufferFacts {
    let tensor = f.metadata.tensor.as_ref().map(|t| wire::Tensor {
        dtype: t.dtype.clone(),
        shape: t.shape.clone(),
        strides: t.strides.clone(),
    });
    wire::BufferFacts {
        name: f.name.to_string(),
        kind: kind_number(f.kind).cast_signed(),
        device: f.device.as_bytes().to_vec(),
        offset: f.offset,
        size: f.size,
        allocation_size: f.allocation_size,
        access: access_number(f.access).cast_signed(),
        lifetime: lifetime_number(f.lifetime).cast_signed(),
        tensor,
        user_metadata: f.metadata.user.clone(),
        order: f.order.as_ref().map(write_order),
    }
}

pub(super) fn info(i: wire::BufferInfo) -> Result<BufferInfo, Refusal> {
    Ok(BufferInfo {
        id: buffer_id(&i.id)?,
        generation: i.generation,
        owner: pod(&i.owner_namespace, &i.owner_name)?,
        verified: i.verified,
        facts: facts(i.facts.ok_or_else(|| malformed("the facts of a buffer"))?)?,
        set: i.set.map(set_ref).transpose()?,
    })
}

fn set_ref(r: wire::SetRef) -> Result<SetRef, Refusal> {
    check_count("buffers of a set", r.total as usize, limits::SET_BUFFERS as usize, Code::TooLarge)?;
    if r.index >= r.total {
        return Err(malformed("an index within the set"));
    }
    Ok(SetRef { name: r.name.parse().map_err(id_refusal)?, index: r.index, total: r.total })
}

pub(super) fn write_info(i: &BufferInfo) -> wire::BufferInfo {
    wire::BufferInfo {
        id: i.id.to_bytes().to_vec(),
        generation: i.generation,
        owner_namespace: i.owner.namespace.to_string(),
        owner_name: i.owner.name.to_string(),
        verified: i.verified,
        facts: Some(write_facts(&i.facts)),
        set: i.set.as_ref().map(|r| wire::SetRef {
            name: r.name.to_string(),
            index: r.index,
            total: r.total,
        }),
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
