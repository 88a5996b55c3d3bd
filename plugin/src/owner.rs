//! The registry's keeper. Whoever has an input applies it in its own thread, under one short lock; the effects are
//! queued for their lanes, in order, before the lock is given back, and carried out after it.
//!
//! A lane that applies an input carries its own part out at once: nothing is woken for it. The threads of other lanes
//! are woken when the lock is free again. What is written to the log comes last, after everybody has been told, so
//! lines of different members may stand in another order than what they tell of.
//!
//! | concern | file |
//! |---|---|
//! | what waits for a lane | [`queue`] |
//! | few commands for many effects | [`effects`] |
//! | what is written to the log | [`notes`] |

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::Instant;

use tokio::sync::{Notify, mpsc, watch};
use tracing::{error, info, warn};

use crate::journal::{Journal, Record};
use crate::limits;
use crate::pace::sleep_until;
use crate::registry::{Counters, DrawnMap, Effect, Input, MemberId, Overstay, Registry, SessionId};

mod effects;
mod notes;
mod queue;

pub use notes::Notes;
use queue::NoRoom;
pub use queue::{LaneCommand, LaneHandle};

/// The registry, and where its lanes are reached.
#[derive(Debug)]
pub struct Owner {
    state: Mutex<State>,
    /// Told when a deadline came that is earlier than the one that is waited for, or when the state broke.
    stirred: Notify,
    /// Who hears of those that lease what is over for too long.
    overstays: OnceLock<mpsc::Sender<Overstay>>,
    /// Threads that wait for the state to apply something.
    waiting: AtomicUsize,
    /// How often a lane has paused for another.
    #[cfg(test)]
    paused: AtomicUsize,
}

#[derive(Debug)]
struct State {
    registry: Registry,
    /// `None`: nothing outlives this daemon.
    journal: Option<Journal>,
    /// Room for what the journal is told.
    records: Vec<Record>,
    /// The daemon stops: nothing is taken in any more, so nothing ends, and nobody is told that it does.
    stopped: bool,
    lanes: DrawnMap<MemberId, LaneHandle>,
    sessions: DrawnMap<SessionId, MemberId>,
    /// Members that have left, and whose lanes are told of the last of their buffers yet.
    left: Vec<MemberId>,
    /// What [`Owner::keep_time`] waits for.
    due: Option<Instant>,
}

/// What is left to do when the lock has been given back.
#[derive(Debug, Default)]
struct Rest {
    wake: Vec<LaneHandle>,
    /// What a full queue had no room for: closing it may take its time.
    lost: Vec<LaneCommand>,
    overrun: Vec<MemberId>,
    /// Another lane has much to do already.
    is_pressing: bool,
    earlier: bool,
    overstays: Vec<Overstay>,
    notes: Notes,
}

impl Owner {
    /// An owner without lanes.
    #[must_use]
    pub fn new(registry: Registry, journal: Option<Journal>) -> Arc<Self> {
        let state = State {
            registry,
            journal,
            records: Vec::new(),
            stopped: false,
            lanes: DrawnMap::default(),
            sessions: DrawnMap::default(),
            left: Vec::new(),
            due: None,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            stirred: Notify::new(),
            overstays: OnceLock::new(),
            waiting: AtomicUsize::new(0),
            #[cfg(test)]
            paused: AtomicUsize::new(0),
        })
    }

    /// Who is told from now on of those that lease what is over for longer than they may. Only the first is.
    pub fn tell_overstays(&self, to: mpsc::Sender<Overstay>) {
        drop(self.overstays.set(to));
    }

    /// Makes a lane known; what concerns its member is queued there from now on.
    pub fn add_lane(&self, member: MemberId, lane: LaneHandle) {
        // A broken state is seen by whoever keeps the time.
        if let Ok(mut state) = self.state.lock() {
            state.lanes.insert(member, lane);
        }
    }

    /// Takes nothing in any more. What is alive at this moment is so for the next daemon, which the journal tells.
    pub fn stop(&self) {
        if let Ok(mut state) = self.state.lock() {
            state.stopped = true;
        }
    }

    /// Applies an input and queues its effects. What they are for the lane of `caller` is in its queue when this comes
    /// back, and its thread is not woken for it: the caller sees to that queue next, then writes the notes to the log.
    ///
    /// What ends much is applied piece by piece, and others' inputs between the pieces.
    pub fn apply(&self, caller: Option<MemberId>, input: Input) -> Notes {
        let mut notes = Notes::default();
        let mut more = self.apply_piece(caller, input, &mut notes);
        while more {
            self.let_others_in();
            more = self.apply_piece(caller, Input::GoOn, &mut notes);
        }
        notes
    }

    /// Lets those that wait have the state first: whoever gives a lock back and takes it again at once mostly gets it again.
    fn let_others_in(&self) {
        for _ in 0..limits::PIECE_YIELDS {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// The state, unless it is broken. Whoever has to wait for it is counted meanwhile.
    fn lock_to_apply(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(_)) => None,
            Err(TryLockError::WouldBlock) => {
                self.waiting.fetch_add(1, Ordering::Relaxed);
                let state = self.state.lock();
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                state.ok()
            }
        }
    }

    /// Whether to go on with what this ends, by [`Input::GoOn`].
    fn apply_piece(&self, caller: Option<MemberId>, input: Input, notes: &mut Notes) -> bool {
        let mut rest = Rest::default();
        let more = {
            let _end_of_all = StirIfPanicking(&self.stirred);
            let Some(mut state) = self.lock_to_apply() else {
                self.stirred.notify_one();
                return false;
            };
            state.take(caller, input, &mut rest)
        };
        for lane in rest.wake {
            lane.wake();
        }
        if rest.is_pressing && caller.is_some() {
            self.pause();
        }
        if rest.earlier {
            self.stirred.notify_one();
        }
        if let Some(told) = self.overstays.get() {
            // Where there is no room it is named again after a while.
            rest.overstays.into_iter().for_each(|one| drop(told.try_send(one)));
        }
        for member in rest.overrun {
            warn!(member = member.0, "the member's lane does not keep up: its sessions end");
        }
        notes.append(rest.notes);
        more
    }

    /// Lets another lane catch up, in the thread of the one that gives it more to do than it gets done.
    fn pause(&self) {
        #[cfg(test)]
        self.paused.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(limits::LANE_PRESSED_PAUSE);
    }

    /// Lets deadlines pass until told to stop. Comes back early when an input broke the state: what is true can then not
    /// be told any more, and the daemon has to end.
    pub async fn keep_time(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        loop {
            let Some(due) = self.next_due() else {
                error!("the registry broke off in the middle of an input");
                return;
            };
            tokio::select! {
                () = sleep_until(due) => {
                    // What a new policy means is done with one tick after the other.
                    self.let_others_in();
                    self.apply(None, Input::Tick).log();
                }
                () = self.stirred.notified() => {}
                _ = stop.wait_for(|stopping| *stopping) => break,
            }
        }
        if let Ok(state) = self.state.lock() {
            let (buffers, leases, sessions) = state.registry.counts();
            let Counters { published, granted, released, refused } = state.registry.counters();
            info!(buffers, leases, sessions, published, granted, released, refused, "the registry stops");
        }
    }

    /// When the next deadline is, if there is one; `None`: the state is broken.
    fn next_due(&self) -> Option<Option<Instant>> {
        let mut state = self.state.lock().ok()?;
        state.due = state.registry.next_deadline();
        Some(state.due)
    }
}

/// Stirs whoever keeps the time when an input breaks the state. Dropped after the lock.
struct StirIfPanicking<'a>(&'a Notify);

impl Drop for StirIfPanicking<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.notify_one();
        }
    }
}

impl State {
    /// Everything that happens under the lock. Gives whether to go on with what this ends.
    fn take(&mut self, caller: Option<MemberId>, input: Input, rest: &mut Rest) -> bool {
        if self.stopped {
            return false;
        }
        let (mut ended, mut left) = (None, None);
        match &input {
            Input::SessionOpened(session, facts) => {
                self.sessions.insert(*session, facts.member);
            }
            Input::SessionEnded(session, _) => ended = Some(*session),
            Input::MemberLeft(member) => left = Some(*member),
            _ => {}
        }
        let may_be_much = may_be_much(&input);
        let mut effects = self.registry.apply(input, Instant::now());
        effects::by_addressee(&mut effects);
        // Nothing of this input has left yet: nobody is told of anything before it is on record.
        self.write_down(rest);
        self.hand_out(caller, effects, rest);
        if let Some(session) = ended {
            self.sessions.remove(&session);
        }
        self.left.extend(left);
        if !self.left.is_empty() && !self.registry.has_more() {
            for member in std::mem::take(&mut self.left) {
                self.sessions.retain(|_, of| *of != member);
                self.lanes.remove(&member);
            }
        }
        let next = self.registry.next_deadline();
        rest.earlier = next.is_some_and(|at| self.due.is_none_or(|due| at < due));
        if rest.earlier {
            // Others that come before the time is kept anew need not tell it again.
            self.due = next;
        }
        may_be_much && self.registry.has_more()
    }

    fn write_down(&mut self, rest: &mut Rest) {
        self.registry.take_records(&mut self.records);
        if let Some(journal) = &mut self.journal {
            journal.append(&self.records);
            if journal.wants_rewrite() {
                journal.tend(self.registry.alive());
            }
            rest.notes.add_news(journal.take_news());
        }
        self.records.clear();
    }

    fn hand_out(&self, caller: Option<MemberId>, effects: Vec<Effect>, rest: &mut Rest) {
        let mut effects = effects.into_iter().peekable();
        while let Some(effect) = effects.next() {
            match effect {
                Effect::Note(note) => {
                    let member = |session| self.sessions.get(&session).copied();
                    rest.notes.add(note, member);
                }
                Effect::Overstays(one) => rest.overstays.push(*one),
                Effect::Send(session, message) => {
                    // What is said to one session at a time is one command: a watch may begin with very much.
                    let mut messages = vec![message];
                    while let Some(Effect::Send(_, more)) = effects.next_if(|e| e.is_said_to(session)) {
                        messages.push(more);
                    }
                    self.to_session(caller, session, LaneCommand::Send(session, messages), rest);
                }
                Effect::EndSession(session) => {
                    self.to_session(caller, session, LaneCommand::EndSession(session), rest);
                }
                Effect::Dispose(member, carrier) => {
                    self.to_lane(caller, member, LaneCommand::Dispose(carrier), rest);
                }
                Effect::Keep(member, kept) => {
                    // All of a pod's at once is one command too.
                    let mut all = vec![*kept];
                    while let Some(Effect::Keep(_, more)) =
                        effects.next_if(|e| matches!(e, Effect::Keep(to, _) if *to == member))
                    {
                        all.push(*more);
                    }
                    self.to_lane(caller, member, LaneCommand::Keep(all), rest);
                }
                Effect::Forget(member, id, carrier) => {
                    let mut all = vec![(id, carrier)];
                    while let Some(Effect::Forget(_, id, carrier)) =
                        effects.next_if(|e| matches!(e, Effect::Forget(to, ..) if *to == member))
                    {
                        all.push((id, carrier));
                    }
                    self.to_lane(caller, member, LaneCommand::Forget(all), rest);
                }
                Effect::Offered(member, token, outcomes) => {
                    self.to_lane(caller, member, LaneCommand::Offered(token, outcomes), rest);
                }
                Effect::AwaitEnd(member, holder, process) => {
                    self.to_lane(caller, member, LaneCommand::AwaitEnd(holder, process), rest);
                }
                Effect::AwaitNoMore(member, holder) => {
                    self.to_lane(caller, member, LaneCommand::AwaitNoMore(holder), rest);
                }
            }
        }
    }

    fn to_session(
        &self,
        caller: Option<MemberId>,
        session: SessionId,
        command: LaneCommand,
        rest: &mut Rest,
    ) {
        if let Some(member) = self.sessions.get(&session) {
            self.to_lane(caller, *member, command, rest);
        }
    }

    fn to_lane(&self, caller: Option<MemberId>, member: MemberId, command: LaneCommand, rest: &mut Rest) {
        let Some(lane) = self.lanes.get(&member) else {
            rest.lost.push(command);
            return;
        };
        match lane.give(command) {
            Ok(waiting) => rest.is_pressing |= waiting > limits::LANE_PRESSED && caller != Some(member),
            Err(NoRoom { command, is_the_first }) => {
                rest.lost.push(command);
                rest.overrun.extend(is_the_first.then_some(member));
            }
        }
        if caller != Some(member) && !rest.wake.iter().any(|other| other.is(lane)) {
            rest.wake.push(lane.clone());
        }
    }
}

/// Whether this may begin what is done piece by piece, or go on with it.
const fn may_be_much(input: &Input) -> bool {
    matches!(
        input,
        Input::SessionEnded(..)
            | Input::MemberEnding(..)
            | Input::MemberLeft(_)
            | Input::OfferDone(_)
            | Input::Tick
            | Input::GoOn
    )
}

#[cfg(test)]
mod tests;
