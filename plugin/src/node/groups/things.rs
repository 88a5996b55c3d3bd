//! What the members of one group make by System V's calls in its IPC namespace: looked at once a second, as nobody tells of it.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use gpu_handoff_protocol::PodUid;
use gpu_handoff_sys::{namespaces, sysv};
use rustix::time::{ClockId, clock_gettime};
use tracing::warn;

use super::holders::Places;
use super::ledger::{By, Ledger};
use super::shares::Thing;
use super::sweep::{self, Swept, SysvKey, key_of};
use crate::{identity, limits};

/// Ticks of a second in what `/proc` says of times: Linux's own, whatever the kernel counts by.
const TICKS: i64 = 100;

/// A group's IPC namespace.
#[derive(Debug)]
pub(super) struct Things {
    pin: PathBuf,
    number: u64,
    pub(super) ledger: Ledger<SysvKey>,
    /// When it was looked at last, in ticks since the machine's start.
    looked: Option<u64>,
    /// When it is looked at next.
    next: Instant,
    /// That it could not be was said.
    is_said: bool,
}

impl Things {
    /// Of a namespace in which these may have made something already.
    pub(super) fn new(thing: &Thing, here: &BTreeSet<PodUid>) -> Self {
        let mut ledger = Ledger::new(3 * limits::SYSV_THINGS);
        here.iter().cloned().for_each(|member| ledger.enter(member));
        let next = Instant::now();
        Self { pin: thing.path.clone(), number: thing.number, ledger, looked: None, next, is_said: false }
    }

    /// Which namespace it is.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// When it is looked at next.
    pub(super) const fn next(&self) -> Instant {
        self.next
    }

    /// Looks, if it is time to.
    pub(super) fn look(&mut self, now: Instant, places: &Places) {
        if self.next <= now {
            self.look_again(places);
            self.next = now + limits::SYSV_PAUSE;
        }
    }

    /// Looks now.
    pub(super) fn look_again(&mut self, places: &Places) {
        let begun = ticks();
        let listed =
            namespaces::within(&self.pin, || sysv::list(limits::SYSV_THINGS)).and_then(|listed| listed);
        match listed {
            Ok((all, is_all)) => {
                self.take_in(&all, is_all, places);
                // Where some was not listed, what comes up later may be older.
                self.looked = is_all.then_some(begun);
                self.is_said = false;
            }
            Err(e) => {
                if !std::mem::replace(&mut self.is_said, true) {
                    warn!(pin = %self.pin.display(), error = %e, "it cannot be seen what is in a group's IPC namespace");
                }
            }
        }
    }

    fn take_in(&mut self, all: &[sysv::Thing], is_all: bool, places: &Places) {
        let new = all.iter().filter(|thing| !self.ledger.knows(&key_of(thing)));
        let new: Vec<_> = new.map(|thing| (key_of(thing), self.maker(thing, places))).collect();
        for (key, by) in new {
            self.ledger.made(key, by);
        }
        if is_all {
            let there: BTreeSet<_> = all.iter().map(key_of).collect();
            self.ledger.retain(|key| there.contains(key));
        }
    }

    /// A process made what was not there at the last look. Who has its number now is that process only if it was there then.
    fn maker(&self, thing: &sysv::Thing, places: &Places) -> By {
        let Some((pid, looked)) = thing.maker.zip(self.looked) else { return By::SomeMember };
        let is_same = identity::started(pid).is_ok_and(|started| started < looked);
        let place = places(pid);
        match place {
            Some(pod) if is_same && identity::started(pid).is_ok_and(|started| started < looked) => {
                By::Pod(pod)
            }
            _ => By::SomeMember,
        }
    }

    /// Removes what is over and nobody uses.
    pub(super) fn sweep(&self, places: &Places) -> io::Result<Swept> {
        if !self.ledger.has_leftovers() {
            return Ok(Swept::default());
        }
        namespaces::within(&self.pin, || sweep::sysv(&self.ledger, places))?
    }
}

/// Whole ticks since the machine's start, as the start of a process is counted.
fn ticks() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec * TICKS + now.tv_nsec / (1_000_000_000 / TICKS)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_those_of_proc() {
        let own = identity::started(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let begun = ticks();
        let other = identity::started(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(own <= other && other <= begun && begun - other < 60 * 100, "{own} {other} {begun}");
    }
}
