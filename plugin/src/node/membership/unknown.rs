//! Volumes of pods that nobody has told of yet. Mostly somebody does in a moment, so they wait for that; in time for the kubelet to put
//! it into an event of the pod, they are answered with why nobody has.

use std::collections::VecDeque;
use std::time::Instant;

use gpu_handoff_kubelet::csi::{Answer, Publish, Refusal};
use tokio::sync::oneshot;

use super::{Membership, Stopping};
use crate::limits;
use crate::pace::now;

/// Volumes that wait, the first that is answered first.
pub(super) type Waiters = VecDeque<Waiter>;

/// A volume, and whoever asks for it.
#[derive(Debug)]
pub(super) struct Waiter {
    publish: Publish,
    asker: oneshot::Sender<Answer>,
    /// When it is answered, whether its pod is known or not.
    until: Instant,
}

impl Membership {
    /// Has a volume wait for its pod.
    pub(super) fn wait_for_pod(&mut self, publish: Publish, asker: oneshot::Sender<Answer>) {
        let why = self.seen.not_known(&publish.pod);
        self.seen.waits(&publish, &why);
        self.unknown.retain(|waiter| !waiter.asker.is_closed());
        if self.unknown.len() < limits::WAITING_VOLUMES {
            self.unknown.push_back(Waiter { publish, asker, until: now() + limits::POD_NEWS_TIME });
        } else {
            let _ = asker.send(Err(Refusal::NotYet(why)));
        }
    }

    /// When one is answered whose pod is not known still.
    pub(super) fn next_answer(&self) -> Option<Instant> {
        self.unknown.front().map(|waiter| waiter.until)
    }

    /// Answers those that have waited long enough. The kubelet comes back for them.
    pub(super) fn answer_unknown(&mut self, now: Instant) {
        while let Some(waiter) = self.unknown.pop_front_if(|waiter| waiter.until <= now) {
            let answer = Err(Refusal::NotYet(self.seen.not_known(&waiter.publish.pod)));
            self.seen.answered(&waiter.publish, &answer);
            let _ = waiter.asker.send(answer);
        }
    }

    /// A pod is known of now.
    pub(super) async fn serve_waiting(&mut self, uid: &str) -> Result<(), Stopping> {
        let (ours, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.unknown).into_iter().partition(|waiter| waiter.publish.pod.uid == uid);
        self.unknown = others.into();
        for Waiter { publish, asker, .. } in ours {
            if !asker.is_closed() {
                let answer = self.answer(publish).await?;
                let _ = asker.send(answer);
            }
        }
        Ok(())
    }
}
