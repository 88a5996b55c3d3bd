//! The buffers that this process leases or still has mapped. Plain data: no driver, no socket, no lock.
//!
//! A mapping outlives its leases, so that the next lease of the same buffer costs no driver call. It goes when the
//! node says that the buffer ends, when too much is cached, or with the client. Everything that has to be unmapped is
//! handed to the caller, who drops it after unlocking: unmapping takes the driver a while.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use gpu_handoff_protocol::message::{EndReason, Event};
use gpu_handoff_protocol::{BufferId, LeaseId};

use crate::limits;

/// How far a buffer has come; shared by its leases, and read without a lock.
#[derive(Debug, Default)]
pub(crate) struct Phase {
    /// Until when its holders are asked to release it, once it is being retired.
    pub(crate) retiring: OnceLock<Instant>,
    /// Why it ended.
    pub(crate) ended: OnceLock<EndReason>,
    /// The connection ended, and this process's leases with it.
    pub(crate) lost: OnceLock<()>,
    /// Those leases alone that another broker did not restore; mostly there are none, and so no lock.
    lost_leases: OnceLock<Mutex<Vec<LeaseId>>>,
}

impl Phase {
    /// Is this lease lost?
    pub(crate) fn has_lost(&self, lease: LeaseId) -> bool {
        let alone = || self.lost_leases.get()?.lock().ok().map(|lost| lost.contains(&lease));
        self.lost.get().is_some() || alone().unwrap_or(false)
    }

    fn lose(&self, lease: LeaseId) {
        if let Ok(mut lost) = self.lost_leases.get_or_init(Mutex::default).lock() {
            lost.push(lease);
        }
    }

    fn is_over(&self) -> bool {
        self.retiring.get().is_some() || self.ended.get().is_some() || self.lost.get().is_some()
    }
}

#[derive(Debug)]
struct Cached<P, M> {
    place: P,
    mapping: Arc<M>,
    bytes: u64,
}

#[derive(Debug)]
struct Entry<P, M> {
    phase: Arc<Phase>,
    leases: usize,
    mappings: Vec<Cached<P, M>>,
    /// When its last lease ended, as a count of such ends.
    last_use: u64,
    /// The broker knows nothing of the mappings, and will not tell when the buffer ends.
    untold: bool,
}

impl<P, M> Default for Entry<P, M> {
    fn default() -> Self {
        Self { phase: Arc::default(), leases: 0, mappings: Vec::new(), last_use: 0, untold: false }
    }
}

impl<P, M> Entry<P, M> {
    /// Mappings, and their sum in bytes.
    fn size(&self) -> (usize, u64) {
        let bytes = self.mappings.iter().fold(0_u64, |sum, cached| sum.saturating_add(cached.bytes));
        (self.mappings.len(), bytes)
    }

    /// Without leases, is there a reason to keep it?
    fn is_done(&self) -> bool {
        self.mappings.is_empty() || self.untold || self.phase.is_over()
    }
}

fn more(a: (usize, u64), b: (usize, u64)) -> (usize, u64) {
    (a.0 + b.0, a.1.saturating_add(b.1))
}

fn less(a: (usize, u64), b: (usize, u64)) -> (usize, u64) {
    (a.0.saturating_sub(b.0), a.1.saturating_sub(b.1))
}

/// Buffers by identity, each with its mappings by place: a CUDA context.
#[derive(Debug)]
pub(crate) struct Cache<P, M> {
    entries: HashMap<BufferId, Entry<P, M>>,
    uses: u64,
    /// Mappings that nobody leases, and their sum in bytes.
    idle: (usize, u64),
    /// Cleared when the connection ends: nothing is kept from then on.
    open: bool,
}

/// What is to be dropped after unlocking.
pub(crate) type Unmap<M> = Vec<Arc<M>>;

impl<P: PartialEq, M> Cache<P, M> {
    pub(crate) fn new() -> Self {
        Self { entries: HashMap::new(), uses: 0, idle: (0, 0), open: true }
    }

    /// A lease has come.
    pub(crate) fn granted(&mut self, id: BufferId) {
        let entry = self.entries.entry(id).or_default();
        if entry.leases == 0 {
            self.idle = less(self.idle, entry.size());
        }
        entry.leases += 1;
        entry.untold = false;
    }

    /// The buffer's phase and, if there is one, its mapping at this place.
    pub(crate) fn find(&mut self, id: BufferId, place: &P) -> (Arc<Phase>, Option<Arc<M>>) {
        let entry = self.entries.entry(id).or_default();
        let cached = entry.mappings.iter().find(|cached| cached.place == *place);
        (Arc::clone(&entry.phase), cached.map(|cached| Arc::clone(&cached.mapping)))
    }

    /// Keeps a new mapping of a leased buffer. If another thread was faster, its mapping is used and this one dropped.
    pub(crate) fn keep(&mut self, id: BufferId, place: P, mapping: M, bytes: u64) -> (Arc<M>, Unmap<M>) {
        let new = Arc::new(mapping);
        let Some(entry) = self.entries.get_mut(&id).filter(|_| self.open) else { return (new, Vec::new()) };
        if let Some(cached) = entry.mappings.iter().find(|cached| cached.place == place) {
            return (Arc::clone(&cached.mapping), vec![new]);
        }
        entry.mappings.push(Cached { place, mapping: Arc::clone(&new), bytes });
        (new, self.trim())
    }

    /// A lease has ended.
    pub(crate) fn released(&mut self, id: BufferId) -> Unmap<M> {
        match self.ungranted(id) {
            Some(true) => self.forget(id),
            Some(false) => self.trim(),
            None => Vec::new(),
        }
    }

    /// A lease has ended, or was never taken up. `None`: others are left; `Some(true)`: nothing of the buffer is worth
    /// keeping, and [`sweep`](Self::sweep) will take it out.
    pub(crate) fn ungranted(&mut self, id: BufferId) -> Option<bool> {
        self.uses += 1;
        let entry = self.entries.get_mut(&id)?;
        entry.leases = entry.leases.saturating_sub(1);
        entry.last_use = self.uses;
        if entry.leases > 0 {
            return None;
        }
        self.idle = more(self.idle, entry.size());
        Some(entry.is_done())
    }

    /// Something happened to a buffer. True: [`sweep`](Self::sweep) has something to do.
    pub(crate) fn notice(&mut self, event: &Event, now: Instant) -> bool {
        let (Event::Retiring { id, .. } | Event::Orphaned { id, .. } | Event::Gone { id, .. }) = event else {
            return false;
        };
        let Some(entry) = self.entries.get(id) else { return false };
        match event {
            Event::Retiring { deadline, .. } => {
                entry.phase.retiring.get_or_init(|| now.checked_add(*deadline).unwrap_or(now));
            }
            Event::Orphaned { reason, .. } | Event::Gone { reason, .. } => {
                entry.phase.ended.get_or_init(|| *reason);
            }
            _ => {}
        }
        entry.leases == 0
    }

    /// Takes out what ended and nobody leases.
    pub(crate) fn sweep(&mut self) -> Unmap<M> {
        self.take_out(|entry| entry.leases == 0 && entry.is_done())
    }

    /// The connection has ended: marks every lease as lost and keeps nothing any more.
    pub(crate) fn lost(&mut self) {
        self.open = false;
        for entry in self.entries.values() {
            entry.phase.lost.get_or_init(|| ());
        }
    }

    /// Another broker did not restore this lease.
    pub(crate) fn lease_lost(&mut self, id: BufferId, lease: LeaseId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.phase.lose(lease);
            // Nor does it know of the mapping, until it grants another lease.
            entry.untold = true;
        }
    }

    /// Another broker is there, which knows of leased buffers only: what is idle is for [`sweep`](Self::sweep), as it
    /// would otherwise keep the memory of buffers alive whose end nobody tells.
    pub(crate) fn rejoined(&mut self) {
        for entry in self.entries.values_mut().filter(|entry| entry.leases == 0) {
            entry.untold = true;
        }
    }

    fn forget(&mut self, id: BufferId) -> Unmap<M> {
        let Some(entry) = self.entries.remove(&id) else { return Vec::new() };
        if entry.leases == 0 {
            self.idle = less(self.idle, entry.size());
        }
        entry.mappings.into_iter().map(|cached| cached.mapping).collect()
    }

    fn take_out(&mut self, which: impl Fn(&Entry<P, M>) -> bool) -> Unmap<M> {
        let ids: Vec<BufferId> = self.entries.iter().filter(|(_, e)| which(e)).map(|(id, _)| *id).collect();
        ids.into_iter().flat_map(|id| self.forget(id)).collect()
    }

    /// Takes out the longest unused mappings while too much is cached.
    fn trim(&mut self) -> Unmap<M> {
        let mut out = Vec::new();
        while self.idle.0 > limits::CACHED_MAPPINGS || self.idle.1 > limits::CACHED_BYTES {
            let idle = self.entries.iter().filter(|(_, entry)| entry.leases == 0);
            let Some((&oldest, _)) = idle.min_by_key(|(_, entry)| entry.last_use) else { break };
            out.append(&mut self.forget(oldest));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_handoff_protocol::BootTag;
    use std::time::Duration;

    type Table = Cache<u32, &'static str>;

    fn id(random: u128) -> BufferId {
        BufferId { boot: BootTag(1), random }
    }

    fn retiring(id: BufferId) -> Event {
        Event::Retiring { id, deadline: Duration::from_secs(1) }
    }

    fn lease(table: &mut Table, id: BufferId, bytes: u64) {
        table.granted(id);
        table.keep(id, 0, "mapping", bytes);
    }

    #[test]
    fn a_mapping_outlives_its_leases_and_serves_the_next() {
        let mut table = Table::new();
        lease(&mut table, id(1), 10);
        assert!(table.released(id(1)).is_empty());
        table.granted(id(1));
        assert!(table.find(id(1), &0).1.is_some());
        assert!(table.find(id(1), &7).1.is_none(), "another context has its own mapping");
    }

    #[test]
    fn an_ended_buffer_goes_at_once_if_idle_and_with_its_last_lease_if_not() {
        let mut table = Table::new();
        lease(&mut table, id(1), 10);
        lease(&mut table, id(2), 10);
        table.released(id(1));
        assert!(table.notice(&retiring(id(1)), Instant::now()));
        assert!(!table.notice(&retiring(id(2)), Instant::now()));
        assert_eq!(table.sweep().len(), 1);
        let (phase, _) = table.find(id(2), &0);
        assert!(phase.retiring.get().is_some());
        assert_eq!(table.released(id(2)).len(), 1);
        assert!(!table.notice(&retiring(id(2)), Instant::now()), "nothing is known of it any more");
    }

    #[test]
    fn of_two_threads_that_map_at_once_the_second_uses_the_firsts_mapping() {
        let mut table = Table::new();
        table.granted(id(1));
        table.granted(id(1));
        let (first, _) = table.keep(id(1), 0, "first", 1);
        let (second, dropped) = table.keep(id(1), 0, "second", 1);
        assert_eq!((*second, dropped.len()), (*first, 1));
    }

    #[test]
    fn the_longest_unused_goes_first_when_too_much_is_cached() {
        let mut table = Table::new();
        let half = limits::CACHED_BYTES / 2;
        for n in 1..=3 {
            lease(&mut table, id(n), half + 1);
        }
        assert!(table.released(id(2)).is_empty(), "leased memory does not count");
        assert_eq!(table.released(id(1)).len(), 1);
        assert!(table.find(id(2), &0).1.is_none());
        assert!(table.find(id(1), &0).1.is_some());
    }

    #[test]
    fn the_count_of_cached_mappings_is_bounded() {
        let mut table = Table::new();
        let mut dropped = 0;
        for n in 0..limits::CACHED_MAPPINGS as u128 + 5 {
            lease(&mut table, id(n), 1);
            dropped += table.released(id(n)).len();
        }
        assert_eq!(dropped, 5);
    }

    #[test]
    fn after_the_end_of_the_connection_nothing_is_kept() {
        let mut table = Table::new();
        lease(&mut table, id(1), 1);
        lease(&mut table, id(2), 1);
        table.released(id(1));
        table.lost();
        assert_eq!(table.sweep().len(), 1);
        assert_eq!(table.released(id(2)).len(), 1);
    }

    #[test]
    fn the_mapping_of_a_lost_lease_goes_with_it() {
        let mut table = Table::new();
        lease(&mut table, id(1), 1);
        lease(&mut table, id(2), 1);
        table.lease_lost(id(1), LeaseId(1));
        table.lease_lost(id(2), LeaseId(2));
        assert_eq!(table.released(id(1)).len(), 1, "nobody would tell of the buffer's end");
        table.granted(id(2));
        table.released(id(2));
        assert!(table.released(id(2)).is_empty(), "another lease was granted: that is told");
    }
}
