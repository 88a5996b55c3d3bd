//! The command itself, against a node that the test plays.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a failure is a failed test")]

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu_handoff_protocol::message::{
    BrokerBody, BrokerMessage, ClientBody, EndReason, Event, RequestId, Welcome,
};
use gpu_handoff_protocol::socket::{RecvBuffer, SeqListener, SeqPacket, wait};
use gpu_handoff_protocol::{
    Access, BootTag, BufferFacts, BufferId, BufferInfo, Code, DeviceUuid, GroupKey, Instance, Kind, Lifetime,
    Metadata, PROTOCOL_VERSION, PodRef, Refusal, codec,
};
use rustix::event::PollFlags;

fn patience() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

/// What the played node says to a request, and whether it then hangs up.
type Script = fn(&ClientBody) -> (Vec<BrokerBody>, bool);

/// Runs the command while a node answers as scripted.
fn gpu_handoff(arguments: &[&str], script: Script) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sock");
    let listener = SeqListener::bind(&path).unwrap();
    std::thread::scope(|scope| {
        let node = scope.spawn(|| serve(&listener, script));
        let output = command(arguments, &path);
        node.join().unwrap();
        output
    })
}

fn command(arguments: &[&str], socket: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-handoff"));
    command.args(arguments).env("GPU_HANDOFF_SOCKET", socket).output().unwrap()
}

fn serve(listener: &SeqListener, script: Script) {
    assert!(wait(&[(listener.as_fd(), PollFlags::IN)], patience()).unwrap());
    let socket = SeqPacket::from_own(listener.try_accept().unwrap().unwrap());
    let mut buffer = RecvBuffer::new();
    while let Some(frame) = socket.recv(&mut buffer, patience()).unwrap() {
        let message = codec::decode_client(frame).unwrap();
        let (answers, hang_up) = script(&message.body);
        answers.into_iter().for_each(|body| say(&socket, message.request, body));
        if hang_up {
            socket.end();
        }
    }
}

fn say(socket: &SeqPacket, request: RequestId, body: BrokerBody) {
    for packet in codec::encode_broker(&BrokerMessage { request, body }) {
        // The command may be done already.
        let _ = socket.send(&packet, patience());
    }
}

fn pod(name: &str) -> PodRef {
    PodRef { namespace: "ml".parse().unwrap(), name: name.parse().unwrap() }
}

fn welcome() -> BrokerBody {
    BrokerBody::Welcome(Welcome {
        version: PROTOCOL_VERSION,
        pod: pod("server-1"),
        group: GroupKey { namespace: "ml".parse().unwrap(), name: "llama".parse().unwrap() },
        boot: BootTag(0x9b2f),
        legacy_pid_word_proven: true,
        instance: Instance::from_bytes([3; 16]),
    })
}

fn buffer(random: u128, name: &str, generation: u64, kind: Kind) -> BufferInfo {
    let facts = BufferFacts {
        name: name.parse().unwrap(),
        kind,
        device: DeviceUuid::from_bytes([1; 16]),
        offset: 0,
        size: 3 << 29,
        allocation_size: 2 << 30,
        access: Access::ReadOnly,
        lifetime: Lifetime::Process,
        metadata: Metadata::default(),
        order: None,
    };
    let id = BufferId { boot: BootTag(0x9b2f), random };
    BufferInfo { id, generation, owner: pod("trainer-0"), verified: kind == Kind::Vmm, facts, set: None }
}

/// A group of two buffers, one of which ends.
fn lively(body: &ClientBody) -> (Vec<BrokerBody>, bool) {
    let appeared = |buffer| BrokerBody::Event(Event::Appeared(Arc::new(buffer)));
    match body {
        ClientBody::Hello { .. } => (vec![welcome()], false),
        ClientBody::Watch => {
            let weights = buffer(2, "weights", 7, Kind::Vmm);
            let retiring = Event::Retiring { id: weights.id, deadline: Duration::from_secs(5) };
            let gone = Event::Gone { id: weights.id, reason: EndReason::Retired };
            let events = [Event::SnapshotDone, retiring, gone].map(BrokerBody::Event);
            let there = [appeared(weights), appeared(buffer(1, "kv", 1, Kind::Legacy))];
            (there.into_iter().chain(events).collect(), true)
        }
        _ => (Vec::new(), false),
    }
}

fn empty(body: &ClientBody) -> (Vec<BrokerBody>, bool) {
    match body {
        ClientBody::Hello { .. } => (vec![welcome()], false),
        ClientBody::Watch => (vec![BrokerBody::Event(Event::SnapshotDone)], false),
        _ => (Vec::new(), false),
    }
}

fn unwelcoming(_: &ClientBody) -> (Vec<BrokerBody>, bool) {
    let refusal =
        Refusal::new(Code::PeerUnknown).compared_with("process", "one of pod ml/server-1", "another");
    (vec![BrokerBody::Refused(refusal)], true)
}

fn without_daemon(_: &ClientBody) -> (Vec<BrokerBody>, bool) {
    (vec![BrokerBody::Refused(Refusal::new(Code::BrokerUnavailable))], true)
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn list_shows_the_group_in_order_of_name() {
    let output = gpu_handoff(&["list"], lively);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "GENERATION", "KIND", "SIZE", "OWNER", "VERIFIED", "DEVICE", "ID"]);
    assert_eq!(lines[1][..7], ["kv", "1", "legacy", "1.5", "GiB", "ml/trainer-0", "no"]);
    assert_eq!(lines[2][..7], ["weights", "7", "vmm", "1.5", "GiB", "ml/trainer-0", "yes"]);
    assert!(lines[2][8].starts_with("buf-0000000000009b2f-"));
}

#[test]
fn list_speaks_json() {
    let value = json(&gpu_handoff(&["list", "-o", "json"], lively));
    assert_eq!(value["group"], serde_json::json!({"namespace": "ml", "name": "llama"}));
    assert_eq!(value["buffers"][1]["name"], "weights");
    assert_eq!(value["buffers"][1]["size_bytes"], 3_u64 << 29);
    assert_eq!(value["buffers"][1]["access"], "read-only");
    assert_eq!(value["buffers"][1]["owner"], serde_json::json!({"namespace": "ml", "name": "trainer-0"}));
}

#[test]
fn how_a_result_is_written_is_said_before_or_after_the_command() {
    for arguments in [["-o", "json", "list"], ["list", "-o", "json"]] {
        assert_eq!(json(&gpu_handoff(&arguments, empty))["buffers"], serde_json::json!([]), "{arguments:?}");
    }
    let explained = command(&["--output", "json", "explain", "NOT_FOUND"], Path::new("/nowhere"));
    assert_eq!(json(&explained)["code"], "NOT_FOUND");
}

#[test]
fn an_empty_group_is_said_in_words() {
    assert_eq!(stdout(&gpu_handoff(&["list"], empty)), "no buffers in group ml/llama\n");
    assert_eq!(json(&gpu_handoff(&["list", "-o", "json"], empty))["buffers"], serde_json::json!([]));
}

#[test]
fn watch_tells_events_until_the_connection_ends() {
    let output = gpu_handoff(&["watch"], lively);
    assert_eq!(output.status.code(), Some(3));
    let text = stdout(&output);
    let first: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(first, ["appeared", "appeared", "snapshot", "retiring", "gone"]);
    assert!(text.contains("gone      weights (buf-"), "{text}");
    assert!(stderr(&output).contains("the connection to the node is lost"));
}

#[test]
fn watch_writes_one_json_object_a_line() {
    let output = gpu_handoff(&["watch", "--output", "json"], lively);
    let text = stdout(&output);
    let events: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events[0]["buffer"]["name"], "weights");
    assert_eq!(events[2], serde_json::json!({"event": "snapshot-done"}));
    assert_eq!(events[3]["deadline_ms"], 5000);
    assert_eq!(events[4]["reason"], "retired");
}

#[test]
fn whoami_says_what_the_node_sees() {
    let text = stdout(&gpu_handoff(&["whoami"], empty));
    let version = format!("{}.{}", PROTOCOL_VERSION.0, PROTOCOL_VERSION.1);
    for part in ["ml/server-1", "ml/llama", "0000000000009b2f", &version, "can be cured"] {
        assert!(text.contains(part), "{text}");
    }
    let value = json(&gpu_handoff(&["whoami", "-o", "json"], empty));
    assert_eq!(value["pod"], serde_json::json!({"namespace": "ml", "name": "server-1"}));
    assert_eq!(value["group"], serde_json::json!({"namespace": "ml", "name": "llama"}));
    assert_eq!(value["legacy_pid_word_proven"], true);
}

#[test]
fn a_refusal_is_exit_code_1_with_what_was_compared_and_a_remedy() {
    let output = gpu_handoff(&["whoami"], unwelcoming);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    for part in
        ["refused with PEER_UNKNOWN", "wanted one of pod ml/server-1", "remedy: connect from", "explain PEER"]
    {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn no_daemon_is_exit_code_3() {
    assert_eq!(gpu_handoff(&["list"], without_daemon).status.code(), Some(3));
    let output = command(&["list"], Path::new("/nowhere/app.sock"));
    assert_eq!(output.status.code(), Some(3));
    let text = stderr(&output);
    assert!(text.contains("connect to /nowhere/app.sock") && text.contains("remedy:"), "{text}");
}

#[test]
fn who_waits_for_the_daemon_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sock");
    let listener = SeqListener::bind(&path).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-handoff"));
    command.arg("list").env("GPU_HANDOFF_SOCKET", &path).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut told = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    // Nobody has answered yet, and nobody does before this is said.
    stderr.read_line(&mut told).unwrap();
    assert_eq!(told, "waiting for the node daemon to answer, for at most 12s in all\n");
    serve(&listener, without_daemon);
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("refused with BROKER_UNAVAILABLE") && !rest.contains("waiting"), "{rest}");
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn the_socket_flag_goes_before_the_environment() {
    let output = command(&["whoami", "--socket", "/elsewhere/app.sock"], Path::new("/nowhere/app.sock"));
    assert!(stderr(&output).contains("/elsewhere/app.sock"));
}

#[test]
fn explain_needs_no_daemon() {
    let nowhere = Path::new("/nowhere");
    let one = command(&["explain", "not_found"], nowhere);
    assert_eq!(one.status.code(), Some(0));
    assert!(stdout(&one).starts_with("NOT_FOUND (20)\nmeans "), "{}", stdout(&one));
    let all = command(&["explain"], nowhere);
    assert!(Code::ALL.iter().all(|code| stdout(&all).contains(code.as_str())));
    let value = json(&command(&["explain", "-o", "json"], nowhere));
    let numbered = value.as_array().unwrap().iter().filter(|code| code["number"].is_number());
    assert_eq!(numbered.count(), Code::ALL.len());
    let unknown = command(&["explain", "NOT_FUOND"], nowhere);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("did you mean NOT_FOUND?"));
    let far_off = stderr(&command(&["explain", "NOPE"], nowhere));
    assert!(far_off.contains("`gpu-handoff explain`") && !far_off.contains("did you mean"), "{far_off}");
}

#[test]
fn usage_errors_are_exit_code_2() {
    assert_eq!(command(&["frobnicate"], Path::new("/nowhere")).status.code(), Some(2));
    assert_eq!(command(&["list", "-o", "xml"], Path::new("/nowhere")).status.code(), Some(2));
}

#[cfg(feature = "inject")]
#[test]
fn denials_are_explained() {
    let told = command(&["explain", "host-pid"], Path::new("/nowhere")).stdout;
    let told = String::from_utf8(told).unwrap();
    assert!(told.starts_with("HOST_PID\nmeans ") && told.contains("docs/denials.md#host_pid"), "{told}");
}
