//! What `/proc` says of a process. Both files are readable by everybody, unless `/proc` is mounted with `hidepid`.

use std::io;

/// `PF_EXITING` of the kernel's process flags.
const EXITING: u64 = 0x4;

/// Places in `/proc/PID/stat` after the command's name: the flags, and when the process began.
const FLAGS: usize = 6;
const START: usize = 19;

/// A file of it. Both begin with the program's name, of which the kernel keeps 15 bytes: the last letter may be half of one.
pub(crate) fn text(pid: u32, file: &str) -> io::Result<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/{file}"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether the process is exiting, by the flags in `/proc/PID/stat`; an error means that it is gone.
pub(super) fn exiting(pid: u32, started: u64) -> io::Result<bool> {
    let stat = std::fs::read(format!("/proc/{pid}/stat"))?;
    Ok(start_in(&stat) != Some(started) || number_in(&stat, FLAGS).is_none_or(|flags| flags & EXITING != 0))
}

/// When the process that has this number began, in ticks since the machine's start.
pub(crate) fn started(pid: u32) -> io::Result<u64> {
    start_in(&std::fs::read(format!("/proc/{pid}/stat"))?).ok_or_else(|| strange(pid))
}

/// The same, of the process whose `stat` this is.
pub(crate) fn start_in(stat: &[u8]) -> Option<u64> {
    number_in(stat, START)
}

/// The command name may hold blanks and parentheses, and bytes that are no text: fields are counted after the last one.
fn number_in(stat: &[u8], field: usize) -> Option<u64> {
    let name_ends = stat.iter().rposition(|byte| *byte == b')')?;
    str::from_utf8(&stat[name_ends + 1..]).ok()?.split_whitespace().nth(field)?.parse().ok()
}

fn strange(pid: u32) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid} reads strangely"))
}

/// The users that a process is: by whom it was started, as whom it acts, as whom it may, and towards files.
pub(super) fn users(pid: u32) -> io::Result<[u32; 4]> {
    let status = text(pid, "status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    let all: Vec<u32> = line.split_whitespace().filter_map(|uid| uid.parse().ok()).collect();
    all.try_into().map_err(|_| strange(pid))
}

/// What `/proc` says of a process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProcFacts {
    pub(super) started: u64,
    pub(super) own_pid: u32,
    pub(super) uid: u32,
}

impl ProcFacts {
    pub(super) fn read(pid: u32) -> io::Result<Self> {
        Self::parse(&text(pid, "stat")?, &text(pid, "status")?).ok_or_else(|| strange(pid))
    }

    fn parse(stat: &str, status: &str) -> Option<Self> {
        let started = start_in(stat.as_bytes())?;
        let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name));
        let own_pid = field("NSpid:")?.split_whitespace().last()?.parse().ok()?;
        let uid = field("Uid:")?.split_whitespace().nth(1)?.parse().ok()?;
        Some(Self { started, own_pid, uid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::testing::Misnamed;

    #[test]
    fn a_name_that_is_cut_within_a_letter_hides_nothing() {
        let process = Misnamed::start();
        let own = ProcFacts::read(std::process::id()).unwrap();
        let facts = ProcFacts::read(process.pid()).unwrap();
        assert_eq!((facts.own_pid, facts.uid), (process.pid(), own.uid));
        assert!(facts.started >= own.started);
        assert_eq!(users(process.pid()).unwrap(), users(std::process::id()).unwrap());
        assert!(!exiting(process.pid(), facts.started).unwrap());
    }

    #[test]
    fn proc_is_read_past_strange_command_names() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 9876 20 21";
        let status = "Name:\ta\nUid:\t1000\t1001\t1000\t1000\nNSpid:\t42\t7\t1\n";
        let facts = ProcFacts::parse(stat, status).unwrap();
        assert_eq!(facts, ProcFacts { started: 9876, own_pid: 1, uid: 1001 });
        assert_eq!(ProcFacts::parse("garbage", status), None);
        assert_eq!(ProcFacts::parse(stat, ""), None);
    }
}
