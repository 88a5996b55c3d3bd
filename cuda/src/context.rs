//! Contexts: our own hold on a device's primary context, and other people's contexts entered for one call.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use cudarc::driver::sys::{CUcontext, CUctx_st};

use crate::calls::call;
use crate::device::Device;
use crate::load::Driver;
use crate::process::Process;
use crate::status::{CudaError, note_drop};

/// A context that somebody else keeps alive: PyTorch's, the application's, or a [`PrimaryContext`] of ours.
///
/// If it has been destroyed meanwhile the driver says so when it is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContextRef(NonNull<CUctx_st>);

// SAFETY: a context handle is a name within the process; the driver allows any thread to make any context current,
// and we never look behind the pointer.
unsafe impl Send for ContextRef {}
// SAFETY: as above.
unsafe impl Sync for ContextRef {}

impl ContextRef {
    pub(crate) fn current(driver: Driver) -> Result<Option<ContextRef>, CudaError> {
        let mut context: CUcontext = ptr::null_mut();
        // SAFETY: the argument points at a handle that lives through the call.
        unsafe { call!(driver, cuCtxGetCurrent(&raw mut context)) }?;
        Ok(NonNull::new(context).map(ContextRef))
    }

    /// The current context, or `CUDA_ERROR_INVALID_CONTEXT` as the driver would say it.
    pub(crate) fn require(driver: Driver, call: &'static str) -> Result<ContextRef, CudaError> {
        let status = crate::status::Status::INVALID_CONTEXT;
        ContextRef::current(driver)?.ok_or(CudaError { call, status })
    }

    /// Makes this context current on this thread until the guard is dropped; then the one before is current again.
    pub fn enter(self, driver: Driver) -> Result<ContextGuard, CudaError> {
        // SAFETY: the handle came from the driver; a context that was destroyed since is refused with a code.
        unsafe { call!(driver, cuCtxPushCurrent_v2(self.0.as_ptr())) }?;
        Ok(ContextGuard { driver, thread: PhantomData })
    }

    /// Keeps this context alive if it is its device's primary one. `None`: it is another, which lives for as long as whoever
    /// made it lets it.
    pub fn hold(self, driver: Driver) -> Result<Option<PrimaryHold>, CudaError> {
        let device = self.device(driver)?;
        let (mut flags, mut active) = (0, 0);
        // SAFETY: the arguments point at integers that live through the call; the device came from the driver.
        unsafe {
            call!(driver, cuDevicePrimaryCtxGetState(device.ordinal(), &raw mut flags, &raw mut active))
        }?;
        // Where there is none yet it is not this one, and none is made.
        if active == 0 {
            return Ok(None);
        }
        let (held, primary) = PrimaryHold::retain(driver, device)?;
        Ok((primary == self).then_some(held))
    }

    /// The device that this context is on.
    pub fn device(self, driver: Driver) -> Result<Device, CudaError> {
        let _entered = self.enter(driver)?;
        Device::current(driver)
    }
}

/// Keeps a device's primary context alive, and makes it current nowhere.
#[derive(Debug)]
pub struct PrimaryHold {
    driver: Driver,
    device: Device,
    /// The process that holds it: in a forked child the driver is not to be called.
    process: Process,
}

impl PrimaryHold {
    fn retain(driver: Driver, device: Device) -> Result<(PrimaryHold, ContextRef), CudaError> {
        let mut context: CUcontext = ptr::null_mut();
        // SAFETY: the first argument points at a handle that lives through the call; the device came from the driver.
        unsafe { call!(driver, cuDevicePrimaryCtxRetain(&raw mut context, device.ordinal())) }?;
        let held = PrimaryHold { driver, device, process: Process::current() };
        let context = NonNull::new(context).ok_or(CudaError::invalid("cuDevicePrimaryCtxRetain"))?;
        Ok((held, ContextRef(context)))
    }
}

impl Drop for PrimaryHold {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        // SAFETY: this device's primary context was retained once for this, and is released once.
        note_drop(unsafe { call!(self.driver, cuDevicePrimaryCtxRelease_v2(self.device.ordinal())) });
    }
}

/// A context is current on this thread as long as this lives. Guards end in the reverse order of their making.
#[derive(Debug)]
#[must_use = "the context is current only while the guard lives"]
pub struct ContextGuard {
    driver: Driver,
    /// The stack of contexts belongs to the thread, so the guard stays on it.
    thread: PhantomData<*const ()>,
}

impl Drop for ContextGuard {
    fn drop(&mut self) {
        let mut popped: CUcontext = ptr::null_mut();
        // SAFETY: the argument points at a handle that lives through the call; this thread pushed a context before.
        note_drop(unsafe { call!(self.driver, cuCtxPopCurrent_v2(&raw mut popped)) });
    }
}

/// Our hold on a device's primary context.
#[derive(Debug)]
pub struct PrimaryContext {
    hold: PrimaryHold,
    context: ContextRef,
    /// What was current on the retaining thread before.
    before: Option<ContextRef>,
}

impl PrimaryContext {
    pub(crate) fn retain(driver: Driver, device: Device) -> Result<PrimaryContext, CudaError> {
        let before = ContextRef::current(driver)?;
        let (hold, context) = PrimaryHold::retain(driver, device)?;
        // Made before the next fallible call, so that what was current becomes so again if that fails.
        let held = PrimaryContext { hold, context, before };
        held.make_current()?;
        Ok(held)
    }

    /// Makes it current on this thread, in place of what was.
    pub fn make_current(&self) -> Result<(), CudaError> {
        // SAFETY: the handle came from the driver and is retained by us.
        unsafe { call!(self.hold.driver, cuCtxSetCurrent(self.context.0.as_ptr())) }
    }

    /// The context, to enter it on other threads.
    pub fn context(&self) -> ContextRef {
        self.context
    }

    /// The device it is on.
    pub fn device(&self) -> Device {
        self.hold.device
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        // In a forked child the driver is not to be called.
        if !self.hold.process.is_current() {
            return;
        }
        // A context that was current here before ours, the application's own, becomes current again. If the application
        // had made the same primary context current itself it stays so.
        let current = ContextRef::current(self.hold.driver);
        if current == Ok(Some(self.context)) && self.before != Some(self.context) {
            let before = self.before.map_or(ptr::null_mut(), |context| context.0.as_ptr());
            // SAFETY: null means "none"; anything else came from the driver.
            note_drop(unsafe { call!(self.hold.driver, cuCtxSetCurrent(before)) });
        }
    }
}
