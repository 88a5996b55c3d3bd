//! The broker's processes so far.

use std::collections::VecDeque;
use std::time::SystemTime;

use tokio::sync::watch;

use crate::limits;

/// The broker that there is, and those that there were.
#[derive(Debug, Clone)]
pub(in crate::node) struct Broker {
    /// Its process; `None`: there is none at present.
    pub(super) pid: Option<u32>,
    /// Since when there is one, or none.
    pub(super) since: SystemTime,
    /// Since when it counts as silent.
    pub(super) silent: Option<SystemTime>,
    pub(super) restarts: u64,
    /// How the last one ended that died.
    pub(super) last_end: Option<String>,
    /// When the last ones died, the latest last.
    pub(super) ends: VecDeque<SystemTime>,
}

/// Tells of it.
#[derive(Debug)]
pub(in crate::node) struct Teller(watch::Sender<Broker>);

impl Default for Teller {
    /// There is none yet.
    fn default() -> Self {
        let (pid, since, ends) = (None, SystemTime::now(), VecDeque::new());
        Self(watch::Sender::new(Broker { pid, since, silent: None, restarts: 0, last_end: None, ends }))
    }
}

impl Teller {
    /// Who wants to know.
    pub(in crate::node) fn seen(&self) -> watch::Receiver<Broker> {
        self.0.subscribe()
    }

    /// One was started.
    pub(in crate::node) fn started(&self, pid: Option<u32>) {
        self.0.send_modify(|broker| (broker.pid, broker.since) = (pid, SystemTime::now()));
    }

    /// It is silent, or heard again.
    pub(in crate::node) fn heard(&self, heard: bool) {
        self.0.send_modify(|broker| broker.silent = (!heard).then(SystemTime::now));
    }

    /// It died; so many have been started again, this one included.
    pub(in crate::node) fn died(&self, how: &str, restarts: u64) {
        self.0.send_modify(|broker| {
            let now = SystemTime::now();
            (broker.pid, broker.since, broker.restarts) = (None, now, restarts);
            broker.silent = None;
            broker.last_end = Some(how.to_owned());
            broker.ends.push_back(now);
            if broker.ends.len() > limits::BROKER_ENDS_TOLD {
                broker.ends.pop_front();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ends_are_remembered_and_no_more() {
        let teller = Teller::default();
        let told = teller.seen();
        for n in 1..100 {
            teller.started(Some(7));
            assert_eq!(told.borrow().pid, Some(7));
            teller.died(&format!("end {n}"), n);
        }
        let broker = told.borrow();
        assert_eq!((broker.pid, broker.restarts, broker.last_end.as_deref()), (None, 99, Some("end 99")));
        assert_eq!(broker.ends.len(), limits::BROKER_ENDS_TOLD);
    }
}
