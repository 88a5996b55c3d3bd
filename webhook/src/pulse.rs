//! What a connection is at, and until when it may be: whatever its peer does or leaves undone, its time is limited, and others
//! may be let in instead of it.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::crowd::Room;
use crate::limits;

/// A connection's state, which its task, its stream and the crowd share.
#[derive(Debug)]
pub(crate) struct Pulse(watch::Sender<Phase>);

#[derive(Debug)]
struct Phase {
    state: State,
    since: Instant,
    until: Instant,
    /// Room for what is being read or written.
    room: Option<Room>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing is being asked.
    Idle,
    /// A handshake or a request has begun, and is not answered.
    Begun,
    /// The answer is with the stream, which may have to wait for the peer.
    Answered,
    /// It is to end.
    Dismissed,
}

/// A connection that is among its peers the first to go is the least: idle before busy, and the longest so.
pub(crate) type Rank = (bool, Instant);

impl Pulse {
    /// Of a connection that begins with its handshake.
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(Phase::new(State::Begun, limits::HANDSHAKE_TIME)))
    }

    /// The handshake is done, and nothing was asked.
    pub(crate) fn greeted(&self) {
        self.change(State::Begun, || Phase::new(State::Idle, limits::FIRST_REQUEST_TIME));
    }

    /// There is something to be read, or to be written, that its peer may never let end.
    pub(crate) fn begin(&self) {
        self.change(State::Idle, || Phase::new(State::Begun, limits::REQUEST_TIME));
    }

    /// Keeps room until the answer has gone.
    pub(crate) fn keep(&self, room: Room) {
        self.0.send_modify(|phase| phase.room = Some(room));
    }

    /// The answer is with the stream. The request's time goes on.
    pub(crate) fn answered(&self) {
        self.0.send_if_modified(|phase| {
            let begun = phase.state == State::Begun;
            if begun {
                phase.state = State::Answered;
            }
            begun
        });
    }

    /// All that was written has gone.
    pub(crate) fn flushed(&self) {
        self.change(State::Answered, || Phase::new(State::Idle, limits::NEXT_REQUEST_TIME));
    }

    /// Ends the connection.
    pub(crate) fn dismiss(&self) {
        self.0.send_modify(|phase| phase.state = State::Dismissed);
    }

    pub(crate) fn rank(&self) -> Rank {
        let phase = self.0.borrow();
        (phase.state != State::Idle, phase.since)
    }

    /// Until when a request that has begun must have arrived.
    pub(crate) fn arrives_until(&self) -> Instant {
        self.0.borrow().since + limits::READING_TIME
    }

    /// Waits until the connection's time is over; says why it is.
    pub(crate) async fn over(&self) -> &'static str {
        let mut phases = self.0.subscribe();
        loop {
            let (state, until) = {
                let phase = phases.borrow_and_update();
                (phase.state, phase.until)
            };
            if state == State::Dismissed {
                return "others are let in instead";
            }
            tokio::select! {
                // An error would mean that the sender, which is borrowed here, is gone.
                _ = phases.changed() => {}
                () = sleep_until(until) => return "its time is over",
            }
        }
    }

    fn change(&self, from: State, to: impl FnOnce() -> Phase) {
        self.0.send_if_modified(|phase| {
            let from = phase.state == from;
            if from {
                *phase = to();
            }
            from
        });
    }
}

impl Phase {
    fn new(state: State, time: Duration) -> Self {
        let since = Instant::now();
        Self { state, since, until: since + time, room: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lasts(pulse: &Pulse) -> Duration {
        let begin = Instant::now();
        pulse.over().await;
        begin.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn each_phase_has_its_time_and_a_request_one_until_its_answer_has_gone() {
        let pulse = Pulse::new();
        assert_eq!(lasts(&pulse).await.as_secs(), limits::HANDSHAKE_TIME.as_secs());
        pulse.greeted();
        assert_eq!(lasts(&pulse).await.as_secs(), limits::FIRST_REQUEST_TIME.as_secs());
        pulse.begin();
        tokio::time::advance(limits::REQUEST_TIME / 2).await;
        // Neither more bytes, nor an answer that nobody takes, nor a flush before it give it more.
        pulse.begin();
        pulse.flushed();
        pulse.answered();
        pulse.begin();
        assert!(lasts(&pulse).await <= limits::REQUEST_TIME / 2 + Duration::from_millis(2));
        pulse.flushed();
        assert_eq!(lasts(&pulse).await.as_secs(), limits::NEXT_REQUEST_TIME.as_secs());
        pulse.dismiss();
        assert_eq!(lasts(&pulse).await, Duration::ZERO);
        pulse.begin();
        assert_eq!(lasts(&pulse).await, Duration::ZERO);
    }
}
