//! What the administrator decides about all pods that take part.

use gpu_handoff_policy::{PolicyError, Subject, read_plain};
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::quantity::Quantity;

/// What the administrator decides about all pods that take part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// The sidecar's image. There is none that would do everywhere, and without one the settings are refused.
    #[serde(default)]
    pub image: String,
    /// When the node fetches it.
    #[serde(default)]
    pub image_pull_policy: PullPolicy,
    /// What nodes must have for pods that take part to be put there, in addition to what the pods ask for.
    #[serde(default)]
    pub node_selector: Vec<NodeRequirement>,
    /// Runtime classes whose containers do not share the node's kernel: no handle of a GPU's memory reaches into them. A name that
    /// ends with `*` is all that begin like it.
    #[serde(default = "sandboxes")]
    pub sandboxed_runtime_classes: Vec<String>,
    /// Whether pods may have user namespaces of their own (`hostUsers: false`).
    #[serde(default)]
    pub user_namespaces: UserNamespaces,
    /// The sidecar's user where the pod has none of its own; `null`: the cluster gives it one, as OpenShift does.
    #[serde(default = "sidecar_user")]
    pub run_as_user: Option<u32>,
    /// What the sidecar may use.
    #[serde(default)]
    pub resources: SidecarResources,
}

/// When the node fetches an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PullPolicy {
    /// Before each start.
    Always,
    /// When it does not have it.
    #[default]
    IfNotPresent,
    /// Never: it is put there some other way.
    Never,
}

impl PullPolicy {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// Whether pods that take part may have user namespaces of their own. What a hand-over needs works there; whether containers with GPUs can be
/// made there at all is for the node's runtime and its GPU toolkit to say, which no pod names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UserNamespaces {
    /// They may, and are warned.
    #[default]
    Allowed,
    /// They are denied.
    Denied,
}

/// What a label of a node must be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeRequirement {
    /// The label.
    pub key: String,
    /// How it is compared.
    pub operator: Operator,
    /// With what.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// How a label of a node is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    /// It is one of the values.
    In,
    /// It is none of them.
    NotIn,
    /// It is there.
    Exists,
    /// It is not there.
    DoesNotExist,
    /// It is a number larger than the value.
    Gt,
    /// It is a number smaller than the value.
    Lt,
}

/// What the sidecar may use, by the pod's quality-of-service class. In a pod that asks for nothing, or for the pod as a
/// whole, it asks for nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SidecarResources {
    /// Requests and limits in a pod whose requests are its limits.
    pub guaranteed: Amounts,
    /// Requests in other pods that ask for something.
    pub burstable: Amounts,
}

/// Processor and memory, as Kubernetes writes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amounts {
    /// Processors.
    pub cpu: String,
    /// Bytes.
    pub memory: String,
}

impl Default for SidecarResources {
    /// The sidecar is on no hand-off's way: it takes connections in and keeps a few megabytes at most.
    fn default() -> Self {
        let amounts = |cpu: &str, memory: &str| Amounts { cpu: cpu.to_owned(), memory: memory.to_owned() };
        Self { guaranteed: amounts("100m", "32Mi"), burstable: amounts("10m", "16Mi") }
    }
}

/// The sidecar's user where nobody says. The one below is the node daemon's, which no pod may be.
#[allow(clippy::unnecessary_wraps, reason = "serde wants the field's type")]
const fn sidecar_user() -> Option<u32> {
    Some(64_533)
}

/// What projects that run containers with a kernel of their own call their runtime classes: Kata Containers (`kata-qemu`, `kata-clh`),
/// gVisor (`gvisor`, `runsc`), Firecracker, urunc, Edera.
const SANDBOXES: [&str; 6] = ["kata*", "gvisor*", "runsc*", "firecracker*", "urunc*", "edera*"];

fn sandboxes() -> Vec<String> {
    SANDBOXES.map(str::to_owned).to_vec()
}

/// What is wrong with settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// There is no image, or it is none.
    #[error("image: wanted the name of an image, found {0:?}")]
    Image(String),
    /// The sidecar never is root.
    #[error("run-as-user: wanted another user than root, found 0")]
    Root,
    /// An amount is none.
    #[error("resources: wanted a positive amount such as 100m or 32Mi, found {0:?}")]
    Amount(String),
    /// A list is too long.
    #[error("{list}: wanted at most {} entries, found {found}", limits::SETTINGS_ITEMS)]
    TooMany {
        /// Which one.
        list: &'static str,
        /// How long it is.
        found: usize,
    },
    /// A `*` that is not the end of a name.
    #[error("sandboxed-runtime-classes: wanted names, with a * at the end or none, found {0:?}")]
    Class(String),
    /// The operator does not go with the number of values.
    #[error("node-selector: {operator:?} of {key:?} wanted {wanted}, found {found} values")]
    Values {
        /// The label.
        key: String,
        /// The operator.
        operator: Operator,
        /// How many it takes.
        wanted: &'static str,
        /// How many there are.
        found: usize,
    },
}

impl Settings {
    /// Settings that say which image, and leave the rest as it is.
    #[must_use]
    pub fn with_image(image: impl Into<String>) -> Self {
        Self {
            image: image.into(),
            image_pull_policy: PullPolicy::default(),
            node_selector: Vec::new(),
            sandboxed_runtime_classes: sandboxes(),
            user_namespaces: UserNamespaces::default(),
            run_as_user: sidecar_user(),
            resources: SidecarResources::default(),
        }
    }

    /// Reads settings that are a text of their own, UTF-8 to the last comment: YAML or JSON. They are not checked yet.
    ///
    /// # Errors
    /// What is wrong first, and where.
    pub fn read(text: &(impl AsRef<[u8]> + ?Sized)) -> Result<Self, PolicyError> {
        read_plain(text.as_ref(), Subject::Settings)
    }

    /// Checks what its type does not say.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.image.is_empty() || self.image.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(SettingsError::Image(self.image.clone()));
        }
        if self.run_as_user == Some(0) {
            return Err(SettingsError::Root);
        }
        let SidecarResources { guaranteed, burstable } = &self.resources;
        for amount in [&guaranteed.cpu, &guaranteed.memory, &burstable.cpu, &burstable.memory] {
            if !Quantity::parse(amount).is_some_and(Quantity::is_some) {
                return Err(SettingsError::Amount(amount.clone()));
            }
        }
        for (list, found) in [
            ("node-selector", self.node_selector.len()),
            ("sandboxed-runtime-classes", self.sandboxed_runtime_classes.len()),
        ] {
            if found > limits::SETTINGS_ITEMS {
                return Err(SettingsError::TooMany { list, found });
            }
        }
        let is_strange =
            |class: &&String| class.strip_suffix('*').unwrap_or(class).contains('*') || class.is_empty();
        if let Some(class) = self.sandboxed_runtime_classes.iter().find(is_strange) {
            return Err(SettingsError::Class(class.clone()));
        }
        self.node_selector.iter().try_for_each(NodeRequirement::check)
    }

    /// Whether the containers of a runtime class do not share the node's kernel.
    pub(crate) fn is_sandbox(&self, class: &str) -> bool {
        self.sandboxed_runtime_classes.iter().any(|known| match known.strip_suffix('*') {
            Some(begin) => class.starts_with(begin),
            None => class == known,
        })
    }
}

impl NodeRequirement {
    fn check(&self) -> Result<(), SettingsError> {
        let found = self.values.len();
        let (wanted, fits) = match self.operator {
            Operator::In | Operator::NotIn => ("one value or more", found > 0),
            Operator::Exists | Operator::DoesNotExist => ("none", found == 0),
            Operator::Gt | Operator::Lt => ("one value", found == 1),
        };
        if fits {
            return Ok(());
        }
        Err(SettingsError::Values { key: self.key.clone(), operator: self.operator, wanted, found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_image_is_enough_and_nothing_unknown_is_taken() {
        let settings: Settings = serde_json::from_value(json!({"image": "sidecar:1"})).unwrap();
        assert_eq!(settings, Settings::with_image("sidecar:1"));
        assert_eq!(settings.check(), Ok(()));
        assert!(
            serde_json::from_value::<Settings>(json!({"image": "x", "imagePullPolicy": "Always"})).is_err()
        );
        let without: Settings = serde_json::from_value(json!({})).unwrap();
        assert_eq!(without.check(), Err(SettingsError::Image(String::new())));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let check = |more: serde_json::Value| {
            let mut settings = json!({"image": "sidecar:1"});
            settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value::<Settings>(settings).unwrap().check().unwrap_err()
        };
        assert_eq!(check(json!({"image": ""})), SettingsError::Image(String::new()));
        assert_eq!(check(json!({"run-as-user": 0})), SettingsError::Root);
        let resources = json!({"burstable": {"cpu": "0", "memory": "1Mi"}});
        assert_eq!(check(json!({"resources": resources})), SettingsError::Amount("0".to_owned()));
        for requirement in [
            json!({"key": "gpu", "operator": "In"}),
            json!({"key": "gpu", "operator": "Exists", "values": ["x"]}),
            json!({"key": "gpu", "operator": "Gt", "values": ["1", "2"]}),
        ] {
            let error = check(json!({"node-selector": [requirement]}));
            assert!(matches!(error, SettingsError::Values { .. }), "{error}");
        }
        for class in ["", "*kata", "kata-*-gpu", "kata**"] {
            let error = check(json!({"sandboxed-runtime-classes": ["gvisor", class]}));
            assert_eq!(error, SettingsError::Class(class.to_owned()));
        }
        let many = vec!["kata"; limits::SETTINGS_ITEMS + 1];
        assert!(matches!(check(json!({"sandboxed-runtime-classes": many})), SettingsError::TooMany { .. }));
    }

    #[test]
    fn texts_are_read_that_cost_little() {
        let text = "\u{feff}# for & of nobody!\nimage: a:1\nsandboxed-runtime-classes: [kata*, \"x*\"]\r\n";
        assert_eq!(Settings::read(text).unwrap().sandboxed_runtime_classes, ["kata*", "x*"]);
        let refused = |text: &str| Settings::read(text).unwrap_err().to_string();
        assert_eq!(refused("image: x\nimmage: y\n").split(" column").next(), Some("line 2"));
        let deep = format!("image: {}", "[".repeat(100_000));
        assert_eq!(refused(&deep), "line 1 column 40: brackets within brackets, expected at most 32");
        for text in
            ["image: &a x\n", "image: !x y\n", "%YAML 1.2\n---\nimage: x\n", "image: x\n---\nimage: y\n"]
        {
            assert!(refused(text).contains("a file of settings"), "{}", refused(text));
        }
        assert!(Settings::read("image: *a\n").is_err());
    }
}
