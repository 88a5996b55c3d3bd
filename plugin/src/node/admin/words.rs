//! What changes, as messages.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gpu_handoff_admin::proto;
use gpu_handoff_admin::proto::kubelet::Registration;
use gpu_handoff_admin::proto::{pods, policy, runtime};
use gpu_handoff_kubelet::pods::Source;
use gpu_handoff_kubelet::registration::State;
use gpu_handoff_nri::{Link, Runtime};
use gpu_handoff_protocol::SlotId;

use super::broker::Broker;
use crate::node::devices::answers::Answers;
use crate::node::events::Refused;
use crate::node::membership::Seen as Membership;
use crate::node::policy::{Origin, Seen as Policy};
use crate::node::slots::Seen as Slot;
use crate::node::{kubelet, membership, nri};

/// A moment, in milliseconds since 1970.
pub(super) fn ms(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn broker(broker: &Broker, serving: bool) -> proto::Broker {
    proto::Broker {
        serving: serving && broker.pid.is_some(),
        since_ms: ms(broker.since),
        silent_since_ms: broker.silent.map(ms),
        pid: broker.pid.unwrap_or_default(),
        restarts: broker.restarts,
        last_end: broker.last_end.clone().unwrap_or_default(),
        ends_ms: broker.ends.iter().copied().map(ms).collect(),
    }
}

pub(super) fn slots(slots: &BTreeMap<SlotId, Slot>, most: usize, now: SystemTime) -> proto::Slots {
    let at = Instant::now();
    let member = |(slot, seen): (&SlotId, &Slot)| {
        let Slot { member, ending, unserved } = seen;
        proto::Member {
            slot: slot.to_string(),
            namespace: member.pod.namespace.to_string(),
            pod: member.pod.name.to_string(),
            uid: member.uid.to_string(),
            group: member.group.to_string(),
            service_account: member.service_account.as_ref().map(ToString::to_string).unwrap_or_default(),
            containers: member.containers.as_ref().map(|all| u32::try_from(all.len()).unwrap_or(u32::MAX)),
            ends_ms: ending.map(|until| ms(now + until.saturating_duration_since(at))),
            unserved: unserved.as_ref().map(ToString::to_string),
            unserved_code: unserved.as_ref().map(|refusal| refusal.code().as_str().to_owned()),
        }
    };
    let limit = u32::try_from(most).unwrap_or(u32::MAX);
    proto::Slots { limit, members: slots.iter().map(member).collect() }
}

pub(super) fn policy(policy: &Policy) -> proto::Policy {
    let origin = match policy.origin {
        Origin::BuiltIn => policy::Origin::BuiltIn,
        Origin::MembersFile => policy::Origin::MembersFile,
        Origin::File(_) => policy::Origin::File,
    };
    let path = match &policy.origin {
        Origin::File(path) => path.display().to_string(),
        Origin::BuiltIn | Origin::MembersFile => String::new(),
    };
    let refusal = policy.refusal.as_ref();
    proto::Policy {
        origin: origin.into(),
        path,
        version: policy.version.clone(),
        since_ms: ms(policy.since),
        refused: policy.refused,
        refusal: refusal.map(|(why, _)| why.clone()),
        refusal_since_ms: refusal.map_or(0, |(_, since)| ms(*since)),
        not_yet: policy.not_yet.clone(),
        rules: u32::try_from(policy.rules).unwrap_or(u32::MAX),
        evicts: policy.evicts,
    }
}

pub(super) fn events(refused: Option<&Refused>) -> proto::Events {
    proto::Events {
        refusal: refused.map(|refused| refused.why.clone()),
        refusal_since_ms: refused.map_or(0, |refused| ms(refused.since)),
    }
}

pub(super) fn runtime(views: &nri::Views) -> proto::Runtime {
    let (state, counts) = (views.state.borrow().clone(), *views.counts.borrow());
    let (link, away, runtime) = match state.link {
        Link::Idle => (runtime::Link::Off, String::new(), None),
        Link::Away { why } => (runtime::Link::Away, why, None),
        Link::Registering => (runtime::Link::Registering, String::new(), None),
        Link::Synchronizing(runtime) => (runtime::Link::Synchronizing, String::new(), Some(runtime)),
        Link::Serving(runtime) => (runtime::Link::Serving, String::new(), Some(runtime)),
    };
    let can = runtime.as_ref().map(Runtime::can);
    let Runtime { name, version, nri } = runtime.unwrap_or_default();
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    proto::Runtime {
        socket: views.socket.display().to_string(),
        link: link.into(),
        since_ms: state.since.map(ms).unwrap_or_default(),
        away,
        name,
        version,
        nri,
        namespaces: can.is_some_and(|can| can.namespaces),
        validates: can.is_some_and(|can| can.validates),
        default_validator: counts.default_validator,
        connections: state.connections,
        left_out: state.left_out,
        answers: state.times.answers(),
        p99_us: state.times.p99().map(us),
        longest_us: us(state.times.longest()),
        adjusted: counts.adjusted,
        refused: counts.refused,
        killed: counts.killed,
    }
}

pub(super) fn kubelet(views: &kubelet::Views) -> proto::Kubelet {
    let (registration, refusal) = match &*views.registration.borrow() {
        State::Waiting => (Registration::Waiting, String::new()),
        State::Asked => (Registration::Asked, String::new()),
        State::Registered => (Registration::Registered, String::new()),
        State::Refused(why) => (Registration::Refused, why.clone()),
    };
    let membership = views.membership.borrow();
    proto::Kubelet {
        root: views.root.display().to_string(),
        registration: registration.into(),
        refusal,
        pods: Some(told_of(&membership)),
        waiting: membership.waiting().map(waiting).collect(),
        devices: Some(devices(&views.devices.borrow())),
    }
}

fn devices(answers: &Answers) -> proto::Devices {
    let silence = answers.as_ref().and_then(|answers| answers.as_ref().err());
    proto::Devices {
        asked: answers.is_some(),
        away: silence.map(|silence| silence.why.clone()),
        away_since_ms: silence.map_or(0, |silence| ms(silence.since)),
    }
}

fn told_of(membership: &Membership) -> proto::Pods {
    let source = match membership.source {
        None => pods::Source::Nobody,
        Some(Source::Kubelet) => pods::Source::Kubelet,
        Some(Source::ApiServer) => pods::Source::ApiServer,
    };
    let away = membership.away.as_ref();
    proto::Pods {
        source: source.into(),
        complete: membership.complete,
        away: away.map(|(why, _)| why.clone()),
        away_since_ms: away.map_or(0, |(_, since)| ms(*since)),
        known: u32::try_from(membership.known).unwrap_or(u32::MAX),
    }
}

fn waiting(wait: &membership::Wait) -> proto::Waiting {
    proto::Waiting {
        namespace: wait.pod.namespace.clone(),
        pod: wait.pod.name.clone(),
        uid: wait.pod.uid.clone(),
        volume: wait.volume.clone(),
        why: wait.why.clone(),
        since_ms: ms(wait.since),
    }
}
