//! Certificates that somebody else makes.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use gpu_handoff_webhook::certificates::Certificates;
use gpu_handoff_webhook::{Tls, limits, names};
use k8s_openapi::ByteString;
use std::collections::BTreeMap;
use tempfile::TempDir;

use crate::client::{self, NAMESPACE};
use crate::running::{Running, until};

/// The files of a certificate and its key, and who vouches for it.
pub(crate) struct Pair {
    folder: TempDir,
    pub(crate) authority: String,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let pair = Self { folder: tempfile::tempdir().unwrap(), authority: String::new() };
        let (authority, certificate, key) = made();
        fs::write(pair.certificate(), certificate).unwrap();
        fs::write(pair.key(), key).unwrap();
        Self { authority, ..pair }
    }

    fn certificate(&self) -> PathBuf {
        self.folder.path().join("tls.crt")
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("tls.key")
    }

    pub(crate) fn tls(&self) -> Tls {
        Tls::Files { certificate: self.certificate(), key: self.key() }
    }
}

/// Authority, certificate and key.
fn made() -> (String, Vec<u8>, Vec<u8>) {
    let made = Certificates::make(&names::host(NAMESPACE), SystemTime::now()).unwrap();
    let mut data: BTreeMap<String, ByteString> = BTreeMap::new();
    made.put_into(&mut data);
    (made.authorities().to_owned(), data["tls.crt"].0.clone(), data["tls.key"].0.clone())
}

#[tokio::test]
async fn a_renewed_certificate_is_served_without_a_restart() {
    let pair = Pair::new();
    let running = Running::start(pair.tls()).await;
    let mut before = client::connect(running.address, &pair.authority).await.unwrap();
    assert_eq!(before.get("/readyz").await.1, "ok\n");
    let (authority, certificate, key) = made();
    // Only one half: what was there stays in use.
    fs::write(pair.certificate(), certificate).unwrap();
    let look = tokio::time::Instant::now() + 2 * limits::FILE_LOOK;
    until("both halves would have been read", || async {
        client::connect(running.address, &pair.authority).await.unwrap();
        (tokio::time::Instant::now() > look).then_some(())
    })
    .await;
    fs::write(pair.key(), key).unwrap();
    let after = until("the new certificate is served", || async {
        client::connect(running.address, &authority).await.ok()
    })
    .await;
    assert_ne!(after.shown, before.shown);
    assert!(client::connect(running.address, &pair.authority).await.is_err());
    assert_eq!(before.get("/readyz").await.1, "ok\n");
}

#[tokio::test]
async fn files_that_cannot_be_used_are_told_of_at_the_start() {
    let (pair, other) = (Pair::new(), Pair::new());
    let table = [
        (pair.certificate(), other.key(), "certificate and key"),
        (pair.key(), pair.key(), "found none"),
        (pair.certificate(), pair.certificate(), "PEM"),
        (pair.certificate(), pair.folder.path().join("none"), "read "),
    ];
    for (certificate, key, wanted) in table {
        let mut running = Running::start(Tls::Files { certificate, key }).await;
        let error = running.ended().await.unwrap_err();
        let told = gpu_handoff_logs::chain(&error);
        assert!(told.contains(wanted), "{told}");
    }
}
