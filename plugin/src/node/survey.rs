//! Asking the driver which GPUs reach each other: in a process of its own, which ends with its answer.

use std::io;
use std::process::Stdio;

use gpu_handoff_cuda::Survey;
use gpu_handoff_protocol::DeviceUuid;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::children::Programs;
use crate::limits;
use crate::registry::Topology;

/// Starts the process.
pub(super) fn start(programs: &Programs) -> io::Result<Child> {
    let mut command = programs.child(&["gpu-survey"]);
    command.stdout(Stdio::piped());
    Command::from(command).kill_on_drop(true).spawn()
}

/// What it says, beside the GPUs that are known already.
pub(super) async fn outcome(child: Child, gpus: Vec<DeviceUuid>) -> Result<Topology, String> {
    let heard = timeout(limits::SURVEY_TIME, hear(child)).await;
    let heard = heard.map_err(|_| format!("no answer within {:?}", limits::SURVEY_TIME))?;
    let survey: Survey = serde_json::from_slice(&heard.map_err(|e| e.to_string())?)
        .map_err(|e| format!("its answer does not read as a survey ({e})"))?;
    Ok(topology(&survey, gpus))
}

async fn hear(mut child: Child) -> io::Result<Vec<u8>> {
    let mut said = Vec::new();
    let out = child.stdout.take().ok_or_else(|| io::Error::other("the survey has no output"))?;
    out.take(limits::SURVEY_BYTES).read_to_end(&mut said).await?;
    let status = child.wait().await?;
    if status.success() { Ok(said) } else { Err(io::Error::other(format!("the survey ended with {status}"))) }
}

fn topology(survey: &Survey, gpus: Vec<DeviceUuid>) -> Topology {
    let instances = survey.devices.iter().filter(|d| d.mig).map(|d| d.uuid).collect();
    let uuids: Vec<_> = survey.devices.iter().take(limits::NODE_GPUS).map(|d| d.uuid).collect();
    let pairs =
        uuids.iter().enumerate().flat_map(|(i, one)| uuids[i + 1..].iter().map(|other| (*one, *other)));
    let peers = pairs.filter(|(one, other)| survey.reach_each_other(*one, *other)).collect();
    Topology { gpus, instances, peers }
}
