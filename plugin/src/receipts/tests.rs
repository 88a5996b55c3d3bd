//! Receipts are known again when nothing of them has changed, and only then.

use std::sync::Arc;
use std::time::Duration;

use gpu_handoff_protocol::receipt::{BufferReceipt, LeaseReceipt, ProcessKey, Subject};
use gpu_handoff_protocol::{
    Access, BufferFacts, BufferId, BufferInfo, BufferName, DeviceUuid, GroupKey, Kind, LeaseId, Lifetime,
    Metadata, PodRef,
};

use super::*;

const BOOT: BootTag = BootTag(7);

fn sealer(key: u8) -> Sealer {
    Sealer::new(&NodeKey::from_bytes([key; 32]), BOOT)
}

/// As large as the memory goal reckons with: a name of 32 bytes, metadata of 64.
fn info() -> Arc<BufferInfo> {
    let facts = BufferFacts {
        name: BufferName::new("n".repeat(32)).unwrap(),
        kind: Kind::Vmm,
        device: DeviceUuid::from_bytes([9; 16]),
        offset: 0,
        size: 2 << 20,
        allocation_size: 2 << 20,
        access: Access::ReadWrite,
        lifetime: Lifetime::Process,
        metadata: Metadata { tensor: None, user: vec![1; 64] },
        order: None,
    };
    let owner = PodRef { namespace: "training".parse().unwrap(), name: "trainer-0".parse().unwrap() };
    let id = BufferId { boot: BOOT, random: u128::MAX / 3 };
    Arc::new(BufferInfo { id, generation: 4_711, owner, verified: true, facts, set: None })
}

fn group() -> GroupKey {
    GroupKey { namespace: "training".parse().unwrap(), name: "weights".parse().unwrap() }
}

fn body(subject: Subject) -> ReceiptBody {
    let process = ProcessKey { pid: 4_242, started: 123_456_789, pidfs_inode: Some(987_654) };
    let uid = "0d1a7b0e-5a70-4c1d-8f2e-0a1b2c3d4e5f";
    ReceiptBody {
        boot: BOOT,
        process,
        slot: "slot-a".parse().unwrap(),
        pod_uid: uid.parse().unwrap(),
        subject,
    }
}

fn buffer() -> ReceiptBody {
    let (legacy_handle, own_pid, container) = (None, 7, String::new());
    body(Subject::Buffer(BufferReceipt { info: info(), group: group(), legacy_handle, own_pid, container }))
}

fn lease() -> ReceiptBody {
    let lease = LeaseId(0x1234_5678_9abc_def0);
    body(Subject::Lease(LeaseReceipt { lease, buffer: info(), group: group(), seat: None }))
}

#[test]
fn a_receipt_is_read_as_it_was_made() {
    let sealer = sealer(1);
    let receipt = sealer.seal(&buffer()).unwrap();
    assert_eq!(sealer.open(&receipt).unwrap(), buffer());
    let Subject::Lease(of_lease) = sealer.open(&sealer.seal(&lease()).unwrap()).unwrap().subject else {
        panic!("a lease's")
    };
    assert_eq!((of_lease.lease, of_lease.buffer.id), (LeaseId(0x1234_5678_9abc_def0), info().id));
}

#[test]
fn any_bit_that_changes_and_any_byte_that_is_missing_makes_it_invalid() {
    let sealer = sealer(1);
    let receipt = sealer.seal(&buffer()).unwrap();
    let refused = |bytes: Vec<u8>| match Receipt::new(bytes) {
        Ok(changed) => sealer.open(&changed).is_err_and(|r| r.code() == Code::ReceiptInvalid),
        Err(_) => true,
    };
    let whole = receipt.as_bytes();
    for bit in 0..whole.len() * 8 {
        let mut changed = whole.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(refused(changed), "bit {bit}");
    }
    for length in 0..whole.len() {
        assert!(refused(whole[..length].to_vec()), "{length} bytes");
    }
}

#[test]
fn another_key_and_another_boot_are_told_apart_from_our_own() {
    let receipt = sealer(1).seal(&buffer()).unwrap();
    let refusal = sealer(2).open(&receipt).unwrap_err();
    assert_eq!((refusal.code(), refusal.compared()[0].what.as_str()), (Code::ReceiptInvalid, "MAC"));
    let later = Sealer::new(&NodeKey::from_bytes([1; 32]), BootTag(8));
    let refusal = later.open(&receipt).unwrap_err();
    assert_eq!(refusal.compared()[0].what, "boot of the node");
    // A journal's seal is of no use for receipts: each has a key of its own.
    let node = NodeKey::from_bytes([1; 32]);
    assert_ne!(sealer(1).key, *node.as_bytes());
}

/// Processor time of this thread, which others on the machine do not add to.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap())
}

/// What a receipt costs, for `cargo test --release -p gpu-handoff-plugin --lib receipts -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost_of_a_receipt() {
    let sealer = sealer(1);
    for (what, body) in [("buffer", buffer()), ("lease", lease())] {
        let bytes = codec::encode_receipt_body(&body);
        let time = |f: &mut dyn FnMut()| {
            let rounds = 100_000;
            let begun = cpu_time();
            (0..rounds).for_each(|_| f());
            (cpu_time() - begun) / rounds
        };
        let mac = time(&mut || assert!(std::hint::black_box(sealer.mac(&bytes)).as_bytes().len() == 32));
        let whole = time(&mut || drop(std::hint::black_box(sealer.seal(&body))));
        let receipt = sealer.seal(&body).unwrap();
        let open = time(&mut || drop(std::hint::black_box(sealer.open(&receipt))));
        println!("{what}: {} bytes, MAC {mac:?}, made in {whole:?}, read in {open:?}", bytes.len());
    }
}
