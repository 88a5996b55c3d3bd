//! What the plugin counted, as it says in its log when it stops.

use std::fmt;

use anyhow::Context;
use serde::Serialize;

/// The line of the log that has the counters.
const LINE: &str = "the registry stops";

/// What was answered, item by item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Buffers published.
    pub published: u64,
    /// Leases given.
    pub granted: u64,
    /// Leases given back.
    pub released: u64,
    /// Items refused.
    pub refused: u64,
}

impl Counters {
    /// Finds them in the plugin's log.
    ///
    /// # Errors
    /// When they are not there.
    pub fn of_log(log: &str) -> anyhow::Result<Self> {
        let line = log.lines().rfind(|line| line.contains(LINE));
        let line = line.with_context(|| format!("the plugin's log has no line {LINE:?}:\n{log}"))?;
        let value = |key: &str| {
            let found = line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
            let number = found.and_then(|text| text.parse().ok());
            number.with_context(|| format!("no number {key} in the plugin's line {line:?}"))
        };
        Ok(Self {
            published: value("published")?,
            granted: value("granted")?,
            released: value("released")?,
            refused: value("refused")?,
        })
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { published, granted, released, refused } = self;
        write!(f, "{published} published, {granted} granted, {released} released, {refused} refused")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_with_counters_counts() {
        let log = "2026 INFO ready\n2026 INFO the registry stops buffers=1 leases=0 sessions=3 published=4 granted=50 \
                   released=49 refused=1\n2026 INFO stopped";
        let found = Counters { published: 4, granted: 50, released: 49, refused: 1 };
        assert_eq!(Counters::of_log(log).unwrap(), found);
        assert!(Counters::of_log("2026 INFO ready").is_err());
        assert!(Counters::of_log("the registry stops published=4 granted=x").is_err());
    }
}
