//! Staying awake. Whoever is about to be needed polls for a moment instead of sleeping: waking a thread can take longer
//! than all that it then has to do. Not for long, not again before what it waited for has come, and few at a time.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::limits;

/// How many may be awake at a time on this machine, unless somebody says otherwise: a part of its processors, and nobody
/// where there are few.
#[must_use]
pub fn affordable() -> usize {
    let found = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if found < limits::AWAKE_PROCESSORS { 0 } else { found / limits::AWAKE_SHARE }
}

/// Between two looks: what is awaited may have to be done by this very processor.
pub(crate) fn give_way() {
    std::thread::yield_now();
}

/// Room for those that are awake. Clones are the same room.
#[derive(Debug, Clone)]
pub struct Room {
    awake: Arc<AtomicUsize>,
    most: usize,
}

impl Room {
    /// Room for so many.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { awake: Arc::default(), most }
    }

    fn enter(&self) -> Option<Place> {
        let one_more = |awake| (awake < self.most).then_some(awake + 1);
        self.awake.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Place(Arc::clone(&self.awake)))
    }
}

/// One of those that are awake.
#[derive(Debug)]
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether somebody sleeps when there is nothing to do.
#[derive(Debug)]
pub(crate) struct Awake {
    room: Room,
    until: RefCell<Option<(Instant, Place)>>,
    /// It has been awake for this already.
    spent: Cell<bool>,
}

impl Awake {
    /// It sleeps.
    pub(crate) fn new(room: Room) -> Self {
        Self { room, until: RefCell::default(), spent: Cell::new(false) }
    }

    /// Stays awake from now on, but not for long; not at all where there is no room, or where it did before and what it
    /// waited for has not come since.
    pub(crate) fn begin(&self) {
        if !self.spent.replace(true) {
            let until = Instant::now() + limits::AWAKE_TIME;
            self.until.replace(self.room.enter().map(|place| (until, place)));
        }
    }

    /// What it waited for has come: it may sleep again.
    pub(crate) fn end(&self) {
        self.spent.set(false);
        self.until.take();
    }

    /// Whether it stays awake at this moment.
    pub(crate) fn is_on(&self) -> bool {
        let on = self.until.borrow().as_ref().is_some_and(|(until, _)| Instant::now() < *until);
        if !on {
            self.until.take();
        }
        on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_stays_awake_for_long_nor_twice_for_the_same() {
        let (awake, begin) = (Awake::new(Room::new(1)), Instant::now());
        assert!(!awake.is_on());
        awake.begin();
        while awake.is_on() {
            assert!(begin.elapsed() < limits::AWAKE_TIME * 1000, "it never sleeps");
        }
        assert!(begin.elapsed() >= limits::AWAKE_TIME);
        awake.begin();
        assert!(!awake.is_on(), "what it waited for has not come");
        awake.end();
        awake.begin();
        assert!(awake.is_on());
        awake.end();
        assert!(!awake.is_on());
    }

    #[test]
    fn few_are_awake_at_a_time() {
        let room = Room::new(2);
        let all = [(); 3].map(|()| Awake::new(room.clone()));
        all.iter().for_each(Awake::begin);
        assert_eq!(all.each_ref().map(|awake| awake.until.borrow().is_some()), [true, true, false]);
        let [first, _, last] = all;
        drop(first);
        last.end();
        last.begin();
        assert!(last.until.borrow().is_some());
        let nobody = Awake::new(Room::new(0));
        nobody.begin();
        assert!(!nobody.is_on());
    }
}
