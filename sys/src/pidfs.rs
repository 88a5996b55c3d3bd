//! The numbers that the kernel gives processes beside their PID: from Linux 6.9 on a pidfd is a file of a file system of
//! its own, whose inode numbers are not used twice while the machine runs.

use std::io;
use std::os::fd::BorrowedFd;

/// `PID_FS_MAGIC` of `linux/magic.h` (Linux 6.9).
const PID_FS_MAGIC: u64 = 0x5049_4446;

/// The inode number of a pidfd; `None` where the kernel has none: before Linux 6.9 all pidfds share one inode, which
/// says nothing.
///
/// # Errors
/// What `fstatfs` and `fstat` answer.
pub fn inode(pidfd: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    let file_system = rustix::fs::fstatfs(pidfd)?;
    if u64::try_from(file_system.f_type) != Ok(PID_FS_MAGIC) {
        return Ok(None);
    }
    Ok(Some(rustix::fs::fstat(pidfd)?.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
    use std::os::fd::AsFd;

    #[test]
    fn each_process_has_a_number_of_its_own_or_the_kernel_has_none() {
        let of = |pid: Pid| inode(pidfd_open(pid, PidfdFlags::empty()).unwrap().as_fd()).unwrap();
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (own, others) = (of(getpid()), of(Pid::from_child(&other)));
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(own, of(getpid()));
        assert_eq!(own.is_some(), others.is_some());
        if own.is_some() {
            assert_ne!(own, others);
        }
    }

    #[test]
    fn a_file_that_is_no_pidfd_has_none() {
        let file = std::fs::File::open("/proc/self/status").unwrap();
        assert_eq!(inode(file.as_fd()).unwrap(), None);
    }
}
