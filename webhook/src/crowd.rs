//! How many connections there may be and how much they may send and be sent at a time, in all and of one address; and who goes
//! where there is no place for one more.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, TryAcquireError};

use crate::limits;
use crate::pulse::Pulse;

/// Bytes that one permit of a room stands for.
const ROOM_UNIT: usize = 1 << 10;

/// The connections that there are.
#[derive(Debug, Clone)]
pub(crate) struct Crowd {
    addresses: Arc<Mutex<HashMap<IpAddr, Address>>>,
    /// Room for what is being read and written.
    room: Arc<Semaphore>,
}

/// What an address has.
#[derive(Debug)]
struct Address {
    connections: Vec<Arc<Pulse>>,
    /// Its share of the room.
    share: Arc<Semaphore>,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    crowd: Crowd,
    address: IpAddr,
    share: Arc<Semaphore>,
    pulse: Arc<Pulse>,
}

/// Room for some bytes, until it is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    of_share: OwnedSemaphorePermit,
    of_all: OwnedSemaphorePermit,
}

impl Crowd {
    pub(crate) fn new() -> Self {
        Self { addresses: Arc::default(), room: room(limits::ROOM_BYTES) }
    }

    /// A place for a connection of this address, if there is one or another connection gives way: of the same address an idle
    /// one; of the address with most, if that has more than this, its oldest idle one, or else the one that is busy longest.
    pub(crate) fn enter(&self, address: IpAddr) -> Option<Place> {
        // An IPv4 address counts as itself, also where it comes in as IPv6.
        let address = address.to_canonical();
        self.with(|addresses| {
            let new = || Address { connections: Vec::new(), share: room(limits::ROOM_BYTES_PER_ADDRESS) };
            let own = addresses.get(&address).map_or(0, |of| of.connections.len());
            if own >= limits::CONNECTIONS_PER_ADDRESS {
                addresses.get_mut(&address)?.dismiss(true)?;
            } else if addresses.values().map(|of| of.connections.len()).sum::<usize>() >= limits::CONNECTIONS
            {
                let largest = addresses.values_mut().max_by_key(|of| of.connections.len());
                largest.filter(|of| of.connections.len() > own + 1)?.dismiss(false)?;
            }
            let of = addresses.entry(address).or_insert_with(new);
            let pulse = Arc::new(Pulse::new());
            of.connections.push(Arc::clone(&pulse));
            Some(Place { crowd: self.clone(), address, share: Arc::clone(&of.share), pulse })
        })
    }

    fn with<T>(&self, change: impl FnOnce(&mut HashMap<IpAddr, Address>) -> T) -> T {
        // Each change is one step: what a panic left behind is whole.
        change(&mut self.addresses.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Address {
    /// Ends the connection that is first to go, if there is one: its place is free at once.
    fn dismiss(&mut self, only_idle: bool) -> Option<()> {
        let ranks = self.connections.iter().map(|pulse| pulse.rank()).enumerate();
        let (first, (busy, _)) = ranks.min_by_key(|(_, rank)| *rank)?;
        if busy && only_idle {
            return None;
        }
        self.connections.swap_remove(first).dismiss();
        Some(())
    }
}

fn room(bytes: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(bytes / ROOM_UNIT))
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(ROOM_UNIT)).unwrap_or(u32::MAX)
}

impl Place {
    pub(crate) const fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    /// Waits for room for so many bytes, not more than a review has: in the share of its address, then in all.
    pub(crate) async fn room(&self, bytes: usize) -> Result<Room, AcquireError> {
        let of_share = Arc::clone(&self.share).acquire_many_owned(units(bytes)).await?;
        let of_all = Arc::clone(&self.crowd.room).acquire_many_owned(units(bytes)).await?;
        Ok(Room { of_share, of_all })
    }

    /// Room for so many bytes, if there is any now: who waits for it would hold what was read meanwhile.
    pub(crate) fn room_now(&self, bytes: usize) -> Result<Room, TryAcquireError> {
        let of_share = Arc::clone(&self.share).try_acquire_many_owned(units(bytes))?;
        let of_all = Arc::clone(&self.crowd.room).try_acquire_many_owned(units(bytes))?;
        Ok(Room { of_share, of_all })
    }
}

impl Room {
    /// Gives back what so many bytes do not need; false if they need more.
    pub(crate) fn shrink(&mut self, bytes: usize) -> bool {
        [&mut self.of_share, &mut self.of_all].into_iter().all(|permit| {
            let rest = permit.num_permits().checked_sub(units(bytes) as usize);
            rest.map(|rest| drop(permit.split(rest))).is_some()
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.crowd.with(|addresses| {
            if let Some(of) = addresses.get_mut(&self.address) {
                of.connections.retain(|pulse| !Arc::ptr_eq(pulse, &self.pulse));
                if of.connections.is_empty() {
                    addresses.remove(&self.address);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn fill(crowd: &Crowd, last: u8) -> Vec<Place> {
        std::iter::from_fn(|| crowd.enter(of(last))).take(limits::CONNECTIONS + 1).collect()
    }

    fn count(crowd: &Crowd, last: u8) -> usize {
        crowd.with(|addresses| addresses.get(&of(last)).map_or(0, |of| of.connections.len()))
    }

    #[tokio::test]
    async fn one_address_has_a_share_and_all_have_a_limit() {
        let crowd = Crowd::new();
        let first = fill(&crowd, 1);
        assert_eq!(first.len(), limits::CONNECTIONS_PER_ADDRESS);
        let mapped = IpAddr::V6(std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped());
        assert!(crowd.enter(mapped).is_none());
        let second = fill(&crowd, 2);
        assert_eq!(first.len() + second.len(), limits::CONNECTIONS);
        let third = crowd.enter(of(3)).unwrap();
        assert_eq!([1, 2, 3].map(|last| count(&crowd, last)).iter().sum::<usize>(), limits::CONNECTIONS);
        drop((first, second, third));
        assert_eq!(crowd.with(|addresses| addresses.len()), 0);
    }

    #[tokio::test]
    async fn the_oldest_idle_one_of_the_address_with_most_gives_way() {
        let crowd = Crowd::new();
        let (most, mut other) = (fill(&crowd, 1), fill(&crowd, 2));
        other.truncate(other.len() - 2);
        let _full = [3, 4].map(|last| crowd.enter(of(last)).unwrap());
        for place in other.iter().chain([&most[5], &most[3]]) {
            place.pulse().greeted();
        }
        let _newcomers = [5, 6].map(|last| crowd.enter(of(last)).unwrap());
        for gone in [5, 3] {
            assert_eq!(most[gone].pulse().over().await, "others are let in instead");
        }
        assert_eq!([1, 2].map(|last| count(&crowd, last)), [limits::CONNECTIONS_PER_ADDRESS - 2; 2]);
    }

    #[tokio::test]
    async fn an_address_at_its_limit_gives_up_what_is_idle_alone() {
        let crowd = Crowd::new();
        let places = fill(&crowd, 1);
        places[7].pulse().greeted();
        let _more = crowd.enter(of(1)).unwrap();
        assert_eq!(places[7].pulse().over().await, "others are let in instead");
        assert!(crowd.enter(of(1)).is_none());
    }

    #[tokio::test]
    async fn one_address_cannot_take_all_the_room() {
        let crowd = Crowd::new();
        let [greedy, other] = [1, 2].map(|last| crowd.enter(of(last)).unwrap());
        let same = crowd.enter(of(1)).unwrap();
        let mut held = greedy.room(limits::ROOM_BYTES_PER_ADDRESS).await.unwrap();
        let mut waiting = Box::pin(same.room(1));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        assert!(same.room_now(1).is_err());
        let room = other.room(limits::ROOM_BYTES_PER_ADDRESS).await.unwrap();
        assert!(
            held.shrink(limits::ROOM_BYTES_PER_ADDRESS - 1)
                && !held.shrink(limits::ROOM_BYTES_PER_ADDRESS + 1)
        );
        assert!(futures_util::poll!(&mut waiting).is_pending(), "less than a unit is none");
        assert!(held.shrink(limits::ROOM_BYTES_PER_ADDRESS / 2));
        assert!(futures_util::poll!(&mut waiting).is_ready());
        drop(room);
    }
}
