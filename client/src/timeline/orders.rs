//! What the node's news mean for words: who sits on which seat, whose words must be poisoned.
//!
//! News come while the connection is locked, where no driver may be called. So they are noted here, and a thread of its
//! own does what they ask for, at once and whatever the application's streams do. A second thread lets go of memory,
//! because unmapping may wait for just those streams that the first is to set free. Both start with the first timeline.

mod lost;
mod outlive;
mod seats;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use gpu_handoff_protocol::message::Event;
use gpu_handoff_protocol::{BufferId, LeaseId, Order, Seat};

use super::hold::Hold;
use super::line::{End, Line};
use crate::error::Fault;
use crate::import::Mapping;
use crate::lease::Held;
use crate::limits;
use crate::order::Ordered;
use outlive::Outliving;
pub(crate) use seats::words_of;
use seats::{Own, free, got_up};

/// What is dropped where it may take long.
#[derive(Debug)]
pub(crate) enum Trash {
    Line(#[expect(dead_code, reason = "held for its drop")] Arc<Line>),
    Hold(#[expect(dead_code, reason = "held for its drop")] Arc<Hold>),
    Outliving(#[expect(dead_code, reason = "held for its drop")] Outliving),
    Lease(#[expect(dead_code, reason = "held for its drop")] Box<(Held, Option<Ordered>)>),
    Mappings(#[expect(dead_code, reason = "held for its drop")] Vec<Arc<Mapping>>),
}

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
    /// Calls the one that lets go.
    bin: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// By the timeline's id: one for each context.
    lines: HashMap<BufferId, Vec<Known>>,
    /// Those that nobody has a handle of any more, and streams still wait for.
    outliving: Vec<Outliving>,
    own: HashMap<BufferId, Own>,
    tasks: VecDeque<Task>,
    later: Vec<(Instant, Task)>,
    trash: VecDeque<Trash>,
    threads: Vec<JoinHandle<()>>,
    stop: bool,
}

impl State {
    fn due(&mut self, now: Instant) -> Option<Task> {
        let at = self.later.iter().position(|(at, _)| *at <= now);
        self.tasks.pop_front().or_else(|| at.map(|at| self.later.swap_remove(at).1))
    }

    fn end_line(&mut self, id: BufferId, end: End) -> bool {
        let lines = self.lines.get(&id).into_iter().flatten().map(|known| Weak::clone(&known.line));
        let before = self.tasks.len();
        self.tasks.extend(lines.map(|line| Task::EndLine(line, end)));
        self.tasks.len() > before
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
        if state.threads.is_empty() {
            for (name, work) in [("gpu-handoff-w", Self::work as fn(&Self)), ("gpu-handoff-u", Self::let_go)]
            {
                let orders = Arc::clone(self);
                let thread = std::thread::Builder::new().name(name.to_owned());
                state.threads.push(thread.spawn(move || work(&orders)).map_err(Fault::Io)?);
            }
        }
        Ok(())
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
                drop(self.discard(Trash::Hold(hold)));
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
                let gone = state.own.remove(id);
                let freed = gone.and_then(|own| Some((own.rests_until(), own.order?)));
                state.later.extend(freed.map(|(at, (line, order))| (at, Task::Free(line, order))));
                state.end_line(*id, End::Died);
                true
            }
            _ => false,
        };
        if urgent {
            self.bell.notify_one();
        }
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

    /// Drops something where it may take long. Gives it back where nobody would: there is no timeline, so no stream waits.
    pub(crate) fn discard(&self, trash: Trash) -> Option<Trash> {
        let mut state = self.lock();
        if state.threads.is_empty() || state.stop {
            return Some(trash);
        }
        state.trash.push_back(trash);
        self.bin.notify_one();
        None
    }

    /// Ends the threads, after what is to be let go of.
    pub(crate) fn stop(&self) {
        let threads = {
            let mut state = self.lock();
            state.stop = true;
            std::mem::take(&mut state.threads)
        };
        self.bell.notify_all();
        self.bin.notify_all();
        let own = std::thread::current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != own) {
            // A panic of that thread has been reported on standard error already.
            let _ = thread.join();
        }
    }

    fn work(&self) {
        let mut state = self.lock();
        while !state.stop {
            let now = Instant::now();
            if let Some(task) = state.due(now) {
                drop(state);
                let later = self.perform(task);
                state = self.lock();
                state.later.extend(later);
                continue;
            }
            let next = state.later.iter().map(|(at, _)| *at).min();
            state = match next {
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
        let (Task::EndLine(line, _)
        | Task::EndWord(line, ..)
        | Task::Look(line, ..)
        | Task::Open(line, ..)
        | Task::Free(line, _)
        | Task::Settle(line)) = &task;
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
        };
        // Perhaps the last hold on it: what is unmapped then may wait for a stream.
        self.discard(Trash::Line(strong));
        later
    }

    fn let_go(&self) {
        let mut state = self.lock();
        loop {
            if let Some(trash) = state.trash.pop_front() {
                drop(state);
                drop(trash);
                state = self.lock();
            } else if state.stop {
                return;
            } else {
                state = self.bin.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
