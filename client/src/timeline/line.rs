//! The words of a timeline as one CUDA context of this process reaches them, and what is known of those who write them.
//!
//! Whoever dies writes nothing more, so a word that streams wait for is *poisoned* then: it gets the value
//! [`POISON`], which satisfies every wait. What the word had reached before is remembered, so that whoever asks
//! afterwards is told the truth: what was reached was, anything else is `PEER_DIED`. The last writes of a process that
//! is being killed can come a moment after the news of its death and undo the poison; so a poisoned word is looked at
//! again, [a few times](crate::limits::POISON_LOOKS).

mod state;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use gpu_handoff_cuda::{
    ContextRef, CudaError, DeviceUuid, Driver, PrimaryHold, Stream, StreamRef, VmmMapping, ops,
};
use gpu_handoff_protocol::limits::ORDER_VALUES;
use gpu_handoff_protocol::{BufferId, BufferName, Code, LeaseId, Refusal};

use super::words::Allotment;
use crate::client::Shared;
use crate::error::Fault;
use crate::lease::Lease;
use crate::limits;
pub(crate) use state::has_reached;
use state::{POISON, State};

/// Bytes of a word.
pub(crate) const WORD_BYTES: u64 = 8;

/// What keeps the words mapped, and the timeline published or leased.
#[derive(Debug)]
pub(crate) enum Keep {
    /// A timeline of this process.
    Own(
        #[expect(dead_code, reason = "held for its drop")] VmmMapping,
        #[expect(dead_code, reason = "held for its drop")] Retire,
    ),
    /// Another's.
    Leased(Box<Lease>),
}

/// Retires a timeline of this process on drop: nobody writes its words any more. It comes after the mapping, because
/// unmapping may wait for what streams have still to write, and importers take the words' end from the news.
#[derive(Debug)]
pub(crate) struct Retire {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: BufferId,
}

impl Drop for Retire {
    fn drop(&mut self) {
        self.shared.connection.retire_later(std::iter::once(self.id));
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) id: BufferId,
    pub(crate) name: BufferName,
    pub(crate) words: u32,
    pub(crate) shared: Arc<Shared>,
    /// Words that publications of this process use; `None` where the timeline is another's.
    pub(crate) allotment: Option<Allotment>,
    driver: Driver,
    pub(crate) context: ContextRef,
    base: u64,
    state: Mutex<State>,
    /// For what must not wait for any stream of the application.
    own: Arc<Stream>,
    keep: Arc<Keep>,
    /// The application may be done with its context before this is. Let go of last.
    _context: Option<PrimaryHold>,
}

/// Why a timeline's words are not written any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Its owner has ended.
    Died,
    /// The connection to the node has ended: it might have, and nobody would tell.
    Lost,
}

/// What a line is made of.
pub(crate) struct Parts {
    pub(crate) id: BufferId,
    pub(crate) name: BufferName,
    pub(crate) words: u32,
    pub(crate) shared: Arc<Shared>,
    pub(crate) context: ContextRef,
    pub(crate) base: u64,
    pub(crate) own: Stream,
    pub(crate) keep: Keep,
}

impl Line {
    pub(crate) fn new(driver: Driver, parts: Parts) -> Result<Self, Fault> {
        let Parts { id, name, words, shared, context, base, own, keep } = parts;
        let allotment = matches!(keep, Keep::Own(..)).then(|| Allotment::new(words));
        let (own, keep) = (Arc::new(own), Arc::new(keep));
        let state = Mutex::default();
        let _context = context.hold(driver)?;
        Ok(Self { id, name, words, shared, allotment, driver, context, base, state, own, keep, _context })
    }

    /// The lease by which it is reached, where the timeline is another's.
    pub(crate) fn lease(&self) -> Option<LeaseId> {
        match &*self.keep {
            Keep::Own(..) => None,
            Keep::Leased(lease) => Some(lease.id()),
        }
    }

    /// Has `stream` write a word once what was queued on it before is done.
    pub(crate) fn signal(&self, stream: StreamRef<'_>, word: u32, value: u64) -> Result<(), Fault> {
        let ptr = self.ask_for(word, value)?;
        let _current = self.context.enter(self.driver)?;
        check_not_capturing(self.driver, stream)?;
        Ok(ops::signal(self.driver, stream, ptr, value)?)
    }

    /// Refuses a stream that is being captured.
    pub(crate) fn check_stream(&self, stream: StreamRef<'_>) -> Result<(), Fault> {
        let _current = self.context.enter(self.driver)?;
        check_not_capturing(self.driver, stream)
    }

    /// Has `stream` go no further until a word has reached a value, or its writer has ended.
    pub(crate) fn wait(&self, stream: StreamRef<'_>, word: u32, value: u64) -> Result<(), Fault> {
        let ptr = self.ask_for(word, value)?;
        let _current = self.context.enter(self.driver)?;
        check_not_capturing(self.driver, stream)?;
        {
            let mut state = self.lock()?;
            if state.is_dead(word) {
                return self.truth(&state, word, value);
            }
            // Before the wait is queued, so that it is poisoned if the writer ends meanwhile.
            let highest = state.waited.entry(word).or_default();
            *highest = value.max(*highest);
        }
        Ok(ops::wait_at_least(self.driver, stream, ptr, value)?)
    }

    /// Waits here until a word has reached a value; `false` at the deadline.
    pub(crate) fn wait_here(&self, word: u32, value: u64, deadline: Instant) -> Result<bool, Fault> {
        self.ask_for(word, value)?;
        let began = Instant::now();
        loop {
            let found = self.load(word)?;
            if found.is_some_and(|found| has_reached(found, value)) {
                return Ok(true);
            }
            self.judge(word, value, found)?;
            let now = Instant::now();
            if now >= deadline {
                return Ok(false);
            }
            // At first it is worth to look again at once: a hand-off takes microseconds.
            if now.duration_since(began) > limits::WORD_SPIN {
                std::thread::sleep(limits::WORD_PAUSE.min(deadline - now));
            }
        }
    }

    /// Whether a word can still reach a value, or has.
    pub(crate) fn check(&self, word: u32, value: u64) -> Result<(), Fault> {
        self.ask_for(word, value)?;
        let found = self.load(word)?;
        self.judge(word, value, found)
    }

    /// The same of a word that was just looked at.
    fn judge(&self, word: u32, value: u64, found: Option<u64>) -> Result<(), Fault> {
        let state = self.lock()?;
        // Others may have been told of the writer's end before: what they poisoned has set our streams free, too.
        if state.is_dead(word) || found.is_none() { self.truth(&state, word, value) } else { Ok(()) }
    }

    /// A word as it is now; `None` once it is poisoned.
    pub(crate) fn load(&self, word: u32) -> Result<Option<u64>, Fault> {
        let ptr = self.ask_for(word, 0)?;
        let _current = self.context.enter(self.driver)?;
        let found = ops::load(self.driver, self.own.stream(), ptr)?;
        Ok((found < POISON).then_some(found))
    }

    /// Of a word whose writer has ended: whether it had reached a value before.
    fn truth(&self, state: &State, word: u32, value: u64) -> Result<(), Fault> {
        let found = state.furthest(word, self.load(word)?);
        if found.is_some_and(|found| has_reached(found, value)) {
            return Ok(());
        }
        if state.ended == Some(End::Lost) && !state.dead.contains(&word) {
            return Err(Fault::Lost(None));
        }
        let found =
            found.map_or_else(|| "its writer's end".to_owned(), |at| format!("its writer's end at {at}"));
        let wanted = format!("word {word} of timeline {} at {value}", self.name);
        Err(Refusal::new(Code::PeerDied).compared_with("word", wanted, found).into())
    }

    /// The lease by which it is reached is lost. Nothing is written, as others wait for the same words.
    pub(crate) fn lose(&self) -> Result<(), Fault> {
        self.lock()?.ended.get_or_insert(End::Lost);
        Ok(())
    }

    /// The device that it is mapped on.
    pub(crate) fn device(&self) -> Result<DeviceUuid, Fault> {
        Ok(self.context.device(self.driver)?.uuid())
    }

    /// Nobody writes any word any more. Gives the words that were poisoned.
    pub(crate) fn end(&self, end: End) -> Result<Vec<u32>, Fault> {
        let mut state = self.lock()?;
        state.ended.get_or_insert(end);
        let words: Vec<u32> = state.waited.keys().copied().collect();
        self.poison(&mut state, &words)?;
        Ok(words)
    }

    /// The writer of a word has ended. Gives the word if it was poisoned.
    pub(crate) fn end_word(&self, word: u32) -> Result<Vec<u32>, Fault> {
        let mut state = self.lock()?;
        state.dead.insert(word);
        let words: Vec<u32> = state.waited.contains_key(&word).then_some(word).into_iter().collect();
        self.poison(&mut state, &words)?;
        Ok(words)
    }

    fn poison(&self, state: &mut State, words: &[u32]) -> Result<(), Fault> {
        let _current = self.context.enter(self.driver)?;
        for word in words {
            // First of all the streams go on; the truth is read before, which takes microseconds.
            let ptr = self.address(*word);
            let found = ops::load(self.driver, self.own.stream(), ptr)?;
            if found < POISON {
                let reached = state.reached.entry(*word).or_insert(found);
                *reached = found.max(*reached);
                // Where it has come so far, no stream waits for it, and it stays what it is for whoever asks.
                if state.waited.get(word).is_some_and(|value| !has_reached(found, *value)) {
                    ops::signal(self.driver, self.own.stream(), ptr, POISON)?;
                    state.poisoned = Some(Instant::now());
                }
            }
        }
        Ok(())
    }

    /// Poisons those words again that a last write has cured.
    pub(crate) fn poison_again(&self, words: &[u32]) -> Result<(), Fault> {
        let mut state = self.lock()?;
        let words: Vec<u32> = words.iter().copied().filter(|word| state.is_dead(*word)).collect();
        self.poison(&mut state, &words)
    }

    /// Whether a stream of this process waits for a word that has not reached its value, or may fall back from its poison.
    /// An error of the driver means that the context is beyond use, and then no stream of it waits.
    pub(crate) fn is_waited_for(&self) -> bool {
        let Ok(mut state) = self.lock() else { return false };
        if state.poisoned.is_some_and(|at| at.elapsed() < limits::POISON_REST) {
            return true;
        }
        let Some((first, last)) = state.waited_range() else { return false };
        // All in one copy: whoever drops a timeline does not wait for a look at each.
        let Ok(found) = self.load_all(first, last) else { return false };
        state.prune(first, &found, Instant::now())
    }

    fn load_all(&self, first: u32, last: u32) -> Result<Box<[u64]>, Fault> {
        let _current = self.context.enter(self.driver)?;
        let count = (last - first) as usize + 1;
        Ok(ops::load_all(self.driver, self.own.stream(), self.address(first), count)?)
    }

    /// Gives words a value that satisfies all waits of their earlier uses, for new writers.
    pub(crate) fn renew(&self, words: std::ops::Range<u32>, value: u64) -> Result<(), Fault> {
        let mut state = self.lock()?;
        let _current = self.context.enter(self.driver)?;
        for word in words {
            let was_poisoned = state.reached.remove(&word).is_some();
            if state.dead.remove(&word) || was_poisoned {
                ops::signal(self.driver, self.own.stream(), self.address(word), value)?;
            }
        }
        Ok(gpu_handoff_cuda::stream::synchronize(self.driver, self.own.stream())?)
    }

    /// Writes a word at once, whatever the application's streams do.
    pub(crate) fn write(&self, word: u32, value: u64) -> Result<(), Fault> {
        let ptr = self.ask_for(word, value)?;
        let _current = self.context.enter(self.driver)?;
        Ok(ops::signal(self.driver, self.own.stream(), ptr, value)?)
    }

    /// Writes a word at once and gives it back: values rise, so the stream that waits for it passes whatever comes there
    /// next.
    pub(crate) fn open(&self, word: u32, value: u64) -> Result<(), Fault> {
        self.write(word, value)?;
        let _current = self.context.enter(self.driver)?;
        // Done before another may write it: this value would undo the later one.
        gpu_handoff_cuda::stream::synchronize(self.driver, self.own.stream())?;
        if let Some(allotment) = &self.allotment {
            allotment.give_back(word..word.saturating_add(1));
        }
        Ok(())
    }

    fn address(&self, word: u32) -> u64 {
        self.base + u64::from(word) * WORD_BYTES
    }

    /// The address of a word, where process, word and value are such as they must be.
    fn ask_for(&self, word: u32, value: u64) -> Result<u64, Fault> {
        self.shared.connection.check_process()?;
        if word >= self.words {
            let wanted = format!("below {}", self.words);
            return Err(Refusal::new(Code::TooLarge)
                .compared_with("word of the timeline", wanted, word)
                .into());
        }
        if value >= ORDER_VALUES {
            return Err(Refusal::new(Code::TooLarge)
                .compared_with("value of a word", "below 2^62", value)
                .into());
        }
        Ok(self.address(word))
    }

    fn lock(&self) -> Result<MutexGuard<'_, State>, Fault> {
        Ok(self.state.lock()?)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.shared.connection.is_own_process() {
            // CUDA does not work in a forked child, and the timeline is its parent's: one more count keeps what would be
            // unmapped.
            std::mem::forget((Arc::clone(&self.own), Arc::clone(&self.keep)));
        }
        // Then the stream goes, and last what it writes.
    }
}

/// Refuses a stream that is being captured: what it is told would be done whenever the graph is launched.
pub(crate) fn check_not_capturing(driver: Driver, stream: StreamRef<'_>) -> Result<(), Fault> {
    if !gpu_handoff_cuda::stream::is_capturing(driver, stream)? {
        return Ok(());
    }
    let refusal = Refusal::new(Code::StreamCapturing);
    Err(refusal.compared_with("stream", "not being captured", "being captured").into())
}

/// All words of a new timeline are 0 at first.
pub(crate) fn clear(driver: Driver, own: &Stream, base: u64, words: u32) -> Result<(), CudaError> {
    for word in 0..u64::from(words) {
        ops::signal(driver, own.stream(), base + word * WORD_BYTES, 0)?;
    }
    gpu_handoff_cuda::stream::synchronize(driver, own.stream())
}
