//! The certificate that connections are served with: a chain and its key, and how long it is good.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{self, ServerConfig, version};
use x509_cert::Certificate;
use x509_cert::der::{self, Decode};
use x509_cert::time::Validity;

/// A certificate or its key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServingError {
    /// It is not in the form that such files have.
    #[error("read PEM")]
    Pem(#[from] pem::Error),
    /// There is no certificate in it.
    #[error("read PEM: wanted a certificate, found none")]
    NoCertificate,
    /// It is no certificate.
    #[error("read the certificate")]
    Certificate(#[from] der::Error),
    /// Certificate and key do not belong together, or are of a kind that is not known here.
    #[error("use certificate and key")]
    Pair(#[from] rustls::Error),
}

/// A certificate with its key.
pub struct Serving {
    key: Arc<CertifiedKey>,
    from: SystemTime,
    until: SystemTime,
}

impl Serving {
    /// Reads a chain of certificates, the server's first, and the key of that.
    ///
    /// # Errors
    /// One of them cannot be used, or they do not belong together.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, ServingError> {
        let chain = certificates(chain)?;
        let leaf = chain.first().ok_or(ServingError::NoCertificate)?;
        let (from, until) = validity(leaf)?;
        let key = PrivateKeyDer::from_pem_slice(key)?;
        let key = CertifiedKey::from_der(chain, key, &provider())?;
        Ok(Self { key: Arc::new(key), from, until })
    }

    /// From when it is good.
    #[must_use]
    pub const fn from(&self) -> SystemTime {
        self.from
    }

    /// Until when it is good.
    #[must_use]
    pub const fn until(&self) -> SystemTime {
        self.until
    }

    /// Until when it is good, for people.
    pub(crate) fn ends(&self) -> String {
        Timestamp::try_from(self.until).map_or_else(|_| "ever".to_owned(), |until| until.to_string())
    }

    /// The server's own certificate, of a chain that has one.
    pub(crate) fn leaf(&self) -> Option<&CertificateDer<'static>> {
        self.key.cert.first()
    }
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving")
            .field("from", &self.from)
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}

/// All certificates of a text.
pub(crate) fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    CertificateDer::pem_slice_iter(text).collect()
}

/// From when until when a certificate is good.
pub(crate) fn validity(certificate: &CertificateDer<'_>) -> Result<(SystemTime, SystemTime), der::Error> {
    let certificate = Certificate::from_der(certificate)?;
    let Validity { not_before, not_after, .. } = certificate.tbs_certificate().validity();
    Ok((not_before.to_system_time(), not_after.to_system_time()))
}

/// What encrypts: the same that the client of the API server uses.
pub(crate) fn provider() -> CryptoProvider {
    ring::default_provider()
}

/// How connections are encrypted: with whatever certificate there is when they begin.
pub(crate) fn config(serving: watch::Receiver<Arc<Serving>>) -> Result<ServerConfig, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&version::TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Latest(serving)));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[derive(Debug)]
struct Latest(watch::Receiver<Arc<Serving>>);

impl ResolvesServerCert for Latest {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.borrow().key))
    }
}
