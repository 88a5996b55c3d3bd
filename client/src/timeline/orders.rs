//! What the node's news mean for words: who sits on which seat, whose words must be poisoned.
//!
//! News come while the connection is locked, where no driver may be called. So they are noted here, and a thread of its
//! own does what they ask for, at once and whatever the application's streams do. A second thread lets go of memory,
//! because unmapping may wait for just those streams that the first is to set free ([`bin`]).

mod again;
mod bin;
mod later;
mod lost;
mod outlive;
mod seats;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use gpu_handoff_cuda::leaving::go_in;
use gpu_handoff_protocol::message::Event;
use gpu_handoff_protocol::{BufferId, LeaseId, Order, Seat};

use super::hold::Hold;
use super::line::{End, Line};
use crate::error::Fault;
use crate::limits;
use again::Asking;
pub(crate) use bin::{Bin, Leaving, Trash};
use later::Later;
use outlive::Outliving;
pub(crate) use seats::words_of;
use seats::{Own, free, got_up};

/// Something to be done to words.
#[derive(Debug)]
enum Task {
    /// Nobody writes the words of a timeline any more.
    EndLine(Weak<Line>, End),
    /// The holder of a seat has ended or released.
    EndWord(Weak<Line>, u32, BufferId, Seat),
    /// Poisoned words are to be looked at again.
    Look(Weak<Line>, Vec<u32>, usize),
    /// A stream may go on; nobody else waits for this word.
    Open(Weak<Line>, u32, u64),
    /// Words that are used no more, once their last write is done.
    Free(Weak<Line>, Order),
    /// A timeline that nobody has a handle of: whether streams still wait for it.
    Settle(Weak<Line>),
    /// The lease of another's timeline is lost: another one is asked for, where streams wait.
    LeaseAgain(Weak<Line>, Asking),
}

/// A timeline in a context.
#[derive(Debug)]
struct Known {
    /// Its lease, where the timeline is another's.
    lease: Option<LeaseId>,
    line: Weak<Line>,
    /// What the application has of it.
    hold: Weak<Hold>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    state: Mutex<State>,
    /// Calls the thread that does tasks.
    bell: Condvar,
    bin: Arc<Bin>,
}

#[derive(Debug, Default)]
struct State {
    /// By the timeline's id: one for each context.
    lines: HashMap<BufferId, Vec<Known>>,
    /// Those that nobody has a handle of any more, and streams still wait for.
    outliving: Vec<Outliving>,
    own: HashMap<BufferId, Own>,
    tasks: VecDeque<Task>,
    /// Timelines with more to be done to their words than there may be: nobody relies on them any more.
    overrun: Vec<Weak<Line>>,
    later: Later,
    thread: Option<JoinHandle<()>>,
    stop: bool,
}

impl Task {
    fn line(&self) -> &Weak<Line> {
        match self {
            Self::EndLine(line, _)
            | Self::EndWord(line, ..)
            | Self::Look(line, ..)
            | Self::Open(line, ..)
            | Self::Free(line, _)
            | Self::Settle(line)
            | Self::LeaseAgain(line, _) => line,
        }
    }
}

impl State {
    fn due(&mut self, now: Instant) -> Option<Task> {
        if let Some(line) = self.overrun.pop() {
            return Some(Task::EndLine(line, End::Lost));
        }
        self.tasks.pop_front().or_else(|| self.later.due(now))
    }

    /// Has something done. Where too much is to be done already, its timeline ends instead: no stream waits then for what
    /// would have been done.
    fn push(&mut self, task: Task) {
        if self.tasks.len() < limits::WORD_TASKS {
            self.tasks.push_back(task);
        } else if !self.overrun.iter().any(|line| line.ptr_eq(task.line())) {
            self.overrun.push(Weak::clone(task.line()));
        }
    }

    /// Nobody leases it any more, and nobody will.
    fn gone(&mut self, id: BufferId) {
        let gone = self.own.remove(&id);
        if let Some((at, (line, order))) = gone.and_then(|own| Some((own.rests_until(), own.order?))) {
            self.later.push(at, Task::Free(line, order));
        }
        self.end_line(id, End::Died);
        self.lines.remove(&id);
    }

    fn end_line(&mut self, id: BufferId, end: End) -> bool {
        let lines = self.lines.get(&id).into_iter().flatten().map(|known| Weak::clone(&known.line));
        let lines: Vec<Weak<Line>> = lines.collect();
        let is_known = !lines.is_empty();
        lines.into_iter().for_each(|line| self.push(Task::EndLine(line, end)));
        is_known
    }
}

impl Orders {
    /// A timeline is there: news of it matter from now on.
    pub(crate) fn add(self: &Arc<Self>, hold: &Arc<Hold>) -> Result<(), Fault> {
        self.start()?;
        let (mut state, line) = (self.lock(), hold.line());
        let lines = state.lines.entry(line.id).or_default();
        lines.retain(|known| known.line.strong_count() > 0);
        lines.push(Known { lease: line.lease(), line: Arc::downgrade(line), hold: Arc::downgrade(hold) });
        Ok(())
    }

    /// Starts the threads, if they are not there yet.
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), Fault> {
        let mut state = self.lock();
        if state.thread.is_none() {
            let orders = Arc::clone(self);
            let thread = std::thread::Builder::new().name("gpu-handoff-w".to_owned());
            state.thread = Some(thread.spawn(move || orders.work()).map_err(Fault::Io)?);
        }
        self.bin.start().map_err(Fault::Io)
    }

    /// Where memory is let go of.
    pub(crate) fn bin(&self) -> &Arc<Bin> {
        &self.bin
    }

    /// The application's hold on a timeline in a context, if there is one.
    pub(crate) fn find(&self, id: BufferId, context: gpu_handoff_cuda::ContextRef) -> Option<Arc<Hold>> {
        let upgraded = |known: &Known| known.hold.upgrade();
        let holds: Vec<Arc<Hold>> = self.lock().lines.get(&id)?.iter().filter_map(upgraded).collect();
        let mut found = None;
        for hold in holds {
            if hold.line().context == context {
                found = Some(hold);
            } else {
                // Perhaps the last one: dropping it locks the connection, and unmaps.
                self.bin.discard(Trash::Hold(hold));
            }
        }
        found
    }

    /// Something was told of a buffer. Quick, and calls no driver.
    pub(crate) fn notice(&self, event: &Event) {
        let mut state = self.lock();
        let urgent = match event {
            Event::Seated { id, seat } => {
                state.own.entry(*id).or_default().sit_down(*seat);
                false
            }
            Event::Unseated { id, seat, how } => got_up(&mut state, *id, *seat, *how),
            // Of a timeline: for whatever reason it ends, nobody writes its owner's words any more.
            Event::Orphaned { id, .. } => state.end_line(*id, End::Died),
            Event::Gone { id, .. } => {
                state.gone(*id);
                true
            }
            _ => false,
        };
        if urgent {
            self.bell.notify_one();
        }
    }

    /// A buffer of this process had ended before its order was known here.
    pub(crate) fn gone(&self, id: BufferId) {
        self.lock().gone(id);
        self.bell.notify_one();
    }

    /// Nothing more will be told of anybody: nobody can be relied on to write.
    pub(crate) fn lost(&self) {
        let mut state = self.lock();
        let ids: Vec<BufferId> = state.lines.keys().copied().collect();
        for id in ids {
            state.end_line(id, End::Lost);
        }
        self.bell.notify_one();
    }

    /// Ends the threads, after what is to be let go of.
    pub(crate) fn stop(&self) {
        let thread = {
            let mut state = self.lock();
            state.stop = true;
            state.thread.take()
        };
        self.bell.notify_all();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // A panic of that thread has been reported on standard error already.
            let _ = thread.join();
        }
        self.bin.stop();
    }

    fn work(&self) {
        let mut state = self.lock();
        while !state.stop {
            let now = Instant::now();
            if let Some(task) = state.due(now) {
                drop(state);
                let inside = go_in();
                let later = self.perform(task);
                drop(inside);
                state = self.lock();
                if let Some((at, task)) = later {
                    state.later.push(at, task);
                }
                continue;
            }
            state = match state.later.first() {
                None => self.bell.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let left = at.saturating_duration_since(now);
                    self.bell.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Does a task; gives what is to be done later. An error of the driver means that the context is beyond use, and then
    /// no stream of it waits.
    fn perform(&self, task: Task) -> Option<(Instant, Task)> {
        let line = task.line();
        let strong = line.upgrade()?;
        let look = |words: Vec<u32>, round: usize| {
            let after = limits::POISON_LOOKS.get(round).filter(|_| !words.is_empty())?;
            Some((Instant::now() + *after, Task::Look(Weak::clone(line), words, round)))
        };
        let later = match &task {
            Task::EndLine(_, end) => strong.end(*end).ok().and_then(|words| look(words, 0)),
            Task::EndWord(_, word, id, seat) => {
                let later = strong.end_word(*word).ok().and_then(|words| look(words, 0));
                self.has_left(*id, *seat);
                later
            }
            Task::Look(_, words, round) => {
                strong.poison_again(words).ok().and_then(|()| look(words.clone(), round + 1))
            }
            Task::Open(_, word, value) => {
                let _ = strong.open(*word, *value);
                None
            }
            Task::Free(_, order) => {
                let is_written = free(&strong, order);
                (!is_written)
                    .then(|| (Instant::now() + limits::WORDS_PAUSE, Task::Free(Weak::clone(line), *order)))
            }
            Task::Settle(_) => self.settle(&strong),
            Task::LeaseAgain(_, asking) => self.lease_again(&strong, *asking),
        };
        // Where that was the last hold on it: unmapping may wait for a stream.
        if let Some(line) = Arc::into_inner(strong) {
            self.bin.discard(Trash::Line(Box::new(line)));
        }
        later
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::id;

    #[test]
    fn with_too_much_to_do_the_timeline_ends_and_nothing_piles_up() {
        let mut state = State::default();
        for word in 0..limits::WORD_TASKS + 3 {
            state.push(Task::Open(Weak::new(), u32::try_from(word).unwrap(), 1));
        }
        assert_eq!((state.tasks.len(), state.overrun.len()), (limits::WORD_TASKS, 1));
        assert!(matches!(state.due(Instant::now()), Some(Task::EndLine(_, End::Lost))));
        assert!(matches!(state.due(Instant::now()), Some(Task::Open(_, 0, 1))));
    }

    #[test]
    fn nothing_is_remembered_of_what_is_gone() {
        let orders = Orders::default();
        let known = Known { lease: None, line: Weak::new(), hold: Weak::new() };
        orders.lock().lines.insert(id(1), vec![known]);
        orders.lock().own.entry(id(1)).or_default();
        orders.gone(id(1));
        let state = orders.lock();
        assert!(state.lines.is_empty() && state.own.is_empty());
        assert!(matches!(state.tasks.front(), Some(Task::EndLine(_, End::Died))));
    }
}
