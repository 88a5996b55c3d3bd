//! From "so long" to "until then".

use std::time::{Duration, Instant};

use crate::limits;

/// The moment after that time, counted from now. A time beyond [`limits::LONGEST`] counts as that.
pub(crate) fn after(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time.min(limits::LONGEST)).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_too_long() {
        assert!(after(Duration::MAX) > Instant::now() + limits::LONGEST / 2);
        assert!(after(Duration::ZERO) <= Instant::now());
    }
}
