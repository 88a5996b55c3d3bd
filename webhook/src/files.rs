//! Files that somebody else writes, looked at now and then.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpu_handoff_logs::chain;
use gpu_handoff_policy::{Contents, FileError, Files};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{error, info};

use crate::limits;
use crate::serving::{Serving, ServingError};

/// Waits until files have something else in them, or cannot be read any more; that is told once.
pub(crate) async fn changed<const N: usize>(files: &mut Files<N>) -> Result<Contents<N>, FileError> {
    loop {
        sleep(limits::FILE_LOOK).await;
        // They are small, and mounted from memory: reading them waits for nobody.
        if let Some(contents) = files.look()? {
            return Ok(contents);
        }
    }
}

/// A certificate with its key, which somebody else makes and renews.
#[derive(Debug)]
pub(crate) struct PairFiles {
    files: Files<2>,
    serving: watch::Sender<Arc<Serving>>,
}

/// The files of a certificate and its key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PairError {
    /// One cannot be read.
    #[error("read certificate and key")]
    Read(#[from] FileError),
    /// They are no certificate and its key.
    #[error("use {certificate} and {key}")]
    Use {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's.
        key: PathBuf,
        /// What is wrong.
        source: ServingError,
    },
}

impl PairFiles {
    /// Reads them.
    pub(crate) fn open(certificate: &Path, key: &Path) -> Result<Self, PairError> {
        let paths = [certificate.to_owned(), key.to_owned()];
        let (files, contents) = Files::open(paths, limits::PEM_BYTES)?;
        let serving = parse(files.paths(), &contents)?;
        Ok(Self { files, serving: watch::channel(Arc::new(serving)).0 })
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Serving>> {
        self.serving.subscribe()
    }

    /// Reads them again whenever they change, for ever. A pair of which one half is new and the other is not yet, is none.
    pub(crate) async fn keep(mut self) {
        loop {
            let changed = changed(&mut self.files).await;
            match changed.map_err(PairError::from).and_then(|contents| parse(self.files.paths(), &contents)) {
                Ok(serving) => {
                    info!(until = serving.ends(), "a new certificate");
                    self.serving.send_replace(Arc::new(serving));
                }
                Err(error) => error!(error = chain(&error), "the certificate before stays in use"),
            }
        }
    }
}

fn parse([certificate, key]: &[PathBuf; 2], [chain, private]: &Contents<2>) -> Result<Serving, PairError> {
    Serving::from_pem(chain, private).map_err(|source| PairError::Use {
        certificate: certificate.clone(),
        key: key.clone(),
        source,
    })
}
