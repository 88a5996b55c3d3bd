//! The thread that has all that groups share: it does what it is asked, hears of what is made, and sweeps, in turns.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use gpu_handoff_policy::Policy;
use gpu_handoff_protocol::{GroupKey, PodUid};
use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::{oneshot, watch};
use tracing::warn;

use super::OnRecord;
use super::holders::Places;
use super::mounts::Kernel;
use super::shares::{EnterError, Shared, Shares, Wish};
use super::tracked::Tracked;
use crate::{limits, pace};

/// What the node asks for.
#[derive(Debug)]
pub(super) enum Ask {
    Enter(Arc<Policy>, OnRecord, oneshot::Sender<Result<Shared, EnterError>>),
    Leave(GroupKey, PodUid, oneshot::Sender<()>),
    Shared(GroupKey, Wish, oneshot::Sender<Shared>),
}

/// What the thread has.
pub(super) struct Keeper {
    shares: Shares<Kernel>,
    tracked: BTreeMap<GroupKey, Tracked>,
    /// The one that was in force when it was asked last.
    policy: Arc<Policy>,
    places: Places,
    asked: Receiver<Ask>,
    wake: Arc<OwnedFd>,
    told: watch::Sender<u64>,
    /// When what failed is tried again, and how often it was in a row.
    tidy: Option<(Instant, u32)>,
    /// Container runtimes in other mount namespaces do not see what is mounted, and that is not said yet.
    is_hidden: bool,
}

impl Keeper {
    pub(super) fn new(
        shares: Shares<Kernel>,
        policy: Policy,
        places: Places,
        asked: Receiver<Ask>,
        wake: Arc<OwnedFd>,
        told: watch::Sender<u64>,
    ) -> Self {
        let (tracked, policy) = (BTreeMap::new(), Arc::new(policy));
        Self { shares, tracked, policy, places, asked, wake, told, tidy: None, is_hidden: false }
    }

    /// Whether container runtimes in other mount namespaces see what is mounted: said as soon as it matters.
    pub(super) fn seen_outside(self, is_seen: bool) -> Self {
        Self { is_hidden: !is_seen, ..self }
    }

    /// Until nobody asks any more.
    pub(super) fn run(mut self) {
        self.track();
        loop {
            match self.asked.try_recv() {
                Ok(ask) => self.answer(ask),
                Err(TryRecvError::Empty) => {
                    self.turn(Instant::now());
                    self.wait();
                }
                Err(TryRecvError::Disconnected) => return,
            }
        }
    }

    fn answer(&mut self, ask: Ask) {
        match ask {
            Ask::Enter(policy, (group, member, wish), asker) => {
                self.policy = policy;
                let entered = self.shares.enter(&self.policy, &group, &member, wish);
                // Before the member can make anything.
                self.track();
                if wish.is_some() && std::mem::take(&mut self.is_hidden) {
                    warn!(
                        "the run directory is on no shared mount: container runtimes outside do not see what groups share there"
                    );
                }
                let _ = asker.send(entered);
            }
            Ask::Leave(group, member, asker) => {
                self.shares.leave(&group, &member);
                self.track();
                let _ = asker.send(());
            }
            Ask::Shared(group, wish, asker) => {
                let _ = asker.send(self.shares.shared(&group, wish));
            }
        }
    }

    /// Looks after what is shared now, and after nothing else.
    fn track(&mut self) {
        let mut known = BTreeSet::new();
        for (key, shared, members) in self.shares.all() {
            let new = || Tracked::new(key.clone());
            self.tracked.entry(key.clone()).or_insert_with(new).is_now(
                &shared,
                members.cloned().collect(),
                &self.places,
            );
            known.insert(key.clone());
        }
        self.tracked.retain(|key, _| known.contains(key));
    }

    fn turn(&mut self, now: Instant) {
        for tracked in self.tracked.values_mut() {
            tracked.turn(now, &self.places);
        }
        match self.tidy {
            None if self.shares.is_untidy() => self.tidy = Some((now + limits::UNDONE_PAUSE, 1)),
            Some((at, tries)) if at <= now => {
                let before = self.shown();
                self.shares.tidy(&self.policy);
                let pause = pace::doubled(limits::UNDONE_PAUSE, tries, limits::UNDONE_LONGEST_PAUSE);
                self.tidy = self.shares.is_untidy().then(|| (now + pause, tries.saturating_add(1)));
                if self.shown() != before {
                    self.track();
                    self.told.send_modify(|changes| *changes += 1);
                }
            }
            _ => {}
        }
    }

    fn shown(&self) -> Vec<Shared> {
        self.shares.all().map(|(_, shared, _)| shared).collect()
    }

    /// Until it is asked something, something is made, or it is time for something.
    fn wait(&self) {
        let now = Instant::now();
        let dues = self.tracked.values().filter_map(|tracked| tracked.next(now));
        let due = dues.chain(self.tidy.map(|(at, _)| at)).min();
        // Nothing that is told late is waited for longer than that.
        let pause = due.map_or(limits::GROUPS_LONGEST_WAIT, |due| due.saturating_duration_since(now));
        let pause = pause.min(limits::GROUPS_LONGEST_WAIT);
        let mut told = vec![PollFd::new(&self.wake, PollFlags::IN)];
        let files = self.tracked.values().flat_map(Tracked::told);
        told.extend(files.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let pause = rustix::time::Timespec::try_from(pause).ok();
        match poll(&mut told, pause.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => {
                warn!(error = %e, "it cannot be waited for what groups make");
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        let _none_is_well = rustix::io::read(&*self.wake, &mut [0; 8]);
    }
}
