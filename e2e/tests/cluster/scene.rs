//! A scenario's own namespace, and the folder that its pods share.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{
    HostPathVolumeSource, Namespace, ObjectReference, PersistentVolume, PersistentVolumeClaim,
    PersistentVolumeClaimSpec, PersistentVolumeSpec, ServiceAccount, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::runtime::wait::{Condition, await_condition, conditions};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use tokio::sync::OwnedSemaphorePermit;

use crate::ground::Ground;

/// How long the cluster may take for what it does for every namespace and volume.
const PREPARED: Duration = Duration::from_secs(30);

/// The claim of the folder that all pods of a scenario share, and where they have it.
pub(crate) const SHARED: &str = "shared";
pub(crate) const SHARED_AT: &str = "/shared";

/// Where those folders are on the node, below `/var/lib`.
const FOLDERS: &str = "scenes";

/// The API's answer where there is no such thing.
const NOT_FOUND: u16 = 404;

/// What a namespace admits: the pod security standards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standard {
    /// No privilege at all.
    Restricted,
    /// What pods have by default.
    Baseline,
    /// Also the node's own namespaces.
    Privileged,
}

impl Standard {
    fn label(self) -> &'static str {
        match self {
            Self::Restricted => "restricted",
            Self::Baseline => "baseline",
            Self::Privileged => "privileged",
        }
    }
}

pub(crate) struct Scene<'g> {
    pub(crate) ground: &'g Ground,
    pub(crate) namespace: String,
    pub(crate) standard: Standard,
    folder: PathBuf,
    /// For the GPUs that its claims may have.
    pub(crate) seats: Cell<Option<OwnedSemaphorePermit>>,
}

impl<'g> Scene<'g> {
    /// Makes the namespace.
    pub(crate) async fn open(ground: &'g Ground, name: &str, standard: Standard) -> anyhow::Result<Self> {
        let namespaces: Api<Namespace> = Api::all(ground.client.clone());
        let enforce = ("pod-security.kubernetes.io/enforce".to_owned(), standard.label().to_owned());
        let short: String = name.chars().take(20).map(|c| if c == '_' { '-' } else { c }).collect();
        let made = Namespace {
            metadata: ObjectMeta {
                generate_name: Some(format!("{short}-")),
                labels: Some(BTreeMap::from([enforce])),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        let made = namespaces.create(&PostParams::default(), &made).await.context("make a namespace")?;
        let namespace = made.metadata.name.context("a namespace without a name")?;
        let folder = ground.folder.join("var-lib").join(FOLDERS).join(&namespace);
        Ok(Self { ground, namespace, standard, folder, seats: Cell::default() })
    }

    /// Makes the shared folder, and waits until pods may be made.
    pub(crate) async fn prepare(&self) -> anyhow::Result<()> {
        self.share_folder().await.context("make a shared folder")?;
        // Pods that come before it are refused.
        let account = conditions::is_created::<ServiceAccount>();
        await_in(&self.all(), "default", "the namespace has an account", PREPARED, account).await.map(drop)
    }

    /// Objects of one kind in the namespace.
    pub(crate) fn all<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.ground.client.clone(), &self.namespace)
    }

    pub(crate) fn client(&self) -> Client {
        self.ground.client.clone()
    }

    /// The shared folder, as the test sees it.
    pub(crate) fn shared(&self) -> &Path {
        &self.folder
    }

    /// A folder of the node, claimed as a volume: that is what also a restricted pod may share with another.
    async fn share_folder(&self) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        // Whatever their users are.
        std::fs::set_permissions(&self.folder, std::fs::Permissions::from_mode(0o1777))?;
        let volumes: Api<PersistentVolume> = Api::all(self.client());
        volumes.create(&PostParams::default(), &self.volume()).await?;
        let claims: Api<PersistentVolumeClaim> = self.all();
        claims.create(&PostParams::default(), &self.volume_claim()).await?;
        let is_bound = |claim: Option<&PersistentVolumeClaim>| {
            let phase = claim.and_then(|claim| claim.status.as_ref()?.phase.as_deref());
            phase == Some("Bound")
        };
        await_in(&claims, SHARED, "the shared folder is bound", PREPARED, is_bound).await.map(drop)
    }

    fn volume(&self) -> PersistentVolume {
        let claim = ObjectReference {
            namespace: Some(self.namespace.clone()),
            name: Some(SHARED.to_owned()),
            ..ObjectReference::default()
        };
        let path = format!("/var/lib/{FOLDERS}/{}", self.namespace);
        PersistentVolume {
            metadata: ObjectMeta { name: Some(self.namespace.clone()), ..ObjectMeta::default() },
            spec: Some(PersistentVolumeSpec {
                access_modes: Some(vec!["ReadWriteMany".to_owned()]),
                capacity: Some(storage()),
                claim_ref: Some(claim),
                host_path: Some(HostPathVolumeSource { path, type_: Some("Directory".to_owned()) }),
                persistent_volume_reclaim_policy: Some("Retain".to_owned()),
                storage_class_name: Some(String::new()),
                ..PersistentVolumeSpec::default()
            }),
            ..PersistentVolume::default()
        }
    }

    fn volume_claim(&self) -> PersistentVolumeClaim {
        let resources = VolumeResourceRequirements { requests: Some(storage()), limits: None };
        PersistentVolumeClaim {
            metadata: ObjectMeta { name: Some(SHARED.to_owned()), ..ObjectMeta::default() },
            spec: Some(PersistentVolumeClaimSpec {
                access_modes: Some(vec!["ReadWriteMany".to_owned()]),
                resources: Some(resources),
                storage_class_name: Some(String::new()),
                volume_name: Some(self.namespace.clone()),
                ..PersistentVolumeClaimSpec::default()
            }),
            ..PersistentVolumeClaim::default()
        }
    }

    /// Lets the cluster remove it all, also what a scenario made that failed before it began. Only for GPUs somebody may wait.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        let seats = self.seats.take();
        let given_back = if seats.is_some() { self.give_back_claims().await } else { Ok(()) };
        drop(seats);
        let namespaces: Api<Namespace> = Api::all(self.client());
        let volumes: Api<PersistentVolume> = Api::all(self.client());
        let namespace = namespaces.delete(&self.namespace, &DeleteParams::default()).await;
        let volume = volumes.delete(&self.namespace, &DeleteParams::default()).await;
        let folder = std::fs::remove_dir_all(&self.folder);
        namespace.context("remove the namespace")?;
        match volume {
            Err(kube::Error::Api(status)) if status.code == NOT_FOUND => {}
            other => other.map(drop).context("remove the volume")?,
        }
        match folder {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            other => other.context("remove the shared folder")?,
        }
        given_back
    }
}

/// Any size: a folder has no limit of its own.
fn storage() -> BTreeMap<String, Quantity> {
    BTreeMap::from([("storage".to_owned(), Quantity("1Gi".to_owned()))])
}

/// Watches an object until something holds of it, and gives it.
pub(crate) async fn await_in<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    time: Duration,
    condition: impl Condition<K>,
) -> anyhow::Result<Option<K>>
where
    K: Clone + std::fmt::Debug + Send + DeserializeOwned + kube::Resource + 'static,
{
    let waited = tokio::time::timeout(time, await_condition(api.clone(), name, condition)).await;
    let waited = waited.map_err(|_| anyhow::anyhow!("waited {time:?} in vain until {what} ({name})"))?;
    waited.with_context(|| format!("wait until {what} ({name})"))
}
