//! The thread with real mounts, namespaces and processes: members are processes that say whose they are.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use gpu_handoff_sys::{namespaces, sysv};

use super::testing::apart;
use super::*;

const POLICY: &str = "version: gpu-handoff.io/v1\nshm: {per-group: 8Mi}\n";
const EVERYTHING: Wish = Wish { shm: true, size: None, ipc: true };

fn policy() -> Arc<Policy> {
    Arc::new(Policy::read(POLICY).unwrap())
}

fn group(name: &str) -> GroupKey {
    GroupKey { namespace: "ml".parse().unwrap(), name: name.parse().unwrap() }
}

fn pod(n: u8) -> PodUid {
    format!("0000000{n}-0000-0000-0000-000000000000").parse().unwrap()
}

/// A process says by its environment whose it is: in the place of its cgroup.
fn places() -> Places {
    Box::new(|pid| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let own = environ.split(|byte| *byte == 0).find_map(|one| one.strip_prefix(b"MEMBER="))?;
        str::from_utf8(own).ok()?.parse().ok()
    })
}

fn begin(run_dir: &Path, members: Vec<OnRecord>) -> Groups {
    Groups::begin(run_dir, members, &policy(), places()).unwrap()
}

/// A process of a member, in its group's `/dev/shm` and IPC namespace, that does what it is told, a line at a time.
struct Process {
    child: Child,
    lines: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Process {
    fn of(member: u8, shared: &Shared) -> Self {
        let (shm, ipc) = (shared.shm.as_ref().unwrap(), shared.ipc.as_ref().unwrap());
        let mut command = Command::new("nsenter");
        command.arg(format!("--ipc={}", ipc.path.display())).args([
            "python3",
            "-u",
            "-i",
            "-q",
            "-c",
            "import ctypes, os, mmap; c = ctypes.CDLL(None)",
        ]);
        command.env("MEMBER", pod(member).as_str()).env("PYTHONSTARTUP", "").current_dir(&shm.path);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (lines, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut process = Self { child, lines, answers };
        assert_eq!(process.say("1 + 1"), "2");
        process
    }

    /// What an expression of Python's is.
    fn say(&mut self, expression: &str) -> String {
        writeln!(self.lines, "print('=', {expression})").unwrap();
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "{expression}");
            if let Some((_, answer)) = line.trim_end().split_once("= ") {
                return answer.to_owned();
            }
        }
    }

    fn end(mut self) {
        drop(self.lines);
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn names(shared: &Shared) -> BTreeSet<String> {
    let entries = std::fs::read_dir(&shared.shm.as_ref().unwrap().path).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn queues(shared: &Shared) -> BTreeSet<String> {
    let folder = namespaces::message_queues(&shared.ipc.as_ref().unwrap().path).unwrap();
    let names = rustix::fs::Dir::read_from(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned());
    names.filter(|name| !name.starts_with('.')).collect()
}

fn things(shared: &Shared) -> Vec<(sysv::Kind, i32)> {
    let (all, _) =
        namespaces::within(&shared.ipc.as_ref().unwrap().path, || sysv::list(100)).unwrap().unwrap();
    all.into_iter().map(|thing| (thing.kind, thing.id)).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Waits until it was looked at what is in namespaces: nobody tells of that.
fn looked() {
    let seen = Instant::now() + limits::SYSV_PAUSE * 2;
    wait(&true, || Instant::now() > seen);
}

/// Waits for a value.
#[track_caller]
fn wait<T: PartialEq + std::fmt::Debug>(wanted: &T, mut found: impl FnMut() -> T) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let now = found();
        if now == *wanted {
            return;
        }
        assert!(Instant::now() < deadline, "wanted {wanted:?}, found {now:?}");
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

#[tokio::test]
async fn what_a_member_left_and_nobody_else_made_or_holds_is_removed() {
    if !apart("node::groups::tests::what_a_member_left_and_nobody_else_made_or_holds_is_removed") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let groups = begin(place.path(), vec![]);
    let enter = |n| groups.enter(policy(), (group("g"), pod(n), EVERYTHING));
    let shared = enter(1).await.unwrap();
    assert_eq!(enter(2).await.unwrap(), shared);
    let (mut one, mut two) = (Process::of(1, &shared), Process::of(2, &shared));
    // Files of both; one that is open in the other, one that is mapped there and one that has another name by it; a folder.
    for name in ["left", "open", "mapped", "linked", "with\\nline", "moved", "moved-over"] {
        one.say(&format!("open('{name}', 'w').write('x' * 4096)"));
    }
    one.say("[os.mkdir('folder'), open('folder/left', 'w'), os.mkfifo('fifo')]");
    two.say("open('own', 'w')");
    two.say("globals().update(f=open('open'), m=(lambda f: mmap.mmap(f.fileno(), 4096, prot=mmap.PROT_READ))(open('mapped')))");
    one.say("__import__('socket').socket(1).bind('socket')");
    one.say("open('full', 'w').write('x' * 4096)");
    // It has the name of one's file, and another name of it.
    two.say("[os.link('linked', 'other-name'), os.rename('moved', 'moved-by-two')]");
    two.say("[open('own-moved', 'w'), os.rename('own-moved', 'moved-over')]");
    // With which the file system is full.
    two.say("[open('own', 'w').write('x'), exec('''try:\\n while 1: open(\"full\", \"ab\", 0).write(b\"x\" * 65536)\\nexcept OSError: pass''')]");
    // A process that has begun since the last look may have had its number from another.
    looked();
    let segment = |process: &mut Process| process.say("c.shmget(0, 4096, 0o666)").parse::<i32>().unwrap();
    let lefts = segment(&mut one);
    let attached = segment(&mut one);
    two.say(&format!("c.shmat({attached}, None, 0) != -1"));
    let own = segment(&mut two);
    // Queues: one that nobody has open, one that the other has, one of the other's.
    one.say("[c.mq_open(b'/left', 0o102, 0o666, None), c.mq_open(b'/open', 0o102, 0o666, None)] ");
    two.say("c.mq_open(b'/open', 2), c.mq_close(c.mq_open(b'/own', 0o102, 0o666, None))");
    assert_eq!(queues(&shared), set(&["left", "open", "own"]));
    // It was seen who made them.
    wait(&3, || things(&shared).len());
    looked();
    one.end();
    groups.leave(group("g"), pod(1)).await.unwrap();
    wait(
        &set(&["folder", "linked", "mapped", "moved-by-two", "moved-over", "open", "other-name", "own"]),
        || names(&shared),
    );
    let of = |ids: &[i32]| ids.iter().map(|id| (sysv::Kind::Segment, *id)).collect::<BTreeSet<_>>();
    let there = || things(&shared).into_iter().collect::<BTreeSet<_>>();
    wait(&of(&[attached, own]), there);
    assert!(!shared.shm.as_ref().unwrap().path.join("folder/left").exists());
    assert!(!of(&[lefts]).is_subset(&there()));
    wait(&set(&["open", "own"]), || queues(&shared));
    // When it is not held any more, it goes too.
    two.say("globals().update(f=None, m=None)");
    wait(&set(&["folder", "linked", "moved-by-two", "moved-over", "other-name", "own"]), || names(&shared));
    assert_eq!(there(), of(&[attached, own]));
    two.end();
    wait(&of(&[own]), there);
    groups.leave(group("g"), pod(2)).await.unwrap();
    assert_eq!(std::fs::read_dir(place.path().join("groups")).unwrap().count(), 0);
}

#[tokio::test]
async fn what_nobody_can_name_the_maker_of_goes_with_the_last_who_may_have_made_it() {
    if !apart(
        "node::groups::tests::what_nobody_can_name_the_maker_of_goes_with_the_last_who_may_have_made_it",
    ) {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let groups = begin(place.path(), vec![]);
    let shared = groups.enter(policy(), (group("g"), pod(1), EVERYTHING)).await.unwrap();
    let path = shared.shm.as_ref().unwrap().path.clone();
    let ipc = format!("--ipc={}", shared.ipc.as_ref().unwrap().path.display());
    // Processes that end at once: nobody sees whose they were.
    let run = |member: u8, command: &[&str]| {
        let done = Command::new("nsenter")
            .arg(&ipc)
            .args(command)
            .current_dir(&path)
            .env("MEMBER", pod(member).as_str())
            .output();
        assert!(done.unwrap().status.success(), "{command:?}");
    };
    run(1, &["touch", "ones"]);
    run(1, &["ipcmk", "--queue", "--semaphore", "2"]);
    looked();
    groups.enter(policy(), (group("g"), pod(2), EVERYTHING)).await.unwrap();
    let queues = things(&shared);
    assert_eq!(queues.len(), 2);
    run(2, &["touch", "twos"]);
    run(2, &["ipcmk", "--queue"]);
    wait(&3, || things(&shared).len());
    looked();
    groups.leave(group("g"), pod(1)).await.unwrap();
    wait(&set(&["twos"]), || names(&shared));
    wait(&1, || things(&shared).len());
    assert!(!queues.contains(&things(&shared)[0]));
    groups.leave(group("g"), pod(2)).await.unwrap();
    assert!(!path.exists());
}

#[tokio::test]
async fn who_is_still_there_when_a_group_ends_keeps_nothing_of_the_next() {
    if !apart("node::groups::tests::who_is_still_there_when_a_group_ends_keeps_nothing_of_the_next") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let groups = begin(place.path(), vec![]);
    let enter = || groups.enter(policy(), (group("g"), pod(1), EVERYTHING));
    let shared = enter().await.unwrap();
    // A container that starts or has not ended, and another mount namespace with all of it.
    let mut late = Process::of(1, &shared);
    late.say("[open('late', 'w'), c.shmget(0, 4096, 0o666)]");
    let mut elsewhere =
        Command::new("unshare").args(["--mount", "--propagation", "private", "sleep", "60"]).spawn().unwrap();
    let own = std::fs::read_link("/proc/self/ns/mnt").unwrap();
    let path = format!("/proc/{}/ns/mnt", elsewhere.id());
    wait(&true, || std::fs::read_link(&path).is_ok_and(|other| other != own));
    groups.leave(group("g"), pod(1)).await.unwrap();
    assert_eq!(std::fs::read_dir(place.path().join("groups")).unwrap().count(), 0);
    let next = enter().await.unwrap();
    assert_ne!(next.shm.as_ref().unwrap().number, shared.shm.unwrap().number);
    assert_ne!(next.ipc.as_ref().unwrap().number, shared.ipc.unwrap().number);
    assert_eq!((names(&next), things(&next)), (set(&[]), vec![]));
    assert_eq!(late.say("os.listdir('.')"), "['late']");
    late.end();
    elsewhere.kill().unwrap();
    elsewhere.wait().unwrap();
    groups.leave(group("g"), pod(1)).await.unwrap();
}

#[tokio::test]
async fn more_files_than_are_remembered_keep_nobody_waiting_and_go_with_the_group() {
    if !apart("node::groups::tests::more_files_than_are_remembered_keep_nobody_waiting_and_go_with_the_group")
    {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let policy = Arc::new(Policy::read("version: gpu-handoff.io/v1\nshm: {node-share: 100%}\n").unwrap());
    let groups = begin(place.path(), vec![]);
    let large = Wish { size: Some(1 << 30), ..EVERYTHING };
    let shared = groups.enter(Arc::clone(&policy), (group("g"), pod(1), large)).await.unwrap();
    let mut one = Process::of(1, &shared);
    let made = limits::LEDGER_THINGS + limits::LEDGER_THINGS / 2;
    let begun = Instant::now();
    one.say(&format!("len([os.close(os.open(str(n), os.O_CREAT)) for n in range({made})])"));
    let (filled, asked) = (begun.elapsed(), Instant::now());
    groups.enter(Arc::clone(&policy), (group("g"), pod(2), EVERYTHING)).await.unwrap();
    let answered = asked.elapsed();
    let mut two = Process::of(2, &shared);
    two.say("open('own', 'w')");
    one.end();
    let left = Instant::now();
    groups.leave(group("g"), pod(1)).await.unwrap();
    // Of what was told of while there was room, nothing is left.
    let remaining = || names(&shared).len();
    wait(&true, || remaining() < made);
    let swept = left.elapsed();
    assert!(names(&shared).contains("own"));
    two.end();
    let ended = Instant::now();
    groups.leave(group("g"), pod(2)).await.unwrap();
    println!(
        "{made} files: filled {filled:?}, answered after {answered:?}, swept {swept:?}, ended {:?}",
        ended.elapsed()
    );
    assert!(answered < Duration::from_secs(5) && ended.elapsed() < Duration::from_secs(5));
    assert_eq!(std::fs::read_dir(place.path().join("groups")).unwrap().count(), 0);
}

/// The processor's time that the thread has had, in hundredths of a second.
fn busy() -> u64 {
    let mut threads = std::fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
    let is_it = |thread: &PathBuf| {
        std::fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim() == "groups")
    };
    busy_of(&threads.find(is_it).unwrap())
}

fn busy_of(task: &Path) -> u64 {
    let stat = std::fs::read_to_string(task.join("stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2);
    fields.map(|field| field.parse::<u64>().unwrap()).sum()
}

#[tokio::test]
async fn a_member_that_makes_files_without_end_takes_little_of_the_daemons_time() {
    if !apart("node::groups::tests::a_member_that_makes_files_without_end_takes_little_of_the_daemons_time") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let groups = begin(place.path(), vec![]);
    let shared = groups.enter(policy(), (group("g"), pod(1), EVERYTHING)).await.unwrap();
    let mut one = Process::of(1, &shared);
    let forever = "while 1: os.close(os.open('x', os.O_CREAT)); os.unlink('x')";
    writeln!(one.lines, "exec(\"{forever}\")").unwrap();
    let (begun, busy_before) = (Instant::now(), busy());
    let mut longest = Duration::ZERO;
    // Others are served meanwhile, and what they leave is swept.
    for n in 0..4 {
        let asked = Instant::now();
        let others = groups.enter(policy(), (group("other"), pod(2 + n), EVERYTHING)).await.unwrap();
        longest = longest.max(asked.elapsed());
        std::fs::write(others.shm.as_ref().unwrap().path.join("x"), "").unwrap();
        let until = Instant::now() + Duration::from_secs(2);
        wait(&true, || Instant::now() > until);
    }
    let (share, longest) = ((busy() - busy_before) as f64 / begun.elapsed().as_secs_f64(), longest);
    let makers = busy_of(Path::new(&format!("/proc/{}", one.child.id())));
    assert!(makers > 100, "it makes files: {makers}");
    println!("{share:.1}% of a processor, answered after {longest:?} at most");
    assert!(share < 40.0 && longest < Duration::from_secs(2), "{share}% {longest:?}");
    one.child.kill().unwrap();
    one.child.wait().unwrap();
    groups.leave(group("g"), pod(1)).await.unwrap();
}

#[tokio::test]
async fn another_life_of_the_daemon_goes_on_with_what_is_there() {
    if !apart("node::groups::tests::another_life_of_the_daemon_goes_on_with_what_is_there") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let groups = begin(place.path(), vec![]);
    let shared = groups.enter(policy(), (group("g"), pod(1), EVERYTHING)).await.unwrap();
    groups.enter(policy(), (group("over"), pod(2), EVERYTHING)).await.unwrap();
    let path = shared.shm.as_ref().unwrap().path.clone();
    std::fs::write(path.join("of-before"), "").unwrap();
    drop(groups);
    assert!(path.join("of-before").exists());
    let groups = begin(place.path(), vec![(group("g"), pod(1), EVERYTHING)]);
    assert_eq!(groups.shared(group("g"), EVERYTHING).await, shared);
    assert_eq!(groups.shared(group("over"), EVERYTHING).await, Shared::default());
    assert_eq!(std::fs::read_dir(place.path().join("groups")).unwrap().count(), 1, "the other one's is gone");
    // What was there is of somebody who was here when it was found.
    groups.enter(policy(), (group("g"), pod(3), EVERYTHING)).await.unwrap();
    groups.leave(group("g"), pod(1)).await.unwrap();
    wait(&set(&[]), || names(&shared));
    groups.leave(group("g"), pod(3)).await.unwrap();
    let refused =
        groups.enter(policy(), (group("g"), pod(1), Wish { size: Some(u64::MAX), ..EVERYTHING })).await;
    assert!(matches!(refused, Err(EnterError::Refused(_))), "{refused:?}");
    let none: PathBuf = place.path().join("groups");
    assert_eq!(std::fs::read_dir(none).unwrap().count(), 0);
}
