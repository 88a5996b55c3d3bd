//! From "so long" to "until then".

use std::time::{Duration, Instant};

use crate::limits;

/// The moment after that time, counted from now. A time beyond [`limits::LONGEST`] counts as that.
pub(crate) fn after(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time.min(limits::LONGEST)).unwrap_or(now)
}

/// Looks until there is something, with a pause between two looks; `None` at the deadline, after a last look.
pub(crate) fn look_until<T, E>(
    deadline: Instant,
    pause: Duration,
    mut look: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    loop {
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        let now = Instant::now();
        if now >= deadline {
            return Ok(None);
        }
        std::thread::sleep(pause.min(deadline - now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_too_long() {
        assert!(after(Duration::MAX) > Instant::now() + limits::LONGEST / 2);
        assert!(after(Duration::ZERO) <= Instant::now());
    }

    #[test]
    fn the_last_look_comes_at_the_deadline() {
        let pause = Duration::from_millis(1);
        let mut looks = 0;
        let third = look_until(after(Duration::MAX), pause, || {
            looks += 1;
            Ok::<_, ()>((looks == 3).then_some(looks))
        });
        assert_eq!(third, Ok(Some(3)));
        let (deadline, mut last) = (Instant::now() + 2 * pause, Instant::now());
        let nothing = look_until(deadline, pause, || {
            last = Instant::now();
            Ok::<Option<()>, ()>(None)
        });
        assert_eq!((nothing, last >= deadline), (Ok(None), true));
        assert_eq!(look_until(deadline, pause, || Err::<Option<()>, _>("no")), Err("no"));
    }
}
