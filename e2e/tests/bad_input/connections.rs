//! Connections that a sidecar hands on, and what can be done to them.

use gpu_handoff_e2e::folder::Folder;
use std::fs::File;
use std::io::{Seek, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use gpu_handoff_e2e::node::{PATIENCE, kill};
use gpu_handoff_e2e::rough::{Client, Sidecar, Wire, hello};
use gpu_handoff_e2e::wait;
use gpu_handoff_protocol::codec;
use gpu_handoff_protocol::message::{BrokerBody, ClientBody, ClientMessage, SidecarBody};
use gpu_handoff_protocol::socket::{SeqListener, SeqPacket};
use gpu_handoff_protocol::{Code, PROTOCOL_VERSION};
use gpu_handoff_sys::options;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::scene::{Scene, eventually, expect_code, refused_with};

/// Connections to one slot at a time.
const SLOT_CONNECTIONS: usize = 4;

/// Hands one end of a new connection on, and gives both ends back: the application's and the sidecar's copy.
fn handed_on(sidecar: &mut Sidecar) -> anyhow::Result<(Client, OwnedFd)> {
    let (application, accepted) = SeqPacket::pair()?;
    let copy = accepted.as_fd().try_clone_to_owned()?;
    sidecar.hand_on(accepted.into_fd())??;
    Ok((Client::new(Wire::new(application)), copy))
}

#[test]
fn whatever_is_no_connection() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let mut sidecar = stage.rough_sidecar()?;
        let place = tempfile::tempdir()?;
        let listening = SeqListener::bind(&place.path().join("s"))?;
        let unconnected = rustix::net::socket_with(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )?;
        let (reader, _writer) = rustix::pipe::pipe()?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let stream = std::net::TcpStream::connect(listener.local_addr()?)?;
        let candidates: Vec<OwnedFd> = vec![
            reader,
            File::open("/dev/null")?.into(),
            stream.into(),
            listener.into(),
            UdpSocket::bind("127.0.0.1:0")?.into(),
            UnixDatagram::pair()?.0.into(),
            UnixStream::pair()?.0.into(),
            listening.into_fd(),
            unconnected,
        ];
        for (number, fd) in candidates.into_iter().enumerate() {
            let outcome = sidecar.hand_on(fd)?;
            assert_eq!(
                outcome.as_ref().map_err(|r| r.code()),
                Err(Code::NotAConnection),
                "{number}: {outcome:?}"
            );
        }
        // The same sidecar goes on.
        let (mut client, _copy) = handed_on(&mut sidecar)?;
        client.greet()?;
        Ok(())
    })
}

#[test]
fn a_connection_of_nobody() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let mut sidecar = stage.rough_sidecar()?;
        // Its other end is closed, but its process lives: served, and over at once.
        let (gone, accepted) = SeqPacket::pair()?;
        drop(gone);
        if let Err(refusal) = sidecar.hand_on(accepted.into_fd())? {
            expect_code(&refusal, Code::NotAConnection);
        }
        // Its process is dead.
        let place = tempfile::tempdir()?;
        let (path, listener) = (place.path().join("s"), SeqListener::bind(&place.path().join("s"))?);
        let mut child = Command::new(Folder::shared()?.binary("gpu-handoff-sidecar")?)
            .args(["ready", "--socket"])
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let accepted = wait::until(PATIENCE, "the child connects", || Ok(listener.try_accept()?))?;
        kill(child.id())?;
        child.wait()?;
        refused_with(sidecar.hand_on(accepted)?, Code::PeerUnknown);
        let (mut client, _copy) = handed_on(&mut sidecar)?;
        client.greet()?;
        Ok(())
    })
}

#[test]
fn the_same_connection_twice_and_the_slots_own() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let mut sidecar = stage.rough_sidecar()?;
        let (client, copy) = handed_on(&mut sidecar)?;
        sidecar.hand_on(copy)??;
        // Two sessions read one connection: whatever comes of it, it ends with the connection.
        client.say(1, hello(PROTOCOL_VERSION))?;
        client.say(2, hello(PROTOCOL_VERSION))?;
        client.say(3, ClientBody::Watch)?;
        drop(client);
        // The daemon's own words come back to it as an application's: garbage, refused.
        let mut other = stage.rough_sidecar()?;
        let own = other.wire.socket().as_fd().try_clone_to_owned()?;
        other.begin(SidecarBody::HandOn(own))?;
        other.ended()?;
        let (mut client, _copy) = handed_on(&mut sidecar)?;
        client.greet()?;
        Ok(())
    })
}

/// A child speaks on its parent's connection.
#[test]
fn a_packet_of_another_process() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let mut client = Client::greeted(stage.rough.socket())?;
        ensure!(client.acquire_nothing()?, "the connection does not go on");
        let packet = codec::encode_client(&ClientMessage { request: 77, body: ClientBody::Watch });
        let mut said = tempfile::tempfile()?;
        said.write_all(&packet.bytes)?;
        said.rewind()?;
        let mut child = Command::new("cat");
        child.stdin(said).stdout(client.wire.socket().as_fd().try_clone_to_owned()?);
        ensure!(child.status()?.success(), "the child could not say it");
        expect_code(&client.refused()?, Code::Forked);
        ensure!(Client::greeted(stage.rough.socket())?.acquire_nothing()?, "the pod is not served any more");
        Ok(())
    })
}

/// Who shares the daemon's file description can make each packet bring credentials or a pidfd.
#[test]
fn options_that_attach_to_each_packet() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let mut sidecar = stage.rough_sidecar()?;
        let (mut client, copy) = handed_on(&mut sidecar)?;
        client.greet()?;
        for socket in [copy.as_fd(), client.wire.socket().as_fd()] {
            rustix::net::sockopt::set_socket_passcred(socket, true)?;
            options::pass_pidfd(socket).context("SO_PASSPIDFD needs Linux 6.5")?;
        }
        let before = stage.node.broker_descriptors()?;
        for _ in 0..100 {
            ensure!(client.acquire_nothing()?, "the connection does not go on");
        }
        eventually("no pidfd stays behind", || Ok(stage.node.broker_descriptors()? < before + 20))?;
        // An application can do so with its own end, and the sidecar with the connection to its slot.
        let mut plain = Client::greeted(stage.rough.socket())?;
        options::pass_pidfd(plain.wire.socket().as_fd())?;
        rustix::net::sockopt::set_socket_passcred(plain.wire.socket(), true)?;
        options::pass_pidfd(sidecar.wire.socket().as_fd())?;
        for _ in 0..20 {
            ensure!(plain.acquire_nothing()?, "the connection does not go on");
            let (mut another, _copy) = handed_on(&mut sidecar)?;
            another.greet()?;
        }
        Ok(())
    })
}

#[test]
fn a_description_that_blocks() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let block = |fd: &OwnedFd| fcntl_setfl(fd, fcntl_getfl(fd)? - OFlags::NONBLOCK);
        let mut sidecar = stage.rough_sidecar()?;
        let (mut client, copy) = handed_on(&mut sidecar)?;
        client.greet()?;
        block(&copy)?;
        block(&rustix::io::fcntl_dupfd_cloexec(client.wire.socket(), 0)?)?;
        block(&rustix::io::fcntl_dupfd_cloexec(sidecar.wire.socket(), 0)?)?;
        // The daemon waits for this connection to be readable, then writes until its queue is full, and does neither in
        // the kernel: another connection of the same pod is served all the while.
        for request in 100..2_000 {
            client.say(request, ClientBody::Release(vec![gpu_handoff_protocol::LeaseId(1)]))?;
        }
        let mut other = Client::greeted(stage.rough.socket())?;
        ensure!(other.acquire_nothing()?, "the lane is stuck");
        // All answers are there in the end.
        for request in 100..2_000 {
            ensure!(matches!(client.answer(request)?, BrokerBody::Released(_)), "request {request}");
        }
        Ok(())
    })
}

#[test]
fn more_connections_than_the_quota_allows() -> anyhow::Result<()> {
    const QUOTA: usize = 6;
    let policy = serde_json::json!({ "quota": { "connections": QUOTA } });
    Scene::with_policy(&policy)?.run(|stage| {
        let clients: Vec<Client> =
            (0..40).map(|_| Client::connect(stage.rough.socket())).collect::<anyhow::Result<_>>()?;
        for client in &clients {
            client.say(1, hello(PROTOCOL_VERSION))?;
        }
        let (mut served, mut refused) = (Vec::new(), 0);
        for mut client in clients {
            match client.hear()?.context("an answer")?.body {
                BrokerBody::Welcome(_) => served.push(client),
                BrokerBody::Refused(refusal) => {
                    expect_code(&refusal, Code::TooManyConnections);
                    client.ended()?;
                    refused += 1;
                }
                other => anyhow::bail!("{other:?}"),
            }
        }
        assert_eq!((served.len(), refused), (QUOTA, 40 - QUOTA));
        // Room that is given back can be used again.
        served.truncate(1);
        eventually("a connection is served again", || Ok(Client::greeted(stage.rough.socket()).is_ok()))
    })
}

/// A second sidecar serves the slot, as where two were started for it.
#[test]
fn two_sidecars_of_one_slot_do_not_fight_and_each_says_why() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let mut sidecar = stage.rough_sidecar()?;
        sidecar.begin(SidecarBody::OfferDone)?;
        let told = || stage.rough_log().matches("another sidecar has taken this one's slot over").count();
        eventually("the older one says so", || Ok(told() == 1))?;
        let log = stage.rough_log();
        ensure!(
            log.contains("TOO_MANY_CONNECTIONS") && log.contains("run one sidecar for each slot"),
            "{log}"
        );
        // It comes again after a while, and is the newer one then. Meanwhile the slot is the other's.
        let (mut client, _copy) = handed_on(&mut sidecar)?;
        client.greet()?;
        let refusal = sidecar.refused()?;
        expect_code(&refusal, Code::TooManyConnections);
        ensure!(refusal.compared()[0].what == "sidecars of the slot", "{refusal}");
        // Who was handed on by a sidecar that had to go stays.
        ensure!(client.acquire_nothing()?, "the connection does not go on");
        ensure!(Client::greeted(stage.rough.socket())?.acquire_nothing()?, "the pod is not served any more");
        ensure!(told() == 1, "they fight");
        Ok(())
    })
}

#[test]
fn more_sidecars_than_a_slot_serves() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        // The real one has taken its place.
        let mut sidecars =
            (1..SLOT_CONNECTIONS).map(|_| stage.rough_sidecar()).collect::<anyhow::Result<Vec<_>>>()?;
        for _ in 0..20 {
            let one_more = Sidecar::connect(&stage.slot())?;
            expect_code(&one_more.refused()?, Code::TooManyConnections);
        }
        let (mut client, _copy) = handed_on(&mut sidecars[0])?;
        client.greet()?;
        drop(sidecars);
        eventually("a sidecar is welcome again", || Ok(stage.rough_sidecar().is_ok()))?;
        // Silent ones give their places back in time.
        let silent: Vec<Sidecar> =
            (1..SLOT_CONNECTIONS).map(|_| Sidecar::connect(&stage.slot())).collect::<anyhow::Result<_>>()?;
        for sidecar in silent {
            expect_code(&sidecar.refused()?, Code::HelloExpected);
        }
        drop(client);
        Ok(())
    })
}
