//! A buffer of the pod that misbehaves, and what of it is lent to rough clients.

use gpu_handoff_e2e::app::App;
use gpu_handoff_e2e::node::PATIENCE;
use gpu_handoff_e2e::rough::{Client, Shared};
use gpu_handoff_protocol::message::{Carrier, Grant, Target};

use crate::scene::{Stage, fill, publish};

/// The name under which [`Stage::source`] is published.
pub(crate) const SOURCE: &str = "source";

impl Stage {
    /// An application of the pod that misbehaves, which itself behaves well: it has published [`SOURCE`].
    pub(crate) fn source(&self) -> anyhow::Result<App> {
        let mut app = self.connected(&self.rough)?;
        fill(&mut app)?;
        publish(&mut app, SOURCE)?;
        Ok(app)
    }

    /// A rough client of the misbehaving pod that holds a lease of [`SOURCE`], and so a descriptor of GPU memory.
    pub(crate) fn with_memory(&self) -> anyhow::Result<(Client, Grant)> {
        let mut client = Client::greeted(self.rough.socket())?;
        let grant = client.acquire(Target::Name(SOURCE.parse()?), PATIENCE)??;
        Ok((client, grant))
    }

    /// Does a deed with such a client and its descriptor, and lets both go.
    pub(crate) fn with_lent(
        &self,
        deed: impl FnOnce(Client, &Shared) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let source = self.source()?;
        let (client, grant) = self.with_memory()?;
        let Carrier::Descriptor(memory) = &grant.carrier else { anyhow::bail!("a legacy buffer") };
        deed(client, memory)?;
        drop(grant);
        source.finish()
    }
}
