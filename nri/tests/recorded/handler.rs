//! Answers a runtime by the container's name alone, so that what it answered once it answers again.

use gpu_handoff_nri::view::{Device, Mount};
use gpu_handoff_nri::{Adjustment, Container, Events, Handler, Pod, Runtime, Validation};

/// The folder that the adjusted container gets at `/dev/shm`.
pub(crate) const SHM: &str = "/run/node/group/shm";
/// The file that stands for its IPC namespace.
pub(crate) const IPC: &str = "/run/node/group/ipc";

/// Adjusts the container "adjusted", does not let "refused" be made or "vetoed" start, and keeps what it is told.
#[derive(Debug, Default)]
pub(crate) struct ByName {
    /// Who asks.
    pub(crate) runtime: Runtime,
    /// What was there.
    pub(crate) synchronized: Vec<(Pod, Vec<Container>)>,
    /// What was made, of which pod.
    pub(crate) created: Vec<(Pod, Container)>,
    /// What was looked at.
    pub(crate) validated: Vec<Validation>,
    /// What was started.
    pub(crate) started: Vec<(Pod, Container)>,
}

impl Handler for ByName {
    fn configured(&mut self, runtime: &Runtime) -> Events {
        self.runtime = runtime.clone();
        Events::of_containers().and_validation()
    }

    fn synchronized(&mut self, all: Vec<(Pod, Vec<Container>)>) {
        self.synchronized = all;
    }

    fn create(&mut self, pod: &Pod, container: &Container) -> Result<Adjustment, String> {
        self.created.push((pod.clone(), container.clone()));
        match container.name.as_str() {
            "adjusted" => Ok(adjustment()),
            "refused" => Err("this container is not made".into()),
            _ => Ok(Adjustment::default()),
        }
    }

    fn validate(&mut self, whole: &Validation) -> Result<(), String> {
        self.validated.push(whole.clone());
        Ok(())
    }

    fn start(&mut self, pod: &Pod, container: &Container) -> Result<(), String> {
        self.started.push((pod.clone(), container.clone()));
        if container.name == "vetoed" { Err("this container does not start".into()) } else { Ok(()) }
    }
}

fn adjustment() -> Adjustment {
    let options = ["rbind", "rw", "nosuid", "nodev", "noexec", "rprivate"].map(String::from).to_vec();
    let shm = Mount { destination: "/dev/shm".into(), kind: "bind".into(), source: SHM.into(), options };
    let device =
        Device { path: "/dev/zero2".into(), kind: "c".into(), major: 1, minor: 5, mode: Some(0o666) };
    Adjustment::default().mount(shm).env("NCCL_HOSTID", "x").device(device).namespace("ipc", IPC)
}
