//! Which system calls the filters are about.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{BackendError, SeccompCondition, SeccompRule};

/// Rules for each call; none: whatever its arguments.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Calls that pass whatever their arguments: they act on what the process has already.
const PLAIN: &[c_long] = &[
    // Descriptors.
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_ftruncate,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    // Looking at files by name.
    libc::SYS_newfstatat,
    libc::SYS_readlinkat,
    libc::SYS_statx,
    // Sockets that are there.
    libc::SYS_accept4,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    // Waiting.
    libc::SYS_clock_nanosleep,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Threads and their end.
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_membarrier,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sigaltstack,
    // Who and when we are; other processes by descriptor, to see their end.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_getcpu,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_pidfd_open,
    libc::SYS_uname,
];

/// The older calls that only x86-64 has.
#[cfg(target_arch = "x86_64")]
const OLDER: &[c_long] = &[libc::SYS_epoll_wait, libc::SYS_poll, libc::SYS_readlink, libc::SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[c_long] = &[];

/// Calls that no library of ours tries.
const HOSTILE: &[c_long] = &[
    // Running programs.
    libc::SYS_execve,
    libc::SYS_execveat,
    // Other processes.
    libc::SYS_kill,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_tkill,
    // Mounts, namespaces, roots.
    libc::SYS_chroot,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_pivot_root,
    libc::SYS_setns,
    libc::SYS_umount2,
    libc::SYS_unshare,
    // Other users, other rights.
    libc::SYS_capset,
    libc::SYS_setfsgid,
    libc::SYS_setfsuid,
    libc::SYS_setgid,
    libc::SYS_setgroups,
    libc::SYS_setregid,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    libc::SYS_setreuid,
    libc::SYS_setuid,
    // The kernel itself, and ways around a filter.
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_perf_event_open,
    libc::SYS_personality,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_userfaultfd,
];

/// `PR_SET_VMA` of `linux/prctl.h`: the C library names its memory.
const PR_SET_VMA: u64 = 0x5356_4d41;
/// `__O_TMPFILE` of `asm-generic/fcntl.h`.
const O_TMPFILE_BIT: libc::c_int = 0o20_000_000;

/// What the process needs. `folder` is the number of the descriptor under which it may write, `own` its own process.
pub(super) fn needed(folder: u64, own: u64) -> Result<Rules, BackendError> {
    let mut rules: Rules = PLAIN.iter().chain(OLDER).map(|call| (*call, Vec::new())).collect();
    let mut only = |call: c_long, cases: Vec<Vec<SeccompCondition>>| -> Result<(), BackendError> {
        let cases = cases.into_iter().map(SeccompRule::new).collect::<Result<_, _>>()?;
        rules.insert(call, cases);
        Ok(())
    };
    let is = |argument: u8, value: u64| SeccompCondition::new(argument, Dword, Eq, value);
    let one_of = |argument: u8, values: &[u64]| -> Result<Vec<Vec<SeccompCondition>>, BackendError> {
        values.iter().map(|value| Ok(vec![is(argument, *value)?])).collect()
    };
    let flags = |bits: libc::c_int| u64::from(bits.unsigned_abs());

    // Threads, not processes.
    let thread = flags(libc::CLONE_THREAD | libc::CLONE_VM);
    only(libc::SYS_clone, vec![vec![SeccompCondition::new(0, Qword, MaskedEq(thread), thread)?]])?;
    only(libc::SYS_tgkill, vec![vec![is(0, own)?]])?;
    only(libc::SYS_prctl, one_of(0, &[flags(libc::PR_SET_NAME), PR_SET_VMA])?)?;
    only(libc::SYS_prlimit64, vec![vec![is(0, 0)?, SeccompCondition::new(2, Qword, Eq, 0)?]])?;

    // Unix sockets, not those of a network.
    let unix = flags(libc::AF_UNIX);
    only(libc::SYS_socket, vec![vec![is(0, unix)?]])?;
    only(libc::SYS_socketpair, vec![vec![is(0, unix)?]])?;

    // Reading, and writing by way of the folder: that no path leads out of these is Landlock's part.
    let write = flags(libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | O_TMPFILE_BIT);
    let read_only = vec![SeccompCondition::new(2, Dword, MaskedEq(write), 0)?];
    only(libc::SYS_openat, vec![read_only, vec![is(0, folder)?]])?;
    only(libc::SYS_unlinkat, vec![vec![is(0, folder)?]])?;
    only(libc::SYS_renameat2, vec![vec![is(0, folder)?, is(2, folder)?]])?;
    only(libc::SYS_renameat, vec![vec![is(0, folder)?, is(2, folder)?]])?;

    // Not those by which a descriptor sends signals.
    let commands = [libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL];
    only(libc::SYS_fcntl, one_of(1, &commands.map(flags))?)?;
    only(libc::SYS_ioctl, one_of(1, &[libc::FIONBIO, libc::TCGETS])?)?;
    Ok(rules)
}

/// What ends the process.
pub(super) fn hostile() -> Rules {
    HOSTILE.iter().map(|call| (*call, Vec::new())).collect()
}

/// What is said not to exist, because its arguments cannot be seen.
pub(super) fn unseen() -> Rules {
    [(libc::SYS_clone3, Vec::new())].into()
}
