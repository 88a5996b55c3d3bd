//! What is known of the things that one group shares: who makes what, as long as it is made, and what is swept when who made
//! it is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use gpu_handoff_protocol::{GroupKey, PodUid};
use tracing::{info, warn};

use super::files::Files;
use super::holders::Places;
use super::shares::{Part, Shared, Thing};
use super::sweep::Swept;
use super::things::Things;
use crate::{limits, pace};

/// A group whose things are looked after.
#[derive(Debug)]
pub(super) struct Tracked {
    key: GroupKey,
    here: BTreeSet<PodUid>,
    /// Of its `/dev/shm`, and of its namespace's message queues.
    files: Vec<Files>,
    /// Things whose files cannot be watched, by their numbers: that was said.
    unseen: BTreeSet<u64>,
    /// What else is in its namespace.
    things: Option<Things>,
    /// Members that are gone, and when what they left is swept.
    leaving: BTreeMap<PodUid, Instant>,
    sweep: Option<Sweep>,
    /// When it is swept again, and how often it was in a row.
    again: Option<(Instant, u32)>,
}

/// A sweep that is under way.
#[derive(Debug)]
struct Sweep {
    /// For whom it is: all that was told of them is in.
    members: BTreeSet<PodUid>,
    swept: Swept,
    tries: u32,
}

impl Tracked {
    pub(super) fn new(key: GroupKey) -> Self {
        let (here, files, unseen) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
        Self { key, here, files, unseen, things: None, leaving: BTreeMap::new(), sweep: None, again: None }
    }

    /// What the group shares, and who is here: before a new member is told of it.
    pub(super) fn is_now(&mut self, shared: &Shared, members: BTreeSet<PodUid>, places: &Places) {
        let now = Instant::now();
        if !members.is_subset(&self.here) {
            self.hear_of_before(now, places);
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
        let all = [(Part::Shm, &shared.shm), (Part::Ipc, &shared.ipc)];
        let is_shared =
            |number| all.iter().any(|(_, thing)| thing.as_ref().is_some_and(|t| t.number == number));
        self.files.retain(|files| is_shared(files.number()));
        self.unseen.retain(|number| is_shared(*number));
        for (part, thing) in all {
            thing.iter().for_each(|thing| self.watch(part, thing));
        }
        if self.things.as_ref().map(Things::number) != shared.ipc.as_ref().map(|thing| thing.number) {
            self.things = shared.ipc.as_ref().map(|thing| Things::new(thing, &self.here));
        }
    }

    /// Takes in what was made before somebody came, who cannot have made it.
    fn hear_of_before(&mut self, now: Instant, places: &Places) {
        self.hear_by(|files| files.catch_up(now, places).map(|()| true));
        self.things.iter_mut().for_each(|things| things.look_again(places));
    }

    /// Begins to hear of what is made of a thing.
    fn watch(&mut self, part: Part, thing: &Thing) {
        let is_known = self.files.iter().any(|files| files.number() == thing.number);
        if is_known || self.unseen.contains(&thing.number) {
            return;
        }
        match Files::of(&self.key, part, thing, &self.here) {
            Ok(files) => self.files.push(files),
            Err(e) => {
                let place = thing.path.display();
                warn!(
                    group = %self.key, %place, error = %e,
                    "it cannot be seen who makes which file there: what members leave stays until the group ends"
                );
                self.unseen.insert(thing.number);
            }
        }
    }

    /// What becomes readable when something is made.
    pub(super) fn told(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.files.iter().filter_map(Files::told)
    }

    /// When there is something to do without anything being told.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        let look = self.things.as_ref().map(Things::next);
        // Nothing is swept before all is heard.
        let deaf_until = self.files.iter().filter_map(Files::deaf_until).max();
        let sweep = self.sweep.as_ref().map(|_| now).into_iter();
        let due = sweep.chain(self.leaving.values().copied()).chain(self.again.map(|(at, _)| at)).min();
        let due = due.map(|due| deaf_until.map_or(due, |until| until.max(due)));
        due.into_iter().chain(deaf_until).chain(look).min()
    }

    /// Does what is to be done by now, up to its limits.
    pub(super) fn turn(&mut self, now: Instant, places: &Places) {
        let all_is_heard = self.hear(now, places);
        if let Some(things) = &mut self.things {
            things.look(now, places);
        }
        // What is told late may be of one who is here.
        if !all_is_heard {
            return;
        }
        let Some(mut sweep) = self.sweep.take().or_else(|| self.begin(now, places)) else { return };
        let mut more = false;
        for files in &mut self.files {
            more |= files.sweep(places, &mut sweep.swept);
        }
        if more {
            self.sweep = Some(sweep);
        } else {
            self.end(sweep, now, places);
        }
    }

    /// Takes in what is told of files. Whether that is all for now.
    fn hear(&mut self, now: Instant, places: &Places) -> bool {
        self.hear_by(|files| files.hear(now, places))
    }

    /// The same in this way.
    fn hear_by(&mut self, mut hear: impl FnMut(&mut Files) -> io::Result<bool>) -> bool {
        let mut is_all = true;
        self.files.retain_mut(|files| match hear(files) {
            Ok(all) => {
                is_all &= all;
                true
            }
            Err(e) => {
                warn!(group = %self.key, error = %e, "what is told of the group's files cannot be read: what is left there stays");
                self.unseen.insert(files.number());
                false
            }
        });
        is_all
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
        self.files.iter_mut().for_each(Files::begin_sweep);
        Some(Sweep { members: due, swept: Swept::default(), tries: again.map_or(0, |(_, tries)| tries) })
    }

    fn end(&mut self, sweep: Sweep, now: Instant, places: &Places) {
        let Sweep { members, mut swept, tries } = sweep;
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
            let may_be_more = self.files.iter().any(|files| files.ledger.is_blind());
            info!(group = %self.key, removed, held, failed, may_be_more, "what members that are gone have left is swept");
        }
        if held + failed > 0 {
            let pause = pace::doubled(limits::SWEEP_PAUSE, tries, limits::SWEEP_LONGEST_PAUSE);
            self.again = Some((now + pause, tries.saturating_add(1)));
        }
    }
}
