//! What processes take of the machine: memory, processor time, descriptors.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::Context;
use gpu_handoff_sys::processes::children;
use rustix::process::Resource;

/// A process and all that it started, by number.
///
/// # Errors
/// When `/proc` does not tell.
pub fn family(pid: u32) -> anyhow::Result<BTreeSet<u32>> {
    let mut found = BTreeSet::from([pid]);
    let mut look = vec![pid];
    while let Some(parent) = look.pop() {
        let children = children(parent).context("look for children in /proc")?;
        look.extend(children.into_iter().filter(|child| found.insert(*child)));
    }
    Ok(found)
}

/// Those of a process's family that were started in this mode, which is the first word after the program's name.
///
/// # Errors
/// As of [`family`].
pub fn family_in_mode(pid: u32, mode: &str) -> anyhow::Result<Vec<u32>> {
    let is_it = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).nth(1) == Some(mode.as_bytes())
    };
    Ok(family(pid)?.into_iter().filter(is_it).collect())
}

fn threads(pid: u32) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The memory of a process in bytes, what it shares counted in proportion (PSS).
///
/// # Errors
/// When the process is gone or is another user's.
pub fn pss_bytes(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|l| l.split_whitespace().next()).and_then(|n| n.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("no Pss in {path}"))? << 10)
}

/// The memory of several processes together, in bytes (PSS).
///
/// # Errors
/// When one of them cannot be looked at.
pub fn pss_of_all(pids: &BTreeSet<u32>) -> anyhow::Result<u64> {
    pids.iter().map(|pid| pss_bytes(*pid)).sum()
}

/// Time that all live threads of these processes have spent on a processor, user and system together. The scheduler's own
/// count, in nanoseconds: that of `/proc/PID/stat` is in hundredths of a second, too coarse for an idle process.
///
/// # Errors
/// When one of the processes is gone, or the kernel does not count.
pub fn processor_time(pids: &BTreeSet<u32>) -> anyhow::Result<Duration> {
    let mut nanos = 0;
    for pid in pids {
        for thread in threads(*pid) {
            let path = format!("/proc/{pid}/task/{thread}/schedstat");
            let text = match fs::read_to_string(&path) {
                Ok(text) => text,
                // A thread that has ended since it was listed, and takes its count along.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound && thread != *pid => continue,
                Err(e) => return Err(e).with_context(|| format!("read {path}")),
            };
            let first = text.split_whitespace().next().and_then(|n| n.parse::<u64>().ok());
            nanos += first.with_context(|| format!("no number in {path}"))?;
        }
    }
    Ok(Duration::from_nanos(nanos))
}

/// Processor time that these processes use while `during` runs, as a share of one processor.
///
/// # Errors
/// What `during` or the look at the processes gives.
pub fn processor_share<T>(
    pids: &BTreeSet<u32>,
    during: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(f64, T)> {
    let (begin, before) = (Instant::now(), processor_time(pids)?);
    let outcome = during()?;
    let used = processor_time(pids)?.saturating_sub(before);
    Ok((used.as_secs_f64() / begin.elapsed().as_secs_f64(), outcome))
}

/// Descriptors that a process has open.
///
/// # Errors
/// When the process is gone or is another user's.
pub fn descriptors(pid: u32) -> anyhow::Result<usize> {
    let folder = format!("/proc/{pid}/fd");
    Ok(fs::read_dir(&folder).with_context(|| format!("list {folder}"))?.count())
}

/// How many descriptors a process of ours may raise its limit to; `None`: there is no limit.
#[must_use]
pub fn descriptor_limit() -> Option<u64> {
    rustix::process::getrlimit(Resource::Nofile).maximum
}

/// How many threads wanted a processor of the machine in the last minute, on average: what a measurement shared it with.
///
/// # Errors
/// When the kernel does not tell.
pub fn load_average() -> anyhow::Result<f64> {
    let text = fs::read_to_string("/proc/loadavg").context("read /proc/loadavg")?;
    let first = text.split_whitespace().next().and_then(|n| n.parse().ok());
    first.context("no number in /proc/loadavg")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_takes_memory_time_and_descriptors() {
        let own = std::process::id();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let family = family(own).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(family.contains(&own) && family.contains(&child.id()), "{family:?}");
        assert!(pss_bytes(own).unwrap() > 100 << 10);
        assert!(processor_time(&BTreeSet::from([own])).unwrap() > Duration::ZERO);
        assert!(descriptors(own).unwrap() >= 3);
    }

    #[test]
    fn who_works_uses_a_processor() {
        let busy = || {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(50) {}
            Ok(())
        };
        let (share, ()) = processor_share(&BTreeSet::from([std::process::id()]), busy).unwrap();
        assert!(share > 0.05, "{share}");
    }
}
