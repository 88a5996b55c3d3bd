use std::os::fd::OwnedFd;
use std::process::Stdio;

use gpu_handoff_protocol::BootTag;
use gpu_handoff_protocol::socket::SeqPacket;

use super::*;
use crate::identity::cgroup::Root;
use crate::node::policy::Origin;

fn slots() -> Slots {
    Slots::new("/nowhere".as_ref(), gpu_handoff_policy::Policy::default()).0
}

/// A broker that was taken over: we speak for it. Its process just lives.
fn taken_over() -> (Broker, Service, SeqPacket) {
    let config = Config {
        awake: 0,
        run_dir: "/nowhere".into(),
        policy: serde_json::from_str("{}").unwrap(),
        kubelet: None,
        policy_file: None,
        policy_origin: Origin::BuiltIn,
        admin_group: None,
        cgroup_root: Root::default(),
        members: Vec::new(),
        boot: BootTag(7),
        state_dir: "/nowhere".into(),
        user: None,
        nvidia_proc_root: "/nowhere".into(),
        nvidia_dev_root: "/nowhere".into(),
        descriptors: 1_024,
        log_format: gpu_handoff_logs::LogFormat::Text,
    };
    let (ours, its) = SeqPacket::pair().unwrap();
    let mut command = tokio::process::Command::new("sleep");
    let child = command.arg("600").stdin(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    let broker = Broker {
        child,
        socket: AsyncSeqPacket::new(ours).unwrap(),
        buffer: RecvBuffer::new(),
        first_words: Vec::new(),
        began: Instant::now(),
        ready: false,
    };
    (broker, Service::new(&config), its)
}

fn say(its: &SeqPacket, bytes: &[u8]) {
    let packet = Outgoing { bytes: bytes.to_vec(), descriptors: Vec::new() };
    its.send(&packet, Some(Instant::now() + Duration::from_secs(5))).unwrap();
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
        say(&its, bytes);
        endings.spawn(async move { broker.attend(&mut service, &mut slots()).await });
    }
    while let Some(ending) = endings.join_next().await {
        let ending = ending.unwrap();
        assert!(ending.how.contains("it said what a broker does not say"), "{}", ending.how);
        assert!(!ending.was_ready);
    }
}

#[tokio::test]
async fn one_that_brings_descriptors_is_ended() {
    let (mut broker, mut service, its) = taken_over();
    let null: Arc<OwnedFd> = Arc::new(std::fs::File::open("/dev/null").unwrap().into());
    let packet = Outgoing { bytes: b"\"ready\"".to_vec(), descriptors: vec![null; 64] };
    assert!(its.try_send(&packet).unwrap());
    let ending = broker.attend(&mut service, &mut slots()).await;
    assert!(ending.how.contains("descriptors"), "{}", ending.how);
}

#[tokio::test]
async fn one_that_asks_without_end_and_reads_nothing_is_ended() {
    let (mut broker, mut service, its) = taken_over();
    say(&its, b"\"ready\"");
    let flood = std::thread::spawn(move || {
        let ask = br#"{"ask":{"id":7,"command":{"end-worker":{"worker":18446744073709551615}}}}"#;
        let packet = Outgoing { bytes: ask.to_vec(), descriptors: Vec::new() };
        let mut asked = 0;
        while its.send(&packet, Some(Instant::now() + Duration::from_secs(20))).is_ok() {
            asked += 1;
        }
        asked
    });
    let ending = broker.attend(&mut service, &mut slots()).await;
    assert!(ending.was_ready && ending.how.contains("it took no answer"), "{}", ending.how);
    drop(broker);
    assert!(flood.join().unwrap() > 100);
}
