//! Connections that are turned away: told of now and then, because whoever may connect may do it again and again.

use std::time::Instant;

use crate::limits;

/// How many were since that was told, and when it was.
#[derive(Debug, Default)]
pub(crate) struct TurnedAway {
    since_told: u64,
    told: Option<Instant>,
}

impl TurnedAway {
    /// One more; gives how many there are to be told of now, if it is time to.
    pub(crate) fn one_more(&mut self, now: Instant) -> Option<u64> {
        self.since_told += 1;
        let may =
            self.told.is_none_or(|told| now.saturating_duration_since(told) >= limits::TURNED_AWAY_TOLD);
        may.then(|| {
            self.told = Some(now);
            std::mem::take(&mut self.since_told)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_at_once_and_those_after_it_together() {
        let (mut turned_away, begin) = (TurnedAway::default(), Instant::now());
        assert_eq!(turned_away.one_more(begin), Some(1));
        assert!((0..10_000).all(|_| turned_away.one_more(begin).is_none()));
        let later = begin + limits::TURNED_AWAY_TOLD;
        assert_eq!((turned_away.one_more(later), turned_away.one_more(later)), (Some(10_001), None));
    }
}
