//! Whether this replica should be asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use tokio::sync::watch;

use crate::serving::Serving;

/// Why this replica should not be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotReady {
    #[error("stopping")]
    Stopping,
    #[error("the certificate has expired")]
    Expired,
}

/// Whether this replica should be asked. Clones say the same.
#[derive(Debug, Clone)]
pub(crate) struct Ready {
    stopping: Arc<AtomicBool>,
    serving: watch::Receiver<Arc<Serving>>,
}

impl Ready {
    pub(crate) fn new(serving: watch::Receiver<Arc<Serving>>) -> Self {
        Self { stopping: Arc::default(), serving }
    }

    /// From now on it says that it is stopping.
    pub(crate) fn leave(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub(crate) fn state(&self) -> Result<(), NotReady> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err(NotReady::Stopping);
        }
        if self.serving.borrow().until() <= SystemTime::now() {
            return Err(NotReady::Expired);
        }
        Ok(())
    }
}
