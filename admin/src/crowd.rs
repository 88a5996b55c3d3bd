//! How many connections there may be, in all and of one user. Whoever accepts has this; nobody else changes it.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits;

/// Who is exempt from the limit of all: nobody keeps root out.
const ROOT: u32 = 0;

/// The places for connections.
#[derive(Debug)]
pub(crate) struct Crowd {
    all: Arc<Semaphore>,
    users: HashMap<u32, Arc<Semaphore>>,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    _of_user: OwnedSemaphorePermit,
    _of_all: Option<OwnedSemaphorePermit>,
}

impl Crowd {
    pub(crate) fn new() -> Self {
        Self { all: Arc::new(Semaphore::new(limits::CONNECTIONS)), users: HashMap::new() }
    }

    /// A place for a connection of this user, if there is one.
    pub(crate) fn enter(&mut self, user: u32) -> Option<Seat> {
        self.users.retain(|_, seats| seats.available_permits() < limits::CONNECTIONS_OF_USER);
        let of_all = match user {
            ROOT => None,
            _ => Some(Arc::clone(&self.all).try_acquire_owned().ok()?),
        };
        let new = || Arc::new(Semaphore::new(limits::CONNECTIONS_OF_USER));
        let of_user = Arc::clone(self.users.entry(user).or_insert_with(new)).try_acquire_owned().ok()?;
        Some(Seat { _of_user: of_user, _of_all: of_all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_share_all_have_a_limit_and_root_is_not_kept_out() {
        let mut crowd = Crowd::new();
        let mut fill = |user: u32| std::iter::from_fn(|| crowd.enter(user)).collect::<Vec<_>>();
        let seats: Vec<_> = (1..100).map(&mut fill).collect();
        assert_eq!(seats[0].len(), limits::CONNECTIONS_OF_USER);
        assert_eq!(seats.iter().map(Vec::len).sum::<usize>(), limits::CONNECTIONS);
        let of_root = fill(ROOT);
        assert_eq!(of_root.len(), limits::CONNECTIONS_OF_USER);
        drop((seats, of_root));
        assert_eq!(fill(99).len(), limits::CONNECTIONS_OF_USER);
        let _one = crowd.enter(ROOT);
        assert_eq!(crowd.users.len(), 1, "who has none is forgotten");
    }
}
