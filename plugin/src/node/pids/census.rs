//! Which processes of which pods there are, in which PID namespaces, and which of them have a GPU open.
//!
//! Only text of `/proc` is read, and no file of a pod is touched, so nothing here waits for anybody. A process that was
//! no pod's is not looked at again, until all are: a pod's process could have got the number of one that ended between
//! two looks.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::path::Path;

use gpu_handoff_protocol::PodUid;
use tracing::warn;

use crate::identity::{self, cgroup::InPod};
use crate::limits;

/// A process of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inhabitant {
    /// Its number here.
    pub pid: u32,
    /// When it started, in clock ticks after boot.
    pub started: u64,
    /// Where it is.
    pub place: InPod,
    /// Its PID namespace, as `/proc/PID/ns` names it.
    pub namespace: u64,
    /// How many namespaces it has a number in, from ours inwards.
    pub depth: usize,
    /// Its number in the innermost one: what it takes for its own.
    pub number: u32,
    /// It has a GPU's device node open.
    pub has_gpu: bool,
}

/// Looks at processes.
pub struct Census<W> {
    /// Where a process is; `None`: in no pod.
    whose: W,
    /// In none of the pods that are looked for.
    strangers: HashSet<u32>,
    /// Pods of which it was said that they have too many.
    crowded: BTreeSet<PodUid>,
}

impl<W> std::fmt::Debug for Census<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Census").field("strangers", &self.strangers.len()).finish_non_exhaustive()
    }
}

impl<W: Fn(u32) -> Option<InPod>> Census<W> {
    /// `whose` says where a process is.
    pub fn new(whose: W) -> Self {
        Self { whose, strangers: HashSet::new(), crowded: BTreeSet::new() }
    }

    /// The processes of these pods; `anew`: all others are looked at again, too.
    ///
    /// # Errors
    /// When `/proc` cannot be listed.
    pub fn take(&mut self, pods: &BTreeSet<PodUid>, anew: bool) -> io::Result<Vec<Inhabitant>> {
        if anew {
            self.strangers.clear();
        }
        let mut there = HashSet::new();
        for entry in std::fs::read_dir("/proc")? {
            there.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
        }
        self.strangers.retain(|pid| there.contains(pid));
        let (mut found, mut counts) = (Vec::new(), BTreeMap::<PodUid, usize>::new());
        for pid in there {
            if self.strangers.contains(&pid) {
                continue;
            }
            let Some(place) = (self.whose)(pid).filter(|place| pods.contains(&place.pod)) else {
                self.strangers.insert(pid);
                continue;
            };
            let count = counts.entry(place.pod.clone()).or_default();
            *count += 1;
            if *count <= limits::PID_PROCESSES_OF_POD {
                // One that has ended meanwhile is none.
                found.extend(self.look(pid, place));
            }
        }
        self.say_crowded(&counts);
        Ok(found)
    }

    fn look(&self, pid: u32, place: InPod) -> Option<Inhabitant> {
        let started = identity::started(pid).ok()?;
        let link = std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()?;
        let namespace = number_of(link.to_str()?)?;
        let (depth, number) = numbers(&identity::text(pid, "status").ok()?)?;
        let has_gpu = has_gpu(pid);
        // What was read is of one process, and that is in the pod, only if it still has the number.
        let is_there = (self.whose)(pid).as_ref() == Some(&place)
            && identity::started(pid).is_ok_and(|now| now == started);
        is_there.then_some(Inhabitant { pid, started, place, namespace, depth, number, has_gpu })
    }

    fn say_crowded(&mut self, counts: &BTreeMap<PodUid, usize>) {
        let is_crowded =
            |pod: &PodUid| counts.get(pod).is_some_and(|count| *count > limits::PID_PROCESSES_OF_POD);
        self.crowded.retain(is_crowded);
        for pod in counts.keys().filter(|pod| is_crowded(pod)) {
            if self.crowded.insert(pod.clone()) {
                let most = limits::PID_PROCESSES_OF_POD;
                warn!(%pod, most, "the pod has more processes than are watched: equal process numbers of others are not told");
            }
        }
    }
}

/// The namespace of the processes that this one starts.
///
/// # Errors
/// What `/proc` answers.
pub fn own_namespace() -> io::Result<u64> {
    let link = std::fs::read_link("/proc/self/ns/pid")?;
    link.to_str().and_then(number_of).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// How many processes and threads were started since the machine was.
///
/// # Errors
/// What `/proc` answers.
pub fn forks() -> io::Result<u64> {
    forks_in(&std::fs::read_to_string("/proc/stat")?).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn forks_in(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("processes "))?.trim().parse().ok()
}

/// The name in it may hold bytes that are no text: the kernel cuts it within a letter.
/// The number in `pid:[4026531836]`.
fn number_of(link: &str) -> Option<u64> {
    link.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

/// In how many namespaces a process has a number, and the last of them.
fn numbers(status: &str) -> Option<(usize, u32)> {
    let all: Vec<&str> =
        status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().collect();
    Some((all.len(), all.last()?.parse().ok()?))
}

/// Whether it has a GPU's device node open, by name: a file of another kind that a pod calls so deceives about that pod alone.
fn has_gpu(pid: u32) -> bool {
    let Ok(open) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let mut links = open
        .flatten()
        .take(limits::PID_DESCRIPTORS)
        .filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.any(|link| is_gpu_node(&link))
}

fn is_gpu_node(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let minor = name.and_then(|name| name.strip_prefix("nvidia"));
    minor.is_some_and(|minor| !minor.is_empty() && minor.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "2c48913c-b29f-11e7-9350-020968147796";

    fn place() -> InPod {
        InPod { pod: POD.parse().unwrap(), container: "a".repeat(64).parse().unwrap() }
    }

    #[test]
    fn a_gpu_is_told_by_its_node_and_not_by_the_drivers_others() {
        let is = |path: &str| is_gpu_node(Path::new(path));
        assert!(is("/dev/nvidia0") && is("/dev/nvidia17") && is("/dev/shm/simcuda-0/dev/nvidia3"));
        for other in
            ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia", "/dev/nvidia0 (deleted)", "/", "pipe:[7]"]
        {
            assert!(!is(other), "{other}");
        }
    }

    #[test]
    fn what_the_kernel_says_is_read_past_what_is_not_asked() {
        assert_eq!(forks_in("cpu  1 2\nctxt 5\nprocesses 3941920\nprocs_running 1\n"), Some(3_941_920));
        assert_eq!(forks_in("cpu 1\n"), None);
        assert_eq!(numbers("Name:\ta\nNSpid:\t42\t7\t1\nThreads:\t1\n"), Some((3, 1)));
        assert_eq!([numbers("Name:\ta\n"), numbers("NSpid:\n")], [None; 2]);
        assert_eq!(number_of("pid:[4026531836]"), Some(4_026_531_836));
        assert_eq!(number_of("ipc:[4026531836]"), None);
    }

    #[test]
    fn a_process_whose_name_is_cut_within_a_letter_is_found() {
        let process = crate::identity::testing::Misnamed::start();
        let mut census = Census::new(|pid| (pid == process.pid()).then(place));
        let found = census.take(&BTreeSet::from([place().pod]), false).unwrap();
        let [Inhabitant { pid, number, .. }] = &found[..] else { panic!("{found:?}") };
        assert_eq!((*pid, *number), (process.pid(), process.pid()));
    }

    #[test]
    fn a_process_is_found_with_what_it_has_and_a_stranger_is_asked_about_once() {
        let own = std::process::id();
        let folder = tempfile::tempdir().unwrap();
        let asked = std::cell::RefCell::new(Vec::new());
        let mut census = Census::new(|pid| {
            asked.borrow_mut().push(pid);
            (pid == own).then(place)
        });
        let pods = BTreeSet::from([place().pod]);
        let found = |census: &mut Census<_>, anew| -> Vec<Inhabitant> { census.take(&pods, anew).unwrap() };
        let [first] = &found(&mut census, false)[..] else { panic!("one") };
        assert_eq!((first.pid, first.namespace, first.has_gpu), (own, own_namespace().unwrap(), false));
        assert_eq!((first.depth, first.place.clone()), (1, place()));
        assert!(asked.borrow().contains(&1), "{:?}", asked.borrow());
        asked.borrow_mut().clear();
        let _gpu = std::fs::File::create(folder.path().join("nvidia0")).unwrap();
        assert!(found(&mut census, false)[0].has_gpu);
        assert!(!asked.borrow().contains(&1), "it is a stranger");
        found(&mut census, true);
        assert!(asked.borrow().contains(&1), "whoever has the number now");
        // Whoever is in another pod is none of these.
        assert_eq!(census.take(&BTreeSet::new(), true).unwrap(), []);
    }
}
