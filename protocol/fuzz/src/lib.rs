//! What the fuzz targets have in common: an input becomes a frame, and every answer is checked.

use std::fmt::Debug;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use gpu_handoff_protocol::codec::{Frame, Outgoing};
use gpu_handoff_protocol::{Code, Refusal, limits};

/// Reads the input as a packet, decodes it, and checks what a stranger must not be able to bring about.
///
/// The first byte is the number of descriptors (0 to 65), the second says what the kernel cut (bit 0: descriptors,
/// bit 1: bytes); the rest is the message. `encode` writes a decoded message again.
///
/// # Panics
/// When a check fails: that is a bug of the codec.
pub fn decode_and_check<M: Debug>(
    input: &[u8],
    decode: impl Fn(Frame) -> Result<M, Refusal>,
    encode: impl Fn(M) -> Vec<Outgoing>,
) {
    let [count, cut, bytes @ ..] = input else { return };
    let count = usize::from(*count) % (limits::MESSAGE_DESCRIPTORS + 2);
    let null: OwnedFd = std::fs::File::open("/dev/null").expect("/dev/null is there").into();
    let first_free = next_number(&null);
    let frame = Frame {
        bytes: bytes.to_vec(),
        descriptors: (0..count).map(|_| copy(&null)).collect(),
        control_truncated: cut & 1 != 0,
        bytes_truncated: cut & 2 != 0,
        ..Frame::default()
    };
    match decode(frame) {
        Err(refusal) => check_refusal(&refusal),
        Ok(message) => {
            assert!(cut & 3 == 0, "a cut packet was accepted");
            let packets = encode(message);
            // What was accepted reads the same again: nothing is half understood.
            if let [packet] = packets.as_slice() {
                let again = decode(frame_of(packet)).expect("what was accepted is accepted again");
                let second = encode(again);
                assert!(second.len() == 1 && second[0].bytes == packet.bytes, "a message changed on its way");
                assert_eq!(second[0].descriptors.len(), packet.descriptors.len());
            }
        }
    }
    assert_eq!(next_number(&null), first_free, "a descriptor was kept");
}

fn check_refusal(refusal: &Refusal) {
    let known = [
        Code::Malformed,
        Code::TooLarge,
        Code::DescriptorCount,
        Code::TruncatedControl,
        Code::UnsupportedKind,
    ];
    assert!(known.contains(&refusal.code()), "{refusal}");
    let text = refusal.to_string();
    assert!(text.len() < 8 * 1024 && !text.contains(char::is_control), "{text:?}");
}

fn frame_of(packet: &Outgoing) -> Frame {
    let descriptors = packet.descriptors.iter().map(|fd: &Arc<OwnedFd>| copy(fd)).collect();
    Frame { bytes: packet.bytes.clone(), descriptors, ..Frame::default() }
}

fn copy(fd: &OwnedFd) -> OwnedFd {
    fd.try_clone().expect("there is room for descriptors")
}

/// The number that the next descriptor will get: it grows if one is kept.
fn next_number(fd: &OwnedFd) -> RawFd {
    copy(fd).as_raw_fd()
}
