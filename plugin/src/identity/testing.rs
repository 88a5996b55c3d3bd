//! A process for tests of what is read of processes.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

/// A process whose name the kernel has cut within a letter, so that it is no text. It lives until this is dropped.
pub(crate) struct Misnamed(Child);

impl Misnamed {
    pub(crate) fn start() -> Self {
        // The shell names itself: no program is started for that.
        let script = "printf обучение_модели > /proc/self/comm && echo && read -r until";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let process = Self(child);
        let name = std::fs::read(format!("/proc/{}/comm", process.pid())).unwrap();
        assert!(said == "\n" && str::from_utf8(&name).is_err(), "{name:?}");
        process
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Misnamed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
