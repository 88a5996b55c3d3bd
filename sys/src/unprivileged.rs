//! Starting a process with no privilege of any kind, whoever we are ourselves.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Whom a process runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// Its user.
    pub uid: u32,
    /// Its group; it is in no other.
    pub gid: u32,
}

/// Makes `command` start as `user` (`None`: as ourselves), without supplementary groups where the user changes, without
/// a capability, unable to gain any by a program that it runs, and ended when the thread that starts it is.
///
/// Changing the user takes root, and so does being set apart by [`crate::isolate`]: apply that first where it is done
/// with root's right.
pub fn confine(command: &mut Command, user: Option<User>) {
    let parent = std::process::id();
    // SAFETY: between fork and exec only async-signal-safe system calls are made, without allocating.
    unsafe { command.pre_exec(move || give_up(user, parent)) };
}

/// The steps between fork and exec.
fn give_up(user: Option<User>, parent: u32) -> io::Result<()> {
    if let Some(User { uid, gid }) = user {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    }
    // Root loses them with its user; one that has some without being root, or stays root, loses them here.
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(
        None,
        CapabilitySets { effective: none, permitted: none, inheritable: none },
    )?;
    // Root's own number, and files with a set-user-id bit, give no capability back.
    rustix::thread::set_no_new_privs(true)?;
    // Last: a change of user undoes it.
    crate::isolate::end_with_parent(parent)
}

/// Whether this process may start others as `uid`: it is root, and the number means something in its user namespace.
#[must_use]
pub fn can_become(uid: u32) -> bool {
    rustix::process::geteuid().is_root()
        && maps(&std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default(), uid)
}

/// Whether a user namespace with this map knows the user.
fn maps(map: &str, uid: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(|n| n.parse::<u64>().ok());
        let (Some(Some(first)), Some(Some(_outside)), Some(Some(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        (first..first.saturating_add(count)).contains(&u64::from(uid))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a confined `cat /proc/self/status` says of a field.
    fn status(user: Option<User>) -> impl Fn(&str) -> String {
        let mut command = Command::new("cat");
        command.arg("/proc/self/status");
        confine(&mut command, user);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        move |field| {
            let line = text.lines().find_map(|l| l.strip_prefix(&format!("{field}:")));
            line.unwrap_or_else(|| panic!("no {field}")).split_whitespace().collect::<Vec<_>>().join(" ")
        }
    }

    fn assert_no_privilege(status: &impl Fn(&str) -> String) {
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(status(set), "0000000000000000", "{set}");
        }
        assert_eq!(status("NoNewPrivs"), "1");
    }

    #[test]
    fn a_confined_process_has_no_capability_even_as_ourselves() {
        let status = status(None);
        assert_no_privilege(&status);
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(status("Uid"), format!("{own} {own} {own} {own}"));
    }

    #[test]
    fn root_starts_it_as_another_user_without_groups() {
        if !can_become(65_532) {
            let line = "SKIPPED: root_starts_it_as_another_user_without_groups: this user is not root\n";
            let _unheard = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
            return;
        }
        let status = status(Some(User { uid: 65_532, gid: 65_531 }));
        assert_no_privilege(&status);
        assert_eq!(status("Uid"), "65532 65532 65532 65532");
        assert_eq!(status("Gid"), "65531 65531 65531 65531");
        assert_eq!(status("Groups"), "");
    }

    #[test]
    fn a_user_namespace_knows_whom_it_maps() {
        assert!(maps("         0          0 4294967295\n", 65_532));
        assert!(!maps("         0       1000          1\n", 65_532));
        assert!(maps("0 1000 1\n1 100000 65536\n", 65_532));
        assert!(!maps("", 0));
    }
}
