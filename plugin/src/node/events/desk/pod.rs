//! What was told of one pod.

use std::time::{Duration, Instant};

use gpu_handoff_kubelet::api::events::{About, Kind, NewEvent, Write};

use super::super::notice::Notice;
use crate::allowance::Allowance;
use crate::limits;

/// The reason under which it is told how many were left out.
pub(super) const LEFT_OUT: &str = "EventsLeftOut";

/// What was told of it, and what is counted.
#[derive(Debug)]
pub(super) struct OfPod {
    about: About,
    events: Allowance,
    series: Vec<Series>,
    left_out: u32,
    /// Since when there are such.
    left_out_since: Instant,
    pub(super) last: Instant,
}

/// What may be due of a pod.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// The count of the event of this name.
    Count(String),
    LeftOut,
}

/// An event that is there, and how often it happened.
#[derive(Debug)]
struct Series {
    name: String,
    reason: String,
    note: String,
    count: u32,
    /// What the API server knows of that.
    written: u32,
    not_before: Instant,
    /// How long until it may be written again after that; longer each time.
    pause: Duration,
}

impl OfPod {
    /// Of which nothing was told yet.
    pub(super) fn new(about: About, now: Instant) -> Self {
        let events = Allowance::new(limits::EVENT_BURST_OF_POD, limits::EVENT_EACH_OF_POD, now);
        Self { about, events, series: Vec::new(), left_out: 0, left_out_since: now, last: now }
    }

    /// Counts a notice in the event of the same words, where there is one.
    pub(super) fn counts_as_one_before(&mut self, notice: &Notice, now: Instant) -> bool {
        self.last = now;
        let same = |s: &&mut Series| s.reason == notice.reason && s.note == notice.note;
        let series = self.series.iter_mut().find(same);
        series.map(|series| series.count = series.count.saturating_add(notice.times)).is_some()
    }

    /// Counts a notice for which there is no room in the event of the same reason, where there is one; else as left out.
    pub(super) fn leave_out(&mut self, notice: &Notice, now: Instant) {
        if let Some(series) = self.series.iter_mut().rev().find(|s| s.reason == notice.reason) {
            series.count = series.count.saturating_add(notice.times);
            return;
        }
        if self.left_out == 0 {
            self.left_out_since = now;
        }
        self.left_out = self.left_out.saturating_add(notice.times);
    }

    /// Takes one event of the pod's and the node's share, where both have one left.
    pub(super) fn may_have_one_more(&mut self, node: &mut Allowance, now: Instant) -> bool {
        // The node's share is not taken in vain.
        self.events.next(now) <= now && node.take(now) && self.events.take(now)
    }

    /// What is due by now, and since when.
    pub(super) fn due(&self, now: Instant) -> impl Iterator<Item = (Instant, Due)> {
        let counted = self.series.iter().filter(move |s| s.has_more() && s.not_before <= now);
        let counted = counted.map(|s| (s.not_before, Due::Count(s.name.clone())));
        let left_out = self.left_out > 0 && self.events.next(now) <= now;
        counted.chain(left_out.then_some((self.left_out_since, Due::LeftOut)))
    }

    /// When something of it is to be written, or it is to be forgotten.
    pub(super) fn next_due(&self, node: &Allowance, now: Instant) -> Instant {
        let counted = self.series.iter().filter(|s| s.has_more()).map(|s| s.not_before);
        let left_out = (self.left_out > 0).then(|| self.events.next(now));
        let told = counted.chain(left_out).map(|at| at.max(node.next(now))).min();
        told.unwrap_or(self.last + limits::EVENT_MEMORY).max(now)
    }

    /// How often one of its events has happened by now.
    pub(super) fn again(&mut self, name: &str, now: Instant) -> Option<Write> {
        let series = self.series.iter_mut().find(|s| s.name == name)?;
        series.written = series.count;
        series.pause = (series.pause * 2).min(limits::EVENT_SERIES_LONGEST_PAUSE);
        series.not_before = now + series.pause;
        Some(Write::Again { about: self.about.clone(), name: series.name.clone(), count: series.count })
    }

    /// How much was left out.
    pub(super) fn tell_left_out(&mut self, number: u64, now: Instant) -> Option<Write> {
        if !self.events.take(now) {
            return None;
        }
        let note = format!("{} more were left out: so many came in so short a time", self.left_out);
        let notice = Notice::new(self.about.clone(), Kind::Warning, LEFT_OUT, &note);
        self.left_out = 0;
        Some(self.begin(notice, number, now))
    }

    /// An event of its own.
    pub(super) fn begin(&mut self, notice: Notice, number: u64, now: Instant) -> Write {
        let Notice { about, kind, reason, note, times } = notice;
        if self.series.len() >= limits::EVENT_SERIES_OF_POD {
            self.series.remove(0);
        }
        let name = event_name(&about, number);
        self.series.push(Series {
            name: name.clone(),
            reason: reason.clone(),
            note: note.clone(),
            count: times,
            written: times,
            not_before: now + limits::EVENT_SERIES_PAUSE,
            pause: limits::EVENT_SERIES_PAUSE,
        });
        Write::New(Box::new(NewEvent { about, kind, reason, note, count: times, name }))
    }

    /// The event of this name is not there any more.
    pub(super) fn forget(&mut self, name: &str) {
        self.series.retain(|series| series.name != name);
    }

    /// Nothing of it is to be written.
    pub(super) fn has_told_all(&self) -> bool {
        self.left_out == 0 && !self.series.iter().any(Series::has_more)
    }
}

impl Series {
    /// It has happened more often than is written.
    const fn has_more(&self) -> bool {
        self.count > self.written
    }
}

/// A name that no other event of the namespace has, of whatever node and life of its daemon.
fn event_name(about: &About, number: u64) -> String {
    let pod = &about.name[..about.name.len().min(limits::EVENT_POD_NAME_BYTES)];
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let hash = blake3::hash(format!("{} {number} {}", about.uid, since.as_nanos()).as_bytes());
    format!("{}.{}", pod.trim_end_matches(['.', '-']), &hash.to_hex()[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names() {
        let about = About { namespace: "n".into(), name: format!("{}.b", "a".repeat(251)), uid: "u".into() };
        let name = event_name(&about, 1);
        assert!(gpu_handoff_kubelet::names::is_subdomain(&name) && name.len() <= 253, "{name}");
    }
}
