//! What is to be told to the node but found no room yet, and nobody waits for.

use std::collections::VecDeque;
use std::time::Duration;

use gpu_handoff_protocol::message::{ClientBody, PublishedAs, RequestId};
use gpu_handoff_protocol::{BufferId, LeaseId, Refusal, limits as wire};

#[derive(Debug, Default)]
pub(super) struct Unsent {
    /// Leases to give back, many in a packet.
    releases: Vec<LeaseId>,
    /// One in a packet. They go first: what they end costs the node more.
    others: VecDeque<Other>,
}

#[derive(Debug, Clone, Copy)]
enum Other {
    Cancel(RequestId),
    /// Revokes a buffer.
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
        self.releases.push(lease);
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

    /// What the next packet is to say.
    pub(super) fn first(&self) -> Option<ClientBody> {
        let releases = || {
            let count = self.releases.len().min(wire::MESSAGE_ITEMS);
            (count > 0).then(|| ClientBody::Release(self.releases[..count].to_vec()))
        };
        self.others.front().map(|other| (*other).into()).or_else(releases)
    }

    /// The [`first`](Self::first) packet, with so many leases, was sent.
    pub(super) fn sent(&mut self, leases: usize) {
        if leases == 0 {
            self.others.pop_front();
        } else {
            self.releases.drain(..leases.min(self.releases.len()));
        }
    }

    pub(super) fn clear(&mut self) {
        self.releases.clear();
        self.others.clear();
    }
}
