//! Files whose close blocks for as long as their sender likes: closed, cut off, left unread; and files of strange kinds.

use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use gpu_handoff_e2e::rough::{Client, Shared, Sidecar, vmm};
use gpu_handoff_protocol::Code;
use gpu_handoff_protocol::limits::MESSAGE_DESCRIPTORS;
use gpu_handoff_protocol::message::SidecarBody;
use rustix::process::{Pid, Signal, kill_process};

use crate::daemon::{MEMBER, Place};
use crate::descriptors::{FewDescriptors, publish_bytes};
use crate::scene::{BYTES, Scene, device, expect_code, refused_with};

/// How long a close blocks.
const LINGER: Duration = Duration::from_secs(2);
/// The same, where nobody waits for that.
const FOR_EVER: Duration = Duration::from_secs(600);
/// What a request of another member may take meanwhile.
const SOON: Duration = Duration::from_millis(250);

/// Where nobody reads what is sent.
struct Sink(TcpListener);

impl Sink {
    fn new() -> anyhow::Result<Self> {
        Ok(Self(TcpListener::bind("127.0.0.1:0")?))
    }

    /// A socket with unsent data; the last close of it blocks.
    fn lingering(&self) -> anyhow::Result<(Shared, TcpStream)> {
        self.lingering_for(LINGER)
    }

    fn lingering_for(&self, time: Duration) -> anyhow::Result<(Shared, TcpStream)> {
        let mut sender = TcpStream::connect(self.0.local_addr()?)?;
        let reader = self.0.accept()?.0;
        sender.set_nonblocking(true)?;
        let chunk = vec![0; 1 << 20];
        while sender.write(&chunk).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&sender, Some(time))?;
        Ok((Arc::new(OwnedFd::from(sender)), reader))
    }
}

/// The lane of the pod is stuck for about as long as a close blocks; says for how long it was.
fn until_served(socket: &std::path::Path, begin: Instant) -> anyhow::Result<Duration> {
    ensure!(Client::greeted(socket)?.acquire_nothing()?, "the pod is not served any more");
    Ok(begin.elapsed())
}

/// Does it until the daemon's close was the last one: this side's own may come after it, and blocks then.
fn until_the_daemon_is_blocked(mut attempt: impl FnMut() -> anyhow::Result<Duration>) -> anyhow::Result<()> {
    const ATTEMPTS: usize = 8;
    for _ in 0..ATTEMPTS {
        if attempt()? >= LINGER / 2 {
            return Ok(());
        }
    }
    anyhow::bail!("the daemon's close did not block in {ATTEMPTS} attempts")
}

#[test]
fn more_than_a_packet_may_carry_and_one_blocks_its_closer() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let sink = Sink::new()?;
        until_the_daemon_is_blocked(|| {
            let client = Client::greeted(stage.rough.socket())?;
            let (lingering, _reader) = sink.lingering()?;
            let null: Shared = Arc::new(File::open("/dev/null")?.into());
            let mut attached = vec![null; MESSAGE_DESCRIPTORS];
            attached.push(lingering);
            client.wire.send(publish_bytes(1)?, attached)?;
            let begin = Instant::now();
            expect_code(&client.refused()?, Code::DescriptorCount);
            until_served(stage.rough.socket(), begin)
        })?;
        stage.sample()
    })
}

#[test]
fn left_unread_on_a_connection_that_the_daemon_ends() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let sink = Sink::new()?;
        until_the_daemon_is_blocked(|| {
            let client = Client::greeted(stage.rough.socket())?;
            // The first blocks the lane, so that the second is there, unread, when the daemon ends the connection.
            let (first, _first_reader) = sink.lingering()?;
            let (second, _second_reader) = sink.lingering()?;
            client.wire.send(b"no message".to_vec(), vec![first])?;
            let begin = Instant::now();
            client.wire.send(publish_bytes(1)?, vec![second])?;
            expect_code(&client.refused()?, Code::Malformed);
            let stuck = until_served(stage.rough.socket(), begin)?;
            // By both, one after the other.
            Ok(stuck.saturating_sub(LINGER))
        })?;
        stage.sample()
    })
}

#[test]
fn offered_by_a_sidecar_and_handed_on() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let sink = Sink::new()?;
        until_the_daemon_is_blocked(|| {
            let mut sidecar: Sidecar = stage.rough_sidecar()?;
            let (lingering, _reader) = sink.lingering()?;
            let begin = Instant::now();
            let lingering = Arc::into_inner(lingering).context("one owner")?;
            sidecar.begin(SidecarBody::HandOn(lingering))?;
            stage.sample()?;
            let answer = sidecar.hear()?.context("an answer")?;
            let gpu_handoff_protocol::message::SlotBody::HandedOn(outcome) = answer.body else {
                anyhow::bail!("{answer:?}")
            };
            refused_with(outcome, Code::NotAConnection);
            Ok(begin.elapsed())
        })
    })
}

/// The kernel itself closes what the daemon's table has no room for, in the daemon's call.
#[test]
fn cut_off_by_the_kernel() -> anyhow::Result<()> {
    let mut scene = Scene::start()?;
    let stage = &scene.stage;
    let sink = Sink::new()?;
    let client = Client::greeted(stage.rough.socket())?;
    // The pair would get no descriptor either, so it rests; who needs none is served.
    let mut bystander = Client::greeted(stage.consumer_socket())?;
    stage.settled()?;
    {
        let _few = FewDescriptors::of(stage.node.broker_pid()?, 2)?;
        let null: Shared = Arc::new(File::open("/dev/null")?.into());
        let (lingering, _reader) = sink.lingering()?;
        let mut attached = vec![null; MESSAGE_DESCRIPTORS - 1];
        attached.push(lingering);
        client.wire.send(publish_bytes(MESSAGE_DESCRIPTORS)?, attached)?;
        let (begin, mut times) = (Instant::now(), Vec::new());
        while begin.elapsed() < LINGER / 2 {
            let asked = Instant::now();
            ensure!(bystander.acquire_nothing()?, "another member's connection has ended");
            times.push(asked.elapsed());
        }
        times.sort_unstable();
        let slow = times.iter().rev().nth(times.len() / 100).copied().context("times")?;
        ensure!(slow <= SOON, "another member's request took {slow:?}");
        expect_code(&client.refused()?, Code::TruncatedControl);
        ensure!(begin.elapsed() >= LINGER / 2, "the kernel's close did not block: {:?}", begin.elapsed());
    }
    drop(bystander);
    scene.act(|_| Ok(()))?;
    scene.end()
}

/// Terminals: a master, and the slave that belongs to it.
#[test]
fn terminals() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let mut client = Client::greeted(stage.rough.socket())?;
        let master: Shared = Arc::new(File::options().read(true).write(true).open("/dev/ptmx")?.into());
        let item = || vmm("terminal", device(0), BYTES, master.clone());
        for _ in 0..10 {
            refused_with(client.publish_one(item()?)?, Code::NotGpuMemory);
        }
        let mut sidecar = stage.rough_sidecar()?;
        let copy = File::options().read(true).write(true).open("/dev/ptmx")?;
        refused_with(sidecar.hand_on(copy.into())?, Code::NotAConnection);
        stage.sample()
    })
}

#[test]
fn left_unread_in_a_slot_whose_daemon_stops() -> anyhow::Result<()> {
    let place = Place::new(&format!(r#"{{"members":[{MEMBER}]}}"#))?;
    let plugin = place.start_plugin()?;
    drop(Sidecar::greeted(&place.slot())?);
    // As after the broker's farewell: nobody accepts.
    let own = plugin.0.id();
    for child in std::fs::read_to_string(format!("/proc/{own}/task/{own}/children"))?.split_whitespace() {
        kill_process(Pid::from_raw(child.parse()?).context("a process number")?, Signal::STOP)?;
    }
    let (lingering, _reader) = Sink::new()?.lingering_for(FOR_EVER)?;
    Sidecar::connect(&place.slot())?.wire.send(b"anything".to_vec(), vec![lingering])?;
    plugin.signal(Signal::TERM)?;
    // The broker had to be killed, so this is no good end; but it is one.
    plugin.ended()?;
    ensure!(!place.slot().join("slot.sock").exists(), "somebody may still connect");
    Ok(())
}
