//! What a member's containers have of the product: a socket each, and nothing that they could change.

use anyhow::{Context as _, ensure};

use crate::ground::Ground;
use crate::plan::{APP, Gpu};
use crate::play::{Outcome, Scenario, scenario};
use crate::product;
use crate::program::agent;
use crate::scene::{Scene, Standard};

const POD: &str = "member";
const SIDECAR: &str = "gpu-handoff";
/// Where the sidecar has its pod's slot, and where the applications have their pod's socket.
const SLOT: &str = "/run/gpu-handoff-slot";
const DOOR: &str = "/run/gpu-handoff";
/// What nobody can do there.
const READ_ONLY: &str = "Read-only file system";

pub(crate) fn all() -> Vec<Scenario> {
    vec![scenario("a_members_containers_have_a_socket_each", Standard::Baseline, sockets)]
}

/// Root in its container: it is the mount that keeps it from writing.
async fn sockets(scene: &Scene<'_>) -> anyhow::Result<Outcome> {
    product::install(scene.ground).await?;
    scene.start(agent(POD, Gpu::Plugin).user(0).starts_anyway().member("mounts")).await?;
    let application = View::of(scene, APP).await?;
    application.has_but(DOOR, "app.sock").await.context("the application")?;
    ensure!(
        scene.ground.inside(&["test", "-e", &application.path(SLOT)]).await.is_err(),
        "it has the slot, too"
    );
    for deed in [&["touch", "/run/gpu-handoff/more"][..], &["rm", "-f", "/run/gpu-handoff/app.sock"]] {
        ensure!(scene.exec(POD, deed).await.is_err(), "the application has done {deed:?}");
    }
    let sidecar = View::of(scene, SIDECAR).await?;
    sidecar.has_but(SLOT, "slot.sock").await.context("the sidecar")?;
    Ok(Outcome::Done)
}

/// A container's files, as the node's root has them by the container's own mounts.
struct View<'g> {
    ground: &'g Ground,
    pid: String,
}

impl<'g> View<'g> {
    async fn of(scene: &Scene<'g>, container: &str) -> anyhow::Result<Self> {
        let pid = scene.on_the_node(POD, container).await?.pid;
        Ok(Self { ground: scene.ground, pid })
    }

    fn path(&self, inside: &str) -> String {
        format!("/proc/{}/root{inside}", self.pid)
    }

    /// There is this socket, and nothing else; and also who may do all cannot write there.
    async fn has_but(&self, folder: &str, socket: &str) -> anyhow::Result<()> {
        let (at, more) = (self.path(folder), self.path(&format!("{folder}/more")));
        let there = self.ground.inside(&["ls", "-A", &at]).await?;
        ensure!(there.trim() == socket, "{folder} has {there}");
        let socket = format!("{at}/{socket}");
        self.ground.inside(&["test", "-S", &socket]).await.context("it is no socket")?;
        for deed in [&["touch", &more][..], &["rm", "-f", &socket], &["chmod", "777", &at]] {
            let refused =
                self.ground.inside(deed).await.err().with_context(|| format!("{deed:?} was done"))?;
            ensure!(format!("{refused:#}").contains(READ_ONLY), "{deed:?}: {refused:#}");
        }
        Ok(())
    }
}
