//! What is told to the node by the way, and nobody waits for: kept until it is sent, and then until it is answered, so
//! that a broker that comes anew is told again.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use gpu_handoff_protocol::message::{ClientBody, PublishedAs, RequestId};
use gpu_handoff_protocol::{BufferId, LeaseId, Refusal, limits as wire};

#[derive(Debug, Default)]
pub(super) struct Unsent {
    /// Leases to give back, many in a packet.
    releases: VecDeque<LeaseId>,
    /// One in a packet. They go first: what they end costs the node more.
    others: VecDeque<Other>,
    /// Sent and not answered.
    unanswered: HashMap<RequestId, Told>,
}

#[derive(Debug, Clone, Copy)]
enum Other {
    Cancel(RequestId),
    /// Revokes a buffer.
    Retire(BufferId),
}

/// What the node was told.
#[derive(Debug)]
enum Told {
    Releases(Vec<LeaseId>),
    Retire(BufferId),
}

impl From<Other> for ClientBody {
    fn from(other: Other) -> Self {
        match other {
            Other::Cancel(request) => Self::Cancel { request },
            Other::Retire(id) => Self::Retire { id, deadline: Duration::ZERO },
        }
    }
}

impl Unsent {
    pub(super) fn release(&mut self, lease: LeaseId) {
        self.releases.push_back(lease);
    }

    pub(super) fn cancel(&mut self, request: RequestId) {
        self.others.push_back(Other::Cancel(request));
    }

    /// Revokes a buffer.
    pub(super) fn retire(&mut self, id: BufferId) {
        self.others.push_back(Other::Retire(id));
    }

    /// Revokes what was published for a caller that has been told otherwise.
    pub(super) fn retire_all(&mut self, outcomes: &[Result<PublishedAs, Refusal>]) {
        outcomes.iter().flatten().for_each(|receipt| self.retire(receipt.id));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.releases.is_empty() && self.others.is_empty()
    }

    /// What the next packet is to say.
    pub(super) fn first(&self) -> Option<ClientBody> {
        let releases = || {
            let count = self.releases.len().min(wire::MESSAGE_ITEMS);
            (count > 0).then(|| ClientBody::Release(self.releases.iter().take(count).copied().collect()))
        };
        self.others.front().map(|other| (*other).into()).or_else(releases)
    }

    /// The [`first`](Self::first) packet was sent with this number.
    pub(super) fn sent(&mut self, request: RequestId) {
        let told = match self.others.pop_front() {
            // The answer to it is that of the request which it ends.
            Some(Other::Cancel(_)) => return,
            Some(Other::Retire(id)) => Told::Retire(id),
            None => {
                let count = self.releases.len().min(wire::MESSAGE_ITEMS);
                Told::Releases(self.releases.drain(..count).collect())
            }
        };
        self.unanswered.insert(request, told);
    }

    /// A release was sent with this number, and its caller does not wait any more.
    pub(super) fn release_sent(&mut self, request: RequestId, leases: Vec<LeaseId>) {
        self.unanswered.insert(request, Told::Releases(leases));
    }

    /// The node has answered; gives the leases that this was about.
    pub(super) fn answered(&mut self, request: RequestId) -> Vec<LeaseId> {
        match self.unanswered.remove(&request) {
            Some(Told::Releases(leases)) => leases,
            Some(Told::Retire(_)) | None => Vec::new(),
        }
    }

    /// Another broker is to be told all that was not answered. It knows of no request that could be cancelled.
    pub(super) fn again(&mut self) {
        self.others.retain(|other| !matches!(other, Other::Cancel(_)));
        for told in std::mem::take(&mut self.unanswered).into_values() {
            match told {
                Told::Releases(leases) => self.releases.extend(leases),
                Told::Retire(id) => self.retire(id),
            }
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
