//! Answers some of whose descriptors the kernel had no room for in the receiving process.

use prost::Message as _;

use super::{Frame, malformed};
use crate::ids::LeaseId;
use crate::message::RequestId;
use crate::refusal::{Code, Refusal};
use crate::wire::{self, broker_packet::Body};

/// What is still known of a part of an answer that lost descriptors: nobody can use what it grants, so that is to be
/// given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Short {
    /// The request that it answers.
    pub request: RequestId,
    /// The leases that it grants.
    pub leases: Vec<LeaseId>,
    /// What to tell who asked.
    pub refusal: Refusal,
}

/// Reads what the broker sent with [`control_truncated`](Frame::control_truncated). The descriptors that did come are
/// closed.
///
/// # Errors
/// When it is no grant of leases: nothing else brings descriptors, and so nothing else can have lost any.
pub fn decode_short(frame: Frame) -> Result<Short, Refusal> {
    let unreadable = || Refusal::new(Code::TruncatedControl);
    if frame.bytes_truncated {
        return Err(unreadable());
    }
    let packet =
        wire::BrokerPacket::decode(&*frame.bytes).map_err(|e| malformed(&format!("protobuf ({e})")))?;
    let Some(Body::Acquired(acquired)) = packet.body else { return Err(unreadable()) };
    let grants = || acquired.items.iter().filter_map(|item| grant(item.outcome.as_ref()?));
    let wanted = grants().filter(|grant| grant.legacy_handle.is_empty()).count();
    let refusal = unreadable()
        .compared_with("descriptors of the answer", wanted, frame.descriptors.len())
        .with_remedy(
            "raise this process's limit of open files (RLIMIT_NOFILE) or close some, or acquire fewer buffers at a time",
        );
    let leases = grants().map(|grant| LeaseId(grant.lease)).collect();
    Ok(Short { request: packet.request, leases, refusal })
}

fn grant(outcome: &wire::acquired_item::Outcome) -> Option<&wire::Grant> {
    match outcome {
        wire::acquired_item::Outcome::Grant(grant) => Some(grant),
        wire::acquired_item::Outcome::Refused(_) => None,
    }
}
