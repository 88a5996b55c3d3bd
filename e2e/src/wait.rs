//! Waiting for a value with a deadline, never for a time to pass.

use std::time::{Duration, Instant};

/// How long to let others work between two looks at a value that tells nobody of its change.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// Looks until there is something, or until the time is over.
///
/// # Errors
/// What `look` answers, and a sentence with `what` when the time is over.
pub fn until<T>(
    time: Duration,
    what: &str,
    mut look: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + time;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            anyhow::bail!("waited {time:?} in vain until {what}");
        }
        std::thread::park_timeout(BETWEEN_LOOKS);
    }
}
