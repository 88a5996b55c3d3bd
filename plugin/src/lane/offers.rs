//! What a sidecar offers: checked one packet after the other, beside whatever else its connection brings, for a check may
//! wait for a GPU worker, and who connects meanwhile must not.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use gpu_handoff_protocol::message::{Keepsake, RequestId};
use gpu_handoff_protocol::{BufferId, Code, Refusal};
use tracing::info;

use super::keepsakes::KeeperId;
use super::{Context, restore};
use crate::limits;
use crate::registry::{Input, Shown};

type Outcomes = Vec<Result<(), Refusal>>;

/// What waits for its turn.
enum Next {
    /// To be checked, under the number of its request.
    Offer(RequestId, Vec<Keepsake>),
    /// Then this is all.
    All,
}

/// An offer whose receipts and memory have been checked.
pub(super) struct Checked {
    request: RequestId,
    ids: Vec<BufferId>,
    shown: Vec<Result<Shown, Refusal>>,
}

/// What the sidecar of one connection offers.
pub(super) struct Offering {
    context: Rc<Context>,
    waiting: VecDeque<Next>,
    checking: Option<Pin<Box<dyn Future<Output = Checked>>>>,
    /// What it has offered and keeps on, until it is done.
    kept: HashSet<BufferId>,
    /// It has said that this is all.
    said_all: bool,
    /// All that it had was shown to the registry.
    is_done: bool,
}

impl Offering {
    pub(super) fn new(context: &Rc<Context>) -> Self {
        let (waiting, kept) = (VecDeque::new(), HashSet::new());
        Self { context: Rc::clone(context), waiting, checking: None, kept, said_all: false, is_done: false }
    }

    /// Whether all has been offered and answered for.
    pub(super) const fn is_done(&self) -> bool {
        self.is_done
    }

    /// Takes an offer in, to be checked in its turn.
    pub(super) fn take(&mut self, request: RequestId, items: Vec<Keepsake>) -> Result<(), Refusal> {
        if self.waiting.len() >= limits::OFFERS_WAITING {
            let wanted = format!("at most {}", limits::OFFERS_WAITING);
            return Err(Refusal::new(Code::TooManyRequests).compared_with(
                "offers that wait",
                wanted,
                "more",
            ));
        }
        // Before it is checked: a worker that starts for it must not cost the member what is alive.
        self.context.tell(Input::Offering(self.context.spec.member));
        self.waiting.push_back(Next::Offer(request, items));
        Ok(())
    }

    /// The sidecar says that this was all.
    pub(super) fn is_all(&mut self) -> Result<(), Refusal> {
        // Each makes the registry go through all that the member has.
        if std::mem::replace(&mut self.said_all, true) {
            let refusal = Refusal::new(Code::Malformed);
            return Err(refusal.compared_with("ends of the offers of a connection", 1, 2));
        }
        self.waiting.push_back(Next::All);
        Ok(())
    }

    /// Begins what is next, unless something is being checked.
    pub(super) fn go_on(&mut self, keeper: KeeperId) {
        while self.checking.is_none() {
            match self.waiting.pop_front() {
                Some(Next::Offer(request, items)) => self.begin(request, items),
                Some(Next::All) => self.finish(keeper),
                None => return,
            }
        }
    }

    fn begin(&mut self, request: RequestId, items: Vec<Keepsake>) {
        let ids: Vec<BufferId> = items.iter().map(|item| item.id).collect();
        let shown = restore::check(&self.context, items.into_iter().map(restore::Item::from).collect());
        self.checking = Some(Box::pin(async move { Checked { request, ids, shown: shown.await } }));
    }

    /// The offer that is being checked, when it is. Safe to cancel.
    pub(super) async fn checked(&mut self) -> Checked {
        match &mut self.checking {
            Some(checking) => {
                let checked = checking.await;
                self.checking = None;
                checked
            }
            None => std::future::pending().await,
        }
    }

    /// Shows the registry what was checked, and gives its answer.
    pub(super) fn show(&mut self, checked: Checked) -> Result<(RequestId, Outcomes), Refusal> {
        let Checked { request, ids, shown } = checked;
        let token = self.context.offers.next();
        self.context.tell(Input::Offered(self.context.spec.member, token, shown));
        let outcomes = self.context.offers.take(token).ok_or_else(|| Refusal::new(Code::ShuttingDown))?;
        let refused = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        let mut first_refused = None;
        for (id, outcome) in ids.into_iter().zip(&outcomes) {
            match outcome {
                Ok(()) if self.is_done => {}
                Ok(()) => drop(self.kept.insert(id)),
                Err(refusal) => first_refused = first_refused.or(Some((id, refusal))),
            }
        }
        if let Some((id, refusal)) = first_refused
            && let Some(untold) = self.context.chatter.may_tell()
        {
            info!(buffer = %id, %refusal, refused, untold, "not restored from what the sidecar kept");
        }
        Ok((request, outcomes))
    }

    fn finish(&mut self, keeper: KeeperId) {
        if let Some(untold) = self.context.chatter.may_tell() {
            info!(buffers = self.kept.len(), untold, "the sidecar has offered what it keeps");
        }
        self.is_done = true;
        self.context.keepsakes.appoint(keeper, std::mem::take(&mut self.kept));
        self.context.tell(Input::OfferDone(self.context.spec.member));
        self.context.keepsakes.all_named();
    }
}

/// Answers of the registry to offers, each until its sidecar's task takes it.
#[derive(Debug, Default)]
pub(super) struct Answers {
    last: Cell<u64>,
    answers: RefCell<HashMap<u64, Outcomes>>,
}

impl Answers {
    fn next(&self) -> u64 {
        self.last.set(self.last.get() + 1);
        self.last.get()
    }

    pub(super) fn answer(&self, token: u64, outcomes: Outcomes) {
        self.answers.borrow_mut().insert(token, outcomes);
    }

    fn take(&self, token: u64) -> Option<Outcomes> {
        self.answers.borrow_mut().remove(&token)
    }
}
