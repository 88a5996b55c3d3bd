//! What a forked child gets from the driver of its parent.

use std::io::Read;
use std::os::fd::AsRawFd;

use super::Raw;

/// Seconds after which a child that does not come back is ended by its own alarm.
const ALARM_S: u32 = 5;

/// How a forked child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkEnd {
    /// The closure came back with this number.
    Answered(u32),
    /// The child was ended by this signal; 14 is the alarm, so it hung.
    Signal(i32),
    /// The child ended by itself without an answer.
    Exited(i32),
    /// There was no child: this error number.
    NoFork(i32),
}

impl Raw {
    /// Forks, runs `probe` in the child, and says how that ended.
    pub fn in_forked_child(self, probe: impl FnOnce(Raw) -> u32) -> ForkEnd {
        let (mut reader, writer) = match std::io::pipe() {
            Ok(ends) => ends,
            Err(error) => return ForkEnd::NoFork(error.raw_os_error().unwrap_or(0)),
        };
        // SAFETY: what the child may do after a fork of a process with threads is what this experiment asks; it touches
        // nothing but the probe's calls and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: each of these takes plain numbers; the buffer lives through the write.
            unsafe {
                libc::alarm(ALARM_S);
                let answer = probe(self).to_le_bytes();
                libc::write(writer.as_raw_fd(), answer.as_ptr().cast(), answer.len());
                libc::_exit(0);
            }
        }
        if child < 0 {
            return ForkEnd::NoFork(std::io::Error::last_os_error().raw_os_error().unwrap_or(0));
        }
        drop(writer);
        let mut answer = [0; 4];
        let answered = reader.read_exact(&mut answer).is_ok();
        let mut code = 0;
        // SAFETY: the child is ours and is waited for once; the code lives through the call.
        unsafe { libc::waitpid(child, &raw mut code, 0) };
        match answered {
            true => ForkEnd::Answered(u32::from_le_bytes(answer)),
            false if libc::WIFSIGNALED(code) => ForkEnd::Signal(libc::WTERMSIG(code)),
            false => ForkEnd::Exited(libc::WEXITSTATUS(code)),
        }
    }
}
