//! How many connections there may be and how much they may send at a time, in all and of one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

use crate::limits;

/// Bytes that one permit of a room stands for.
const ROOM_UNIT: usize = 1 << 10;

/// The connections that there are.
#[derive(Debug, Clone)]
pub(crate) struct Crowd {
    addresses: Arc<Mutex<HashMap<IpAddr, Address>>>,
    /// Room for what is being read.
    room: Arc<Semaphore>,
}

/// What an address has.
#[derive(Debug)]
struct Address {
    connections: usize,
    /// Its share of the room.
    share: Arc<Semaphore>,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    crowd: Crowd,
    address: IpAddr,
    share: Arc<Semaphore>,
}

/// Room for some bytes, until it is dropped.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    _of_share: SemaphorePermit<'a>,
    _of_all: SemaphorePermit<'a>,
}

impl Crowd {
    pub(crate) fn new() -> Self {
        Self { addresses: Arc::default(), room: room(limits::READING_BYTES) }
    }

    /// A place for a connection of this address, if there is one.
    pub(crate) fn enter(&self, address: IpAddr) -> Option<Place> {
        // An IPv4 address counts as itself, also where it comes in as IPv6.
        let address = address.to_canonical();
        self.with(|addresses| {
            if addresses.values().map(|of| of.connections).sum::<usize>() >= limits::CONNECTIONS {
                return None;
            }
            let new = || Address { connections: 0, share: room(limits::READING_BYTES_PER_ADDRESS) };
            let of = addresses.entry(address).or_insert_with(new);
            if of.connections >= limits::CONNECTIONS_PER_ADDRESS {
                return None;
            }
            of.connections += 1;
            Some(Place { crowd: self.clone(), address, share: Arc::clone(&of.share) })
        })
    }

    fn with<T>(&self, change: impl FnOnce(&mut HashMap<IpAddr, Address>) -> T) -> T {
        // Each change is one step: what a panic left behind is whole.
        change(&mut self.addresses.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn room(bytes: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(bytes / ROOM_UNIT))
}

impl Place {
    /// Waits for room for so many bytes, not more than a review has: in the share of its address, then in all.
    pub(crate) async fn room(&self, bytes: usize) -> Result<Room<'_>, AcquireError> {
        let units = u32::try_from(bytes.div_ceil(ROOM_UNIT)).unwrap_or(u32::MAX);
        let of_share = self.share.acquire_many(units).await?;
        let of_all = self.crowd.room.acquire_many(units).await?;
        Ok(Room { _of_share: of_share, _of_all: of_all })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.crowd.with(|addresses| {
            if let Some(of) = addresses.get_mut(&self.address) {
                of.connections -= 1;
                if of.connections == 0 {
                    addresses.remove(&self.address);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_has_a_share_and_all_have_a_limit() {
        let crowd = Crowd::new();
        let of = |last: u8| IpAddr::from([10, 0, 0, last]);
        let fill = |last: u8| std::iter::from_fn(|| crowd.enter(of(last))).collect::<Vec<_>>();
        let first = fill(1);
        assert_eq!(first.len(), limits::CONNECTIONS_PER_ADDRESS);
        let mapped = IpAddr::V6(std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped());
        assert!(crowd.enter(mapped).is_none());
        let second = fill(2);
        assert_eq!(first.len() + second.len(), limits::CONNECTIONS);
        assert!(crowd.enter(of(3)).is_none());
        drop(first);
        assert!(crowd.enter(of(3)).is_some());
        drop(second);
        assert_eq!(crowd.with(|addresses| addresses.len()), 0);
    }

    #[tokio::test]
    async fn one_address_cannot_take_all_the_room() {
        let crowd = Crowd::new();
        let [greedy, other] = [1, 2].map(|last| crowd.enter(IpAddr::from([10, 0, 0, last])).unwrap());
        let same = crowd.enter(IpAddr::from([10, 0, 0, 1])).unwrap();
        let held = greedy.room(limits::READING_BYTES_PER_ADDRESS).await.unwrap();
        let mut waiting = Box::pin(same.room(1));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        let room = other.room(limits::READING_BYTES - limits::READING_BYTES_PER_ADDRESS).await.unwrap();
        drop(held);
        assert!(futures_util::poll!(&mut waiting).is_ready());
        drop(room);
    }
}
