//! Primary contexts and each thread's stack of current ones.
//!
//! A context is only a name here: the value of a `CUcontext` encodes its GPU and how often that GPU's primary context was
//! made anew, so a stale one is recognised.

use std::cell::RefCell;

use crate::config::GPUS_MAX;
use crate::error::{CuResult, Result};
use crate::measured;

const CONTEXT_TAG: usize = 0x5eed_0000_0000;
const GPU_SHIFT: u32 = 24;
const GENERATION_MASK: usize = (1 << GPU_SHIFT) - 1;

thread_local! {
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The primary context of each GPU.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    primary: [Primary; GPUS_MAX],
}

#[derive(Clone, Copy, Debug, Default)]
struct Primary {
    holders: u32,
    generation: usize,
    flags: u32,
}

impl Contexts {
    pub(crate) fn retain(&mut self, gpu: usize) -> Result<usize> {
        let primary = self.primary(gpu)?;
        if primary.holders == 0 {
            primary.generation = (primary.generation + 1) & GENERATION_MASK;
        }
        primary.holders += 1;
        Ok(CONTEXT_TAG | gpu << GPU_SHIFT | primary.generation)
    }

    /// Returns whether this was the last holder.
    pub(crate) fn release(&mut self, gpu: usize) -> Result<bool> {
        let primary = self.primary(gpu)?;
        primary.holders = primary.holders.checked_sub(1).ok_or(CuResult::ERROR_INVALID_CONTEXT)?;
        Ok(primary.holders == 0)
    }

    /// Destroys a primary context whoever holds it.
    pub(crate) fn reset(&mut self, gpu: usize) -> Result<()> {
        self.primary(gpu)?.holders = 0;
        Ok(())
    }

    pub(crate) fn set_flags(&mut self, gpu: usize, flags: u32) -> Result<()> {
        self.primary(gpu)?.flags = flags;
        Ok(())
    }

    /// Flags and whether the context exists.
    pub(crate) fn state(&mut self, gpu: usize) -> Result<(u32, bool)> {
        self.primary(gpu).map(|primary| (primary.flags, primary.holders > 0))
    }

    /// The value of a GPU's primary context, if it exists.
    pub(crate) fn of_gpu(&self, gpu: usize) -> Option<usize> {
        let primary = self.primary.get(gpu).filter(|primary| primary.holders > 0)?;
        Some(CONTEXT_TAG | gpu << GPU_SHIFT | primary.generation)
    }

    /// The GPU of a context that lives.
    pub(crate) fn gpu_of(&self, context: usize) -> Result<usize> {
        let (tag, gpu) = (context >> 32 << 32, (context & 0xffff_ffff) >> GPU_SHIFT);
        let primary =
            self.primary.get(gpu).filter(|_| tag == CONTEXT_TAG).ok_or(CuResult::ERROR_INVALID_CONTEXT)?;
        let lives = primary.holders > 0 && primary.generation == context & GENERATION_MASK;
        lives.then_some(gpu).ok_or(measured::DESTROYED_CONTEXT)
    }

    /// Whether a context may be made current: it was made once, whether it lives or not.
    pub(crate) fn check_known(&self, context: usize) -> Result<()> {
        match self.gpu_of(context) {
            Ok(_) | Err(measured::DESTROYED_CONTEXT) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn primary(&mut self, gpu: usize) -> Result<&mut Primary> {
        self.primary.get_mut(gpu).ok_or(CuResult::ERROR_INVALID_DEVICE)
    }
}

/// The calling thread's current context, 0 for none.
pub(crate) fn current() -> usize {
    CURRENT.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// Replaces the top of the thread's stack; 0 takes it away.
pub(crate) fn set_current(context: usize) {
    CURRENT.with_borrow_mut(|stack| {
        stack.pop();
        if context != 0 {
            stack.push(context);
        }
    });
}

pub(crate) fn push(context: usize) {
    CURRENT.with_borrow_mut(|stack| stack.push(context));
}

pub(crate) fn pop() -> Result<usize> {
    CURRENT.with_borrow_mut(Vec::pop).ok_or(CuResult::ERROR_INVALID_CONTEXT)
}
