//! What sidecar and broker say to each other.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{RequestId, Version};
use crate::ids::{BufferId, GroupKey, PodRef};
use crate::receipt::Receipt;
use crate::refusal::Refusal;

/// Sidecar to broker.
#[derive(Debug)]
pub struct SidecarMessage {
    /// Number of the request; not 0.
    pub request: RequestId,
    /// What is said.
    pub body: SidecarBody,
}

/// What a sidecar says.
#[derive(Debug)]
pub enum SidecarBody {
    /// The first message of a connection.
    Hello {
        /// The version that the sidecar speaks.
        version: Version,
    },
    /// An application's accepted connection.
    HandOn(OwnedFd),
    /// What the sidecar keeps, or a part of it.
    Offer(Vec<Keepsake>),
    /// All that the sidecar keeps has been offered.
    OfferDone,
}

/// What a sidecar keeps of a buffer of its pod, to give it back to the next broker.
#[derive(Debug, Clone)]
pub struct Keepsake {
    /// The buffer.
    pub id: BufferId,
    /// What proves it.
    pub receipt: Receipt,
    /// Its memory; `None`: legacy, whose handle stands in the receipt.
    pub descriptor: Option<Arc<OwnedFd>>,
}

/// Broker to sidecar.
#[derive(Debug, Clone)]
pub struct SlotMessage {
    /// The request that this answers, or 0.
    pub request: RequestId,
    /// What is said.
    pub body: SlotBody,
}

/// What the broker says to a sidecar.
#[derive(Debug, Clone)]
pub enum SlotBody {
    /// The answer to a hello: whose door this is.
    Welcome {
        /// The version that the broker speaks.
        version: Version,
        /// The pod that the slot is bound to.
        pod: PodRef,
        /// Its group.
        group: GroupKey,
    },
    /// Whether the connection handed on is served.
    HandedOn(Result<(), Refusal>),
    /// The message as a whole, or the connection, is refused.
    Refused(Refusal),
    /// Buffers to keep from now on.
    Keep(Vec<Keepsake>),
    /// Buffers that ended.
    Forget(Vec<BufferId>),
    /// Outcomes of an offer, in order of its items. What is refused need not be kept any longer.
    Offered(Vec<Result<(), Refusal>>),
}
