//! Every limit gives its own refusal, at the limit and one beyond it.

use gpu_handoff_protocol::codec::{Frame, decode_broker, decode_client, decode_sidecar, decode_slot};
use gpu_handoff_protocol::{Code, Refusal, limits};

use crate::proto::{bytes, int};
use crate::strategies::memfd;

const HELLO: u64 = 2;
pub(crate) const PUBLISH: u64 = 3;
pub(crate) const ACQUIRE: u64 = 4;
const RELEASE: u64 = 5;
const RETIRE: u64 = 6;

pub(crate) fn frame(bytes: Vec<u8>, descriptors: usize) -> Frame {
    Frame { bytes, descriptors: (0..descriptors).map(|_| memfd()).collect(), ..Frame::default() }
}

pub(crate) fn client(body: u64, inner: &[u8], descriptors: usize) -> Result<(), Refusal> {
    decode_client(frame([int(1, 1), bytes(body, inner)].concat(), descriptors)).map(drop)
}

/// The code of a refusal and what it compared.
pub(crate) fn no(result: Result<(), Refusal>) -> (Code, String) {
    let refusal = result.expect_err("accepted");
    let compared = refusal.compared().first().map(|c| format!("{}: {} / {}", c.what, c.wanted, c.found));
    (refusal.code(), compared.unwrap_or_default())
}

pub(crate) fn too_large(compared: &str) -> (Code, String) {
    (Code::TooLarge, compared.to_owned())
}

/// A vmm item, with a change at its end: a later field wins.
pub(crate) fn item(change: &[u8]) -> Vec<u8> {
    let whole =
        [bytes(1, b"name"), int(2, 1), bytes(3, &[7; 16]), int(5, 1), int(6, 1), change.to_vec()].concat();
    bytes(1, &whole)
}

pub(crate) fn publish(change: &[u8]) -> Result<(), Refusal> {
    client(PUBLISH, &item(change), 1)
}

#[test]
fn items() {
    let target = bytes(1, &bytes(2, b"name"));
    let most = limits::MESSAGE_ITEMS;
    for (body, one, descriptors) in [(PUBLISH, item(&[]), 1), (ACQUIRE, target, 0), (RELEASE, int(1, 9), 0)] {
        assert_eq!(client(body, &one, descriptors), Ok(()));
        assert_eq!(client(body, &one.repeat(most), descriptors * most), Ok(()));
        assert_eq!(no(client(body, &[], 0)).0, Code::Malformed);
        let beyond = client(body, &one.repeat(most + 1), descriptors * most);
        assert_eq!(no(beyond), too_large("items: at most 64 / 65"));
    }
}

#[test]
fn names_and_metadata() {
    assert_eq!(publish(&bytes(1, &[b'n'; limits::BUFFER_NAME_BYTES])), Ok(()));
    let beyond = publish(&bytes(1, &[b'n'; limits::BUFFER_NAME_BYTES + 1]));
    assert_eq!(no(beyond), too_large("buffer name: at most 128 bytes / 129"));
    assert_eq!(no(publish(&bytes(1, b""))).0, Code::Malformed);
    assert_eq!(no(publish(&bytes(1, b"a\nb"))).0, Code::Malformed);
    assert_eq!(no(publish(&bytes(1, b"\xff"))).0, Code::Malformed);

    assert_eq!(publish(&bytes(10, &[0; limits::METADATA_BYTES])), Ok(()));
    let beyond = publish(&bytes(10, &[0; limits::METADATA_BYTES + 1]));
    assert_eq!(no(beyond), too_large("bytes of metadata: at most 1024 / 1025"));

    assert_eq!(client(HELLO, &[bytes(1, &int(2, 1)), bytes(2, &[b'p'; 64])].concat(), 0), Ok(()));
    let beyond = client(HELLO, &[bytes(1, &int(2, 1)), bytes(2, &[b'p'; 65])].concat(), 0);
    assert_eq!(no(beyond), too_large("bytes of program name: at most 64 / 65"));
}

#[test]
fn tensors() {
    let most = limits::TENSOR_DIMENSIONS;
    let tensor = |inner: &[u8]| publish(&bytes(9, inner));
    assert_eq!(tensor(&[int(2, 5).repeat(most), int(3, 5).repeat(most)].concat()), Ok(()));
    assert_eq!(tensor(&[bytes(2, &vec![5; most]), bytes(3, &vec![5; most])].concat()), Ok(()));
    assert_eq!(no(tensor(&int(2, 5).repeat(most + 1))), too_large("dimensions: at most 16 / 17"));
    assert_eq!(no(tensor(&bytes(3, &vec![5; most + 1]))), too_large("dimensions: at most 16 / 17"));
    assert_eq!(tensor(&bytes(1, &[b'd'; 32])), Ok(()));
    assert_eq!(no(tensor(&bytes(1, &[b'd'; 33]))), too_large("bytes of dtype: at most 32 / 33"));
}

#[test]
fn kinds_and_other_choices() {
    for (kind, descriptors) in [(1, 1), (3, 1)] {
        assert_eq!(client(PUBLISH, &item(&int(2, kind)), descriptors), Ok(()));
    }
    for kind in [0, 4, 5, 99, u64::MAX] {
        assert_eq!(no(publish(&int(2, kind))).0, Code::UnsupportedKind);
    }
    assert_eq!(no(publish(&int(7, 2))).0, Code::Malformed);
    assert_eq!(no(publish(&int(8, 2))).0, Code::Malformed);
    assert_eq!(no(publish(&bytes(3, &[7; 15]))).0, Code::Malformed);
    assert_eq!(no(publish(&bytes(3, &[7; 17]))).0, Code::Malformed);
}

#[test]
fn times() {
    let acquire = |ms| client(ACQUIRE, &[bytes(1, &bytes(2, b"name")), int(2, ms)].concat(), 0);
    assert_eq!(acquire(limits::ACQUIRE_WAIT_MS), Ok(()));
    assert_eq!(no(acquire(limits::ACQUIRE_WAIT_MS + 1)), too_large("wait: at most 600000 ms / 600001"));
    assert_eq!(no(acquire(u64::MAX)).0, Code::TooLarge);
    let retire = |ms| client(RETIRE, &[bytes(1, &[0; 24]), int(2, ms)].concat(), 0);
    assert_eq!(retire(limits::RETIRE_DEADLINE_MS), Ok(()));
    assert_eq!(
        no(retire(limits::RETIRE_DEADLINE_MS + 1)),
        too_large("deadline: at most 3600000 ms / 3600001")
    );
}

#[test]
fn identities() {
    let acquire = |target: Vec<u8>| client(ACQUIRE, &bytes(1, &target), 0);
    assert_eq!(acquire(bytes(1, &[0; 24])), Ok(()));
    for wrong in [vec![], bytes(1, &[0; 23]), bytes(1, &[0; 25]), bytes(1, &[]), bytes(2, b"")] {
        assert_eq!(no(acquire(wrong)).0, Code::Malformed);
    }
    assert_eq!(no(client(RETIRE, &[], 0)).0, Code::Malformed);
    assert_eq!(no(client(HELLO, &[], 0)).0, Code::Malformed);
    let no_number = frame(bytes(HELLO, &bytes(1, &int(2, 1))), 0);
    assert_eq!(decode_client(no_number).unwrap_err().code(), Code::Malformed);
    assert_eq!(decode_sidecar(frame(bytes(2, &bytes(1, &[])), 0)).unwrap_err().code(), Code::Malformed);
}

#[test]
fn legacy_handles() {
    let legacy = |handles: &[u8], descriptors| {
        client(PUBLISH, &[item(&int(2, 2)), handles.to_vec()].concat(), descriptors)
    };
    assert_eq!(legacy(&bytes(2, &[1; 64]), 0), Ok(()));
    for wrong in [vec![], bytes(2, &[1; 63]), bytes(2, &[1; 65]), bytes(2, &[1; 64]).repeat(2)] {
        assert_eq!(no(legacy(&wrong, 0)).0, Code::Malformed);
    }
    assert_eq!(no(legacy(&bytes(2, &[1; 64]), 1)).0, Code::DescriptorCount);
    assert_eq!(no(client(PUBLISH, &[item(&[]), bytes(2, &[1; 64])].concat(), 1)).0, Code::Malformed);
}

#[test]
fn descriptors() {
    let two = item(&[]).repeat(2);
    assert_eq!(client(PUBLISH, &two, 2), Ok(()));
    for found in [0, 1, 3, 64] {
        let compared = (Code::DescriptorCount, format!("descriptors: 2 / {found}"));
        assert_eq!(no(client(PUBLISH, &two, found)), compared);
    }
    assert_eq!(
        no(client(PUBLISH, &two, 65)),
        (Code::DescriptorCount, "descriptors: at most 64 / 65".to_owned())
    );
    let others = [
        (HELLO, bytes(1, &int(2, 1))),
        (ACQUIRE, bytes(1, &bytes(2, b"name"))),
        (RELEASE, int(1, 9)),
        (RETIRE, bytes(1, &[0; 24])),
        (7, vec![]),
        (8, vec![]),
    ];
    for (body, inner) in others {
        assert_eq!(client(body, &inner, 0), Ok(()));
        assert_eq!(no(client(body, &inner, 1)).0, Code::DescriptorCount);
    }
    let hand_on = |count| decode_sidecar(frame([int(1, 1), bytes(3, &[])].concat(), count)).map(drop);
    assert_eq!(hand_on(1), Ok(()));
    assert_eq!(no(hand_on(0)).0, Code::DescriptorCount);
    assert_eq!(no(hand_on(2)), (Code::DescriptorCount, "descriptors: 1 / 2".to_owned()));
    let hello =
        |count| decode_sidecar(frame([int(1, 1), bytes(2, &bytes(1, &[]))].concat(), count)).map(drop);
    assert_eq!(hello(0), Ok(()));
    assert_eq!(no(hello(1)), (Code::DescriptorCount, "descriptors: 0 / 1".to_owned()));
    let slot = |count| decode_slot(frame([int(1, 1), bytes(3, &[])].concat(), count)).map(drop);
    assert_eq!(slot(0), Ok(()));
    assert_eq!(no(slot(1)).0, Code::DescriptorCount);
    let cancelled = |count| decode_broker(frame([int(1, 1), bytes(8, &[])].concat(), count)).map(drop);
    assert_eq!(cancelled(0), Ok(()));
    assert_eq!(no(cancelled(1)).0, Code::DescriptorCount);
}

/// A packet of exactly `len` bytes that is right but for its size: an unknown field fills it up
/// (2 bytes of tag and 3 of length before it, so `len` is at least 16 KiB).
fn padded(len: usize) -> Vec<u8> {
    let head = [int(1, 1), bytes(7, &[])].concat();
    let filler = len - head.len() - 5;
    let whole = [head, bytes(900, &vec![0; filler])].concat();
    assert_eq!(whole.len(), len);
    whole
}

#[test]
fn packets() {
    assert!(decode_client(frame(padded(limits::MESSAGE_BYTES), 0)).is_ok());
    let beyond = decode_client(frame(padded(limits::MESSAGE_BYTES + 1), 0)).map(drop);
    assert_eq!(no(beyond), too_large("bytes: 65536 / 65537"));
    let cut = Frame { bytes_truncated: true, ..frame(padded(20_000), 0) };
    assert_eq!(no(decode_client(cut).map(drop)), too_large("bytes: 65536 / more"));
}

#[test]
fn lost_descriptors() {
    let cut = || Frame { control_truncated: true, ..frame([int(1, 1), bytes(7, &[])].concat(), 0) };
    assert_eq!(decode_client(cut()).unwrap_err().code(), Code::TruncatedControl);
    assert_eq!(decode_broker(cut()).unwrap_err().code(), Code::TruncatedControl);
    assert_eq!(decode_sidecar(cut()).unwrap_err().code(), Code::TruncatedControl);
    assert_eq!(decode_slot(cut()).unwrap_err().code(), Code::TruncatedControl);
    // Even where the message itself needs none: what was lost might have been meant for anything.
    let with_one = Frame { descriptors: vec![memfd()], ..cut() };
    assert_eq!(decode_client(with_one).unwrap_err().code(), Code::TruncatedControl);
}
