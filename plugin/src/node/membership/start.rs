//! What is found out and said of a pod when it starts: which GPUs it holds, and whether it will be able to exchange anything.
//!
//! It is found out when the pod's first container is there, and before any process of it is let in. Where the pod will be able to
//! exchange nothing, its owner is told at once, and its applications are held back if the pod says so: its sidecar's connections are
//! refused, so that its startup probe does not succeed.

use std::time::Instant;

use gpu_handoff_inject::keys::Key;
use gpu_handoff_inject::{Colocate, OnFailure, group_hash};
use gpu_handoff_kubelet::pods::{ContainerKind, PodFacts};
use gpu_handoff_protocol::{Code, GroupKey, Refusal};
use tracing::{info, warn};

use super::{Membership, Served, Stopping, Volume, group};
use crate::limits;
use crate::members::Holds;
use crate::node::devices::{Elsewhere, Found, Unknown};
use crate::node::events::{Kind, Notice};
use crate::node::outlook::{Mate, outlook};
use crate::node::slots::Change;
use crate::pace;

/// What was found out and said of a pod.
#[derive(Debug)]
pub(super) struct Start {
    asked: Asked,
    /// It has come in this life of the daemon.
    is_new: bool,
    holds: Holds,
    /// Why that is not known.
    unknown: Option<Unknown>,
    elsewhere: Elsewhere,
    /// What its owner was told that it will not be able to do.
    told: Option<Refusal>,
    /// Its applications are held back.
    is_held_back: bool,
    /// When it is asked again.
    again: Option<Instant>,
    /// How often it was in a row.
    tries: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    NotYet,
    Now,
    Done,
}

/// What was found out of a pod.
#[derive(Debug)]
pub(super) struct Looked {
    pub(super) uid: String,
    pub(super) found: Found,
}

impl Start {
    /// Of a pod that comes; `asks`: it is found out what it holds.
    pub(super) fn new(asks: bool) -> Self {
        let asked = if asks { Asked::NotYet } else { Asked::Done };
        Self { is_new: true, asked, ..Self::of_before() }
    }

    /// Of a pod that an earlier life of the daemon has served.
    pub(super) fn of_before() -> Self {
        Self {
            asked: Asked::NotYet,
            is_new: false,
            holds: Holds::WhatItReaches,
            unknown: None,
            elsewhere: Elsewhere::Unknown("it was not asked yet".to_owned()),
            told: None,
            is_held_back: false,
            again: None,
            tries: 0,
        }
    }

    /// Of a pod that holds these.
    #[cfg(test)]
    pub(super) fn of_holder(holds: Holds) -> Self {
        Self { holds, ..Self::new(false) }
    }

    /// Whether the pod's processes may be let in: at once those that an earlier life of the daemon has let in.
    pub(super) fn lets_in(&self, pod: &PodFacts) -> bool {
        self.asked == Asked::Done || (!self.is_new && is_up(pod))
    }

    /// It is asked again after a while, longer each time; or, where no other answer can come, not.
    fn asks_again(&mut self, may_change: bool, now: Instant) {
        self.tries = if may_change { self.tries.saturating_add(1) } else { 0 };
        let doublings = self.tries.checked_sub(1);
        self.again =
            doublings.map(|n| now + pace::doubled(limits::DEVICES_PAUSE, n, limits::DEVICES_LONGEST_PAUSE));
    }

    /// When it is asked again.
    pub(super) const fn again(&self) -> Option<Instant> {
        self.again
    }

    /// Whether it is to be found out now.
    pub(super) fn begins(&mut self) -> bool {
        let begins = self.asked == Asked::NotYet;
        if begins {
            self.asked = Asked::Now;
        }
        begins
    }
}

/// Whether an application of the pod has been started.
fn is_up(pod: &PodFacts) -> bool {
    pod.containers.iter().any(|c| c.kind == ContainerKind::App && c.container_id.is_some())
}

impl Membership {
    /// Has it found out what a pod holds, unless that is known, and, if it is alone here, where its group is.
    pub(super) fn look_into(&mut self, pod: &PodFacts) {
        let Some(asker) = self.asker.clone() else { return };
        let Some(own) = self.volumes.values().find(|s| s.volume.uid.as_str() == pod.uid) else { return };
        let is_alone = self.mates(&own.volume).next().is_none();
        let holds = own.start.asked != Asked::Done || own.start.unknown.is_some();
        let numbers = self.settled.clone().filter(|_| own.volume.range.is_some());
        let (of, pod) = (own.volume.uid.clone(), pod.clone());
        let hash = is_alone.then(|| group_hash(&own.volume.group));
        self.looks.spawn(async move {
            let uid = pod.uid.clone();
            let found = asker.ask(pod, holds, hash).await;
            if let Some(numbers) = numbers {
                numbers.wait_for(&of).await;
            }
            Looked { uid, found }
        });
    }

    /// When something is to be found out again.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.volumes.values().filter_map(|served| served.start.again()).min()
    }

    /// Has found out again what is to be by now.
    pub(super) fn look_again(&mut self, now: Instant) {
        let is_due = |served: &&mut Served| served.start.again.is_some_and(|at| at <= now);
        let mut due = Vec::new();
        for served in self.volumes.values_mut().filter(is_due) {
            served.start.again = None;
            due.extend(self.pods.get(served.volume.uid.as_str()).cloned());
        }
        due.iter().for_each(|pod| self.look_into(pod));
    }

    /// Takes in what was found out of a pod: it is held to it, told what it means, and its processes are let in.
    pub(super) async fn looked(&mut self, looked: Looked) -> Result<(), Stopping> {
        let Looked { uid, found: Found { holds, elsewhere } } = looked;
        // The answer was about a name. Whoever had it before is gone from here, or both are known.
        let Some(pod) = self.pods.get(&uid).cloned() else { return Ok(()) };
        let namesake = || Err(Unknown::Yet("two pods have its name".to_owned()));
        let holds = holds.map(|holds| if self.has_namesake(&pod) { namesake() } else { holds });
        let Some(served) = self.volumes.values_mut().find(|s| s.volume.uid.as_str() == uid) else {
            return Ok(());
        };
        let start = &mut served.start;
        (start.asked, start.elsewhere) = (Asked::Done, elsewhere);
        if let Some(holds) = &holds {
            let was = std::mem::replace(&mut start.unknown, holds.as_ref().err().cloned());
            if let Some(why) = start.unknown.as_ref().filter(|why| was.as_ref() != Some(why)) {
                warn!(pod = %served.volume.pod, %why, "it is not known which GPUs the pod holds: its processes may use those whose device nodes they have");
            }
        }
        // What was known stays so: a running pod is given nothing else.
        let known = holds.and_then(Result::ok).filter(|holds| start.holds != *holds);
        let (id, slot, group) =
            (served.volume.id.clone(), served.volume.slot.clone(), served.volume.group.clone());
        if let Some(holds) = known {
            info!(%slot, pod = %served.volume.pod, ?holds, "the GPUs that the pod holds");
            start.holds.clone_from(&holds);
            self.say(Change::Holds(slot, holds)).await?;
        }
        self.weigh(&id).await?;
        self.weigh_held_back(&group).await?;
        self.tell_of(&pod).await?;
        self.asks_again(&id);
        Ok(())
    }

    /// A pod is asked about again where another answer may come: what it holds may become known, or its group come here. What
    /// becomes of those of its group that are here is told anyway.
    fn asks_again(&mut self, id: &str) {
        let Some(served) = self.volumes.get(id) else { return };
        let is_alone = self.mates(&served.volume).next().is_none();
        let may_change =
            matches!(served.start.unknown, Some(Unknown::Yet(_))) || (served.start.is_held_back && is_alone);
        if let Some(served) = self.volumes.get_mut(id) {
            served.start.asks_again(may_change, pace::now());
        }
    }

    fn has_namesake(&self, pod: &PodFacts) -> bool {
        let is_one = |other: &PodFacts| {
            other.uid != pod.uid && (&other.namespace, &other.name) == (&pod.namespace, &pod.name)
        };
        self.pods.values().any(is_one)
    }

    /// Weighs again for the members of a group whose applications are held back: who has come or gone may make a difference.
    pub(super) async fn weigh_held_back(&mut self, group: &GroupKey) -> Result<(), Stopping> {
        let held_back = |s: &&Served| s.start.is_held_back && s.volume.group == *group;
        let ids: Vec<String> = self.volumes.values().filter(held_back).map(|s| s.volume.id.clone()).collect();
        for id in ids {
            self.weigh(&id).await?;
        }
        Ok(())
    }

    /// Weighs again for everybody: another policy is in force, or the driver says something else of the GPUs.
    pub(super) async fn weigh_all(&mut self) -> Result<(), Stopping> {
        let ids: Vec<String> = self.volumes.keys().cloned().collect();
        for id in ids {
            self.weigh(&id).await?;
            let held_back = |s: &Served| s.start.is_held_back && s.start.again.is_none();
            if self.volumes.get(&id).is_some_and(held_back) {
                self.asks_again(&id);
            }
        }
        Ok(())
    }

    /// Tells a pod's owner where it will be able to exchange nothing, and holds its applications back, or no longer.
    async fn weigh(&mut self, id: &str) -> Result<(), Stopping> {
        let (refusal, holds_back) = match self.volumes.get(id).and_then(|served| self.weighed(served)) {
            Some((refusal, holds_back)) => (Some(refusal), holds_back),
            None => (None, false),
        };
        let Some(served) = self.volumes.get_mut(id) else { return Ok(()) };
        if refusal == served.start.told && holds_back == served.start.is_held_back {
            return Ok(());
        }
        let was_held_back = std::mem::replace(&mut served.start.is_held_back, holds_back);
        served.start.told.clone_from(&refusal);
        let (about, slot) = (served.volume.about(), served.volume.slot.clone());
        match &refusal {
            Some(refusal) => self.events.tell(Notice::refused(about, refusal)),
            None if was_held_back => {
                let note = "what held the pod's applications back is over: they may start";
                self.events.tell(Notice::new(about, Kind::Normal, "MayStart", note));
            }
            None => {}
        }
        if holds_back || was_held_back {
            let with = refusal.filter(|_| holds_back);
            self.say(Change::HeldBack(slot, with.as_ref().map(Into::into))).await?;
        }
        Ok(())
    }

    /// The others of a pod's group that it may know of.
    fn mates<'a>(&'a self, own: &'a Volume) -> impl Iterator<Item = &'a Served> {
        self.volumes.values().filter(move |other| {
            other.volume.group == own.group
                && other.volume.uid != own.uid
                && self.may_know_of(own, &other.volume)
        })
    }

    /// Whether a pod may know that another of its group is there: guests of several namespaces may be in one group, and the
    /// policy need not let them meet.
    fn may_know_of(&self, own: &Volume, other: &Volume) -> bool {
        let (own, other) = (own.party(), other.party());
        let policy = self.policies.borrow();
        policy.may_exchange(&own, &other) || policy.may_exchange(&other, &own)
    }

    /// Why a pod will be able to exchange nothing, and whether its applications are to be held back for that.
    fn weighed(&self, served: &Served) -> Option<(Refusal, bool)> {
        let Served { volume, start, ending, .. } = served;
        let pod = self.pods.get(volume.uid.as_str())?;
        let is_up = is_up(pod);
        if *ending || (is_up && !start.is_new) {
            return None;
        }
        let mates = self.mates(volume).filter(|mate| !mate.ending).map(|mate| {
            let holds = (mate.start.asked == Asked::Done).then_some(&mate.start.holds);
            Mate { pod: &mate.volume.pod, holds }
        });
        let mates: Vec<Mate<'_>> = mates.collect();
        let topology = self.topology.borrow();
        let refusal = outlook(&volume.pod, &start.holds, &mates, &start.elsewhere, topology.as_ref())?;
        let wishes = group::wishes_of(pod)?;
        // Who may go where nobody is has said that it may be alone.
        let may_be_alone = refusal.code() == Code::NoPeerOnNode && wishes.colocate != Colocate::Required;
        let on_failure = self.policies.borrow().on_failure_of(&volume.pod.namespace, wishes.on_failure);
        let holds_back = on_failure == OnFailure::Block && !is_up && !may_be_alone;
        if !holds_back {
            return Some((refusal, false));
        }
        let remedy = format!(
            "{}; until then the pod's applications are not started ({}: block)",
            refusal.remedy(),
            Key::OnFailure.as_str()
        );
        Some((refusal.with_remedy(remedy), true))
    }
}
