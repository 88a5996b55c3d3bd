//! What is known of the things that one group shares: who makes what, as long as it is made, and what is swept when who made
//! it is gone.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Instant;

use gpu_handoff_protocol::{GroupKey, PodUid};
use gpu_handoff_sys::fanotify::{Event, FileKey, Maker, Watch};
use tracing::{info, warn};

use super::holders::{Places, held};
use super::ledger::{By, Ledger};
use super::shares::{Shared, Thing};
use super::sweep::{self, Swept};
use super::things::Things;
use super::walk::{self, Walk};
use crate::{limits, pace};

/// A group whose things are looked after.
#[derive(Debug)]
pub(super) struct Tracked {
    key: GroupKey,
    here: BTreeSet<PodUid>,
    files: Option<Files>,
    /// A file system that cannot be watched: that was said.
    unseen: Option<u64>,
    things: Option<Things>,
    /// Members that are gone, and when what they left is swept.
    leaving: BTreeMap<PodUid, Instant>,
    sweep: Option<Sweep>,
    /// When it is swept again, and how often it was in a row.
    again: Option<(Instant, u32)>,
}

/// A group's `/dev/shm`.
#[derive(Debug)]
struct Files {
    place: PathBuf,
    device: u64,
    watch: Watch,
    ledger: Ledger<FileKey>,
    /// Until then it is not heard what is told: somebody makes so much that it would take all of this thread's time.
    deaf_until: Option<Instant>,
    /// How often in a row more was made than could be told.
    losses: u32,
}

/// A sweep that is under way.
#[derive(Debug)]
struct Sweep {
    /// For whom it is: all that was told of them is in.
    members: BTreeSet<PodUid>,
    walk: Option<Walk>,
    swept: Swept,
    tries: u32,
}

impl Tracked {
    pub(super) fn new(key: GroupKey) -> Self {
        let (here, leaving) = (BTreeSet::new(), BTreeMap::new());
        Self { key, here, files: None, unseen: None, things: None, leaving, sweep: None, again: None }
    }

    /// What the group shares, and who is here: before a new member is told of it.
    pub(super) fn is_now(&mut self, shared: &Shared, members: BTreeSet<PodUid>, places: &Places) {
        let now = Instant::now();
        if !members.is_subset(&self.here) {
            self.hear_of_before(places);
        }
        for member in members.difference(&self.here) {
            self.files.iter_mut().for_each(|files| files.ledger.enter(member.clone()));
            self.things.iter_mut().for_each(|things| things.ledger.enter(member.clone()));
            self.leaving.remove(member);
        }
        for member in self.here.difference(&members) {
            self.files.iter_mut().for_each(|files| files.ledger.leave(member));
            self.things.iter_mut().for_each(|things| things.ledger.leave(member));
            self.leaving.insert(member.clone(), now + limits::SWEEP_TIME);
        }
        self.here = members;
        let is_same = |files: &Files, thing: &Thing| files.device == thing.number;
        if !matches!((&self.files, &shared.shm), (Some(files), Some(thing)) if is_same(files, thing)) {
            self.files = None;
            if let Some(thing) = shared.shm.as_ref().filter(|thing| self.unseen != Some(thing.number)) {
                self.files = self.watch(thing);
                self.unseen = self.files.is_none().then_some(thing.number);
            }
        }
        if self.things.as_ref().map(Things::number) != shared.ipc.as_ref().map(|thing| thing.number) {
            self.things = shared.ipc.as_ref().map(|thing| Things::new(thing, &self.here));
        }
    }

    /// Takes in what was made before somebody came, who cannot have made it.
    fn hear_of_before(&mut self, places: &Places) {
        for _ in 0..limits::LEDGER_CATCH_UP {
            if self.hear(Instant::now(), places) {
                break;
            }
        }
        self.things.iter_mut().for_each(|things| things.look_again(places));
    }

    /// Begins to hear of what is made in a `/dev/shm`; what is there already is of somebody who is here.
    fn watch(&self, thing: &Thing) -> Option<Files> {
        let begin = || {
            let root = walk::open_root(&thing.path)?;
            let mut ledger = Ledger::new(limits::LEDGER_THINGS);
            self.here.iter().cloned().for_each(|member| ledger.enter(member));
            let watch = Watch::of(root.as_fd())?;
            ledger.lost(walk::all(&thing.path)?);
            let (place, device) = (thing.path.clone(), thing.number);
            Ok::<_, io::Error>(Files { place, device, watch, ledger, deaf_until: None, losses: 0 })
        };
        match begin() {
            Ok(files) => Some(files),
            Err(e) => {
                warn!(
                    group = %self.key, error = %e,
                    "it cannot be seen who makes what in the group's /dev/shm: what members leave there stays until the group ends"
                );
                None
            }
        }
    }

    /// What becomes readable when something is made.
    pub(super) fn told(&self) -> Option<BorrowedFd<'_>> {
        let hears = |files: &&Files| files.deaf_until.is_none();
        self.files.as_ref().filter(hears).map(|files| files.watch.as_fd())
    }

    /// When there is something to do without anything being told.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        let sweep = self.sweep.as_ref().map(|_| now);
        let due = self.leaving.values().copied().chain(self.again.map(|(at, _)| at)).chain(sweep);
        let deaf_until = self.files.as_ref().and_then(|files| files.deaf_until);
        if let Some(until) = deaf_until {
            // Nothing is swept before.
            return Some(self.things.as_ref().map_or(until, |things| until.min(things.next())));
        }
        due.chain(self.things.as_ref().map(Things::next)).min()
    }

    /// Does what is to be done by now, up to its limits.
    pub(super) fn turn(&mut self, now: Instant, places: &Places) {
        let all_is_heard = self.hears(now) && self.hear(now, places);
        if let Some(things) = &mut self.things {
            things.look(now, places);
        }
        // What is told late may be of one who is here.
        if !all_is_heard {
            return;
        }
        let Some(mut sweep) = self.sweep.take().or_else(|| self.begin(now, places)) else { return };
        if self.go_on(&mut sweep, places) {
            self.sweep = Some(sweep);
        } else {
            self.end(sweep, now, places);
        }
    }

    /// Whether it is heard again what is told of files.
    fn hears(&mut self, now: Instant) -> bool {
        let Some(files) = &mut self.files else { return true };
        files.deaf_until.take_if(|until| *until <= now);
        files.deaf_until.is_none()
    }

    /// Takes in what is told of files. Whether that is all for now: where it is not, nothing more is heard for a while.
    fn hear(&mut self, now: Instant, places: &Places) -> bool {
        let Some(files) = &mut self.files else { return true };
        for _ in 0..limits::LEDGER_EVENTS {
            match files.watch.next() {
                Ok(Some(Event::Made { file, by })) => files.ledger.made(file, who(by, places)),
                Ok(Some(Event::Gone(file))) => files.ledger.gone(&file),
                Ok(Some(Event::Lost)) => {
                    let pause = pace::doubled(limits::LOSS_PAUSE, files.losses, limits::LOSS_LONGEST_PAUSE);
                    warn!(group = %self.key, ?pause, "more was made in the group's /dev/shm than could be told");
                    files.ledger.lost(walk::all(&files.place).ok().flatten());
                    files.losses = files.losses.saturating_add(1);
                    files.deaf_until = Some(now + pause);
                    return false;
                }
                Ok(None) => {
                    files.losses = 0;
                    return true;
                }
                Err(e) => {
                    warn!(group = %self.key, error = %e, "what is told of the group's /dev/shm cannot be read: what is left there stays");
                    self.files = None;
                    return true;
                }
            }
        }
        files.deaf_until = Some(now + limits::LEDGER_PAUSE);
        false
    }

    /// A sweep for members that have been gone for long enough, or once more.
    fn begin(&mut self, now: Instant, places: &Places) -> Option<Sweep> {
        let due: BTreeSet<_> =
            self.leaving.iter().filter(|(_, at)| **at <= now).map(|(m, _)| m.clone()).collect();
        let again = self.again.take_if(|(at, _)| *at <= now);
        if due.is_empty() && again.is_none() {
            return None;
        }
        self.leaving.retain(|member, _| !due.contains(member));
        if let Some(things) = &mut self.things {
            // Of the time when they were here.
            things.look_again(places);
        }
        let files = self.files.as_ref().filter(|files| files.ledger.has_leftovers());
        let walk = files.and_then(|files| Walk::new(&files.place).ok());
        Some(Sweep {
            members: due,
            walk,
            swept: Swept::default(),
            tries: again.map_or(0, |(_, tries)| tries),
        })
    }

    /// Looks at some more files. Whether there are more yet.
    fn go_on(&self, sweep: &mut Sweep, places: &Places) -> bool {
        let Sweep { walk: Some(walk), swept, .. } = sweep else { return false };
        let Some(files) = &self.files else { return false };
        // Looked at in each turn anew, and only where something is to be removed.
        let held_now = OnceCell::new();
        let held = || held_now.get_or_init(|| held(files.device, &self.here, places));
        let went = walk.go_on(limits::SWEEP_FILES, |folder, name| {
            sweep::file(folder, name, &files.ledger, held, swept);
        });
        went.unwrap_or_else(|e| {
            warn!(group = %self.key, error = %e, "the group's /dev/shm cannot be gone through to its end");
            swept.failed += 1;
            false
        })
    }

    fn end(&mut self, sweep: Sweep, now: Instant, places: &Places) {
        let Sweep { members, mut swept, tries, .. } = sweep;
        if let Some(things) = &self.things {
            match things.sweep(places) {
                Ok(of_things) => swept += of_things,
                Err(e) => {
                    warn!(group = %self.key, error = %e, "what members left in the group's IPC namespace cannot be swept");
                    swept.failed += 1;
                }
            }
        }
        self.files.iter_mut().for_each(|files| files.ledger.is_told(&members));
        self.things.iter_mut().for_each(|things| things.ledger.is_told(&members));
        let Swept { removed, held, failed } = swept;
        if removed + held + failed > 0 {
            let may_be_more = self.files.as_ref().is_some_and(|files| files.ledger.is_blind());
            info!(group = %self.key, removed, held, failed, may_be_more, "what members that are gone have left is swept");
        }
        if held + failed > 0 {
            let pause = pace::doubled(limits::SWEEP_PAUSE, tries, limits::SWEEP_LONGEST_PAUSE);
            self.again = Some((now + pause, tries.saturating_add(1)));
        }
    }
}

/// Of which pod it was. What is read of a process is its own only if it lives afterwards.
fn who(by: Option<Maker>, places: &Places) -> By {
    let Some(Maker { pid, pidfd }) = by else { return By::SomeMember };
    let place = places(pid);
    match place {
        _ if crate::identity::has_ended(pidfd.as_fd()) => By::SomeMember,
        Some(pod) => By::Pod(pod),
        None => By::Other,
    }
}
