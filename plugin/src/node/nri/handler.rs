//! What the runtime is answered: out of the members' plans, which others have made. Nothing here decides what a pod may
//! have.
//!
//! A pod that has no plan is no member, and its containers are left as they are, whatever it says of itself. A member
//! has its plan before any of its containers is made: the volume of its slot is there only then.

use std::path::Path;
use std::sync::Arc;

use gpu_handoff_inject::{Ipc, Shm};
use gpu_handoff_nri::view::{Mount, Stage};
use gpu_handoff_nri::{Adjustment, Container, Events as Wanted, Handler, Pod, Runtime, Validation};
use gpu_handoff_policy::{Policy, Unadjusted};
use gpu_handoff_protocol::{Code, PodUid, Refusal};
use tokio::sync::{mpsc, watch};
use tracing::{debug, info, warn};

use super::device::{Node, node_at};
use super::found::{Found, about};
use super::look::{self, Expected};
use super::seen::Counts;
use crate::node::events::{Events, Kind, Notice};
use crate::node::parts::plan::Grant;
use crate::node::parts::{Plan, Plans};

/// Where programs look for shared memory.
const SHM: &str = "/dev/shm";
/// How something of the node is mounted: as the runtime mounts its own `/dev/shm`.
const BIND_OPTIONS: [&str; 6] = ["rbind", "rw", "nosuid", "nodev", "noexec", "rprivate"];
/// The kind of namespace that groups share.
const IPC: &str = "ipc";

/// Answers by the plans.
#[derive(Debug)]
pub(super) struct Answers {
    plans: watch::Receiver<Arc<Plans>>,
    events: Events,
    /// Whom it tells of containers that are there already.
    found: mpsc::Sender<Vec<Found>>,
    policies: watch::Receiver<Arc<Policy>>,
    counts: watch::Sender<Counts>,
    runtime: Runtime,
}

impl Answers {
    pub(super) fn new(
        plans: watch::Receiver<Arc<Plans>>,
        events: Events,
        found: mpsc::Sender<Vec<Found>>,
        policies: watch::Receiver<Arc<Policy>>,
        counts: watch::Sender<Counts>,
    ) -> Self {
        Self { plans, events, found, policies, counts, runtime: Runtime::default() }
    }

    /// A "no", in the words that its pod's owner reads.
    fn refuse(&self, refusal: &Refusal) -> String {
        self.counts.send_modify(|counts| counts.refused += 1);
        refusal.to_string()
    }

    /// The plan of a pod that is a member.
    fn plan_of(&self, pod: &Pod) -> Option<Arc<Plan>> {
        let uid: PodUid = pod.uid.parse().ok()?;
        self.plans.borrow().get(&uid).cloned()
    }

    /// What the pod was granted and does not get, for its owner to read.
    fn tell_of_what_is_missing(&self, plan: &Plan, pod: &Pod, container: &Container) {
        if plan.shm.is_some() && shm_of(plan, pod, container) == AtShm::Pods {
            let note = format!(
                "container {} has a volume of its own at {SHM}, which stays: it does not share that of group {}",
                container.name, plan.group
            );
            self.events.tell(Notice::new(about(plan), Kind::Normal, "OwnSharedMemory", &note));
        }
        if plan.ipc.is_some() && !self.runtime.can().namespaces {
            let found = format!("{} {}, NRI {}", self.runtime.name, self.runtime.version, self.runtime.nri);
            let refusal = Refusal::new(Code::RuntimeCannot).compared_with(
                "runtime",
                "one that puts containers into namespaces",
                found,
            );
            self.events.tell(Notice::refused(about(plan), &refusal));
        }
    }
}

impl Handler for Answers {
    fn configured(&mut self, runtime: &Runtime) -> Wanted {
        let can = runtime.can();
        info!(
            runtime = runtime.name,
            version = runtime.version,
            nri = runtime.nri,
            ?can,
            "the container runtime asks before it makes containers"
        );
        self.runtime = runtime.clone();
        // That it asks whether what came of it is right makes it fail a container in whose making this process dies.
        Wanted::of_containers().and_validation()
    }

    fn synchronized(&mut self, all: Vec<(Pod, Vec<Container>)>) {
        let plans = Arc::clone(&self.plans.borrow());
        let can = self.runtime.can().namespaces;
        let mut of_members = Vec::new();
        for (pod, containers) in all {
            let Some(plan) = pod.uid.parse::<PodUid>().ok().and_then(|uid| plans.get(&uid)) else { continue };
            // Those that were made and not started are looked at when they start.
            for container in containers.into_iter().filter(|container| container.stage == Stage::Running) {
                let expected = expected(plan, &pod, &container, can);
                if let Some(found) = Found::new(plan, container, expected) {
                    of_members.push(found);
                }
            }
        }
        if self.found.try_send(of_members).is_err() {
            warn!(
                "containers that were made while the runtime was not connected are not looked at: there are others before them"
            );
        }
    }

    fn create(&mut self, pod: &Pod, container: &Container) -> Result<Adjustment, String> {
        let Some(plan) = self.plan_of(pod) else { return Ok(Adjustment::default()) };
        let namespaces = self.runtime.can().namespaces;
        let made = is_complete(&plan, namespaces)
            .and_then(|()| adjustment(&plan, pod, container, namespaces, node_at))
            .map_err(|refusal| self.refuse(&refusal))?;
        self.tell_of_what_is_missing(&plan, pod, container);
        self.counts.send_modify(|counts| counts.adjusted += u64::from(!made.is_nothing()));
        Ok(made)
    }

    fn validate(&mut self, whole: &Validation) -> Result<(), String> {
        let is_on = Some(whole.default_validator());
        self.counts
            .send_if_modified(|counts| std::mem::replace(&mut counts.default_validator, is_on) != is_on);
        let Some(plan) = self.plan_of(&whole.pod) else { return Ok(()) };
        has_all(&plan, whole, self.runtime.can().namespaces).map_err(|refusal| self.refuse(&refusal))
    }

    fn start(&mut self, pod: &Pod, container: &Container) -> Result<(), String> {
        let Some(plan) = self.plan_of(pod) else { return Ok(()) };
        let expected = expected(&plan, pod, container, self.runtime.can().namespaces);
        let Some(pid) = container.pid.filter(|_| !expected.is_nothing()) else { return Ok(()) };
        let got = match look::got(pid) {
            Ok(got) => got,
            Err(error) => {
                warn!(pod = %plan.pod, container = container.name, pid, %error, "what a container got cannot be looked at");
                return Ok(());
            }
        };
        debug!(pod = %plan.pod, container = container.name, pid, "a member's container starts");
        let Err(refusal) = expected.check(&got) else { return Ok(()) };
        let rule = self.policies.borrow().unadjusted_of(&plan.pod.namespace);
        let name = &container.name;
        warn!(pod = %plan.pod, container = name, pid, %refusal, %rule, "it was made without what its pod was granted");
        match rule {
            Unadjusted::Kill => Err(self.refuse(&refusal)),
            Unadjusted::Report => {
                self.events.tell(Notice::refused(about(&plan), &refusal));
                Ok(())
            }
        }
    }
}

/// Whether a container of the pod may be made: what it was granted is there. One that was made without it would look well.
fn is_complete(plan: &Plan, namespaces: bool) -> Result<(), Refusal> {
    if let Some(refusal) = &plan.refused {
        return Err(refusal.clone());
    }
    let missing =
        |what: &str| Err(Refusal::new(Code::NotAdjusted).compared_with(what, "made", "not there yet"));
    match (plan.parts.shm, plan.parts.ipc) {
        (Shm::Group, _) if plan.shm.is_none() => missing("/dev/shm of the group"),
        (_, Ipc::Group) if namespaces && plan.ipc.is_none() => missing("IPC namespace of the group"),
        _ => Ok(()),
    }
}

/// What is at a container's `/dev/shm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AtShm {
    /// The pod's sandbox's, or nothing.
    Runtimes,
    /// The group's.
    Groups,
    /// Something that the pod itself, or another plugin, put there.
    Pods,
}

fn shm_of(plan: &Plan, pod: &Pod, container: &Container) -> AtShm {
    // The last one covers the others.
    let Some(mount) = container.mounts.iter().rfind(|mount| Path::new(&mount.destination) == Path::new(SHM))
    else {
        return AtShm::Runtimes;
    };
    let source = Path::new(&mount.source);
    if plan.shm.as_ref().is_some_and(|place| place.path == source) {
        return AtShm::Groups;
    }
    let is_sandbox =
        |part: std::path::Component<'_>| !pod.id.is_empty() && part.as_os_str() == pod.id.as_str();
    if source.ends_with("shm") && source.components().any(is_sandbox) { AtShm::Runtimes } else { AtShm::Pods }
}

/// What its process is to have.
fn expected(plan: &Plan, pod: &Pod, container: &Container, namespaces: bool) -> Expected {
    let shm = plan.shm.as_ref().filter(|_| shm_of(plan, pod, container) != AtShm::Pods);
    let ipc = plan.ipc.as_ref().filter(|_| namespaces);
    Expected { ipc: ipc.map(|pin| pin.inode), shm: shm.map(|place| place.device) }
}

/// What is made of a container of a member.
fn adjustment(
    plan: &Plan,
    pod: &Pod,
    container: &Container,
    namespaces: bool,
    node_at: impl Fn(&Path) -> std::io::Result<Node>,
) -> Result<Adjustment, Refusal> {
    let mut adjustment = Adjustment::default();
    if let Some(place) = &plan.shm
        && shm_of(plan, pod, container) != AtShm::Pods
    {
        adjustment = adjustment.mount(bind(text(&place.path)?, SHM));
    }
    if let Some(pin) = plan.ipc.as_ref().filter(|_| namespaces) {
        adjustment = adjustment.namespace(IPC, text(&pin.path)?);
    }
    let nothing = Grant::default();
    let grant = plan.devices.get(&container.name).unwrap_or(&nothing);
    for path in &grant.nodes {
        let is_there = container.devices.iter().any(|device| Path::new(&device.path) == path);
        let node = node_at(path).map_err(|error| {
            Refusal::new(Code::NotAdjusted).compared_with("device node", path.display(), error)
        })?;
        adjustment = match node {
            _ if is_there => adjustment,
            Node::Character(device) => adjustment.device(device),
            Node::File => adjustment.mount(bind(text(path)?, text(path)?)),
        };
    }
    let has = |name: &str| container.env.iter().any(|(own, _)| own == name) || grant.env.contains_key(name);
    for (name, value) in plan.env.iter().filter(|(name, _)| !has(name)).chain(&grant.env) {
        adjustment = adjustment.env(name, value);
    }
    Ok(adjustment)
}

/// Whether what all plugins made of a container has what its plan says.
fn has_all(plan: &Plan, whole: &Validation, namespaces: bool) -> Result<(), Refusal> {
    let Validation { pod, container, .. } = whole;
    let missing = |what: &str, wanted: &Path, found: &str| {
        Err(Refusal::new(Code::NotAdjusted).compared_with(what, wanted.display(), found))
    };
    if let Some(place) = plan.shm.as_ref().filter(|_| shm_of(plan, pod, container) == AtShm::Runtimes) {
        let at_shm = |mount: &&Mount| Path::new(&mount.destination) == Path::new(SHM);
        let found = whole.mounts.iter().rfind(at_shm).map_or("the runtime's", |mount| mount.source.as_str());
        if Path::new(found) != place.path {
            return missing("what is mounted at /dev/shm", &place.path, found);
        }
    }
    if let Some(pin) = plan.ipc.as_ref().filter(|_| namespaces) {
        let found = whole.namespaces.iter().rfind(|namespace| namespace.kind == IPC);
        let found = found.map_or("the pod's own", |namespace| namespace.path.as_str());
        if Path::new(found) != pin.path {
            return missing("IPC namespace", &pin.path, found);
        }
    }
    Ok(())
}

fn bind(source: &str, destination: &str) -> Mount {
    Mount {
        destination: destination.to_owned(),
        kind: "bind".to_owned(),
        source: source.to_owned(),
        options: BIND_OPTIONS.map(str::to_owned).to_vec(),
    }
}

fn text(path: &Path) -> Result<&str, Refusal> {
    path.to_str().ok_or_else(|| {
        Refusal::new(Code::NotAdjusted).compared_with("path", "text that the runtime takes", path.display())
    })
}

#[cfg(test)]
mod tests;
