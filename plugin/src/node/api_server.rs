//! The API server, where there is one: none of it is asked on the way of a member's start or of a request, for it may be away.

use anyhow::Context;
use kube::Client;

use crate::config::Config;

/// A client of it, where a kubelet runs this node and this is a pod.
pub(super) fn client(config: &Config) -> anyhow::Result<Option<Client>> {
    if config.kubelet.is_none() {
        return Ok(None);
    }
    match kube::Config::incluster() {
        Ok(mut config) => {
            // Whoever asks has a time for it, and says what was answered: 429 to an eviction is an answer.
            config.default_retry = false;
            Client::try_from(config).context("make a client of the API server").map(Some)
        }
        // No pod: the kubelet alone is asked.
        Err(_) => Ok(None),
    }
}
