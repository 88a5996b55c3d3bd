//! Offering what is kept to a daemon that may not know it: a few packets at a time, each answered item by item.

use std::collections::VecDeque;

use gpu_handoff_protocol::codec::batches;
use gpu_handoff_protocol::message::{Keepsake, RequestId, SidecarBody};
use gpu_handoff_protocol::{BufferId, Refusal, limits as wire};
use tokio::time::Instant;

use crate::limits;
use crate::memory::Memory;

/// An offer that is not answered, or not yet in full.
#[derive(Debug)]
struct Offer {
    request: RequestId,
    /// Not answered yet, in order. `None`: kept anew since, so the answer is not about what is kept now.
    ids: VecDeque<Option<BufferId>>,
    answer_by: Instant,
}

/// How far one connection has come with it.
#[derive(Debug, Default)]
pub(super) struct Offering {
    /// The last one that was offered.
    last: Option<BufferId>,
    /// It was told that this was all.
    done: bool,
    unanswered: VecDeque<Offer>,
}

impl Offering {
    /// The next packet to send, numbered so, if it is time for one.
    pub(super) fn next(&mut self, request: RequestId, memory: &Memory) -> Option<SidecarBody> {
        if self.done {
            return None;
        }
        if !memory.has_after(self.last) {
            self.done = true;
            return Some(SidecarBody::OfferDone);
        }
        if self.unanswered.len() >= limits::OFFERS_UNANSWERED {
            return None;
        }
        // Receipts may be long: as many as fit into one packet.
        let items = batches(memory.after(self.last, wire::MESSAGE_ITEMS)).into_iter().next()?;
        Some(self.offer(request, items))
    }

    fn offer(&mut self, request: RequestId, items: Vec<Keepsake>) -> SidecarBody {
        self.last = items.last().map(|item| item.id).or(self.last);
        let ids = items.iter().map(|item| Some(item.id)).collect();
        let answer_by = Instant::now() + limits::OFFER_TIME;
        self.unanswered.push_back(Offer { request, ids, answer_by });
        SidecarBody::Offer(items)
    }

    /// When the first offer is overdue.
    pub(super) fn due(&self) -> Option<Instant> {
        self.unanswered.front().map(|offer| offer.answer_by)
    }

    /// The daemon wants this one kept anew: what it says of the one that was offered is not about it.
    pub(super) fn renewed(&mut self, id: BufferId) {
        for waiting in self.unanswered.iter_mut().flat_map(|offer| &mut offer.ids) {
            waiting.take_if(|it| *it == id);
        }
    }

    /// An answer, or a part of one: gives what is refused. `None`: it answers no offer.
    pub(super) fn answered(
        &mut self,
        request: RequestId,
        outcomes: Vec<Result<(), Refusal>>,
        more: bool,
    ) -> Option<Vec<(BufferId, Refusal)>> {
        let at = self.unanswered.iter().position(|offer| offer.request == request)?;
        let offer = self.unanswered.get_mut(at)?;
        let mut refused = Vec::new();
        for outcome in outcomes {
            let id = offer.ids.pop_front()?;
            refused.extend(id.zip(outcome.err()));
        }
        if more != offer.ids.is_empty() {
            if !more {
                self.unanswered.remove(at);
            }
            return Some(refused);
        }
        None
    }
}
