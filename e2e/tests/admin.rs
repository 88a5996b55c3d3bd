//! Whoever runs a node asks it how it is: the real daemon, with static members on the simulator, and the real command.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests: a failure is a failed test")]

use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gpu_handoff_e2e::folder::Folder;
use gpu_handoff_e2e::gpu::Gpu;
use gpu_handoff_e2e::node::{PATIENCE, kill};
use gpu_handoff_e2e::wait;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const MEMBERS: &str = r#"{"members":[{"slot":"a","namespace":"demo","pod":"one","group":"g","service_account":"worker"},
    {"slot":"b","namespace":"demo","pod":"two","group":"g"}]}"#;
const POLICY: &str = "version: gpu-handoff.io/v1\nquota: {buffers: 3}\n";
/// Nobody's.
const USER: u32 = 4_242;
const GROUP: u32 = 4_343;
/// A broker's that may have few threads.
const BROKER: u32 = 4_444;
/// How long a broker may be silent before it is replaced.
const HUNG: Duration = Duration::from_secs(60);
/// Connections that one user may have at the admin socket.
const CONNECTIONS: usize = 16;

/// A daemon that runs.
struct Daemon {
    plugin: Child,
    place: tempfile::TempDir,
    gpu: Gpu,
    command: PathBuf,
}

impl Daemon {
    fn start() -> Self {
        Self::start_by(&[], 2)
    }

    /// Started by a program, whose arguments the daemon's command line follows.
    fn start_by(program: &[&str], gpus: usize) -> Self {
        let folder = Folder::shared().unwrap();
        let place = tempfile::tempdir().unwrap();
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(place.path().join("members.json"), MEMBERS).unwrap();
        std::fs::write(place.path().join("policy.yaml"), POLICY).unwrap();
        // Where other users find it, too.
        let command = place.path().join("gpu-handoff");
        std::fs::copy(folder.binary("gpu-handoff").unwrap(), &command).unwrap();
        let (gpu, _) = Gpu::machine(&folder, gpus, Vec::new()).unwrap();
        let plugin = Self::plugin(program, &folder, place.path(), &gpu);
        let daemon = Self { plugin, place, gpu, command };
        daemon.until("the broker serves", |status| status["broker"]["serving"] == true);
        daemon
    }

    fn plugin(program: &[&str], folder: &Folder, place: &Path, gpu: &Gpu) -> Child {
        Self::command(program, folder, place, gpu).spawn().unwrap()
    }

    fn command(program: &[&str], folder: &Folder, place: &Path, gpu: &Gpu) -> Command {
        let plugin = folder.binary("gpu-handoff-plugin").unwrap();
        let mut command = match program {
            [] => Command::new(plugin),
            [first, others @ ..] => {
                let mut command = Command::new(first);
                command.args(others).arg(plugin);
                command
            }
        };
        command.arg("node").arg("--run-dir").arg(place.join("run"));
        command.arg("--static-members").arg(place.join("members.json"));
        command.arg("--policy").arg(place.join("policy.yaml"));
        command.arg("--kubelet-socket").arg(place.join("no-kubelet.sock"));
        command.arg("--slots").arg("20");
        if is_root() {
            command.arg("--admin-group").arg(GROUP.to_string());
        }
        let machine = gpu.device_folder().unwrap();
        command.arg("--nvidia-proc-root").arg(machine.join("proc"));
        command.arg("--nvidia-dev-root").arg(machine.join("dev"));
        gpu.give_to(&mut command, None);
        let log = std::fs::File::create(place.join("log")).unwrap();
        command.stdin(Stdio::null()).stderr(log);
        command
    }

    fn socket(&self) -> PathBuf {
        self.place.path().join("run/admin.sock")
    }

    fn policy(&self, text: &str) {
        std::fs::write(self.place.path().join("policy.yaml"), text).unwrap();
    }

    /// The command, with what it says on standard output and error.
    fn said(&self, arguments: &[&str], user: Option<(u32, u32)>) -> (Option<i32>, String, String) {
        let mut command = Command::new(&self.command);
        command.args(arguments).arg("--admin-socket").arg(self.socket());
        command.env("KUBECONFIG", "/nonexistent").env_remove("KUBERNETES_SERVICE_HOST");
        if let Some((user, group)) = user {
            command.uid(user).gid(group);
        }
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    fn json(&self, what: &str) -> (Option<i32>, Value) {
        let (code, text, error) = self.said(&[what, "-o", "json"], None);
        (code, serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}{error}")))
    }

    /// Waits until the status is as wanted, and gives it.
    fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let look = || {
            let (_, text, _) = self.said(&["status", "-o", "json"], None);
            Ok(serde_json::from_str(&text).ok().filter(|status| wanted(status)))
        };
        wait::until(PATIENCE, what, look).unwrap_or_else(|e| panic!("{e}\n{}", self.log()))
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.place.path().join("log")).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Ended already where the test is of that.
        drop(self.plugin.kill());
        drop(self.plugin.wait());
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A check's verdict and the whole of it.
fn check<'a>(findings: &'a Value, id: &str) -> (&'a str, &'a Value) {
    let found = findings["checks"].as_array().unwrap().iter().find(|check| check["id"] == id);
    let found = found.unwrap_or_else(|| panic!("no {id} in {findings:#}"));
    (found["verdict"].as_str().unwrap(), found)
}

#[test]
fn a_node_that_is_well_says_how_it_is() {
    let daemon = Daemon::start();
    let (code, status) = daemon.json("status");
    assert_eq!(code, Some(0));
    assert_eq!(status["daemon"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["daemon"]["boot"].as_str().unwrap().len(), 16);
    assert_eq!((&status["kubelet"], &status["broker"]["restarts"]), (&Value::Null, &0.into()));
    assert_eq!((&status["policy"]["origin"], &status["policy"]["refusal"]), (&"FILE".into(), &Value::Null));
    assert_eq!(status["gpus"]["gpus"].as_array().unwrap().len(), 2);
    let members = status["slots"]["members"].as_array().unwrap();
    let pods: Vec<&str> = members.iter().map(|member| member["pod"].as_str().unwrap()).collect();
    assert_eq!((pods, &members[0]["service_account"]), (vec!["one", "two"], &"worker".into()));
    let (code, text, _) = daemon.said(&["status"], None);
    assert_eq!(code, Some(0));
    for part in ["serving, process ", "2 of 20 taken", "demo/one", "demo/g", "policy.yaml, version "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    daemon.until("the driver was asked", |status| status["gpus"]["loaded"]["asked"] == true);
    let (code, findings) = daemon.json("doctor");
    assert_eq!(code, Some(0), "{findings:#}");
    for id in ["daemon.answers", "broker.serves", "slots.left", "policy.file", "gpus.found", "gpus.driver"] {
        assert_eq!(check(&findings, id).0, "ok", "{findings:#}");
    }
    assert!(findings["checks"].as_array().unwrap().iter().all(|check| check["id"] != "webhook.endpoints"));
    let (code, text, _) = daemon.said(&["doctor"], None);
    assert!(code == Some(0) && text.contains("ok    broker.serves "), "{text}");
    let first = daemon.log().lines().next().unwrap().to_owned();
    assert!(first.contains("starting") && !first.contains("Some("), "{first}");
}

#[test]
fn a_broker_that_is_killed_is_told_of() {
    let daemon = Daemon::start();
    for restarts in 1..=3 {
        let status = daemon.until("a broker serves", |s| s["broker"]["serving"] == true);
        kill(u32::try_from(status["broker"]["pid"].as_u64().unwrap()).unwrap()).unwrap();
        daemon.until("the next one serves", |s| {
            s["broker"]["serving"] == true && s["broker"]["restarts"] == restarts
        });
        let (code, findings) = daemon.json("doctor");
        let (verdict, all) = check(&findings, "broker.restarts");
        let wanted = if restarts < 3 { ("note", Some(0)) } else { ("problem", Some(1)) };
        assert_eq!((verdict, code), wanted, "{all:#}");
        assert!(all["seen"].as_str().unwrap().contains("signal: 9"), "{all:#}");
    }
    let (code, text, _) = daemon.said(&["doctor"], None);
    assert_eq!(code, Some(1));
    assert!(text.contains("problem  broker.restarts ") && text.contains("do: "), "{text}");
    assert!(text.lines().last().unwrap().starts_with("1 problem, "), "{text}");
}

#[test]
fn a_broker_that_hangs_does_not_count_as_serving_and_is_replaced() {
    let daemon = Daemon::start();
    let status = daemon.until("a broker serves", |s| s["broker"]["serving"] == true);
    let (pid, version) = (status["broker"]["pid"].as_u64().unwrap(), status["policy"]["version"].clone());
    let broker = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(broker, Signal::STOP).unwrap();
    daemon.policy("version: gpu-handoff.io/v1\norphans: evict\n");
    let status = daemon.until("it does not count as serving", |s| s["broker"]["serving"] == false);
    assert_eq!((&status["broker"]["pid"], &status["broker"]["restarts"]), (&pid.into(), &0.into()));
    let (code, text, _) = daemon.said(&["status", "--ready"], None);
    assert!(code == Some(1) && text.contains("the broker is silent for "), "{code:?} {text}");
    let (code, findings) = daemon.json("doctor");
    assert_eq!((check(&findings, "broker.serves").0, code), ("problem", Some(1)), "{findings:#}");
    let log = daemon.log();
    assert!(log.contains("another policy is read") && !log.contains("policy is in force"), "{log}");
    assert_eq!(status["policy"]["version"], version);
    kill_process(broker, Signal::CONT).unwrap();
    let status =
        daemon.until("it is back", |s| s["broker"]["serving"] == true && s["policy"]["version"] != version);
    assert_eq!(status["broker"]["restarts"], 0, "{}", daemon.log());
    let version = status["policy"]["version"].clone();
    kill_process(broker, Signal::STOP).unwrap();
    daemon.policy(POLICY);
    let replaced = || Ok(Some(daemon.json("status").1).filter(|s| s["broker"]["restarts"] == 1));
    let status = wait::until(PATIENCE + HUNG, "it is replaced", replaced).unwrap();
    assert_eq!(status["broker"]["last_end"], "it said nothing for 60s; killed", "{}", daemon.log());
    daemon.until("the next one serves, by the policy that the one before did not take", |s| {
        s["broker"]["serving"] == true && s["policy"]["version"] != version
    });
}

#[test]
fn a_policy_that_is_refused_is_told_of_until_a_good_one_comes() {
    let daemon = Daemon::start();
    let before = daemon.until("it is there", |_| true)["policy"]["version"].clone();
    daemon.policy("version: gpu-handoff.io/v1\nlegcy: deny\n");
    let status = daemon.until("it is refused", |s| s["policy"]["refusal"] != Value::Null);
    let why = status["policy"]["refusal"].as_str().unwrap();
    assert!(why.contains("line 2 column 1: unknown field `legcy`"), "{why}");
    assert_eq!((&status["policy"]["version"], &status["policy"]["refused"]), (&before, &1.into()));
    let (code, findings) = daemon.json("doctor");
    let (verdict, all) = check(&findings, "policy.file");
    assert_eq!((verdict, code), ("problem", Some(1)), "{all:#}");
    assert!(all["seen"].as_str().unwrap().contains("line 2 column 1"), "{all:#}");
    daemon.policy("version: gpu-handoff.io/v1\norphans: evict\n");
    let status = daemon.until("another one is in force", |s| s["policy"]["version"] != before);
    assert_eq!((&status["policy"]["refusal"], &status["policy"]["refused"]), (&Value::Null, &1.into()));
    let (code, findings) = daemon.json("doctor");
    assert_eq!((check(&findings, "policy.file").0, code), ("ok", Some(0)));
}

#[test]
fn a_pod_that_nothing_can_be_started_for_is_told_of_and_the_others_are_served_until_it_is() {
    if !is_root() {
        assert_ne!(std::env::var("GPU_HANDOFF_TESTS").as_deref(), Ok("all"), "this takes root");
        eprintln!("skipped: this takes root, to have the broker run as a user that may have few threads");
        return;
    }
    // Room for the broker's main thread and for one lane.
    let user = format!("GPU_HANDOFF_BROKER_USER={BROKER}");
    let daemon = Daemon::start_by(&["env", &user, "bash", "-c", "ulimit -S -u 2; exec \"$@\"", "limited"], 2);
    let unserved = |status: &Value| -> Vec<String> {
        let members = status["slots"]["members"].as_array().unwrap();
        members.iter().filter_map(|member| member["unserved"].as_str().map(str::to_owned)).collect()
    };
    let status = daemon.until("it is told of", |status| !unserved(status).is_empty());
    assert_eq!(status["slots"]["members"][0]["unserved"], Value::Null, "{status:#}");
    let why = unserved(&status).remove(0);
    assert!(why.contains("BROKER_UNAVAILABLE (slot: wanted served, found "), "{why}");
    let (_, text, _) = daemon.said(&["status"], None);
    assert!(text.contains("NOT SERVED") && text.contains("demo/two"), "{text}");
    let (code, findings) = daemon.json("doctor");
    assert_eq!((check(&findings, "slots.served").0, code), ("problem", Some(1)), "{findings:#}");
    assert_eq!(status["broker"]["restarts"], 0, "{}", daemon.log());
    // There is room now.
    let mut room = Command::new("prlimit");
    room.arg("--pid").arg(status["broker"]["pid"].to_string()).arg("--nproc=100:").uid(BROKER).gid(BROKER);
    assert!(room.status().unwrap().success());
    daemon.until("it is served", |status| unserved(status).is_empty() && status["broker"]["serving"] == true);
    let (code, findings) = daemon.json("doctor");
    assert_eq!((check(&findings, "slots.served").0, code), ("ok", Some(0)), "{findings:#}");
}

#[test]
fn others_are_not_answered_and_a_member_of_the_group_is() {
    if !is_root() {
        assert_ne!(std::env::var("GPU_HANDOFF_TESTS").as_deref(), Ok("all"), "this takes root");
        eprintln!("skipped: this takes root, to be somebody else");
        return;
    }
    let daemon = Daemon::start();
    let (code, out, error) = daemon.said(&["status"], Some((USER, USER)));
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(error.contains("is not for this user") && error.contains("remedy: ask as root"), "{error}");
    let (code, out, _) = daemon.said(&["doctor"], Some((USER, USER)));
    assert_eq!(code, Some(2), "{out}");
    assert!(out.lines().next().unwrap().starts_with("could not check  daemon.answers"), "{out}");
    let (code, out, error) = daemon.said(&["status"], Some((USER, GROUP)));
    assert_eq!(code, Some(0), "{error}");
    assert!(out.contains("demo/one"), "{out}");
}

#[test]
fn who_floods_the_socket_keeps_nobody_else_out() {
    let daemon = Daemon::start();
    for _ in 0..20 {
        let mut stream = UnixStream::connect(daemon.socket()).unwrap();
        // It may be closed in the middle of it.
        drop(stream.write_all(&[0xff; 1 << 16]));
    }
    let silent: Vec<UnixStream> =
        (0..CONNECTIONS).map(|_| UnixStream::connect(daemon.socket()).unwrap()).collect();
    if is_root() {
        let (code, _, error) = daemon.said(&["status"], Some((USER, GROUP)));
        assert_eq!(code, Some(0), "{error}");
    }
    // Whoever did it waits until the daemon has closed them.
    daemon.until("it is answered again", |status| status["broker"]["serving"] == true);
    drop(silent);
    assert_eq!(daemon.until("it goes on", |_| true)["broker"]["restarts"], 0, "{}", daemon.log());
}

#[test]
fn a_daemon_that_is_not_there() {
    let mut daemon = Daemon::start();
    daemon.plugin.kill().unwrap();
    daemon.plugin.wait().unwrap();
    let (code, _, error) = daemon.said(&["status"], None);
    assert_eq!(code, Some(3), "{error}");
    assert!(error.contains("nobody answers at the admin socket") && error.contains("remedy: "), "{error}");
    let (code, findings) = daemon.json("doctor");
    assert_eq!((check(&findings, "daemon.answers").0, code), ("problem", Some(1)));
    assert_eq!(check(&findings, "broker.serves").0, "could-not-check");
    assert_eq!(check(&findings, "cluster.answers").0, "could-not-check");
    // The next one takes its place, and its socket's.
    let folder = Folder::shared().unwrap();
    daemon.plugin = Daemon::plugin(&[], &folder, daemon.place.path(), &daemon.gpu);
    daemon.until("the next one serves", |status| status["broker"]["serving"] == true);
}

#[test]
fn a_driver_that_cannot_be_loaded_is_told_of_where_there_is_one_gpu_alone_too() {
    let mut daemon = Daemon::start_by(&[], 1);
    daemon.until("the driver was asked", |status| status["gpus"]["loaded"]["asked"] == true);
    assert_eq!(check(&daemon.json("doctor").1, "gpus.driver").0, "ok");
    daemon.plugin.kill().unwrap();
    daemon.plugin.wait().unwrap();
    // Its part of /proc is there, and a file that is no library.
    let no_driver = tempfile::tempdir().unwrap();
    std::fs::write(no_driver.path().join("libcuda.so.1"), "none").unwrap();
    let mut command = Daemon::command(&[], &Folder::shared().unwrap(), daemon.place.path(), &daemon.gpu);
    command.env("LD_LIBRARY_PATH", no_driver.path());
    daemon.plugin = command.spawn().unwrap();
    let failed = |status: &Value| status["gpus"]["loaded"]["failure"].is_string();
    daemon.until("the driver was asked in vain", failed);
    let (code, findings) = daemon.json("doctor");
    let (verdict, all) = check(&findings, "gpus.driver");
    assert_eq!((verdict, code), ("problem", Some(1)), "{all:#}");
    assert!(all["seen"].as_str().unwrap().contains("libcuda.so.1"), "{all:#}");
    let (_, text, _) = daemon.said(&["status"], None);
    assert!(text.contains("the driver cannot be asked: "), "{text}");
}

#[test]
fn a_node_without_a_gpu_warns_of_it() {
    let folder = Folder::shared().unwrap();
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("members.json"), MEMBERS).unwrap();
    let mut command = Command::new(folder.binary("gpu-handoff-plugin").unwrap());
    command.arg("node").arg("--run-dir").arg(place.path().join("run"));
    command.arg("--static-members").arg(place.path().join("members.json"));
    command.arg("--kubelet-socket").arg(place.path().join("no-kubelet.sock"));
    command.arg("--nvidia-proc-root").arg(place.path());
    let mut plugin = command.stderr(Stdio::piped()).spawn().unwrap();
    let log = BufReader::new(plugin.stderr.take().unwrap());
    let warned = log.lines().map_while(Result::ok).find(|line| line.contains("no GPU is found here"));
    plugin.kill().unwrap();
    plugin.wait().unwrap();
    let warned = warned.unwrap();
    assert!(warned.contains("WARN") && warned.contains(&place.path().display().to_string()), "{warned}");
}

#[test]
fn a_node_has_no_more_members_than_slots() {
    let folder = Folder::shared().unwrap();
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("members.json"), MEMBERS).unwrap();
    let mut command = Command::new(folder.binary("gpu-handoff-plugin").unwrap());
    command.arg("node").arg("--run-dir").arg(place.path().join("run")).arg("--slots").arg("1");
    command.arg("--static-members").arg(place.path().join("members.json"));
    command.arg("--kubelet-socket").arg(place.path().join("no-kubelet.sock"));
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("all 1 slots of this node are taken"), "{said}");
}
