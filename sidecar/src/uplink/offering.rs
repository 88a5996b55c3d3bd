//! Offering what is kept to a daemon that may not know it: a few packets at a time, each answered item by item. What is
//! refused for a reason that passes is offered again, before the daemon is told that this was all: from then on it waits
//! for nothing more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gpu_handoff_protocol::codec::batches;
use gpu_handoff_protocol::message::{Keepsake, RequestId, SidecarBody};
use gpu_handoff_protocol::{BufferId, Code, Refusal, limits as wire};
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
    /// Refused for a reason that passes.
    again: BTreeSet<BufferId>,
    /// How often each of those was refused.
    refusals: BTreeMap<BufferId, u32>,
    /// When they are offered again, and until when at the latest.
    again_at: Option<Instant>,
    again_until: Option<Instant>,
}

/// How often what is refused for this reason is offered in all; `None`: the reason does not pass.
const fn tries(code: Code) -> Option<u32> {
    match code {
        // Until others have been checked, or have ended.
        Code::QuotaInFlight | Code::QuotaDescriptors => Some(u32::MAX),
        // It may have been another's doing. If it was this one's, the daemon counts it.
        Code::WorkerTimeout | Code::WorkerFailed => Some(limits::OFFER_TRIES),
        _ => None,
    }
}

impl Offering {
    /// The next packet to send, numbered so, if it is time for one.
    pub(super) fn next(&mut self, request: RequestId, memory: &Memory) -> Option<SidecarBody> {
        if self.done || self.unanswered.len() >= limits::OFFERS_UNANSWERED {
            return None;
        }
        if memory.has_after(self.last) {
            // Receipts may be long: as many as fit into one packet.
            let items = batches(memory.after(self.last, wire::MESSAGE_ITEMS)).into_iter().next()?;
            self.last = items.last().map(|item| item.id).or(self.last);
            return Some(self.offer(request, items));
        }
        self.again.retain(|id| memory.has(*id));
        if self.again_at.is_some_and(|at| at <= Instant::now()) {
            let some = self.again.iter().take(wire::MESSAGE_ITEMS).filter_map(|id| memory.get(*id)).collect();
            if let Some(items) = batches(some).into_iter().next() {
                for item in &items {
                    self.again.remove(&item.id);
                }
                return Some(self.offer(request, items));
            }
        }
        if self.again.is_empty() && self.unanswered.is_empty() {
            self.done = true;
            return Some(SidecarBody::OfferDone);
        }
        None
    }

    fn offer(&mut self, request: RequestId, items: Vec<Keepsake>) -> SidecarBody {
        let ids = items.iter().map(|item| Some(item.id)).collect();
        let answer_by = Instant::now() + limits::OFFER_TIME;
        self.unanswered.push_back(Offer { request, ids, answer_by });
        SidecarBody::Offer(items)
    }

    /// When the first offer is overdue.
    pub(super) fn due(&self) -> Option<Instant> {
        self.unanswered.front().map(|offer| offer.answer_by)
    }

    /// When there is something to be offered again.
    pub(super) fn wakes(&self) -> Option<Instant> {
        let waits = !self.again.is_empty() && self.unanswered.len() < limits::OFFERS_UNANSWERED;
        self.again_at.filter(|_| waits)
    }

    /// The daemon wants this one kept anew: what it says of the one that was offered is not about it.
    pub(super) fn renewed(&mut self, id: BufferId) {
        self.again.remove(&id);
        for waiting in self.unanswered.iter_mut().flat_map(|offer| &mut offer.ids) {
            waiting.take_if(|it| *it == id);
        }
    }

    /// An answer, or a part of one: gives what is refused for good. `None`: it answers no offer.
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
        if more == offer.ids.is_empty() {
            return None;
        }
        if !more {
            self.unanswered.remove(at);
        }
        let now = Instant::now();
        // A daemon that stops has not said anything about what it was offered: the next one is.
        refused.retain(|(id, refusal)| {
            refusal.code() != Code::ShuttingDown && !self.passes(*id, refusal.code(), now)
        });
        Some(refused)
    }

    /// Whether this refusal may pass; then the item will be offered again.
    fn passes(&mut self, id: BufferId, code: Code, now: Instant) -> bool {
        let Some(most) = tries(code) else { return false };
        let refusals = self.refusals.entry(id).or_default();
        *refusals += 1;
        let again_until = *self.again_until.get_or_insert(now + limits::OFFER_AGAIN_TIME);
        let again_at = now + limits::OFFER_PAUSE;
        if *refusals >= most || again_at > again_until {
            return false;
        }
        self.again.insert(id);
        self.again_at = Some(again_at);
        true
    }
}
