//! Pods for these tests: a shell that is the first process of a PID namespace, and does what it is told.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

use gpu_handoff_plugin::identity::cgroup::InPod;
use gpu_handoff_plugin::node::pids::Ranged;
use gpu_handoff_protocol::{GroupKey, PodRef, PodUid};
use gpu_handoff_sys::isolate::{Isolation, Privilege, isolated_pid};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Whether namespaces can be made and entered here; where not, it is said that the test is skipped.
pub(crate) fn available(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if root && matches!(gpu_handoff_sys::isolate::available(), Ok(Privilege::Root)) {
        return true;
    }
    let why = "it takes root to make and enter namespaces";
    assert!(std::env::var("GPU_HANDOFF_TESTS").as_deref() != Ok("all"), "{test}: {why}");
    // Not by a macro: the harness hides what those print in a test that passes.
    let _unheard = std::io::stderr().write_all(format!("SKIPPED: {test}: {why}\n").as_bytes());
    false
}

/// Whose which namespace is, as groups would say it.
#[derive(Default)]
pub(crate) struct Registry {
    places: Arc<Mutex<HashMap<u64, InPod>>>,
}

impl Registry {
    /// Of the pod of this index.
    pub(crate) fn uid(index: usize) -> PodUid {
        format!("2c48913c-b29f-11e7-9350-{index:012}").parse().unwrap()
    }

    pub(crate) fn place(index: usize) -> InPod {
        InPod { pod: Self::uid(index), container: format!("{index:064x}").parse().unwrap() }
    }

    pub(crate) fn whose(&self) -> impl Fn(u32) -> Option<InPod> + Send + 'static {
        let places = Arc::clone(&self.places);
        move |pid| places.lock().unwrap().get(&namespace_of(pid)?).cloned()
    }
}

fn namespace_of(pid: u32) -> Option<u64> {
    let link = std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

/// A pod with one container.
pub(crate) struct Pod {
    index: usize,
    keeper: Child,
    pid: u32,
    said: BufReader<ChildStdout>,
    tell: ChildStdin,
    folder: tempfile::TempDir,
}

impl Pod {
    pub(crate) fn new(registry: &Registry, index: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        File::create(folder.path().join("nvidia0")).unwrap();
        let mut command = Command::new("sh");
        command.env("GPU", folder.path().join("nvidia0"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Isolation::own_pids(Privilege::Root).apply(&mut command);
        let mut keeper = command.spawn().unwrap();
        let (tell, said) = (keeper.stdin.take().unwrap(), BufReader::new(keeper.stdout.take().unwrap()));
        let pid = isolated_pid(keeper.id()).unwrap();
        let pod = Self { index, keeper, pid, said, tell, folder };
        registry.places.lock().unwrap().insert(pod.namespace(), Registry::place(index));
        pod
    }

    /// As a member of the group that all of them are in.
    pub(crate) fn member(&self) -> (PodUid, Ranged) {
        let pod =
            PodRef { namespace: "n".parse().unwrap(), name: format!("pod-{}", self.index).parse().unwrap() };
        let group = GroupKey { namespace: "n".parse().unwrap(), name: "g".parse().unwrap() };
        (Registry::uid(self.index), Ranged { pod, group, index: u32::try_from(self.index).unwrap() })
    }

    pub(crate) fn namespace(&self) -> u64 {
        namespace_of(self.pid).unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn pidfd(&self) -> OwnedFd {
        pidfd_open(Pid::from_raw(i32::try_from(self.pid).unwrap()).unwrap(), PidfdFlags::empty()).unwrap()
    }

    /// Has the shell do it, and gives the line that it then says.
    pub(crate) fn run(&mut self, what: &str) -> String {
        writeln!(self.tell, "{what}\necho \"=$!\"").unwrap();
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim().trim_start_matches('=').to_owned()
    }

    /// The number of a process that is started in it.
    pub(crate) fn next_number(&mut self) -> u32 {
        self.run("true &").parse().unwrap()
    }

    /// Starts a process that has a GPU open, and gives its number.
    pub(crate) fn start_gpu_process(&mut self) -> u32 {
        let number = self.run("sh -c 'exec 9<$GPU; exec sleep 600' >/dev/null & user=$!").parse().unwrap();
        assert!(number > 0);
        number
    }

    /// Starts one in a PID namespace within the pod's own, and gives its number out here.
    pub(crate) fn start_nested_gpu_process(&mut self) -> u32 {
        let outer = self.pid;
        self.run("unshare --pid --fork sh -c 'exec 9<$GPU; exec sleep 600' >/dev/null &");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let children = |pid| gpu_handoff_sys::processes::children(pid).unwrap();
            let within = children(outer).into_iter().flat_map(children).find(|pid| {
                let open = std::fs::read_link(format!("/proc/{pid}/fd/9"));
                open.is_ok_and(|path| path.ends_with("nvidia0"))
            });
            if let Some(pid) = within {
                return pid;
            }
            assert!(std::time::Instant::now() < deadline, "no process comes within the pod's namespace");
        }
    }

    /// Ends the process that was started so last.
    pub(crate) fn end_gpu_process(&mut self) {
        self.run("kill $user; wait $user");
    }

    /// Its first process has a GPU open from now on.
    pub(crate) fn use_gpu_itself(&mut self) {
        self.run("exec 9<$GPU");
    }

    /// What it has written into its folder.
    pub(crate) fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    /// Has a further shell of it do something meanwhile.
    pub(crate) fn begin(&mut self, what: &str) -> Work {
        let done = self.folder.path().join("done");
        self.run(&format!("({what}; : >{}) >/dev/null &", done.display()));
        Work { done }
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.keeper.kill().unwrap();
        self.keeper.wait().unwrap();
    }
}

/// What a pod does meanwhile.
pub(crate) struct Work {
    done: std::path::PathBuf,
}

impl Work {
    pub(crate) fn has_ended(&mut self) -> bool {
        self.done.exists()
    }
}
