//! Streams: queues of jobs, each worked off in order by a thread of its own that starts with the first job.
//!
//! The default stream orders itself with all streams that are not NON_BLOCKING: what is submitted to it waits for their
//! tails, what is submitted to them waits for its tail.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use crate::abi::{STREAM_LEGACY, STREAM_PER_THREAD};
use crate::config::GPUS_MAX;
use crate::driver::lock;
use crate::error::{CuResult, Result};
use crate::measured;

const WORKER_STACK_BYTES: usize = 256 << 10;

/// One step of a stream. It may wait for others, and it owns what it touches.
pub(crate) type Job = Box<dyn FnOnce() -> Result<()> + Send>;

/// One queue.
pub(crate) struct Stream {
    gpu: usize,
    blocking: bool,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    submitted: u64,
    done: u64,
    has_worker: bool,
    closed: bool,
    /// The first job that failed since somebody asked.
    failure: Option<CuResult>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("gpu", &self.gpu)
            .field("blocking", &self.blocking)
            .finish_non_exhaustive()
    }
}

impl Stream {
    fn new(gpu: usize, blocking: bool) -> Arc<Self> {
        Arc::new(Self { gpu, blocking, queue: Mutex::default(), changed: Condvar::new() })
    }

    fn submit(self: &Arc<Self>, job: Job) -> Result<()> {
        let mut queue = lock(&self.queue);
        if !queue.has_worker {
            spawn_worker(Arc::clone(self))?;
            queue.has_worker = true;
        }
        queue.jobs.push_back(job);
        queue.submitted += 1;
        drop(queue);
        self.changed.notify_all();
        Ok(())
    }

    /// How many jobs were submitted, if some of them are not done.
    fn tail(&self) -> Option<u64> {
        let queue = lock(&self.queue);
        (queue.done < queue.submitted).then_some(queue.submitted)
    }

    /// Waits until this many jobs are done.
    fn wait(&self, tail: u64) {
        let queue = lock(&self.queue);
        let waited = self.changed.wait_while(queue, |queue| queue.done < tail);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits for all that was submitted; tells the first failure since the last time.
    pub(crate) fn synchronize(&self) -> Result<()> {
        if let Some(tail) = self.tail() {
            self.wait(tail);
        }
        lock(&self.queue).failure.take().map_or(Ok(()), Err)
    }

    /// `synchronize` without waiting.
    pub(crate) fn query(&self) -> Result<()> {
        if self.tail().is_some() {
            return Err(CuResult::ERROR_NOT_READY);
        }
        lock(&self.queue).failure.take().map_or(Ok(()), Err)
    }

    pub(crate) const fn gpu(&self) -> usize {
        self.gpu
    }

    fn close(&self) {
        lock(&self.queue).closed = true;
        self.changed.notify_all();
    }

    fn work(&self) {
        loop {
            let queue = lock(&self.queue);
            let idle = |queue: &mut Queue| queue.jobs.is_empty() && !queue.closed;
            let mut queue = self.changed.wait_while(queue, idle).unwrap_or_else(PoisonError::into_inner);
            let Some(job) = queue.jobs.pop_front() else { return };
            drop(queue);
            let result = run(job);
            let mut queue = lock(&self.queue);
            queue.done += 1;
            queue.failure = queue.failure.or(result.err());
            drop(queue);
            self.changed.notify_all();
        }
    }
}

fn run(job: Job) -> Result<()> {
    catch_unwind(AssertUnwindSafe(job)).unwrap_or(Err(CuResult::ERROR_UNKNOWN))
}

/// Starts a worker that takes no signals: they belong to the program's own threads.
fn spawn_worker(stream: Arc<Stream>) -> Result<()> {
    let thread = std::thread::Builder::new().name("simcuda-stream".to_owned()).stack_size(WORKER_STACK_BYTES);
    with_signals_blocked(|| thread.spawn(move || stream.work()))
        .map(drop)
        .map_err(|_| CuResult::ERROR_OUT_OF_MEMORY)
}

fn with_signals_blocked<T>(action: impl FnOnce() -> T) -> T {
    // SAFETY: `sigset_t` is plain data for which all zero is a value; both sets are filled by the calls before they are read, and
    // the old mask is put back on the same thread. A new thread inherits the mask of the one that made it.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let result = action();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
        result
    }
}

/// All streams of this process.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    created: Mutex<HashMap<usize, Arc<Stream>>>,
    default: [OnceLock<Arc<Stream>>; GPUS_MAX],
}

impl Streams {
    pub(crate) fn create(&self, handle: usize, gpu: usize, blocking: bool) {
        lock(&self.created).insert(handle, Stream::new(gpu, blocking));
    }

    /// Forgets a stream; what was submitted still runs.
    pub(crate) fn destroy(&self, handle: usize) -> Result<()> {
        let stream = lock(&self.created).remove(&handle).ok_or(measured::UNKNOWN_HANDLE)?;
        stream.close();
        Ok(())
    }

    /// Forgets all streams of a GPU whose context ends.
    pub(crate) fn close_gpu(&self, gpu: usize) {
        lock(&self.created).retain(|_, stream| {
            if stream.gpu == gpu {
                stream.close();
            }
            stream.gpu != gpu
        });
    }

    /// The stream of a handle; 0 and the special values are the GPU's default stream.
    pub(crate) fn get(&self, handle: usize, gpu: usize) -> Result<Arc<Stream>> {
        if matches!(handle, 0 | STREAM_LEGACY | STREAM_PER_THREAD) {
            let default = self.default.get(gpu).ok_or(CuResult::ERROR_INVALID_CONTEXT)?;
            return Ok(Arc::clone(default.get_or_init(|| Stream::new(gpu, false))));
        }
        lock(&self.created).get(&handle).cloned().ok_or(measured::UNKNOWN_HANDLE)
    }

    /// Appends a job to a stream.
    pub(crate) fn submit(&self, handle: usize, gpu: usize, job: Job) -> Result<()> {
        let stream = self.get(handle, gpu)?;
        let before = self.before(&stream)?;
        if before.is_empty() {
            return stream.submit(job);
        }
        stream.submit(Box::new(move || {
            before.iter().for_each(|(stream, tail)| stream.wait(*tail));
            job()
        }))
    }

    /// Runs a job as a call without a stream does: in the default stream, on this thread if nothing is before it.
    pub(crate) fn submit_default(&self, gpu: usize, job: Job) -> Result<()> {
        let default = self.get(0, gpu)?;
        if default.tail().is_none() && self.before(&default)?.is_empty() {
            return run(job);
        }
        self.submit(0, gpu, job)
    }

    /// Runs a job as a synchronous copy does: when it returns, it has happened.
    pub(crate) fn run_default(&self, gpu: usize, job: Job) -> Result<()> {
        let default = self.get(0, gpu)?;
        for (stream, tail) in self.before(&default)? {
            stream.wait(tail);
        }
        default.synchronize()?;
        run(job)
    }

    /// Waits for everything on a GPU.
    pub(crate) fn synchronize_gpu(&self, gpu: usize) -> Result<()> {
        let mut of_gpu: Vec<_> =
            lock(&self.created).values().filter(|stream| stream.gpu == gpu).cloned().collect();
        of_gpu.push(self.get(0, gpu)?);
        of_gpu.iter().try_for_each(|stream| stream.synchronize())
    }

    /// What a job submitted to a stream now has to wait for in other streams.
    fn before(&self, stream: &Arc<Stream>) -> Result<Vec<(Arc<Stream>, u64)>> {
        let default = self.get(0, stream.gpu)?;
        let others: Vec<_> = if Arc::ptr_eq(stream, &default) {
            lock(&self.created)
                .values()
                .filter(|other| other.gpu == stream.gpu && other.blocking)
                .cloned()
                .collect()
        } else if stream.blocking {
            vec![default]
        } else {
            Vec::new()
        };
        Ok(others.into_iter().filter_map(|other| other.tail().map(|tail| (other, tail))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::{Job, Streams};
    use crate::error::CuResult;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Barrier};

    fn job(action: impl FnOnce() + Send + 'static) -> Job {
        Box::new(move || {
            action();
            Ok(())
        })
    }

    #[test]
    fn a_stream_keeps_order_and_reports_a_failure_once() {
        let streams = Streams::default();
        streams.create(100, 0, false);
        let (send, seen) = channel();
        for number in 0..10 {
            let send = send.clone();
            streams.submit(100, 0, job(move || send.send(number).unwrap())).unwrap();
        }
        streams.submit(100, 0, Box::new(|| Err(CuResult::ERROR_OUT_OF_MEMORY))).unwrap();
        let stream = streams.get(100, 0).unwrap();
        assert_eq!(stream.synchronize(), Err(CuResult::ERROR_OUT_OF_MEMORY));
        assert_eq!(stream.synchronize(), Ok(()));
        assert_eq!(seen.try_iter().collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn the_default_stream_waits_for_blocking_streams_only() {
        let streams = Streams::default();
        streams.create(100, 0, true);
        streams.create(200, 0, false);
        let gates = [Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2))];
        let count = Arc::new(AtomicU32::new(0));
        for (handle, gate) in [(100, &gates[0]), (200, &gates[1])] {
            let (gate, count) = (Arc::clone(gate), Arc::clone(&count));
            let pass = move || {
                gate.wait();
                count.fetch_add(1, Ordering::SeqCst);
            };
            streams.submit(handle, 0, job(pass)).unwrap();
        }
        let seen = Arc::new(AtomicU32::new(99));
        let (to, from) = (Arc::clone(&seen), Arc::clone(&count));
        streams
            .submit_default(0, job(move || to.store(from.load(Ordering::SeqCst), Ordering::SeqCst)))
            .unwrap();
        assert_eq!(streams.get(0, 0).unwrap().query(), Err(CuResult::ERROR_NOT_READY));
        gates[0].wait();
        streams.get(0, 0).unwrap().synchronize().unwrap();
        assert_eq!(seen.load(Ordering::SeqCst), 1);
        gates[1].wait();
        streams.synchronize_gpu(0).unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_panicking_job_is_an_error_and_not_the_end() {
        let streams = Streams::default();
        streams.create(100, 0, false);
        streams.submit(100, 0, job(|| panic!("a job that panics"))).unwrap();
        assert_eq!(streams.get(100, 0).unwrap().synchronize(), Err(CuResult::ERROR_UNKNOWN));
        assert_eq!(streams.destroy(100), Ok(()));
        assert_eq!(streams.destroy(100), Err(crate::measured::UNKNOWN_HANDLE));
    }
}
