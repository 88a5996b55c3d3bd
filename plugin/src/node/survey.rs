//! Asking the driver which GPUs reach each other: in a process of its own, which ends with its answer.

use std::io;
use std::process::Stdio;

use gpu_handoff_admin::proto::Driver;
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
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
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
    let (mut said, mut complaint) = (Vec::new(), Vec::new());
    let no_output = || io::Error::other("the survey has no output");
    let out = child.stdout.take().ok_or_else(no_output)?.take(limits::SURVEY_BYTES);
    let err = child.stderr.take().ok_or_else(no_output)?;
    let heard = async {
        let (mut out, mut err) = (out, err.take(limits::COMPLAINT_BYTES));
        tokio::try_join!(out.read_to_end(&mut said), err.read_to_end(&mut complaint)).map(drop)
    };
    heard.await?;
    let status = child.wait().await?;
    if status.success() {
        return Ok(said);
    }
    let complaint = String::from_utf8_lossy(&complaint);
    let why = complaint.lines().last().map(|line| format!(": {}", line.trim())).unwrap_or_default();
    Err(io::Error::other(format!("the survey ended with {status}{why}")))
}

/// As the node's status tells of it.
pub(super) fn told(outcome: &Result<Topology, String>) -> Driver {
    Driver { asked: true, failure: outcome.as_ref().err().cloned() }
}

fn topology(survey: &Survey, gpus: Vec<DeviceUuid>) -> Topology {
    let instances = survey.devices.iter().filter(|d| d.mig).map(|d| d.uuid).collect();
    let uuids: Vec<_> = survey.devices.iter().take(limits::NODE_GPUS).map(|d| d.uuid).collect();
    let pairs =
        uuids.iter().enumerate().flat_map(|(i, one)| uuids[i + 1..].iter().map(|other| (*one, *other)));
    let peers = pairs.filter(|(one, other)| survey.reach_each_other(*one, *other)).collect();
    Topology { gpus, instances, peers }
}
