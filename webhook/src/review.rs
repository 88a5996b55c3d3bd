//! What is asked and what is answered: an `AdmissionReview` of `admission.k8s.io/v1` in, one out. Nothing is done on the way,
//! so a dry run is answered as any other.

use gpu_handoff_inject::{Denial, Injected, inject};
use gpu_handoff_protocol::Namespace;
use k8s_openapi::ByteString;
use kube::core::DynamicObject;
use kube::core::admission::{
    AdmissionRequest, AdmissionResponse, AdmissionReview, META_API_VERSION_V1, META_KIND, Operation,
    SerializePatchError,
};
use kube::core::response::{Status, StatusCause, StatusDetails, StatusSummary};
use serde_json::Value;

use crate::limits;
use crate::settings::Rules;
use crate::values::{self, TooManyValues};

type Request = AdmissionRequest<DynamicObject>;
type Review = AdmissionReview<DynamicObject>;

/// Forbidden, as the API server's own admission says no.
const FORBIDDEN: u16 = 403;

/// What was sent is no review that could be answered with one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReviewError {
    /// It is too large for its reader.
    #[error("read the review")]
    TooMany(#[from] TooManyValues),
    /// It is no JSON, or lacks what each review has.
    #[error("read the review")]
    Form(#[from] serde_json::Error),
    /// It is something else, or of a version that is not spoken here.
    #[error("wanted kind {META_KIND} of {META_API_VERSION_V1}, found kind {kind:?} of {version:?}")]
    Version {
        /// Its `kind`.
        kind: String,
        /// Its `apiVersion`.
        version: String,
    },
    /// It has no request.
    #[error("wanted a request with a uid, found none")]
    NoRequest,
    /// What is to be added could not be written.
    #[error("write the patch")]
    Patch(#[from] SerializePatchError),
    /// The answer could not be written.
    #[error("write the answer")]
    Write(#[source] serde_json::Error),
    /// The answer is larger than any may be: settings that add too much, or a `uid` that is none.
    #[error("wanted an answer of at most {} bytes, found {found}", limits::ANSWER_BYTES)]
    AnswerTooLarge {
        /// Its bytes.
        found: usize,
    },
}

/// An answer, and what the log should say of it.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The review, as JSON.
    pub(crate) review: Vec<u8>,
    pub(crate) told: Told,
}

/// What the log says of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) pod: String,
    /// The codes of a denial; none where it was let in.
    pub(crate) denied: Vec<&'static str>,
    /// How much was added.
    pub(crate) additions: usize,
}

/// Answers a review.
pub(crate) fn answer(text: &[u8], rules: &Rules) -> Result<Answer, ReviewError> {
    let (request, pod) = read(text)?;
    let response = AdmissionResponse::from(&request);
    let decision = decide(&request, &pod, rules);
    let mut told = Told { pod: shown(&request, &pod), denied: Vec::new(), additions: 0 };
    let response = match decision {
        Ok(injected) => {
            told.additions = injected.patch.0.len();
            allow(response, injected)?
        }
        Err(denial) => {
            told.denied = denial.reasons().iter().map(|reason| reason.code().as_str()).collect();
            deny(response, &denial)
        }
    };
    Ok(Answer { review: written(response)?, told })
}

/// The answer as JSON. Bytes are base64 in Kubernetes' API; the type would write them as a list of numbers, each of which is a
/// value in memory: the patch is taken out before.
fn written(mut response: AdmissionResponse) -> Result<Vec<u8>, ReviewError> {
    let patch = response.patch.take().map(ByteString);
    let mut review = serde_json::to_value(response.into_review()).map_err(ReviewError::Write)?;
    if let Some(patch) = patch {
        review["response"]["patch"] = serde_json::to_value(patch).map_err(ReviewError::Write)?;
    }
    let text = serde_json::to_vec(&review).map_err(ReviewError::Write)?;
    if text.len() > limits::ANSWER_BYTES {
        Err(ReviewError::AnswerTooLarge { found: text.len() })
    } else {
        Ok(text)
    }
}

/// The request, without the pod; and the pod as it came: read into a type, it would lose what the type does not know.
fn read(text: &[u8]) -> Result<(Request, Value), ReviewError> {
    values::check(text)?;
    let mut review: Value = serde_json::from_slice(text)?;
    let said = |key: &str| cut(review[key].as_str().unwrap_or_default());
    let (kind, version) = (said("kind"), said("apiVersion"));
    if kind != META_KIND || version != META_API_VERSION_V1 {
        return Err(ReviewError::Version { kind, version });
    }
    let mut take = |path| review.pointer_mut(path).map(Value::take).unwrap_or_default();
    let pod = take("/request/object");
    for unread in ["/request/oldObject", "/request/options", "/request/userInfo/extra"] {
        drop(take(unread));
    }
    let review: Review = serde_json::from_value(review)?;
    let request: Request = review.try_into().map_err(|_| ReviewError::NoRequest)?;
    if request.uid.is_empty() {
        return Err(ReviewError::NoRequest);
    }
    Ok((request, pod))
}

fn decide(request: &Request, pod: &Value, rules: &Rules) -> Result<Injected, Denial> {
    let asked = what_is_asked(request);
    if asked != "CREATE of v1 pods" {
        return Err(Denial::wrong_request("request", "CREATE of v1 pods", asked));
    }
    let named = request.namespace.as_deref().unwrap_or_default();
    let namespace: Namespace = named
        .parse()
        .map_err(|error| Denial::wrong_request("request.namespace", "the name of a namespace", error))?;
    inject(pod, &namespace, &rules.settings, &rules.policy)
}

/// In words: which operation of what.
fn what_is_asked(request: &Request) -> String {
    let operation = match request.operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
        Operation::Connect => "CONNECT",
    };
    let resource = &request.resource;
    let group = if resource.group.is_empty() { String::new() } else { format!("{}/", resource.group) };
    let part = request.sub_resource.as_deref().filter(|part| !part.is_empty());
    let part = part.map(|part| format!("/{part}")).unwrap_or_default();
    format!("{operation} of {group}{} {}{part}", resource.version, resource.resource)
}

fn allow(
    mut response: AdmissionResponse,
    injected: Injected,
) -> Result<AdmissionResponse, SerializePatchError> {
    if !injected.warnings.is_empty() {
        response.warnings = Some(injected.warnings);
    }
    if injected.patch.0.is_empty() { Ok(response) } else { response.with_patch(injected.patch) }
}

/// The sentence for people, and each reason apart for programs.
fn deny(response: AdmissionResponse, denial: &Denial) -> AdmissionResponse {
    let causes = denial.reasons().iter().map(|reason| StatusCause {
        reason: reason.code().as_str().to_owned(),
        message: reason.to_string(),
        field: reason.compared().what.clone(),
    });
    let details = StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: causes.collect(),
        retry_after_seconds: 0,
    };
    let mut response = response.deny(denial);
    response.result = Status {
        status: Some(StatusSummary::Failure),
        code: FORBIDDEN,
        message: denial.to_string(),
        metadata: None,
        reason: "Forbidden".to_owned(),
        details: Some(details),
    };
    response
}

/// Which pod this is about: by its name, or by what its name will begin with.
fn shown(request: &Request, pod: &Value) -> String {
    let metadata = &pod["metadata"];
    let begins = || metadata["generateName"].as_str().map(|begins| format!("{begins}*"));
    let named = || metadata["name"].as_str().map(str::to_owned);
    let name = Some(request.name.clone()).filter(|name| !name.is_empty()).or_else(named).or_else(begins);
    cut(&format!("{}/{}", request.namespace.as_deref().unwrap_or_default(), name.unwrap_or_default()))
}

/// As much of a stranger's text as is repeated.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(limits::SHOWN_BYTES)].escape_debug().to_string()
}

#[cfg(test)]
mod tests;
