//! An application whose last hold on the client goes when the process ends, in a handler of its own: that comes after the driver's
//! end if it was registered before the driver was initialised.

use std::sync::{Mutex, PoisonError};

use gpu_handoff_client::Client;
use gpu_handoff_cuda::raw::at_exit;

static KEPT: Mutex<Option<Client>> = Mutex::new(None);

/// Keeps the client until then.
pub(super) fn keep(client: &Client) -> anyhow::Result<()> {
    let first = kept().replace(client.clone()).is_none();
    anyhow::ensure!(!first || at_exit(let_go), "no room for a handler");
    Ok(())
}

extern "C" fn let_go() {
    drop(kept().take());
}

fn kept() -> std::sync::MutexGuard<'static, Option<Client>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}
