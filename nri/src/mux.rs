//! The multiplexer: two connections over one socket.
//!
//! Each frame has a head of 8 bytes, connection and length (both u32, big endian). The runtime calls us over one
//! connection, we call it over the other. A message may be cut into frames anywhere.

use crate::limits;

const HEAD_BYTES: usize = 8;

/// One of the two connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// The runtime asks, the plugin answers.
    Plugin,
    /// The plugin asks, the runtime answers.
    Runtime,
}

impl Connection {
    fn id(self) -> u32 {
        match self {
            Self::Plugin => 1,
            Self::Runtime => 2,
        }
    }
}

/// Some bytes of a connection, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which one.
    pub connection: Connection,
    /// Never none.
    pub bytes: Vec<u8>,
}

/// The bytes are not those of a multiplexer. Nothing that follows can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MuxError {
    /// Connection 0.
    #[error("a frame is for connection 0, which there never is")]
    Reserved,
    /// Longer than any message.
    #[error(
        "a frame is said to have {bytes} bytes, more than a message can have ({})",
        limits::FRAME_BYTES_IN
    )]
    TooLong {
        /// What its head says.
        bytes: u32,
    },
}

/// What is being read.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// So many bytes of a head are there.
    Head(usize),
    /// So many bytes of a frame's payload are missing. `None`: of a connection that we do not know, and leave out.
    Payload(Option<Connection>, usize),
}

/// Takes connections apart. Keeps a head that is not complete and nothing else.
#[derive(Debug)]
pub struct Demux {
    head: [u8; HEAD_BYTES],
    place: Place,
}

impl Default for Demux {
    fn default() -> Self {
        Self { head: [0; HEAD_BYTES], place: Place::Head(0) }
    }
}

impl Demux {
    /// Takes the next bytes of the socket, however they were cut.
    ///
    /// # Errors
    /// When they are no frames: the socket is of no use any more.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<Vec<Piece>, MuxError> {
        let mut pieces = Vec::new();
        while !bytes.is_empty() {
            match self.place {
                Place::Head(have) => {
                    let (now, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES - have));
                    self.head[have..have + now.len()].copy_from_slice(now);
                    bytes = rest;
                    let have = have + now.len();
                    self.place = if have < HEAD_BYTES { Place::Head(have) } else { self.begin()? };
                }
                Place::Payload(connection, left) => {
                    let (now, rest) = bytes.split_at(bytes.len().min(left));
                    bytes = rest;
                    self.place = payload(connection, left - now.len());
                    if let Some(connection) = connection {
                        pieces.push(Piece { connection, bytes: now.to_vec() });
                    }
                }
            }
        }
        Ok(pieces)
    }

    /// What a complete head announces.
    fn begin(&self) -> Result<Place, MuxError> {
        let [a, b, c, d, length @ ..] = self.head;
        let bytes = u32::from_be_bytes(length);
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        if length > limits::FRAME_BYTES_IN {
            return Err(MuxError::TooLong { bytes });
        }
        let connection = match u32::from_be_bytes([a, b, c, d]) {
            0 => return Err(MuxError::Reserved),
            1 => Some(Connection::Plugin),
            2 => Some(Connection::Runtime),
            _ => None,
        };
        Ok(payload(connection, length))
    }
}

fn payload(connection: Option<Connection>, left: usize) -> Place {
    if left == 0 { Place::Head(0) } else { Place::Payload(connection, left) }
}

/// The frames that carry a message. No frame has parts of two messages: the runtime reads a frame at a time.
#[must_use]
pub fn framed(connection: Connection, message: &[u8]) -> Vec<u8> {
    framed_by(connection, message, limits::FRAME_BYTES_OUT)
}

/// As [`framed`], with frames of `most` bytes: a runtime's may be longer than ours.
#[must_use]
pub fn framed_by(connection: Connection, message: &[u8], most: usize) -> Vec<u8> {
    let most = most.clamp(1, limits::FRAME_BYTES_IN);
    let mut frames = Vec::with_capacity(message.len() + HEAD_BYTES * message.len().div_ceil(most));
    for part in message.chunks(most) {
        // At most FRAME_BYTES_IN.
        let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
        frames.extend_from_slice(&connection.id().to_be_bytes());
        frames.extend_from_slice(&length.to_be_bytes());
        frames.extend_from_slice(part);
    }
    frames
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The bytes of each connection.
    fn joined(pieces: &[Piece]) -> [Vec<u8>; 2] {
        [Connection::Plugin, Connection::Runtime].map(|connection| {
            let of_it = pieces.iter().filter(|piece| piece.connection == connection);
            of_it.flat_map(|piece| piece.bytes.clone()).collect()
        })
    }

    /// What comes of bytes that arrive in parts of these lengths, over and over.
    fn in_parts(mut bytes: &[u8], parts: &[usize]) -> Result<[Vec<u8>; 2], MuxError> {
        let (mut demux, mut pieces) = (Demux::default(), Vec::new());
        for part in parts.iter().cycle() {
            if bytes.is_empty() {
                break;
            }
            let (now, rest) = bytes.split_at(bytes.len().min(*part));
            bytes = rest;
            pieces.extend(demux.feed(now)?);
        }
        Ok(joined(&pieces))
    }

    fn connection() -> impl Strategy<Value = Connection> {
        prop_oneof![Just(Connection::Plugin), Just(Connection::Runtime)]
    }

    proptest! {
        #[test]
        fn any_cutting_gives_the_same_bytes(
            messages in prop::collection::vec(
                (connection(), prop::collection::vec(any::<u8>(), 0..9_000), 1_usize..6_000),
                0..6,
            ),
            parts in prop::collection::vec(1_usize..5_000, 1..8),
        ) {
            let mut expected = [Vec::new(), Vec::new()];
            let mut bytes = Vec::new();
            for (connection, message, most) in &messages {
                bytes.extend(framed_by(*connection, message, *most));
                expected[usize::from(*connection == Connection::Runtime)].extend_from_slice(message);
            }
            prop_assert_eq!(in_parts(&bytes, &parts).unwrap(), expected);
        }

        #[test]
        fn strangers_bytes_are_read_or_refused_the_same_however_they_come(
            bytes in prop::collection::vec(prop_oneof![3 => 0_u8..4, 1 => any::<u8>()], 0..300),
            parts in prop::collection::vec(1_usize..50, 1..8),
        ) {
            prop_assert_eq!(in_parts(&bytes, &parts), in_parts(&bytes, &[bytes.len().max(1)]));
        }

        #[test]
        fn our_frames_fit_into_the_runtimes_buffer(message in prop::collection::vec(any::<u8>(), 0..20_000)) {
            let mut frames = framed(Connection::Plugin, &message).into_iter();
            while let Some(first) = frames.next() {
                let head: Vec<u8> = std::iter::once(first).chain(frames.by_ref().take(7)).collect();
                let length = u32::from_be_bytes([head[4], head[5], head[6], head[7]]) as usize;
                prop_assert!((1..=4_096).contains(&length));
                prop_assert_eq!(frames.by_ref().take(length).count(), length);
            }
        }
    }

    #[test]
    fn what_is_no_frame_is_refused_and_unknown_connections_are_left_out() {
        assert_eq!(Demux::default().feed(&[0; 8]), Err(MuxError::Reserved));
        let too_long = [0, 0, 0, 1, 0, 0x40, 0, 11];
        assert_eq!(Demux::default().feed(&too_long), Err(MuxError::TooLong { bytes: (4 << 20) + 11 }));
        assert_eq!(Demux::default().feed(&[0, 0, 0, 1, 0, 0x40, 0, 10]), Ok(vec![]));

        let mut bytes = vec![0, 0, 0, 9, 0, 0, 0, 3, 7, 7, 7];
        bytes.extend(framed(Connection::Runtime, b"a"));
        let piece = Piece { connection: Connection::Runtime, bytes: b"a".to_vec() };
        assert_eq!(Demux::default().feed(&bytes), Ok(vec![piece]));
    }

    #[test]
    fn a_frame_without_anything_in_it_is_passed_over() {
        let mut bytes = vec![0, 0, 0, 1, 0, 0, 0, 0];
        bytes.extend(framed(Connection::Plugin, b"b"));
        let piece = Piece { connection: Connection::Plugin, bytes: b"b".to_vec() };
        assert_eq!(Demux::default().feed(&bytes), Ok(vec![piece]));
        assert_eq!(framed(Connection::Plugin, b""), Vec::<u8>::new());
    }
}
