//! What a receipt says, to bytes and back.

use std::sync::Arc;

use prost::Message as _;

use super::client::Handle;
use super::convert::{group, id_refusal, info};
use super::{check_count, lease, malformed};
use crate::ids::{BootTag, LeaseId, Seat};
use crate::limits;
use crate::receipt::{BufferReceipt, LeaseReceipt, Mac, ProcessKey, Receipt, ReceiptBody, Subject};
use crate::refusal::{Code, Refusal};
use crate::wire;
use crate::wire::receipt_body;

/// Puts signed bytes and their MAC together.
///
/// # Errors
/// `TOO_LARGE` when that is more than [`limits::RECEIPT_BYTES`]; no body that [`encode_receipt_body`] writes is.
pub fn seal_receipt(body: Vec<u8>, mac: &Mac) -> Result<Receipt, Refusal> {
    let whole = wire::Receipt { body, mac: mac.to_vec() };
    Receipt::new(whole.encode_to_vec()).map_err(id_refusal)
}

/// Takes a receipt apart: the signed bytes, not yet believed, and the MAC over them.
///
/// # Errors
/// `RECEIPT_INVALID` when it is no receipt.
pub fn open_receipt(receipt: &Receipt) -> Result<(Vec<u8>, Mac), Refusal> {
    let whole = wire::Receipt::decode(receipt.as_bytes()).map_err(|e| invalid(&e.to_string()))?;
    let mac = whole.mac.as_slice().try_into().map_err(|_| invalid("no MAC of 32 bytes"))?;
    Ok((whole.body, mac))
}

fn invalid(found: &str) -> Refusal {
    Refusal::new(Code::ReceiptInvalid).compared_with("receipt", "one that this node signed", found)
}

/// Writes what is to be signed. Of a lease's buffer, metadata and tensor are left out.
#[must_use]
pub fn encode_receipt_body(body: &ReceiptBody) -> Vec<u8> {
    lease::receipt_body(body)
}

/// Reads what was signed. Only bytes whose MAC was found right are worth reading.
///
/// # Errors
/// `RECEIPT_INVALID` when it is not what [`encode_receipt_body`] writes.
pub fn decode_receipt_body(bytes: &[u8]) -> Result<ReceiptBody, Refusal> {
    let body = wire::ReceiptBody::decode(bytes).map_err(|e| invalid(&e.to_string()))?;
    read_body(body).map_err(|refusal| invalid(&refusal.to_string()))
}

fn read_body(body: wire::ReceiptBody) -> Result<ReceiptBody, Refusal> {
    use receipt_body::Subject as S;
    let process = body.process.ok_or_else(|| malformed("a process"))?;
    Ok(ReceiptBody {
        boot: BootTag(body.boot),
        process: ProcessKey {
            pid: process.pid,
            started: process.started,
            pidfs_inode: Some(process.pidfs_inode).filter(|inode| *inode != 0),
        },
        slot: body.slot.parse().map_err(id_refusal)?,
        pod_uid: body.pod_uid.parse().map_err(id_refusal)?,
        subject: match body.subject.ok_or_else(|| malformed("a buffer or a lease"))? {
            S::Buffer(b) => Subject::Buffer(read_buffer(b)?),
            S::Lease(l) => Subject::Lease(read_lease(l)?),
        },
    })
}

fn read_buffer(b: wire::BufferReceipt) -> Result<BufferReceipt, Refusal> {
    check_count("bytes of a container id", b.container.len(), limits::CONTAINER_BYTES, Code::TooLarge)?;
    let handle = Some(b.legacy_handle).filter(|h| !h.is_empty());
    let handle = handle.map(|h| Handle::try_from(h).map_err(|_| malformed("a handle of 64 bytes")));
    Ok(BufferReceipt {
        info: Arc::new(info(b.info.ok_or_else(|| malformed("a buffer"))?)?),
        group: group(&b.group_namespace, &b.group_name)?,
        legacy_handle: handle.transpose()?,
        own_pid: b.own_pid,
        container: b.container,
    })
}

fn read_lease(l: wire::LeaseReceipt) -> Result<LeaseReceipt, Refusal> {
    Ok(LeaseReceipt {
        lease: LeaseId(l.lease),
        buffer: Arc::new(info(l.buffer.ok_or_else(|| malformed("a buffer"))?)?),
        group: group(&l.group_namespace, &l.group_name)?,
        seat: l.seat.map(Seat),
    })
}
