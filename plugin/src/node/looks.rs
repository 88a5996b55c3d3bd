//! Looking at what a process sees of the files, which may take for ever: it may have put itself onto a file system whose
//! server does not answer. So it is done in threads of its own, a few at a time for each slot, and nobody waits for one for
//! long. A thread that is stuck takes its slot's room until it comes back, and nobody else's.

use std::collections::HashMap;
use std::sync::Arc;

use gpu_handoff_protocol::{DeviceUuid, SlotId};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::warn;

use crate::identity;
use crate::identity::cgroup::Root;
use crate::limits;
use crate::members::Member;

/// What the broker is told of whatever went wrong: about the process it is to learn nothing else.
pub(super) const NOT_LOOKED_AT: &str = "the process cannot be looked at";

/// A look that has ended, or is not waited for any longer.
pub(super) type Looked = (u64, Result<Vec<DeviceUuid>, String>);

/// Whether a process may be a member's, as far as it can be known by its number: where the member is a pod, it is in one of its containers.
/// Only then does a look at it take any of the member's room.
pub(super) fn may_be_of(member: &Member, pid: u32, started: u64, root: &Root) -> bool {
    let is_in = |containers| identity::is_named_in(pid, started, &member.uid, containers, root).is_ok();
    member.containers.as_ref().is_none_or(is_in)
}

/// Looks that are under way.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// For each slot its room, of which each thread takes some.
    room: HashMap<SlotId, Arc<Semaphore>>,
    waited_for: JoinSet<Looked>,
}

impl Looks {
    /// Processes of this slot may be looked at from now on.
    pub(super) fn give_room(&mut self, slot: &SlotId) {
        let room = || Arc::new(Semaphore::new(limits::LOOKS_OF_MEMBER));
        self.room.entry(slot.clone()).or_insert_with(room);
    }

    /// And from now on not.
    pub(super) fn take_room(&mut self, slot: &SlotId) {
        self.room.remove(slot);
    }

    /// Begins one for the command `id`. Gives the answer where there will be no other.
    pub(super) fn begin(
        &mut self,
        id: u64,
        slot: &SlotId,
        look: impl FnOnce() -> std::io::Result<Vec<DeviceUuid>> + Send + 'static,
    ) -> Option<Looked> {
        let refused = || Some((id, Err(NOT_LOOKED_AT.to_owned())));
        let Some(of_slot) = self.room.get(slot) else { return refused() };
        let Ok(own) = Arc::clone(of_slot).try_acquire_owned() else {
            warn!(%slot, "looks at the pod's processes have not come back: no more of them are begun");
            return refused();
        };
        let looking = tokio::task::spawn_blocking(move || {
            let found = look();
            drop(own);
            found
        });
        self.waited_for.spawn(async move {
            let outcome = match timeout(limits::LOOK_TIME, looking).await {
                Ok(Ok(Ok(found))) => Ok(found),
                Ok(Ok(Err(_))) | Ok(Err(_)) | Err(_) => Err(NOT_LOOKED_AT.to_owned()),
            };
            (id, outcome)
        });
        None
    }

    /// The next one that has ended. Never, where there is none. Safe to cancel.
    pub(super) async fn next(&mut self) -> Looked {
        loop {
            match self.waited_for.join_next().await {
                Some(Ok(looked)) => return looked,
                Some(Err(e)) if e.is_cancelled() => {}
                Some(Err(e)) => warn!(error = %e, "a look at a process broke off"),
                None => std::future::pending().await,
            }
        }
    }

    /// Answers nobody any more.
    pub(super) fn abandon(&mut self) {
        // With what has ended and was not told yet: the next broker gives its commands the same numbers.
        self.waited_for = JoinSet::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    #[tokio::test]
    async fn looks_that_do_not_come_back_cost_their_own_slot_alone_and_nobody_waits_for_long() {
        let [stuck, good]: [SlotId; 2] = ["stuck", "good"].map(|slot| slot.parse().unwrap());
        let mut looks = Looks::default();
        for slot in [&stuck, &good] {
            looks.give_room(slot);
        }
        let (release, released) = channel::<()>();
        let released = Arc::new(std::sync::Mutex::new(released));
        let begin = Instant::now();
        for id in 0..limits::LOOKS_OF_MEMBER as u64 {
            let released = Arc::clone(&released);
            let look = move || {
                let _ = released.lock().map(|r| r.recv());
                Ok(Vec::new())
            };
            assert_eq!(looks.begin(id, &stuck, look), None);
        }
        let refused = |id| Some((id, Err(NOT_LOOKED_AT.to_owned())));
        assert_eq!(looks.begin(90, &stuck, || Ok(Vec::new())), refused(90));
        assert_eq!(looks.begin(91, &"unknown".parse().unwrap(), || Ok(Vec::new())), refused(91));
        // Others are served at once, and those that are stuck are answered for.
        let gpu = DeviceUuid::from_bytes([1; 16]);
        assert_eq!(looks.begin(92, &good, move || Ok(vec![gpu])), None);
        assert_eq!(looks.next().await, (92, Ok(vec![gpu])));
        assert!(begin.elapsed() < limits::LOOK_TIME, "it waited {:?}", begin.elapsed());
        for _ in 0..limits::LOOKS_OF_MEMBER {
            assert_eq!(looks.next().await.1, Err(NOT_LOOKED_AT.to_owned()));
        }
        // Answered for is not come back.
        assert_eq!(looks.begin(93, &stuck, || Ok(Vec::new())), refused(93));
        drop(release);
        let deadline = Instant::now() + Duration::from_secs(20);
        while looks.begin(94, &stuck, || Ok(Vec::new())).is_some() {
            assert!(Instant::now() < deadline, "the slot has no room again");
            tokio::task::yield_now().await;
        }
        assert_eq!(looks.next().await, (94, Ok(Vec::new())));
    }
}
