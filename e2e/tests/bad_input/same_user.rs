//! Another process of the daemon's user has so many descriptors in flight that the kernel lets the daemon send none. What
//! has to bring one waits for that alone; nobody loses anything, and what brings none goes on.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use gpu_handoff_e2e::rough::{Client, legacy};
use gpu_handoff_protocol::codec::Outgoing;
use gpu_handoff_protocol::message::{BrokerBody, ClientBody, Target, Wanted};
use gpu_handoff_protocol::socket::SeqPacket;
use rustix::process::{Gid, Resource, Rlimit, Uid};
use std::os::unix::fs::MetadataExt;

use crate::descriptors::set_limit;
use crate::scene::{BYTES, Scene, Stage, device};
use crate::source::SOURCE;

/// What the daemon may have open, and so have in flight with all its user's processes.
const LIMIT: u64 = 1_024;
/// Descriptors in a packet: the most that the kernel lets one carry.
const PACKET: usize = 253;
/// Packets that are parked: more descriptors than [`LIMIT`].
const PACKETS: usize = 5;
/// What a request takes that has to wait for nobody.
const SOON: Duration = Duration::from_millis(250);

/// Packets that wait in sockets, sent by the daemon's user.
fn park(stage: &Stage) -> anyhow::Result<Vec<(SeqPacket, SeqPacket)>> {
    let owner = std::fs::metadata(format!("/proc/{}", stage.node.broker_pid()?))?;
    let (uid, gid) = (Uid::from_raw(owner.uid()), Gid::from_raw(owner.gid()));
    let null = std::sync::Arc::new(std::fs::File::open("/dev/null")?.into());
    let parking = std::thread::spawn(move || {
        // The user of this thread alone, which ends.
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        let packet = Outgoing { bytes: vec![7], descriptors: vec![null; PACKET] };
        let one = || {
            let (parking, place) = SeqPacket::pair()?;
            ensure!(parking.try_send(&packet)?, "there is no room");
            Ok((parking, place))
        };
        (0..PACKETS).map(|_| one()).collect()
    });
    parking.join().map_err(|_| anyhow::anyhow!("the thread broke off"))?
}

/// The slowest of many requests that bring no descriptor.
fn slowest(client: &mut Client) -> anyhow::Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..200 {
        let begin = Instant::now();
        ensure!(client.acquire_nothing()?, "the connection does not go on");
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    times.iter().rev().nth(2).copied().context("times")
}

#[test]
fn another_process_of_the_daemons_user_parks_descriptors() -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        let why = "the daemon's user is this test's, which could not send any either";
        ensure!(std::env::var("GPU_HANDOFF_TESTS").as_deref() != Ok("all"), "{why}");
        let line = format!("SKIPPED: another_process_of_the_daemons_user_parks_descriptors: {why}\n");
        return Ok(std::io::stderr().write_all(line.as_bytes())?);
    }
    Scene::start()?.run_disturbed(|stage| {
        let source = stage.source()?;
        let broker =
            rustix::process::Pid::from_raw(i32::try_from(stage.node.broker_pid()?)?).context("a number")?;
        let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
        let before = set_limit(broker, Rlimit { current: Some(LIMIT), maximum })?;
        let mut bystander = Client::greeted(stage.consumer_socket())?;
        let alone = slowest(&mut bystander)?;
        let parked = park(stage)?;
        let mut waiting = Client::greeted(stage.rough.socket())?;
        let items = vec![Wanted { target: Target::Name(SOURCE.parse()?), newer_than: 0 }];
        let request = waiting.begin(ClientBody::Acquire { items, wait: Duration::ZERO, device: None })?;
        // The others are served all the while, of its own pod too, with all that brings no descriptor.
        let beside = slowest(&mut bystander)?;
        ensure!(beside <= SOON.max(alone * 10), "a request took {beside:?}, and {alone:?} before");
        let mut sibling = Client::greeted(stage.rough.socket())?;
        sibling.publish_one(legacy("brings-none", device(0), BYTES)?)??;
        bystander.acquire(Target::Name("brings-none".parse()?), Duration::ZERO)??;
        // What it waits for has not come, and its connection goes on.
        let early = waiting.wire.recv_within(Duration::from_millis(100));
        ensure!(early.is_err(), "the kernel sent it all the same: {early:?}");
        drop(parked);
        let BrokerBody::Acquired(outcomes) = waiting.answer(request)? else { anyhow::bail!("no outcomes") };
        ensure!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        set_limit(broker, before)?;
        drop((waiting, sibling, bystander));
        source.finish()
    })
}
