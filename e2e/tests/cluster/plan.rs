//! What a pod is asked to be.

use gpu_handoff_inject::keys::Key;
use gpu_handoff_policy::Policy;
use k8s_openapi::api::core::v1::{
    Capabilities, Container, HostPathVolumeSource, PersistentVolumeClaimVolumeSource, Pod, PodResourceClaim,
    PodSecurityContext, PodSpec, ResourceClaim, ResourceRequirements, SeccompProfile, SecurityContext,
    Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ObjectMeta;
use serde_json::Value;

use crate::scene::{SHARED, SHARED_AT};

/// The image of all that tests start as applications.
pub(crate) const IMAGE: &str = "e2e.local/apps:1";

/// The product's sidecar.
pub(crate) const SIDECAR: &str = "e2e.local/sidecar:1";

/// The container that a pod is about.
pub(crate) const APP: &str = "app";
/// Where a pod has the slots of all, if it has.
pub(crate) const SLOTS_AT: &str = "/all-slots";
const SLOTS: &str = "all-slots";
/// A second one like it, where there is one.
pub(crate) const TWIN: &str = "twin";

/// How long a pod has to end: its programs have nothing to save, and as first processes they do not hear of SIGTERM.
const GRACE_S: i64 = 1;

/// The user of a pod without privilege.
pub(crate) const ANY_USER: i64 = 1000;

/// Where a pod's GPU comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Gpu {
    #[default]
    None,
    /// One of the device plugin's.
    Plugin,
    /// What this claim got.
    Claim(String),
}

/// A pod with one container, or more of the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    pub(crate) name: String,
    command: Vec<String>,
    gpu: Gpu,
    user: Option<i64>,
    restricted: bool,
    host_ipc: bool,
    host_pid: bool,
    host_network: bool,
    host_users: Option<bool>,
    privileged: bool,
    /// The node's folder with all slots.
    all_slots: bool,
    twin: bool,
    group: Option<String>,
    grace_s: Option<i64>,
    starts_anyway: bool,
    asks_no_api: bool,
    memory: Option<&'static str>,
    /// The policy that it is injected by.
    policy: Policy,
}

impl Plan {
    pub(crate) fn new(name: &str, gpu: Gpu, command: &[&str]) -> Self {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        Self { name: name.to_owned(), command, gpu, ..Self::default() }
    }

    /// As the restricted pod security standard wants it, and with a root file system that is only read.
    pub(crate) fn restricted(mut self) -> Self {
        self.restricted = true;
        self.user = Some(ANY_USER);
        self
    }

    pub(crate) fn user(mut self, user: i64) -> Self {
        self.user = Some(user);
        self
    }

    /// The node's IPC namespace, and with it its `/dev/shm`.
    pub(crate) fn host_ipc(mut self) -> Self {
        self.host_ipc = true;
        self
    }

    pub(crate) fn host_pid(mut self) -> Self {
        self.host_pid = true;
        self
    }

    /// The node's network, and no address of its own.
    pub(crate) fn host_network(mut self) -> Self {
        self.host_network = true;
        self
    }

    /// All that a container can be given, and the node's folder with the slots of all pods, at [`SLOTS_AT`].
    pub(crate) fn privileged_with_all_slots(mut self) -> Self {
        (self.privileged, self.all_slots) = (true, true);
        self
    }

    /// A user namespace of its own.
    pub(crate) fn own_users(mut self) -> Self {
        self.host_users = Some(false);
        self
    }

    /// A second container like the first.
    pub(crate) fn twin(mut self) -> Self {
        self.twin = true;
        self
    }

    /// How long it has to end, if not as short as others.
    pub(crate) fn grace_s(mut self, seconds: i64) -> Self {
        self.grace_s = Some(seconds);
        self
    }

    /// A member of a group: annotated, and with what the product's injection adds for that.
    pub(crate) fn member(mut self, group: &str) -> Self {
        self.group = Some(group.to_owned());
        self
    }

    /// A member whose applications start also where it will be able to exchange nothing.
    pub(crate) fn starts_anyway(mut self) -> Self {
        self.starts_anyway = true;
        self
    }

    /// The most memory that each of its containers may have.
    pub(crate) fn memory(mut self, most: &'static str) -> Self {
        self.memory = Some(most);
        self
    }

    /// With nothing that the kubelet asks the API server for before it starts a pod: no shared folder, and no token.
    pub(crate) fn asks_no_api(mut self) -> Self {
        self.asks_no_api = true;
        self
    }

    /// A member that is injected by this policy.
    pub(crate) fn under(mut self, policy: &Value) -> anyhow::Result<Self> {
        self.policy = Policy::read(&policy.to_string())?;
        Ok(self)
    }

    /// The pod as it is to be made in a namespace.
    pub(crate) fn pod_in(mut self, namespace: &str) -> anyhow::Result<Pod> {
        let Some(group) = self.group.take() else { return Ok(self.pod()) };
        let (starts_anyway, policy) = (self.starts_anyway, std::mem::take(&mut self.policy));
        let mut pod = self.pod();
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(Key::Group.as_str().to_owned(), group);
        if starts_anyway {
            annotations.insert(Key::OnFailure.as_str().to_owned(), "start".to_owned());
        }
        let settings: gpu_handoff_inject::Settings =
            serde_json::from_value(serde_json::json!({ "image": SIDECAR, "image-pull-policy": "Never" }))?;
        let injected = gpu_handoff_inject::inject(
            &serde_json::to_value(&pod)?,
            &namespace.parse()?,
            &settings,
            &policy,
        )?;
        Ok(serde_json::from_value(injected.object)?)
    }

    pub(crate) fn pod(self) -> Pod {
        let of_plugin = (self.gpu == Gpu::Plugin).then_some(("nvidia.com/gpu", "1"));
        let of_memory = self.memory.map(|most| ("memory", most));
        let limits = of_plugin.into_iter().chain(of_memory);
        let limits = limits.map(|(what, most)| (what.to_owned(), Quantity(most.to_owned()))).collect();
        let claims = matches!(self.gpu, Gpu::Claim(_))
            .then(|| vec![ResourceClaim { name: "gpu".to_owned(), request: None }]);
        let resources = ResourceRequirements { limits: Some(limits), claims, requests: None };
        let mut containers = vec![self.container(APP, resources.clone())];
        if self.twin {
            containers.push(self.container(TWIN, resources));
        }
        let claims = match &self.gpu {
            Gpu::Claim(name) => {
                let resource_claim_name = Some(name.clone());
                Some(vec![PodResourceClaim {
                    name: "gpu".to_owned(),
                    resource_claim_name,
                    ..Default::default()
                }])
            }
            Gpu::None | Gpu::Plugin => None,
        };
        let shared = PersistentVolumeClaimVolumeSource { claim_name: SHARED.to_owned(), read_only: None };
        let volume =
            Volume { name: SHARED.to_owned(), persistent_volume_claim: Some(shared), ..Volume::default() };
        let mut volumes = if self.asks_no_api { Vec::new() } else { vec![volume] };
        if self.all_slots {
            let host_path = Some(HostPathVolumeSource {
                path: "/run/gpu-handoff".to_owned(),
                type_: Some("Directory".to_owned()),
            });
            volumes.push(Volume { name: SLOTS.to_owned(), host_path, ..Volume::default() });
        }
        Pod {
            metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
            spec: Some(PodSpec {
                automount_service_account_token: self.asks_no_api.then_some(false),
                containers,
                host_ipc: self.host_ipc.then_some(true),
                host_pid: self.host_pid.then_some(true),
                host_network: self.host_network.then_some(true),
                host_users: self.host_users,
                resource_claims: claims,
                security_context: self.restricted.then(restricted_pod),
                termination_grace_period_seconds: Some(self.grace_s.unwrap_or(GRACE_S)),
                volumes: Some(volumes),
                ..PodSpec::default()
            }),
            ..Pod::default()
        }
    }

    fn container(&self, name: &str, resources: ResourceRequirements) -> Container {
        let privileged = self.privileged.then_some(true);
        let security = SecurityContext { run_as_user: self.user, privileged, ..SecurityContext::default() };
        let mount = VolumeMount {
            name: SHARED.to_owned(),
            mount_path: SHARED_AT.to_owned(),
            ..VolumeMount::default()
        };
        let mut mounts = if self.asks_no_api { Vec::new() } else { vec![mount] };
        if self.all_slots {
            mounts.push(VolumeMount {
                name: SLOTS.to_owned(),
                mount_path: SLOTS_AT.to_owned(),
                ..VolumeMount::default()
            });
        }
        Container {
            name: name.to_owned(),
            command: Some(self.command.clone()),
            image: Some(IMAGE.to_owned()),
            image_pull_policy: Some("Never".to_owned()),
            resources: Some(resources),
            security_context: Some(if self.restricted { restricted_container(security) } else { security }),
            stdin: Some(true),
            volume_mounts: Some(mounts),
            ..Container::default()
        }
    }
}

fn restricted_pod() -> PodSecurityContext {
    let seccomp = SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None };
    PodSecurityContext {
        run_as_non_root: Some(true),
        seccomp_profile: Some(seccomp),
        ..PodSecurityContext::default()
    }
}

fn restricted_container(with: SecurityContext) -> SecurityContext {
    let capabilities = Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None };
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(capabilities),
        read_only_root_filesystem: Some(true),
        ..with
    }
}
