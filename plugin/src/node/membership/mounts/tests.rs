use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{StatVfsMountFlags, statvfs};

use super::*;

/// Set in the process that has mounts of its own.
const APART: &str = "GPU_HANDOFF_TEST_APART";

/// Whether this process has mounts of its own. Where it has not, the test of this name is run once more, by one that has.
fn has_own_mounts(test: &str) -> bool {
    if std::env::var_os(APART).is_some() {
        return true;
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "--propagation", "private"]);
        command
    };
    match unshare().arg("true").output() {
        Ok(output) if output.status.success() => {}
        other => {
            assert!(
                std::env::var("GPU_HANDOFF_TESTS").as_deref() != Ok("all"),
                "cannot make namespaces: {other:?}"
            );
            // Not by a macro: the harness hides what those print in a test that passes.
            let line = format!("SKIPPED: {test}: this user cannot make namespaces ({other:?})\n");
            let _unheard = std::io::stderr().write_all(line.as_bytes());
            return false;
        }
    }
    let name = format!("node::membership::mounts::tests::{test}");
    let own = std::env::current_exe().unwrap();
    let output = unshare().arg(own).args(["--exact", &name]).env(APART, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

/// A slot, and where it is to be in a pod.
fn slot(place: &Path) -> (PathBuf, PathBuf) {
    let folder = place.join("slot");
    std::fs::create_dir(&folder).unwrap();
    drop(std::os::unix::net::UnixListener::bind(folder.join("slot.sock")).unwrap());
    (folder, place.join("target"))
}

/// How many mounts are at a place.
fn layers(target: &Path) -> usize {
    let all = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    all.lines().filter(|line| line.split(' ').nth(4) == target.to_str()).count()
}

fn is_as_it_should_be(target: &Path) {
    let flags = statvfs(target).unwrap().f_flag;
    let wanted = StatVfsMountFlags::RDONLY
        | StatVfsMountFlags::NOSUID
        | StatVfsMountFlags::NODEV
        | StatVfsMountFlags::NOEXEC;
    assert!(flags.contains(wanted), "{flags:?}");
    let there = std::fs::read_dir(target).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(there.collect::<Vec<_>>(), ["slot.sock"]);
    // Whatever its rights: even this process, which is root there, cannot put anything in the socket's place.
    let read_only = rustix::io::Errno::ROFS.raw_os_error();
    for denied in [
        std::fs::write(target.join("new"), ""),
        std::fs::remove_file(target.join("slot.sock")),
        std::fs::rename(target.join("slot.sock"), target.join("other")),
    ] {
        assert_eq!(denied.unwrap_err().raw_os_error(), Some(read_only));
    }
    assert_eq!(layers(target), 1);
}

#[test]
fn a_pod_sees_the_slots_socket_alone_and_can_change_nothing() {
    if !has_own_mounts("a_pod_sees_the_slots_socket_alone_and_can_change_nothing") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (folder, target) = slot(place.path());
    mount(&folder, &target).unwrap();
    is_as_it_should_be(&target);
    // The kubelet asks again.
    mount(&folder, &target).unwrap();
    is_as_it_should_be(&target);
    // The node's own side is the node's.
    std::fs::write(folder.join("own"), "").unwrap();
    std::fs::remove_file(folder.join("own")).unwrap();
    unmount(&target).unwrap();
    assert!(!target.exists() && folder.join("slot.sock").exists());
    unmount(&target).unwrap();
}

#[test]
fn a_mount_that_a_crash_left_half_done_is_made_whole_and_all_layers_are_taken_down() {
    if !has_own_mounts("a_mount_that_a_crash_left_half_done_is_made_whole_and_all_layers_are_taken_down") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (folder, target) = slot(place.path());
    std::fs::create_dir(&target).unwrap();
    mount_bind(&folder, &target).unwrap();
    std::fs::write(target.join("new"), "").unwrap();
    std::fs::remove_file(target.join("new")).unwrap();
    mount(&folder, &target).unwrap();
    is_as_it_should_be(&target);
    mount_bind(&folder, &target).unwrap();
    mount_bind(&folder, &target).unwrap();
    assert_eq!(layers(&target), 3);
    unmount(&target).unwrap();
    assert!(!target.exists() && layers(&target) == 0);
}
