//! What is to be done to words later, by time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Weak;
use std::time::Instant;

use super::Task;
use crate::timeline::line::Line;

/// When something is due, and a number that tells it from others of that moment.
type Key = (Instant, u64);

/// Of a timeline, one task of each kind: of looks, one for each round; of what rests, one for each buffer that has words.
#[derive(Debug, Default)]
pub(super) struct Later {
    by_time: BTreeMap<Key, Task>,
    /// The looks among them, by timeline and round.
    looks: HashMap<(usize, usize), Key>,
    last: u64,
}

/// Of which timeline and round a look is. The task keeps the timeline's place from being used for another.
fn look(task: &Task) -> Option<(usize, usize)> {
    let Task::Look(line, _, round) = task else { return None };
    Some((Weak::<Line>::as_ptr(line).addr(), *round))
}

impl Later {
    /// Has something done then. Looks at words of one timeline in one round are one.
    pub(super) fn push(&mut self, at: Instant, task: Task) {
        let look = look(&task);
        if let Some(key) = look.and_then(|look| self.looks.get(&look))
            && let (Some(Task::Look(_, known, _)), Task::Look(_, words, _)) =
                (self.by_time.get_mut(key), &task)
        {
            known.extend(words);
            known.sort_unstable();
            known.dedup();
            return;
        }
        self.last += 1;
        let key = (at, self.last);
        if let Some(look) = look {
            self.looks.insert(look, key);
        }
        self.by_time.insert(key, task);
    }

    /// What is due first, if it is.
    pub(super) fn due(&mut self, now: Instant) -> Option<Task> {
        let first = self.by_time.first_entry().filter(|first| first.key().0 <= now)?;
        let task = first.remove();
        if let Some(look) = look(&task) {
            self.looks.remove(&look);
        }
        Some(task)
    }

    /// When the first is due.
    pub(super) fn first(&self) -> Option<Instant> {
        Some(self.by_time.first_key_value()?.0.0)
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> Vec<(Instant, &Task)> {
        self.by_time.iter().map(|((at, _), task)| (*at, task)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn looks_at_words_of_one_timeline_are_one_look() {
        let (mut later, now) = (Later::default(), Instant::now());
        for (words, round) in [(vec![3, 1], 0), (vec![2, 3], 0), (vec![1], 1)] {
            later.push(now, Task::Look(Weak::new(), words, round));
        }
        assert_eq!(later.all().len(), 2);
        assert!(matches!(later.due(now), Some(Task::Look(_, words, 0)) if words == [1, 2, 3]));
        // Those that are being looked at take nothing in any more.
        later.push(now, Task::Look(Weak::new(), vec![4], 0));
        assert_eq!(later.all().len(), 2);
    }

    #[test]
    fn what_is_due_first_comes_first_and_the_rest_costs_nothing() {
        let (mut later, now) = (Later::default(), Instant::now());
        // Each look at all of them for each of them would be 10^10 steps.
        const COUNT: u32 = 100_000;
        for n in (0..COUNT).rev() {
            later.push(now + Duration::from_micros(n.into()), Task::Open(Weak::new(), n, 1));
        }
        assert_eq!(later.first(), Some(now));
        for n in 0..COUNT {
            let at = now + Duration::from_micros(n.into());
            assert!(matches!(later.due(at), Some(Task::Open(_, word, 1)) if word == n));
            assert!(later.due(at).is_none());
        }
        assert_eq!(later.first(), None);
    }
}
