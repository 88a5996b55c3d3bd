//! Both services, as the kubelet calls them.

use std::path::PathBuf;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tonic::{Code, Request, Response, Status};
use tracing::{info, warn};

use super::request::{self, Invalid};
use super::words::{Answer, Command, Refusal};
use super::{Settings, limits};
use crate::proto::csi as wire;
use crate::{DRIVER, serving};

/// Who this is.
pub(super) struct Identity {
    version: String,
    ready: watch::Receiver<bool>,
}

impl Identity {
    pub(super) fn new(settings: &Settings) -> Self {
        Self { version: settings.version.clone(), ready: settings.ready.clone() }
    }
}

#[tonic::async_trait]
impl wire::identity_server::Identity for Identity {
    async fn get_plugin_info(
        &self,
        _: Request<wire::GetPluginInfoRequest>,
    ) -> Result<Response<wire::GetPluginInfoResponse>, Status> {
        Ok(Response::new(wire::GetPluginInfoResponse {
            name: DRIVER.to_owned(),
            vendor_version: self.version.clone(),
            ..Default::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<wire::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<wire::GetPluginCapabilitiesResponse>, Status> {
        Ok(Response::new(wire::GetPluginCapabilitiesResponse {}))
    }

    async fn probe(&self, _: Request<wire::ProbeRequest>) -> Result<Response<wire::ProbeResponse>, Status> {
        let ready = *self.ready.borrow();
        Ok(Response::new(wire::ProbeResponse { ready: Some(ready) }))
    }
}

/// The volumes of this node.
pub(super) struct Node {
    node: String,
    max_volumes: u32,
    kubelet_root: PathBuf,
    commands: mpsc::Sender<Command>,
}

impl Node {
    pub(super) fn new(settings: Settings, commands: mpsc::Sender<Command>) -> Self {
        let Settings { node, max_volumes, kubelet_root, .. } = settings;
        Self { node, max_volumes, kubelet_root, commands }
    }

    async fn ask(&self, command: impl FnOnce(oneshot::Sender<Answer>) -> Command) -> Answer {
        let (answer, answered) = oneshot::channel();
        self.commands.try_send(command(answer)).map_err(|error| {
            Refusal::NotYet(match error {
                TrySendError::Full(_) => {
                    format!("{} volumes are waiting already; the kubelet tries again", limits::COMMANDS)
                }
                TrySendError::Closed(_) => "the plugin is about to end; the kubelet tries again".to_owned(),
            })
        })?;
        match timeout(limits::ANSWER_TIME, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => {
                Err(Refusal::NotYet("the plugin could not do it now; the kubelet tries again".to_owned()))
            }
            Err(_) => {
                let seconds = limits::ANSWER_TIME.as_secs();
                Err(Refusal::NotYet(format!("not done within {seconds} s; the kubelet tries again")))
            }
        }
    }
}

#[tonic::async_trait]
impl wire::node_server::Node for Node {
    async fn node_publish_volume(
        &self,
        asked: Request<wire::NodePublishVolumeRequest>,
    ) -> Result<Response<wire::NodePublishVolumeResponse>, Status> {
        let publish = request::publish(asked.into_inner(), &self.kubelet_root).map_err(invalid)?;
        let said = format!("{} for {}", publish.volume, publish.pod);
        let answer = self.ask(|answer| Command::Publish(publish, answer)).await;
        told("publish", &said, answer)?;
        Ok(Response::new(wire::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        asked: Request<wire::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<wire::NodeUnpublishVolumeResponse>, Status> {
        let unpublish = request::unpublish(asked.into_inner(), &self.kubelet_root).map_err(invalid)?;
        let said = format!("{} of {}", unpublish.volume, unpublish.pod_uid);
        let answer = self.ask(|answer| Command::Unpublish(unpublish, answer)).await;
        told("unpublish", &said, answer)?;
        Ok(Response::new(wire::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<wire::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<wire::NodeGetCapabilitiesResponse>, Status> {
        Ok(Response::new(wire::NodeGetCapabilitiesResponse {}))
    }

    async fn node_get_info(
        &self,
        _: Request<wire::NodeGetInfoRequest>,
    ) -> Result<Response<wire::NodeGetInfoResponse>, Status> {
        Ok(Response::new(wire::NodeGetInfoResponse {
            node_id: self.node.clone(),
            max_volumes_per_node: self.max_volumes.into(),
        }))
    }
}

fn told(what: &str, volume: &str, answer: Answer) -> Result<(), Status> {
    match answer {
        Ok(()) => {
            info!(volume, "{what}");
            Ok(())
        }
        Err(refusal) => {
            warn!(volume, why = %refusal, "{what} refused");
            Err(status(refusal))
        }
    }
}

fn invalid(error: Invalid) -> Status {
    warn!(why = %error, "the kubelet's request is refused");
    status(Refusal::Invalid(error.to_string()))
}

fn status(refusal: Refusal) -> Status {
    let (code, text) = match refusal {
        Refusal::NoSlot(text) => (Code::ResourceExhausted, text),
        Refusal::NotYet(text) => (Code::Unavailable, text),
        Refusal::Invalid(text) => (Code::InvalidArgument, text),
        Refusal::Internal(text) => (Code::Internal, text),
    };
    Status::new(code, serving::cut(text, limits::REFUSAL_BYTES))
}
