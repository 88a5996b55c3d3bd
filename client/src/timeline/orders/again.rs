//! A lost lease of another's timeline. Streams of this process wait for words that others wait for, too, and whose writer
//! may well be alive. So the words are not poisoned: another lease is asked for, so that this process is told of the
//! writer's end. What refuses it, a quota or the policy of today, says nothing of the writer: it is asked for until there
//! is one, or the node says that the timeline is gone. Then everybody is told so.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use gpu_handoff_protocol::Code;
use gpu_handoff_protocol::message::{BrokerBody, ClientBody, Grant, RequestId, Target, Wanted};

use super::{Orders, Task};
use crate::deadline::after;
use crate::error::Fault;
use crate::lease::Held;
use crate::limits;
use crate::timeline::line::{End, Line};

/// How far asking for a lease has come.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Asking {
    /// What was asked, and until when the answer must have come.
    asked: Option<(RequestId, Instant)>,
    /// How often it was refused.
    refusals: u32,
}

/// What came of it.
#[derive(Debug)]
enum Outcome {
    Leased(Box<Grant>),
    /// Nothing yet.
    Open,
    /// It may be granted later.
    Refused,
    /// There is no such timeline any more, or nobody to ask.
    Gone,
}

impl Orders {
    /// Asks for another lease, or looks whether it has come.
    pub(super) fn lease_again(&self, line: &Arc<Line>, mut asking: Asking) -> Option<(Instant, Task)> {
        let connection = &line.shared.connection;
        if asking.asked.is_none() {
            line.lose().ok()?;
            if !line.is_waited_for() {
                self.forget(line);
                return None;
            }
        }
        let asked = match asking.asked {
            Some(asked) => Ok(asked),
            None => ask(line),
        };
        let outcome = match asked {
            Err(fault) => outcome(Err(fault)),
            Ok((request, until)) => {
                asking.asked = Some((request, until));
                match outcome(connection.answered(request)) {
                    Outcome::Open if Instant::now() >= until => {
                        connection.forget(request);
                        Outcome::Refused
                    }
                    other => other,
                }
            }
        };
        let task = |asking| Task::LeaseAgain(Arc::downgrade(line), asking);
        match outcome {
            Outcome::Leased(grant) => {
                self.leased_again(line, &grant);
                None
            }
            Outcome::Open => Some((Instant::now() + limits::WAITS_PAUSE, task(asking))),
            Outcome::Refused => {
                let refusals = asking.refusals.saturating_add(1);
                Some((Instant::now() + pause(refusals), task(Asking { asked: None, refusals })))
            }
            Outcome::Gone => Some((Instant::now(), Task::EndLine(Arc::downgrade(line), End::Lost))),
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

fn ask(line: &Arc<Line>) -> Result<(RequestId, Instant), Fault> {
    let items = vec![Wanted { target: Target::Id(line.id), newer_than: 0 }];
    let body = ClientBody::Acquire { items, wait: Duration::ZERO, device: Some(line.device()?) };
    Ok((line.shared.connection.ask(body)?, after(limits::ANSWER)))
}

/// How long it is waited after so many refusals.
fn pause(refusals: u32) -> Duration {
    let factor = 1_u32.checked_shl(refusals.saturating_sub(1)).unwrap_or(u32::MAX);
    limits::RETRY_FIRST.saturating_mul(factor).min(limits::RETRY_LONGEST)
}

/// What an answer means.
fn outcome(answered: Result<Option<BrokerBody>, Fault>) -> Outcome {
    let refusal = match answered {
        Ok(None) => return Outcome::Open,
        Ok(Some(BrokerBody::Acquired(outcomes))) => match outcomes.into_iter().next() {
            Some(Ok(grant)) => return Outcome::Leased(Box::new(grant)),
            Some(Err(refusal)) => refusal,
            None => return Outcome::Refused,
        },
        Ok(Some(BrokerBody::Refused(refusal))) | Err(Fault::Refused(refusal)) => refusal,
        // No room in the connection, or in this process.
        Ok(Some(_)) | Err(Fault::TimedOut(_) | Fault::Io(_)) => return Outcome::Refused,
        // Nobody would tell of the writer, or no stream of this context waits any more.
        Err(_) => return Outcome::Gone,
    };
    match refusal.code() {
        Code::NotFound | Code::StaleHandle | Code::Retired | Code::PeerDied | Code::GpuLost => Outcome::Gone,
        _ => Outcome::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_handoff_protocol::Refusal;

    #[test]
    fn only_where_the_timeline_is_gone_or_nobody_would_tell_it_is_given_up() {
        let refused = |code| Ok(Some(BrokerBody::Acquired(vec![Err(Refusal::new(code))])));
        for code in [Code::NotFound, Code::StaleHandle, Code::Retired, Code::PeerDied, Code::GpuLost] {
            assert!(matches!(outcome(refused(code)), Outcome::Gone), "{code}");
        }
        for code in [
            Code::QuotaLeases,
            Code::PolicyDenied,
            Code::QuotaInFlight,
            Code::TooManyRequests,
            Code::QuotaDescriptors,
            Code::GpuNotReachable,
            Code::ShuttingDown,
        ] {
            assert!(matches!(outcome(refused(code)), Outcome::Refused), "{code}");
            let whole = Ok(Some(BrokerBody::Refused(Refusal::new(code))));
            assert!(matches!(outcome(whole), Outcome::Refused), "{code}");
        }
        assert!(matches!(outcome(Ok(None)), Outcome::Open));
        assert!(matches!(outcome(Err(Fault::TimedOut(Duration::ZERO))), Outcome::Refused));
        assert!(matches!(outcome(Err(Fault::Lost(None))), Outcome::Gone));
    }

    #[test]
    fn who_is_refused_again_and_again_asks_less_and_less_often() {
        let pauses: Vec<Duration> = (1..=9).map(pause).collect();
        assert_eq!(pauses[..3], [10, 20, 40].map(Duration::from_millis));
        assert_eq!((pauses[8], pause(u32::MAX)), (limits::RETRY_LONGEST, limits::RETRY_LONGEST));
    }
}
