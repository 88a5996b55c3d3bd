//! The cluster that the scenarios run on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use tokio::runtime::Runtime;
use tokio::sync::{RwLock, Semaphore};
use tokio::time::Instant;

/// The cluster's folder, as `e2e/cluster/up.sh` made it: `kubeconfig`, `log/`, and `var-lib/`, which is the node's `/var/lib`.
const FOLDER: &str = "GPU_HANDOFF_CLUSTER";

/// Where its scripts are, if not in the sources of this program.
const SCRIPTS: &str = "GPU_HANDOFF_CLUSTER_SCRIPTS";

/// How long one request to the API may take.
const REQUEST: Duration = Duration::from_secs(20);

/// How long a daemon of the node, or all of it, may take to start or to stop.
const DAEMON: Duration = Duration::from_secs(60);

/// How long the node's GPUs may take to be told of.
const TOLD: Duration = Duration::from_secs(20);

/// How long others work between two looks at what is only listed.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// A cluster, or why there is none.
pub(crate) type Found = Result<Arc<Ground>, String>;

/// A running cluster.
pub(crate) struct Ground {
    pub(crate) client: Client,
    pub(crate) folder: PathBuf,
    runtime: Runtime,
    gpus: usize,
    /// A seat for each GPU that a claim may have, so that no scenario's pods wait for another's end.
    pub(crate) unclaimed: Arc<Semaphore>,
    /// Who has it alone does to the node what others would not bear.
    pub(crate) floor: RwLock<()>,
}

impl Ground {
    /// Connects to the cluster that the environment names; no error if it names none.
    pub(crate) fn find() -> anyhow::Result<Found> {
        let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
            let who = if rustix::process::geteuid().is_root() { "" } else { ", as root" };
            return Ok(Err(format!("{FOLDER} names no cluster: e2e/cluster/run.sh starts one{who}")));
        };
        let runtime = Runtime::new().context("start a runtime")?;
        has_the_images_of_now(&folder)?;
        let (client, gpus) = runtime.block_on(async {
            let connected = tokio::time::timeout(REQUEST, connect(&folder.join("kubeconfig"))).await;
            let client = connected.with_context(|| format!("no answer within {REQUEST:?}"))??;
            anyhow::Ok((client.clone(), count_gpus(client).await?))
        })?;
        let unclaimed = Arc::new(Semaphore::new(gpus));
        Ok(Ok(Arc::new(Self { client, folder, runtime, gpus, unclaimed, floor: RwLock::default() })))
    }

    /// Whether the node's GPUs are simulated: unless who started the cluster says that they are real.
    pub(crate) fn is_simulated(&self) -> bool {
        std::env::var("GPU_HANDOFF_E2E_GPUS").as_deref() != Ok("real")
    }

    /// How many GPUs the node has.
    pub(crate) fn gpus(&self) -> usize {
        self.gpus
    }

    /// Whether the node's container runtime can give a pod a user namespace.
    pub(crate) async fn makes_user_namespaces(&self) -> anyhow::Result<bool> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let nodes = nodes.list(&ListParams::default()).await?;
        let handlers = nodes.items.iter().filter_map(|node| node.status.as_ref()?.runtime_handlers.as_ref());
        Ok(handlers
            .flatten()
            .any(|one| one.features.as_ref().is_some_and(|features| features.user_namespaces == Some(true))))
    }

    /// What the node is called.
    pub(crate) async fn node(&self) -> anyhow::Result<String> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let nodes = nodes.list(&ListParams::default()).await?;
        nodes.items.into_iter().find_map(|node| node.metadata.name).context("no node")
    }

    /// What the node's kubelet counts, as Prometheus reads it.
    pub(crate) async fn kubelet_metrics(&self) -> anyhow::Result<String> {
        let path = format!("/api/v1/nodes/{}/proxy/metrics", self.node().await?);
        Ok(self.client.request_text(http::Request::get(path).body(Vec::new())?).await?)
    }

    /// Where the cluster's scripts are, if this machine has them.
    pub(crate) fn scripts(&self) -> Option<PathBuf> {
        let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster");
        let scripts = std::env::var_os(SCRIPTS).map_or_else(here, PathBuf::from);
        scripts.join("in.sh").exists().then_some(scripts)
    }

    /// Starts or stops a daemon of the node: `start NAME [ARGUMENT...]`, `stop NAME`.
    pub(crate) async fn daemon(&self, what: &[&str]) -> anyhow::Result<()> {
        self.inside(&[&["daemons.sh"], what].concat()).await.map(drop)
    }

    /// Waits until the API server answers.
    pub(crate) async fn answers(&self) -> anyhow::Result<()> {
        let (kubeconfig, time) = (self.folder.join("kubeconfig"), format!("{}s", DAEMON.as_secs()));
        let kubeconfig = kubeconfig.to_str().context("a folder that is no text")?;
        let wait = ["await-cluster", "--kubeconfig", kubeconfig, "--timeout", &time];
        self.inside(&wait).await.map(drop)
    }

    /// Runs a command inside the node, and gives what it writes.
    pub(crate) async fn inside(&self, what: &[&str]) -> anyhow::Result<String> {
        let cluster = self.folder.file_name().context("the cluster's folder has no name")?;
        let script = self.scripts().context("this machine has no e2e/cluster/in.sh")?.join("in.sh");
        let mut command = tokio::process::Command::new(&script);
        command.arg(cluster).args(what).kill_on_drop(true);
        run(&script, command).await.with_context(|| what.join(" "))
    }

    /// All of the node ends at once, as when the power fails, and it starts again; its API is there afterwards.
    pub(crate) async fn reboot(&self) -> anyhow::Result<()> {
        self.script("down.sh", &["--keep"]).await?;
        self.script("up.sh", &[]).await
    }

    async fn script(&self, name: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let cluster = self.folder.file_name().context("the cluster's folder has no name")?;
        let script = self.scripts().context("this machine has no e2e/cluster/in.sh")?.join(name);
        let mut command = tokio::process::Command::new(&script);
        command.args(arguments).arg(cluster).kill_on_drop(true);
        run(&script, command).await.map(drop)
    }

    /// Somebody else at the API, by a token.
    pub(crate) async fn as_whoever_has(&self, token: &str) -> anyhow::Result<Client> {
        let mut config = configuration(&self.folder.join("kubeconfig")).await?;
        config.auth_info = serde_json::from_value(serde_json::json!({ "token": token }))?;
        Ok(Client::try_from(config)?)
    }

    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }
}

async fn run(script: &Path, mut command: tokio::process::Command) -> anyhow::Result<String> {
    let ended = tokio::time::timeout(DAEMON, command.output()).await;
    let ended = ended.map_err(|_| anyhow::anyhow!("{} took longer than {DAEMON:?}", script.display()))?;
    let output = ended.with_context(|| format!("run {}", script.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{}: {said}", script.display());
    Ok(String::from_utf8(output.stdout)?)
}

/// Pods run the images that the node has, however old; a test of newer ones would prove nothing.
fn has_the_images_of_now(folder: &Path) -> anyhow::Result<()> {
    let id = |file| std::fs::read_to_string(folder.join(file)).ok();
    let (has, now) = (id("imported"), id("images/id"));
    anyhow::ensure!(
        now.is_none() || has == now,
        "the images were made anew since the node took them: e2e/cluster/in.sh {} daemons.sh reload",
        folder.file_name().unwrap_or_default().display()
    );
    Ok(())
}

/// The DRA driver tells its GPUs soon after the node is ready.
async fn count_gpus(client: Client) -> anyhow::Result<usize> {
    let slices: Api<ResourceSlice> = Api::all(client);
    look_until(TOLD, "a GPU is told of", async || {
        let list = slices.list(&ListParams::default()).await.context("list the GPUs")?;
        let devices = list.items.iter().filter_map(|slice| slice.spec.devices.as_ref());
        let gpus = devices.map(Vec::len).sum();
        Ok((gpus > 0).then_some(gpus))
    })
    .await
}

/// Looks again and again at what cannot be watched, until it gives something.
pub(crate) async fn look_until<T>(
    time: Duration,
    what: &str,
    look: impl AsyncFn() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + time;
    loop {
        let looked = tokio::time::timeout_at(deadline, look()).await;
        if let Some(found) = looked.unwrap_or(Ok(None))? {
            return Ok(found);
        }
        anyhow::ensure!(Instant::now() < deadline, "waited {time:?} in vain until {what}");
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
}

async fn configuration(kubeconfig: &Path) -> anyhow::Result<Config> {
    let read = Kubeconfig::read_from(kubeconfig).with_context(|| format!("read {}", kubeconfig.display()))?;
    let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    config.connect_timeout = Some(REQUEST);
    Ok(config)
}

async fn connect(kubeconfig: &Path) -> anyhow::Result<Client> {
    let config = configuration(kubeconfig).await?;
    let client = Client::try_from(config)?;
    client.apiserver_version().await.context("ask the API for its version")?;
    Ok(client)
}
