//! Every message, at random. Each descriptor is a memfd of its own, so that its inode tells it from the others.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use gpu_handoff_protocol::message::{
    BrokerBody, BrokerMessage, Carrier, Claim, ClientBody, ClientMessage, EndReason, Event, Grant, Keepsake,
    Publication, PublishedAs, Reattached, SeatEnd, SidecarBody, SidecarMessage, SlotBody, SlotMessage,
    Target, Wanted, Welcome,
};
use gpu_handoff_protocol::receipt::{BufferReceipt, LeaseReceipt, ProcessKey, ReceiptBody, Subject};
use gpu_handoff_protocol::{
    Access, BootTag, BufferFacts, BufferId, BufferInfo, BufferName, Code, DeviceUuid, GroupKey, Instance,
    Kind, LeaseId, Lifetime, Metadata, Order, PodRef, Receipt, Refusal, Seat, SetInfo, SetPart, SetRef,
    Tensor, limits,
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
    let numbers = any::<(u64, u64, u64)>();
    let ordered = option::of(order());
    (name(), kind(), device(), numbers, access, lifetime, metadata, ordered).prop_map(
        |(name, kind, device, (offset, size, allocation_size), access, lifetime, metadata, order)| {
            BufferFacts {
                name,
                kind,
                device,
                offset,
                size,
                allocation_size,
                access,
                lifetime,
                metadata,
                order: order.filter(|_| kind == Kind::Vmm),
            }
        },
    )
}

fn device() -> impl Strategy<Value = DeviceUuid> {
    any::<[u8; 16]>().prop_map(DeviceUuid::from_bytes)
}

fn order() -> impl Strategy<Value = Order> {
    let seats = prop_oneof![Just(0), Just(limits::SEATS), 0..=limits::SEATS];
    let value = prop_oneof![0..300_u64, Just(limits::ORDER_VALUES - 1)];
    (id(), any::<u32>(), value, 0..=u32::MAX - limits::SEATS, seats).prop_map(
        |(timeline, ready_word, value, first_seat_word, seats)| Order {
            timeline,
            ready_word,
            value,
            first_seat_word,
            seats,
        },
    )
}

fn set_ref() -> impl Strategy<Value = SetRef> {
    let total = prop_oneof![1..20_u32, Just(limits::SET_BUFFERS)];
    (name(), total, any::<prop::sample::Index>()).prop_map(|(name, total, index)| {
        let index = u32::try_from(index.index(total as usize)).unwrap();
        SetRef { name, index, total }
    })
}

pub(crate) fn receipt() -> impl Strategy<Value = Receipt> {
    let bytes = prop_oneof![9 => vec(any::<u8>(), 1..200), 1 => vec(any::<u8>(), limits::RECEIPT_BYTES)];
    bytes.prop_map(|bytes| Receipt::new(bytes).unwrap())
}

fn some_descriptor() -> impl Strategy<Value = Option<Arc<OwnedFd>>> {
    any::<bool>().prop_map(|one| one.then(|| Arc::new(memfd())))
}

fn claim() -> impl Strategy<Value = Claim> {
    (receipt(), some_descriptor()).prop_map(|(receipt, descriptor)| Claim { receipt, descriptor })
}

pub(crate) fn keepsake() -> impl Strategy<Value = Keepsake> {
    (id(), receipt(), some_descriptor()).prop_map(|(id, receipt, descriptor)| Keepsake {
        id,
        receipt,
        descriptor,
    })
}

fn info() -> impl Strategy<Value = BufferInfo> {
    (id(), any::<u64>(), pod(), any::<bool>(), facts(), option::of(set_ref())).prop_map(
        |(id, generation, owner, verified, facts, set)| BufferInfo {
            id,
            generation,
            owner,
            verified,
            facts,
            set,
        },
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
        publish_set(items),
        (vec(wanted(), 1..=items), millis(limits::ACQUIRE_WAIT_MS), option::of(device()))
            .prop_map(|(items, wait, device)| ClientBody::Acquire { items, wait, device }),
        (name(), any::<u64>(), millis(limits::ACQUIRE_WAIT_MS), option::of(device())).prop_map(
            |(name, newer_than, wait, device)| ClientBody::AcquireSet { name, newer_than, wait, device }
        ),
        vec(claim(), 1..=items).prop_map(ClientBody::Reattach),
        vec(any::<u64>().prop_map(LeaseId), 1..=items).prop_map(ClientBody::Release),
        (id(), millis(limits::RETIRE_DEADLINE_MS))
            .prop_map(|(id, deadline)| ClientBody::Retire { id, deadline }),
        Just(()).prop_map(|()| ClientBody::Watch),
        any::<u64>().prop_map(|request| ClientBody::Cancel { request }),
        vec(name(), 1..=items).prop_map(ClientBody::Announce),
    ];
    (request(), body).prop_map(|(request, body)| ClientMessage { request, body })
}

/// A part that fills its set, or lies somewhere in a large one.
fn publish_set(items: usize) -> impl Strategy<Value = ClientBody> {
    (name(), vec(publication(), 1..=items), option::of(any::<u16>())).prop_map(|(name, items, first)| {
        let count = u32::try_from(items.len()).unwrap();
        let part = match first {
            None => SetPart { name, total: count, first: 0 },
            Some(first) => {
                let first = u32::from(first).min(limits::SET_BUFFERS - count);
                SetPart { name, total: limits::SET_BUFFERS, first }
            }
        };
        ClientBody::PublishSet { part, items }
    })
}

pub(crate) fn grant() -> impl Strategy<Value = Grant> {
    let more = (any::<bool>(), option::of(receipt()), option::of(any::<u32>().prop_map(Seat)));
    (any::<u64>(), info(), more).prop_flat_map(|(lease, buffer, (rewrite_pid_word, receipt, seat))| {
        let buffer = Arc::new(buffer);
        carrier(buffer.facts.kind).prop_map(move |carrier| Grant {
            lease: LeaseId(lease),
            buffer: Arc::clone(&buffer),
            carrier,
            rewrite_pid_word,
            receipt: receipt.clone(),
            seat,
        })
    })
}

pub(crate) fn event() -> impl Strategy<Value = Event> {
    let reason = || {
        proptest::sample::select(&[
            EndReason::Retired,
            EndReason::OwnerClosed,
            EndReason::OwnerDied,
            EndReason::MemberLeft,
            EndReason::Superseded,
            EndReason::NotAllowed,
            EndReason::Other,
        ])
    };
    let how = || proptest::sample::select(&[SeatEnd::Released, SeatEnd::Died, SeatEnd::Other]);
    let seat = || any::<u32>().prop_map(Seat);
    prop_oneof![
        (id(), seat()).prop_map(|(id, seat)| Event::Seated { id, seat }),
        (id(), seat(), how()).prop_map(|(id, seat, how)| Event::Unseated { id, seat, how }),
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
    let welcome = (any::<(u32, u32)>(), pod(), group(), any::<u64>(), any::<bool>(), any::<[u8; 16]>())
        .prop_map(|(version, pod, group, boot, legacy_pid_word_proven, instance)| Welcome {
            version,
            pod,
            group,
            boot: BootTag(boot),
            legacy_pid_word_proven,
            instance: Instance::from_bytes(instance),
        });
    let checked = option::of((1..=u64::MAX).prop_map(Duration::from_nanos));
    let published = (id(), any::<u64>(), option::of(receipt()), checked)
        .prop_map(|(id, generation, receipt, checked)| PublishedAs { id, generation, receipt, checked });
    let reattached = proptest::sample::select(&[Reattached::Restored, Reattached::DescriptorWanted]);
    let body = prop_oneof![
        welcome.prop_map(BrokerBody::Welcome),
        vec(outcome(published), 0..=items).prop_map(BrokerBody::Published),
        vec(outcome(grant()), 0..=items).prop_map(BrokerBody::Acquired),
        acquired_set(items),
        vec(outcome(reattached), 0..=items).prop_map(BrokerBody::Reattached),
        vec(outcome(Just(())), 0..=items).prop_map(BrokerBody::Released),
        outcome(any::<u32>()).prop_map(BrokerBody::Retired),
        event().prop_map(BrokerBody::Event),
        Just(BrokerBody::Cancelled),
        Just(BrokerBody::Announced),
        refusal().prop_map(BrokerBody::Refused),
    ];
    (any::<u64>(), body).prop_map(|(request, body)| BrokerMessage { request, body })
}

fn acquired_set(items: usize) -> impl Strategy<Value = BrokerBody> {
    (name(), any::<u64>(), vec(grant(), 1..=items)).prop_map(|(name, generation, grants)| {
        let total = u32::try_from(grants.len()).unwrap();
        BrokerBody::AcquiredSet { set: SetInfo { name, generation, total }, grants }
    })
}

fn outcome<T: std::fmt::Debug + Clone>(
    yes: impl Strategy<Value = T>,
) -> impl Strategy<Value = Result<T, Refusal>> {
    prop_oneof![3 => yes.prop_map(Ok), 1 => refusal().prop_map(Err)]
}

/// A sidecar's message with at most `items` items.
pub(crate) fn sidecar(items: usize) -> impl Strategy<Value = SidecarMessage> {
    let body = prop_oneof![
        any::<(u32, u32)>().prop_map(|version| SidecarBody::Hello { version }),
        Just(()).prop_map(|()| SidecarBody::HandOn(memfd())),
        vec(keepsake(), 1..=items).prop_map(SidecarBody::Offer),
        Just(()).prop_map(|()| SidecarBody::OfferDone),
    ];
    (request(), body).prop_map(|(request, body)| SidecarMessage { request, body })
}

/// What the broker says to a sidecar, with at most `items` items.
pub(crate) fn slot(items: usize) -> impl Strategy<Value = SlotMessage> {
    let body = prop_oneof![
        (any::<(u32, u32)>(), pod(), group()).prop_map(|(version, pod, group)| SlotBody::Welcome {
            version,
            pod,
            group
        }),
        outcome(Just(())).prop_map(SlotBody::HandedOn),
        refusal().prop_map(SlotBody::Refused),
        vec(keepsake(), 1..=items).prop_map(SlotBody::Keep),
        vec(id(), 1..=items).prop_map(SlotBody::Forget),
        vec(outcome(Just(())), 0..=items).prop_map(SlotBody::Offered),
    ];
    (any::<u64>(), body).prop_map(|(request, body)| SlotMessage { request, body })
}

pub(crate) fn receipt_body() -> impl Strategy<Value = ReceiptBody> {
    let process = any::<(u32, u64, u64)>().prop_map(|(pid, started, inode)| ProcessKey {
        pid,
        started,
        pidfs_inode: Some(inode).filter(|inode| *inode != 0),
    });
    let handle = option::of(vec(any::<u8>(), limits::LEGACY_HANDLE_BYTES));
    let buffer = (info(), group(), handle, any::<u32>(), "[0-9a-f]{0,128}").prop_map(
        |(info, group, handle, own_pid, container)| {
            let legacy_handle = handle.map(|h| h.try_into().unwrap());
            let info = Arc::new(info);
            Subject::Buffer(BufferReceipt { info, group, legacy_handle, own_pid, container })
        },
    );
    let lease = (any::<u64>(), info(), group(), option::of(any::<u32>().prop_map(Seat))).prop_map(
        |(lease, buffer, group, seat)| {
            Subject::Lease(LeaseReceipt { lease: LeaseId(lease), buffer: Arc::new(buffer), group, seat })
        },
    );
    let subject = prop_oneof![buffer, lease];
    (any::<u64>(), process, "[a-zA-Z0-9-]{1,63}", "[a-zA-Z0-9-]{1,128}", subject).prop_map(
        |(boot, process, slot, pod_uid, subject)| ReceiptBody {
            boot: BootTag(boot),
            process,
            slot: slot.parse().unwrap(),
            pod_uid: pod_uid.parse().unwrap(),
            subject,
        },
    )
}
