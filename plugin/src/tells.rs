//! What owners of pods are to read, on its way from the lanes to the node.
//!
//! A lane leaves it here and goes on. What comes several times before the node is told is told once, with how often it came; so
//! what waits is never more than one thing of each code for each slot.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use gpu_handoff_protocol::message::{BrokerBody, BrokerMessage, Event};
use gpu_handoff_protocol::{Code, Refusal, SlotId};
use tokio::sync::Notify;

use crate::limits;
use crate::node::words::{Tell, Told};

/// What waits to be told.
#[derive(Debug, Default)]
pub struct Tells {
    waiting: Mutex<BTreeMap<(SlotId, Sort), (Told, u32)>>,
    stirred: Notify,
}

/// What is counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sort {
    Refused(u32),
    Orphaned,
}

impl Tells {
    /// The owner of the slot's pod is to read of a refusal.
    pub fn refused(&self, slot: &SlotId, refusal: &Refusal) {
        // It says nothing of the pod, and each pod is told it at once.
        if refusal.code() == Code::ShuttingDown {
            return;
        }
        self.leave(slot, Sort::Refused(refusal.code().number()), || Told::Refused(refusal.into()));
    }

    fn orphaned(&self, slot: &SlotId, leases: u32) {
        self.leave(slot, Sort::Orphaned, || Told::Orphaned { leases });
    }

    fn leave(&self, slot: &SlotId, sort: Sort, told: impl FnOnce() -> Told) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, times) = waiting.entry((slot.clone(), sort)).or_insert_with(|| (told(), 0));
        *times = times.saturating_add(1);
        drop(waiting);
        self.stirred.notify_one();
    }

    /// What is to be told now; the rest of it later. Empty: nothing.
    #[must_use]
    pub fn take(&self) -> Vec<Tell> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = Vec::new();
        while taken.len() < limits::TELLS_AT_A_TIME {
            let Some(((slot, _), (what, times))) = waiting.pop_first() else { break };
            taken.push(Tell { slot, times, what });
        }
        if !waiting.is_empty() {
            self.stirred.notify_one();
        }
        taken
    }

    /// Comes back when there may be something. Safe to cancel.
    pub async fn stirred(&self) {
        self.stirred.notified().await;
    }
}

/// One lane's way there.
#[derive(Debug, Clone)]
pub struct Teller {
    tells: Arc<Tells>,
    slot: SlotId,
}

impl Teller {
    /// For the pod of this slot.
    #[must_use]
    pub const fn new(tells: Arc<Tells>, slot: SlotId) -> Self {
        Self { tells, slot }
    }

    /// A connection of the pod was refused.
    pub fn refused(&self, refusal: &Refusal) {
        self.tells.refused(&self.slot, refusal);
    }

    /// Looks at what a process of the pod is told for what its owner may want to read.
    pub fn overhear(&self, message: &BrokerMessage) {
        match &message.body {
            BrokerBody::Refused(refusal) | BrokerBody::Retired(Err(refusal)) => self.refused(refusal),
            BrokerBody::Published(items) => self.all(items),
            BrokerBody::Acquired(items) => self.all(items),
            BrokerBody::Released(items) => self.all(items),
            BrokerBody::Reattached(items) => self.all(items),
            // To those that it concerns; watches have requests.
            BrokerBody::Event(Event::Orphaned { leases, .. }) if message.request == 0 => {
                self.tells.orphaned(&self.slot, *leases);
            }
            _ => {}
        }
    }

    fn all<T>(&self, items: &[Result<T, Refusal>]) {
        items.iter().filter_map(|item| item.as_ref().err()).for_each(|refusal| self.refused(refusal));
    }
}

#[cfg(test)]
mod tests {
    use gpu_handoff_protocol::message::PublishedAs;

    use super::*;

    #[test]
    fn what_comes_again_waits_once_with_how_often_it_came() {
        let tells = Arc::new(Tells::default());
        let [one, other] = ["a", "b"].map(|slot| Teller::new(Arc::clone(&tells), slot.parse().unwrap()));
        let refusal = Refusal::new(Code::NotFound).compared_with("buffer", "w", "none");
        let items = |n: usize| (0..n).map(|_| Err::<PublishedAs, _>(refusal.clone())).collect();
        one.overhear(&BrokerMessage { request: 1, body: BrokerBody::Published(items(3)) });
        one.overhear(&BrokerMessage { request: 0, body: BrokerBody::Refused(refusal.clone()) });
        one.refused(&Refusal::new(Code::ShuttingDown));
        other.refused(&Refusal::new(Code::Forked));
        other.overhear(&BrokerMessage { request: 4, body: BrokerBody::Cancelled });
        let told: Vec<_> = tells.take().into_iter().map(|t| (t.slot.to_string(), t.times, t.what)).collect();
        let forked = Told::Refused((&Refusal::new(Code::Forked)).into());
        let wanted = [("a".to_owned(), 4, Told::Refused((&refusal).into())), ("b".to_owned(), 1, forked)];
        assert_eq!(told, wanted);
        assert_eq!(tells.take(), []);
    }

    #[tokio::test]
    async fn much_is_told_in_parts() {
        let tells = Arc::new(Tells::default());
        for i in 0..limits::TELLS_AT_A_TIME + 1 {
            tells.refused(&format!("s{i}").parse().unwrap(), &Refusal::new(Code::Forked));
        }
        tells.stirred().await;
        assert_eq!(tells.take().len(), limits::TELLS_AT_A_TIME);
        tells.stirred().await;
        assert_eq!(tells.take().len(), 1);
    }
}
