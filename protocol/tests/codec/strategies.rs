//! Every message, at random. Each descriptor is a memfd of its own, so that its inode tells it from the others.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use gpu_handoff_protocol::message::{
    BrokerBody, BrokerMessage, Carrier, ClientBody, ClientMessage, EndReason, Event, Grant, Publication,
    PublishedAs, SidecarBody, SidecarMessage, SlotBody, SlotMessage, Target, Wanted, Welcome,
};
use gpu_handoff_protocol::{
    Access, BootTag, BufferFacts, BufferId, BufferInfo, BufferName, Code, DeviceUuid, GroupKey, Kind,
    LeaseId, Lifetime, Metadata, PodRef, Refusal, Tensor, limits,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

pub(crate) fn memfd() -> OwnedFd {
    rustix::fs::memfd_create("codec-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
}

fn id() -> impl Strategy<Value = BufferId> {
    any::<(u64, u128)>().prop_map(|(boot, random)| BufferId { boot: BootTag(boot), random })
}

fn name() -> impl Strategy<Value = BufferName> {
    prop_oneof!["[!-~]{1,128}", "[äßλ日🦀/._-]{1,32}"].prop_map(|text| text.parse().unwrap())
}

fn pod() -> impl Strategy<Value = PodRef> {
    ("[a-z0-9-]{1,63}", "[a-z0-9.-]{1,253}")
        .prop_map(|(ns, name)| PodRef { namespace: ns.parse().unwrap(), name: name.parse().unwrap() })
}

fn group() -> impl Strategy<Value = GroupKey> {
    ("[a-z0-9-]{1,63}", "[a-z0-9.-]{1,63}")
        .prop_map(|(ns, name)| GroupKey { namespace: ns.parse().unwrap(), name: name.parse().unwrap() })
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Vmm), Just(Kind::Legacy), Just(Kind::Timeline)]
}

fn tensor() -> impl Strategy<Value = Tensor> {
    let dims = limits::TENSOR_DIMENSIONS;
    ("[a-z0-9_]{0,32}", vec(any::<u64>(), 0..=dims), vec(any::<i64>(), 0..=dims))
        .prop_map(|(dtype, shape, strides)| Tensor { dtype, shape, strides })
}

fn facts() -> impl Strategy<Value = BufferFacts> {
    let access = prop_oneof![Just(Access::ReadWrite), Just(Access::ReadOnly)];
    let lifetime = prop_oneof![Just(Lifetime::Process), Just(Lifetime::Pod)];
    let user = prop_oneof![vec(any::<u8>(), 0..40), vec(any::<u8>(), limits::METADATA_BYTES)];
    let metadata = (option::of(tensor()), user).prop_map(|(tensor, user)| Metadata { tensor, user });
    (name(), kind(), any::<[u8; 16]>(), any::<(u64, u64, u64)>(), access, lifetime, metadata).prop_map(
        |(name, kind, device, (offset, size, allocation_size), access, lifetime, metadata)| BufferFacts {
            name,
            kind,
            device: DeviceUuid::from_bytes(device),
            offset,
            size,
            allocation_size,
            access,
            lifetime,
            metadata,
        },
    )
}

fn info() -> impl Strategy<Value = BufferInfo> {
    (id(), any::<u64>(), pod(), any::<bool>(), facts()).prop_map(
        |(id, generation, owner, verified, facts)| BufferInfo { id, generation, owner, verified, facts },
    )
}

/// A carrier that fits the kind, each descriptor a file of its own.
fn carrier(kind: Kind) -> impl Strategy<Value = Carrier> {
    vec(any::<u8>(), limits::LEGACY_HANDLE_BYTES).prop_map(move |handle| match kind {
        Kind::Legacy => Carrier::Legacy(handle.try_into().unwrap()),
        Kind::Vmm | Kind::Timeline => Carrier::Descriptor(Arc::new(memfd())),
    })
}

fn publication() -> impl Strategy<Value = Publication> {
    facts().prop_flat_map(|facts| {
        carrier(facts.kind).prop_map(move |carrier| Publication { facts: facts.clone(), carrier })
    })
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let target = prop_oneof![id().prop_map(Target::Id), name().prop_map(Target::Name)];
    (target, any::<u64>()).prop_map(|(target, newer_than)| Wanted { target, newer_than })
}

fn millis(limit: u64) -> impl Strategy<Value = Duration> {
    prop_oneof![Just(0), Just(limit), 0..=limit].prop_map(Duration::from_millis)
}

fn request() -> impl Strategy<Value = u64> {
    prop_oneof![1..300_u64, 1..=u64::MAX]
}

pub(crate) fn refusal() -> impl Strategy<Value = Refusal> {
    let code = prop_oneof![proptest::sample::select(Code::ALL), (1_000..=u32::MAX).prop_map(Code::Unknown)];
    let text = || prop_oneof!["[ -~]{0,20}", "[a-z ]{384}"];
    let compared = vec((text(), text(), text()), 0..=limits::REFUSAL_COMPARED);
    (code, compared, option::of("[ -~]{1,60}")).prop_map(|(code, compared, remedy)| {
        let refusal = compared
            .into_iter()
            .fold(Refusal::new(code), |r, (what, wanted, found)| r.compared_with(&what, wanted, found));
        match remedy {
            Some(text) => refusal.with_remedy(text),
            None => refusal,
        }
    })
}

/// A client's message with at most `items` items.
pub(crate) fn client(items: usize) -> impl Strategy<Value = ClientMessage> {
    let body = prop_oneof![
        (any::<(u32, u32)>(), "[ -~]{0,64}")
            .prop_map(|(version, program)| ClientBody::Hello { version, program }),
        vec(publication(), 1..=items).prop_map(ClientBody::Publish),
        (vec(wanted(), 1..=items), millis(limits::ACQUIRE_WAIT_MS))
            .prop_map(|(items, wait)| ClientBody::Acquire { items, wait }),
        vec(any::<u64>().prop_map(LeaseId), 1..=items).prop_map(ClientBody::Release),
        (id(), millis(limits::RETIRE_DEADLINE_MS))
            .prop_map(|(id, deadline)| ClientBody::Retire { id, deadline }),
        Just(()).prop_map(|()| ClientBody::Watch),
        any::<u64>().prop_map(|request| ClientBody::Cancel { request }),
    ];
    (request(), body).prop_map(|(request, body)| ClientMessage { request, body })
}

pub(crate) fn grant() -> impl Strategy<Value = Grant> {
    (any::<u64>(), info(), any::<bool>()).prop_flat_map(|(lease, buffer, rewrite_pid_word)| {
        carrier(buffer.facts.kind).prop_map(move |carrier| Grant {
            lease: LeaseId(lease),
            buffer: buffer.clone(),
            carrier,
            rewrite_pid_word,
        })
    })
}

fn event() -> impl Strategy<Value = Event> {
    let reason = || {
        proptest::sample::select(&[
            EndReason::Retired,
            EndReason::OwnerClosed,
            EndReason::OwnerDied,
            EndReason::MemberLeft,
            EndReason::Other,
        ])
    };
    prop_oneof![
        info().prop_map(|i| Event::Appeared(Arc::new(i))),
        Just(Event::SnapshotDone),
        (id(), any::<u64>()).prop_map(|(id, ms)| Event::Retiring { id, deadline: Duration::from_millis(ms) }),
        (id(), reason()).prop_map(|(id, reason)| Event::Gone { id, reason }),
        (id(), reason(), any::<u32>()).prop_map(|(id, reason, leases)| Event::Orphaned {
            id,
            reason,
            leases
        }),
    ]
}

/// A broker's message with at most `items` items.
pub(crate) fn broker(items: usize) -> impl Strategy<Value = BrokerMessage> {
    let welcome = (any::<(u32, u32)>(), pod(), group(), any::<u64>(), any::<bool>()).prop_map(
        |(version, pod, group, boot, legacy_pid_word_proven)| Welcome {
            version,
            pod,
            group,
            boot: BootTag(boot),
            legacy_pid_word_proven,
        },
    );
    let receipt = (id(), any::<u64>()).prop_map(|(id, generation)| PublishedAs { id, generation });
    let body = prop_oneof![
        welcome.prop_map(BrokerBody::Welcome),
        vec(outcome(receipt), 0..=items).prop_map(BrokerBody::Published),
        vec(outcome(grant()), 0..=items).prop_map(BrokerBody::Acquired),
        vec(outcome(Just(())), 0..=items).prop_map(BrokerBody::Released),
        outcome(any::<u32>()).prop_map(BrokerBody::Retired),
        event().prop_map(BrokerBody::Event),
        Just(BrokerBody::Cancelled),
        refusal().prop_map(BrokerBody::Refused),
    ];
    (any::<u64>(), body).prop_map(|(request, body)| BrokerMessage { request, body })
}

fn outcome<T: std::fmt::Debug + Clone>(
    yes: impl Strategy<Value = T>,
) -> impl Strategy<Value = Result<T, Refusal>> {
    prop_oneof![3 => yes.prop_map(Ok), 1 => refusal().prop_map(Err)]
}

pub(crate) fn sidecar() -> impl Strategy<Value = SidecarMessage> {
    let body = prop_oneof![
        any::<(u32, u32)>().prop_map(|version| SidecarBody::Hello { version }),
        Just(()).prop_map(|()| SidecarBody::HandOn(memfd())),
    ];
    (request(), body).prop_map(|(request, body)| SidecarMessage { request, body })
}

pub(crate) fn slot() -> impl Strategy<Value = SlotMessage> {
    let body = prop_oneof![
        (any::<(u32, u32)>(), pod(), group()).prop_map(|(version, pod, group)| SlotBody::Welcome {
            version,
            pod,
            group
        }),
        outcome(Just(())).prop_map(SlotBody::HandedOn),
        refusal().prop_map(SlotBody::Refused),
    ];
    (any::<u64>(), body).prop_map(|(request, body)| SlotMessage { request, body })
}
