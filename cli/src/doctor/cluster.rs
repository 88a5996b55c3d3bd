//! Asking the API server for what gpu-handoff has there: by name, and nothing else.

use std::error::Error;
use std::fmt::Debug;
use std::future::Future;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::config::KubeConfigOptions;
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::facts::{Cluster, Guard, Looked, Objects};
use crate::limits;

/// Names of the manifests.
pub(super) const DRIVER: &str = "gpu-handoff.io";
pub(super) const WEBHOOK: &str = "pods.gpu-handoff.io";
pub(super) const SERVICE: &str = "gpu-handoff-webhook";
pub(super) const PLUGIN: &str = "gpu-handoff-plugin";

/// Those of the policies that hold evictions to their node, and of their bindings.
pub(super) const EVICTIONS: [&str; 2] = ["gpu-handoff-evictions", "gpu-handoff-own-node"];

/// The label by which an EndpointSlice names its Service.
const OF_SERVICE: &str = "kubernetes.io/service-name";

/// The API's answers where there is no such thing, and where it is not told to everybody.
const NOT_FOUND: u16 = 404;
const FORBIDDEN: u16 = 403;

/// Asks as this pod where this is one, else as the kubeconfig says.
pub(super) async fn look(namespace: &str) -> Cluster {
    match client().await {
        Ok(client) => Cluster::Objects(Box::new(objects(&client, namespace).await)),
        Err(why) => Cluster::Unreachable(why),
    }
}

async fn client() -> Result<Client, String> {
    let mut config = match Config::incluster() {
        Ok(config) => config,
        Err(_) => {
            let read = Config::from_kubeconfig(&KubeConfigOptions::default()).await;
            read.map_err(|e| format!("this is no pod, and there is no kubeconfig ({})", chain(&e)))?
        }
    };
    config.connect_timeout = Some(limits::API_TIME);
    let client = Client::try_from(config).map_err(|e| chain(&e))?;
    // Once, not for each object.
    match timeout(limits::API_TIME, client.apiserver_version()).await {
        Ok(Ok(_)) => Ok(client),
        Ok(Err(e)) => Err(chain(&e)),
        Err(_) => Err(format!("no answer within {} s", limits::API_TIME.as_secs())),
    }
}

async fn objects(client: &Client, namespace: &str) -> Objects {
    let all = || client.clone();
    let slices: Api<EndpointSlice> = Api::namespaced(all(), namespace);
    let of_service = ListParams::default().labels(&format!("{OF_SERVICE}={SERVICE}"));
    let endpoints = async {
        let list = looked("endpointslices", async { slices.list(&of_service).await.map(Some) }).await;
        match list {
            Looked::Found(list) => Looked::Found(list.items),
            Looked::Absent => Looked::Absent,
            Looked::Unknown(why) => Looked::Unknown(why),
        }
    };
    let [one, other] = EVICTIONS;
    let (csi_driver, webhook, endpoints, deployment, plugin, one, other) = tokio::join!(
        get(Api::all(all()), DRIVER),
        get(Api::all(all()), WEBHOOK),
        endpoints,
        get(Api::namespaced(all(), namespace), SERVICE),
        get(Api::namespaced(all(), namespace), PLUGIN),
        guard(client, one),
        guard(client, other),
    );
    let (namespace, evictions) = (namespace.to_owned(), [one, other]);
    Objects { namespace, csi_driver, webhook, endpoints, deployment, plugin, evictions }
}

async fn guard(client: &Client, name: &'static str) -> Guard {
    let (policy, binding) =
        tokio::join!(get(Api::all(client.clone()), name), get(Api::all(client.clone()), name));
    Guard { name, policy, binding }
}

async fn get<K>(api: Api<K>, name: &str) -> Looked<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    looked(&format!("{} {name}", K::kind(&())), api.get_opt(name)).await
}

async fn looked<T>(what: &str, question: impl Future<Output = Result<Option<T>, kube::Error>>) -> Looked<T> {
    match timeout(limits::API_TIME, question).await {
        Ok(Ok(Some(object))) => Looked::Found(object),
        Ok(Ok(None)) => Looked::Absent,
        Ok(Err(kube::Error::Api(answer))) if answer.code == NOT_FOUND => Looked::Absent,
        Ok(Err(kube::Error::Api(answer))) if answer.code == FORBIDDEN => {
            Looked::Unknown(format!("no right to see {what}"))
        }
        Ok(Err(e)) => Looked::Unknown(format!("{what}: {}", chain(&e))),
        Err(_) => Looked::Unknown(format!("{what}: no answer within {} s", limits::API_TIME.as_secs())),
    }
}

/// An error with its causes, each once: some say theirs themselves.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let own = error.to_string();
        if !text.contains(&own) {
            text += &format!(": {own}");
        }
        cause = error.source();
    }
    text
}
