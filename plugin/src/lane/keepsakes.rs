//! What the member's sidecar is to keep for the next daemon, and what it need not keep any longer: off the fast path, in
//! the task of the sidecar's own connection, however slowly that reads.
//!
//! The keeper is the sidecar that said last that it has offered all it keeps. It is told of everything that the member
//! has, but for what it offered itself. What waits to be told is bounded by what the member has: a buffer that ends
//! before its keeper heard of it is never spoken of.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpu_handoff_protocol::message::{Carrier, Keepsake, SlotBody};
use gpu_handoff_protocol::receipt::{BufferReceipt, LeaseReceipt, ProcessKey, Receipt, ReceiptBody, Subject};
use gpu_handoff_protocol::{BufferId, Code, Refusal, limits as wire, message::Grant};
use tokio::sync::Notify;

use super::LaneSpec;
use crate::limits;
use crate::receipts::Sealer;
use crate::registry::{Keepable, Purpose};

/// One connection of a sidecar, for as long as the lane runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeeperId(u64);

/// What is to be kept by whom.
#[derive(Debug, Default)]
pub(super) struct Keepsakes {
    last_keeper: Cell<u64>,
    keeper: Cell<Option<KeeperId>>,
    /// The last that was appointed, whether it is the keeper still or not.
    appointed: Cell<Option<KeeperId>>,
    waiting: RefCell<Waiting>,
    /// Receipts of buffers whose publisher is being answered.
    fresh: RefCell<HashMap<BufferId, Receipt>>,
    stirred: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    /// What the keeper offered itself, until it is named among all that the member has.
    offered: HashSet<BufferId>,
    /// In the order in which they came to be kept.
    order: BTreeMap<u64, BufferId>,
    keep: HashMap<BufferId, (u64, Kept)>,
    last: u64,
    forget: Vec<BufferId>,
}

#[derive(Debug)]
struct Kept {
    what: Keepable,
    receipt: Option<Receipt>,
}

impl Keepsakes {
    /// A number for a connection.
    pub(super) fn introduce(&self) -> KeeperId {
        self.last_keeper.set(self.last_keeper.get() + 1);
        KeeperId(self.last_keeper.get())
    }

    /// From now on this connection is told what to keep, but for what it `offered`.
    pub(super) fn appoint(&self, keeper: KeeperId, offered: HashSet<BufferId>) {
        self.keeper.set(Some(keeper));
        self.appointed.set(Some(keeper));
        *self.waiting.borrow_mut() = Waiting { offered, ..Waiting::default() };
        // The one before is told nothing any more.
        self.stirred.notify_waiters();
    }

    /// All that the member has was named by now. What the keeper offered and was not has ended meanwhile.
    pub(super) fn all_named(&self) {
        let mut waiting = self.waiting.borrow_mut();
        let ended = std::mem::take(&mut waiting.offered);
        waiting.forget.extend(ended);
        drop(waiting);
        self.stirred.notify_waiters();
    }

    /// The connection has ended.
    pub(super) fn dismiss(&self, keeper: KeeperId) {
        if self.keeper.get() == Some(keeper) {
            self.keeper.set(None);
            *self.waiting.borrow_mut() = Waiting::default();
        }
    }

    /// Lets the keeper keep these. The receipts of what was just published are there for [`Keepsakes::fresh`].
    pub(super) fn keep(&self, spec: &LaneSpec, sealer: &Sealer, all: Vec<Keepable>) {
        for what in all {
            let id = what.info.id;
            let asked_for = what.purpose != Purpose::Keep;
            let receipt = asked_for.then(|| buffer_receipt(spec, sealer, &what)).flatten();
            if let Some(receipt) = &receipt {
                self.fresh.borrow_mut().insert(id, receipt.clone());
            }
            if what.purpose != Purpose::Answer && self.keeper.get().is_some() {
                self.waiting.borrow_mut().keep(id, Kept { what, receipt });
            }
        }
        self.stirred.notify_waiters();
    }

    /// The receipt of a buffer that was just published, for its publisher.
    pub(super) fn fresh(&self, id: BufferId) -> Option<Receipt> {
        self.fresh.borrow_mut().remove(&id)
    }

    /// Answers were lost: nobody will ask for their receipts.
    pub(super) fn forget_fresh(&self) {
        self.fresh.borrow_mut().clear();
    }

    /// Lets the keeper keep this no longer.
    pub(super) fn forget(&self, id: BufferId) {
        if self.keeper.get().is_none() {
            return;
        }
        let mut waiting = self.waiting.borrow_mut();
        match waiting.keep.remove(&id) {
            Some((place, _)) => drop(waiting.order.remove(&place)),
            None => waiting.forget.push(id),
        }
        let too_many = waiting.forget.len() > limits::FORGETS;
        drop(waiting);
        if too_many {
            // It does not read.
            self.depose();
        }
        self.stirred.notify_waiters();
    }

    /// Whoever is the keeper is so no more, as what it was to be told is lost: it is to come again, and offer what it has.
    pub(super) fn depose(&self) {
        self.keeper.set(None);
        *self.waiting.borrow_mut() = Waiting::default();
        self.stirred.notify_waiters();
    }

    /// Checks that a connection that was appointed is still the keeper.
    fn check(&self, keeper: KeeperId) -> Result<(), Refusal> {
        if self.keeper.get() == Some(keeper) {
            Ok(())
        } else if self.appointed.get() == Some(keeper) {
            Err(Refusal::new(Code::ShuttingDown).compared_with("keepsakes", "read", "not read"))
        } else {
            Err(Refusal::new(Code::TooManyConnections)
                .compared_with("sidecars of the slot", 1, "a newer one, which has taken it over")
                .with_remedy("run one sidecar for each slot: end this one, or the newer one"))
        }
    }

    /// What a connection that was appointed is to be told next. One that was not is told nothing.
    ///
    /// # Errors
    /// It is not the keeper any more, however long ago that was: `TOO_MANY_CONNECTIONS` where another one is or was since,
    /// `SHUTTING_DOWN` where it is to come again.
    pub(super) async fn next(
        &self,
        keeper: KeeperId,
        appointed: bool,
        spec: &LaneSpec,
        sealer: &Sealer,
    ) -> Result<SlotBody, Refusal> {
        if !appointed {
            return std::future::pending().await;
        }
        loop {
            let stirred = self.stirred.notified();
            self.check(keeper)?;
            if let Some(body) = self.waiting.borrow_mut().next(spec, sealer) {
                return Ok(body);
            }
            stirred.await;
        }
    }
}

impl Waiting {
    fn keep(&mut self, id: BufferId, kept: Kept) {
        if self.offered.remove(&id) {
            return;
        }
        self.last += 1;
        if let Some((earlier, _)) = self.keep.insert(id, (self.last, kept)) {
            self.order.remove(&earlier);
        }
        self.order.insert(self.last, id);
    }

    fn next(&mut self, spec: &LaneSpec, sealer: &Sealer) -> Option<SlotBody> {
        if !self.forget.is_empty() {
            // First what frees memory.
            let some = self.forget.len().min(wire::MESSAGE_ITEMS);
            return Some(SlotBody::Forget(self.forget.drain(..some).collect()));
        }
        let mut items = Vec::new();
        while items.len() < wire::MESSAGE_ITEMS
            && let Some((_, id)) = self.order.pop_first()
        {
            let kept = self.keep.remove(&id);
            items.extend(kept.and_then(|(_, kept)| keepsake(spec, sealer, kept)));
        }
        if self.order.is_empty() {
            self.keep = HashMap::new();
        }
        (!items.is_empty()).then_some(SlotBody::Keep(items))
    }
}

fn keepsake(spec: &LaneSpec, sealer: &Sealer, kept: Kept) -> Option<Keepsake> {
    let Kept { what, receipt } = kept;
    let receipt = receipt.or_else(|| buffer_receipt(spec, sealer, &what))?;
    let descriptor: Option<Arc<OwnedFd>> = match what.carrier {
        Carrier::Descriptor(fd) => Some(fd),
        Carrier::Legacy(_) => None,
    };
    Some(Keepsake { id: what.info.id, receipt, descriptor })
}

fn buffer_receipt(spec: &LaneSpec, sealer: &Sealer, what: &Keepable) -> Option<Receipt> {
    let legacy_handle = match what.carrier {
        Carrier::Legacy(handle) => Some(handle),
        Carrier::Descriptor(_) => None,
    };
    let buffer = BufferReceipt {
        info: Arc::clone(&what.info),
        group: spec.group.clone(),
        legacy_handle,
        own_pid: what.own_pid,
        container: String::new(),
    };
    seal(spec, sealer, what.process, Subject::Buffer(buffer))
}

/// The receipt of a lease that is being given to a process of this member.
pub(super) fn lease_receipt(
    spec: &LaneSpec,
    sealer: &Sealer,
    holder: ProcessKey,
    grant: &Grant,
) -> Option<Receipt> {
    let lease = LeaseReceipt {
        lease: grant.lease,
        buffer: Arc::clone(&grant.buffer),
        group: spec.group.clone(),
        seat: grant.seat,
    };
    seal(spec, sealer, holder, Subject::Lease(lease))
}

fn seal(spec: &LaneSpec, sealer: &Sealer, process: ProcessKey, subject: Subject) -> Option<Receipt> {
    let (slot, pod_uid) = (spec.slot.clone(), spec.uid.clone());
    sealer.seal(&ReceiptBody { boot: sealer.boot(), process, slot, pod_uid, subject })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keeper_that_is_deposed_while_it_does_not_ask_is_told_when_it_does() {
        let keepsakes = Keepsakes::default();
        let (first, second) = (keepsakes.introduce(), keepsakes.introduce());
        keepsakes.appoint(first, HashSet::new());
        assert_eq!(keepsakes.check(first), Ok(()));
        let code = |keeper| keepsakes.check(keeper).unwrap_err().code();
        let boot = gpu_handoff_protocol::BootTag(1);
        for random in 0..=limits::FORGETS as u128 {
            keepsakes.forget(BufferId { boot, random });
        }
        assert_eq!(code(first), Code::ShuttingDown, "it did not read, and is to come again");
        keepsakes.appoint(second, HashSet::new());
        assert_eq!((code(first), keepsakes.check(second)), (Code::TooManyConnections, Ok(())));
        keepsakes.depose();
        assert_eq!((code(first), code(second)), (Code::TooManyConnections, Code::ShuttingDown));
    }

    fn keepable(id: BufferId) -> Keepable {
        use gpu_handoff_protocol as p;
        let facts = p::BufferFacts {
            name: p::BufferName::new("w").unwrap(),
            kind: p::Kind::Legacy,
            device: p::DeviceUuid::from_bytes([1; 16]),
            offset: 0,
            size: 1,
            allocation_size: 1,
            access: p::Access::ReadWrite,
            lifetime: p::Lifetime::Process,
            metadata: p::Metadata::default(),
            order: None,
        };
        let owner = p::PodRef { namespace: "n".parse().unwrap(), name: "p".parse().unwrap() };
        let info = p::BufferInfo { id, generation: 1, owner, verified: false, facts, set: None };
        Keepable {
            info: Arc::new(info),
            process: ProcessKey { pid: 1, started: 1, pidfs_inode: None },
            own_pid: 1,
            carrier: Carrier::Legacy([0; 64]),
            purpose: Purpose::Keep,
        }
    }

    #[test]
    fn what_ends_before_its_keeper_heard_of_it_leaves_nothing_behind() {
        let keepsakes = Keepsakes::default();
        let keeper = keepsakes.introduce();
        keepsakes.appoint(keeper, HashSet::new());
        for random in 0..1_000 {
            let id = BufferId { boot: gpu_handoff_protocol::BootTag(1), random };
            keepsakes.waiting.borrow_mut().keep(id, Kept { what: keepable(id), receipt: None });
            keepsakes.forget(id);
        }
        let waiting = keepsakes.waiting.borrow();
        assert_eq!((waiting.order.len(), waiting.keep.len(), waiting.forget.len()), (0, 0, 0));
    }
}
