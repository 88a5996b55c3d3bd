//! Many buffers, and handing them off as fast as the node can.
//!
//! Who takes buffers here speaks the protocol itself, by the same sockets and codec as the client library: the library
//! maps whatever it acquires, and this is about the node alone. A descriptor is received, owned, and closed.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use gpu_handoff_client::{Buffer, Client};
use gpu_handoff_cuda::{Driver, VmmAllocation};
use gpu_handoff_protocol::codec;
use gpu_handoff_protocol::limits::MESSAGE_ITEMS;
use gpu_handoff_protocol::message::{
    BrokerBody, Carrier, ClientBody, ClientMessage, RequestId, Target, Wanted,
};
use gpu_handoff_protocol::socket::{Received, RecvBuffer, SeqPacket, wait};
use gpu_handoff_protocol::{BufferName, LeaseId, PROTOCOL_VERSION};
use rustix::event::PollFlags;
use serde::{Deserialize, Serialize};

use super::memory::first_device;
use super::now_ns;

/// How long the node may take for one answer.
const ANSWER: Duration = Duration::from_secs(20);

/// What became of hand-offs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct HandedOff {
    /// Buffers acquired whose descriptor came and was closed.
    pub granted: u64,
    /// Leases released.
    pub released: u64,
    /// Items refused.
    pub refused: u64,
    /// When the first acquire was sent, on the machine's monotonic clock.
    pub began_ns: u64,
    /// When the last release was answered.
    pub ended_ns: u64,
    /// From sending an acquire to the answer to its release, for each pair of messages.
    pub took_ns: Vec<u32>,
}

/// What to hand off.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub(super) buffers: usize,
    pub(super) batch: usize,
    pub(super) begin_ns: u64,
    pub(super) millis: u64,
    pub(super) seed: u64,
}

/// The name of a buffer of `PublishMany`.
#[must_use]
pub fn name(number: usize) -> String {
    format!("buffer-{number:08}")
}

/// Makes memory and publishes it, in as few packets as possible.
pub(super) fn publish(
    client: &Client,
    numbers: Range<usize>,
    bytes: u64,
    metadata_bytes: usize,
) -> anyhow::Result<Vec<VmmAllocation>> {
    let (driver, device) = (Driver::load()?, first_device()?);
    let mut made = Vec::with_capacity(numbers.len());
    let numbers: Vec<usize> = numbers.collect();
    for part in numbers.chunks(MESSAGE_ITEMS) {
        let memory: Result<Vec<_>, _> =
            part.iter().map(|_| VmmAllocation::create(driver, device, bytes)).collect();
        let memory = memory?;
        let buffers = part.iter().zip(&memory).map(|(number, memory)| {
            Ok(Buffer::named(&name(*number))?.vmm(memory).metadata(vec![0x5A; metadata_bytes]))
        });
        let buffers: anyhow::Result<Vec<_>> = buffers.collect();
        for published in client.publish_many(buffers?)? {
            // Stays published for as long as the connection does.
            drop(published?);
        }
        made.extend(memory);
    }
    Ok(made)
}

/// A connection that takes buffers.
pub(super) struct Taker {
    socket: SeqPacket,
    buffer: RecvBuffer,
    last_request: RequestId,
}

impl Taker {
    pub(super) fn connect(path: &Path) -> anyhow::Result<Self> {
        let socket = SeqPacket::connect(path).with_context(|| format!("connect to {}", path.display()))?;
        let mut taker = Self { socket, buffer: RecvBuffer::new(), last_request: 0 };
        let hello = ClientBody::Hello { version: PROTOCOL_VERSION, program: "e2e taker".to_owned() };
        match taker.ask(hello)? {
            BrokerBody::Welcome(_) => Ok(taker),
            other => bail!("the hello was answered by {other:?}"),
        }
    }

    /// Hands off until the time is over.
    pub(super) fn hand_off(&mut self, work: &Work) -> anyhow::Result<HandedOff> {
        ensure!(work.buffers > 0 && work.batch > 0, "at least one buffer, and one in a message");
        let mut random = Random(work.seed);
        std::thread::sleep(Duration::from_nanos(work.begin_ns.saturating_sub(now_ns())));
        let (begin, time) = (Instant::now(), Duration::from_millis(work.millis));
        let mut done = HandedOff { began_ns: now_ns(), ..HandedOff::default() };
        while begin.elapsed() < time {
            let items: anyhow::Result<Vec<Wanted>> =
                (0..work.batch).map(|_| wanted(random.below(work.buffers))).collect();
            let items = items?;
            let began = Instant::now();
            let leases = self.acquire(items, &mut done)?;
            self.release(leases, &mut done)?;
            done.took_ns.push(u32::try_from(began.elapsed().as_nanos()).unwrap_or(u32::MAX));
        }
        done.ended_ns = now_ns();
        Ok(done)
    }

    fn acquire(&mut self, items: Vec<Wanted>, done: &mut HandedOff) -> anyhow::Result<Vec<LeaseId>> {
        let outcomes = match self.ask(ClientBody::Acquire { items, wait: Duration::ZERO, device: None })? {
            BrokerBody::Acquired(outcomes) => outcomes,
            other => bail!("an acquire was answered by {other:?}"),
        };
        let mut leases = Vec::with_capacity(outcomes.len());
        for outcome in outcomes {
            match outcome {
                Ok(grant) => {
                    ensure!(matches!(grant.carrier, Carrier::Descriptor(_)), "a grant without descriptor");
                    // The only hold on the descriptor: this closes it.
                    drop(grant.carrier);
                    leases.push(grant.lease);
                    done.granted += 1;
                }
                Err(_) => done.refused += 1,
            }
        }
        Ok(leases)
    }

    fn release(&mut self, leases: Vec<LeaseId>, done: &mut HandedOff) -> anyhow::Result<()> {
        if leases.is_empty() {
            return Ok(());
        }
        match self.ask(ClientBody::Release(leases))? {
            BrokerBody::Released(outcomes) => {
                let refused = outcomes.iter().filter(|outcome| outcome.is_err()).count() as u64;
                done.released += outcomes.len() as u64 - refused;
                done.refused += refused;
                Ok(())
            }
            other => bail!("a release was answered by {other:?}"),
        }
    }

    fn ask(&mut self, body: ClientBody) -> anyhow::Result<BrokerBody> {
        self.last_request += 1;
        let request = self.last_request;
        let deadline = Some(Instant::now() + ANSWER);
        self.socket.send(&codec::encode_client(&ClientMessage { request, body }), deadline)?;
        let mut begun: Option<BrokerBody> = None;
        loop {
            let frame = self.next(deadline)?.context("the node ended the connection")?;
            let (message, more) = codec::decode_broker(frame)?;
            match message.body {
                // Notices of buffers that were given to this connection once.
                BrokerBody::Event(_) if message.request == 0 => {}
                BrokerBody::Refused(refusal) => bail!("refused: {refusal}"),
                body if message.request == request => {
                    let answer = match begun.take() {
                        Some(first) => codec::join(first, body, more)?,
                        None => body,
                    };
                    if !more {
                        return Ok(answer);
                    }
                    begun = Some(answer);
                }
                other => bail!("request {request} was answered by {other:?}"),
            }
        }
    }

    /// The next packet. Nothing is there yet as a rule, so it is waited for first.
    fn next(&mut self, deadline: Option<Instant>) -> io::Result<Option<codec::Frame>> {
        loop {
            if !wait(&[(self.socket.as_fd(), PollFlags::IN)], deadline)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.socket.try_recv(&mut self.buffer)? {
                Received::Frame(frame) => return Ok(Some(frame)),
                Received::Closed => return Ok(None),
                Received::Nothing => {}
            }
        }
    }
}

fn wanted(number: usize) -> anyhow::Result<Wanted> {
    Ok(Wanted { target: Target::Name(BufferName::new(name(number))?), newer_than: 0 })
}

/// A sequence that looks random and is the same each time (`SplitMix64`).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.number() % end).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_buffers_are_chosen_and_the_same_again_with_the_same_seed() {
        let draw = |seed| {
            let mut random = Random(seed);
            (0..1000).map(|_| random.below(10)).collect::<Vec<_>>()
        };
        let drawn = draw(7);
        assert!((0..10).all(|n| drawn.contains(&n)) && drawn.iter().all(|n| *n < 10));
        assert_eq!(drawn, draw(7));
        assert_ne!(drawn, draw(8));
    }

    #[test]
    fn names_are_short_enough_for_what_is_reckoned_with() {
        assert_eq!(name(14_999), "buffer-00014999");
    }
}
