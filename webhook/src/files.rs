//! Files that somebody else writes, looked at now and then: by their contents, because a mounted ConfigMap or Secret changes by
//! a link that is renamed, and a mounted file by itself.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpu_handoff_logs::chain;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{error, info};

use crate::limits;
use crate::serving::{Serving, ServingError};

/// A file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// What the system said.
    #[error("read {path}")]
    Io {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is too large.
    #[error("{path} has more than {limit} bytes")]
    TooLarge {
        /// Which one.
        path: PathBuf,
        /// How many it may have.
        limit: u64,
    },
}

/// What some files have in them.
pub(crate) type Contents<const N: usize> = [Vec<u8>; N];

/// Files that belong together.
#[derive(Debug)]
pub(crate) struct Watched<const N: usize = 1> {
    paths: [PathBuf; N],
    limit: u64,
    /// What was read last; nothing where it could not be.
    last: Option<Contents<N>>,
}

impl<const N: usize> Watched<N> {
    /// Reads them.
    pub(crate) fn open(paths: [PathBuf; N], limit: u64) -> Result<(Self, Contents<N>), FileError> {
        let contents = read(&paths, limit)?;
        Ok((Self { paths, limit, last: Some(contents.clone()) }, contents))
    }

    /// Waits until they have something else in them, or cannot be read any more; that is told once.
    pub(crate) async fn changed(&mut self) -> Result<Contents<N>, FileError> {
        loop {
            sleep(limits::FILE_LOOK).await;
            // They are small, and mounted from memory: reading them waits for nobody.
            match read(&self.paths, self.limit) {
                Ok(contents) if self.last.as_ref() == Some(&contents) => {}
                Ok(contents) => {
                    self.last = Some(contents.clone());
                    return Ok(contents);
                }
                Err(_) if self.last.is_none() => {}
                Err(error) => {
                    self.last = None;
                    return Err(error);
                }
            }
        }
    }
}

impl Watched<1> {
    pub(crate) fn path(&self) -> &Path {
        let [path] = &self.paths;
        path
    }
}

fn read<const N: usize>(paths: &[PathBuf; N], limit: u64) -> Result<Contents<N>, FileError> {
    let mut contents = [const { Vec::new() }; N];
    for (path, bytes) in paths.iter().zip(&mut contents) {
        let failed = |source| FileError::Io { path: path.clone(), source };
        let file = File::open(path).map_err(failed)?;
        file.take(limit + 1).read_to_end(bytes).map_err(failed)?;
        if bytes.len() as u64 > limit {
            return Err(FileError::TooLarge { path: path.clone(), limit });
        }
    }
    Ok(contents)
}

/// A certificate with its key, which somebody else makes and renews.
#[derive(Debug)]
pub(crate) struct PairFiles {
    files: Watched<2>,
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
        let (files, contents) = Watched::open(paths, limits::PEM_BYTES)?;
        let serving = parse(&files.paths, &contents)?;
        Ok(Self { files, serving: watch::channel(Arc::new(serving)).0 })
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Serving>> {
        self.serving.subscribe()
    }

    /// Reads them again whenever they change, for ever. A pair of which one half is new and the other is not yet, is none.
    pub(crate) async fn keep(mut self) {
        loop {
            let changed = self.files.changed().await;
            match changed.map_err(PairError::from).and_then(|contents| parse(&self.files.paths, &contents)) {
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
