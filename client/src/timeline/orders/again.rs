//! A lost lease of another's timeline. Streams of this process wait for words that others wait for, too, and whose writer
//! may well be alive. So the words are not poisoned: another lease is asked for, so that this process is told of the
//! writer's end. Where there is none to be had, the timeline is gone, and everybody is told so.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use gpu_handoff_protocol::message::{BrokerBody, ClientBody, Grant, RequestId, Target, Wanted};

use super::{Orders, Task};
use crate::deadline::after;
use crate::error::Fault;
use crate::lease::Held;
use crate::limits;
use crate::timeline::line::{End, Line};

/// A lease that was asked for, and until when the answer must have come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    request: RequestId,
    until: Instant,
}

impl Orders {
    /// Asks for another lease, or looks whether it has come.
    pub(super) fn lease_again(&self, line: &Arc<Line>, asked: Option<Asked>) -> Option<(Instant, Task)> {
        let connection = &line.shared.connection;
        let give_up = || Some((Instant::now(), Task::EndLine(Arc::downgrade(line), End::Lost)));
        let asked = match asked {
            Some(asked) => asked,
            None => {
                line.lose().ok()?;
                if !line.is_waited_for() {
                    self.forget(line);
                    return None;
                }
                match ask(line) {
                    Ok(asked) => asked,
                    Err(_) => return give_up(),
                }
            }
        };
        match connection.answered(asked.request) {
            Ok(None) if Instant::now() < asked.until => {
                let task = Task::LeaseAgain(Arc::downgrade(line), Some(asked));
                Some((Instant::now() + limits::WAITS_PAUSE, task))
            }
            Ok(None) => {
                connection.forget(asked.request);
                give_up()
            }
            Ok(Some(BrokerBody::Acquired(outcomes))) => match outcomes.into_iter().next() {
                Some(Ok(grant)) => {
                    self.leased_again(line, &grant);
                    None
                }
                _ => give_up(),
            },
            _ => give_up(),
        }
    }

    /// What is told of the timeline from now on comes because of this lease.
    fn leased_again(&self, line: &Arc<Line>, grant: &Grant) {
        let held = Held::new(Arc::clone(&line.shared), grant.lease, grant.buffer.id);
        let mut state = self.lock();
        let known = state.lines.get_mut(&line.id).into_iter().flatten();
        for known in known.filter(|known| known.line.ptr_eq(&Arc::downgrade(line))) {
            known.lease = Some(grant.lease);
        }
        drop(state);
        self.keep_leased(line, held);
    }

    /// No news of this line are of interest any more.
    fn forget(&self, line: &Arc<Line>) {
        let (mut state, this): (_, Weak<Line>) = (self.lock(), Arc::downgrade(line));
        if let Some(lines) = state.lines.get_mut(&line.id) {
            lines.retain(|known| !known.line.ptr_eq(&this));
        }
    }
}

fn ask(line: &Arc<Line>) -> Result<Asked, Fault> {
    let items = vec![Wanted { target: Target::Id(line.id), newer_than: 0 }];
    let body = ClientBody::Acquire { items, wait: Duration::ZERO, device: Some(line.device()?) };
    Ok(Asked { request: line.shared.connection.ask(body)?, until: after(limits::ANSWER) })
}
