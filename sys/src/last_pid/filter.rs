//! What a process may still do that sets the last number: read and write what it has open, see to its memory, fork, wait
//! and end.

use std::io;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

/// Whatever the arguments: none of these opens, makes or names anything.
const HARMLESS: [c_long; 20] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_close,
    libc::SYS_wait4,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getppid,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
];

/// Installs it, for this thread and all that it starts. There is no way back.
pub(super) fn install() -> io::Result<()> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let first_is = |value: libc::c_int| {
        let value = u64::from(value.unsigned_abs());
        let condition = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)?;
        Ok(vec![SeccompRule::new(vec![condition])?])
    };
    let rules = || -> Result<_, seccompiler::BackendError> {
        let mut rules: std::collections::BTreeMap<_, _> = HARMLESS.map(|call| (call, Vec::new())).into();
        rules.insert(libc::SYS_clone, first_is(libc::SIGCHLD)?);
        rules.insert(libc::SYS_prctl, first_is(libc::PR_SET_PDEATHSIG)?);
        let otherwise = SeccompAction::Errno(libc::EPERM.unsigned_abs());
        SeccompFilter::new(rules, otherwise, SeccompAction::Allow, arch)
    };
    let program = BpfProgram::try_from(rules().map_err(io::Error::other)?).map_err(io::Error::other)?;
    seccompiler::apply_filter(&program).map_err(io::Error::other)
}
