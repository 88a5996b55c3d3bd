//! A process that tries what it may not, for scenarios in pods: one deed, and a line of what came of each try.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::{Parser, Subcommand};
use gpu_handoff_e2e::node::PATIENCE;
use gpu_handoff_e2e::rough::{Client, Sidecar, Wire, hello, vmm};
use gpu_handoff_e2e::wait;
use gpu_handoff_protocol::DeviceUuid;
use gpu_handoff_protocol::PROTOCOL_VERSION;
use gpu_handoff_protocol::codec::{self, Outgoing};
use gpu_handoff_protocol::message::{BrokerBody, Carrier, SidecarBody, SidecarMessage, SlotBody, Target};
use gpu_handoff_protocol::socket::{SeqListener, SeqPacket, wait as wait_for};
use rustix::event::PollFlags;

/// Tries one thing. What came of it is a line on standard output; a try that could not be made is a failure.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    deed: Deed,
    /// The pod's socket.
    #[arg(long, global = true, default_value = "/run/gpu-handoff/app.sock")]
    socket: PathBuf,
}

#[derive(Debug, Clone, Subcommand)]
enum Deed {
    /// Say hello as an application.
    Hello,
    /// Say hello as the sidecar of a slot.
    Knock {
        /// The slot's folder.
        slot: PathBuf,
    },
    /// Be the sidecar of a slot, and hand on who connects here instead of at the pod's socket.
    Door {
        /// The slot's folder.
        slot: PathBuf,
        /// Where to listen.
        at: PathBuf,
    },
    /// Give one's own connection, after the hello, to who connects here, and use it again when that one is done.
    Lend {
        /// Where to listen.
        at: PathBuf,
    },
    /// Use another's connection.
    Borrow {
        /// Where it is lent.
        at: PathBuf,
    },
    /// Acquire a buffer, and give its memory to who connects here.
    Leak {
        /// The buffer's name.
        name: String,
        /// Where to listen.
        at: PathBuf,
    },
    /// Publish another's memory as one's own, under the same name, until standard input ends.
    Fence {
        /// The buffer's name.
        name: String,
        /// Where it is leaked.
        at: PathBuf,
    },
    /// Ask a slot for more than it can answer, in every way, and read nothing, until killed.
    Storm {
        /// The slot's folder.
        slot: PathBuf,
    },
}

/// Of a storm: packets on each connection, connections that stay open, and those after which it is said to blow.
const PACKETS: u64 = 64;
const KEPT: usize = 256;
const WARM: u64 = 32;

fn main() -> anyhow::Result<()> {
    let Args { deed, socket } = Args::parse();
    match deed {
        Deed::Hello => say(greeted(&mut Client::connect(&socket)?)?),
        Deed::Knock { slot } => say(knock(Sidecar::connect(&slot)?)?),
        Deed::Door { slot, at } => door(&slot, &at),
        Deed::Lend { at } => lend(&socket, &at),
        Deed::Borrow { at } => borrow(&at),
        Deed::Leak { name, at } => leak(&socket, &name, &at),
        Deed::Fence { name, at } => fence(&socket, &name, &at),
        Deed::Storm { slot } => storm(&slot),
    }
}

/// As whom an application is taken, or why not.
fn greeted(client: &mut Client) -> anyhow::Result<String> {
    // The connection may be refused before this is said.
    let _ = client.say(1, hello(PROTOCOL_VERSION));
    match client.hear()?.context("the connection ended without a word")?.body {
        BrokerBody::Welcome(welcome) => Ok(format!("welcome {} of {}", welcome.pod, welcome.group)),
        BrokerBody::Refused(refusal) => Ok(refusal.to_string()),
        other => bail!("the hello was answered by {other:?}"),
    }
}

fn knock(mut sidecar: Sidecar) -> anyhow::Result<String> {
    // The same here.
    let _ = sidecar.begin(SidecarBody::Hello { version: PROTOCOL_VERSION });
    match sidecar.hear()?.context("the slot ended the connection without a word")?.body {
        SlotBody::Welcome { pod, group, .. } => Ok(format!("welcome {pod} of {group}")),
        SlotBody::Refused(refusal) => Ok(refusal.to_string()),
        other => bail!("the hello was answered by {other:?}"),
    }
}

fn door(slot: &Path, at: &Path) -> anyhow::Result<()> {
    let mut sidecar = Sidecar::greeted(slot)?;
    let listener = open_to_all(at)?;
    say("open")?;
    loop {
        let connection = accepted(&listener, None)?;
        match sidecar.hand_on(connection)? {
            Ok(()) => say("handed on")?,
            Err(refusal) => say(refusal)?,
        }
    }
}

fn lend(socket: &Path, at: &Path) -> anyhow::Result<()> {
    let mut client = Client::greeted(socket)?;
    ensure!(client.acquire_nothing()?, "the connection is of no use from the start");
    let borrower = give(at, client.wire.socket().as_fd().try_clone_to_owned()?, b"connection")?;
    is_done(borrower)?;
    match client.acquire_nothing() {
        Ok(true) => say("it goes on"),
        Ok(false) => bail!("what is not there was granted"),
        Err(error) => say(format!("it has ended: {error:#}")),
    }
}

fn borrow(at: &Path) -> anyhow::Result<()> {
    let (_lender, _, connection) = take(at)?;
    let mut client = Client::new(Wire::new(SeqPacket::from_own(connection)));
    match client.acquire_nothing() {
        Ok(found) => say(format!("answered: nothing is there is {found}")),
        Err(error) => say(format!("{error:#}")),
    }
}

fn leak(socket: &Path, name: &str, at: &Path) -> anyhow::Result<()> {
    let mut client = Client::greeted(socket)?;
    let grant = client.acquire(Target::Name(name.parse()?), PATIENCE)??;
    let Carrier::Descriptor(memory) = &grant.carrier else { bail!("{name} has no descriptor") };
    let facts = &grant.buffer.facts;
    let said = format!("{} {}", facts.device, facts.allocation_size);
    is_done(give(at, memory.try_clone()?, said.as_bytes())?)
}

fn fence(socket: &Path, name: &str, at: &Path) -> anyhow::Result<()> {
    let (lender, said, memory) = take(at)?;
    let said = String::from_utf8(said)?;
    let (device, bytes) = said.split_once(' ').context("no device and size")?;
    let (device, bytes): (DeviceUuid, u64) = (device.parse()?, bytes.parse()?);
    let mut client = Client::greeted(socket)?;
    match client.publish_one(vmm(name, device, bytes, Arc::new(memory))?)? {
        Ok(published) => say(format!("published {}", published.id))?,
        Err(refusal) => say(refusal)?,
    }
    drop(lender);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Connections upon connections, with what is no message and with what is no connection; nobody reads an answer.
fn storm(slot: &Path) -> anyhow::Result<()> {
    let null: Arc<OwnedFd> = Arc::new(std::fs::File::open("/dev/null")?.into());
    let message = |request, body| codec::encode_sidecar(SidecarMessage { request, body });
    let mut kept = VecDeque::new();
    for round in 0_u64.. {
        // There may be no room for one more.
        let Ok(sidecar) = Sidecar::connect(slot) else { continue };
        let mut next = message(1, SidecarBody::Hello { version: PROTOCOL_VERSION });
        for request in 2..PACKETS {
            if !matches!(sidecar.wire.socket().try_send(&next), Ok(true)) {
                break;
            }
            next = match round % 2 {
                0 => packet(vec![0xFF; 60_000], Vec::new()),
                _ => message(request, SidecarBody::HandOn(null.try_clone()?)),
            };
        }
        kept.push_back(sidecar);
        if kept.len() > KEPT {
            kept.pop_front();
        }
        if round == WARM {
            say("storming")?;
        }
    }
    Ok(())
}

fn packet(bytes: Vec<u8>, descriptors: Vec<Arc<OwnedFd>>) -> Outgoing {
    Outgoing { bytes, descriptors }
}

/// Gives a descriptor to who connects first, with a few words.
fn give(at: &Path, descriptor: OwnedFd, said: &[u8]) -> anyhow::Result<SeqPacket> {
    let listener = open_to_all(at)?;
    let taker = SeqPacket::from_own(accepted(&listener, Some(PATIENCE))?);
    taker.send(&packet(said.to_vec(), vec![Arc::new(descriptor)]), Some(Instant::now() + PATIENCE))?;
    Ok(taker)
}

/// Whatever the user is of who connects.
fn open_to_all(at: &Path) -> anyhow::Result<SeqListener> {
    let listener = SeqListener::bind(at)?;
    std::fs::set_permissions(at, std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    Ok(listener)
}

/// Takes what is given there, as soon as somebody gives.
fn take(at: &Path) -> anyhow::Result<(SeqPacket, Vec<u8>, OwnedFd)> {
    let giver = wait::until(PATIENCE, "somebody gives", || Ok(SeqPacket::connect(at).ok()))?;
    let mut wire = Wire::new(giver);
    let mut frame = wire.recv()?.context("nothing was given")?;
    let descriptor = frame.descriptors.pop().context("no descriptor was given")?;
    Ok((SeqPacket::from_own(wire.socket().as_fd().try_clone_to_owned()?), frame.bytes, descriptor))
}

/// Waits until the other has gone.
fn is_done(other: SeqPacket) -> anyhow::Result<()> {
    ensure!(Wire::new(other).recv()?.is_none(), "it says something");
    Ok(())
}

fn accepted(listener: &SeqListener, within: Option<Duration>) -> anyhow::Result<OwnedFd> {
    loop {
        let deadline = within.map(|time| Instant::now() + time);
        ensure!(wait_for(&[(listener.as_fd(), PollFlags::IN)], deadline)?, "nobody connected");
        if let Some(connection) = listener.try_accept()? {
            return Ok(connection);
        }
    }
}

fn say(line: impl Display) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}
