//! Evicting a pod of this node.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::Api;
use kube::api::PostParams;
use kube::core::Status;

use super::ApiServer;
use crate::csi::PodName;

/// By this label an eviction says that it is of a pod on the node of whoever asks, and an admission policy holds it to that.
const OWN_NODE: (&str, &str) = ("gpu-handoff.io/own-node", "only");

/// Why a pod is not evicted.
#[derive(Debug, thiserror::Error)]
pub enum EvictError {
    /// A disruption budget, or the API server's own load, does not let it.
    #[error("not now: {0}")]
    NotNow(String),
    /// It says no.
    #[error("the API server says {code}: {message}")]
    Refused {
        /// As HTTP has it.
        code: u16,
        /// In its words.
        message: String,
    },
    /// Nobody answers.
    #[error("the API server cannot be asked: {0}")]
    Away(Box<kube::Error>),
}

impl ApiServer {
    /// Asks for the eviction of that very pod; whether there was one to evict.
    ///
    /// # Errors
    /// It is not evicted, and why.
    pub async fn evict(&self, pod: &PodName) -> Result<bool, EvictError> {
        let pods: Api<Pod> = Api::namespaced(self.client(), &pod.namespace);
        let outcome: Result<Status, kube::Error> =
            pods.create_subresource("eviction", &pod.name, &PostParams::default(), &eviction(pod)).await;
        match outcome {
            Ok(_) => Ok(true),
            // It is not there, or another pod has its name.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
            Err(kube::Error::Api(status)) if status.code == 429 => Err(EvictError::NotNow(status.message)),
            Err(kube::Error::Api(status)) => {
                Err(EvictError::Refused { code: status.code, message: status.message })
            }
            Err(error) => Err(EvictError::Away(Box::new(error))),
        }
    }
}

fn eviction(pod: &PodName) -> Eviction {
    let preconditions = Preconditions { uid: Some(pod.uid.clone()), ..Preconditions::default() };
    Eviction {
        metadata: ObjectMeta {
            name: Some(pod.name.clone()),
            namespace: Some(pod.namespace.clone()),
            labels: Some([OWN_NODE].map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            ..ObjectMeta::default()
        },
        delete_options: Some(DeleteOptions {
            preconditions: Some(preconditions),
            ..DeleteOptions::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::json;

    use super::super::testing::{Answer, Asked};
    use super::*;

    /// What came of it with an API server that answers so, and what that was asked.
    async fn evicted(status: u16) -> (Result<bool, EvictError>, Asked) {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let asked = Arc::clone(&heard);
        let api_server = ApiServer::answering(move |asked| {
            heard.lock().unwrap().push(asked);
            std::future::ready(Answer::status(status, "because"))
        });
        let [namespace, name, uid] = ["ml", "holder", "2c48913c"].map(str::to_owned);
        let outcome = api_server.evict(&PodName { namespace, name, uid }).await;
        let asked = asked.lock().unwrap().pop().unwrap();
        (outcome, asked)
    }

    #[tokio::test]
    async fn that_very_pod_of_the_own_node_is_named() {
        let (outcome, Asked { method, path, body }) = evicted(201).await;
        assert!(outcome.unwrap());
        assert_eq!((method.as_str(), path.as_str()), ("POST", "/api/v1/namespaces/ml/pods/holder/eviction"));
        assert_eq!(body["deleteOptions"]["preconditions"]["uid"], "2c48913c");
        assert_eq!(body["metadata"]["labels"]["gpu-handoff.io/own-node"], "only");
        assert_eq!((&body["kind"], &body["apiVersion"]), (&json!("Eviction"), &json!("policy/v1")));
    }

    #[tokio::test]
    async fn one_that_is_gone_is_no_failure_and_what_is_said_is_passed_on() {
        for status in [404, 409] {
            assert!(!evicted(status).await.0.unwrap(), "{status}");
        }
        let said = [
            (429, "not now: because"),
            (403, "the API server says 403: because"),
            (500, "the API server says 500: because"),
        ];
        for (status, text) in said {
            assert_eq!(evicted(status).await.0.unwrap_err().to_string(), text);
        }
    }
}
