//! A process that misbehaves on its own account, for tests that need one to kill.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Parser, Subcommand};
use gpu_handoff_e2e::rough::{Client, vmm};
use gpu_handoff_protocol::limits::MESSAGE_ITEMS;
use gpu_handoff_protocol::message::{BrokerBody, Carrier, ClientBody, Grant, Target, Wanted};
use gpu_handoff_protocol::{DeviceUuid, SetPart};

/// Misbehaves until its standard input ends, or until it is killed.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    deed: Deed,
    /// The pod's socket.
    #[arg(long, global = true, default_value = "/run/gpu-handoff/app.sock")]
    socket: PathBuf,
    /// A published buffer, whose descriptor is used.
    #[arg(long, global = true, default_value = "source")]
    source: String,
    /// Where somebody accepts connections and reads nothing.
    #[arg(long, global = true, default_value = "127.0.0.1:1")]
    sink: SocketAddr,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Deed {
    /// Publish again and again, packet upon packet, and read no answer.
    Publish,
    /// Publish and acquire, and leave the connection to a child process, whose number is printed.
    Fork,
    /// Publish the first part of a set, and no more.
    HalfASet,
    /// Publish sockets whose close blocks, all in one packet.
    Linger,
    /// Acquire the source to map it on this GPU, and print the code of the refusal, or `granted`.
    Reach {
        /// The GPU.
        device: DeviceUuid,
    },
}

/// How many sockets [`Deed::Linger`] publishes.
const LINGERING: usize = 24;

fn main() -> anyhow::Result<()> {
    let Args { deed, socket, source, sink } = Args::parse();
    let mut client = Client::greeted(&socket)?;
    if let Deed::Reach { device } = deed {
        return reach(&mut client, &source, device);
    }
    let grant = client.acquire(Target::Name(source.parse()?), gpu_handoff_e2e::node::PATIENCE)??;
    match deed {
        Deed::Publish => publish(&client, &grant),
        Deed::Fork => fork(client, &grant),
        Deed::HalfASet => half_a_set(client, &grant),
        Deed::Linger => linger(&client, &grant, sink),
        Deed::Reach { .. } => Ok(()), // Done above.
    }
}

fn reach(client: &mut Client, source: &str, device: DeviceUuid) -> anyhow::Result<()> {
    let items = vec![Wanted { target: Target::Name(source.parse()?), newer_than: 0 }];
    let body = ClientBody::Acquire { items, wait: Duration::ZERO, device: Some(device) };
    match client.ask(body)? {
        BrokerBody::Acquired(outcomes) => match outcomes.first() {
            Some(Ok(_)) => println!("granted"),
            Some(Err(refusal)) => println!("{refusal}"),
            None => anyhow::bail!("no outcome"),
        },
        other => anyhow::bail!("answered by {other:?}"),
    }
    Ok(())
}

fn publish(client: &Client, grant: &Grant) -> anyhow::Result<()> {
    let Carrier::Descriptor(memory) = &grant.carrier else { anyhow::bail!("the source has no descriptor") };
    let facts = &grant.buffer.facts;
    for request in 100.. {
        let item =
            |i| vmm(&format!("flood-{request}-{i}"), facts.device, facts.allocation_size, memory.clone());
        let items = (0..MESSAGE_ITEMS).map(item).collect::<Result<_, _>>()?;
        ensure!(client.say(request, ClientBody::Publish(items))?, "the broker ended the connection");
        if request == 104 {
            say("publishing")?;
        }
    }
    Ok(())
}

fn half_a_set(mut client: Client, grant: &Grant) -> anyhow::Result<()> {
    let Carrier::Descriptor(memory) = &grant.carrier else { anyhow::bail!("the source has no descriptor") };
    let facts = &grant.buffer.facts;
    let item = |i| vmm(&format!("layer-{i}"), facts.device, facts.allocation_size, memory.clone());
    let items = (0..MESSAGE_ITEMS).map(item).collect::<Result<_, _>>()?;
    let part = SetPart { name: "model".parse()?, total: 300, first: 0 };
    match client.ask(ClientBody::PublishSet { part, items })? {
        BrokerBody::Published(outcomes) if outcomes.iter().all(Result::is_ok) => say("half")?,
        other => anyhow::bail!("the part was answered by {other:?}"),
    }
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn fork(mut client: Client, grant: &Grant) -> anyhow::Result<()> {
    let Carrier::Descriptor(memory) = &grant.carrier else { anyhow::bail!("the source has no descriptor") };
    let facts = &grant.buffer.facts;
    client.publish_one(vmm("of-the-dead", facts.device, facts.allocation_size, memory.clone())?)??;
    let copy = client.wire.socket().as_fd().try_clone_to_owned()?;
    // The copy is the child's standard input: `cat` would end with the connection, `sleep` does not look at it.
    let child = Command::new("sleep").arg("60").stdin(Stdio::from(copy)).stdout(Stdio::null()).spawn();
    say(&child.context("start the child")?.id().to_string())?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn linger(client: &Client, grant: &Grant, sink: SocketAddr) -> anyhow::Result<()> {
    let device = grant.buffer.facts.device;
    // This side's copies end with the process, which waits for nothing then: a close here could be the last one.
    let sockets = (0..LINGERING).map(|_| lingering(sink).map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
    let item = |(i, socket): (usize, &Arc<OwnedFd>)| {
        vmm(&format!("lingering-{i}"), device, 2 << 20, Arc::clone(socket))
    };
    let items = sockets.iter().enumerate().map(item).collect::<Result<_, _>>()?;
    ensure!(client.say(100, ClientBody::Publish(items))?, "the broker ended the connection");
    say("lingering")?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A socket with unsent data, whose close waits for that to be read.
fn lingering(sink: SocketAddr) -> anyhow::Result<OwnedFd> {
    let mut sender = TcpStream::connect(sink)?;
    rustix::net::sockopt::set_socket_send_buffer_size(&sender, 4 << 10)?;
    sender.set_nonblocking(true)?;
    let chunk = [0; 64 << 10];
    while sender.write(&chunk).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&sender, Some(Duration::from_secs(10)))?;
    Ok(sender.into())
}

fn say(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
