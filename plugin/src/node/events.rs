//! Events on the pods concerned: what their owners can read with `kubectl describe pod`.
//!
//! Told are the pod's taking part and its end, and what was refused to it, with the very sentence that its program was given.
//! Nobody waits for an event: they stand in a queue, the API server may be away, and what finds no room is counted and said
//! later. Repeated ones are counted in one event.
//!
//! | concern | file |
//! |---|---|
//! | which are written, which are counted, which are left out | [`desk`] |
//! | which are written next | [`waiting`] |
//! | what is said of whom | [`notice`] |

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use gpu_handoff_kubelet::api::ApiServer;
use gpu_handoff_kubelet::api::events::{Failure, Reporter, Write};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::limits;
use crate::pace::{now, sleep_until};

mod desk;
mod notice;
mod waiting;

use desk::Desk;
pub(super) use gpu_handoff_kubelet::api::events::{About, Kind};
pub(super) use notice::{Notice, evicted, killed, orphaned};
use waiting::Waiting;

/// Where the node's parts leave what owners of pods are to read. Clones share one queue.
#[derive(Debug, Clone)]
pub(super) struct Events {
    queue: mpsc::Sender<Notice>,
    without_room: Arc<AtomicU64>,
}

impl Events {
    /// The queue, and who serves it: by events where there is an API server, else by lines of the log.
    pub(super) fn new(api_server: Option<ApiServer>, node: &str) -> (Self, Writer) {
        let (queue, notices) = mpsc::channel(limits::EVENT_QUEUE);
        let without_room = Arc::new(AtomicU64::new(0));
        let events = Self { queue, without_room: Arc::clone(&without_room) };
        let reporter = api_server.map(|api_server| Arc::new(Reporter::new(api_server, node)));
        let refused = watch::Sender::new(None);
        let writer = Writer {
            notices,
            without_room,
            reporter,
            desk: Desk::new(now()),
            waiting: Waiting::default(),
            refused,
        };
        (events, writer)
    }

    /// Leaves a notice. Never waits.
    pub(super) fn tell(&self, notice: Notice) {
        if self.queue.try_send(notice).is_err() {
            self.without_room.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A queue that somebody else reads.
    #[cfg(test)]
    pub(super) fn for_test() -> (Self, mpsc::Receiver<Notice>) {
        let (queue, notices) = mpsc::channel(limits::EVENT_QUEUE);
        (Self { queue, without_room: Arc::default() }, notices)
    }
}

/// Who writes the events: one task of the node.
#[derive(Debug)]
pub(super) struct Writer {
    notices: mpsc::Receiver<Notice>,
    without_room: Arc<AtomicU64>,
    reporter: Option<Arc<Reporter>>,
    desk: Desk,
    /// What the API server is to be told.
    waiting: Waiting,
    /// Why it does not take what it is told.
    refused: watch::Sender<Option<Refused>>,
}

/// The API server takes no events: it has refused the last one.
#[derive(Debug, Clone)]
pub(super) struct Refused {
    pub(super) why: String,
    pub(super) since: SystemTime,
}

impl Writer {
    /// Whether the API server takes events, for whoever asks how the node is.
    pub(super) fn refused(&self) -> watch::Receiver<Option<Refused>> {
        self.refused.subscribe()
    }

    /// Serves the queue until nobody is left to fill it.
    pub(super) async fn run(mut self) {
        let mut writing = JoinSet::new();
        loop {
            let at = now();
            let may_write = writing.len() < limits::EVENT_WRITES;
            let next = self.waiting.next_at().filter(|_| may_write);
            let due = self.desk.next_due(at);
            tokio::select! {
                notice = self.notices.recv() => match notice {
                    Some(notice) => self.take(notice),
                    None => return,
                },
                Some(written) = writing.join_next() => match written {
                    Ok((write, outcome)) => self.written(write, outcome),
                    // Its namespace would wait for it for ever: the node ends, as with any of its parts.
                    Err(e) => std::panic::resume_unwind(e.into_panic()),
                },
                () = sleep_until(next) => {
                    if let (Some(write), Some(reporter)) = (self.waiting.next(now()), self.reporter.clone()) {
                        writing.spawn(async move { let outcome = reporter.write(&write).await; (write, outcome) });
                    }
                }
                () = sleep_until(due) => {
                    let writes = self.desk.due(now());
                    writes.into_iter().for_each(|write| self.put(write));
                }
            }
        }
    }

    fn take(&mut self, notice: Notice) {
        if let Some(write) = self.desk.take(notice, now()) {
            self.put(write);
        }
        let lost = self.without_room.swap(0, Ordering::Relaxed);
        if lost > 0 {
            warn!(lost, "events on pods came faster than they could be taken: these are lost");
        }
    }

    /// Has it written when its turn comes.
    fn put(&mut self, write: Write) {
        if let Write::New(event) = &write {
            info!(pod = %event.about, reason = event.reason, times = event.count, "event: {}", event.note);
        }
        if self.reporter.is_some() {
            self.waiting.put(write, now());
        }
    }

    /// What becomes of what was written, or was not.
    fn written(&mut self, write: Write, outcome: Result<(), Failure>) {
        let namespace = &write.about().namespace;
        let outcome = match outcome {
            Err(Failure::Forbidden(why)) if self.waiting.may_be_let(&write) => Err(Failure::Away(why)),
            other => other,
        };
        let taken = outcome.is_ok();
        match outcome {
            Ok(()) => drop(self.refused.send_if_modified(|refused| refused.take().is_some())),
            Err(Failure::Gone) => self.desk.forget(write.name()),
            Err(Failure::Refused(why) | Failure::Forbidden(why)) => {
                warn!(pod = %write.about(), why, "the API server does not take an event: it is in this log alone");
                self.refused.send_modify(|refused| {
                    let since = refused.as_ref().map_or_else(SystemTime::now, |refused| refused.since);
                    *refused = Some(Refused { why, since });
                });
            }
            Err(Failure::Away(why)) => {
                let namespace = namespace.clone();
                if self.waiting.failed(write, now()) == 1 {
                    warn!(
                        namespace,
                        why,
                        "the API server takes no events of a namespace: they wait, and the oldest are kept"
                    );
                }
                return;
            }
        }
        if self.waiting.done(&write) && taken {
            info!(namespace, "the API server takes events of the namespace again");
        }
        let lost = self.waiting.lost();
        if lost > 0 {
            warn!(
                lost,
                "more events waited for the API server than there is room for: these are in this log alone"
            );
        }
    }
}

#[cfg(test)]
mod tests;
