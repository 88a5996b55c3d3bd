//! A process that misbehaves on its own account, for tests that need one to kill.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use clap::{Parser, Subcommand};
use gpu_handoff_e2e::rough::{Client, vmm};
use gpu_handoff_protocol::limits::MESSAGE_ITEMS;
use gpu_handoff_protocol::message::{Carrier, ClientBody, Grant, Target};

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
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Deed {
    /// Publish again and again, packet upon packet, and read no answer.
    Publish,
    /// Publish and acquire, and leave the connection to a child process, whose number is printed.
    Fork,
}

fn main() -> anyhow::Result<()> {
    let Args { deed, socket, source } = Args::parse();
    let mut client = Client::greeted(&socket)?;
    let grant = client.acquire(Target::Name(source.parse()?), gpu_handoff_e2e::node::PATIENCE)??;
    match deed {
        Deed::Publish => publish(&client, &grant),
        Deed::Fork => fork(client, &grant),
    }
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

fn say(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
