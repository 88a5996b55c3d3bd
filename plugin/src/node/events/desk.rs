//! Which notices become events of their own, which are counted in one that is there, and which are left out. No clock and no
//! network: notices and times in, writes out.
//!
//! Each pod may have so many events at once and one more after each pause, and so may the node. What comes again, in the same
//! words, is counted, and the count is written now and then. What comes in other words and finds no room is counted in the
//! pod's event of the same reason, where there is one; else it is left out, and how many were is told when there is room again.

use std::collections::BTreeMap;
use std::time::Instant;

use gpu_handoff_kubelet::api::events::{About, Write};

use super::notice::Notice;
use crate::allowance::Allowance;
use crate::limits;

mod pod;

use pod::{Due, OfPod};

/// What was told of which pod.
#[derive(Debug)]
pub(super) struct Desk {
    /// By their UIDs.
    pods: BTreeMap<String, OfPod>,
    node: Allowance,
    last_number: u64,
    /// When there is something to be written, or forgotten: not later than then. Looking at all pods takes time.
    due: Option<Instant>,
}

impl Desk {
    pub(super) fn new(now: Instant) -> Self {
        let node = Allowance::new(limits::EVENT_BURST, limits::EVENT_EACH, now);
        Self { pods: BTreeMap::new(), node, last_number: 0, due: None }
    }

    /// Takes a notice; gives the event that is to be made of it, if one is.
    pub(super) fn take(&mut self, notice: Notice, now: Instant) -> Option<Write> {
        let uid = notice.about.uid.clone();
        let write = self.count(notice, now);
        let due = self.pods.get(&uid).map(|pod| pod.next_due(&self.node, now));
        self.due = self.due.into_iter().chain(due).min();
        write
    }

    fn count(&mut self, notice: Notice, now: Instant) -> Option<Write> {
        self.make_room(&notice.about);
        let new = || OfPod::new(notice.about.clone(), now);
        let pod = self.pods.entry(notice.about.uid.clone()).or_insert_with(new);
        if pod.counts_as_one_before(&notice, now) {
            return None;
        }
        if pod.may_have_one_more(&mut self.node, now) {
            self.last_number += 1;
            return Some(pod.begin(notice, self.last_number, now));
        }
        pod.leave_out(&notice, now);
        None
    }

    /// What is to be written by now of what was counted and left out: what has waited for longest first, so that the node's
    /// share comes to every pod.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Write> {
        let rest = |pod: &OfPod| now.saturating_duration_since(pod.last) >= limits::EVENT_MEMORY;
        self.pods.retain(|_, pod| !(rest(pod) && pod.has_told_all()));
        let mut turns: Vec<(Instant, Due, String)> = Vec::new();
        for (uid, pod) in &self.pods {
            turns.extend(pod.due(now).map(|(since, due)| (since, due, uid.clone())));
        }
        turns.sort();
        let mut writes = Vec::new();
        for (_, due, uid) in turns {
            let Some(pod) = self.pods.get_mut(&uid) else { continue };
            if !self.node.take(now) {
                break;
            }
            writes.extend(match due {
                Due::Count(name) => pod.again(&name, now),
                Due::LeftOut => {
                    self.last_number += 1;
                    pod.tell_left_out(self.last_number, now)
                }
            });
        }
        self.due = self.pods.values().map(|pod| pod.next_due(&self.node, now)).min();
        writes
    }

    /// When there is something to be written, or forgotten, at the earliest.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        self.due.map(|due| due.max(now))
    }

    /// The event of this name is not there any more: Kubernetes keeps them for an hour.
    pub(super) fn forget(&mut self, name: &str) {
        for pod in self.pods.values_mut() {
            pod.forget(name);
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gpu_handoff_kubelet::api::events::{Kind, NewEvent};

    use super::pod::LEFT_OUT;
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
    fn what_has_waited_for_longest_is_written_first_whoever_it_is_of() {
        let begin = Instant::now();
        let mut desk = Desk::new(begin);
        // More pods than the node has room for, all of which go on; the last by name began first.
        let pods: Vec<String> = (0..100).map(|i| format!("p{i:03}")).collect();
        let mut told = BTreeMap::<String, u32>::new();
        let mut now = begin;
        while now < begin + Duration::from_secs(600) {
            for pod in pods.iter().rev() {
                for reason in ["A", "B", "C"] {
                    desk.take(notice(pod, reason, "n"), now);
                }
            }
            for write in desk.due(now) {
                *told.entry(write.about().name.clone()).or_default() += 1;
            }
            now += Duration::from_secs(1);
        }
        let (least, most) = (told.values().min(), told.values().max());
        assert_eq!(told.len(), pods.len(), "{told:?}");
        assert!(least.unwrap() * 3 >= *most.unwrap(), "{told:?}");
    }
}
