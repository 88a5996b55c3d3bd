//! The certificates that the webhook makes for itself: its own authority, and the serving certificate that this signs.
//!
//! Pure functions of what there is and of the time. The order of a renewal is the point: the API server must trust an authority
//! before anything is served that it signed. So a new authority is at first trusted beside the one before it, and signs the
//! next serving certificate when everybody has heard of it ([`limits::AUTHORITY_SETTLES`]). Serving certificates are renewed
//! under an authority that is trusted already.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use tokio_rustls::rustls;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::client::{VerifierBuilderError, WebPkiServerVerifier};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime, pem};
use x509_cert::Certificate;
use x509_cert::der::{self, Decode};

use crate::limits;
use crate::names::SERVICE;
use crate::serving::{Serving, ServingError, certificates, provider, validity};

/// The authorities that are trusted, newest first.
const AUTHORITIES: &str = "ca.crt";
/// The newest authority's key.
const AUTHORITY_KEY: &str = "ca.key";
/// The serving certificate.
const SERVING: &str = "tls.crt";
/// Its key.
const SERVING_KEY: &str = "tls.key";

/// What a certificate ends with, as text.
const PEM_END: &str = "-----END CERTIFICATE-----\n";

/// What the authority calls itself.
const AUTHORITY_NAME: &str = "gpu-handoff webhook authority";

/// Certificates could not be made or cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// Keys or certificates could not be made.
    #[error("make a certificate")]
    Make(#[from] rcgen::Error),
    /// The serving certificate cannot be used.
    #[error("use the serving certificate")]
    Serving(#[from] ServingError),
    /// The authorities are not in the form that such files have.
    #[error("read the authorities")]
    Pem(#[from] pem::Error),
    /// An authority is no certificate.
    #[error("read the authority")]
    Authority(#[from] der::Error),
    /// There is none, or too many.
    #[error("wanted 1 to {most} authorities, found {0}", most = limits::AUTHORITIES)]
    Count(usize),
    /// The authorities did not sign the serving certificate, or it is for another name.
    #[error("the authorities do not vouch for the serving certificate")]
    Trust(#[from] rustls::Error),
    /// There is nothing to check the serving certificate with.
    #[error("check the serving certificate")]
    Verifier(#[from] VerifierBuilderError),
    /// The host's name is none.
    #[error("{0:?} is no name of a host")]
    Host(String),
}

/// An authority that is trusted, or several, and the serving certificate: as text, as the Secret has them.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificates {
    authorities: String,
    authority_key: String,
    serving: String,
    serving_key: String,
}

/// What is to be made anew, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// What.
    pub what: What,
    /// Why.
    pub why: String,
}

/// What is to be made anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Everything: what there is cannot be used.
    All,
    /// An authority, to be trusted beside those that there are.
    Authority,
    /// The serving certificate.
    Serving,
}

impl Due {
    fn new(what: What, why: impl Into<String>) -> Option<Self> {
        Some(Self { what, why: why.into() })
    }
}

impl Certificates {
    /// Makes all anew.
    ///
    /// # Errors
    /// They could not be made.
    pub fn make(host: &str, now: SystemTime) -> Result<Self, CertificateError> {
        let (authorities, authority_key) = authority(now)?;
        let (serving, serving_key) = sign(&authority_key, host, now)?;
        Ok(Self { authorities, authority_key, serving, serving_key })
    }

    /// What a Secret holds, where it holds all of it.
    #[must_use]
    pub fn from_data(data: &BTreeMap<String, ByteString>) -> Option<Self> {
        let text = |key| data.get(key).and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
        Some(Self {
            authorities: text(AUTHORITIES)?,
            authority_key: text(AUTHORITY_KEY)?,
            serving: text(SERVING)?,
            serving_key: text(SERVING_KEY)?,
        })
    }

    /// Puts them where a Secret holds them.
    pub fn put_into(&self, data: &mut BTreeMap<String, ByteString>) {
        let parts = [
            (AUTHORITIES, &self.authorities),
            (AUTHORITY_KEY, &self.authority_key),
            (SERVING, &self.serving),
            (SERVING_KEY, &self.serving_key),
        ];
        data.extend(parts.map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes()))));
    }

    /// The authorities that are to be trusted.
    #[must_use]
    pub fn authorities(&self) -> &str {
        &self.authorities
    }

    /// The serving certificate with its key.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn serving(&self) -> Result<Serving, ServingError> {
        Serving::from_pem(self.serving.as_bytes(), self.serving_key.as_bytes())
    }

    /// What is to be made anew by now; one thing at a time.
    #[must_use]
    pub fn due(&self, host: &str, now: SystemTime) -> Option<Due> {
        let facts = match Facts::of(self, host) {
            Ok(facts) => facts,
            Err(error) => return Due::new(What::All, gpu_handoff_logs::chain(&error)),
        };
        let Facts { authority_from, authority_until, serving_until, key_fits } = facts;
        if authority_until <= now {
            return Due::new(What::All, "the authority has expired");
        }
        if !key_fits {
            return Due::new(What::Authority, "the authority's key is not its own");
        }
        if authority_until <= now + limits::AUTHORITY_RENEWAL {
            return Due::new(
                What::Authority,
                format!("the authority ends in {}", days(authority_until, now)),
            );
        }
        let settled = authority_from + limits::BACKDATED + limits::AUTHORITY_SETTLES <= now;
        if serving_until <= now {
            return Due::new(What::Serving, "the serving certificate has expired");
        }
        if settled && serving_until <= now + limits::SERVING_RENEWAL {
            let why = format!("the serving certificate ends in {}", days(serving_until, now));
            return Due::new(What::Serving, why);
        }
        None
    }

    /// Makes anew what is due.
    ///
    /// # Errors
    /// It could not be made.
    pub fn renewed(&self, what: What, host: &str, now: SystemTime) -> Result<Self, CertificateError> {
        match what {
            What::All => Self::make(host, now),
            What::Authority => {
                let (newest, authority_key) = authority(now)?;
                let authorities = format!("{newest}{}", self.authorities_that_last(now)?);
                Ok(Self { authorities, authority_key, ..self.clone() })
            }
            What::Serving => {
                let (serving, serving_key) = sign(&self.authority_key, host, now)?;
                Ok(Self { serving, serving_key, ..self.clone() })
            }
        }
    }

    /// Those authorities that have not expired, one fewer than there may be.
    fn authorities_that_last(&self, now: SystemTime) -> Result<String, CertificateError> {
        let mut lasting = String::new();
        let mut kept = 0;
        for text in self.authorities.split_inclusive(PEM_END) {
            let found = certificates(text.as_bytes())?;
            let lasts = found.iter().map(validity).any(|life| life.is_ok_and(|(_, until)| until > now));
            if lasts && kept + 1 < limits::AUTHORITIES {
                lasting.push_str(text);
                kept += 1;
            }
        }
        Ok(lasting)
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

/// What is known of certificates that can be used, if at the right time.
struct Facts {
    authority_from: SystemTime,
    authority_until: SystemTime,
    serving_until: SystemTime,
    /// Whether the newest authority's key is its own.
    key_fits: bool,
}

impl Facts {
    fn of(all: &Certificates, host: &str) -> Result<Self, CertificateError> {
        let authorities = certificates(all.authorities.as_bytes())?;
        let newest = match authorities.first() {
            Some(newest) if authorities.len() <= limits::AUTHORITIES => newest,
            _ => return Err(CertificateError::Count(authorities.len())),
        };
        let serving = all.serving()?;
        verify(&serving, &authorities, host)?;
        let (authority_from, authority_until) = validity(newest)?;
        let key_fits = is_key_of(&all.authority_key, newest)?;
        Ok(Self { authority_from, authority_until, serving_until: serving.until(), key_fits })
    }
}

/// Checks what a client of that host checks, at a time when the certificate is good.
fn verify(
    serving: &Serving,
    authorities: &[CertificateDer<'static>],
    host: &str,
) -> Result<(), CertificateError> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone())?;
    }
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(provider())).build()?;
    let name = ServerName::try_from(host.to_owned()).map_err(|_| CertificateError::Host(host.to_owned()))?;
    let leaf = serving.leaf().ok_or(ServingError::NoCertificate)?;
    let at = UnixTime::since_unix_epoch(since_epoch(serving.from()));
    verifier.verify_server_cert(leaf, &[], &name, &[], at)?;
    Ok(())
}

/// Whether this is the private key of that certificate. A key that cannot be read is not.
fn is_key_of(key: &str, certificate: &CertificateDer<'_>) -> Result<bool, der::Error> {
    let certificate = Certificate::from_der(certificate)?;
    let public = certificate.tbs_certificate().subject_public_key_info().subject_public_key.raw_bytes();
    Ok(KeyPair::from_pem(key).is_ok_and(|pair| pair.public_key_raw() == public))
}

/// A new authority and its key.
fn authority(now: SystemTime) -> Result<(String, String), rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = authority_params()?;
    set_life(&mut params, now, limits::AUTHORITY_LIFE);
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

/// What signs with an authority's key needs to know of it beside that.
fn authority_params() -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = called(AUTHORITY_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// A new serving certificate and its key.
fn sign(authority_key: &str, host: &str, now: SystemTime) -> Result<(String, String), rcgen::Error> {
    let issuer = Issuer::new(authority_params()?, KeyPair::from_pem(authority_key)?);
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec![host.to_owned()])?;
    params.distinguished_name = called(SERVICE);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    set_life(&mut params, now, limits::SERVING_LIFE);
    Ok((params.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
}

fn called(name: &str) -> DistinguishedName {
    let mut called = DistinguishedName::new();
    called.push(DnType::CommonName, name);
    called
}

fn set_life(params: &mut CertificateParams, now: SystemTime, life: Duration) {
    let epoch = date_time_ymd(1970, 1, 1);
    // Certificates count whole seconds.
    let now = Duration::from_secs(since_epoch(now).as_secs());
    params.not_before = epoch + now.saturating_sub(limits::BACKDATED);
    params.not_after = epoch + now + life;
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn days(end: SystemTime, now: SystemTime) -> String {
    let days = end.duration_since(now).unwrap_or_default().as_secs() / (24 * 3_600);
    format!("{days} days")
}

#[cfg(test)]
mod tests;
