//! When something is to be done, or tried again.

use std::time::{Duration, Instant};

/// What time it is on the clock of what waits.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Waits for that; for ever where it is nothing.
pub(crate) async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// A pause that was doubled so often, up to the longest.
pub(crate) fn doubled(first: Duration, times: u32, longest: Duration) -> Duration {
    first.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_doubles_up_to_the_longest_however_often() {
        let longest = Duration::from_millis(350);
        let pauses =
            [0, 1, 2, 31, 32, u32::MAX].map(|times| doubled(Duration::from_millis(100), times, longest));
        assert_eq!(pauses.map(|pause| pause.as_millis()), [100, 200, 350, 350, 350, 350]);
    }
}
