//! Which notices become events of their own, which are counted in one that is there, and which are left out. No clock and no
//! network: notices and times in, writes out.
//!
//! Each pod may have so many events at once and one more after each pause, and so may the node. What comes again, in the same
//! words, is counted, and the count is written now and then. What comes in other words and finds no room is counted in the
//! pod's event of the same reason, where there is one; else it is left out, and how many were is told when there is room again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::notice::{About, Kind, Notice};
use crate::allowance::Allowance;
use crate::limits;

/// The reason under which it is told how many were left out.
const LEFT_OUT: &str = "EventsLeftOut";

/// An event that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NewEvent {
    pub(super) about: About,
    pub(super) kind: Kind,
    pub(super) reason: String,
    pub(super) note: String,
    pub(super) count: u32,
    pub(super) name: String,
}

/// What the API server is to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Write {
    /// An event.
    New(Box<NewEvent>),
    /// One that is there has happened so often by now.
    Again { about: About, name: String, count: u32 },
}

impl Write {
    /// The event's name.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::New(event) => &event.name,
            Self::Again { name, .. } => name,
        }
    }

    /// Whom it is about, for the log.
    pub(super) fn about(&self) -> String {
        match self {
            Self::New(event) => event.about.to_string(),
            Self::Again { about, .. } => about.to_string(),
        }
    }
}

/// What was told of which pod.
#[derive(Debug)]
pub(super) struct Desk {
    /// By their UIDs.
    pods: BTreeMap<String, OfPod>,
    node: Allowance,
    last_number: u64,
}

#[derive(Debug)]
struct OfPod {
    about: About,
    events: Allowance,
    series: Vec<Series>,
    left_out: u32,
    last: Instant,
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

impl Desk {
    pub(super) fn new(now: Instant) -> Self {
        let node = Allowance::new(limits::EVENT_BURST, limits::EVENT_EACH, now);
        Self { pods: BTreeMap::new(), node, last_number: 0 }
    }

    /// Takes a notice; gives the event that is to be made of it, if one is.
    pub(super) fn take(&mut self, notice: Notice, now: Instant) -> Option<Write> {
        self.make_room(&notice.about);
        let events = || Allowance::new(limits::EVENT_BURST_OF_POD, limits::EVENT_EACH_OF_POD, now);
        let pod = self.pods.entry(notice.about.uid.clone()).or_insert_with(|| OfPod {
            about: notice.about.clone(),
            events: events(),
            series: Vec::new(),
            left_out: 0,
            last: now,
        });
        pod.last = now;
        let same = |s: &&mut Series| s.reason == notice.reason && s.note == notice.note;
        if let Some(series) = pod.series.iter_mut().find(same) {
            series.count = series.count.saturating_add(notice.times);
            return None;
        }
        if pod.may_have_one_more(&mut self.node, now) {
            self.last_number += 1;
            return Some(pod.begin(notice, self.last_number, now));
        }
        match pod.series.iter_mut().rev().find(|s| s.reason == notice.reason) {
            Some(series) => series.count = series.count.saturating_add(notice.times),
            None => pod.left_out = pod.left_out.saturating_add(notice.times),
        }
        None
    }

    /// What is to be written by now of what was counted and left out.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Write> {
        let mut writes = Vec::new();
        let rest = |pod: &OfPod| now.saturating_duration_since(pod.last) >= limits::EVENT_MEMORY;
        self.pods.retain(|_, pod| !(rest(pod) && pod.has_told_all()));
        for pod in self.pods.values_mut() {
            for series in pod.series.iter_mut().filter(|s| s.count > s.written && s.not_before <= now) {
                if !self.node.take(now) {
                    return writes;
                }
                series.written = series.count;
                series.pause = (series.pause * 2).min(limits::EVENT_SERIES_LONGEST_PAUSE);
                series.not_before = now + series.pause;
                let (about, name) = (pod.about.clone(), series.name.clone());
                writes.push(Write::Again { about, name, count: series.count });
            }
            if pod.left_out > 0 && pod.may_have_one_more(&mut self.node, now) {
                let note = format!("{} more were left out: so many came in so short a time", pod.left_out);
                let notice = Notice::new(pod.about.clone(), Kind::Warning, LEFT_OUT, &note);
                pod.left_out = 0;
                self.last_number += 1;
                writes.push(pod.begin(notice, self.last_number, now));
            }
        }
        writes
    }

    /// When there is something to be written, or forgotten, at the earliest.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let of_pod = |pod: &OfPod| {
            let counted = pod.series.iter().filter(|s| s.count > s.written).map(|s| s.not_before);
            let left_out = (pod.left_out > 0).then(|| pod.events.next(now));
            let rest = pod.last + limits::EVENT_MEMORY;
            let told = counted.chain(left_out).map(|at| at.max(self.node.next(now))).min();
            told.unwrap_or(rest).max(now)
        };
        self.pods.values().map(of_pod).min()
    }

    /// The event of this name is not there any more: Kubernetes keeps them for an hour.
    pub(super) fn forget(&mut self, name: &str) {
        for pod in self.pods.values_mut() {
            pod.series.retain(|series| series.name != name);
        }
    }

    /// Forgets the pod that was quiet for longest, where there are too many.
    fn make_room(&mut self, about: &About) {
        if self.pods.len() < limits::EVENT_PODS || self.pods.contains_key(&about.uid) {
            return;
        }
        let quiet = self.pods.iter().min_by_key(|(_, pod)| pod.last).map(|(uid, _)| uid.clone());
        if let Some(uid) = quiet {
            self.pods.remove(&uid);
        }
    }
}

impl OfPod {
    fn may_have_one_more(&mut self, node: &mut Allowance, now: Instant) -> bool {
        // The node's share is not taken in vain.
        self.events.next(now) <= now && node.take(now) && self.events.take(now)
    }

    fn begin(&mut self, notice: Notice, number: u64, now: Instant) -> Write {
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

    fn has_told_all(&self) -> bool {
        self.left_out == 0 && self.series.iter().all(|s| s.count == s.written)
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

    fn notice(pod: &str, reason: &str, note: &str) -> Notice {
        let about = About { namespace: "n".into(), name: pod.into(), uid: format!("uid-{pod}") };
        Notice::new(about, Kind::Warning, reason, note)
    }

    fn new(write: Option<Write>) -> NewEvent {
        match write {
            Some(Write::New(event)) => *event,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_comes_again_is_counted_in_one_event() {
        let begin = Instant::now();
        let mut desk = Desk::new(begin);
        let first = new(desk.take(notice("p", "NotFound", "no w"), begin));
        assert_eq!((first.count, first.reason.as_str(), first.note.as_str()), (1, "NotFound", "no w"));
        for _ in 0..10 {
            assert_eq!(desk.take(notice("p", "NotFound", "no w").times(100), begin), None);
        }
        // Another pod, and other words, are events of their own.
        let other = new(desk.take(notice("q", "NotFound", "no w"), begin));
        assert_ne!(first.name, other.name);
        new(desk.take(notice("p", "NotFound", "no v"), begin));
        assert_eq!(desk.due(begin), []);
        let due = desk.next_due(begin).unwrap();
        assert_eq!(due, begin + limits::EVENT_SERIES_PAUSE);
        match &desk.due(due)[..] {
            [Write::Again { name, count: 1_001, .. }] => assert_eq!(*name, first.name),
            other => panic!("{other:?}"),
        }
        assert_eq!(desk.due(due), []);
        // What goes on for ever is written ever more rarely.
        let (mut now, mut writes) = (due, 0);
        while now < begin + Duration::from_secs(24 * 60 * 60) {
            desk.take(notice("p", "NotFound", "no w"), now);
            writes += desk.due(now).len();
            now += Duration::from_secs(5);
        }
        assert!((48..70).contains(&writes), "{writes} writes in a day");
    }

    #[test]
    fn a_pod_that_causes_much_is_told_of_a_part_and_of_how_much_was_left_out() {
        let begin = Instant::now();
        let mut desk = Desk::new(begin);
        let noisy = |i: usize| notice("noisy", "NotFound", &format!("no {i}"));
        let told = (0..1_000).filter(|i| desk.take(noisy(*i), begin).is_some()).count();
        assert_eq!(told, limits::EVENT_BURST_OF_POD as usize);
        assert_eq!(desk.take(notice("noisy", "Forked", "a child"), begin), None);
        // Others are told of.
        new(desk.take(notice("quiet", "NotFound", "no w"), begin));
        let (mut counted, mut left_out, mut now) = (limits::EVENT_BURST_OF_POD, Vec::new(), begin);
        while let Some(due) = desk.next_due(now) {
            now = due;
            for write in desk.due(now) {
                match write {
                    Write::Again { count, .. } => counted += count - 1,
                    Write::New(event) => left_out.push((event.reason, event.note)),
                }
            }
        }
        assert_eq!(counted, 1_000, "nothing is lost without a word");
        assert_eq!(left_out[0].0, LEFT_OUT);
        assert!(left_out[0].1.starts_with("1 more"), "{left_out:?}");
        assert!(now < begin + limits::EVENT_MEMORY * 2);
    }

    #[test]
    fn all_pods_together_are_held_to_the_nodes_rate() {
        let begin = Instant::now();
        let mut desk = Desk::new(begin);
        let pods = limits::EVENT_BURST as usize + 50;
        let told =
            (0..pods).filter(|i| desk.take(notice(&format!("p{i}"), "R", "n"), begin).is_some()).count();
        assert_eq!(told, limits::EVENT_BURST as usize);
        let mut now = begin;
        let mut rest = 0;
        while rest < 50 {
            now = desk.next_due(now).unwrap();
            rest += desk.due(now).len();
            assert!(now < begin + limits::EVENT_MEMORY, "{rest} of 50 were told");
        }
        assert!(now >= begin + limits::EVENT_EACH * 49);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_forgotten() {
        let begin = Instant::now();
        let mut desk = Desk::new(begin);
        for i in 0..limits::EVENT_PODS * 2 {
            desk.take(notice(&format!("p{i}"), "R", "n"), begin + Duration::from_secs(i as u64));
        }
        assert!(desk.pods.len() <= limits::EVENT_PODS);
        let mut now = begin + Duration::from_secs(limits::EVENT_PODS as u64 * 2);
        for _ in 0..limits::EVENT_PODS * 3 {
            match desk.next_due(now) {
                Some(due) => now = due,
                None => break,
            }
            desk.due(now);
        }
        assert!(desk.pods.is_empty(), "{} are remembered", desk.pods.len());
        // One that the API server has forgotten is an event again.
        let first = new(desk.take(notice("p", "R", "n"), now));
        assert_eq!(desk.take(notice("p", "R", "n"), now), None);
        desk.forget(&first.name);
        assert_ne!(new(desk.take(notice("p", "R", "n"), now)).name, first.name);
    }

    #[test]
    fn names_are_names() {
        let about = About { namespace: "n".into(), name: format!("{}.b", "a".repeat(251)), uid: "u".into() };
        let name = event_name(&about, 1);
        assert!(gpu_handoff_kubelet::names::is_subdomain(&name) && name.len() <= 253, "{name}");
    }
}
