//! Which runtime it is, and what it can do.

use crate::proto::nri::ConfigureRequest;

/// The runtime, as it says itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runtime {
    /// "containerd", "cri-o".
    pub name: String,
    /// Its own version.
    pub version: String,
    /// The version of NRI in it; empty before 0.12.
    pub nri: String,
}

/// What a runtime can do with a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Can {
    /// It puts a container into a namespace that a plugin names.
    pub namespaces: bool,
    /// It asks plugins whether they agree with what all of them made of a container. Without it, a plugin that dies
    /// while a container is made does not hold that container up.
    pub validates: bool,
}

/// The first NRI that can do either.
const BOTH_SINCE: (u32, u32) = (0, 10);
/// The runtimes that had it first.
const RUNTIMES_SINCE: [(&str, (u32, u32)); 2] = [("containerd", (2, 2)), ("cri-o", (1, 34))];

impl Runtime {
    /// What it can do, by its version of NRI; where it does not say that, by its own.
    ///
    /// Of a version that cannot be read, namespaces are assumed: what a container got is looked at anyway. That it
    /// validates is not: a runtime that does not know the word would not have us at all.
    #[must_use]
    pub fn can(&self) -> Can {
        let own = || {
            let (_, since) = RUNTIMES_SINCE.iter().find(|(name, _)| self.name.eq_ignore_ascii_case(name))?;
            Some(version(&self.version)? >= *since)
        };
        match version(&self.nri).map(|nri| nri >= BOTH_SINCE).or_else(own) {
            Some(both) => Can { namespaces: both, validates: both },
            None => Can { namespaces: true, validates: false },
        }
    }
}

impl From<ConfigureRequest> for Runtime {
    fn from(said: ConfigureRequest) -> Self {
        Self { name: said.runtime_name, version: said.runtime_version, nri: said.nri_version }
    }
}

/// The first two numbers of `v1.2.3-x`, `1.2`, `1.2~beta`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.strip_prefix('v').unwrap_or(text).splitn(3, '.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next()?;
    let end = minor.find(|c: char| !c.is_ascii_digit()).unwrap_or(minor.len());
    Some((major, minor[..end].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn can(name: &str, version: &str, nri: &str) -> (bool, bool) {
        let can = Runtime { name: name.into(), version: version.into(), nri: nri.into() }.can();
        (can.namespaces, can.validates)
    }

    #[test]
    fn by_the_version_of_nri_before_the_runtimes_own() {
        assert_eq!(can("containerd", "v2.4.2", "v0.12.3"), (true, true));
        assert_eq!(can("containerd", "v2.1.0", "v0.8.0"), (false, false));
        assert_eq!(can("containerd", "hash", "0.10.0-rc.1"), (true, true));
        assert_eq!(can("another", "1.0", "v1.0.0"), (true, true));
    }

    #[test]
    fn by_the_runtimes_own_where_it_says_no_other() {
        for (version, both) in [
            ("1.7.27-0ubuntu1", false),
            ("v2.1.9", false),
            ("v2.2.0", true),
            ("2.2~rc1", true),
            ("v2.10.0-k3s1", true),
        ] {
            assert_eq!(can("containerd", version, ""), (both, both), "{version}");
            assert_eq!(can("containerd", version, "(devel)"), (both, both), "{version}");
        }
        assert_eq!(can("cri-o", "1.33.7", ""), (false, false));
        assert_eq!(can("CRI-O", "1.34.0-dev", ""), (true, true));
    }

    #[test]
    fn what_cannot_be_read_gets_the_chance_and_is_not_asked_for_more_than_it_may_know() {
        for (name, version) in
            [("containerd", "e7ad18d.m"), ("containerd", ""), ("containerd", "2"), ("another", "9.9")]
        {
            assert_eq!(can(name, version, "unknown"), (true, false), "{name} {version}");
        }
    }

    proptest! {
        #[test]
        fn any_words_are_read(name in ".*", version in ".*", nri in "[v0-9.a-z+-]*") {
            let can = Runtime { name, version, nri }.can();
            prop_assert!(can.namespaces || !can.validates);
        }
    }
}
