//! What waits for a lane: commands in the order in which the registry gave them, from whichever thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpu_handoff_protocol::message::{BrokerMessage, Carrier};
use gpu_handoff_protocol::receipt::ProcessKey;
use gpu_handoff_protocol::{BufferId, Refusal};
use tokio::sync::Notify;

use crate::limits;
use crate::registry::{Keepable, SessionId};

/// What the registry tells a lane.
#[derive(Debug)]
pub enum LaneCommand {
    /// Send these to a session, in order.
    Send(SessionId, Vec<BrokerMessage>),
    /// Close this.
    Dispose(Carrier),
    /// End a session's connection.
    EndSession(SessionId),
    /// Let the sidecar keep these.
    Keep(Vec<Keepable>),
    /// Let it keep these no longer, and close them.
    Forget(Vec<(BufferId, Carrier)>),
    /// Answer its offer of that number.
    Offered(u64, Vec<Result<(), Refusal>>),
    /// Watch a process that has not reattached, for the session that stands for it.
    AwaitEnd(SessionId, ProcessKey),
    /// Watch it no longer.
    AwaitNoMore(SessionId),
}

/// A command that a lane's queue had no room for.
pub(super) struct NoRoom {
    /// Given back, to be dropped where that may take its time.
    pub(super) command: LaneCommand,
    /// Whether it is the first that the lane does not know of.
    pub(super) is_the_first: bool,
}

/// A lane's queue. Clones are the same queue.
#[derive(Debug, Clone, Default)]
pub struct LaneHandle(Arc<Queue>);

#[derive(Debug, Default)]
struct Queue {
    commands: Mutex<VecDeque<LaneCommand>>,
    overrun: AtomicBool,
    stirred: Notify,
}

impl LaneHandle {
    fn commands(&self) -> MutexGuard<'_, VecDeque<LaneCommand>> {
        // A queue is whole at every step, so a thread that panicked beside it leaves nothing half done.
        self.0.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a command, and gives how many wait. What others do fills no queue of a lane that works: what one input has to
    /// say to a session is one command, and a lane that gives to a queue with much in it [pauses](limits::LANE_PRESSED). So a
    /// full queue means that the lane is stuck on a descriptor of its member: only that member suffers, by losing its sessions.
    pub(super) fn give(&self, command: LaneCommand) -> Result<usize, NoRoom> {
        let mut commands = self.commands();
        if commands.len() < limits::LANE_QUEUE {
            commands.push_back(command);
            return Ok(commands.len());
        }
        drop(commands);
        Err(NoRoom { command, is_the_first: !self.0.overrun.swap(true, Ordering::Relaxed) })
    }

    /// Wakes the lane's thread.
    pub(super) fn wake(&self) {
        self.0.stirred.notify_one();
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Comes back when the lane has been woken. For the lane alone.
    pub(crate) async fn stirred(&self) {
        self.0.stirred.notified().await;
    }

    /// How many commands wait.
    pub(crate) fn waiting(&self) -> usize {
        self.commands().len()
    }

    /// The next command. For the lane alone.
    pub(crate) fn next(&self) -> Option<LaneCommand> {
        self.commands().pop_front()
    }

    /// Whether commands were lost since this was asked last: the sessions know no longer what is true, and have to end.
    pub(crate) fn was_overrun(&self) -> bool {
        self.0.overrun.swap(false, Ordering::Relaxed)
    }
}
