use std::collections::BTreeSet;

use gpu_handoff_admin::proto::kubelet::Registration;
use gpu_handoff_admin::proto::{
    Broker, Daemon, Devices, Driver, Events, Folder, Gpu, Gpus, Kernel, Kubelet, Member, Pods, Policy, Slots,
    StatusResponse, Waiting,
};
use gpu_handoff_admin::proto::{kernel, pods, policy};
use gpu_handoff_protocol::{Code, Refusal};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::ALL;
use crate::doctor::cluster::EVICTIONS;
use crate::doctor::facts::{Cluster, Facts, Guard, Heard, Looked, Objects};
use crate::doctor::report::Findings;
use crate::doctor::{Check, Seen, Verdict};

mod kernel_and_gpus;
mod objects;
mod runtime;

const PAGE: &str = include_str!("../../../../docs/doctor.md");

/// A moment, and one that was long before.
const NOW: u64 = 1_800_000_000_000;
const LONG_AGO: u64 = NOW - 3_600_000 * 24;

fn status() -> StatusResponse {
    let folder = |path: &str| Some(Folder { path: path.into(), is_volatile: true });
    StatusResponse {
        daemon: Some(Daemon {
            version: env!("CARGO_PKG_VERSION").into(),
            since_ms: LONG_AGO,
            run_dir: folder("/run/gpu-handoff"),
            state_dir: folder("/run/gpu-handoff/state"),
            ..Daemon::default()
        }),
        broker: Some(Broker { serving: true, pid: 7, since_ms: LONG_AGO, ..Broker::default() }),
        kubelet: Some(Kubelet {
            root: "/var/lib/kubelet".into(),
            registration: Registration::Registered.into(),
            pods: Some(Pods {
                source: pods::Source::Kubelet.into(),
                complete: true,
                known: 3,
                ..Pods::default()
            }),
            devices: Some(Devices { asked: true, ..Devices::default() }),
            ..Kubelet::default()
        }),
        slots: Some(Slots { limit: 100, members: vec![Member::default(); 2] }),
        policy: Some(Policy {
            version: "abcd".into(),
            since_ms: LONG_AGO,
            evicts: true,
            ..Policy::default()
        }),
        gpus: Some(Gpus {
            driver: "NVRM 580".into(),
            proc_root: "/proc".into(),
            gpus: vec![Gpu { uuid: "GPU-1".into(), minor: 0 }],
            loaded: Some(Driver { asked: true, failure: None }),
        }),
        kernel: Some(Kernel {
            release: "6.18".into(),
            peer_pidfd: true,
            process_number: true,
            held: kernel::Held::Fully.into(),
        }),
        events: Some(Events::default()),
        runtime: Some(runtime::serving()),
    }
}

fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// An object of the manifests.
fn manifest(text: &str, kind: &str, name: &str) -> Value {
    use serde::Deserialize as _;
    let documents = serde_yaml::Deserializer::from_str(text).map(|one| Value::deserialize(one).unwrap());
    let mut found = documents.filter(|one| one["kind"] == kind && one["metadata"]["name"] == name);
    found.next().unwrap()
}

fn of_plugin(kind: &str, name: &str) -> Value {
    manifest(include_str!("../../../../manifests/gpu-handoff.yaml"), kind, name)
}

fn of_webhook(kind: &str, name: &str) -> Value {
    manifest(include_str!("../../../../manifests/webhook.yaml"), kind, name)
}

fn configuration() -> MutatingWebhookConfiguration {
    let mut found = of_webhook("MutatingWebhookConfiguration", "pods.gpu-handoff.io");
    found["webhooks"][0]["clientConfig"]["caBundle"] = json!("eA==");
    object(found)
}

fn slice(ready: &[Option<bool>]) -> Value {
    let endpoint =
        |ready: &Option<bool>| json!({ "addresses": ["10.0.0.1"], "conditions": { "ready": ready } });
    json!({ "addressType": "IPv4", "metadata": {}, "endpoints": ready.iter().map(endpoint).collect::<Vec<_>>() })
}

/// The cluster as the manifests make it.
fn objects() -> Objects {
    Objects {
        namespace: "gpu-handoff".into(),
        csi_driver: Looked::Found(object(of_plugin("CSIDriver", "gpu-handoff.io"))),
        webhook: Looked::Found(configuration()),
        endpoints: Looked::Found(vec![object(slice(&[Some(true)])), object(slice(&[None, Some(false)]))]),
        deployment: Looked::Found(object(of_webhook("Deployment", "gpu-handoff-webhook"))),
        plugin: Looked::Found(object(of_plugin("DaemonSet", "gpu-handoff-plugin"))),
        evictions: EVICTIONS.map(|name| Guard {
            name,
            policy: Looked::Found(object(of_plugin("ValidatingAdmissionPolicy", name))),
            binding: Looked::Found(object(of_plugin("ValidatingAdmissionPolicyBinding", name))),
        }),
    }
}

fn well() -> Facts {
    let cluster = Cluster::Objects(Box::new(objects()));
    Facts { now: NOW, daemon: Heard::Answer(Box::new(status())), cluster }
}

fn look(id: &str, facts: &Facts) -> Option<Seen> {
    let check = ALL.iter().find(|check| check.id == id).unwrap();
    (check.look)(facts)
}

fn verdict(id: &str, facts: &Facts) -> Option<Verdict> {
    look(id, facts).map(|seen| seen.verdict)
}

/// What a check says of a status that is otherwise well.
fn of_status(id: &str, change: impl FnOnce(&mut StatusResponse)) -> Seen {
    let mut status = status();
    change(&mut status);
    look(id, &Facts { daemon: Heard::Answer(Box::new(status)), ..well() }).unwrap()
}

/// What a check says of a cluster that is otherwise well.
fn of_objects(id: &str, change: impl FnOnce(&mut Objects)) -> Seen {
    let mut objects = objects();
    change(&mut objects);
    look(id, &Facts { cluster: Cluster::Objects(Box::new(objects)), ..well() }).unwrap()
}

#[track_caller]
fn says(seen: &Seen, verdict: Verdict, part: &str) {
    assert_eq!(seen.verdict, verdict, "{seen:?}");
    assert!(seen.seen.contains(part), "{seen:?}");
    assert_eq!(seen.remedy.is_some(), verdict != Verdict::Ok, "{seen:?}");
}

#[test]
fn where_all_is_well_every_check_says_so() {
    let facts = well();
    for check in ALL {
        let seen = (check.look)(&facts).unwrap();
        assert_eq!(seen.verdict, Verdict::Ok, "{}: {seen:?}", check.id);
    }
    assert_eq!(Findings::of(&facts).exit_code(), 0);
}

#[test]
fn what_cannot_be_asked_is_never_well() {
    let silent = |why: &str| Heard::Silence(why.into(), "start it");
    let facts =
        Facts { daemon: silent("refused"), cluster: Cluster::Unreachable("no route".into()), now: NOW };
    says(&look("daemon.answers", &facts).unwrap(), Verdict::Problem, "refused");
    for check in ALL.iter().filter(|check| check.id != "daemon.answers") {
        assert_eq!(verdict(check.id, &facts), Some(Verdict::CouldNotCheck), "{}", check.id);
    }
    assert_eq!(Findings::of(&facts).exit_code(), 1, "a problem comes before what was not checked");
    let facts = Facts { daemon: Heard::Forbidden("not for you".into(), "ask as root"), ..facts };
    assert!(ALL.iter().all(|check| verdict(check.id, &facts) == Some(Verdict::CouldNotCheck)));
    assert_eq!(Findings::of(&facts).exit_code(), 2);
    let unknown = |why: &str| why.to_owned();
    let objects = Objects {
        csi_driver: Looked::Unknown(unknown("no right")),
        webhook: Looked::Unknown(unknown("no right")),
        endpoints: Looked::Unknown(unknown("no right")),
        deployment: Looked::Unknown(unknown("no right")),
        plugin: Looked::Unknown(unknown("no right")),
        evictions: EVICTIONS.map(|name| Guard {
            name,
            policy: Looked::Unknown(unknown("no right")),
            binding: Looked::Absent,
        }),
        ..objects()
    };
    let facts = Facts { cluster: Cluster::Objects(Box::new(objects)), ..well() };
    let of_objects = |check: &&Check| {
        ["cluster.csi-driver", "cluster.evictions"].contains(&check.id) || check.id.starts_with("webhook.")
    };
    for check in ALL.iter().filter(of_objects) {
        says(&look(check.id, &facts).unwrap(), Verdict::CouldNotCheck, "no right");
    }
    assert_eq!(Findings::of(&facts).exit_code(), 2);
}

#[test]
fn without_a_kubelet_what_is_of_kubernetes_has_no_bearing() {
    let status = StatusResponse { kubelet: None, events: None, ..status() };
    let facts = Facts { daemon: Heard::Answer(Box::new(status)), cluster: Cluster::NoBearing, now: NOW };
    let silent: Vec<&str> = ALL.iter().filter(|c| (c.look)(&facts).is_none()).map(|c| c.id).collect();
    let of_kubernetes =
        |id: &&&str| ["kubelet.", "cluster.", "webhook."].iter().any(|part| id.starts_with(part));
    assert_eq!(silent.iter().filter(of_kubernetes).count(), silent.len());
    assert_eq!(silent.len(), 12);
    assert_eq!(Findings::of(&facts).exit_code(), 0);
}

#[test]
fn the_daemon_and_its_folders() {
    let old = of_status("daemon.answers", |s| s.daemon.as_mut().unwrap().version = "0.0.9".into());
    says(&old, Verdict::Note, "version 0.0.9");
    let on_disk = |s: &mut StatusResponse| {
        s.daemon.as_mut().unwrap().state_dir = Some(Folder { path: "/var/s".into(), is_volatile: false });
    };
    says(&of_status("daemon.folders", on_disk), Verdict::Note, "/var/s: on a disk");
}

#[test]
fn a_broker_that_does_not_serve_or_dies_often() {
    let gone = |s: &mut StatusResponse| {
        s.broker = Some(Broker { since_ms: NOW - 3_000, last_end: "signal: 9".into(), ..Broker::default() });
    };
    says(&of_status("broker.serves", gone), Verdict::Problem, "for 3 s; the last broker: signal: 9");
    let silent = |s: &mut StatusResponse| {
        let broker = s.broker.as_mut().unwrap();
        (broker.serving, broker.silent_since_ms) = (false, Some(NOW - 4_000));
    };
    says(&of_status("broker.serves", silent), Verdict::Problem, "it says nothing any more, for 4 s");
    let died = |times: u64, ago: u64| {
        of_status("broker.restarts", |s| {
            let broker = s.broker.as_mut().unwrap();
            (broker.restarts, broker.last_end) = (times, "killed".into());
            broker.ends_ms = (0..times).map(|n| NOW - ago - n).collect();
        })
    };
    says(&died(2, 1_000), Verdict::Note, "2 within 60 min; the last time: killed");
    says(&died(3, 1_000), Verdict::Problem, "3 within 60 min");
    says(&died(9, 3_600_000), Verdict::Ok, "none within 60 min, 9 in all");
}

#[test]
fn the_kubelet_that_does_not_know_the_driver() {
    let with = |registration: Registration, age: u64| {
        of_status("kubelet.registration", |s| {
            s.daemon.as_mut().unwrap().since_ms = NOW - age;
            let kubelet = s.kubelet.as_mut().unwrap();
            (kubelet.registration, kubelet.refusal) = (registration.into(), "there is another".into());
        })
    };
    says(&with(Registration::Refused, 1), Verdict::Problem, "there is another");
    for state in [Registration::Waiting, Registration::Asked] {
        says(&with(state, 1_000), Verdict::Note, "the kubelet has");
        says(&with(state, 3_600_000), Verdict::Problem, "the kubelet has");
    }
    let newer = of_status("kubelet.registration", |s| s.kubelet.as_mut().unwrap().registration = 99);
    says(&newer, Verdict::CouldNotCheck, "does not know");
}

#[test]
fn nobody_tells_of_pods() {
    let with = |change: fn(&mut Pods)| {
        of_status("kubelet.pods", |s| change(s.kubelet.as_mut().unwrap().pods.as_mut().unwrap()))
    };
    says(&with(|pods| pods.source = pods::Source::ApiServer.into()), Verdict::Ok, "the API server");
    says(&with(|pods| pods.source = 0), Verdict::Problem, "nobody tells");
    says(&with(|pods| pods.complete = false), Verdict::Note, "not told of all pods yet, 3 so far");
    let away =
        |since: u64| move |pods: &mut Pods| (pods.away, pods.away_since_ms) = (Some("cut".into()), since);
    let says_away = |since: u64, wanted| {
        let seen = of_status("kubelet.pods", |s| {
            away(since)(s.kubelet.as_mut().unwrap().pods.as_mut().unwrap());
        });
        says(&seen, wanted, "is away for ");
    };
    says_away(NOW - 1_000, Verdict::Note);
    says_away(LONG_AGO, Verdict::Problem);
}

#[test]
fn volumes_that_wait_are_named_with_their_reasons() {
    let with = |count: u64, age: u64| {
        of_status("kubelet.volumes", |s| {
            let waiting = |n: u64| Waiting {
                namespace: "ml".into(),
                pod: format!("p{n}"),
                why: "no slot".into(),
                since_ms: NOW - age,
                ..Waiting::default()
            };
            s.kubelet.as_mut().unwrap().waiting = (0..count).map(waiting).collect();
        })
    };
    says(&with(1, 5_000), Verdict::Note, "ml/p0 for 5 s (no slot)");
    says(&with(5, 300_000), Verdict::Problem, "ml/p2 for 5 min (no slot), and 2 more");
}

#[test]
fn slots_that_run_out() {
    let with = |taken: usize| {
        of_status("slots.left", |s| s.slots.as_mut().unwrap().members = vec![Member::default(); taken])
    };
    says(&with(89), Verdict::Ok, "89 of 100");
    says(&with(91), Verdict::Note, "91 of 100");
    says(&with(100), Verdict::Problem, "100 of 100");
}

#[test]
fn slots_that_are_not_served() {
    // As the daemon tells of a refusal.
    let refused = |code: Code, what| Refusal::new(code).compared_with(what, "one", "none");
    let with = |unserved: &[Refusal]| {
        of_status("slots.served", |s| {
            let member = |why: &Refusal| Member {
                namespace: "ml".into(),
                pod: "p".into(),
                unserved: Some(why.to_string()),
                unserved_code: Some(why.code().as_str().into()),
                ..Member::default()
            };
            s.slots.as_mut().unwrap().members.extend(unserved.iter().map(member));
        })
    };
    let denied = || refused(Code::PolicyDenied, "group");
    let no_thread = refused(Code::BrokerUnavailable, "thread");
    says(&with(&[]), Verdict::Ok, "each of 2");
    says(&with(&[denied()]), Verdict::Note, "ml/p (refused: POLICY_DENIED (group: wanted one");
    says(&with(&[denied(), no_thread]), Verdict::Problem, "BROKER_UNAVAILABLE (thread: wanted one");
    says(&with(&[denied(), denied(), denied(), denied(), denied()]), Verdict::Note, ", and 2 more");
}

#[test]
fn a_policy_that_is_refused_or_grants_too_early() {
    let refused = |s: &mut StatusResponse| {
        let policy = s.policy.as_mut().unwrap();
        (policy.origin, policy.path) = (policy::Origin::File.into(), "/etc/p.yaml".into());
        (policy.refusal, policy.refusal_since_ms) = (Some("line 3 column 1: no".into()), NOW - 4_000);
    };
    let seen = of_status("policy.file", refused);
    says(&seen, Verdict::Problem, "refused for 4 s: line 3 column 1: no; version abcd stays in force");
    let early =
        |s: &mut StatusResponse| s.policy.as_mut().unwrap().not_yet = vec!["orphans: only report".into()];
    says(&of_status("policy.not-yet", early), Verdict::Note, "orphans: only report");
}

#[test]
fn events_that_the_api_server_does_not_take() {
    let refused = |s: &mut StatusResponse| {
        let refusal = Some("User \"x\" cannot create resource \"events\"".to_owned());
        s.events = Some(Events { refusal, refusal_since_ms: NOW - 5_000 });
    };
    says(&of_status("cluster.events", refused), Verdict::Problem, "takes none for 5 s");
}

#[test]
fn a_kubelet_that_does_not_say_what_pods_hold() {
    let with = |devices: Devices| {
        of_status("kubelet.devices", |s| s.kubelet.as_mut().unwrap().devices = Some(devices))
    };
    let away = |away_since_ms| Devices { asked: true, away: Some("no socket".into()), away_since_ms };
    says(&with(away(NOW - 1_000)), Verdict::Note, "is away for 1 s: no socket");
    says(&with(away(LONG_AGO)), Verdict::Problem, "no socket");
    says(&with(Devices::default()), Verdict::Note, "not asked yet");
    let older = of_status("kubelet.devices", |s| s.kubelet.as_mut().unwrap().devices = None);
    says(&older, Verdict::CouldNotCheck, "does not know");
}

#[test]
fn the_page_has_a_section_on_every_check_and_on_nothing_else() {
    let sections: Vec<(&str, &str)> =
        PAGE.split("\n### ").skip(1).map(|section| section.split_once('\n').unwrap()).collect();
    let ids: BTreeSet<&str> = ALL.iter().map(|check| check.id).collect();
    assert_eq!(ids.len(), ALL.len(), "an id is there twice");
    let told: Vec<&str> = sections.iter().map(|(id, _)| *id).collect();
    assert_eq!(told, ALL.map(|check| check.id), "in the order in which they are shown");
    for (id, text) in sections {
        let text = text.split("\n## ").next().unwrap();
        for part in ["**Looks at:** ", "**Finds:** ", "**Do:** "] {
            let (_, rest) = text.split_once(part).unwrap_or_else(|| panic!("{id} lacks {part}"));
            assert!(rest.lines().next().is_some_and(|line| line.len() > 10), "{id}: {part}");
        }
    }
}
