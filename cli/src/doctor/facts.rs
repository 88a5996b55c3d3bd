//! What was found out before anything is judged.

use std::error::Error;

use gpu_handoff_admin::client::ClientError;
use gpu_handoff_admin::proto::{Kubelet, StatusResponse};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::storage::v1::CSIDriver;

use super::Seen;
use crate::admin;

/// Everything that checks go by.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// Milliseconds since 1970.
    pub(super) now: u64,
    pub(super) daemon: Heard,
    pub(super) cluster: Cluster,
}

/// What was heard of the daemon.
#[derive(Debug, Clone)]
pub(super) enum Heard {
    Answer(Box<StatusResponse>),
    /// It does not answer: why, and what to do.
    Silence(String, &'static str),
    /// It does not answer us, which says nothing of how it is.
    Forbidden(String, &'static str),
}

/// What was heard of the cluster.
#[derive(Debug, Clone)]
pub(super) enum Cluster {
    /// There is none: a file says who the members are.
    NoBearing,
    /// It cannot be asked, and why.
    Unreachable(String),
    Objects(Box<Objects>),
}

/// The objects of gpu-handoff.
#[derive(Debug, Clone)]
pub(super) struct Objects {
    pub(super) namespace: String,
    pub(super) csi_driver: Looked<CSIDriver>,
    pub(super) webhook: Looked<MutatingWebhookConfiguration>,
    pub(super) endpoints: Looked<Vec<EndpointSlice>>,
    pub(super) deployment: Looked<Deployment>,
    pub(super) plugin: Looked<DaemonSet>,
    /// What holds the daemon's evictions to its own node.
    pub(super) evictions: [Guard; 2],
}

/// An admission policy, and what puts it in force.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    pub(super) name: &'static str,
    pub(super) policy: Looked<ValidatingAdmissionPolicy>,
    pub(super) binding: Looked<ValidatingAdmissionPolicyBinding>,
}

/// What came of asking for an object.
#[derive(Debug, Clone)]
pub(super) enum Looked<T> {
    Found(T),
    Absent,
    /// It could not be asked for, and why.
    Unknown(String),
}

/// What a check says where it cannot go on.
pub(super) type Otherwise<T> = Result<T, Option<Seen>>;

const SEE_DAEMON: &str = "see daemon.answers";
const SEE_CLUSTER: &str = "see cluster.answers";

impl Heard {
    pub(super) fn of(answer: Result<StatusResponse, ClientError>) -> Self {
        let error = match answer {
            Ok(status) => return Self::Answer(Box::new(status)),
            Err(error) => error,
        };
        let mut why = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            why += &format!(": {error}");
            cause = error.source();
        }
        let remedy = admin::remedy(&error);
        match error {
            ClientError::Forbidden { .. } => Self::Forbidden(why, remedy),
            _ => Self::Silence(why, remedy),
        }
    }

    /// Whether a file says who the members are.
    pub(super) fn is_without_kubelet(&self) -> bool {
        matches!(self, Self::Answer(status) if status.kubelet.is_none())
    }
}

impl Facts {
    /// The daemon's answer.
    pub(super) fn status(&self) -> Otherwise<&StatusResponse> {
        match &self.daemon {
            Heard::Answer(status) => Ok(status),
            Heard::Silence(..) | Heard::Forbidden(..) => {
                Err(Some(Seen::unknown("the daemon has not said it", SEE_DAEMON)))
            }
        }
    }

    /// The daemon's word on its kubelet, where one runs the node.
    pub(super) fn kubelet(&self) -> Otherwise<&Kubelet> {
        self.status()?.kubelet.as_ref().ok_or(None)
    }

    /// The objects in the cluster.
    pub(super) fn objects(&self) -> Otherwise<&Objects> {
        match &self.cluster {
            Cluster::Objects(objects) => Ok(objects),
            Cluster::NoBearing => Err(None),
            Cluster::Unreachable(_) => {
                Err(Some(Seen::unknown("the API server has not said it", SEE_CLUSTER)))
            }
        }
    }

    /// How long ago something was, in milliseconds.
    pub(super) fn since(&self, at: u64) -> u64 {
        self.now.saturating_sub(at)
    }
}

impl<T> Looked<T> {
    /// The object; where it is not there, what is said then.
    pub(super) fn or_absent(&self, absent: impl FnOnce() -> Seen) -> Otherwise<&T> {
        match self {
            Self::Found(object) => Ok(object),
            Self::Absent => Err(Some(absent())),
            Self::Unknown(why) => Err(Some(Seen::unknown(
                why.clone(),
                "give whoever asks the rights of ClusterRole and Role gpu-handoff-plugin in manifests/gpu-handoff.yaml",
            ))),
        }
    }
}

/// What a check says, of a part that may have ended it before.
pub(super) fn said(outcome: Otherwise<Seen>) -> Option<Seen> {
    outcome.map_or_else(|otherwise| otherwise, Some)
}
