//! A sidecar and the broker.

use gpu_handoff_protocol::message::{SidecarBody, SlotBody};
use gpu_handoff_protocol::{Code, PROTOCOL_VERSION, Refusal};

use super::super::file::Conversation;
use super::super::packet::descriptors;
use super::Talk;
use super::words::{group, id, keepsake, legacy, pod, refusal, tensor, vmm};

type Recorded = Result<Conversation, Refusal>;

fn greeted(title: &str) -> Result<Talk, Refusal> {
    let mut talk = Talk::about(title);
    talk.sidecar(1, SidecarBody::Hello { version: PROTOCOL_VERSION })?;
    talk.slot(1, SlotBody::Welcome { version: PROTOCOL_VERSION, pod: pod("trainer-0"), group: group() })?;
    Ok(talk)
}

pub(super) fn hand_on() -> Recorded {
    let mut talk = greeted("A sidecar that keeps nothing yet hands connections on.")?;
    talk.sidecar(2, SidecarBody::OfferDone)?;
    talk.sidecar(3, SidecarBody::HandOn(descriptors(1).remove(0)))?;
    talk.slot(3, SlotBody::HandedOn(Ok(())))?;
    talk.sidecar(4, SidecarBody::HandOn(descriptors(1).remove(0)))?;
    let no = refusal(Code::TooManyConnections).compared_with("connections", "at most 64", "one more");
    talk.slot(4, SlotBody::HandedOn(Err(no)))?;
    talk.end()
}

pub(super) fn keep() -> Recorded {
    let mut talk =
        greeted("A sidecar offers what it keeps to another broker, keeps what it is given, and forgets.")?;
    let items = vec![
        keepsake(1, tensor("weights/layer-0")),
        keepsake(2, legacy("frames")),
        keepsake(3, vmm("weights/layer-1")),
    ];
    talk.sidecar(2, SidecarBody::Offer(items))?;
    let no =
        refusal(Code::ReceiptInvalid).compared_with("receipt", "of a live buffer", "of one that was retired");
    talk.slot_begins(2, SlotBody::Offered(vec![Ok(()), Ok(())]))?;
    talk.slot(2, SlotBody::Offered(vec![Err(no)]))?;
    talk.sidecar(3, SidecarBody::OfferDone)?;
    talk.slot(0, SlotBody::Keep(vec![keepsake(4, vmm("weights/layer-2")), keepsake(5, legacy("audio"))]))?;
    talk.slot(0, SlotBody::Forget(vec![id(1), id(4)]))?;
    talk.end()
}

pub(super) fn refused() -> Recorded {
    let mut talk = Talk::about("A sidecar of a version that the node does not serve says hello.");
    talk.sidecar(1, SidecarBody::Hello { version: (9, 3) })?;
    let version = refusal(Code::UnsupportedVersion).compared_with("version", "0.0 to 0.2", "9.3");
    talk.slot(0, SlotBody::Refused(version))?;
    talk.end()
}
