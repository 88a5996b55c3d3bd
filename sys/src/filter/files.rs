//! Where the process may make, write and read files: rules that the kernel keeps by the files themselves, however a path
//! leads to them (Landlock). The filter of system calls sees numbers alone, and no paths.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};

/// How far the running kernel holds the process to its places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Wholly.
    Fully,
    /// An older kernel: files cannot be made, removed or opened elsewhere, but not all that is wanted is held.
    Partly,
    /// Not at all: the kernel has no Landlock, or it is not switched on.
    Not,
}

/// What is asked of the kernel; an older one does what it can of it.
const WANTED: ABI = ABI::V6;

impl Held {
    /// How far this kernel could hold a process, which is found out without any restriction.
    #[must_use]
    pub fn could_be() -> Self {
        let can = |abi: ABI| {
            let files = Ruleset::default()
                .set_compatibility(CompatLevel::HardRequirement)
                .handle_access(AccessFs::from_all(abi));
            let scope = Scope::from_all(abi);
            // The oldest kernels know of no scope at all.
            let all = files.and_then(|rules| if scope.is_empty() { Ok(rules) } else { rules.scope(scope) });
            all.and_then(Ruleset::create).is_ok()
        };
        match (can(WANTED), can(ABI::V1)) {
            (true, _) => Self::Fully,
            (false, true) => Self::Partly,
            (false, false) => Self::Not,
        }
    }
}

/// What holds the process to its own files, for people.
impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fully => "by Landlock, whatever the path",
            Self::Partly => {
                "by Landlock, whatever the path, but this kernel leaves out what newer ones hold: truncating files (Linux 6.2), devices (6.10), signals and abstract sockets (6.12)"
            }
            Self::Not => "by its user alone: this kernel has no Landlock, or it is not switched on",
        })
    }
}

/// Files may be made, written, removed and read beneath `folder`, and read beneath `/proc`. Nothing else is opened; no signal
/// goes to another process, and no abstract socket of others is connected to.
pub(super) fn hold(folder: BorrowedFd<'_>) -> io::Result<Held> {
    let read: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg | AccessFs::RemoveFile;
    let proc = PathFd::new("/proc").map_err(io::Error::other)?;
    let outcome = Ruleset::default()
        .handle_access(AccessFs::from_all(WANTED))
        .and_then(|rules| rules.scope(Scope::from_all(WANTED)))
        .and_then(Ruleset::create)
        .and_then(|rules| rules.add_rule(PathBeneath::new(folder, read | write)))
        .and_then(|rules| rules.add_rule(PathBeneath::new(proc, read)))
        .and_then(landlock::RulesetCreated::restrict_self);
    match outcome.map_err(io::Error::other)?.ruleset {
        RulesetStatus::FullyEnforced => Ok(Held::Fully),
        RulesetStatus::PartiallyEnforced => Ok(Held::Partly),
        RulesetStatus::NotEnforced => Ok(Held::Not),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_kernel_is_not_said_to_hold_nothing() {
        let [fully, partly, not] = [Held::Fully, Held::Partly, Held::Not].map(|held| held.to_string());
        assert!(partly.starts_with(&fully) && partly.len() > fully.len());
        assert!(not.contains("user alone") && !partly.contains("user alone"));
    }
}
