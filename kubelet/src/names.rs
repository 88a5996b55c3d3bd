//! What names in Kubernetes look like. They become parts of paths here, so they are checked where they come in.

use crate::limits;

/// A DNS label (RFC 1123): a namespace, a volume.
#[must_use]
pub fn is_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= limits::LABEL_NAME_BYTES
        && name.bytes().all(inner)
        && name.bytes().next().is_some_and(|byte| byte != b'-')
        && name.bytes().next_back().is_some_and(|byte| byte != b'-')
}

/// A DNS subdomain (RFC 1123): a pod, a service account, a node.
#[must_use]
pub fn is_subdomain(name: &str) -> bool {
    // Its labels may be longer than DNS allows: Kubernetes limits the whole alone.
    let part = |part: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    };
    name.len() <= limits::SUBDOMAIN_BYTES && name.split('.').all(part)
}

/// A pod's UID: a UUID, or of a static pod what its manifest or the kubelet made of it.
#[must_use]
pub fn is_pod_uid(uid: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !uid.is_empty() && uid.len() <= limits::POD_UID_BYTES && uid.bytes().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels() {
        for good in ["a", "0", "default", "kube-system", &"x".repeat(63)] {
            assert!(is_label(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a/b", "..", "a_b", "é", "a\0", &"x".repeat(64)] {
            assert!(!is_label(bad), "{bad}");
        }
    }

    #[test]
    fn subdomains() {
        for good in ["a", "web-0", "node.example.com", "10.0.0.1", &"x".repeat(253)] {
            assert!(is_subdomain(good), "{good}");
        }
        for bad in ["", ".", "..", "a..b", "a.", ".a", "a.-b", "a-.b", "A", "a/b", "a b", &"x".repeat(254)] {
            assert!(!is_subdomain(bad), "{bad}");
        }
    }

    #[test]
    fn uids() {
        for good in ["8c0dd3e6-0d3c-4f0c-9d9e-6c6f3a0a1b2c", "0f3fa3b7e2d1c0b9a8f7e6d5c4b3a291"] {
            assert!(is_pod_uid(good), "{good}");
        }
        for bad in ["", "..", "a/b", "a.b", "A", "a b", &"a".repeat(65)] {
            assert!(!is_pod_uid(bad), "{bad}");
        }
    }
}
