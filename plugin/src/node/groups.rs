//! What the members of a group share beside buffers: a `/dev/shm`, an IPC namespace. A thread of its own has all of it, as
//! going through files takes its time; the node's own task asks, and waits for the answer alone.
//!
//! | concern | file |
//! |---|---|
//! | which groups share what, and who of them is here | [`shares`] (pure) |
//! | where it is mounted | [`mounts`] |
//! | a `/dev/shm` | `shm` |
//! | an IPC namespace | `ipc` |
//! | looking after one group's things | [`tracked`] |
//! | files that are made, in its `/dev/shm` and as message queues | [`files`] |
//! | what else is in its namespace | [`things`] |
//! | who made what, and whose makers are gone | [`ledger`] (pure) |
//! | removing what members have left | [`sweep`], [`walk`] |
//! | which of it others hold | [`holders`] |
//! | the thread | [`keeper`] |

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use gpu_handoff_policy::Policy;
use gpu_handoff_protocol::{GroupKey, PodUid};
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::{oneshot, watch};
use tracing::error;

use crate::limits;

mod files;
mod holders;
mod ipc;
mod keeper;
mod ledger;
mod mounts;
mod shares;
mod shm;
mod sweep;
mod things;
mod tracked;
mod walk;

pub(in crate::node) use holders::Places;
use keeper::{Ask, Keeper};
use mounts::Kernel;
use shares::Shares;
pub(in crate::node) use shares::{EnterError, Shared, Thing, Wish};

/// A member, as it is on record.
pub(in crate::node) type OnRecord = (GroupKey, PodUid, Wish);

/// The thread has ended, though nobody had it do so.
#[derive(Debug, thiserror::Error)]
#[error("what looks after what groups share has broken off")]
pub(in crate::node) struct Ended;

/// Asks the thread. Dropped, it ends the thread; what is mounted stays.
#[derive(Debug)]
pub(in crate::node) struct Groups {
    asks: Option<SyncSender<Ask>>,
    wake: Arc<OwnedFd>,
    /// How often what is shared has become something else without being asked for.
    changes: watch::Receiver<u64>,
    thread: Option<JoinHandle<()>>,
}

impl Groups {
    /// Has what the members on record share in a folder of the run directory, and looks after it.
    pub(in crate::node) fn begin(
        run_dir: &Path,
        members: Vec<OnRecord>,
        policy: &Policy,
        places: Places,
    ) -> io::Result<Self> {
        let kernel = Kernel::open(run_dir.join("groups"))?;
        let is_seen_outside = kernel.is_seen_outside()?;
        let shares = Shares::new(kernel, memory(), members, policy)?;
        let (asks, asked): (_, Receiver<Ask>) = sync_channel(limits::GROUP_ASKS);
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (told, changes) = watch::channel(0);
        let keeper = Keeper::new(shares, policy.clone(), places, asked, Arc::clone(&wake), told)
            .seen_outside(is_seen_outside);
        let thread = std::thread::Builder::new().name("groups".to_owned()).spawn(move || keeper.run())?;
        Ok(Self { asks: Some(asks), wake, changes, thread: Some(thread) })
    }

    /// Has a member share what it asks for, from before its first container is created.
    pub(in crate::node) async fn enter(
        &self,
        policy: Arc<Policy>,
        member: OnRecord,
    ) -> Result<Shared, EnterError> {
        let (asker, answer) = oneshot::channel();
        self.ask(Ask::Enter(policy, member, asker));
        answer.await.unwrap_or(Err(EnterError::Ending))
    }

    /// A member's volume is gone, and with it its containers. Nobody has to wait until nothing is left of what it shared,
    /// which takes seconds of a million files: whoever asks for something afterwards finds it done.
    pub(in crate::node) fn leave(&self, group: GroupKey, member: PodUid) -> oneshot::Receiver<()> {
        let (asker, answer) = oneshot::channel();
        self.ask(Ask::Leave(group, member, asker));
        answer
    }

    /// What a member shares now.
    pub(in crate::node) async fn shared(&self, group: GroupKey, wish: Wish) -> Shared {
        let (asker, answer) = oneshot::channel();
        self.ask(Ask::Shared(group, wish, asker));
        answer.await.unwrap_or_default()
    }

    /// Comes back when what is shared has become something else without being asked for.
    ///
    /// # Errors
    /// When the thread has ended.
    pub(in crate::node) async fn changed(&mut self) -> Result<(), Ended> {
        self.changes.changed().await.map_err(|_| Ended)
    }

    fn ask(&self, ask: Ask) {
        // Each member leaves once, and whoever asks for something else waits for the answer, so that there is room.
        if self.asks.as_ref().is_none_or(|asks| asks.try_send(ask).is_err()) {
            error!("the thread that looks after what groups share does not take what it is asked");
        }
        let _full_is_awake = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        drop(self.asks.take());
        let _full_is_awake = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            error!("the thread that looked after what groups share broke off");
        }
    }
}

/// The node's memory, in bytes.
fn memory() -> u64 {
    let info = rustix::system::sysinfo();
    u64::from(info.mem_unit).saturating_mul(info.totalram)
}

#[cfg(test)]
pub(in crate::node) mod testing;
#[cfg(test)]
mod tests;
