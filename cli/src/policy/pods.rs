//! The pods that a question is about: by their names, or by their manifests.

use std::path::Path;

use gpu_handoff_inject::Wishes;
use gpu_handoff_policy::Party;
use gpu_handoff_protocol::{GroupKey, IdError, Namespace, ServiceAccount};
use serde_json::Value;

use super::PolicyFailure;
use crate::inject::{documents, templates};
use crate::output::one_line;
use crate::{files, limits};

/// The service account of a pod that names none.
const DEFAULT_ACCOUNT: &str = "default";

/// A pod, by what a policy can name of it.
#[derive(Debug, Clone)]
pub(super) struct Pod {
    /// What it is called in the answer.
    pub(super) shown: String,
    namespace: Namespace,
    group: GroupKey,
    service_account: Option<ServiceAccount>,
}

impl Pod {
    pub(super) fn party(&self) -> Party<'_> {
        let Self { namespace, group, service_account, .. } = self;
        Party { namespace, group, service_account: service_account.as_ref() }
    }
}

/// Why a text names no pod.
#[derive(Debug, thiserror::Error)]
pub(super) enum NameError {
    #[error("wanted NAMESPACE/GROUP or NAMESPACE/GROUP/SERVICE-ACCOUNT")]
    Shape,
    #[error(transparent)]
    Id(#[from] IdError),
}

impl std::str::FromStr for Pod {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let parts: Vec<&str> = text.split('/').collect();
        let (namespace, group, service_account) = match parts[..] {
            [namespace, group] => (namespace, group, None),
            [namespace, group, account] => (namespace, group, Some(account)),
            _ => return Err(NameError::Shape),
        };
        let namespace: Namespace = namespace.parse()?;
        let group = GroupKey { namespace: namespace.clone(), name: group.parse()? };
        let service_account = service_account.map(str::parse).transpose()?;
        Ok(Self { shown: text.to_owned(), namespace, group, service_account })
    }
}

/// The pods, and templates of pods, of a file that take part.
pub(super) fn read(path: &Path, namespace: Option<&Namespace>) -> Result<Vec<Pod>, PolicyFailure> {
    let text = files::read(path, limits::INPUT_BYTES)?;
    let failed = |e| PolicyFailure::Document(files::shown(path), e);
    let documents = documents::read(&text).map_err(failed)?;
    let mut pods = Vec::new();
    for document in &documents {
        add(&document.object, namespace, &mut pods)?;
    }
    Ok(pods)
}

fn add(object: &Value, namespace: Option<&Namespace>, pods: &mut Vec<Pod>) -> Result<(), PolicyFailure> {
    if templates::is_list(object) {
        let mut items = object["items"].as_array().into_iter().flatten();
        return items.try_for_each(|item| add(item, namespace, pods));
    }
    for path in templates::of(object).into_iter().flatten() {
        let Some(template) = object.pointer(&path) else { continue };
        pods.extend(member(object, template, namespace)?);
    }
    Ok(())
}

/// A pod that takes part; `None`: it does not.
fn member(
    object: &Value,
    template: &Value,
    namespace: Option<&Namespace>,
) -> Result<Option<Pod>, PolicyFailure> {
    let (kind, name) = (object["kind"].as_str(), object["metadata"]["name"].as_str());
    let shown = one_line(&format!("{} {}", kind.unwrap_or("Pod"), name.unwrap_or("without a name")));
    let texts = |key: &str| {
        let entries = template["metadata"][key].as_object().into_iter().flatten();
        entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
    };
    let annotations: std::collections::BTreeMap<_, _> = texts("annotations");
    if !annotations.keys().any(|key| key.starts_with(gpu_handoff_inject::keys::PREFIX)) {
        return Ok(None);
    }
    let own = templates::namespace(object).map_err(|e| PolicyFailure::Namespace(shown.clone(), e))?;
    let namespace = own.or_else(|| namespace.cloned());
    let namespace: Namespace = namespace.ok_or_else(|| PolicyFailure::NoNamespace(shown.clone()))?;
    let denied = |denial| PolicyFailure::Denied(shown.clone(), Box::new(denial));
    let Some(wishes) = Wishes::read(&annotations, &texts("labels"), &namespace).map_err(denied)? else {
        return Ok(None);
    };
    let account = template["spec"]["serviceAccountName"].as_str().unwrap_or(DEFAULT_ACCOUNT);
    let shown = format!("{shown} (namespace {namespace}, group {}, service account {account})", wishes.group);
    Ok(Some(Pod { shown, namespace, group: wishes.group, service_account: account.parse().ok() }))
}
