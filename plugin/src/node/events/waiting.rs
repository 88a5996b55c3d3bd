//! What the API server is to be told and has not been yet: a queue for each namespace, so that one whose events it does not
//! take (a quota, an admission webhook that fails) holds up nobody else's. No clock and no network.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use gpu_handoff_kubelet::api::events::Write;

use crate::limits;
use crate::pace;

/// All that waits.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    namespaces: BTreeMap<String, OfNamespace>,
    /// Those under way included.
    writes: usize,
    last_turn: u64,
    /// Writes that found no room.
    lost: u64,
}

#[derive(Debug)]
struct OfNamespace {
    writes: VecDeque<Write>,
    /// One is being written: the next waits for it.
    is_under_way: bool,
    /// How often in a row it failed.
    failures: u32,
    /// How often in a row its next was forbidden.
    forbidden: u32,
    not_before: Instant,
    /// When it had its turn last, in turns.
    turn: u64,
}

impl Waiting {
    /// Has it written when its turn comes. Where there is no room, the namespace of which most waits loses its newest.
    pub(super) fn put(&mut self, write: Write, now: Instant) {
        let namespace = write.about().namespace.clone();
        if self.writes >= limits::EVENTS_WAITING {
            self.lost += 1;
            let length = |of: &OfNamespace| of.writes.len();
            let own = self.namespaces.get(&namespace).map_or(0, length);
            let longest = self.namespaces.iter_mut().max_by_key(|(_, of)| length(of));
            let Some((longest, of)) = longest.filter(|(_, of)| length(of) > own) else { return };
            of.writes.pop_back();
            if of.writes.is_empty() && !of.is_under_way {
                let longest = longest.clone();
                self.namespaces.remove(&longest);
            }
            self.writes -= 1;
        }
        self.writes += 1;
        let new = || OfNamespace {
            writes: VecDeque::new(),
            is_under_way: false,
            failures: 0,
            forbidden: 0,
            not_before: now,
            turn: 0,
        };
        self.namespaces.entry(namespace).or_insert_with(new).writes.push_back(write);
    }

    /// The next write, where one may be; it is under way until it is [`done`](Self::done) or has [`failed`](Self::failed).
    pub(super) fn next(&mut self, now: Instant) -> Option<Write> {
        let may = |of: &&mut OfNamespace| of.waits() && of.not_before <= now;
        let of = self.namespaces.values_mut().filter(may).min_by_key(|of| of.turn)?;
        self.last_turn += 1;
        (of.turn, of.is_under_way) = (self.last_turn, true);
        of.writes.pop_front()
    }

    /// When there may be a next one at the earliest.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.namespaces.values().filter(|of| of.waits()).map(|of| of.not_before).min()
    }

    /// It is written, or never will be; whether its namespace had failed before.
    pub(super) fn done(&mut self, write: &Write) -> bool {
        self.writes = self.writes.saturating_sub(1);
        let namespace = &write.about().namespace;
        let Some(of) = self.namespaces.get_mut(namespace) else { return false };
        of.is_under_way = false;
        let had_failed = std::mem::take(&mut of.failures) > 0;
        of.forbidden = 0;
        if of.writes.is_empty() {
            self.namespaces.remove(namespace);
        }
        had_failed
    }

    /// It is not written yet, and keeps its place; how often in a row that was so of its namespace.
    pub(super) fn failed(&mut self, write: Write, now: Instant) -> u32 {
        let Some(of) = self.namespaces.get_mut(&write.about().namespace) else { return 0 };
        of.is_under_way = false;
        of.failures = of.failures.saturating_add(1);
        of.not_before = now + pace::doubled(limits::EVENT_PAUSE, of.failures, limits::EVENT_LONGEST_PAUSE);
        of.writes.push_front(write);
        of.failures
    }

    /// It is forbidden; whether that may pass. Who answers so was away before, or has just come: pauses begin anew.
    pub(super) fn may_be_let(&mut self, write: &Write) -> bool {
        let Some(of) = self.namespaces.get_mut(&write.about().namespace) else { return false };
        of.forbidden += 1;
        if of.forbidden == 1 {
            of.failures = of.failures.min(1);
        }
        of.forbidden < limits::EVENT_TIMES_FORBIDDEN
    }

    /// How many were lost since this was asked last.
    pub(super) fn lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }
}

impl OfNamespace {
    fn waits(&self) -> bool {
        !self.is_under_way && !self.writes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use gpu_handoff_kubelet::api::events::About;

    use super::*;

    fn write(namespace: &str, name: &str) -> Write {
        let about = About { namespace: namespace.into(), name: "p".into(), uid: "u".into() };
        Write::Again { about, name: name.into(), count: 2 }
    }

    #[test]
    fn a_namespace_that_fails_waits_alone_and_keeps_its_order() {
        let now = Instant::now();
        let mut waiting = Waiting::default();
        for i in 0..3 {
            waiting.put(write("bad", &format!("bad-{i}")), now);
            waiting.put(write("good", &format!("good-{i}")), now);
        }
        let (bad, good) = (waiting.next(now).unwrap(), waiting.next(now).unwrap());
        assert_eq!((bad.name(), good.name()), ("bad-0", "good-0"));
        assert_eq!(waiting.next(now), None, "one of a namespace at a time");
        assert_eq!(waiting.failed(bad, now), 1);
        assert!(!waiting.done(&good));
        for wanted in ["good-1", "good-2"] {
            let next = waiting.next(now).unwrap();
            assert_eq!(next.name(), wanted);
            waiting.done(&next);
        }
        let (again, mut pause) = (waiting.next_at().unwrap(), limits::EVENT_PAUSE);
        assert!(waiting.next(now).is_none() && again > now);
        let mut at = again;
        for failures in 2..20 {
            let bad = waiting.next(at).unwrap();
            assert_eq!((bad.name(), waiting.failed(bad.clone(), at)), ("bad-0", failures));
            let next = waiting.next_at().unwrap();
            assert!(next - at >= pause && next - at <= limits::EVENT_LONGEST_PAUSE);
            (pause, at) = (next - at, next);
        }
        let bad = waiting.next(at).unwrap();
        assert!(waiting.done(&bad));
        assert_eq!(waiting.next(at).unwrap().name(), "bad-1");
    }

    #[test]
    fn who_has_most_waiting_loses_first() {
        let now = Instant::now();
        let mut waiting = Waiting::default();
        for i in 0..limits::EVENTS_WAITING * 2 {
            waiting.put(write("loud", &i.to_string()), now);
        }
        assert_eq!(waiting.lost(), limits::EVENTS_WAITING as u64);
        waiting.put(write("quiet", "q"), now);
        assert_eq!((waiting.lost(), waiting.lost()), (1, 0));
        let mut written = Vec::new();
        while let Some(next) = waiting.next(now) {
            waiting.done(&next);
            written.push(next.name().to_owned());
        }
        assert_eq!(written.len(), limits::EVENTS_WAITING);
        assert!(written[..2].contains(&"q".to_owned()), "it has its turn at once");
        assert!(written.contains(&"0".to_owned()), "the oldest are kept");
    }

    #[test]
    fn a_namespace_of_which_nothing_waits_is_forgotten() {
        let now = Instant::now();
        let mut waiting = Waiting::default();
        for i in 0..limits::EVENTS_WAITING * 2 {
            waiting.put(write(&i.to_string(), "e"), now);
        }
        assert_eq!(
            (waiting.namespaces.len(), waiting.writes),
            (limits::EVENTS_WAITING, limits::EVENTS_WAITING)
        );
    }
}
