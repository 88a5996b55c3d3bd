//! Times as the API server writes them.

use std::time::SystemTime;

use k8s_openapi::jiff::Timestamp;

/// A time of day, to the second, as in every object: `2026-11-30T14:42:41Z`. Nothing, where no calendar has it.
#[must_use]
pub fn written(at: SystemTime) -> String {
    Timestamp::try_from(at).map(|at| at.strftime("%FT%TZ").to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn to_the_second_and_in_utc() {
        assert_eq!(written(UNIX_EPOCH + Duration::from_millis(1_796_049_761_999)), "2026-11-30T14:42:41Z");
        assert_eq!(written(UNIX_EPOCH + Duration::from_secs(u64::MAX >> 2)), "");
    }
}
