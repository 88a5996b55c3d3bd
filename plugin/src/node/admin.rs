//! What the node tells whoever administers it (`gpu_handoff_admin`): snapshots of what others keep, put together when
//! somebody asks.
//!
//! | concern | file |
//! |---|---|
//! | the broker's processes so far | [`broker`] |
//! | the GPUs, the kernel, the folders: what does not change | [`still`] |
//! | what changes, as messages | [`words`] |

use std::collections::BTreeMap;
use std::time::SystemTime;

use gpu_handoff_admin::proto::{Daemon, Driver, Gpus, Kernel, StatusResponse};
use gpu_handoff_admin::{Door, Server};
use gpu_handoff_protocol::SlotId;
use tokio::sync::watch;
use tracing::error;

use self::broker::Broker;
use super::events::Refused;
use super::policy::Seen as Policy;
use super::slots::Seen as Slot;
use super::{kubelet, nri};
use crate::config::Config;

pub(super) mod broker;
pub(super) mod still;
mod words;

/// What is looked at when somebody asks.
#[derive(Debug)]
pub(super) struct Views {
    pub(super) daemon: Daemon,
    pub(super) gpus: Gpus,
    pub(super) driver: watch::Receiver<Driver>,
    pub(super) kernel: Kernel,
    pub(super) serving: watch::Receiver<bool>,
    pub(super) broker: watch::Receiver<Broker>,
    pub(super) slots: watch::Receiver<BTreeMap<SlotId, Slot>>,
    /// How many there may be.
    pub(super) most_slots: usize,
    pub(super) policy: watch::Receiver<Policy>,
    pub(super) kubelet: Option<kubelet::Views>,
    pub(super) runtime: Option<nri::Views>,
    /// What became of events; `None`: there is no API server.
    pub(super) events: Option<watch::Receiver<Option<Refused>>>,
}

impl Views {
    /// How everything is.
    fn status(&self) -> StatusResponse {
        let serving = *self.serving.borrow();
        StatusResponse {
            daemon: Some(self.daemon.clone()),
            broker: Some(words::broker(&self.broker.borrow(), serving)),
            kubelet: self.kubelet.as_ref().map(words::kubelet),
            runtime: self.runtime.as_ref().map(words::runtime),
            slots: Some(words::slots(&self.slots.borrow(), self.most_slots, SystemTime::now())),
            policy: Some(words::policy(&self.policy.borrow())),
            gpus: Some(Gpus { loaded: Some(self.driver.borrow().clone()), ..self.gpus.clone() }),
            kernel: Some(self.kernel.clone()),
            events: self.events.as_ref().map(|events| words::events(events.borrow().as_ref())),
        }
    }
}

/// Makes the socket.
///
/// # Errors
/// What the system refuses.
pub(super) fn open(config: &Config) -> anyhow::Result<Server> {
    let door = Door { own: rustix::process::geteuid().as_raw(), group: config.admin_group };
    Ok(Server::bind(&config.run_dir.join(gpu_handoff_admin::SOCKET), door)?)
}

/// Answers for as long as the node lives.
pub(super) async fn serve(server: Server, views: Views) {
    if let Err(error) = server.serve(move || views.status()).await {
        let error = anyhow::Error::from(error);
        error!(error = format!("{error:#}"), "the admin socket is not served any longer");
    }
}
