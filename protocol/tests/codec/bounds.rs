//! Limits of sets, orders, claims and keepsakes, at the limit and one beyond it.

use gpu_handoff_protocol::codec::{decode_broker, decode_sidecar, decode_slot};
use gpu_handoff_protocol::{Code, Refusal, limits};

use crate::limits::{ACQUIRE, PUBLISH, client, frame, item, no, publish, too_large};
use crate::proto::{bytes, int};

const ACQUIRE_SET: u64 = 9;
const REATTACH: u64 = 10;
const OFFER: u64 = 4;
const OFFER_DONE: u64 = 5;
const KEEP: u64 = 5;
const FORGET: u64 = 6;
const OFFERED: u64 = 7;

fn sidecar(body: u64, inner: &[u8], descriptors: usize) -> Result<(), Refusal> {
    decode_sidecar(frame([int(1, 1), bytes(body, inner)].concat(), descriptors)).map(drop)
}

fn slot(body: u64, inner: &[u8], descriptors: usize) -> Result<(), Refusal> {
    decode_slot(frame([int(1, 1), bytes(body, inner)].concat(), descriptors)).map(drop)
}

fn broker(body: u64, inner: &[u8]) -> Result<(), Refusal> {
    decode_broker(frame([int(1, 1), bytes(body, inner)].concat(), 0)).map(drop)
}

/// A part of `items` items.
fn part(items: usize, total: u64, first: u64) -> Result<(), Refusal> {
    let set = bytes(3, &[bytes(1, b"set"), int(2, total), int(3, first)].concat());
    client(PUBLISH, &[item(&[]).repeat(items), set].concat(), items)
}

#[test]
fn parts_of_a_set() {
    let most = u64::from(limits::SET_BUFFERS);
    assert_eq!(part(1, 1, 0), Ok(()));
    assert_eq!(part(64, most, 0), Ok(()));
    assert_eq!(part(64, most, most - 64), Ok(()));
    assert_eq!(no(part(1, most + 1, 0)), too_large("buffers of a set: at most 65536 / 65537"));
    assert_eq!(no(part(64, most, most - 63)).0, Code::Malformed);
    assert_eq!(no(part(1, most, u64::from(u32::MAX))).0, Code::Malformed);
    assert_eq!(no(part(1, 0, 0)).0, Code::Malformed);
    assert_eq!(no(part(0, 1, 0)).0, Code::Malformed);
    let nameless = [item(&[]), bytes(3, &int(2, 1))].concat();
    assert_eq!(no(client(PUBLISH, &nameless, 1)).0, Code::Malformed);
}

#[test]
fn acquiring_a_set() {
    let ask = |change: &[u8]| client(ACQUIRE_SET, &[bytes(1, b"set"), change.to_vec()].concat(), 0);
    assert_eq!(ask(&[]), Ok(()));
    assert_eq!(ask(&int(3, limits::ACQUIRE_WAIT_MS)), Ok(()));
    assert_eq!(no(ask(&int(3, limits::ACQUIRE_WAIT_MS + 1))), too_large("wait: at most 600000 ms / 600001"));
    assert_eq!(no(ask(&bytes(1, &[b's'; 129]))), too_large("buffer name: at most 128 bytes / 129"));
    assert_eq!(no(ask(&bytes(1, b""))).0, Code::Malformed);
    assert_eq!(no(client(ACQUIRE_SET, &bytes(1, b"set"), 1)).0, Code::DescriptorCount);
}

#[test]
fn devices_to_map_on() {
    let acquire =
        |device: &[u8]| client(ACQUIRE, &[bytes(1, &bytes(2, b"name")), bytes(3, device)].concat(), 0);
    let acquire_set = |device: &[u8]| client(ACQUIRE_SET, &[bytes(1, b"set"), bytes(4, device)].concat(), 0);
    for right in [&[][..], &[7; 16]] {
        assert_eq!(acquire(right), Ok(()));
        assert_eq!(acquire_set(right), Ok(()));
    }
    for wrong in [&[7; 1][..], &[7; 15], &[7; 17]] {
        assert_eq!(no(acquire(wrong)).0, Code::Malformed);
        assert_eq!(no(acquire_set(wrong)).0, Code::Malformed);
    }
}

#[test]
fn orders() {
    let timeline = || bytes(1, &[0; 24]);
    let order = |change: &[u8]| publish(&bytes(11, &[timeline(), change.to_vec()].concat()));
    assert_eq!(order(&[]), Ok(()));
    assert_eq!(order(&int(5, u64::from(limits::SEATS))), Ok(()));
    assert_eq!(no(order(&int(5, u64::from(limits::SEATS) + 1))), too_large("seats: at most 1024 / 1025"));
    assert_eq!(order(&int(3, limits::ORDER_VALUES - 1)), Ok(()));
    assert_eq!(no(order(&int(3, limits::ORDER_VALUES))).0, Code::TooLarge);
    assert_eq!(no(order(&int(3, u64::MAX))).0, Code::TooLarge);
    let at_the_end = |first: u64| order(&[int(4, first), int(5, 1)].concat());
    assert_eq!(at_the_end(u64::from(u32::MAX) - 1), Ok(()));
    assert_eq!(no(at_the_end(u64::from(u32::MAX))).0, Code::Malformed);
    assert_eq!(no(publish(&bytes(11, &bytes(1, &[0; 23])))).0, Code::Malformed);
    assert_eq!(no(publish(&bytes(11, &[]))).0, Code::Malformed);
    // Only a vmm buffer has one.
    let with_order = |kind| item(&[int(2, kind), bytes(11, &timeline())].concat());
    assert_eq!(no(client(PUBLISH, &with_order(3), 1)).0, Code::Malformed);
    let legacy = [with_order(2), bytes(2, &[1; 64])].concat();
    assert_eq!(no(client(PUBLISH, &legacy, 0)).0, Code::Malformed);
}

/// Claims and keepsakes: items that each may bring a descriptor. `head` begins an item, its receipt is the field
/// `receipt`, and the next field tells of a descriptor.
fn flagged(say: impl Fn(&[u8], usize) -> Result<(), Refusal>, head: &[u8], receipt: u64) {
    let one = |len: usize, descriptor: u64| {
        let receipt_and_flag = [bytes(receipt, &vec![1; len]), int(receipt + 1, descriptor)].concat();
        bytes(1, &[head, &receipt_and_flag].concat())
    };
    assert_eq!(say(&one(limits::RECEIPT_BYTES, 0), 0), Ok(()));
    let beyond = no(say(&one(limits::RECEIPT_BYTES + 1, 0), 0));
    assert_eq!(beyond, too_large("receipt: at most 4096 bytes / 4097"));
    assert_eq!(no(say(&one(0, 0), 0)).0, Code::Malformed);
    assert_eq!(no(say(&[], 0)).0, Code::Malformed);
    let most = limits::MESSAGE_ITEMS;
    assert_eq!(say(&one(1, 1).repeat(most), most), Ok(()));
    assert_eq!(say(&one(1, 0).repeat(most), 0), Ok(()));
    assert_eq!(no(say(&one(1, 0).repeat(most + 1), 0)), too_large("items: at most 64 / 65"));
    let two = [one(1, 1), one(1, 0), one(1, 1)].concat();
    assert_eq!(say(&two, 2), Ok(()));
    for found in [0, 1, 3] {
        let compared = (Code::DescriptorCount, format!("descriptors: 2 / {found}"));
        assert_eq!(no(say(&two, found)), compared);
    }
}

#[test]
fn claims() {
    flagged(|items, descriptors| client(REATTACH, items, descriptors), &[], 1);
}

#[test]
fn keepsakes() {
    let id = bytes(1, &[0; 24]);
    flagged(|items, descriptors| sidecar(OFFER, items, descriptors), &id, 2);
    flagged(|items, descriptors| slot(KEEP, items, descriptors), &id, 2);
    for wrong in [vec![], bytes(1, &[0; 23]), bytes(1, &[0; 25])] {
        let keepsake = bytes(1, &[wrong, bytes(2, b"r")].concat());
        assert_eq!(no(sidecar(OFFER, &keepsake, 0)).0, Code::Malformed);
        assert_eq!(no(slot(KEEP, &keepsake, 0)).0, Code::Malformed);
    }
}

#[test]
fn what_the_sidecar_keeps() {
    assert_eq!(sidecar(OFFER_DONE, &[], 0), Ok(()));
    assert_eq!(no(sidecar(OFFER_DONE, &[], 1)).0, Code::DescriptorCount);
    let id = bytes(1, &[0; 24]);
    assert_eq!(slot(FORGET, &id.repeat(limits::MESSAGE_ITEMS), 0), Ok(()));
    let beyond = slot(FORGET, &id.repeat(limits::MESSAGE_ITEMS + 1), 0);
    assert_eq!(no(beyond), too_large("items: at most 64 / 65"));
    assert_eq!(no(slot(FORGET, &[], 0)).0, Code::Malformed);
    assert_eq!(no(slot(FORGET, &bytes(1, &[0; 23]), 0)).0, Code::Malformed);
    assert_eq!(no(slot(FORGET, &id, 1)).0, Code::DescriptorCount);
    assert_eq!(slot(OFFERED, &bytes(1, &[]), 0), Ok(()));
    assert_eq!(no(slot(OFFERED, &bytes(1, &[]), 1)).0, Code::DescriptorCount);
}

/// What a broker can say that no broker of ours would.
#[test]
fn answers() {
    const WELCOME: u64 = 2;
    const PUBLISHED: u64 = 3;
    const ACQUIRED: u64 = 4;
    const REATTACHED: u64 = 10;
    let welcome = |instance: &[u8]| {
        let names = (2..=5).flat_map(|field| bytes(field, b"x")).collect();
        broker(WELCOME, &[bytes(1, &[]), names, bytes(8, instance)].concat())
    };
    assert_eq!(welcome(&[7; 16]), Ok(()));
    assert_eq!(no(welcome(&[])).0, Code::Malformed);
    assert_eq!(no(welcome(&[7; 17])).0, Code::Malformed);
    let published = |receipt: usize| {
        broker(PUBLISHED, &bytes(1, &bytes(1, &[bytes(1, &[0; 24]), bytes(3, &vec![1; receipt])].concat())))
    };
    assert_eq!(published(0), Ok(()));
    assert_eq!(published(limits::RECEIPT_BYTES), Ok(()));
    assert_eq!(no(published(limits::RECEIPT_BYTES + 1)).0, Code::TooLarge);
    assert_eq!(no(broker(REATTACHED, &bytes(1, &[]))).0, Code::Malformed);
    let set = |total: u64, more: u64, items: &[u8]| {
        let info = bytes(3, &[bytes(1, b"set"), int(3, total)].concat());
        broker(ACQUIRED, &[info, int(2, more), items.to_vec()].concat())
    };
    assert_eq!(set(3, 1, &[]), Ok(()));
    assert_eq!(no(set(3, 0, &[])).0, Code::Malformed, "the set is not whole");
    assert_eq!(no(set(3, 1, &bytes(1, &bytes(2, &int(1, 20))))).0, Code::Malformed, "a refusal in a set");
    assert_eq!(no(set(u64::from(limits::SET_BUFFERS) + 1, 1, &[])).0, Code::TooLarge);
}
