//! Sets, and the order of GPU work.

use std::sync::Arc;
use std::time::Duration;

use gpu_handoff_protocol::message::{
    BrokerBody, ClientBody, EndReason, Event, PublishedAs, SeatEnd, Target, Wanted,
};
use gpu_handoff_protocol::{Code, LeaseId, Refusal, Seat, SetInfo, SetPart};

use super::super::file::Conversation;
use super::Talk;
use super::words::{
    GPU, buffer_receipt, grant, id, info, name, of_set, ordered, publication, published, refusal,
    size_mismatch, tensor, timeline, vmm,
};

type Recorded = Result<Conversation, Refusal>;

/// Buffers of the recorded set, and of its first part.
const TOTAL: u32 = 3;
const FIRST_PART: u32 = 2;

fn part(first: u32) -> SetPart {
    SetPart { name: name("model"), total: TOTAL, first }
}

pub(super) fn publish_and_acquire() -> Recorded {
    let mut talk = Talk::about(
        "A producer publishes a set in two parts; a consumer acquires it; a later version supersedes it.",
    );
    for (request, indexes) in [(2, 0..FIRST_PART), (3, FIRST_PART..TOTAL)] {
        let part = part(indexes.start);
        let items = indexes.clone().map(|n| publication(vmm(&format!("layer-{n}")))).collect();
        talk.application(request, ClientBody::PublishSet { part, items })?;
        let taken = indexes.map(|n| {
            let random = u128::from(0x100 + n);
            let receipt = Some(buffer_receipt(random, vmm("layer")));
            Ok(PublishedAs { id: id(random), generation: 9, receipt, checked: None })
        });
        talk.broker(request, BrokerBody::Published(taken.collect()))?;
    }
    let device = Some(GPU);
    let wait = Duration::from_millis(5_000);
    talk.application(4, ClientBody::AcquireSet { name: name("model"), newer_than: 8, wait, device })?;
    let granted = |n: u32| grant(u64::from(500 + n), of_set(n, TOTAL, vmm(&format!("layer-{n}"))), None);
    let set = SetInfo { name: name("model"), generation: 9, total: TOTAL };
    let grants = vec![granted(0), granted(1)];
    talk.broker_begins(4, BrokerBody::AcquiredSet { set, grants })?;
    talk.broker(4, BrokerBody::Acquired(vec![Ok(granted(2))]))?;
    talk.application(5, ClientBody::Release(vec![LeaseId(500)]))?;
    talk.broker(5, BrokerBody::Released(vec![Ok(())]))?;
    talk.broker(0, BrokerBody::Event(Event::Gone { id: id(0x100), reason: EndReason::Superseded }))?;
    let appeared = Event::Appeared(Arc::new(of_set(1, TOTAL, tensor("layer-1"))));
    talk.broker(6, BrokerBody::Event(appeared))?;
    talk.end()
}

pub(super) fn broken() -> Recorded {
    let mut talk = Talk::about("A set with a wrong buffer is not published at all, and nobody acquires it.");
    let items = vec![publication(vmm("layer-0")), publication(vmm("layer-1"))];
    let part = SetPart { name: name("broken"), total: 2, first: 0 };
    talk.application(2, ClientBody::PublishSet { part, items })?;
    let other = refusal(Code::SetBroken).compared_with(
        "set broken",
        "every buffer as stated",
        "buffer 0: SIZE_MISMATCH",
    );
    talk.broker(2, BrokerBody::Published(vec![Err(size_mismatch()), Err(other)]))?;
    let ask =
        ClientBody::AcquireSet { name: name("broken"), newer_than: 0, wait: Duration::ZERO, device: None };
    talk.application(3, ask)?;
    let no = refusal(Code::NotFound).compared_with("set", "broken", "none such in group ml/llama");
    talk.broker(3, BrokerBody::Refused(no))?;
    talk.end()
}

pub(super) fn order() -> Recorded {
    let mut talk = Talk::about("A buffer is ordered by a timeline; its owner hears of seats taken and left.");
    talk.application(2, ClientBody::Publish(vec![publication(timeline("clock"))]))?;
    talk.broker(2, BrokerBody::Published(vec![published(3, 9)]))?;
    talk.application(3, ClientBody::Publish(vec![publication(ordered("frame", id(3)))]))?;
    talk.broker(3, BrokerBody::Published(vec![published(4, 10)]))?;
    talk.broker(0, BrokerBody::Event(Event::Seated { id: id(4), seat: Seat(1) }))?;
    for how in [SeatEnd::Released, SeatEnd::Died] {
        talk.broker(0, BrokerBody::Event(Event::Unseated { id: id(4), seat: Seat(1), how }))?;
    }
    let items = vec![Wanted { target: Target::Id(id(4)), newer_than: 0 }; 3];
    talk.application(4, ClientBody::Acquire { items, wait: Duration::ZERO, device: None })?;
    let seated = |lease, seat| Ok(grant(lease, info(4, 10, ordered("frame", id(3))), Some(seat)));
    let full = refusal(Code::NoSeat).compared_with("seats", "one of 4 free", "4 taken");
    talk.broker(4, BrokerBody::Acquired(vec![seated(61, 0), seated(62, 3), Err(full)]))?;
    talk.end()
}
