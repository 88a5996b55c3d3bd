//! Who made what of the things that a group shares, so that what its members have left behind can be told from what is in
//! use. Pure.
//!
//! A thing is over when nobody can have made it who is still here. Who made it is mostly known: the kernel tells. Where it
//! only tells
//! *that* it was made, as by a process that had ended before it was looked at, it is one of those who were members then, and
//! it is over when all of them are gone; so is what is found when nothing has been told. What there is no room for stays
//! until the group ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpu_handoff_protocol::PodUid;

/// Who may have made one thing by several names; of more it stays.
const MOST_MAKERS: usize = 8;

/// Who made something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum By {
    /// A process of this pod.
    Pod(PodUid),
    /// A process that nobody can name any more.
    SomeMember,
    /// A process that is in no pod.
    Other,
}

/// Those who may have.
#[derive(Debug, Clone)]
enum Makers {
    /// A pod.
    One(PodUid),
    /// One of these.
    Some(Arc<BTreeSet<PodUid>>),
    /// Somebody who is no member, or too many.
    Others,
}

/// Of one group. `K` names a thing: no other thing has it later.
#[derive(Debug)]
pub(super) struct Ledger<K> {
    things: BTreeMap<K, Vec<Makers>>,
    most: usize,
    here: BTreeSet<PodUid>,
    /// Gone, and what they left has not been swept yet: what is told of now may be theirs.
    leaving: BTreeSet<PodUid>,
    /// Both, as long as neither changes.
    any: Option<Arc<BTreeSet<PodUid>>>,
    /// There were things that it had no room for: what it hears of for the first time may be one of those by another name.
    is_blind: bool,
}

impl<K: Ord> Ledger<K> {
    /// With room for so many things.
    pub(super) fn new(most: usize) -> Self {
        let (here, leaving) = (BTreeSet::new(), BTreeSet::new());
        Self { things: BTreeMap::new(), most, here, leaving, any: None, is_blind: false }
    }

    /// A member comes: before anything of it can be told.
    pub(super) fn enter(&mut self, member: PodUid) {
        self.any = None;
        self.leaving.remove(&member);
        self.here.insert(member);
    }

    /// A member is gone. What is told from now on may still be of before.
    pub(super) fn leave(&mut self, member: &PodUid) {
        if let Some(member) = self.here.take(member) {
            self.any = None;
            self.leaving.insert(member);
        }
    }

    /// All that can be told of these has been.
    pub(super) fn is_told(&mut self, members: &BTreeSet<PodUid>) {
        self.any = None;
        self.leaving.retain(|member| !members.contains(member));
    }

    /// Those who are here.
    pub(super) const fn here(&self) -> &BTreeSet<PodUid> {
        &self.here
    }

    /// Something was made, or given another name.
    pub(super) fn made(&mut self, thing: K, by: By) {
        let makers = match by {
            _ if self.is_blind && !self.things.contains_key(&thing) => Makers::Others,
            By::Pod(pod) if self.here.contains(&pod) || self.leaving.contains(&pod) => Makers::One(pod),
            By::Pod(_) | By::Other => Makers::Others,
            By::SomeMember => Makers::Some(self.any()),
        };
        let has_room = self.things.len() < self.most;
        match self.things.get_mut(&thing) {
            Some(known) => add(known, makers),
            None if has_room => drop(self.things.insert(thing, vec![makers])),
            None => self.is_blind = true,
        }
    }

    /// It is no more.
    pub(super) fn gone(&mut self, thing: &K) {
        self.things.remove(thing);
    }

    /// Things of which nobody tells any more whether they are there.
    pub(super) fn retain(&mut self, is_there: impl Fn(&K) -> bool) {
        self.things.retain(|thing, _| is_there(thing));
    }

    /// Some of what was made was not told, by whoever is here or was: `there` is all that there is now; `None`: that cannot
    /// be found out.
    pub(super) fn lost(&mut self, there: Option<Vec<K>>) {
        let any = self.any();
        for known in self.things.values_mut() {
            add(known, Makers::Some(Arc::clone(&any)));
        }
        self.is_blind |= there.is_none();
        for thing in there.into_iter().flatten() {
            self.made(thing, By::SomeMember);
        }
    }

    /// Whether it is known.
    pub(super) fn knows(&self, thing: &K) -> bool {
        self.things.contains_key(thing)
    }

    /// Whether all who may have made it are gone. Of what is not known, never.
    pub(super) fn is_over(&self, thing: &K) -> bool {
        let is_gone = |makers: &Makers| match makers {
            Makers::One(pod) => !self.here.contains(pod),
            Makers::Some(pods) => pods.is_disjoint(&self.here),
            Makers::Others => false,
        };
        self.things.get(thing).is_some_and(|known| known.iter().all(is_gone))
    }

    /// Whether anything is over.
    pub(super) fn has_leftovers(&self) -> bool {
        self.things.keys().any(|thing| self.is_over(thing))
    }

    /// Whether there may be things that it does not know of: they stay until the group ends.
    pub(super) const fn is_blind(&self) -> bool {
        self.is_blind
    }

    fn any(&mut self) -> Arc<BTreeSet<PodUid>> {
        let all = || Arc::new(self.here.union(&self.leaving).cloned().collect());
        Arc::clone(self.any.get_or_insert_with(all))
    }
}

fn add(known: &mut Vec<Makers>, more: Makers) {
    let is_there = match &more {
        Makers::One(pod) => known.iter().any(|m| matches!(m, Makers::One(other) if other == pod)),
        Makers::Some(pods) => {
            known.iter().any(|m| matches!(m, Makers::Some(other) if Arc::ptr_eq(other, pods)))
        }
        Makers::Others => false,
    };
    if is_there {
        return;
    }
    if known.len() >= MOST_MAKERS || matches!(more, Makers::Others) {
        *known = vec![Makers::Others];
    } else if !matches!(known[..], [Makers::Others]) {
        known.push(more);
    }
}

#[cfg(test)]
mod tests;
