//! What every application says, and hears.

use std::sync::Arc;
use std::time::Duration;

use gpu_handoff_protocol::message::{BrokerBody, ClientBody, EndReason, Event, Target, Wanted};
use gpu_handoff_protocol::{Code, LeaseId, PROTOCOL_VERSION, Refusal};

use super::super::file::Conversation;
use super::Talk;
use super::words::{
    GPU, OTHER_GPU, grant, id, info, legacy, name, publication, published, refusal, size_mismatch, tensor,
    timeline, vmm, welcome,
};

type Recorded = Result<Conversation, Refusal>;

pub(super) fn hello() -> Recorded {
    let mut talk = Talk::about("An application says hello.");
    talk.application(1, ClientBody::Hello { version: PROTOCOL_VERSION, program: "trainer".to_owned() })?;
    talk.broker(1, BrokerBody::Welcome(welcome(0x11)))?;
    talk.end()
}

pub(super) fn hello_refused() -> Recorded {
    let mut talk = Talk::about("An application of a version that the node does not serve says hello.");
    talk.application(1, ClientBody::Hello { version: (9, 3), program: String::new() })?;
    let refusal = refusal(Code::UnsupportedVersion).compared_with("version", "0.0 to 0.2", "9.3");
    talk.broker(0, BrokerBody::Refused(refusal))?;
    talk.end()
}

pub(super) fn publish_and_retire() -> Recorded {
    let mut talk =
        Talk::about("A producer publishes a buffer of each kind, retires one, and hears of its end.");
    let items = [tensor("weights/layer-0"), legacy("frames"), timeline("clock"), vmm("too-small")];
    talk.application(2, ClientBody::Publish(items.map(publication).into()))?;
    let outcomes = vec![published(1, 7), published(2, 8), published(3, 9), Err(size_mismatch())];
    talk.broker(2, BrokerBody::Published(outcomes))?;
    talk.application(3, ClientBody::Retire { id: id(1), deadline: Duration::from_secs(30) })?;
    talk.broker(3, BrokerBody::Retired(Ok(2)))?;
    talk.broker(0, BrokerBody::Event(Event::Retiring { id: id(1), deadline: Duration::from_secs(30) }))?;
    let orphaned = Event::Orphaned { id: id(1), reason: EndReason::Retired, leases: 1 };
    talk.broker(0, BrokerBody::Event(orphaned))?;
    talk.broker(0, BrokerBody::Event(Event::Gone { id: id(1), reason: EndReason::Retired }))?;
    talk.application(4, ClientBody::Retire { id: id(99), deadline: Duration::ZERO })?;
    let no = refusal(Code::NotOwner).compared_with("owner", "ml/server-1", "another process or connection");
    talk.broker(4, BrokerBody::Retired(Err(no)))?;
    talk.end()
}

pub(super) fn acquire_and_release() -> Recorded {
    let mut talk = Talk::about("A consumer acquires by id and by name, and releases.");
    let items = vec![
        Wanted { target: Target::Id(id(1)), newer_than: 0 },
        Wanted { target: Target::Name(name("frames")), newer_than: 3 },
        Wanted { target: Target::Name(name("none-such")), newer_than: 0 },
    ];
    talk.application(2, ClientBody::Acquire { items, wait: Duration::ZERO, device: Some(GPU) })?;
    let missing = refusal(Code::NotFound).compared_with("buffer", "none-such", "none such in group ml/llama");
    talk.broker(
        2,
        BrokerBody::Acquired(vec![
            Ok(grant(42, info(1, 7, tensor("weights/layer-0")), None)),
            Ok(grant(43, info(2, 8, legacy("frames")), None)),
            Err(missing),
        ]),
    )?;
    talk.application(3, ClientBody::Release(vec![LeaseId(42), LeaseId(43), LeaseId(42)]))?;
    let again = refusal(Code::NotLeased).compared_with("lease", "an active one of this process", LeaseId(42));
    talk.broker(3, BrokerBody::Released(vec![Ok(()), Ok(()), Err(again)]))?;
    talk.end()
}

pub(super) fn answers_in_several_packets() -> Recorded {
    let mut talk = Talk::about("Answers that take two packets each.");
    let items = (1..=3).map(|n| Wanted { target: Target::Id(id(n)), newer_than: 0 }).collect();
    talk.application(2, ClientBody::Acquire { items, wait: Duration::ZERO, device: None })?;
    let granted = |n: u64| Ok(grant(41 + n, info(n.into(), 7, tensor("weights/layer-0")), None));
    talk.broker_begins(2, BrokerBody::Acquired(vec![granted(1), granted(2)]))?;
    talk.broker(2, BrokerBody::Acquired(vec![granted(3)]))?;
    talk.application(3, ClientBody::Publish(vec![publication(vmm("a")), publication(vmm("b"))]))?;
    talk.broker_begins(3, BrokerBody::Published(vec![published(1, 7)]))?;
    talk.broker(3, BrokerBody::Published(vec![published(2, 8)]))?;
    talk.application(4, ClientBody::Release(vec![LeaseId(42), LeaseId(43)]))?;
    talk.broker_begins(4, BrokerBody::Released(vec![Ok(())]))?;
    talk.broker(4, BrokerBody::Released(vec![Ok(())]))?;
    talk.end()
}

pub(super) fn watch() -> Recorded {
    let mut talk = Talk::about("An application watches its group, and stops.");
    talk.application(2, ClientBody::Watch)?;
    let tell = |talk: &mut Talk, event| talk.broker(2, BrokerBody::Event(event));
    tell(&mut talk, Event::Appeared(Arc::new(info(1, 7, tensor("weights/layer-0")))))?;
    tell(&mut talk, Event::SnapshotDone)?;
    tell(&mut talk, Event::Appeared(Arc::new(info(2, 8, legacy("frames")))))?;
    for (n, reason) in
        [EndReason::OwnerClosed, EndReason::OwnerDied, EndReason::MemberLeft].into_iter().enumerate()
    {
        tell(&mut talk, Event::Gone { id: id(n as u128), reason })?;
    }
    talk.application(3, ClientBody::Cancel { request: 2 })?;
    talk.broker(2, BrokerBody::Cancelled)?;
    talk.application(4, ClientBody::Watch)?;
    talk.broker(4, BrokerBody::Refused(refusal(Code::WatchOverflow)))?;
    talk.end()
}

pub(super) fn announce() -> Recorded {
    let mut talk =
        Talk::about("A producer announces a buffer, for which a consumer waits already, and publishes it.");
    let items = vec![Wanted { target: Target::Name(name("weights/layer-0")), newer_than: 6 }];
    talk.application(2, ClientBody::Acquire { items, wait: Duration::from_millis(5_000), device: None })?;
    talk.application(3, ClientBody::Announce(vec![name("weights/layer-0")]))?;
    talk.broker(2, BrokerBody::Announced)?;
    talk.application(4, ClientBody::Publish(vec![publication(tensor("weights/layer-0"))]))?;
    talk.broker(4, BrokerBody::Published(vec![published(1, 7)]))?;
    talk.broker(2, BrokerBody::Acquired(vec![Ok(grant(42, info(1, 7, tensor("weights/layer-0")), None))]))?;
    talk.end()
}

pub(super) fn wait_and_cancel() -> Recorded {
    let mut talk = Talk::about("A consumer waits for a buffer on one GPU, and gives up.");
    let items = vec![Wanted { target: Target::Name(name("later")), newer_than: 12 }];
    talk.application(
        2,
        ClientBody::Acquire { items, wait: Duration::from_millis(60_000), device: Some(OTHER_GPU) },
    )?;
    talk.application(3, ClientBody::Cancel { request: 2 })?;
    let wanted = "later newer than generation 12";
    let no = refusal(Code::WaitTimeout).compared_with("buffer", wanted, "none such in group ml/llama");
    talk.broker(2, BrokerBody::Acquired(vec![Err(no)]))?;
    talk.end()
}
