//! Each test runs again as a process of its own, which filters itself.

use super::*;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use rustix::fs::{Mode, OFlags, openat};

/// Tells this program, started again as a test's filtered process, what to try.
const ROLE: &str = "GPU_HANDOFF_FILTER_TEST";

/// What the filtered process is to try; `None` in the process that starts it.
fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Runs the test `name` as the filtered process.
fn filtered(name: &str, role: &str) -> (ExitStatus, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("filter::tests::{name}"), "--nocapture"]).env(ROLE, role);
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status, String::from_utf8_lossy(&said).into_owned())
}

/// Calls the kernel; no call here gives it memory of ours to write to.
fn call(number: libc::c_long, arguments: [libc::c_long; 5]) -> io::Result<libc::c_long> {
    let [a, b, c, d, e] = arguments;
    // SAFETY: every argument is a number, null or a path that lives for ever: the kernel writes nothing.
    let answer = unsafe { libc::syscall(number, a, b, c, d, e) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

fn address(text: &'static std::ffi::CStr) -> libc::c_long {
    text.as_ptr() as libc::c_long
}

fn denied<T>(outcome: Result<T, impl Into<io::Error>>) -> bool {
    outcome.is_err_and(|e| Into::<io::Error>::into(e).raw_os_error() == Some(libc::EPERM))
}

#[test]
fn what_the_process_needs_works() {
    let Some(path) = role() else {
        let path = std::env::temp_dir().join(format!("gpu-handoff-filter-test-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let (status, said) = filtered("what_the_process_needs_works", path.to_str().unwrap());
        std::fs::remove_dir(&path).unwrap();
        assert!(status.success() && said.contains("1 passed"), "{status} {said}");
        return;
    };
    let folder = File::open(path).unwrap();
    install(folder.as_fd()).unwrap();
    // Threads with names, of the C library's making.
    let thread = std::thread::Builder::new().name("other".to_owned()).spawn(|| 7).unwrap();
    assert_eq!(thread.join().unwrap(), 7);
    // What /proc says, of ourselves and of others.
    assert!(std::fs::read_to_string("/proc/thread-self/status").unwrap().contains("Seccomp:\t2"));
    assert!(!std::fs::read_to_string("/proc/1/stat").unwrap().is_empty());
    rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty()).unwrap();
    // Unix sockets, descriptors, waiting.
    let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
    a.set_nonblocking(true).unwrap();
    assert_eq!(crate::peer::peer_of(b.as_fd()).unwrap().pid, rustix::process::getpid());
    drop(a.try_clone().unwrap());
    std::thread::sleep(std::time::Duration::from_millis(1));
    // Files in the folder: made, written, put in the place of others, removed.
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::APPEND | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(&folder, "new", flags, Mode::RUSR | Mode::WUSR).unwrap();
    rustix::io::write(&file, b"x").unwrap();
    rustix::fs::renameat(&folder, "new", &folder, "old").unwrap();
    rustix::fs::unlinkat(&folder, "old", rustix::fs::AtFlags::empty()).unwrap();
    // And its end by a failure of its own.
    assert!(std::panic::catch_unwind(|| panic!("on purpose")).is_err());
}

#[test]
fn what_it_does_not_need_is_denied() {
    if role().is_none() {
        let (status, said) = filtered("what_it_does_not_need_is_denied", "try");
        assert!(status.success() && said.contains("1 passed"), "{status} {said}");
        return;
    }
    let folder = File::open("/proc").unwrap();
    let elsewhere = File::open(std::env::temp_dir()).unwrap();
    let (_pipe, target) = std::os::unix::net::UnixStream::pair().unwrap();
    install(folder.as_fd()).unwrap();
    for family in [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET, libc::AF_VSOCK] {
        assert!(
            denied(call(libc::SYS_socket, [family.into(), libc::SOCK_STREAM.into(), 0, 0, 0])),
            "{family}"
        );
    }
    // Files, for writing or to be made, anywhere else.
    assert!(denied(File::options().write(true).open("/dev/null")));
    assert!(denied(File::options().read(true).write(true).open("/dev/null")));
    assert!(denied(File::create("/tmp/gpu-handoff-filter-test")));
    assert!(denied(openat(&elsewhere, "x", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR)));
    assert!(denied(openat(&elsewhere, ".", OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR)));
    assert!(denied(std::fs::remove_file("/tmp/gpu-handoff-filter-test")));
    assert!(denied(std::fs::rename("/tmp/a", "/tmp/b")));
    assert!(denied(std::fs::create_dir("/tmp/gpu-handoff-filter-test")));
    assert!(denied(std::os::unix::fs::symlink("/etc", "/tmp/gpu-handoff-filter-test")));
    // A child process; limits of others; signals of our own choice.
    assert!(denied(call(libc::SYS_clone, [libc::SIGCHLD.into(), 0, 0, 0, 0])));
    let parent = libc::c_long::from(std::os::unix::process::parent_id());
    assert!(denied(call(libc::SYS_tgkill, [parent, parent, 0, 0, 0])));
    assert!(denied(call(libc::SYS_prlimit64, [parent, libc::RLIMIT_NOFILE.into(), 0, 0, 0])));
    assert!(denied(call(
        libc::SYS_fcntl,
        [libc::c_long::from(target.as_raw_fd()), libc::F_SETOWN.into(), parent, 0, 0]
    )));
    assert!(denied(call(libc::SYS_prctl, [libc::PR_SET_DUMPABLE.into(), 1, 0, 0, 0])));
    let missing = call(libc::SYS_clone3, [0; 5]).unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(libc::ENOSYS));
}

/// What ends the process, each tried by a process of its own.
#[test]
fn what_only_an_attacker_tries_ends_the_process() {
    let name = "what_only_an_attacker_tries_ends_the_process";
    let own = libc::c_long::from(std::process::id().cast_signed());
    let path = address(c"/bin/true");
    let deeds: [(&str, libc::c_long, [libc::c_long; 5]); 11] = [
        ("execve", libc::SYS_execve, [path, 0, 0, 0, 0]),
        ("execveat", libc::SYS_execveat, [libc::AT_FDCWD.into(), path, 0, 0, 0]),
        ("ptrace", libc::SYS_ptrace, [libc::PTRACE_TRACEME.into(), 0, 0, 0, 0]),
        ("mount", libc::SYS_mount, [path, path, 0, libc::MS_BIND.cast_signed(), 0]),
        ("kill", libc::SYS_kill, [1, 0, 0, 0, 0]),
        ("kill-oneself", libc::SYS_kill, [own, 0, 0, 0, 0]),
        ("setns", libc::SYS_setns, [0, 0, 0, 0, 0]),
        ("unshare", libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0, 0, 0]),
        ("setuid", libc::SYS_setuid, [0, 0, 0, 0, 0]),
        ("io-uring", libc::SYS_io_uring_setup, [1, 0, 0, 0, 0]),
        ("pidfd-send-signal", libc::SYS_pidfd_send_signal, [0, 0, 0, 0, 0]),
    ];
    if let Some(role) = role() {
        let (_, number, arguments) = deeds.into_iter().find(|(name, ..)| *name == role).unwrap();
        let folder = File::open("/proc").unwrap();
        install(folder.as_fd()).unwrap();
        println!("trying");
        let outcome = call(number, arguments);
        println!("survived: {outcome:?}");
        return;
    }
    for (deed, ..) in deeds {
        let (status, said) = filtered(name, deed);
        assert_eq!(status.signal(), Some(libc::SIGSYS), "{deed}: {status} {said}");
        assert!(said.contains("trying") && !said.contains("survived"), "{deed}: {said}");
    }
}

/// The calls name the folder, and the paths lead elsewhere.
#[test]
fn no_path_leads_out_of_the_folder() {
    let name = "no_path_leads_out_of_the_folder";
    let Some(path) = role() else {
        let folder = std::env::temp_dir().join(format!("gpu-handoff-filter-places-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("own")).unwrap();
        std::fs::write(folder.join("secret"), "of others").unwrap();
        let (status, said) = filtered(name, folder.to_str().unwrap());
        let left = std::fs::read_to_string(folder.join("secret"));
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(status.success() && said.contains("1 passed"), "{status} {said}");
        if said.contains("Landlock holds it: Not") {
            assert!(
                std::env::var("GPU_HANDOFF_TESTS").as_deref() != Ok("all"),
                "this kernel has no Landlock"
            );
            let line = format!("SKIPPED: {name}: this kernel has no Landlock\n");
            let _unheard = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
        } else {
            assert_eq!(left.unwrap(), "of others");
        }
        return;
    };
    let folder = File::open(format!("{path}/own")).unwrap();
    let could_be = Held::could_be();
    let held = install(folder.as_fd()).unwrap();
    println!("Landlock holds it: {held:?}");
    assert_eq!(could_be, held);
    if held == Held::Not {
        return;
    }
    let write = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let refused = |outcome: rustix::io::Result<()>, what: &str| {
        assert_eq!(outcome, Err(rustix::io::Errno::ACCESS), "{what}");
    };
    for secret in [format!("{path}/secret"), "../secret".to_owned()] {
        refused(openat(&folder, &secret, OFlags::RDWR, Mode::empty()).map(drop), &secret);
        refused(openat(&folder, &secret, OFlags::RDONLY, Mode::empty()).map(drop), &secret);
        refused(openat(&folder, &secret, OFlags::WRONLY | OFlags::TRUNC, Mode::empty()).map(drop), &secret);
        refused(rustix::fs::unlinkat(&folder, &secret, rustix::fs::AtFlags::empty()), &secret);
    }
    for new in [format!("{path}/new"), "../new".to_owned()] {
        refused(openat(&folder, &new, write, Mode::RUSR).map(drop), &new);
        let own = openat(&folder, "own", write, Mode::RUSR | Mode::WUSR).unwrap();
        drop(own);
        let moved = rustix::fs::renameat(&folder, "own", &folder, &new);
        assert!(moved.is_err(), "{new}");
        rustix::fs::unlinkat(&folder, "own", rustix::fs::AtFlags::empty()).unwrap();
    }
    assert!(std::fs::read_to_string("/etc/passwd").is_err());
    assert!(!std::fs::read_to_string("/proc/1/stat").unwrap().is_empty());
}
