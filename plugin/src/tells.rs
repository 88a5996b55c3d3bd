//! What owners of pods are to read, on its way from the lanes to the node.
//!
//! A lane leaves it here and goes on. What comes several times before the node is told is told once, with how often it came; so
//! what waits is never more than one thing of each code for each slot, and for each slot whether it is served.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpu_handoff_protocol::message::{BrokerBody, BrokerMessage, Event};
use gpu_handoff_protocol::{Code, Refusal, SlotId};
use tokio::sync::Notify;

use crate::limits;
use crate::node::words::{FromBroker, Refused, Tell, Told};

/// What waits to be told.
#[derive(Debug, Default)]
pub struct Tells {
    waiting: Mutex<Waiting>,
    stirred: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    of_pods: BTreeMap<(SlotId, Sort), (Told, u32)>,
    /// The slot that was told of last: the next one has its turn, so that nobody waits for those that have always more to tell.
    last: Option<SlotId>,
    /// What slots are not served for; `None`: they are.
    of_slots: BTreeMap<SlotId, Option<Refused>>,
}

/// What is counted together. The last one is the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sort {
    Refused(u32),
    Orphaned,
}

impl Waiting {
    /// One thing of the next slot after the last one of which there is something.
    fn next_of_pods(&mut self) -> Option<((SlotId, Sort), (Told, u32))> {
        let last = self.last.take().map(|slot| (slot, Sort::Orphaned));
        let after = last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let next =
            self.of_pods.range((after, Bound::Unbounded)).next().or_else(|| self.of_pods.iter().next());
        let next = next.map(|(next, _)| next.clone())?;
        self.last = Some(next.0.clone());
        self.of_pods.remove_entry(&next)
    }
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

    /// The slot is not served, which the owner of its pod is to read, and whoever looks at the node.
    pub fn not_served(&self, slot: &SlotId, refusal: &Refusal) {
        self.lock().of_slots.insert(slot.clone(), Some(refusal.into()));
        self.refused(slot, refusal);
    }

    /// The slot is served, or nobody's any more.
    pub fn served(&self, slot: &SlotId) {
        self.lock().of_slots.insert(slot.clone(), None);
        self.stirred.notify_one();
    }

    fn orphaned(&self, slot: &SlotId, leases: u32) {
        self.leave(slot, Sort::Orphaned, || Told::Orphaned { leases });
    }

    fn leave(&self, slot: &SlotId, sort: Sort, told: impl FnOnce() -> Told) {
        let mut waiting = self.lock();
        let (_, times) = waiting.of_pods.entry((slot.clone(), sort)).or_insert_with(|| (told(), 0));
        *times = times.saturating_add(1);
        drop(waiting);
        self.stirred.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be told now; the rest of it later. Empty: nothing.
    #[must_use]
    pub fn take(&self) -> Vec<FromBroker> {
        let mut waiting = self.lock();
        let mut taken = Vec::new();
        while taken.len() < limits::TELLS_AT_A_TIME {
            if let Some((slot, with)) = waiting.of_slots.pop_first() {
                taken.push(FromBroker::Unserved { slot, with });
            } else if let Some(((slot, _), (what, times))) = waiting.next_of_pods() {
                taken.push(FromBroker::Tell(Tell { slot, times, what }));
            } else {
                return taken;
            }
        }
        self.stirred.notify_one();
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
        let tell = |slot: &str, times, refusal: &Refusal| {
            let what = Told::Refused(refusal.into());
            FromBroker::Tell(Tell { slot: slot.parse().unwrap(), times, what })
        };
        assert_eq!(tells.take(), [tell("a", 4, &refusal), tell("b", 1, &Refusal::new(Code::Forked))]);
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

    #[test]
    fn those_that_have_always_more_to_tell_make_nobody_wait() {
        let tells = Tells::default();
        let slots = ["a", "b", "c"].map(|slot| slot.parse::<SlotId>().unwrap());
        let told = |tells: &Tells| {
            let mut of = BTreeMap::<SlotId, usize>::new();
            for word in tells.take() {
                let FromBroker::Tell(tell) = word else { panic!("{word:?}") };
                *of.entry(tell.slot).or_default() += 1;
            }
            slots.each_ref().map(|slot| of.get(slot).copied().unwrap_or_default())
        };
        let all = |slot: &SlotId| Code::ALL.iter().for_each(|code| tells.refused(slot, &Refusal::new(*code)));
        all(&slots[0]);
        all(&slots[1]);
        tells.refused(&slots[2], &Refusal::new(Code::Forked));
        tells.orphaned(&slots[2], 1);
        assert_eq!(told(&tells)[2], 2, "all of it");
        // Nor does who comes again: each has its turn.
        all(&slots[0]);
        all(&slots[1]);
        let [a, b, c] = told(&tells);
        assert!(a.abs_diff(b) <= 1 && a + b == limits::TELLS_AT_A_TIME && c == 0, "{a} {b} {c}");
    }

    #[test]
    fn whether_a_slot_is_served_is_told_as_it_is_now() {
        let tells = Tells::default();
        let slots = ["a", "b"].map(|slot| slot.parse::<SlotId>().unwrap());
        let refusal = Refusal::new(Code::BrokerUnavailable);
        slots.iter().for_each(|slot| tells.not_served(slot, &refusal));
        tells.served(&slots[0]);
        let words = tells.take();
        let [
            FromBroker::Unserved { slot: a, with: None },
            FromBroker::Unserved { slot: b, with: Some(with) },
            ..,
        ] = &words[..]
        else {
            panic!("{words:?}")
        };
        assert_eq!(([a, b], with.refusal()), (slots.each_ref(), Some(refusal)));
        // And their owners are to read of it.
        assert_eq!(words.iter().filter(|word| matches!(word, FromBroker::Tell(_))).count(), 2);
    }
}
