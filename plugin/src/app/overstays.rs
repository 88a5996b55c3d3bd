//! Having the node see to those that lease what is over for longer than they may.

use gpu_handoff_policy::Orphans;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use crate::node::client::{AskError, NodeClient};
use crate::node::words::Command;
use crate::registry::Overstay;

/// Asks the node for each, one after the other, until the broker stops. What it does not do is asked for again, as long as the
/// registry names it.
pub(super) async fn run(
    node: NodeClient,
    mut named: mpsc::Receiver<Overstay>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let overstay = tokio::select! {
            _ = stop.wait_for(|stopping| *stopping) => return,
            Some(overstay) = named.recv() => overstay,
        };
        let Some(command) = command(&overstay) else { continue };
        let outcome = tokio::select! {
            _ = stop.wait_for(|stopping| *stopping) => return,
            outcome = node.ask(command) => outcome,
        };
        let Overstay { pod, process, buffer, action, .. } = overstay;
        let pid = process.pid;
        match outcome {
            Ok(_) => {
                info!(%pod, pid, %buffer, %action, "the pod leased a buffer whose time is over: done as the policy says")
            }
            Err(AskError::Gone) => {}
            Err(e) => {
                warn!(%pod, pid, %buffer, %action, error = %e, "the pod leases a buffer whose time is over, and it could not be done as the policy says")
            }
        }
    }
}

fn command(overstay: &Overstay) -> Option<Command> {
    let slot = overstay.slot.clone();
    let gpu_handoff_protocol::receipt::ProcessKey { pid, started, pidfs_inode } = overstay.process;
    match overstay.action {
        Orphans::Report => None,
        Orphans::Evict => Some(Command::Evict { slot }),
        Orphans::Kill => Some(Command::Kill { slot, pid, started, pidfs_inode }),
    }
}
