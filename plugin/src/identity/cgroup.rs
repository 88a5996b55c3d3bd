//! Which container of which pod a process is in, by its `/proc/PID/cgroup`: what the kubelet and the container runtime called
//! the groups that they made for it.
//!
//! Only what they made counts. A container may make groups below its own and call them what it likes, so the *first* group
//! of a pod on the way down is the pod's, and the next one the container's. What leads to `kubepods` must be what it is on this node
//! ([`Root`]). Anything else is an error, with what was seen: never a guess. `/proc/PID/mountinfo` is never asked, a container
//! decides what stands there.

use std::fmt;
use std::str::FromStr;

use gpu_handoff_protocol::PodUid;

/// Length of a container's number in hexadecimal digits, by every runtime of Kubernetes.
const CONTAINER_DIGITS: usize = 64;
/// Length of a static pod's UID: a hash of its manifest, in hexadecimal digits.
const STATIC_UID_DIGITS: usize = 32;
/// Where the dashes of a UID are.
const UID_DASHES: [usize; 4] = [8, 13, 18, 23];
/// Length of a UID with dashes.
const UID_LENGTH: usize = 36;
/// How much of a path is shown, in characters.
const SHOWN: usize = 160;

/// A container as the runtime numbers it, without the runtime's name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContainerId(String);

impl ContainerId {
    /// The number as a pod's status says it, such as `containerd://0123…`.
    #[must_use]
    pub fn of_status(text: &str) -> Option<Self> {
        text.split_once("://").and_then(|(_, number)| number.parse().ok())
    }
}

impl FromStr for ContainerId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let good = text.len() == CONTAINER_DIGITS && is_lower_hex(text);
        if good { Ok(Self(text.to_owned())) } else { Err(format!("no number of a container: {text:.80}")) }
    }
}

impl TryFrom<String> for ContainerId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ContainerId> for String {
    fn from(id: ContainerId) -> Self {
        id.0
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InPod {
    /// The pod.
    pub pod: PodUid,
    /// The container.
    pub container: ContainerId,
}

/// Why it cannot be told where a process is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CgroupError {
    /// No line names a pod of this node.
    #[error("it is in no pod of this node: {0}")]
    NoPod(String),
    /// Only the pod's group is named.
    #[error("it is in pod {pod}, but in no container of it: {path}")]
    NoContainer {
        /// The pod.
        pod: PodUid,
        /// What was seen.
        path: String,
    },
    /// The lines of different hierarchies disagree.
    #[error("its groups disagree: {0}, and {1}")]
    Disagree(String, String),
    /// The paths are relative to groups of whoever reads them.
    #[error("its groups are seen from within another group, not from the node's root: {0}")]
    Relative(String),
    /// It is no list of groups.
    #[error("it does not read as a list of groups: {0}")]
    Malformed(String),
}

/// What stands before `kubepods` in the paths of this node: nothing, or the kubelet's own root, or the group of the
/// container that the whole node is in.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Root(String);

impl Root {
    /// The root by the groups of a process that is in a pod of this node; `None`: it is in none.
    #[must_use]
    pub fn of_pod_process(text: &str) -> Option<Self> {
        let mut paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        paths.find_map(|path| {
            let at = path.split('/').position(is_kubepods)?;
            Some(Self(path.split('/').take(at).collect::<Vec<_>>().join("/")))
        })
    }

    /// What of a path is below it.
    fn strip<'a>(&self, path: &'a str) -> Option<&'a str> {
        path.strip_prefix(&self.0).filter(|rest| rest.starts_with('/'))
    }
}

/// Where the process with these groups is.
///
/// # Errors
/// See [`CgroupError`].
pub fn locate(text: &str, root: &Root) -> Result<InPod, CgroupError> {
    let mut found: Option<(InPod, &str)> = None;
    let mut only_pod: Option<(PodUid, &str)> = None;
    for line in text.lines() {
        let path = line.splitn(3, ':').nth(2).ok_or_else(|| CgroupError::Malformed(shown(line)))?;
        if path.split('/').any(|part| part == "..") {
            return Err(CgroupError::Relative(shown(path)));
        }
        let Some(place) = root.strip(path).and_then(place) else { continue };
        let other =
            found.as_ref().map(|(known, at)| (&known.pod, *at)).or(only_pod.as_ref().map(|(p, at)| (p, *at)));
        if let Some((pod, at)) = other
            && *pod != place.pod
        {
            return Err(CgroupError::Disagree(shown(at), shown(path)));
        }
        match (place.container, &found) {
            (Some(container), Some((known, at))) if known.container != container => {
                return Err(CgroupError::Disagree(shown(at), shown(path)));
            }
            (Some(container), None) => found = Some((InPod { pod: place.pod, container }, path)),
            (Some(_), Some(_)) => {}
            (None, _) => only_pod = Some((place.pod, path)),
        }
    }
    match (found, only_pod) {
        (Some((place, _)), _) => Ok(place),
        (None, Some((pod, path))) => Err(CgroupError::NoContainer { pod, path: shown(path) }),
        (None, None) => Err(CgroupError::NoPod(shown(text.trim_end()))),
    }
}

struct Placed {
    pod: PodUid,
    container: Option<ContainerId>,
}

/// What a path below the root names. The kubelet's groups are `kubepods`, one for the class of service unless that is
/// "guaranteed", the pod's, and the container's, which is the runtime's.
fn place(path: &str) -> Option<Placed> {
    let mut parts = path.split('/').skip(1);
    let top = parts.next()?;
    if let Some((slice, container)) = top.split_once(':') {
        // containerd with the kubelet's systemd driver and without its own: slice, prefix and number in one.
        let pod = pod_of_slice(slice)?;
        return Some(Placed {
            pod,
            container: container.split_once(':').and_then(|(_, id)| id.parse().ok()),
        });
    }
    if !is_kubepods(top) {
        return None;
    }
    let mut part = parts.next()?;
    if is_class(part) {
        part = parts.next()?;
    }
    if let Some((slice, container)) = part.split_once(':') {
        let pod = pod_of_slice(slice)?;
        return Some(Placed {
            pod,
            container: container.split_once(':').and_then(|(_, id)| id.parse().ok()),
        });
    }
    let pod = pod_of(part)?;
    Some(Placed { pod, container: parts.next().and_then(container_of) })
}

fn is_kubepods(part: &str) -> bool {
    part == "kubepods"
        || part == "kubepods.slice"
        || (part.starts_with("kubepods-") && part.contains(".slice:"))
}

fn is_class(part: &str) -> bool {
    matches!(part, "burstable" | "besteffort" | "kubepods-burstable.slice" | "kubepods-besteffort.slice")
}

fn pod_of(part: &str) -> Option<PodUid> {
    part.strip_prefix("pod").and_then(uid).or_else(|| pod_of_slice(part))
}

/// A systemd slice repeats the names of those above it, and has no dashes in the UID.
fn pod_of_slice(part: &str) -> Option<PodUid> {
    let name = part.strip_suffix(".slice")?.strip_prefix("kubepods-")?;
    let name =
        ["burstable-", "besteffort-"].iter().find_map(|class| name.strip_prefix(class)).unwrap_or(name);
    uid(&name.strip_prefix("pod")?.replace('_', "-"))
}

fn uid(text: &str) -> Option<PodUid> {
    let dashed = text.len() == UID_LENGTH
        && text.bytes().enumerate().all(|(at, byte)| match UID_DASHES.contains(&at) {
            true => byte == b'-',
            false => is_lower_hex_digit(byte),
        });
    let of_static_pod = text.len() == STATIC_UID_DIGITS && is_lower_hex(text);
    if dashed || of_static_pod { text.parse().ok() } else { None }
}

/// The runtime's group: the number alone, or a systemd scope. What watches over a container (`crio-conmon-…`) is none.
fn container_of(part: &str) -> Option<ContainerId> {
    let scope = |name: &str| {
        ["cri-containerd-", "crio-", "docker-"].iter().find_map(|p| name.strip_prefix(p)?.parse().ok())
    };
    match part.strip_suffix(".scope") {
        Some(name) => scope(name),
        None => part.parse().ok().or_else(|| part.strip_prefix("crio-")?.parse().ok()),
    }
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(is_lower_hex_digit)
}

const fn is_lower_hex_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

fn shown(text: &str) -> String {
    let line = text.lines().collect::<Vec<_>>().join(" | ");
    let mut short: String = line.chars().take(SHOWN).collect();
    if short.len() < line.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests;
