//! The daemon itself: what it does not start with, how it stops, and the sidecar while it is away.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use gpu_handoff_e2e::folder::Folder;
use gpu_handoff_e2e::node::PATIENCE;
use gpu_handoff_e2e::rough::{Client, Sidecar, hello};
use gpu_handoff_e2e::wait;
use gpu_handoff_protocol::message::{BrokerBody, ClientBody, Target, Wanted};
use gpu_handoff_protocol::{Code, PROTOCOL_VERSION};
use rustix::process::{Pid, Signal};

use crate::scene::{Scene, eventually, expect_code, wait_for_socket};

/// Connections that a sidecar holds while the daemon is away.
const HELD: usize = 64;
/// How long it holds them.
const HOLD_TIME: Duration = Duration::from_secs(10);

/// A member of its own, as a members file names it.
pub(crate) const MEMBER: &str = r#"{"slot":"a","namespace":"demo","pod":"alone","group":"group"}"#;

/// A process of a test, killed with it.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Ok(Self(command.spawn().with_context(|| format!("start {command:?}"))?))
    }

    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.0.id())?).context("a process number")?;
        Ok(rustix::process::kill_process(pid, signal)?)
    }

    /// Waits for its end: how it ended, and what it said.
    pub(crate) fn ended(mut self) -> anyhow::Result<(ExitStatus, String)> {
        let status = wait::until(PATIENCE, "the process ends", || Ok(self.0.try_wait()?))?;
        let mut said = String::new();
        self.0.stderr.take().context("its standard error")?.read_to_string(&mut said)?;
        Ok((status, said))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Ended already where the test went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A place for a daemon, its members file and a sidecar.
pub(crate) struct Place(pub(crate) tempfile::TempDir);

impl Place {
    pub(crate) fn new(members: &str) -> anyhow::Result<Self> {
        let place = Self(tempfile::tempdir()?);
        std::fs::write(place.members(), members)?;
        Ok(place)
    }

    fn members(&self) -> PathBuf {
        self.0.path().join("members.json")
    }

    pub(crate) fn slot(&self) -> PathBuf {
        self.0.path().join("run/slots/a")
    }

    pub(crate) fn door(&self) -> PathBuf {
        self.0.path().join("app.sock")
    }

    pub(crate) fn plugin(&self) -> anyhow::Result<Command> {
        let mut command = Command::new(Folder::shared()?.binary("gpu-handoff-plugin")?);
        command.arg("node").arg("--run-dir").arg(self.0.path().join("run"));
        command.arg("--static-members").arg(self.members());
        command.arg("--kubelet-socket").arg(self.0.path().join("no-kubelet.sock"));
        // Nothing here needs a GPU.
        command
            .env("LD_LIBRARY_PATH", Folder::shared()?.simulator()?)
            .env("SIMCUDA_DIR", self.0.path().join("device"));
        Ok(command)
    }

    pub(crate) fn start_plugin(&self) -> anyhow::Result<Process> {
        let plugin = Process::start(&mut self.plugin()?)?;
        wait_for_socket(&self.slot().join("slot.sock"))?;
        Ok(plugin)
    }

    pub(crate) fn start_sidecar(&self) -> anyhow::Result<Process> {
        let mut command = Command::new(Folder::shared()?.binary("gpu-handoff-sidecar")?);
        command
            .arg("serve")
            .arg("--slot")
            .arg(self.slot().join("slot.sock"))
            .arg("--listen")
            .arg(self.door());
        let sidecar = Process::start(&mut command)?;
        wait_for_socket(&self.door())?;
        Ok(sidecar)
    }
}

/// Starts a plugin that cannot start, and checks that it says why.
fn refuses_to_start(members: &str, reason: &str) -> anyhow::Result<()> {
    let place = Place::new(members)?;
    let (status, said) = Process::start(&mut place.plugin()?)?.ended()?;
    assert_eq!(status.code(), Some(1), "{members}: {said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("gpu-handoff-plugin: ") && last.contains(reason), "{members}: {said}");
    Ok(())
}

#[test]
fn members_files_with_mistakes() -> anyhow::Result<()> {
    let members = |list: &str| format!(r#"{{"members":[{list}]}}"#);
    refuses_to_start("", "does not read as members")?;
    refuses_to_start("members: none", "does not read as members")?;
    refuses_to_start(r#"{"members":{}}"#, "does not read as members")?;
    refuses_to_start(r#"{}"#, "missing field `members`")?;
    refuses_to_start(r#"{"members":[],"polcy":{}}"#, "unknown field `polcy`")?;
    refuses_to_start(r#"{"members":[],"policy":{"legacy":"always"}}"#, "unknown variant `always`")?;
    refuses_to_start(r#"{"members":[],"policy":{"quota":{"buffers":-1}}}"#, "does not read as members")?;
    refuses_to_start(
        &members(&MEMBER.replace("group\"}", "group\",\"gruop\":\"g\"}")),
        "unknown field `gruop`",
    )?;
    refuses_to_start(&members(&MEMBER.replace("\"a\"", "\"../a\"")), "slot id")?;
    refuses_to_start(&members(&MEMBER.replace("\"a\"", "\"\"")), "slot id is empty")?;
    refuses_to_start(&members(&MEMBER.replace("alone", "Not A Pod")), "pod name")?;
    refuses_to_start(
        &members(&MEMBER.replace("demo", &"n".repeat(64))),
        "namespace has 64 bytes, the limit is 63",
    )?;
    refuses_to_start(&members(&format!("{MEMBER},{MEMBER}")), "names the slot a twice")?;
    let other_slot = MEMBER.replace("\"a\"", "\"b\"");
    refuses_to_start(&members(&format!("{MEMBER},{other_slot}")), "names the pod demo/alone twice")?;
    refuses_to_start(&" ".repeat((1 << 20) + 1), "is longer than 1048576 bytes")?;
    // No file, and a folder in its place.
    let place = Place::new("")?;
    std::fs::remove_file(place.members())?;
    let (status, said) = Process::start(&mut place.plugin()?)?.ended()?;
    assert!(status.code() == Some(1) && said.contains("cannot read the members file"), "{said}");
    std::fs::create_dir(place.members())?;
    let (status, said) = Process::start(&mut place.plugin()?)?.ended()?;
    assert!(status.code() == Some(1) && said.contains("cannot read the members file"), "{said}");
    Ok(())
}

#[test]
fn a_second_daemon_for_one_directory() -> anyhow::Result<()> {
    let place = Place::new(&format!(r#"{{"members":[{MEMBER}]}}"#))?;
    let first = place.start_plugin()?;
    let (status, said) = Process::start(&mut place.plugin()?)?.ended()?;
    assert!(status.code() == Some(1) && said.contains("another daemon owns"), "{said}");
    // The first one has not noticed; after a kill -9 the next takes over, stale socket and all.
    drop(Sidecar::greeted(&place.slot())?);
    first.signal(Signal::KILL)?;
    first.ended()?;
    let next = place.start_plugin()?;
    drop(Sidecar::greeted(&place.slot())?);
    next.signal(Signal::TERM)?;
    assert!(next.ended()?.0.success());
    Ok(())
}

#[test]
fn a_second_daemon_for_one_state_directory() -> anyhow::Result<()> {
    let place = Place::new(&format!(r#"{{"members":[{MEMBER}]}}"#))?;
    let other = Place::new(&format!(r#"{{"members":[{MEMBER}]}}"#))?;
    let first = place.start_plugin()?;
    let state = place.0.path().join("run/state");
    let (status, said) = Process::start(other.plugin()?.arg("--state-dir").arg(&state))?.ended()?;
    assert!(status.code() == Some(1) && said.contains("another daemon owns"), "{said}");
    assert!(said.contains(&state.display().to_string()), "{said}");
    drop(Sidecar::greeted(&place.slot())?);
    first.signal(Signal::TERM)?;
    assert!(first.ended()?.0.success());
    Ok(())
}

#[test]
fn a_node_without_members() -> anyhow::Result<()> {
    let place = Place::new(r#"{"members":[]}"#)?;
    let mut plugin = Process::start(&mut place.plugin()?)?;
    let mut said = BufReader::new(plugin.0.stderr.take().context("its standard error")?).lines();
    said.find(|line| line.as_ref().is_ok_and(|line| line.contains("the broker serves")))
        .context("it serves")??;
    plugin.signal(Signal::TERM)?;
    let status = wait::until(PATIENCE, "the process ends", || Ok(plugin.0.try_wait()?))?;
    let rest: Vec<String> = said.collect::<Result<_, _>>()?;
    assert!(status.success() && !rest.iter().any(|line| line.contains("the broker died")), "{rest:#?}");
    Ok(())
}

#[test]
fn a_stop_is_told_to_everybody() -> anyhow::Result<()> {
    let place = Place::new(&format!(r#"{{"members":[{MEMBER}]}}"#))?;
    let plugin = place.start_plugin()?;
    let sidecar = place.start_sidecar()?;
    let mut clients: Vec<Client> =
        (0..5).map(|_| Client::greeted(&place.door())).collect::<Result<_, _>>()?;
    // One waits, one watches, one has not said hello, one is a sidecar.
    let items = vec![Wanted { target: Target::Name("never".parse()?), newer_than: 0 }];
    clients[0].begin(ClientBody::Acquire { items, wait: Duration::from_secs(60), device: None })?;
    clients[1].begin(ClientBody::Watch)?;
    let silent = Client::connect(&place.door())?;
    let rough = Sidecar::greeted(&place.slot())?;
    plugin.signal(Signal::TERM)?;
    for client in clients {
        expect_code(&client.refused()?, Code::ShuttingDown);
    }
    rough.ended()?;
    let (status, said) = plugin.ended()?;
    assert!(status.success(), "{said}");
    ensure!(!place.slot().join("slot.sock").exists(), "the slot's socket is left over");
    // The sidecar holds whoever comes, tells them of its own stop, and takes its socket with it.
    let held = Client::connect(&place.door())?;
    held.say(1, hello(PROTOCOL_VERSION))?;
    drop(silent);
    sidecar.signal(Signal::TERM)?;
    expect_code(&held.refused()?, Code::ShuttingDown);
    let (status, said) = sidecar.ended()?;
    assert!(status.success(), "{said}");
    ensure!(!place.door().exists(), "the pod's socket is left over");
    Ok(())
}

#[test]
fn applications_that_come_before_the_daemon_are_held() -> anyhow::Result<()> {
    let place = Place::new(&format!(r#"{{"members":[{MEMBER}]}}"#))?;
    let _sidecar = place.start_sidecar()?;
    let mut clients: Vec<Client> =
        (0..5).map(|_| Client::connect(&place.door())).collect::<Result<_, _>>()?;
    for client in &clients {
        client.say(1, hello(PROTOCOL_VERSION))?;
    }
    let plugin = place.start_plugin()?;
    for client in &mut clients {
        ensure!(matches!(client.answer(1)?, BrokerBody::Welcome(_)), "no welcome");
        ensure!(client.acquire_nothing()?, "the connection does not go on");
    }
    // The daemon crashes: its applications learn it, new ones are held for its successor.
    plugin.signal(Signal::KILL)?;
    plugin.ended()?;
    for client in clients {
        client.ended()?;
    }
    let mut held = Client::connect(&place.door())?;
    held.say(1, hello(PROTOCOL_VERSION))?;
    let _plugin = place.start_plugin()?;
    ensure!(matches!(held.answer(1)?, BrokerBody::Welcome(_)), "no welcome");
    Ok(())
}

#[test]
fn applications_are_not_held_for_ever_and_not_without_number() -> anyhow::Result<()> {
    let place = Place::new("")?;
    let sidecar = place.start_sidecar()?;
    let open = || Ok::<_, anyhow::Error>(std::fs::read_dir(format!("/proc/{}/fd", sidecar.0.id()))?.count());
    // The look for its socket is a connection too, held until its time is over.
    let before = open()?.min(open()?) - 1;
    let begin = Instant::now();
    let held: Vec<Client> = (1..HELD).map(|_| Client::connect(&place.door())).collect::<Result<_, _>>()?;
    for _ in 0..10 {
        let one_more = Client::connect(&place.door())?;
        one_more.say(1, hello(PROTOCOL_VERSION))?;
        expect_code(&one_more.refused()?, Code::TooManyConnections);
    }
    for client in held {
        expect_code(&client.refused()?, Code::BrokerUnavailable);
    }
    let waited = begin.elapsed();
    assert!(waited >= HOLD_TIME && waited < HOLD_TIME * 2, "{waited:?}");
    eventually("the sidecar has let go of all", || Ok(open()? <= before + 1))?;
    // It is none the worse for it.
    std::fs::write(place.members(), format!(r#"{{"members":[{MEMBER}]}}"#))?;
    let _plugin = place.start_plugin()?;
    ensure!(Client::greeted(&place.door())?.acquire_nothing()?, "not served");
    Ok(())
}

/// The daemon is stopped under load: descriptors on their way and answers unread do not keep it.
#[test]
fn a_stop_in_the_middle_of_a_flood() -> anyhow::Result<()> {
    let mut scene = Scene::start()?;
    scene.act(|_| Ok(()))?;
    let stage = &scene.stage;
    let clients: Vec<Client> =
        (0..20).map(|_| Client::greeted(stage.rough.socket())).collect::<anyhow::Result<_>>()?;
    let items = vec![Wanted { target: Target::Name("never".parse()?), newer_than: 0 }; 64];
    for client in &clients {
        for request in 10..100 {
            client.say(
                request,
                ClientBody::Acquire { items: items.clone(), wait: Duration::ZERO, device: None },
            )?;
        }
    }
    scene.stop_plugin_first()?;
    for client in clients {
        client.ended()?;
    }
    Ok(())
}
