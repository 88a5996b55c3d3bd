//! What this process has at the node: its leases and publications, with what proves them to a broker that comes anew.

use std::collections::HashMap;
use std::sync::Arc;

use gpu_handoff_protocol::message::{Event, Grant, PublishedAs};
use gpu_handoff_protocol::{BufferId, LeaseId, Receipt};

use super::Sink;
use crate::again::{Again, Kept};
use crate::publish::PublishedState;

/// What a claim is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    Lease(LeaseId),
    Buffer(BufferId),
}

#[derive(Debug)]
struct Leased {
    receipt: Option<Receipt>,
    buffer: BufferId,
}

#[derive(Debug)]
struct Published {
    receipt: Option<Receipt>,
    kept: Kept,
}

#[derive(Debug, Default)]
pub(super) struct Claims {
    leases: HashMap<LeaseId, Leased>,
    buffers: HashMap<BufferId, Published>,
    /// Of publications that are over; dropping these may take the driver a while, so not under the lock.
    done: Vec<Arc<Again>>,
}

impl Claims {
    pub(super) fn granted(&mut self, grant: &Grant) {
        let leased = Leased { receipt: grant.receipt.clone(), buffer: grant.buffer.id };
        self.leases.insert(grant.lease, leased);
    }

    /// The node has answered for their release.
    pub(super) fn released(&mut self, leases: &[LeaseId]) {
        for lease in leases {
            self.leases.remove(lease);
        }
    }

    pub(super) fn published(&mut self, published: &PublishedAs, kept: Kept) {
        let receipt = published.receipt.clone();
        self.buffers.insert(published.id, Published { receipt, kept });
    }

    /// Nobody has a handle of this one any more: how it ends is told to nobody.
    pub(super) fn disown(&mut self, id: BufferId) {
        if let Some(published) = self.buffers.get_mut(&id) {
            published.kept.over = Arc::default();
        }
    }

    /// It takes no new leases and no broker will want its memory again. Gives what is to be dropped without the lock.
    pub(super) fn retired(&mut self, id: BufferId) -> Option<Arc<Again>> {
        let published = self.buffers.get_mut(&id)?;
        Some(std::mem::replace(&mut published.kept.again, Arc::new(Again::Nothing)))
    }

    /// True: there is something to [`take_done`](Self::take_done).
    pub(super) fn notice(&mut self, event: &Event) -> bool {
        match event {
            Event::Gone { id, reason } | Event::Orphaned { id, reason, .. } => {
                self.end(*id, PublishedState::Ended(*reason))
            }
            _ => false,
        }
    }

    fn end(&mut self, id: BufferId, how: PublishedState) -> bool {
        let Some(published) = self.buffers.remove(&id) else { return false };
        published.kept.over.get_or_init(|| how);
        self.done.push(published.kept.again);
        true
    }

    /// The broker does not restore this.
    pub(super) fn lost(&mut self, subject: Subject, sink: &dyn Sink) {
        match subject {
            Subject::Lease(lease) => {
                if let Some(leased) = self.leases.remove(&lease) {
                    sink.lease_lost(leased.buffer, lease);
                }
            }
            Subject::Buffer(id) => {
                self.end(id, PublishedState::Lost);
                sink.buffer_lost(id);
            }
        }
    }

    /// All of it is over.
    pub(super) fn lose_all(&mut self, sink: &dyn Sink) {
        for subject in self.subjects() {
            self.lost(subject, sink);
        }
    }

    /// Buffers first: a lease may be of a buffer of the same process.
    fn subjects(&self) -> Vec<Subject> {
        let buffers = self.buffers.keys().map(|id| Subject::Buffer(*id));
        buffers.chain(self.leases.keys().map(|lease| Subject::Lease(*lease))).collect()
    }

    /// All that can be claimed; it stays had. What has no receipt is lost.
    pub(super) fn claimable(&mut self, sink: &dyn Sink) -> Vec<(Subject, Receipt)> {
        let subjects = self.subjects();
        let claim = |subject| match self.receipt(subject) {
            Some(receipt) => Some((subject, receipt)),
            None => {
                self.lost(subject, sink);
                None
            }
        };
        subjects.into_iter().filter_map(claim).collect()
    }

    fn receipt(&self, subject: Subject) -> Option<Receipt> {
        match subject {
            Subject::Lease(lease) => self.leases.get(&lease)?.receipt.clone(),
            Subject::Buffer(id) => self.buffers.get(&id)?.receipt.clone(),
        }
    }

    /// How this publication's memory is exported again.
    pub(super) fn again(&self, subject: Subject) -> Option<Arc<Again>> {
        match subject {
            Subject::Lease(_) => None,
            Subject::Buffer(id) => self.buffers.get(&id).map(|published| Arc::clone(&published.kept.again)),
        }
    }

    /// What is to be dropped without the lock.
    pub(super) fn take_done(&mut self) -> Vec<Arc<Again>> {
        std::mem::take(&mut self.done)
    }
}
