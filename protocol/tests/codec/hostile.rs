//! Bytes and descriptors of somebody who means harm: no panic, no descriptor kept, and what is accepted is sound.

use std::io::{PipeReader, Read};
use std::os::fd::{AsFd, OwnedFd};

use gpu_handoff_protocol::codec::{
    Frame, Outgoing, decode_broker, decode_client, decode_sidecar, decode_slot, encode_broker, encode_client,
    encode_sidecar, encode_slot,
};
use gpu_handoff_protocol::{Code, Refusal, limits};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::print::{Print, frame};
use crate::strategies::{broker, client, memfd, sidecar, slot};

/// Decodes with every decoder; what one accepts must survive another round unchanged.
fn decode_all(frame: impl Fn() -> Frame) -> [Option<Code>; 4] {
    [
        check(decode_client(frame()), |m| decode_client(super::print::frame(&encode_client(&m)))),
        check(decode_sidecar(frame()), |m| decode_sidecar(super::print::frame(&encode_sidecar(m)))),
        check_answer(decode_slot(frame()), encode_slot, decode_slot),
        check_answer(decode_broker(frame()), encode_broker, decode_broker),
    ]
}

/// An answer that came in one packet fits into one again, unless its packed form is longer. What goes on in another
/// packet need not be an answer of its own.
fn check_answer<M: Print>(
    decoded: Result<(M, bool), Refusal>,
    encode: impl Fn(&M) -> Vec<Outgoing>,
    decode: impl Fn(Frame) -> Result<(M, bool), Refusal>,
) -> Option<Code> {
    let goes_on = matches!(decoded, Ok((_, true)));
    check(decoded.map(|(m, _)| m), |m| {
        let packets = encode(&m);
        assert!(packets.iter().all(|p| p.bytes.len() <= limits::MESSAGE_BYTES));
        match packets.as_slice() {
            [only] if !goes_on => decode(super::print::frame(only)).map(|(m, _)| m),
            _ => Ok(m),
        }
    })
}

fn check<M: Print>(decoded: Result<M, Refusal>, again: impl FnOnce(M) -> Result<M, Refusal>) -> Option<Code> {
    match decoded {
        Ok(message) => {
            let first = message.print();
            assert_eq!(again(message).unwrap().print(), first);
            None
        }
        Err(refusal) => {
            let text = refusal.to_string();
            assert!(!text.contains(char::is_control), "{text:?}");
            assert!(text.len() < 8 * 1024, "{} bytes", text.len());
            Some(refusal.code())
        }
    }
}

/// Write ends of one pipe: its read end sees the end of the file once every one of them is closed.
fn watched_descriptors(count: usize) -> (PipeReader, Vec<OwnedFd>) {
    let (reader, writer) = std::io::pipe().unwrap();
    let flags = rustix::fs::fcntl_getfl(&reader).unwrap() | rustix::fs::OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(&reader, flags).unwrap();
    let fds = (0..count).map(|_| writer.as_fd().try_clone_to_owned().unwrap()).collect();
    (reader, fds)
}

/// Whether a decoder has closed all that it was given, whatever it answered.
fn closes_all(bytes: &[u8], count: usize, decode: impl Fn(Frame)) -> bool {
    let (mut reader, descriptors) = watched_descriptors(count);
    decode(Frame { bytes: bytes.to_vec(), descriptors, ..Frame::default() });
    matches!(reader.read(&mut [0]), Ok(0))
}

fn all_close(bytes: &[u8], count: usize) -> bool {
    closes_all(bytes, count, |f| drop(decode_client(f)))
        && closes_all(bytes, count, |f| drop(decode_broker(f)))
        && closes_all(bytes, count, |f| drop(decode_sidecar(f)))
        && closes_all(bytes, count, |f| drop(decode_slot(f)))
}

#[test]
fn the_watch_for_open_descriptors_sees_one() {
    let kept = std::cell::Cell::new(None);
    let closed = closes_all(&[], 2, |mut f| kept.set(f.descriptors.pop()));
    assert!(!closed);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_bytes_with_any_descriptors(bytes in vec(any::<u8>(), 0..200), count in 0..70_usize) {
        prop_assert!(all_close(&bytes, count));
    }

    #[test]
    fn a_right_message_with_any_descriptors(message in client(4), count in 0..70_usize) {
        prop_assert!(all_close(&encode_client(&message).bytes, count));
    }

    #[test]
    fn a_right_answer_with_any_descriptors(message in broker(4), count in 0..70_usize) {
        for packet in encode_broker(&message) {
            prop_assert!(all_close(&packet.bytes, count));
        }
    }

    #[test]
    fn a_right_word_of_a_sidecar_or_to_one_with_any_descriptors(
        said in sidecar(4), told in slot(4), count in 0..70_usize,
    ) {
        prop_assert!(all_close(&encode_sidecar(said).bytes, count));
        for packet in encode_slot(&told) {
            prop_assert!(all_close(&packet.bytes, count));
        }
    }

    #[test]
    fn a_right_message_with_several_bytes_changed(
        message in client(4),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let packet = encode_client(&message);
        decode_all(|| {
            let mut frame = frame(&packet);
            for (at, value) in &changes {
                let at = at.index(frame.bytes.len());
                frame.bytes[at] = *value;
            }
            frame
        });
    }
}

/// A few packets of every kind, always the same.
fn samples() -> Vec<Outgoing> {
    let mut runner = TestRunner::deterministic();
    let mut packets = Vec::new();
    for _ in 0..14 {
        packets.push(encode_client(&client(2).new_tree(&mut runner).unwrap().current()));
        packets.extend(encode_broker(&broker(2).new_tree(&mut runner).unwrap().current()));
    }
    for _ in 0..8 {
        packets.extend(encode_slot(&slot(2).new_tree(&mut runner).unwrap().current()));
        packets.push(encode_sidecar(sidecar(2).new_tree(&mut runner).unwrap().current()));
    }
    packets
}

#[test]
fn every_truncation_of_a_right_packet() {
    for packet in samples() {
        for len in 0..packet.bytes.len() {
            let codes = decode_all(|| {
                let mut frame = frame(&packet);
                frame.bytes.truncate(len);
                frame
            });
            assert!(
                len > 0
                    || codes.iter().all(|c| *c == Some(Code::Malformed) || !packet.descriptors.is_empty())
            );
        }
    }
}

#[test]
fn every_change_of_one_byte_is_read_or_refused() {
    let known = [Code::Malformed, Code::TooLarge, Code::DescriptorCount, Code::UnsupportedKind];
    let (mut read, mut refused) = (0_u32, 0_u32);
    for packet in samples().iter().filter(|p| p.bytes.len() <= 400) {
        for at in 0..packet.bytes.len() {
            for bit in 0..8 {
                let codes = decode_all(|| {
                    let mut frame = frame(packet);
                    frame.bytes[at] ^= 1 << bit;
                    frame
                });
                for code in codes {
                    match code {
                        None => read += 1,
                        Some(code) => {
                            assert!(known.contains(&code), "{code}");
                            refused += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(read > 1_000 && refused > 1_000, "{read} read, {refused} refused");
}

#[test]
fn every_value_of_every_byte_of_a_small_packet() {
    for packet in samples().iter().filter(|p| p.bytes.len() <= 48).take(20) {
        for at in 0..packet.bytes.len() {
            for value in 0..=u8::MAX {
                decode_all(|| {
                    let mut frame = frame(packet);
                    frame.bytes[at] = value;
                    frame
                });
            }
        }
    }
}

#[test]
fn a_packet_full_of_empty_items_is_refused() {
    // 2 bytes an item: the most items that fit. Reading them must stay cheap, and none may be accepted.
    let client = |frame| decode_client(frame).map(drop);
    let sidecar = |frame| decode_sidecar(frame).map(drop);
    let slot = |frame| decode_slot(frame).map(drop);
    type Decode<'a> = &'a dyn Fn(Frame) -> Result<(), Refusal>;
    let bodies: [(u64, Decode<'_>); 7] =
        [(3, &client), (4, &client), (5, &client), (10, &client), (4, &sidecar), (5, &slot), (6, &slot)];
    for (body, decode) in bodies {
        let inner = crate::proto::bytes(1, &[]).repeat(32_000);
        let bytes = [crate::proto::int(1, 1), crate::proto::bytes(body, &inner)].concat();
        assert!(bytes.len() <= limits::MESSAGE_BYTES);
        let begin = std::time::Instant::now();
        let refused = decode(Frame { bytes, descriptors: vec![memfd()], ..Frame::default() });
        assert!(refused.is_err());
        assert!(begin.elapsed() < std::time::Duration::from_secs(1), "{:?}", begin.elapsed());
    }
}
