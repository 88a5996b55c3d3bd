//! `gpu-handoff inject`: what the admission webhook would add to pods, to files.

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

use gpu_handoff_inject::{Settings, SettingsError};
use gpu_handoff_policy::{Policy, PolicyError};
use gpu_handoff_protocol::Namespace;
use serde_json::{Value, json};

use crate::Format;
use crate::failure::{Failure, write_causes};
use crate::files::{self, FileError, shown};
use crate::limits;
use crate::output::{self, one_line};
use documents::Document;
pub use documents::DocumentError;
use objects::{Denied, Injector};
pub use templates::NamespaceError;

mod bounds;
pub(crate) mod documents;
mod misplaced;
mod objects;
pub(crate) mod templates;
mod yaml;

/// What to inject, and how.
#[derive(Debug, Clone, clap::Args)]
pub struct InjectArgs {
    /// A file of Kubernetes objects, YAML or JSON; - for standard input
    #[arg(short, long, value_name = "FILE")]
    pub filename: PathBuf,
    /// The namespace of objects that do not say theirs
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<Namespace>,
    /// The settings of the injection: docs/annotations.md lists them
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// The policy of the nodes, by which pods are let into groups of other namespaces, and denied what theirs may not have; default: as without one
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// The sidecar's image, whatever the settings say
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
}

/// Why nothing was injected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InjectFailure {
    /// Pods asked for what they cannot have.
    #[error("denied")]
    Denied(Vec<Denied>),
    /// A file could not be read, or is larger than any may be.
    #[error(transparent)]
    File(#[from] FileError),
    /// A document is not what it should be.
    #[error("{0} cannot be read")]
    Document(String, #[source] DocumentError),
    /// The settings are no YAML, or have a field that does not exist or cannot have that value.
    #[error("the settings {0} cannot be read")]
    SettingsForm(String, #[source] PolicyError),
    /// The policy is none.
    #[error("{0} is no policy")]
    Policy(String, #[source] PolicyError),
    /// The settings cannot be.
    #[error(
        "the settings cannot be used; --settings FILE gives them, --image IMAGE the one without a default"
    )]
    Settings(#[source] SettingsError),
    /// What an object says its namespace is, is none.
    #[error("{0} can be in no namespace of that name")]
    Namespace(String, #[source] NamespaceError),
    /// The group's hash depends on the namespace.
    #[error("{0} does not say its namespace; --namespace NAME gives it")]
    NoNamespace(String),
}

impl InjectFailure {
    pub(crate) const fn number(&self) -> u8 {
        match self {
            Self::Denied(_) => 1,
            _ => 2,
        }
    }

    /// What, why, and what to do: a line each.
    pub(crate) fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Denied(denied) = self {
            return denied.iter().try_for_each(|denied| denied.write(f));
        }
        write_causes(f, self)
    }
}

/// Reads, injects, and writes what came of it; warnings go to `err`. Nothing is written if anything is denied.
pub(crate) fn run(
    args: InjectArgs,
    format: Format,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Failure> {
    let InjectArgs { filename, namespace, settings, policy, image } = args;
    let settings = read_settings(settings.as_deref(), image)?;
    let policy = read_policy(policy.as_deref())?;
    let name = shown(&filename);
    let text = files::read(&filename, limits::INPUT_BYTES).map_err(InjectFailure::File)?;
    let mut documents = documents::read(&text).map_err(|e| InjectFailure::Document(name, e))?;
    let mut injector = Injector::new(settings, policy, namespace);
    for document in &mut documents {
        if injector.inject(&mut document.object)? {
            document.text = None;
        }
    }
    for warning in injector.warnings() {
        writeln!(err, "warning: {}", one_line(warning))?;
    }
    injector.into_result()?;
    match format {
        Format::Json => write_json(documents, out),
        Format::Yaml | Format::Text => write_yaml(&documents, out),
    }
}

/// A document that nothing was added to is written as it was, with its comments.
fn write_yaml(documents: &[Document<'_>], out: &mut dyn Write) -> Result<(), Failure> {
    for (index, document) in documents.iter().enumerate() {
        if index > 0 {
            writeln!(out, "---")?;
        }
        match document.text {
            Some(text) => {
                out.write_all(text.as_bytes())?;
                if !text.ends_with('\n') {
                    writeln!(out)?;
                }
            }
            None => out.write_all(yaml::write(&document.object).as_bytes())?,
        }
    }
    Ok(())
}

fn write_json(documents: Vec<Document<'_>>, out: &mut dyn Write) -> Result<(), Failure> {
    let objects = documents.into_iter().map(|document| document.object);
    let mut objects: Vec<Value> = objects.filter(|object| !object.is_null()).collect();
    let whole = match objects.len() {
        1 => objects.remove(0),
        _ => json!({ "apiVersion": "v1", "kind": "List", "items": objects }),
    };
    output::json(out, &whole)
}

fn read_policy(path: Option<&Path>) -> Result<Policy, InjectFailure> {
    let Some(path) = path else { return Ok(Policy::default()) };
    Policy::read(&files::read_policy(path)?).map_err(|e| InjectFailure::Policy(shown(path), e))
}

fn read_settings(path: Option<&Path>, image: Option<String>) -> Result<Settings, InjectFailure> {
    let mut settings = match path {
        Some(path) => {
            let text = files::read_policy(path)?;
            Settings::read(&text).map_err(|e| InjectFailure::SettingsForm(shown(path), e))?
        }
        None => Settings::with_image(""),
    };
    settings.image = image.unwrap_or(settings.image);
    settings.check().map_err(InjectFailure::Settings)?;
    Ok(settings)
}
