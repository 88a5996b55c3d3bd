//! Receipts that a sidecar offers or a process claims: each is checked to be this node's own, and memory that comes along
//! is vetted like a publication's, before the registry hears of it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use gpu_handoff_protocol::message::{Carrier, Claim, EndReason, Keepsake, Publication};
use gpu_handoff_protocol::receipt::{ProcessKey, Receipt, ReceiptBody, Subject};
use gpu_handoff_protocol::{BufferId, Code, Refusal};
use tokio::task::{AbortHandle, JoinSet};
use tracing::{debug, info, warn};

use super::Context;
use super::vet::WithoutRoom;
use crate::identity::{self, ReopenError};
use crate::registry::{Input, SessionId, Shown};

/// A receipt, and the memory that came along.
pub(super) struct Item {
    /// The buffer that it is said to be of.
    id: Option<BufferId>,
    receipt: Receipt,
    descriptor: Option<Arc<OwnedFd>>,
}

impl From<Claim> for Item {
    fn from(claim: Claim) -> Self {
        Self { id: None, receipt: claim.receipt, descriptor: claim.descriptor }
    }
}

impl From<Keepsake> for Item {
    fn from(keepsake: Keepsake) -> Self {
        Self { id: Some(keepsake.id), receipt: keepsake.receipt, descriptor: keepsake.descriptor }
    }
}

/// Checks the receipts, then begins to vet what came along. The outcomes come in order.
pub(super) fn check(
    context: &Context,
    items: Vec<Item>,
) -> impl Future<Output = Vec<Result<Shown, Refusal>>> + 'static {
    let (mut publications, mut brought) = (Vec::new(), Vec::new());
    let mut read: Vec<Result<(ReceiptBody, bool), Refusal>> = Vec::with_capacity(items.len());
    for Item { id, receipt, descriptor } in items {
        // A descriptor that is of no use is closed here, in the lane.
        read.push(context.shared.sealer.open(&receipt).and_then(|body| {
            is_of(id, &body)?;
            let publication = memory(&body, descriptor)?;
            let brings = publication.is_some();
            publications.extend(publication);
            if let (true, Subject::Buffer(buffer)) = (brings, &body.subject) {
                brought.push(buffer.info.id);
            }
            Ok((body, brings))
        }));
    }
    let nothing_to_vet = publications.is_empty();
    if !nothing_to_vet {
        // A worker that starts for it must not cost the member what is alive.
        context.tell(Input::Checking(context.spec.member, brought));
    }
    let (boot, inspector) = (context.shared.boot, Rc::clone(&context.inspector));
    let vetting =
        (!nothing_to_vet).then(|| context.vetting.begin(publications, boot, inspector, WithoutRoom::Waits));
    async move {
        let mut vetted = match vetting {
            Some(vetting) => vetting.await.into_iter(),
            None => Vec::new().into_iter(),
        };
        let mut shown = |(body, brings)| {
            let carrier = match brings {
                true => Some(vetted.next().unwrap_or_else(|| Err(broken_off()))?.publication.carrier),
                false => None,
            };
            Ok(Shown { body, carrier })
        };
        read.into_iter().map(|item| item.and_then(&mut shown)).collect()
    }
}

/// What a sidecar says of a receipt is what the receipt says.
fn is_of(id: Option<BufferId>, body: &ReceiptBody) -> Result<(), Refusal> {
    match (id, &body.subject) {
        (Some(stated), Subject::Buffer(buffer)) if buffer.info.id != stated => {
            Err(Refusal::new(Code::ReceiptInvalid).compared_with("buffer", stated, buffer.info.id))
        }
        _ => Ok(()),
    }
}

/// Memory that came along with a receipt, as something to be vetted.
fn memory(body: &ReceiptBody, descriptor: Option<Arc<OwnedFd>>) -> Result<Option<Publication>, Refusal> {
    let Some(fd) = descriptor else { return Ok(None) };
    match &body.subject {
        Subject::Buffer(buffer) if buffer.info.facts.kind.descriptors() == 1 => {
            let (facts, carrier) = (buffer.info.facts.clone(), Carrier::Descriptor(fd));
            Ok(Some(Publication { facts, carrier }))
        }
        _ => Err(Refusal::new(Code::DescriptorCount).compared_with("descriptors of the item", 0, 1)),
    }
}

fn broken_off() -> Refusal {
    Refusal::new(Code::WorkerFailed).compared_with("vetting", "done", "broken off")
}

/// The processes that have not reattached, each watched for its end.
#[derive(Debug, Default)]
pub(super) struct Absent {
    tasks: RefCell<JoinSet<()>>,
    watched: RefCell<HashMap<SessionId, AbortHandle>>,
}

impl Absent {
    /// Watches a process; its end is told to the registry as that of `holder`. One that has ended already is told before
    /// whoever showed its receipts hears of them, so that nobody is given what it had.
    pub(super) fn watch(&self, context: &Rc<Context>, holder: SessionId, process: ProcessKey) {
        let lane = Rc::clone(context);
        let end = move || {
            info!(pid = process.pid, "a process that had not reattached has ended");
            lane.tell(Input::SessionEnded(holder, EndReason::OwnerDied));
        };
        let found = match identity::reopen(process.into()) {
            Ok(found) => found,
            Err(ReopenError::Gone { wanted, found }) => {
                debug!(%wanted, found, "a process is gone");
                return end();
            }
            Err(error) => {
                // Only its deadline will tell.
                let error = &error as &dyn std::error::Error;
                warn!(error, "a process that has not reattached cannot be watched");
                return;
            }
        };
        let mut tasks = self.tasks.borrow_mut();
        // Those that have ended are let go.
        while tasks.try_join_next().is_some() {}
        let task = tasks.spawn_local(async move {
            found.died().await;
            end();
        });
        self.watched.borrow_mut().insert(holder, task);
    }

    /// Watches it no longer.
    pub(super) fn let_go(&self, holder: SessionId) {
        if let Some(task) = self.watched.borrow_mut().remove(&holder) {
            task.abort();
        }
    }

    /// Watches none any longer: which ones are to be is not known. Each has a deadline, which tells of its end too.
    pub(super) fn let_all_go(&self) {
        for (_, task) in self.watched.take() {
            task.abort();
        }
    }

    /// Ends all watching: the lane ends.
    pub(super) async fn finish(&self) {
        let mut tasks = self.tasks.take();
        tasks.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nobody_is_watched_for_ever_when_commands_were_lost() {
        let absent = Absent::default();
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                for number in 0..3 {
                    let task = absent.tasks.borrow_mut().spawn_local(std::future::pending());
                    absent.watched.borrow_mut().insert(SessionId(number), task);
                }
                absent.let_all_go();
                let mut tasks = absent.tasks.take();
                while let Some(ended) = tasks.join_next().await {
                    assert!(ended.unwrap_err().is_cancelled());
                }
                assert!(absent.watched.borrow().is_empty());
            })
            .await;
    }
}
