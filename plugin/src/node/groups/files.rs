//! The files that one group's members make, of its `/dev/shm` or of its message queues: who makes which, and going through
//! them.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

use gpu_handoff_protocol::{GroupKey, PodUid};
use gpu_handoff_sys::fanotify::{Event, FileKey, Maker, Watch};
use gpu_handoff_sys::namespaces;
use tracing::warn;

use super::holders::{Places, held};
use super::ledger::{By, Ledger};
use super::shares::{Part, Thing};
use super::sweep::{self, Swept};
use super::walk::{self, Walk};
use crate::{identity, limits, pace};

/// One file system.
#[derive(Debug)]
pub(super) struct Files {
    group: GroupKey,
    /// Of which of the group's things, by its number.
    of: u64,
    root: OwnedFd,
    device: u64,
    watch: Watch,
    pub(super) ledger: Ledger<FileKey>,
    /// Until then it is not heard what is told: somebody makes so much that it would take all of this thread's time.
    deaf_until: Option<Instant>,
    /// How often in a row more was made than could be told.
    losses: u32,
    walk: Option<Walk>,
}

impl Files {
    /// Those of a thing. What is there already was made by somebody who is here.
    pub(super) fn of(
        group: &GroupKey,
        part: Part,
        thing: &Thing,
        here: &BTreeSet<PodUid>,
    ) -> io::Result<Self> {
        let (root, watch) = match part {
            Part::Shm => {
                let root = walk::open_root(&thing.path)?;
                let watch = Watch::of(root.as_fd())?;
                (root, watch)
            }
            Part::Ipc => {
                let root = namespaces::message_queues(&thing.path)?;
                let watch = Watch::of_folder(root.as_fd())?;
                (root, watch)
            }
        };
        let mut ledger = Ledger::new(limits::LEDGER_THINGS);
        here.iter().cloned().for_each(|member| ledger.enter(member));
        ledger.lost(walk::all(&root)?);
        let root = std::fs::File::from(root);
        let device = root.metadata()?.dev();
        let (group, of) = (group.clone(), thing.number);
        let root = root.into();
        Ok(Self { group, of, root, device, watch, ledger, deaf_until: None, losses: 0, walk: None })
    }

    /// The number of the thing that they are of.
    pub(super) const fn number(&self) -> u64 {
        self.of
    }

    /// What becomes readable when something is made, unless nothing is heard of that for now.
    pub(super) fn told(&self) -> Option<BorrowedFd<'_>> {
        self.deaf_until.is_none().then(|| self.watch.as_fd())
    }

    /// Until when nothing is heard.
    pub(super) const fn deaf_until(&self) -> Option<Instant> {
        self.deaf_until
    }

    /// Takes in what is told, if it is heard. Whether that is all for now: where it is not, nothing more is heard for a while.
    pub(super) fn hear(&mut self, now: Instant, places: &Places) -> io::Result<bool> {
        self.deaf_until.take_if(|until| *until <= now);
        if self.deaf_until.is_some() {
            return Ok(false);
        }
        for _ in 0..limits::LEDGER_EVENTS {
            match self.watch.next()? {
                Some(Event::Made { file, by }) => self.ledger.made(file, who(by, places)),
                Some(Event::Gone(file)) => self.ledger.gone(&file),
                Some(Event::Lost) => {
                    self.lose(now);
                    return Ok(false);
                }
                None => {
                    self.losses = 0;
                    return Ok(true);
                }
            }
        }
        self.deaf_until = Some(now + limits::LEDGER_PAUSE);
        Ok(false)
    }

    /// Takes in what was made until now, whether it is heard or not, up to its limits, or until some of it is lost: then all
    /// that there is counts as of those who are here.
    pub(super) fn catch_up(&mut self, now: Instant, places: &Places) -> io::Result<()> {
        let losses = self.losses;
        for _ in 0..limits::LEDGER_CATCH_UP {
            self.deaf_until = None;
            if self.hear(now, places)? || self.losses > losses {
                break;
            }
        }
        Ok(())
    }

    fn lose(&mut self, now: Instant) {
        let pause = pace::doubled(limits::LOSS_PAUSE, self.losses, limits::LOSS_LONGEST_PAUSE);
        warn!(group = %self.group, ?pause, "more was made of what the group shares than could be told");
        self.ledger.lost(walk::all(&self.root).ok().flatten());
        self.losses = self.losses.saturating_add(1);
        self.deaf_until = Some(now + pause);
    }

    /// Goes through them from the beginning, if anything is over.
    pub(super) fn begin_sweep(&mut self) {
        self.walk = self.ledger.has_leftovers().then(|| Walk::new(&self.root).ok()).flatten();
    }

    /// Looks at some more of them. Whether there are more yet.
    pub(super) fn sweep(&mut self, places: &Places, swept: &mut Swept) -> bool {
        let Some(walk) = &mut self.walk else { return false };
        // Looked at in each turn anew, and only where something is to be removed.
        let held_now = OnceCell::new();
        let held = || held_now.get_or_init(|| held(self.device, self.ledger.here(), places));
        let went = walk.go_on(limits::SWEEP_FILES, |folder, name| {
            sweep::file(folder, name, &self.ledger, held, swept);
        });
        let more = went.unwrap_or_else(|e| {
            warn!(group = %self.group, error = %e, "what the group shares cannot be gone through to its end");
            swept.failed += 1;
            false
        });
        if !more {
            self.walk = None;
        }
        more
    }
}

/// Of which pod it was. What is read of a process is its own only if it lives afterwards.
fn who(by: Option<Maker>, places: &Places) -> By {
    let Some(Maker { pid, pidfd }) = by else { return By::SomeMember };
    let place = places(pid);
    match place {
        _ if identity::has_ended(pidfd.as_fd()) => By::SomeMember,
        Some(pod) => By::Pod(pod),
        None => By::Other,
    }
}
