//! Events: two counters, records asked for and records reached; shared through a file for an interprocess event.
//!
//! The file lies in `/dev/shm` under a name made of the maker's UID and PID, with mode 0600. That is why events, unlike memory,
//! need the same `/dev/shm`, the same UID and different PID numbers (sharing 1).

use std::cell::Cell;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{CWD, Mode, OFlags, fstat, ftruncate, open, unlink};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::abi::{self, IpcHandle};
use crate::error::{CuResult, Result};
use crate::header::u32_at;
use crate::mapping::Mapping;
use crate::measured;
use crate::process::own_pid;
use crate::store::io;
use crate::word;

const MAGIC: u64 = u64::from_le_bytes(*b"simevent");
const PAGE_BYTES: usize = 4096;
/// How many looks at an event, about a millisecond apart, come to one at whether its recorder lives.
const LOOKS_PER_LIFE_SIGN: u32 = 256;

static FILES: AtomicU32 = AtomicU32::new(0);

/// What record, query and wait share; lies at the start of the file of an interprocess event.
#[derive(Debug, Default)]
#[repr(C)]
struct Counters {
    magic: AtomicU64,
    asked: AtomicU64,
    reached: AtomicU64,
    reached_ns: AtomicU64,
    /// The process that asked for the last record.
    recorder: AtomicU32,
}

#[derive(Debug)]
enum Place {
    Own(Box<Counters>),
    Shared(Mapping),
}

/// One event.
#[derive(Debug)]
pub(crate) struct Event {
    place: Place,
    gpu: usize,
    flags: u32,
    /// The file that this process made for the event.
    file: Option<EventFile>,
}

/// The name that a handle stands for; the file goes with the value.
#[derive(Debug)]
struct EventFile {
    uid: u32,
    pid: u32,
    number: u32,
}

impl EventFile {
    fn path(&self) -> String {
        path(self.uid, self.pid, self.number)
    }

    fn remove(&self) {
        // Gone already if somebody swept the directory.
        let _gone = unlink(self.path());
    }
}

impl Drop for EventFile {
    fn drop(&mut self) {
        self.remove();
    }
}

fn path(uid: u32, pid: u32, number: u32) -> String {
    format!("/dev/shm/cuda.shm.{uid:x}.{pid:x}.{number:x}")
}

impl Event {
    /// `cuEventCreate`.
    pub(crate) fn new(gpu: usize, flags: u32) -> Result<Self> {
        let known = abi::EVENT_BLOCKING_SYNC | abi::EVENT_DISABLE_TIMING | abi::EVENT_INTERPROCESS;
        if flags & !known != 0 {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        if flags & abi::EVENT_INTERPROCESS == 0 {
            return Ok(Self { place: Place::Own(Box::default()), gpu, flags, file: None });
        }
        if flags & abi::EVENT_DISABLE_TIMING == 0 {
            return Err(measured::EVENT_INTERPROCESS_TIMING);
        }
        let (file, mapping) = create_file()?;
        let event = Self { place: Place::Shared(mapping), gpu, flags, file: Some(file) };
        event.counters().magic.store(MAGIC, Ordering::Release);
        Ok(event)
    }

    /// `cuIpcGetEventHandle`: PID first, then what else makes the file's name.
    pub(crate) fn export(&self) -> Result<IpcHandle> {
        let file = self.file.as_ref().ok_or(measured::EVENT_GET_NOT_INTERPROCESS)?;
        let mut bytes = [0; 64];
        for (to, from) in bytes.chunks_exact_mut(4).zip([file.pid, file.number, file.uid]) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        Ok(IpcHandle { bytes })
    }

    /// `cuIpcOpenEventHandle`.
    pub(crate) fn import(gpu: usize, handle: &IpcHandle) -> Result<Self> {
        let word = |at| u32_at(&handle.bytes, at).unwrap_or(0);
        let (pid, number, uid) = (word(0), word(4), word(8));
        if pid == own_pid() {
            return Err(measured::EVENT_OPEN_SAME_PID);
        }
        let mapping = open_file(&path(uid, pid, number)).map_err(|_| measured::EVENT_OPEN_NO_FILE)?;
        let event = Self { place: Place::Shared(mapping), gpu, flags: abi::EVENT_DISABLE_TIMING, file: None };
        if event.counters().magic.load(Ordering::Acquire) != MAGIC {
            return Err(measured::EVENT_OPEN_NO_FILE);
        }
        Ok(event)
    }

    pub(crate) const fn gpu(&self) -> usize {
        self.gpu
    }

    /// Takes the event's file away at the end of the process.
    pub(crate) fn remove_file(&self) {
        if let Some(file) = &self.file {
            file.remove();
        }
    }

    /// Asks for a record by this process and returns its number, for `reach`.
    pub(crate) fn ask(&self, client: u32) -> u64 {
        self.counters().recorder.store(client, Ordering::Release);
        self.counters().asked.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The stream has come to the record with this number.
    pub(crate) fn reach(&self, number: u64) {
        let counters = self.counters();
        counters.reached_ns.store(now_ns(), Ordering::Relaxed);
        counters.reached.fetch_max(number, Ordering::AcqRel);
        word::wake(self.reached_low());
    }

    /// The last record asked for, for `wait`.
    pub(crate) fn last_asked(&self) -> u64 {
        self.counters().asked.load(Ordering::Acquire)
    }

    fn is_reached(&self, number: u64) -> bool {
        self.counters().reached.load(Ordering::Acquire) >= number
    }

    /// Waits until the record with this number is reached, or its maker is dead: `lives` says whether a process does.
    pub(crate) fn wait(&self, number: u64, lives: impl Fn(u32) -> bool) -> Result<()> {
        let looks = Cell::new(0_u32);
        word::wait_until(self.reached_low(), || {
            looks.set(looks.get().wrapping_add(1));
            self.is_reached(number)
                || (looks.get().is_multiple_of(LOOKS_PER_LIFE_SIGN) && self.is_orphaned(&lives))
        });
        // What was reached just before the recorder's death counts.
        self.is_reached(number).then_some(()).ok_or(measured::EVENT_RECORDER_DEAD)
    }

    pub(crate) fn query(&self, lives: impl Fn(u32) -> bool) -> Result<()> {
        if self.is_reached(self.last_asked()) {
            return Ok(());
        }
        let orphaned = self.is_orphaned(&lives) && !self.is_reached(self.last_asked());
        Err(if orphaned { measured::EVENT_RECORDER_DEAD } else { CuResult::ERROR_NOT_READY })
    }

    /// Nobody is left who could reach the last record.
    fn is_orphaned(&self, lives: &impl Fn(u32) -> bool) -> bool {
        match &self.place {
            Place::Own(_) => false,
            Place::Shared(_) => !lives(self.counters().recorder.load(Ordering::Acquire)),
        }
    }

    /// Milliseconds from this event to a later one.
    pub(crate) fn milliseconds_to(&self, end: &Self) -> Result<f32> {
        let untimed = |event: &Self| event.flags & abi::EVENT_DISABLE_TIMING != 0 || event.last_asked() == 0;
        if untimed(self) || untimed(end) {
            return Err(CuResult::ERROR_INVALID_HANDLE);
        }
        // Only a process's own events have a time.
        self.query(|_| true).and_then(|()| end.query(|_| true))?;
        let at = |event: &Self| event.counters().reached_ns.load(Ordering::Relaxed);
        let (from, to) =
            (std::time::Duration::from_nanos(at(self)), std::time::Duration::from_nanos(at(end)));
        Ok(if to >= from { (to - from).as_secs_f32() * 1e3 } else { -(from - to).as_secs_f32() * 1e3 })
    }

    fn counters(&self) -> &Counters {
        match &self.place {
            Place::Own(counters) => counters,
            // SAFETY: the mapping is a page, longer than `Counters` and aligned beyond it, and lives as long as `self`. Every field
            // is atomic, so any value and any concurrent change by another process is allowed.
            Place::Shared(mapping) => unsafe { &*mapping.at(0).cast::<Counters>() },
        }
    }

    fn reached_low(&self) -> &AtomicU32 {
        // SAFETY: the low half of a live, aligned 64-bit atomic on a little-endian host; only the kernel and atomics read it.
        unsafe { AtomicU32::from_ptr(self.counters().reached.as_ptr().cast()) }
    }
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

fn create_file() -> Result<(EventFile, Mapping)> {
    let number = FILES.fetch_add(1, Ordering::Relaxed) + 1;
    let file = EventFile { uid: rustix::process::getuid().as_raw(), pid: own_pid(), number };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mode = Mode::from_raw_mode(0o600);
    let fd = match rustix::fs::openat(CWD, file.path(), flags, mode) {
        // Left by a dead process of this number, or in use by a living one in another PID namespace: names clash.
        Err(Errno::EXIST) => {
            file.remove();
            rustix::fs::openat(CWD, file.path(), flags, mode)
        }
        other => other,
    }
    .map_err(io)?;
    ftruncate(&fd, PAGE_BYTES as u64).map_err(io)?;
    let mapping = Mapping::new(fd.as_fd(), 0, PAGE_BYTES, true).map_err(io)?;
    mapping.populate(0, PAGE_BYTES).map_err(|_| CuResult::ERROR_OUT_OF_MEMORY)?;
    Ok((file, mapping))
}

fn open_file(path: &str) -> rustix::io::Result<Mapping> {
    let fd = open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    if fstat(&fd)?.st_size < PAGE_BYTES as i64 {
        return Err(Errno::INVAL);
    }
    Mapping::new(fd.as_fd(), 0, PAGE_BYTES, true)
}

#[cfg(test)]
mod tests {
    use super::Event;
    use crate::abi::{EVENT_DISABLE_TIMING, EVENT_INTERPROCESS};
    use crate::error::CuResult;
    use crate::measured;

    #[test]
    fn an_event_is_done_when_its_last_record_is_reached() {
        let event = Event::new(0, 0).unwrap();
        assert_eq!(event.query(|_| true), Ok(()));
        let (first, second) = (event.ask(7), event.ask(7));
        event.reach(first);
        assert_eq!(event.query(|_| true), Err(CuResult::ERROR_NOT_READY));
        event.reach(second);
        assert_eq!(event.query(|_| true), Ok(()));
        event.wait(second, |_| true).unwrap();
    }

    #[test]
    fn a_record_whose_maker_died_is_an_error_and_not_a_wait_without_end() {
        let event = Event::new(0, EVENT_INTERPROCESS | EVENT_DISABLE_TIMING).unwrap();
        let (first, second) = (event.ask(7), event.ask(7));
        event.reach(first);
        assert_eq!(event.wait(first, |_| false), Ok(()), "it came to pass");
        assert_eq!(event.wait(second, |client| client != 7), Err(measured::EVENT_RECORDER_DEAD));
        assert_eq!(event.query(|client| client == 7), Err(CuResult::ERROR_NOT_READY));
        assert_eq!(event.query(|client| client != 7), Err(measured::EVENT_RECORDER_DEAD));
    }

    #[test]
    fn an_interprocess_event_has_a_file_while_it_lives_and_is_not_for_its_own_process() {
        assert_eq!(Event::new(0, EVENT_INTERPROCESS).unwrap_err(), measured::EVENT_INTERPROCESS_TIMING);
        let event = Event::new(0, EVENT_INTERPROCESS | EVENT_DISABLE_TIMING).unwrap();
        let path = event.file.as_ref().unwrap().path();
        assert!(std::path::Path::new(&path).exists());
        let handle = event.export().unwrap();
        assert_eq!(Event::import(0, &handle).unwrap_err(), measured::EVENT_OPEN_SAME_PID);
        drop(event);
        assert!(!std::path::Path::new(&path).exists());
    }

    #[test]
    fn a_handle_of_another_process_number_leads_to_no_file() {
        let event = Event::new(0, EVENT_INTERPROCESS | EVENT_DISABLE_TIMING).unwrap();
        let mut handle = event.export().unwrap();
        handle.bytes[3] ^= 0x40;
        assert_eq!(Event::import(0, &handle).unwrap_err(), measured::EVENT_OPEN_NO_FILE);
    }
}
