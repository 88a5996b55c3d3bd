//! Which words of a timeline are in use, and which value comes next. Plain data.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use gpu_handoff_protocol::limits::ORDER_VALUES;
use gpu_handoff_protocol::{Code, Refusal};

/// The words of a timeline that this process gives out, and its values.
///
/// Values rise over the whole timeline, so that whatever a word was used for before lies below what it is used for next,
/// and a stream that comes late to a wait of an earlier use passes it.
#[derive(Debug)]
pub(crate) struct Allotment(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Free ranges: first word to the one after the last.
    free: BTreeMap<u32, u32>,
    value: u64,
    words: u32,
}

impl Allotment {
    pub(crate) fn new(words: u32) -> Self {
        Self(Mutex::new(State { free: BTreeMap::from([(0, words)]), value: 0, words }))
    }

    /// So many words in a row.
    pub(crate) fn take(&self, count: u32) -> Result<Range<u32>, Refusal> {
        let mut state = self.lock();
        let found = state.free.iter().find(|(from, to)| *to - *from >= count).map(|(from, to)| (*from, *to));
        let Some((from, to)) = found else {
            let found = format!("{count} more of {} in a row", state.words);
            let refusal =
                Refusal::new(Code::TooLarge).compared_with("words of the timeline", "free ones", found);
            return Err(refusal.with_remedy("make the timeline larger, or retire what is ordered by it"));
        };
        state.free.remove(&from);
        if from + count < to {
            state.free.insert(from + count, to);
        }
        Ok(from..from + count)
    }

    /// Just these words, where they are free. None at all are always free.
    pub(crate) fn take_at(&self, words: Range<u32>) -> Result<(), Refusal> {
        if words.start > words.end {
            let refusal = Refusal::new(Code::TooLarge);
            let refusal = refusal.compared_with(
                "words",
                "a range that does not end before it begins",
                format!("{words:?}"),
            );
            return Err(refusal.with_remedy("name the first word, and the one after the last"));
        }
        if words.is_empty() {
            return Ok(());
        }
        let mut state = self.lock();
        let around = state.free.range(..=words.start).next_back().map(|(from, to)| (*from, *to));
        match around {
            Some((from, to)) if words.end <= to => {
                state.free.remove(&from);
                if from < words.start {
                    state.free.insert(from, words.start);
                }
                if words.end < to {
                    state.free.insert(words.end, to);
                }
                Ok(())
            }
            _ => Err(Refusal::new(Code::TooLarge).compared_with(
                "words of the timeline",
                format!("{words:?} free"),
                "some in use",
            )),
        }
    }

    pub(crate) fn give_back(&self, words: Range<u32>) {
        let (mut from, mut to) = (words.start, words.end);
        let mut state = self.lock();
        if let Some((before, end)) = state.free.range(..from).next_back().map(|(a, b)| (*a, *b))
            && end == from
        {
            state.free.remove(&before);
            from = before;
        }
        if let Some(end) = state.free.remove(&to) {
            to = end;
        }
        state.free.insert(from, to);
    }

    /// The next value, above all before.
    pub(crate) fn next_value(&self) -> Result<u64, Refusal> {
        let mut state = self.lock();
        if state.value + 1 >= ORDER_VALUES {
            return Err(Refusal::new(Code::TooLarge).compared_with(
                "values of the timeline",
                "below 2^62",
                "all used",
            ));
        }
        state.value += 1;
        Ok(state.value)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // Nothing in here panics half way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_given_out_once_and_join_again_when_they_are_free() {
        let words = Allotment::new(10);
        let (a, b, c) = (words.take(3).unwrap(), words.take(4).unwrap(), words.take(3).unwrap());
        assert_eq!((a.clone(), b.clone(), c.clone()), (0..3, 3..7, 7..10));
        assert_eq!(words.take(1).unwrap_err().code(), Code::TooLarge);
        words.give_back(a);
        words.give_back(c);
        assert!(words.take(4).is_err(), "not in a row");
        words.give_back(b);
        assert_eq!(words.take(10).unwrap(), 0..10);
    }

    #[test]
    fn chosen_words_are_taken_only_where_they_are_free() {
        let words = Allotment::new(10);
        words.take_at(4..6).unwrap();
        assert!(words.take_at(5..7).is_err());
        assert!(words.take_at(9..11).is_err());
        assert_eq!((words.take(4).unwrap(), words.take(4).unwrap()), (0..4, 6..10));
        words.give_back(4..6);
        words.take_at(4..6).unwrap();
    }

    #[test]
    fn a_range_that_is_turned_round_is_refused_and_an_empty_one_takes_nothing() {
        let words = Allotment::new(10);
        let (first, last) = (3, 5);
        assert_eq!(words.take_at(last..first).unwrap_err().code(), Code::TooLarge);
        words.take_at(3..3).unwrap();
        words.take_at(20..20).unwrap();
        assert_eq!(words.take(10).unwrap(), 0..10, "each word once");
        assert!(words.take(1).is_err());
    }

    #[test]
    fn values_rise_and_end_in_an_error_before_the_poison() {
        let words = Allotment::new(1);
        assert_eq!((words.next_value().unwrap(), words.next_value().unwrap()), (1, 2));
        words.lock().value = ORDER_VALUES - 2;
        assert_eq!(words.next_value().unwrap(), ORDER_VALUES - 1);
        assert_eq!(words.next_value().unwrap_err().code(), Code::TooLarge);
    }
}
