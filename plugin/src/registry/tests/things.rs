//! What tests publish, ask for and look for in answers.

use super::*;

/// The process behind a session: one each.
pub(super) fn process(session: SessionId) -> ProcessKey {
    let pid = u32::try_from(session.0).unwrap();
    ProcessKey { pid, started: session.0 + 1, pidfs_inode: Some(session.0 + 2) }
}

pub(super) fn member_facts(member: u32, group: &str) -> MemberFacts {
    MemberFacts {
        pod: pod(member),
        slot: slot(member),
        uid: slot(member).into(),
        group: group_key(group),
        service_account: None,
        holds: Holds::All,
    }
}

pub(super) fn slot(member: u32) -> SlotId {
    format!("slot-{member}").parse().unwrap()
}

pub(super) fn pod(member: u32) -> PodRef {
    PodRef { namespace: "n".parse().unwrap(), name: format!("pod-{member}").parse().unwrap() }
}

pub(super) fn group_key(name: &str) -> GroupKey {
    GroupKey { namespace: "n".parse().unwrap(), name: name.parse().unwrap() }
}

pub(super) fn facts(name: &str, kind: Kind) -> BufferFacts {
    BufferFacts {
        name: BufferName::new(name).unwrap(),
        kind,
        device: DeviceUuid::from_bytes([1; 16]),
        offset: 0,
        size: 100,
        allocation_size: 100,
        access: Access::ReadWrite,
        lifetime: Lifetime::Process,
        metadata: Metadata::default(),
        order: None,
    }
}

pub(super) fn descriptor() -> Carrier {
    let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    Carrier::Descriptor(Arc::new(file))
}

pub(super) fn named(name: &str, newer_than: u64) -> Wanted {
    Wanted { target: Target::Name(BufferName::new(name).unwrap()), newer_than }
}

pub(super) fn by_id(id: BufferId) -> Wanted {
    Wanted { target: Target::Id(id), newer_than: 0 }
}

/// The one answer to a request among what was sent.
pub(super) fn answer(
    sent: &[(SessionId, BrokerMessage)],
    session: SessionId,
    request: RequestId,
) -> BrokerBody {
    let mut found = sent.iter().filter(|(s, m)| *s == session && m.request == request);
    let (_, message) = found.next().expect("an answer");
    assert!(found.next().is_none(), "one answer only");
    message.body.clone()
}

pub(super) fn part(name: &str, total: u32, first: u32) -> SetPart {
    SetPart { name: name.parse().unwrap(), total, first }
}

pub(super) fn wanted_set(name: &str, newer_than: u64) -> WantedSet {
    WantedSet { name: name.parse().unwrap(), newer_than, device: None }
}

pub(super) fn acquired_set(body: BrokerBody) -> Result<(SetInfo, Vec<Grant>), Refusal> {
    match body {
        BrokerBody::AcquiredSet { set, grants } => Ok((set, grants)),
        BrokerBody::Refused(refusal) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

pub(super) fn acquired(body: BrokerBody) -> Result<Grant, Refusal> {
    match body {
        BrokerBody::Acquired(mut items) => items.remove(0),
        BrokerBody::Refused(refusal) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

/// The events that a session was told, notices and watches alike.
pub(super) fn events(sent: &[(SessionId, BrokerMessage)], session: SessionId) -> Vec<Event> {
    let of = |(s, m): &(SessionId, BrokerMessage)| match &m.body {
        BrokerBody::Event(e) if *s == session => Some(e.clone()),
        _ => None,
    };
    sent.iter().filter_map(of).collect()
}

pub(super) fn code<T: std::fmt::Debug>(outcome: Result<T, Refusal>) -> Code {
    outcome.unwrap_err().code()
}

pub(super) fn is_gone(event: &Event, because: EndReason) -> bool {
    matches!(event, Event::Gone { reason, .. } if *reason == because)
}
