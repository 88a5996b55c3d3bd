use std::io::Write as _;
use std::process::Stdio;

use gpu_handoff_protocol::socket::SeqPacket;

use super::super::children::told_alone;
use super::*;
use crate::closer::testing::{LINGER, closes_late};
use crate::members::Member;
use crate::node::events::{Events, Notice};
use crate::node::testing;
use crate::node::words::Command;

fn slots() -> Slots {
    Slots::new("/nowhere".as_ref(), limits::MEMBERS, gpu_handoff_policy::Policy::default()).0
}

/// A broker's ends of its line.
struct Its {
    socket: SeqPacket,
    words: std::io::PipeWriter,
}

/// A broker that was taken over: we speak for it. Its process just lives.
fn taken_over() -> (Broker, Service, Its) {
    let (broker, service, its, _told) = taken_over_and_heard();
    (broker, service, its)
}

/// The same, and what owners of pods are told of it.
fn taken_over_and_heard() -> (Broker, Service, Its, tokio::sync::mpsc::Receiver<Notice>) {
    let (ours, socket) = told_alone().unwrap();
    let (heard, words) = std::io::pipe().unwrap();
    let mut command = tokio::process::Command::new("sleep");
    let child = command.arg("600").stdin(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    let broker = Broker {
        child,
        socket: AsyncSeqPacket::new(ours).unwrap(),
        ear: Ear::new(heard.into()).unwrap(),
        words: rates::words(Instant::now()),
        first_words: Vec::new(),
        began: Instant::now(),
        ready: false,
        pulse: Pulse::new(),
        policy: Arc::default(),
        policies: 0,
    };
    let (events, told) = Events::for_test();
    (broker, Service::new(&testing::config(), events, None), Its { socket, words }, told)
}

/// Waits for room, as the broker may.
fn say(its: &Its, word: &[u8]) -> bool {
    (&its.words).write_all(&[word, b"\n"].concat()).is_ok()
}

#[tokio::test]
async fn one_that_says_what_a_broker_does_not_say_is_ended() {
    let garbage: [&[u8]; 6] = [
        b"\0",
        &[0xff; 60_000],
        b"{\"ready\":1}",
        b"{\"ask\":{\"id\":1,\"command\":{\"start-worker\":{\"gpu\":null,\"path\":\"/bin/sh\"}}}}",
        b"{\"ask\":{\"id\":-1,\"command\":\"prove-legacy\"}}",
        b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    ];
    let mut endings = tokio::task::JoinSet::new();
    for bytes in garbage {
        let (mut broker, mut service, its) = taken_over();
        assert!(say(&its, bytes));
        endings.spawn(async move { broker.attend(&mut service, &mut slots()).await });
    }
    while let Some(ending) = endings.join_next().await {
        let ending = ending.unwrap();
        assert!(ending.how.contains("it said what a broker does not say"), "{}", ending.how);
        assert!(!ending.was_ready);
    }
}

#[tokio::test]
async fn one_that_brings_descriptors_whose_close_waits_makes_nobody_else_wait() {
    let (mut broker, mut service, its) = taken_over();
    let (late, _silent) = closes_late();
    let packet = Outgoing { bytes: b"\"ready\"".to_vec(), descriptors: vec![Arc::new(late)] };
    let brought = its.socket.try_send(&packet);
    // Only what is under way has it now; what is not would be closed here.
    if brought.is_ok() {
        drop(packet);
    } else {
        std::mem::forget(packet);
    }
    let begin = Instant::now();
    assert!(say(&its, br#"{"ask":{"id":7,"command":{"end-worker":{"worker":3}}}}"#));
    let hears = std::thread::spawn(move || {
        let mut buffer = gpu_handoff_protocol::socket::RecvBuffer::new();
        // The line ends with both.
        let Its { socket, words: _words } = its;
        let answer = socket.recv(&mut buffer, Some(Instant::now() + LINGER / 2));
        answer.map(|frame| frame.map(|frame| frame.bytes))
    });
    let ending = broker.attend(&mut service, &mut slots()).await;
    let answer = hears.join().unwrap().unwrap().unwrap();
    assert!(String::from_utf8(answer).unwrap().contains("no gpu worker"), "{}", ending.how);
    drop(broker);
    assert!(begin.elapsed() < LINGER / 2, "{:?}, {brought:?}", begin.elapsed());
    assert!(brought.is_err(), "the node's socket takes it");
}

#[tokio::test]
async fn one_that_asks_without_end_and_reads_nothing_is_ended() {
    let (mut broker, mut service, its) = taken_over();
    assert!(say(&its, b"\"ready\""));
    let flood = std::thread::spawn(move || {
        let ask = br#"{"ask":{"id":7,"command":{"end-worker":{"worker":18446744073709551615}}}}"#;
        let mut asked = 0;
        while say(&its, ask) {
            asked += 1;
        }
        asked
    });
    let ending = broker.attend(&mut service, &mut slots()).await;
    assert!(ending.was_ready && ending.how.contains("it took no answer"), "{}", ending.how);
    drop(broker);
    assert!(flood.join().unwrap() > 100);
}

#[tokio::test]
async fn what_it_has_owners_told_is_of_pods_that_there_are_and_never_makes_the_node_wait() {
    let (mut broker, mut service, its, mut told) = taken_over_and_heard();
    let folder = tempfile::tempdir().unwrap();
    let mut slots = Slots::new(folder.path(), limits::MEMBERS, gpu_handoff_policy::Policy::default()).0;
    let member =
        r#"{"slot":"p-1","pod":{"namespace":"n","name":"p"},"uid":"u","group":{"namespace":"n","name":"g"}}"#;
    slots.join(serde_json::from_str::<Member>(member).unwrap()).unwrap();
    let tell = |slot: &str, code: u32| {
        let text = r#"{"tell":{"slot":"SLOT","times":3,"what":{"refused":{"code":CODE,"compared":[["a","b","c"]],"remedy":null}}}}"#;
        text.replace("SLOT", slot).replace("CODE", &code.to_string())
    };
    // Neither a pod that there is not, nor a code that there is not; then far more than anybody reads.
    let words = [tell("p-2", 20), tell("p-1", 9_999)].into_iter().chain(vec![tell("p-1", 20); 2_000]);
    let flood = std::thread::spawn(move || {
        for word in words {
            assert!(say(&its, word.as_bytes()));
        }
    });
    let begin = Instant::now();
    let ending = broker.attend(&mut service, &mut slots).await;
    let since = begin.elapsed().as_millis() / limits::TELL_EACH.as_millis();
    flood.join().unwrap();
    assert!(!ending.how.contains("said"), "{}", ending.how);
    let mut heard = 0_u128;
    while let Ok(notice) = told.try_recv() {
        assert_eq!(notice.reason(), "NotFound");
        heard += 1;
    }
    let most = u128::from(limits::TELLS) + since;
    assert!(heard >= limits::TELLS.into() && heard <= most, "{heard} of {most}");
}

#[tokio::test]
async fn one_that_says_more_than_a_broker_does_is_read_no_faster() {
    const BEYOND: u32 = 2_000;
    /// What may still be in the socket when it is closed, at most.
    const UNREAD: u32 = 800;
    let (mut broker, mut service, its) = taken_over();
    let flood = std::thread::spawn(move || {
        for _ in 0..limits::BROKER_WORDS + BEYOND {
            assert!(say(&its, b"\"ready\""));
        }
    });
    let begin = Instant::now();
    broker.attend(&mut service, &mut slots()).await;
    flood.join().unwrap();
    let lasted = begin.elapsed();
    assert!(lasted >= limits::BROKER_WORD_EACH * (BEYOND - UNREAD), "{lasted:?}");
}

#[tokio::test]
async fn what_costs_something_is_done_so_often_and_no_more() {
    let (_broker, mut service, _its) = taken_over();
    let slot: gpu_handoff_protocol::SlotId = "p-1".parse().unwrap();
    let kill = Command::Kill { slot: slot.clone(), pid: 1, started: 1, pidfs_inode: None };
    let mut said = |command: &Command| match service.take(1, command, &slots()) {
        Some(Reply { outcome: Err(why), .. }) => why,
        other => panic!("{other:?}"),
    };
    let known = (0..1_000).filter(|_| said(&kill).contains("no pod has this slot")).count();
    assert!(
        (limits::OVERSTAY_DEEDS as usize..limits::OVERSTAY_DEEDS as usize * 2).contains(&known),
        "{known}"
    );
    assert!(said(&Command::Evict { slot }).contains("not more"));
    // As after so many starts.
    while service.rates().may_start(Instant::now()).is_ok() {}
    for command in [Command::StartWorker { gpu: None }, Command::Survey, Command::ProveLegacy] {
        match service.take(1, &command, &slots()) {
            Some(Reply { outcome: Err(why), .. }) => assert!(why.contains("not more"), "{why}"),
            other => panic!("{command:?}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_process_that_is_not_the_pods_takes_none_of_its_room() {
    let (_broker, mut service, _its) = taken_over();
    let folder = tempfile::tempdir().unwrap();
    let mut slots = Slots::new(folder.path(), limits::MEMBERS, gpu_handoff_policy::Policy::default()).0;
    let uid = "2c48913c-b29f-11e7-9350-020968147796";
    for (slot, containers) in [("pod", "[]"), ("none", "null")] {
        let member = format!(
            r#"{{"slot":"{slot}","pod":{{"namespace":"n","name":"{slot}"}},"uid":"{uid}","group":{{"namespace":"n","name":"g"}},"containers":{containers}}}"#
        );
        slots.join(serde_json::from_str::<Member>(&member).unwrap()).unwrap();
        service.serve_slot(&slot.parse().unwrap());
    }
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let started = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
    let reachable = |slot: &str| {
        let slot = slot.parse().unwrap();
        Command::Reachable { slot, pid: std::process::id(), started }
    };
    for id in 0..limits::LOOKS_OF_MEMBER as u64 * 2 {
        let refused = service.take(id, &reachable("pod"), &slots);
        assert!(matches!(refused, Some(Reply { outcome: Err(_), .. })), "{refused:?}");
    }
    // No look at it was begun; whose processes are not told by containers is looked at as before.
    assert!(service.take(90, &reachable("none"), &slots).is_none());
    let replies = service.next().await;
    assert_eq!((replies.len(), replies[0].id), (1, 90));
}

#[tokio::test]
async fn one_that_has_ended_is_noticed_though_somebody_else_has_its_line() {
    let (mut broker, mut service, its) = taken_over();
    assert!(say(&its, b"\"ready\""));
    let pid = rustix::process::Pid::from_raw(broker.child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let ended = timeout(Duration::from_secs(20), broker.attend(&mut service, &mut slots())).await;
    assert!(ended.unwrap().how.contains("signal: 9"));
    drop(its);
}

#[tokio::test]
async fn a_survey_that_one_asked_for_who_is_gone_is_answered_to_the_next() {
    let (_broker, mut service, _its) = taken_over();
    assert!(service.take(1, &Command::Survey, &slots()).is_none());
    service.abandon();
    assert!(service.take(2, &Command::Survey, &slots()).is_none());
    let replies = service.next().await;
    // The program is this test, which is no survey; but it is that which has ended.
    let [Reply { id: 2, outcome: Err(why), .. }] = &replies[..] else { panic!("{replies:?}") };
    assert!(why.contains("the survey ended with"), "{why}");
}
