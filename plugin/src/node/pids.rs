//! Process numbers that differ within a group, for pods that ask for it: the driver takes two processes with one number
//! for one process, and in containers most have the number 1.
//!
//! Each such member has a range of numbers in its pod's PID namespace. As soon as its first container is there, the
//! namespace goes on with the first of them, before a process of the pod is let in, and again each time when half of them
//! are used up. What still has equal numbers, such as the main processes of containers that do not share a namespace, is
//! told to the owners of both pods.
//!
//! Nodes without such members do nothing of this.
//!
//! | concern | file |
//! |---|---|
//! | which numbers a member has | [`ranges`] |
//! | setting them, in a process that has given up everything else | [`seed`] |
//! | when it is looked how far they are used up | [`due`] |
//! | the namespaces of members, and how far each is | [`spaces`] |
//! | which processes there are, and where | [`census`] |
//! | which of them have equal numbers | [`watch`] |

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_protocol::{GroupKey, PodRef, PodUid};
use tokio::sync::watch as told;
use tokio::time::timeout;
use tracing::warn;

use super::events::{About, Events, Notice};
use super::parts::Plans;
use crate::identity::cgroup::{InPod, Root};
use crate::{identity, limits, pace};

pub mod census;
pub mod due;
pub mod ranges;
pub mod seed;
pub mod spaces;
pub mod watch;

use census::{Census, forks};
use seed::Seeder;
use spaces::Spaces;
use watch::{Told, Watch};

/// A member that has process numbers of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranged {
    /// Its pod.
    pub pod: PodRef,
    /// Whose other members have other numbers.
    pub group: GroupKey,
    /// Which range of them it has.
    pub index: u32,
}

/// Members with numbers of their own.
pub type Members = BTreeMap<PodUid, Ranged>;

/// Sees to their numbers.
#[derive(Debug)]
pub struct Pids<W> {
    /// Away while it is taken.
    census: Option<Census<W>>,
    spaces: Spaces,
    watch: Watch,
    /// What was counted when it was taken last, and when.
    taken: Option<(u64, Instant)>,
    /// When all processes were looked at.
    anew: Option<Instant>,
}

/// Whether members have their numbers.
#[derive(Debug, Clone)]
pub struct Settled(told::Receiver<BTreeSet<PodUid>>);

impl Settled {
    /// Those that have them, or do not get them.
    #[must_use]
    pub fn now(&self) -> BTreeSet<PodUid> {
        self.0.borrow().clone()
    }

    /// Waits until the member has them, or it is known that it does not get them; not for ever.
    pub async fn wait_for(&self, uid: &PodUid) {
        let mut settled = self.0.clone();
        if timeout(limits::PID_PATIENCE, settled.wait_for(|settled| settled.contains(uid))).await.is_err() {
            let waited = limits::PID_PATIENCE;
            warn!(%uid, ?waited, "the pod's process numbers have not been set: its processes are let in all the same");
        }
    }
}

#[cfg(test)]
impl Settled {
    /// Told by whoever has the other.
    pub(in crate::node) fn for_test() -> (told::Sender<BTreeSet<PodUid>>, Self) {
        let (teller, settled) = told::channel(BTreeSet::new());
        (teller, Self(settled))
    }
}

/// Where a process is, by its groups.
pub(in crate::node) fn by_groups(root: Root) -> impl Fn(u32) -> Option<InPod> + Send + 'static {
    move |pid| identity::place_of(pid, &root)
}

impl<W: Fn(u32) -> Option<InPod> + Send + 'static> Pids<W> {
    /// Sets them by this program; `whose` says where a process is.
    ///
    /// # Errors
    /// When our own namespace cannot be told from others.
    pub fn new(program: impl Into<std::path::PathBuf>, whose: W) -> io::Result<(Self, Settled)> {
        let (teller, settled) = told::channel(BTreeSet::new());
        let spaces = Spaces::new(Seeder::new(program), census::own_namespace()?, teller);
        let census = Some(Census::new(whose));
        Ok((Self { census, spaces, watch: Watch::default(), taken: None, anew: None }, Settled(settled)))
    }

    /// Sees to them until the node ends.
    pub(in crate::node) async fn run(mut self, mut plans: told::Receiver<Arc<Plans>>, events: Events) {
        let mut failed = false;
        loop {
            let members = members(&plans.borrow_and_update());
            if members.is_empty() {
                self.forget();
                if plans.changed().await.is_err() {
                    // Nobody writes plans any more: the node is about to end.
                    std::future::pending().await
                }
                continue;
            }
            match self.turn(&members).await {
                Ok(all) => {
                    failed = false;
                    all.iter().filter_map(|one| notice(&members, one)).for_each(|notice| events.tell(notice));
                }
                Err(e) if !failed => {
                    failed = true;
                    warn!(error = %e, "it cannot be seen which processes there are: numbers that are used up are not set anew");
                }
                Err(_) => {}
            }
            tokio::select! { () = tokio::time::sleep(limits::PIDS_PAUSE) => {}, () = self.spaces.next() => {} }
        }
    }

    /// Looks, where anything may have changed; what owners of pods are to be told.
    ///
    /// # Errors
    /// What `/proc` answers.
    pub async fn turn(&mut self, members: &Members) -> io::Result<Vec<Told>> {
        let mut told = self.spaces.hear(members);
        let (forks, now) = (forks()?, pace::now());
        let is_old = |at: Instant| now.duration_since(at) >= limits::PIDS_LOOK;
        if self.taken.is_some_and(|(at, when)| at == forks && !is_old(when)) {
            return Ok(told);
        }
        let anew = self.anew.is_none_or(is_old);
        let pods: BTreeSet<PodUid> = members.keys().cloned().collect();
        let Some(mut census) = self.census.take() else { return Ok(told) };
        let taking = tokio::task::spawn_blocking(move || {
            let there = census.take(&pods, anew);
            (census, there)
        });
        let (census, there) = match taking.await {
            Ok(taken) => taken,
            // Nothing would be seen any more: the node ends, as with any of its parts, and starts again.
            Err(e) if e.is_panic() => std::panic::resume_unwind(e.into_panic()),
            Err(e) => return Err(io::Error::other(e)),
        };
        self.census = Some(census);
        let there = there?;
        self.taken = Some((forks, now));
        if anew {
            self.anew = Some(now);
        }
        told.extend(self.spaces.look(members, &there, forks, now));
        told.extend(self.watch.look(members, &there));
        Ok(told)
    }

    /// There are no such members.
    fn forget(&mut self) {
        self.spaces.forget();
        self.watch = Watch::default();
        (self.taken, self.anew) = (None, None);
    }

    /// Waits for the next namespace whose numbers were seen to; never comes back where there is none.
    pub async fn next(&mut self) {
        self.spaces.next().await;
    }
}

fn members(plans: &Plans) -> Members {
    let ranged = plans.values().filter_map(|plan| {
        let (pod, group) = (plan.pod.clone(), plan.group.clone());
        Some((plan.uid.clone(), Ranged { pod, group, index: plan.range? }))
    });
    ranged.collect()
}

fn notice(members: &Members, told: &Told) -> Option<Notice> {
    let pod = &members.get(&told.uid)?.pod;
    let (namespace, name) = (pod.namespace.to_string(), pod.name.to_string());
    Some(Notice::refused(About { namespace, name, uid: told.uid.to_string() }, &told.refusal))
}
