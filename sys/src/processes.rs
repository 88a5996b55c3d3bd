//! Which processes a process started, also on a kernel that keeps no list of them (`CONFIG_PROC_CHILDREN`).

use std::io;

/// The children of a process, whichever of its threads started them, by their numbers in our PID namespace. Processes come and go:
/// one that is gone has none.
///
/// # Errors
/// When `/proc` cannot be listed, or hides a process from us.
pub fn children(pid: u32) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if parent(number)? == Some(pid) {
            found.push(number);
        }
    }
    Ok(found)
}

/// The parent of a process; `None` of one that is gone.
fn parent(pid: u32) -> io::Result<Option<u32>> {
    let status = match std::fs::read(format!("/proc/{pid}/status")) {
        Ok(status) => status,
        Err(e) if e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(libc::ESRCH) => {
            return Ok(None);
        }
        Err(e) => return Err(e),
    };
    // A process's name, which stands before, can be any bytes except for a line's end.
    let field = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"PPid:"));
    let number = field.and_then(|field| str::from_utf8(field).ok()?.trim().parse().ok());
    number.map(Some).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("no PPid of {pid}")))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn sleep() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    #[test]
    fn children_of_all_threads_are_found_until_they_are_waited_for() {
        let own = std::process::id();
        let (send, started) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            send.send(sleep()).unwrap();
            // A thread's end would make its children another thread's.
            ended.recv().unwrap_err();
        });
        let mut both = [sleep(), started.recv().unwrap()];
        let found = children(own).unwrap();
        assert!(both.iter().all(|child| found.contains(&child.id())), "{found:?}");
        assert!(!found.contains(&own) && children(both[0].id()).unwrap().is_empty());
        for child in &mut both {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        drop(end);
        thread.join().unwrap();
        let found = children(own).unwrap();
        assert!(!both.iter().any(|child| found.contains(&child.id())), "{found:?}");
        assert!(children(both[0].id()).unwrap().is_empty());
    }
}
