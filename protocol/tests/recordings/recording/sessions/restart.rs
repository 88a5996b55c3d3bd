//! Another broker takes over.

use gpu_handoff_protocol::message::{BrokerBody, Claim, ClientBody, EndReason, Event, Reattached};
use gpu_handoff_protocol::{Code, PROTOCOL_VERSION, Refusal};

use super::super::file::Conversation;
use super::super::packet::descriptor;
use super::Talk;
use super::words::{
    buffer_body, buffer_receipt, id, lease_body, legacy, refusal, sealed, tensor, vmm, welcome,
};

type Recorded = Result<Conversation, Refusal>;

pub(super) fn reattach() -> Recorded {
    let mut talk = Talk::about("An application claims from another broker what it had.");
    talk.application(1, ClientBody::Hello { version: PROTOCOL_VERSION, program: "trainer".to_owned() })?;
    talk.broker(1, BrokerBody::Welcome(welcome(0x22)))?;
    let bare = |receipt| Claim { receipt, descriptor: None };
    let claims = vec![
        bare(buffer_receipt(1, tensor("weights/layer-0"))),
        bare(buffer_receipt(2, vmm("weights/layer-1"))),
        bare(sealed(&lease_body(42, None))),
        bare(sealed(&lease_body(61, Some(0)))),
    ];
    talk.application(2, ClientBody::Reattach(claims))?;
    let no = refusal(Code::NotOwner).compared_with("process", "4711, started at tick 123456", 4712);
    let restored = Ok(Reattached::Restored);
    let first = vec![restored.clone(), Ok(Reattached::DescriptorWanted)];
    talk.broker_begins(2, BrokerBody::Reattached(first))?;
    talk.broker(2, BrokerBody::Reattached(vec![restored, Err(no)]))?;
    let receipt = buffer_receipt(2, vmm("weights/layer-1"));
    let claim = Claim { receipt, descriptor: Some(descriptor()) };
    talk.application(3, ClientBody::Reattach(vec![claim]))?;
    talk.broker(3, BrokerBody::Reattached(vec![Ok(Reattached::Restored)]))?;
    let (id, leases) = (id(0x101), 1);
    talk.broker(0, BrokerBody::Event(Event::Orphaned { id, reason: EndReason::NotAllowed, leases }))?;
    talk.end()
}

pub(super) fn receipts() -> Recorded {
    let mut talk = Talk::about(
        "What receipts say: a vmm buffer's, a legacy buffer's, a lease's, and one of a lease with a seat.",
    );
    talk.receipt(&buffer_body(1, tensor("weights/layer-0")))?;
    talk.receipt(&buffer_body(2, legacy("frames")))?;
    talk.receipt(&lease_body(42, None))?;
    talk.receipt(&lease_body(61, Some(0)))?;
    talk.end()
}
