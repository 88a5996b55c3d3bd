//! The PID namespaces of members, and how far each has come with its numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use gpu_handoff_protocol::{Code, PodUid, Refusal};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use super::Members;
use super::census::Inhabitant;
use super::due::Due;
use super::ranges::Grid;
use super::seed::{SeedError, Seeded, Seeder};
use super::watch::Told;
use crate::identity::has_ended_since;
use crate::{limits, pace};

/// Namespaces that a process in one directly below ours has a number in.
const DEPTH: usize = 2;

/// A pod, and a namespace of it.
type Key = (PodUid, u64);

/// What was done to one, and what was counted before.
type Done = (Key, u64, Result<Seeded, SeedError>);

/// How far one has come.
#[derive(Debug)]
struct Space {
    index: u32,
    /// It is being seen to.
    busy: bool,
    /// Of the last time that it went well: how many numbers it has, and the last one that was given.
    known: Option<(u32, u32)>,
    due: Option<Due>,
    /// Why it did not go well, and whether that was told.
    failed: Option<(String, bool)>,
    /// When it is tried again.
    again: Option<Instant>,
    tries: u32,
}

/// All of them.
#[derive(Debug)]
pub struct Spaces {
    seeder: Seeder,
    own: u64,
    all: BTreeMap<Key, Space>,
    seeding: JoinSet<Done>,
    /// What has come of it, and was not heard yet.
    done: Vec<Done>,
    settled: watch::Sender<BTreeSet<PodUid>>,
    /// Members of which it was told that they share their numbers.
    sharing: BTreeSet<PodUid>,
}

impl Spaces {
    /// `own`: the namespace that this process is in. `settled` is told who has its numbers.
    pub(super) fn new(seeder: Seeder, own: u64, settled: watch::Sender<BTreeSet<PodUid>>) -> Self {
        let (all, done, sharing) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        Self { seeder, own, all, seeding: JoinSet::new(), done, settled, sharing }
    }

    /// Nobody is a member any more.
    pub(super) fn forget(&mut self) {
        self.all.clear();
        self.done.clear();
        self.sharing.clear();
        self.seeding = JoinSet::new();
        self.settled.send_if_modified(|settled| !std::mem::take(settled).is_empty());
    }

    /// Waits for the next one that was seen to; for ever where none is. Safe to cancel.
    pub(super) async fn next(&mut self) {
        match self.seeding.join_next().await {
            Some(Ok(done)) => self.done.push(done),
            Some(Err(e)) => warn!(error = %e, "setting a pod's process numbers broke off"),
            None => std::future::pending().await,
        }
    }

    /// Takes in what has come of those that were seen to.
    pub(super) fn hear(&mut self, members: &Members) -> Vec<Told> {
        while let Some(done) = self.seeding.try_join_next() {
            match done {
                Ok(done) => self.done.push(done),
                Err(e) => warn!(error = %e, "setting a pod's process numbers broke off"),
            }
        }
        let mut told = Vec::new();
        for (key, forks, outcome) in std::mem::take(&mut self.done) {
            let (Some(member), Some(space)) = (members.get(&key.0), self.all.get_mut(&key)) else { continue };
            match outcome {
                Ok(seeded) => {
                    space.went_well(&seeded, forks, pace::now());
                    let ranges = Grid::of(seeded.pid_max).map_or(0, Grid::count);
                    if seeded.is_set {
                        let (pod, index) = (&member.pod, member.index);
                        info!(%pod, index, ?seeded, "the pod goes on with the first of its process numbers");
                    }
                    if member.index >= ranges && self.sharing.insert(key.0.clone()) {
                        told.push(shares(&key.0, member.index, ranges));
                    }
                }
                Err(e) => space.went_wrong(&anyhow::Error::new(e), pace::now()),
            }
            if space.is_tried_again_at_once() {
                continue;
            }
            self.settled.send_if_modified(|settled| settled.insert(key.0));
        }
        told
    }

    /// Begins what is to be done of the namespaces that these are in.
    pub(super) fn look(
        &mut self,
        members: &Members,
        there: &[Inhabitant],
        forks: u64,
        now: Instant,
    ) -> Vec<Told> {
        let homes = self.homes(there);
        self.all.retain(|key, _| homes.contains_key(key));
        self.sharing.retain(|uid| members.contains_key(uid));
        let elsewhere =
            there.iter().map(|one| &one.place.pod).filter(|uid| !homes.keys().any(|key| key.0 == **uid));
        let elsewhere: BTreeSet<PodUid> = elsewhere.cloned().collect();
        self.settled.send_if_modified(|settled| {
            let before = settled.len();
            settled.retain(|uid| members.contains_key(uid));
            let is_fewer = settled.len() < before;
            settled.extend(elsewhere.clone());
            is_fewer || settled.len() > before
        });
        let mut told = Vec::new();
        for (key, home) in homes {
            let Some(member) = members.get(&key.0) else { continue };
            let is_new = !self.all.contains_key(&key);
            if is_new
                && self.all.keys().filter(|known| known.0 == key.0).count() >= limits::PID_NAMESPACES_OF_POD
            {
                continue;
            }
            let space = self.all.entry(key.clone()).or_insert_with(|| Space::new(member.index));
            if let Some((why, was_told)) = &mut space.failed
                && space.tries > 1
                && !std::mem::replace(was_told, true)
            {
                told.push(failed(&key.0, why));
            }
            if !space.is_due(forks, now) || self.seeding.len() >= limits::PID_SEEDS {
                continue;
            }
            match home.map(pidfd) {
                Ok(Some(process)) => {
                    let (seeder, index, pid_max) =
                        (self.seeder.clone(), space.index, space.known.map(|(max, _)| max));
                    space.busy = true;
                    self.seeding.spawn(async move {
                        let outcome = seeder.seed(process, index, pid_max).await;
                        (key, forks, outcome)
                    });
                }
                // It has ended: another one is there, or the namespace is gone as well.
                Ok(None) => {
                    debug!(pod = %member.pod, "the process by which the pod's numbers were to be set has ended")
                }
                Err(shared) => {
                    space.went_wrong(&anyhow::anyhow!(shared), now);
                    self.settled.send_if_modified(|settled| settled.insert(key.0));
                }
            }
        }
        told
    }

    /// The namespaces that are below ours, each with the process that has been in it for longest; an error where it is
    /// not the pod's alone.
    fn homes<'a>(&self, there: &'a [Inhabitant]) -> BTreeMap<Key, Result<&'a Inhabitant, String>> {
        let mut homes: BTreeMap<Key, Result<&Inhabitant, String>> = BTreeMap::new();
        let mut pods: BTreeMap<u64, &PodUid> = BTreeMap::new();
        let mut shared = BTreeSet::new();
        for one in there.iter().filter(|one| one.depth == DEPTH && one.namespace != self.own) {
            if *pods.entry(one.namespace).or_insert(&one.place.pod) != &one.place.pod {
                shared.insert(one.namespace);
            }
            let home = homes.entry((one.place.pod.clone(), one.namespace)).or_insert(Ok(one));
            if home.as_ref().is_ok_and(|first| (one.started, one.pid) < (first.started, first.pid)) {
                *home = Ok(one);
            }
        }
        for (key, home) in &mut homes {
            if shared.contains(&key.1) {
                *home = Err("processes of another pod are in the same PID namespace".to_owned());
            }
        }
        homes
    }
}

impl Space {
    const fn new(index: u32) -> Self {
        Self { index, busy: false, known: None, due: None, failed: None, again: None, tries: 0 }
    }

    fn is_due(&self, forks: u64, now: Instant) -> bool {
        if self.busy {
            return false;
        }
        match (self.again, self.due) {
            (Some(again), _) => now >= again,
            (None, Some(due)) => due.is_now(forks, now),
            (None, None) => true,
        }
    }

    /// The first time that it goes wrong says little: the machine may have been busy, or the process ended by which it
    /// was entered.
    const fn is_tried_again_at_once(&self) -> bool {
        self.tries == 1
    }

    fn went_well(&mut self, seeded: &Seeded, forks: u64, now: Instant) {
        let Some(grid) = Grid::of(seeded.pid_max) else { return };
        let numbers = grid.numbers(self.index);
        let last = if seeded.is_set { numbers.before() } else { seeded.last };
        let left = numbers.left(last).unwrap_or(numbers.width());
        let few = |before: u32| {
            last.checked_sub(before).is_some_and(|used| used < numbers.width() / limits::PIDS_FEW)
        };
        let few = !seeded.is_set && self.known.is_some_and(|(_, before)| few(before));
        self.due = Some(match self.due {
            Some(due) => due.again(forks, left, few, now),
            None => Due::new(forks, left, now),
        });
        self.known = Some((seeded.pid_max, last));
        (self.busy, self.failed, self.again, self.tries) = (false, None, None, 0);
    }

    fn went_wrong(&mut self, error: &anyhow::Error, now: Instant) {
        let was_told = self.failed.as_ref().is_some_and(|(_, told)| *told);
        self.failed = Some((format!("{error:#}"), was_told));
        let pause = |again| pace::doubled(limits::PIDS_LOOK, again, limits::PIDS_LONGEST_LOOK);
        self.again = Some(self.tries.checked_sub(1).map_or(now, |again| now + pause(again)));
        self.tries = self.tries.saturating_add(1);
        self.busy = false;
    }
}

/// The very process that was seen there; `None`: it has ended.
fn pidfd(one: &Inhabitant) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(one.pid).ok()?)?;
    let opened: io::Result<OwnedFd> = pidfd_open(pid, PidfdFlags::empty()).map_err(Into::into);
    // Opened first: whoever has the number now, and had begun before it was seen, is that process.
    opened.ok().filter(|_| !has_ended_since(one.pid, one.started))
}

fn failed(uid: &PodUid, why: &str) -> Told {
    let refusal = Refusal::new(Code::PidCollision).compared_with(
        "process numbers of the pod",
        "others than those of the group's other pods",
        format!("such as the kernel gives: {why}"),
    );
    Told { uid: uid.clone(), refusal }
}

fn shares(uid: &PodUid, index: u32, ranges: u32) -> Told {
    let refusal = Refusal::new(Code::PidCollision).compared_with(
        "pods of the group on this node",
        format!("at most {ranges}, for as many ranges of process numbers there are"),
        format!("{}: the pod has the numbers that another has, too", u64::from(index) + 1),
    );
    Told { uid: uid.clone(), refusal }
}
