//! Places of a limited number, given back when what took them is dropped. For the tasks of one thread.

use std::cell::Cell;
use std::rc::Rc;

/// How many places are taken.
#[derive(Debug, Default)]
pub(super) struct Places(Rc<Cell<usize>>);

/// A place that is taken.
#[derive(Debug)]
pub(crate) struct Place(Rc<Cell<usize>>);

impl Places {
    /// Takes a place, if fewer than `limit` are taken.
    pub(super) fn take(&self, limit: usize) -> Option<Place> {
        (self.0.get() < limit).then(|| {
            self.0.set(self.0.get() + 1);
            Place(Rc::clone(&self.0))
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_places_than_the_limit_and_each_can_be_taken_again() {
        let places = Places::default();
        let (first, second) = (places.take(2), places.take(2));
        assert!(first.is_some() && second.is_some() && places.take(2).is_none());
        drop(first);
        assert!(places.take(2).is_some());
    }
}
