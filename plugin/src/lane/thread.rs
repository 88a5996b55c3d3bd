//! A member's thread, from its start to its end.

use std::io;
use std::thread::JoinHandle;

use gpu_handoff_protocol::PodRef;
use gpu_handoff_protocol::socket::SeqListener;
use gpu_handoff_protocol::socket_tokio::AsyncSeqListener;
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;
use tracing::{Instrument, error, info_span};

use super::{LaneSpec, Shared, run};
use crate::owner::LaneHandle;
use crate::registry::MemberId;

/// A lane that runs.
#[derive(Debug)]
pub struct Lane {
    /// The member's pod.
    pub pod: PodRef,
    /// Its thread.
    pub thread: JoinHandle<()>,
}

/// Starts the member's thread, which serves its slot's socket until the member is to `leave`, and tells `ends` when it ends,
/// however it does.
///
/// # Errors
/// When the thread cannot be started.
pub fn start(
    spec: LaneSpec,
    listener: SeqListener,
    shared: Shared,
    leave: watch::Receiver<bool>,
    ends: mpsc::Sender<MemberId>,
) -> io::Result<Lane> {
    let queue = LaneHandle::default();
    shared.owner.add_lane(spec.member, queue.clone());
    let (pod, name) = (spec.pod.clone(), format!("lane-{}", spec.member.0));
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        let _end = End { member: spec.member, ends };
        let span = info_span!("lane", pod = %spec.pod, group = %spec.group);
        let served = tokio::runtime::Builder::new_current_thread().enable_all().build().and_then(|runtime| {
            let work = serve(spec, shared, listener, queue, leave).instrument(span);
            runtime.block_on(LocalSet::new().run_until(work))
        });
        if let Err(e) = served {
            error!(error = %e, "a lane cannot serve");
        }
    })?;
    Ok(Lane { pod, thread })
}

/// Says that the lane's thread has ended, however it did.
struct End {
    member: MemberId,
    ends: mpsc::Sender<MemberId>,
}

impl Drop for End {
    fn drop(&mut self) {
        // There is room for each member; a closed channel means that the daemon has stopped.
        let _ = self.ends.try_send(self.member);
    }
}

async fn serve(
    spec: LaneSpec,
    shared: Shared,
    listener: SeqListener,
    queue: LaneHandle,
    leave: watch::Receiver<bool>,
) -> io::Result<()> {
    let listener = AsyncSeqListener::new(listener)?;
    run(spec, shared, listener, queue, leave).await;
    Ok(())
}
