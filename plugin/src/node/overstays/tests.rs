use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use gpu_handoff_kubelet::api::testing::{Answer, Asked};
use gpu_handoff_policy::NamespaceTerms;
use serde_json::{Value, json};

use super::*;

/// A member whose namespace's policy says this, and which is in a pod or not.
fn member(orphans: Orphans, in_pod: bool, user: Option<u32>) -> (Member, Policy) {
    let containers = if in_pod { json!([]) } else { Value::Null };
    let text = json!({
        "slot": "p-1", "pod": {"namespace": "ml", "name": "holder"}, "uid": "2c48913c-b29f-11e7-9350-020968147796",
        "group": {"namespace": "ml", "name": "g"}, "containers": containers, "user": user,
    });
    let terms = NamespaceTerms { orphans: Some(orphans), ..NamespaceTerms::default() };
    let policy = Policy { namespaces: [("ml".parse().unwrap(), terms)].into(), ..Policy::default() };
    (serde_json::from_value(text).unwrap(), policy)
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A process, and how it is named.
fn process(user: Option<u32>) -> (Killed, ProcessKey) {
    let mut command = Command::new("sleep");
    command.arg("600");
    if let Some(user) = user {
        command.uid(user);
    }
    let child = command.spawn().unwrap();
    let (pid, pidfd) = (child.id(), rustix::process::Pid::from_child(&child));
    let pidfd = rustix::process::pidfd_open(pidfd, rustix::process::PidfdFlags::empty()).unwrap();
    let pidfs_inode = gpu_handoff_sys::pidfs::inode(std::os::fd::AsFd::as_fd(&pidfd)).unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let started = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
    (Killed(child), ProcessKey { pid, started, pidfs_inode })
}

/// How it was ended; `None`: it lives.
fn signal(process: &mut Killed) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt as _;
    process.0.try_wait().unwrap().and_then(|status| status.signal())
}

fn node() -> Overstays {
    node_with(None).0
}

/// With an API server, and what owners of pods are told.
fn node_with(api_server: Option<ApiServer>) -> (Overstays, impl FnMut() -> Vec<String>) {
    let (events, mut told) = Events::for_test();
    let heard = move || {
        std::iter::from_fn(|| told.try_recv().ok()).map(|notice| notice.reason().to_owned()).collect()
    };
    (Overstays::new(Root::default(), api_server, events), heard)
}

#[tokio::test]
async fn what_is_not_the_members_is_not_killed_whatever_the_broker_says() {
    let (mut child, key) = process(None);
    let own = rustix::process::geteuid().as_raw();
    // In a pod: this process is in no container of it.
    let (in_pod, kills) = member(Orphans::Kill, true, None);
    assert!(node().kill(Some(&in_pod), &kills, key).unwrap_err().contains("PEER_UNKNOWN"));
    // Without pods: neither anybody's, nor the daemon's own user's, nor another user's processes.
    for user in [None, Some(own), Some(0), Some(own + 17)] {
        let (outside, kills) = member(Orphans::Kill, false, user);
        let refused = node().kill(Some(&outside), &kills, key);
        assert!(refused.is_err(), "{user:?}");
    }
    // And whoever it is, only where the policy says so.
    for orphans in [Orphans::Report, Orphans::Evict] {
        let (holder, policy) = member(orphans, false, Some(own + 17));
        assert!(node().kill(Some(&holder), &policy, key).unwrap_err().contains("the policy says"));
    }
    assert!(node().kill(None, &kills, key).unwrap_err().contains("no pod"));
    assert_eq!(signal(&mut child), None);
}

#[tokio::test]
async fn a_process_of_the_members_user_is_killed_and_no_other_in_its_place() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("GPU_HANDOFF_TESTS").is_none_or(|t| t != "all"), "this takes root");
        return eprintln!("skipped: it takes root to start a process as another user");
    }
    const USER: u32 = 64_099;
    let (holder, kills) = member(Orphans::Kill, false, Some(USER));
    let (mut child, key) = process(Some(USER));
    let later = ProcessKey { started: key.started + 1, ..key };
    assert!(node().kill(Some(&holder), &kills, later).is_err());
    assert_eq!(signal(&mut child), None);
    let (node, mut told) = node_with(None);
    node.kill(Some(&holder), &kills, key).unwrap();
    assert_eq!(told(), ["ProcessKilled"]);
    assert!(!child.0.wait().unwrap().success());
    assert_eq!(signal(&mut child), Some(9));
    assert!(node.kill(Some(&holder), &kills, key).is_err(), "it is gone");
    assert!(told().is_empty());
}

/// What an API server was asked.
type Heard = Arc<Mutex<Vec<Asked>>>;

/// One that answers evictions with this.
fn api_server(code: u16, message: &str) -> (ApiServer, Heard) {
    let asked = Heard::default();
    let heard = Arc::clone(&asked);
    let answer = Answer::status(code, message);
    let api_server = ApiServer::answering(move |asked| {
        heard.lock().unwrap().push(asked);
        std::future::ready(answer.clone())
    });
    (api_server, asked)
}

#[tokio::test]
async fn that_very_pod_is_evicted_and_what_is_said_of_it_is_passed_on() {
    let (holder, evicts) = member(Orphans::Evict, true, None);
    for (code, good) in
        [(201, true), (200, true), (404, true), (409, true), (429, false), (403, false), (500, false)]
    {
        let (client, asked) = api_server(code, "because");
        let (mut node, mut told) = node_with(Some(client));
        assert_eq!(node.evict(7, Some(&holder), &evicts), None);
        let again = node.evict(8, Some(&holder), &evicts);
        assert!(matches!(again, Some((8, Err(_)))), "one at a time: {again:?}");
        let (id, outcome) = node.next().await;
        assert_eq!((id, outcome.is_ok()), (7, good), "{code}: {outcome:?}");
        assert_eq!(told() == ["PodEvicted"], code < 300, "{code}");
        if let Err(why) = outcome {
            assert!(why.contains("because"), "{why}");
        }
        let asked = asked.lock().unwrap();
        let Asked { path, body, .. } = &asked[0];
        assert_eq!(path, "/api/v1/namespaces/ml/pods/holder/eviction");
        assert_eq!(body["deleteOptions"]["preconditions"]["uid"], "2c48913c-b29f-11e7-9350-020968147796");
        assert_eq!(asked.len(), 1, "what is not to be is not tried again here");
    }
}

#[tokio::test]
async fn nobody_else_is_evicted() {
    let (client, asked) = api_server(201, "");
    let mut node = node_with(Some(client)).0;
    let (holder, kills) = member(Orphans::Kill, true, None);
    assert!(matches!(node.evict(1, Some(&holder), &kills), Some((1, Err(_)))));
    assert!(matches!(node.evict(2, None, &kills), Some((2, Err(_)))));
    assert!(asked.lock().unwrap().is_empty());
    let (holder, evicts) = member(Orphans::Evict, true, None);
    let outcome = super::tests::node().evict(3, Some(&holder), &evicts);
    assert!(matches!(outcome, Some((3, Err(why))) if why.contains("no API server")));
}

#[tokio::test]
async fn what_was_asked_for_by_a_broker_that_is_gone_is_told_to_the_pods_owner_and_answered_to_nobody() {
    let (client, asked) = api_server(201, "");
    let (mut node, mut told) = node_with(Some(client));
    let (holder, evicts) = member(Orphans::Evict, true, None);
    assert_eq!(node.evict(7, Some(&holder), &evicts), None);
    node.abandon();
    let again = node.evict(7, Some(&holder), &evicts);
    assert!(matches!(again, Some((7, Err(_)))), "one at a time: {again:?}");
    let deadline = tokio::time::Instant::now() + limits::EVICTION_TIME;
    while !node.asked.is_empty() {
        let answered = tokio::time::timeout_at(deadline, node.next_ended()).await.unwrap();
        assert_eq!(answered, None);
    }
    assert_eq!((told(), asked.lock().unwrap().len()), (vec!["PodEvicted".to_owned()], 1));
}

#[tokio::test]
async fn an_eviction_that_breaks_off_is_answered_and_may_be_asked_for_again() {
    let silent = ApiServer::answering(|_| std::future::pending());
    let mut node = node_with(Some(silent)).0;
    let (holder, evicts) = member(Orphans::Evict, true, None);
    for id in [1, 2] {
        assert_eq!(node.evict(id, Some(&holder), &evicts), None);
        node.evicting.abort_all();
        let done = tokio::time::timeout(limits::EVICTION_TIME, node.next()).await.unwrap();
        assert!(matches!(&done, (answered, Err(_)) if *answered == id), "{done:?}");
    }
}
