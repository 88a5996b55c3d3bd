//! Timelines that streams wait for though nobody has a handle of them any more. They stay mapped, and published or
//! leased, so that the node tells of the writer's end and the streams are set free then. Unmapped under a waiting stream
//! they would hold up whoever unmaps, and nobody could set it free.

use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_cuda::VmmMapping;

use super::{Orders, Task, Trash};
use crate::lease::Held;
use crate::limits;
use crate::timeline::line::Line;

/// Such a timeline, with memory that is used by what waits for it.
#[derive(Debug)]
pub(crate) struct Outliving {
    line: Arc<Line>,
    memory: Vec<VmmMapping>,
    /// In the place of one that was lost.
    leases: Vec<Held>,
}

impl Orders {
    /// Nobody has a handle of a timeline any more, or of memory that is used in its order: both stay while streams of this
    /// process wait for its words.
    pub(crate) fn keep_while_waited_for(&self, line: &Arc<Line>, memory: Option<VmmMapping>) {
        // A forked child has no streams.
        if !line.shared.connection.is_own_process() {
            std::mem::forget(memory);
            return;
        }
        // Mostly nobody does, and then all is let go of here and now.
        if line.is_waited_for() {
            self.keep(line, |outliving| outliving.memory.extend(memory));
        }
    }

    /// The same with a lease of the timeline.
    pub(super) fn keep_leased(&self, line: &Arc<Line>, lease: Held) {
        self.keep(line, |outliving| outliving.leases.push(lease));
    }

    fn keep(&self, line: &Arc<Line>, add: impl FnOnce(&mut Outliving)) {
        let mut state = self.lock();
        if state.stop || state.thread.is_none() {
            return;
        }
        match state.outliving.iter_mut().find(|it| Arc::ptr_eq(&it.line, line)) {
            Some(outliving) => add(outliving),
            None => {
                let mut outliving =
                    Outliving { line: Arc::clone(line), memory: Vec::new(), leases: Vec::new() };
                add(&mut outliving);
                state.outliving.push(outliving);
                state.push(Task::Settle(Arc::downgrade(line)));
                self.bell.notify_one();
            }
        }
    }

    /// Lets go of a timeline that no stream waits for any more; else looks again later.
    pub(super) fn settle(&self, line: &Arc<Line>) -> Option<(Instant, Task)> {
        if line.is_waited_for() {
            return Some((Instant::now() + limits::WAITS_PAUSE, Task::Settle(Arc::downgrade(line))));
        }
        let mut state = self.lock();
        let at = state.outliving.iter().position(|it| Arc::ptr_eq(&it.line, line))?;
        let outliving = state.outliving.swap_remove(at);
        drop(state);
        self.bin.discard(Trash::Outliving(outliving));
        None
    }
}
