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

use kube::Client;

pub mod events;
pub mod eviction;
pub mod labelled;
pub mod slices;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod times;

/// The API server, as this pod's service account. Clones are the same client.
#[derive(Clone)]
pub struct ApiServer(Client);

/// There is an API server for this pod, and it cannot be asked.
#[derive(Debug, thiserror::Error)]
#[error("the API server's client cannot be made: {0}")]
pub struct ClientError(#[source] Box<kube::Error>);

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
        let Ok(mut config) = kube::Config::incluster() else { return Ok(None) };
        // Whoever asks has a time for it, and says what was answered: 429 to an eviction is an answer.
        config.default_retry = false;
        let client = Client::try_from(config).map_err(|error| ClientError(Box::new(error)))?;
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
