//! The state of the simulated driver in this process: made by `cuInit`, unusable after `fork`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::address_space::AddressSpace;
use crate::config::Config;
use crate::context::{self, Contexts};
use crate::device::{Inventory, NamedTwice};
use crate::error::{CuResult, Result};
use crate::event::Event;
use crate::faults;
use crate::header::{Header, Kind};
use crate::ledger::{Armed, Ledger};
use crate::legacy::Blocks;
use crate::machine::Machine;
use crate::measured;
use crate::pool::Pool;
use crate::process::ProcessRecord;
use crate::rendezvous::Rendezvous;
use crate::store::{Store, io};
use crate::stream::Streams;
use crate::tree;
use crate::vmm::Handles;

static DRIVER: OnceLock<Driver> = OnceLock::new();
static INITIALIZING: Mutex<()> = Mutex::new(());
static FORKED: AtomicBool = AtomicBool::new(false);

/// What `cuInit` makes.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) store: Arc<Store>,
    pub(crate) devices: Inventory,
    pub(crate) process: ProcessRecord,
    pub(crate) streams: Streams,
    pub(crate) armed: Armed,
    state: Mutex<State>,
    objects: AtomicU32,
    generations: AtomicU32,
    ids: AtomicU64,
}

/// What calls change, under one lock. Nothing that waits for a stream may hold it.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) contexts: Contexts,
    pub(crate) space: AddressSpace,
    pub(crate) blocks: Blocks,
    pub(crate) handles: Handles,
    pub(crate) events: HashMap<usize, Arc<Event>>,
    pub(crate) pools: HashMap<usize, Pool>,
}

/// Takes a lock whose protected state is valid at every step, so a panic elsewhere does not spoil it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `cuInit`.
pub(crate) fn initialize() -> Result<()> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(measured::FORKED_CHILD);
    }
    let _one_at_a_time = lock(&INITIALIZING);
    if DRIVER.get().is_none() {
        let config = Config::from_env().ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let driver = Driver::new(&config)?;
        watch_for_fork();
        tidy_at_exit();
        // The lock makes this the only writer.
        let _first = DRIVER.set(driver);
    }
    Ok(())
}

/// The driver, if `cuInit` was called in this very process.
pub(crate) fn driver() -> Result<&'static Driver> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(measured::FORKED_CHILD);
    }
    DRIVER.get().ok_or(CuResult::ERROR_NOT_INITIALIZED)
}

/// The machine, which its first process makes, and the faults that are armed in it.
fn look_around(dir: &Rendezvous, config: &Config) -> std::io::Result<(Machine, Armed)> {
    let ledger = Ledger::lock(dir.root(), dir.file_mode())?;
    ledger.save()?;
    let machine = tree::machine(dir, |machine| machine.with(config))?;
    Ok((machine, ledger.armed()?))
}

fn watch_for_fork() {
    extern "C" fn in_child() {
        FORKED.store(true, Ordering::Relaxed);
    }
    // SAFETY: the handler only stores to an atomic, which is allowed in a child of a threaded process, and the library is
    // never unloaded (build.rs), so its address stays valid.
    let status = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    debug_assert_eq!(status, 0, "registering a fork handler fails only without memory");
}

/// Event files go when their process ends in order; those of a killed process stay, as nobody is left to take them away.
fn tidy_at_exit() {
    extern "C" fn tidy() {
        // A thread that is inside a call keeps its files rather than making the exit wait for it.
        if let Ok(driver) = driver()
            && let Ok(state) = driver.state.try_lock()
        {
            state.events.values().for_each(|event| event.remove_file());
        }
    }
    // SAFETY: the handler touches only statics that are never dropped, and the library is never unloaded (build.rs).
    let status = unsafe { libc::atexit(tidy) };
    debug_assert_eq!(status, 0, "registering an exit handler fails only without memory");
}

impl Driver {
    fn new(config: &Config) -> Result<Self> {
        let dir = Rendezvous::create(&config.dir, config.default_dir).map_err(|_| measured::NO_DIRECTORY)?;
        let (machine, armed) = look_around(&dir, config).map_err(|_| measured::NO_DIRECTORY)?;
        let devices = Inventory::new(&dir, machine, config.visible.as_deref(), faults::is_lost)
            .map_err(|NamedTwice| measured::NAMED_TWICE)?;
        if devices.count() == 0 {
            return Err(measured::NO_VISIBLE_GPU);
        }
        let store = Arc::new(Store::new(dir, devices.capacities()));
        let process = ProcessRecord::register(&store).map_err(|_| measured::NO_DIRECTORY)?;
        let state = State {
            contexts: Contexts::default(),
            space: AddressSpace::new(process.client),
            blocks: Blocks::default(),
            handles: Handles::default(),
            events: HashMap::new(),
            pools: HashMap::new(),
        };
        Ok(Self {
            store,
            devices,
            process,
            streams: Streams::default(),
            armed,
            state: Mutex::new(state),
            objects: AtomicU32::new(1),
            generations: AtomicU32::new(1),
            ids: AtomicU64::new(1),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The GPU of the calling thread's context.
    pub(crate) fn current_gpu(&self) -> Result<usize> {
        match context::current() {
            0 => Err(measured::NO_CONTEXT),
            current => self.state().contexts.gpu_of(current),
        }
    }

    /// A number unique in this process, never 0.
    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// A handle value for an object that the caller sees as a pointer: unique, aligned, never dereferenced.
    pub(crate) fn next_handle(&self) -> usize {
        usize::try_from(self.next_id())
            .unwrap_or(usize::MAX >> 12)
            .saturating_mul(0x40)
            .saturating_add(0x5e00_0000)
    }

    /// The small counter in legacy handles that tells allocations of one process apart.
    pub(crate) fn next_generation(&self) -> u32 {
        self.generations.fetch_add(1, Ordering::Relaxed)
    }

    /// The header of a new allocation of this process.
    pub(crate) fn new_header(&self, kind: Kind, device: usize, bytes: u64, handle_types: u32) -> Header {
        let object = self.objects.fetch_add(1, Ordering::Relaxed);
        let (client, creator) = (self.process.client, self.process.creator);
        Header { kind, device, bytes, handle_types, client, object, pool: (0, 0), creator }
    }

    /// Bytes free and in total on a GPU.
    pub(crate) fn memory_info(&self, gpu: usize) -> Result<(u64, u64)> {
        let total = self.store.capacity(gpu);
        let used = self.store.used(gpu).map_err(io)?;
        Ok((total.saturating_sub(used), total))
    }

    /// Ends a holder's use of a primary context; with the last one goes what the context owned.
    pub(crate) fn release_primary(&self, gpu: usize) -> Result<()> {
        let last = self.state().contexts.release(gpu)?;
        if last {
            self.destroy_context(gpu);
        }
        Ok(())
    }

    /// Drops what belongs to a GPU's context: its allocations and imports, streams and events. VMM memory belongs to
    /// no context.
    pub(crate) fn destroy_context(&self, gpu: usize) {
        self.streams.close_gpu(gpu);
        let mut state = self.state();
        state.events.retain(|_, event| event.gpu() != gpu);
        state.drop_legacy(gpu);
    }
}
