use gpu_handoff_admin::proto::Runtime;
use gpu_handoff_admin::proto::runtime::Link;

use super::*;

/// One that asks, and is answered in time.
pub(super) fn serving() -> Runtime {
    Runtime {
        socket: "/run/nri/nri.sock".into(),
        link: Link::Serving.into(),
        since_ms: LONG_AGO,
        name: "containerd".into(),
        version: "2.4.2".into(),
        nri: "v0.12.3".into(),
        namespaces: true,
        validates: true,
        default_validator: Some(true),
        connections: 1,
        answers: 10,
        p99_us: Some(200),
        longest_us: 9_000,
        ..Runtime::default()
    }
}

fn of_runtime(id: &str, change: impl FnOnce(&mut Runtime)) -> Option<Seen> {
    let mut status = status();
    change(status.runtime.as_mut().unwrap());
    look(id, &Facts { daemon: Heard::Answer(Box::new(status)), ..well() })
}

fn linked(link: Link, ago: u64) -> Seen {
    let seen = of_runtime("nri.connected", |runtime| {
        (runtime.link, runtime.since_ms) = (link.into(), NOW - ago);
        runtime.away = "connect to /run/nri/nri.sock: No such file".into();
    });
    seen.unwrap()
}

#[test]
fn a_runtime_that_does_not_ask_is_a_problem_once_it_had_time_to() {
    says(&linked(Link::Serving, 5_000), Verdict::Ok, "containerd 2.4.2 (NRI: v0.12.3) asks");
    says(&linked(Link::Off, 5_000_000), Verdict::Ok, "no member has anything");
    for (link, part) in
        [(Link::Away, "No such file"), (Link::Registering, "not taken"), (Link::Synchronizing, "not taken")]
    {
        says(&linked(link, 5_000), Verdict::Note, part);
        says(&linked(link, 60_000), Verdict::Problem, part);
    }
    let strange = of_runtime("nri.connected", |runtime| runtime.link = 77).unwrap();
    assert_eq!(strange.verdict, Verdict::CouldNotCheck);
}

#[test]
fn what_a_runtime_cannot_do_is_named_once_it_is_known() {
    let old = |runtime: &mut Runtime| (runtime.namespaces, runtime.validates) = (false, false);
    let seen = of_runtime("nri.runtime", old).unwrap();
    says(&seen, Verdict::Note, "cannot put containers into namespaces (ipc: group), nor hold a container up");
    for id in ["nri.runtime", "nri.validator", "nri.answers"] {
        assert!(of_runtime(id, |runtime| runtime.name.clear()).is_none());
    }
}

#[test]
fn whether_the_validator_is_on_is_told() {
    let validator = |is_on| of_runtime("nri.validator", |runtime| runtime.default_validator = is_on).unwrap();
    says(&validator(Some(true)), Verdict::Ok, "is on");
    says(&validator(Some(false)), Verdict::Note, "is off");
    says(&validator(None), Verdict::Ok, "no container");
    let old = of_runtime("nri.validator", |runtime| {
        (runtime.validates, runtime.default_validator) = (false, None);
    });
    says(&old.unwrap(), Verdict::Ok, "does not say");
}

#[test]
fn slow_answers_and_too_many_containers_are_told() {
    let seen = of_runtime("nri.answers", |runtime| runtime.p99_us = Some(5_001)).unwrap();
    says(&seen, Verdict::Note, "10 answers, 99 of 100 within 5.1 ms, the longest took 9.0 ms");
    let seen = of_runtime("nri.answers", |runtime| runtime.p99_us = None).unwrap();
    says(&seen, Verdict::Ok, "nothing was asked");
    let seen = of_runtime("nri.answers", |runtime| runtime.left_out = 3).unwrap();
    says(&seen, Verdict::Problem, "3 pods and containers");
}
