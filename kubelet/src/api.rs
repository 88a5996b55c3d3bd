//! What is asked of the API server, and told to it, apart from the pods of this node ([`crate::pods`]).
//!
//! Whoever asks has a time for it: nothing here waits longer than it is let, and nothing is tried again by itself.
//!
//! | concern | module |
//! |---|---|
//! | events on pods | [`events`] |
//! | evicting a pod | [`eviction`] |
//! | pods elsewhere, by a label | [`labelled`] |
//! | devices that drivers of claims publish | [`slices`] |
//! | times as it writes them | [`times`] |

use std::fmt;

use kube::config::InClusterError;
use kube::{Client, Config};

pub mod events;
pub mod eviction;
pub mod labelled;
pub mod slices;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod times;

/// What the kubelet tells every container in its environment: where the API server is.
const HOST: &str = "KUBERNETES_SERVICE_HOST";

/// The API server, as this pod's service account. Clones are the same client.
#[derive(Clone)]
pub struct ApiServer(Client);

/// There is an API server for this pod, and it cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The pod was not given all that it takes. What lacks says its own causes.
    #[error("this is a pod ({HOST} is set), and cannot use what pods ask the API server with: {0}")]
    Given(Box<InClusterError>),
    /// The client says its own causes, too.
    #[error("the API server's client cannot be made: {0}")]
    Client(Box<kube::Error>),
}

/// The API server did not say what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It is away, or says no.
    #[error("the API server does not tell{what}: {why}")]
    Away {
        /// What it was asked for, after a space; nothing where that is clear.
        what: &'static str,
        /// What it said, or its client.
        why: Box<kube::Error>,
    },
    /// Its answer is longer than what is read of it.
    #[error("{0}")]
    Overlong(&'static str),
}

impl ApiServer {
    /// The one whose address and account this pod was given; `None`: this is no pod.
    ///
    /// # Errors
    /// What the pod was given is of no use.
    pub fn of_this_pod() -> Result<Option<Self>, ClientError> {
        let is_pod = std::env::var_os(HOST).is_some();
        Self::given(is_pod.then(Config::incluster))
    }

    /// With what a pod found; `None`: it is none.
    fn given(found: Option<Result<Config, InClusterError>>) -> Result<Option<Self>, ClientError> {
        let Some(found) = found else { return Ok(None) };
        let mut config = found.map_err(|error| ClientError::Given(Box::new(error)))?;
        // Whoever asks has a time for it, and says what was answered: 429 to an eviction is an answer.
        config.default_retry = false;
        let client = Client::try_from(config).map_err(|error| ClientError::Client(Box::new(error)))?;
        Ok(Some(Self(client)))
    }

    pub(crate) fn client(&self) -> Client {
        self.0.clone()
    }
}

impl From<Client> for ApiServer {
    fn from(client: Client) -> Self {
        Self(client)
    }
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("ApiServer").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::io;

    use super::*;

    #[test]
    fn what_a_pod_lacks_is_said_and_it_is_not_taken_for_none() {
        assert!(ApiServer::given(None).unwrap().is_none());
        let lacks = InClusterError::ReadDefaultNamespace(io::Error::from(io::ErrorKind::NotFound));
        let error = ApiServer::given(Some(Err(lacks))).unwrap_err();
        let said = error.to_string();
        let lack = "cannot use what pods ask the API server with: failed to read the default namespace: entity not found";
        assert!(said.ends_with(lack), "{said}");
        assert!(error.source().is_none(), "and each cause once");
    }
}
