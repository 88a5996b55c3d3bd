//! ttrpc, as far as NRI uses it: calls with one question and one answer.
//!
//! A frame has a head of 10 bytes: length (u32, big endian), stream (u32, big endian), type and flags (a byte each).
//! The caller numbers its streams, odd and rising; the answer comes with the question's number.

use prost::Message as _;

use crate::limits;
pub use crate::proto::ttrpc::{Request, Response, Status};

const HEAD_BYTES: usize = 10;

/// gRPC's codes, those that are used here.
pub mod code {
    /// It went well.
    pub const OK: i32 = 0;
    /// Any other failure: the text says what it is.
    pub const UNKNOWN: i32 = 2;
    /// The question cannot be read.
    pub const INVALID_ARGUMENT: i32 = 3;
    /// It cannot be answered now.
    pub const FAILED_PRECONDITION: i32 = 9;
    /// There is no such call.
    pub const UNIMPLEMENTED: i32 = 12;
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Begins a stream.
    Request,
    /// Ends it.
    Response,
    /// Anything else: part of a stream with many messages, or of a later protocol. To be passed over.
    Other(u8),
}

impl Kind {
    fn number(self) -> u8 {
        match self {
            Self::Request => 1,
            Self::Response => 2,
            Self::Other(number) => number,
        }
    }
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Which call it belongs to.
    pub stream: u32,
    /// What it is.
    pub kind: Kind,
    /// Of a request: 0 where neither side will send more.
    pub flags: u8,
    /// What it carries.
    pub data: Vec<u8>,
}

impl Frame {
    /// The question of a call.
    #[must_use]
    pub fn request(stream: u32, request: &Request) -> Self {
        Self { stream, kind: Kind::Request, flags: 0, data: request.encode_to_vec() }
    }

    /// The answer of a call.
    #[must_use]
    pub fn response(stream: u32, response: &Response) -> Self {
        Self { stream, kind: Kind::Response, flags: 0, data: response.encode_to_vec() }
    }

    /// As it is sent.
    ///
    /// # Errors
    /// When it is longer than the protocol allows.
    pub fn encode(&self) -> Result<Vec<u8>, TooLong> {
        let length = u32::try_from(self.data.len()).unwrap_or(u32::MAX);
        check(length)?;
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.data.len());
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&self.stream.to_be_bytes());
        bytes.extend_from_slice(&[self.kind.number(), self.flags]);
        bytes.extend_from_slice(&self.data);
        Ok(bytes)
    }
}

/// A message is longer than the protocol allows. Nothing that follows is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message is said to have {bytes} bytes, more than the protocol allows ({})", limits::MESSAGE_BYTES)]
pub struct TooLong {
    /// What its head says.
    pub bytes: u32,
}

/// Puts the frames of one connection together.
#[derive(Debug, Default)]
pub struct Frames {
    /// A frame that is not complete, from its head on.
    begun: Vec<u8>,
}

impl Frames {
    /// Takes the next bytes of the connection, however they were cut.
    ///
    /// # Errors
    /// When a frame is too long.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<Vec<Frame>, TooLong> {
        let mut frames = Vec::new();
        loop {
            let wanted = self.wanted()?;
            let (now, rest) = bytes.split_at(bytes.len().min(wanted - self.begun.len()));
            self.begun.extend_from_slice(now);
            bytes = rest;
            // The head's last byte may have changed what is wanted.
            if self.begun.len() == self.wanted()? {
                frames.extend(self.complete());
            } else if bytes.is_empty() {
                return Ok(frames);
            }
        }
    }

    /// How many bytes the begun frame has, as far as it is known.
    fn wanted(&self) -> Result<usize, TooLong> {
        match self.begun.first_chunk::<HEAD_BYTES>() {
            None => Ok(HEAD_BYTES),
            Some(&[a, b, c, d, ..]) => Ok(HEAD_BYTES + check(u32::from_be_bytes([a, b, c, d]))?),
        }
    }

    /// Takes the frame out that is complete.
    fn complete(&mut self) -> Option<Frame> {
        let mut data = std::mem::take(&mut self.begun);
        let &[_, _, _, _, a, b, c, d, kind, flags] = data.first_chunk::<HEAD_BYTES>()?;
        data.drain(..HEAD_BYTES);
        let kind = match kind {
            1 => Kind::Request,
            2 => Kind::Response,
            other => Kind::Other(other),
        };
        Some(Frame { stream: u32::from_be_bytes([a, b, c, d]), kind, flags, data })
    }
}

fn check(length: u32) -> Result<usize, TooLong> {
    match usize::try_from(length) {
        Ok(bytes) if bytes <= limits::MESSAGE_BYTES => Ok(bytes),
        _ => Err(TooLong { bytes: length }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn in_parts(mut bytes: &[u8], parts: &[usize]) -> Result<Vec<Frame>, TooLong> {
        let (mut frames, mut all) = (Frames::default(), Vec::new());
        for part in parts.iter().cycle() {
            if bytes.is_empty() {
                break;
            }
            let (now, rest) = bytes.split_at(bytes.len().min(*part));
            bytes = rest;
            all.extend(frames.feed(now)?);
        }
        Ok(all)
    }

    fn kind() -> impl Strategy<Value = Kind> {
        prop_oneof![Just(Kind::Request), Just(Kind::Response), (3..=u8::MAX).prop_map(Kind::Other)]
    }

    prop_compose! {
        fn frame()(
            stream in any::<u32>(),
            kind in kind(),
            flags in any::<u8>(),
            data in prop::collection::vec(any::<u8>(), 0..300),
        ) -> Frame {
            Frame { stream, kind, flags, data }
        }
    }

    proptest! {
        #[test]
        fn any_cutting_gives_the_same_messages(
            frames in prop::collection::vec(frame(), 0..8),
            parts in prop::collection::vec(1_usize..200, 1..8),
        ) {
            let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.encode().unwrap()).collect();
            prop_assert_eq!(in_parts(&bytes, &parts).unwrap(), frames);
        }

        #[test]
        fn strangers_bytes_are_read_or_refused_the_same_however_they_come(
            bytes in prop::collection::vec(prop_oneof![3 => 0_u8..3, 1 => any::<u8>()], 0..300),
            parts in prop::collection::vec(1_usize..50, 1..8),
        ) {
            prop_assert_eq!(in_parts(&bytes, &parts), in_parts(&bytes, &[bytes.len().max(1)]));
        }

        #[test]
        fn messages_stay_what_they_are(
            service in ".*",
            method in ".*",
            payload in prop::collection::vec(any::<u8>(), 0..100),
            code in any::<i32>(),
        ) {
            let request = Request { service, method: method.clone(), payload: payload.clone(), timeout_nano: 7 };
            let frame = Frame::request(1, &request);
            prop_assert_eq!(Request::decode(frame.data.as_slice()).unwrap(), request);
            let response = Response { status: Some(Status { code, message: method }), payload };
            let frame = Frame::response(1, &response);
            prop_assert_eq!(Response::decode(frame.data.as_slice()).unwrap(), response);
        }
    }

    #[test]
    fn the_longest_message_is_read_and_a_longer_one_refused_by_its_head() {
        let longest = Frame { stream: 1, kind: Kind::Request, flags: 0, data: vec![1; 4 << 20] };
        let bytes = longest.encode().unwrap();
        assert_eq!(in_parts(&bytes, &[limits::READ_BYTES]), Ok(vec![longest]));

        let longer = Frame { stream: 1, kind: Kind::Request, flags: 0, data: vec![1; (4 << 20) + 1] };
        let too_long = Err(TooLong { bytes: (4 << 20) + 1 });
        assert_eq!(longer.encode().map(|_| ()), too_long);
        assert_eq!(Frames::default().feed(&[0, 0x40, 0, 1, 0, 0, 0, 1, 1, 0]).map(|_| ()), too_long);
    }

    #[test]
    fn messages_without_anything_in_them_follow_one_another() {
        let empty = |stream| Frame { stream, kind: Kind::Response, flags: 0, data: vec![] };
        let bytes = [empty(1).encode().unwrap(), empty(3).encode().unwrap()].concat();
        assert_eq!(Frames::default().feed(&bytes), Ok(vec![empty(1), empty(3)]));
    }
}
