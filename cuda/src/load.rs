//! Opening `libcuda.so.1`: once per process, with an error for everything that can be missing.

use std::fmt;
use std::sync::OnceLock;

use crate::calls::{Calls, call};
use crate::context::ContextRef;
use crate::device::Device;
use crate::leaving;
use crate::process::Process;
use crate::status::{CudaError, Status};
use gpu_handoff_protocol::DeviceUuid;

/// The library that is opened, by the name every driver installs.
pub const LIBRARY: &str = "libcuda.so.1";

/// The first CUDA version, and with it the first driver branch, that has a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Since {
    /// Major and minor version of the CUDA toolkit.
    pub cuda: (u32, u32),
    /// First Linux driver that supports it.
    pub driver: &'static str,
}

macro_rules! since {
    ($($name:ident = $major:literal, $minor:literal, $driver:literal;)+) => {
        impl Since {
            $(#[doc = concat!("CUDA ", stringify!($major), ".", stringify!($minor), ", driver ", $driver)]
            pub const $name: Since = Since { cuda: ($major, $minor), driver: $driver };)+
        }
    };
}

// From the table of toolkit and least driver versions in the vendor's toolkit release notes.
since! {
    CUDA_2_0 = 2, 0, "177";
    CUDA_2_2 = 2, 2, "185";
    CUDA_3_2 = 3, 2, "260";
    CUDA_4_0 = 4, 0, "270";
    CUDA_4_1 = 4, 1, "285";
    CUDA_6_0 = 6, 0, "331";
    CUDA_7_0 = 7, 0, "346";
    CUDA_8_0 = 8, 0, "375";
    CUDA_9_2 = 9, 2, "396";
    CUDA_10_0 = 10, 0, "410";
    CUDA_10_2 = 10, 2, "440";
    CUDA_11_0 = 11, 0, "450";
    CUDA_11_2 = 11, 2, "460";
    CUDA_11_4 = 11, 4, "470";
    CUDA_11_7 = 11, 7, "515";
}

impl Since {
    /// What this crate as a whole needs.
    pub const LEAST: Since = Since::CUDA_11_4;
}

/// `R470 (CUDA 11.4)`.
impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "R{} (CUDA {}.{})", self.driver, self.cuda.0, self.cuda.1)
    }
}

/// Why there is no driver to call.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The library is not there or cannot be opened.
    #[error("open {LIBRARY}: this process sees no usable NVIDIA driver (at least {})", Since::LEAST)]
    Library {
        /// What the dynamic linker said.
        #[source]
        source: libloading::Error,
    },
    /// The library lacks a function that is needed.
    #[error("look up {symbol} in {LIBRARY}: this driver is older than {since}, the first that has it")]
    Symbol {
        /// The function's name.
        symbol: &'static str,
        /// The first driver that has it.
        since: Since,
        /// What the dynamic linker said.
        #[source]
        source: libloading::Error,
    },
    /// The library is there and the driver finds no GPU.
    #[error("initialise {LIBRARY}: the driver shows this process no GPU")]
    NoDevice,
    /// The library is there and does not start.
    #[error("initialise {LIBRARY}")]
    Init(#[source] CudaError),
    /// This process was forked from one that had loaded the driver: CUDA does not work across a fork.
    #[error(
        "initialise {LIBRARY}: process {child} was forked from {parent}, which had initialised CUDA already"
    )]
    Forked {
        /// The process that initialised the driver.
        parent: u32,
        /// This process.
        child: u32,
    },
}

/// Looked up, possibly not initialised yet.
static LOADED: OnceLock<Calls> = OnceLock::new();
/// The process in which `cuInit` has succeeded and a device was seen. A failure is not remembered: a driver may still appear.
static READY: OnceLock<Process> = OnceLock::new();

/// Opens the library and looks its functions up, without calling any of them.
pub(crate) fn table() -> Result<&'static Calls, LoadError> {
    if let Some(calls) = LOADED.get() {
        check_fork()?;
        return Ok(calls);
    }
    // SAFETY: opening a library runs its initialisers. This is the vendor's driver (or the stand-in that the operator
    // put on the library path), whose initialisers every CUDA program of this process runs too.
    let library =
        unsafe { libloading::Library::new(LIBRARY) }.map_err(|source| LoadError::Library { source })?;
    let calls = Calls::look_up(&library)?;
    // The functions are used until the process ends, so the library is never closed.
    std::mem::forget(library);
    Ok(LOADED.get_or_init(|| calls))
}

/// A process that was forked before `cuInit` may call it itself.
fn check_fork() -> Result<(), LoadError> {
    match READY.get() {
        Some(parent) if !parent.is_current() => {
            Err(LoadError::Forked { parent: parent.pid(), child: std::process::id() })
        }
        _ => Ok(()),
    }
}

/// Proof that the driver is loaded and initialised: what every call of this crate starts from.
#[derive(Clone, Copy)]
pub struct Driver {
    calls: &'static Calls,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Driver")
    }
}

impl Driver {
    /// Opens `libcuda.so.1` and calls `cuInit`. The first success is kept for the life of the process; a failure is
    /// tried anew by the next call.
    pub fn load() -> Result<Driver, LoadError> {
        let driver = Driver { calls: table()? };
        if READY.get().is_some() {
            return Ok(driver);
        }
        // SAFETY: cuInit takes a flag word that must be 0, and may be called any number of times.
        match unsafe { call!(driver, cuInit(0)) } {
            Ok(()) => {}
            Err(CudaError { status: Status::NO_DEVICE, .. }) => return Err(LoadError::NoDevice),
            Err(error) => return Err(LoadError::Init(error)),
        }
        if driver.device_count().map_err(LoadError::Init)? == 0 {
            return Err(LoadError::NoDevice);
        }
        READY.get_or_init(|| {
            leaving::register();
            Process::current()
        });
        Ok(driver)
    }

    /// Version of the CUDA interface that the driver implements: 1000 × major + 10 × minor, so 13000 for CUDA 13.0.
    pub fn version(self) -> Result<i32, CudaError> {
        let mut version = 0;
        // SAFETY: the argument points at an integer that lives through the call.
        unsafe { call!(self, cuDriverGetVersion(&raw mut version)) }?;
        Ok(version)
    }

    /// Every GPU or MIG instance that the driver shows this process, in its order.
    pub fn devices(self) -> Result<Vec<Device>, CudaError> {
        (0..self.device_count()?).map(|ordinal| Device::at(self, ordinal)).collect()
    }

    /// The visible device of this UUID; `CUDA_ERROR_INVALID_DEVICE` if this process does not see it.
    pub fn device(self, uuid: DeviceUuid) -> Result<Device, CudaError> {
        let found = self.devices()?.into_iter().find(|device| device.uuid() == uuid);
        found.ok_or(CudaError { call: "cuDeviceGetUuid", status: Status::INVALID_DEVICE })
    }

    /// The visible device of this ordinal, as the driver numbers them in this process.
    pub fn device_at(self, ordinal: i32) -> Result<Device, CudaError> {
        Device::at(self, ordinal)
    }

    /// The context that is current on this thread, if any.
    pub fn current_context(self) -> Result<Option<ContextRef>, CudaError> {
        ContextRef::current(self)
    }

    /// The device of the context that is current on this thread.
    pub fn current_device(self) -> Result<Device, CudaError> {
        Device::current(self)
    }

    pub(crate) fn calls(self) -> &'static Calls {
        self.calls
    }

    /// Number of visible devices.
    fn device_count(self) -> Result<i32, CudaError> {
        let mut count = 0;
        // SAFETY: the argument points at an integer that lives through the call.
        unsafe { call!(self, cuDeviceGetCount(&raw mut count)) }?;
        Ok(count)
    }
}

/// Every function that this crate calls, with the least driver that has it and whether loading insists on it.
pub fn symbols() -> &'static [(&'static str, Since, bool)] {
    Calls::SYMBOLS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_number_not_by_text() {
        assert!(Since::CUDA_4_1 < Since::CUDA_11_0);
        assert_eq!(Since::CUDA_11_4.to_string(), "R470 (CUDA 11.4)");
    }
}
