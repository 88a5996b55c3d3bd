//! The memory against a plain map, at its limits, and how much room it takes.

use std::collections::BTreeMap;
use std::fs::File;

use gpu_handoff_protocol::BootTag;

use super::*;

fn id(random: u128) -> BufferId {
    BufferId { boot: BootTag(7), random }
}

/// A sequence that looks like chance and is the same each time.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next().to_le_bytes()[3]).collect()
    }
}

/// Nobody looks into a receipt here; this one has the parts of a real one.
fn receipt(chance: &mut Chance, name: &str, metadata: usize) -> Receipt {
    let mut bytes = b"boot....process.........ml-nodes/slot-0123456789abcdef".to_vec();
    bytes.extend_from_slice(
        b"0b54c9a1-7f7b-4f3a-9a59-6a6de8d0ad3c ml trainer-0-7d9c4b7f5-x2x9k ml llama-shared ",
    );
    bytes.extend_from_slice(
        b"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 device-uuid.....",
    );
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend(chance.bytes(16 + 8 + metadata));
    bytes.extend(chance.bytes(32));
    Receipt::new(bytes).unwrap()
}

fn keepsake(random: u128, receipt: Receipt) -> Keepsake {
    Keepsake { id: id(random), receipt, descriptor: None }
}

fn is_kept(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Kept)
}

#[test]
fn it_gives_back_what_it_got_in_any_order() {
    let (mut chance, mut memory, mut model) =
        (Chance(88_172_645_463_325_252), Memory::new(1 << 20), BTreeMap::new());
    for _ in 0..20_000 {
        let random = u128::from(chance.next() % 500);
        if chance.next() % 3 == 0 {
            memory.forget(id(random));
            model.remove(&id(random));
        } else {
            let length = (chance.next() % 300) as usize;
            let receipt = receipt(&mut chance, &format!("layers.{random}.weight"), length);
            let outcome = memory.keep(keepsake(random, receipt.clone()), 0);
            let before = model.insert(id(random), receipt);
            assert_eq!(is_kept(&outcome), before.is_none(), "{outcome:?}");
        }
        if chance.next() % 1_000 == 0 {
            (0..500).for_each(|n| drop(memory.forget(id(n))));
            model.clear();
            assert!(memory.is_empty() && memory.bytes == 0);
        }
    }
    let mut found = Vec::new();
    loop {
        let part = memory.after(found.last().map(|(id, _)| *id), 7);
        if part.is_empty() {
            break;
        }
        found.extend(part.into_iter().map(|item| (item.id, item.receipt)));
    }
    assert!(found.len() > 100);
    assert!(found.into_iter().eq(model));
}

#[test]
fn one_more_than_there_is_room_for_is_not_kept_but_one_in_its_place_is() {
    let mut chance = Chance(1);
    let mut memory = Memory::new(3);
    let mut keep = |random, closing| {
        let receipt = receipt(&mut chance, "w", 0);
        memory.keep(keepsake(random, receipt), closing)
    };
    assert!((0..2).all(|n| is_kept(&keep(n, 0))));
    assert!(matches!(keep(2, 1), Outcome::NoRoom), "a descriptor that is not closed yet takes room");
    assert!(is_kept(&keep(2, 0)));
    assert!(matches!(keep(3, 0), Outcome::NoRoom));
    assert!(matches!(keep(1, 0), Outcome::Replaced(None)));
    assert!(memory.forget(id(0)).is_none() && memory.len() == 2);
}

#[test]
fn more_bytes_than_there_is_room_for_are_not_kept() {
    let (mut chance, mut memory) = (Chance(2), Memory::new(usize::MAX));
    let mut long = || Receipt::new(chance.bytes(4_096)).unwrap();
    let kept = (0..limits::KEPT_ITEMS as u128).take_while(|n| is_kept(&memory.keep(keepsake(*n, long()), 0)));
    let kept = kept.count();
    assert!(memory.bytes <= limits::KEPT_BYTES && kept * 4_200 > limits::KEPT_BYTES, "{kept}");
    let before = memory.bytes;
    assert!(matches!(memory.keep(keepsake(1 << 100, long()), 0), Outcome::NoRoom));
    memory.forget(id(0));
    assert!(memory.bytes < before);
    assert!(is_kept(&memory.keep(keepsake(1 << 100, Receipt::new(*b"short").unwrap()), 0)));
}

#[test]
fn a_replaced_and_a_forgotten_descriptor_are_given_out_to_be_closed() {
    let (mut chance, mut memory) = (Chance(3), Memory::new(1));
    let descriptors: Vec<Descriptor> =
        (0..2).map(|_| Arc::new(File::open("/dev/null").unwrap().into())).collect();
    for descriptor in &descriptors {
        let receipt = receipt(&mut chance, "w", 0);
        let item = Keepsake { descriptor: Some(Arc::clone(descriptor)), ..keepsake(1, receipt) };
        if let Outcome::Replaced(earlier) = memory.keep(item, 0) {
            assert!(Arc::ptr_eq(&earlier.unwrap(), &descriptors[0]));
        }
    }
    assert!(Arc::ptr_eq(&memory.forget(id(1)).unwrap(), &descriptors[1]));
    assert!(descriptors.iter().all(|it| Arc::strong_count(it) == 1));
}

#[test]
fn many_receipts_of_one_pod_take_little_room() {
    let (mut chance, mut memory) = (Chance(4), Memory::new(usize::MAX));
    let mut whole = 0;
    for n in 0..15_000_u32 {
        let receipt = receipt(&mut chance, &format!("model.layers.{}.mlp.{n}.weight", n % 80), 0);
        whole += receipt.as_bytes().len();
        assert!(is_kept(&memory.keep(keepsake(u128::from(n), receipt), 0)));
    }
    assert!(whole > 15_000 * 300, "{whole}");
    assert!(memory.bytes < 15_000 * 110, "{} of {whole}", memory.bytes);
    assert!(size_of::<Kept>() <= 64);
}
