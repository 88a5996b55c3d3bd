//! A plugin against a runtime that behaves, and against many that do not.

use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::fake::{Runtime, pod_and_container, within};
use gpu_handoff_nri::proto::nri as proto;
use gpu_handoff_nri::{
    Adjustment, Container, Events, Handler, Link, Pod, Settings, State, Validation, limits, names, serve,
};
use tokio::net::UnixListener;
use tokio::sync::{oneshot, watch};

/// Keeps what it is told; refuses a container "bad".
#[derive(Clone, Debug, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    fn say(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Handler for Told {
    fn configured(&mut self, runtime: &gpu_handoff_nri::Runtime) -> Events {
        self.say(format!("configured {}", runtime.name));
        Events::of_containers().and_validation()
    }

    fn synchronized(&mut self, all: Vec<(Pod, Vec<Container>)>) {
        self.say(format!("synchronized {}", all.iter().map(|(_, of)| of.len()).sum::<usize>()));
    }

    fn create(&mut self, _: &Pod, container: &Container) -> Result<Adjustment, String> {
        self.say(format!("create {}", container.name));
        match container.name.as_str() {
            "bad" => Err("it is bad".into()),
            name => Ok(Adjustment::default().env("NAME", name)),
        }
    }

    fn validate(&mut self, whole: &Validation) -> Result<(), String> {
        if whole.default_validator() { Ok(()) } else { Err("nobody checks".into()) }
    }

    fn start(&mut self, _: &Pod, container: &Container) -> Result<(), String> {
        self.say(format!("start {}", container.name));
        Ok(())
    }
}

/// A plugin that serves, until it is dropped.
struct Plugin {
    told: Told,
    state: watch::Receiver<State>,
    stop: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<()>,
}

impl Plugin {
    fn at(socket: &Path) -> Self {
        let (told, (to, state), (stop, stopped)) =
            (Told::default(), watch::channel(State::default()), oneshot::channel());
        let settings = Settings::new(socket, "gpu-handoff", 90).unwrap();
        let stopped = async {
            drop(stopped.await);
        };
        let task = tokio::spawn(serve(settings, told.clone(), to, stopped));
        Self { told, state, stop: Some(stop), task }
    }

    async fn until(&mut self, what: impl FnMut(&State) -> bool) -> State {
        within(self.state.wait_for(what)).await.unwrap().clone()
    }

    /// Why there is no connection, once there is none.
    async fn away(&mut self, because: &str) {
        self.until(|state| matches!(&state.link, Link::Away { why } if why.contains(because))).await;
    }

    async fn serves(&mut self, connections: u64) -> State {
        self.until(|state| matches!(state.link, Link::Serving(_)) && state.connections == connections).await
    }
}

fn folder() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nri.sock");
    (folder, socket)
}

async fn served(listener: &UnixListener) -> Runtime {
    let mut runtime = Runtime::accept(listener).await;
    runtime.take_in().await;
    runtime
}

#[tokio::test]
async fn containers_are_adjusted_refused_validated_and_started() {
    let (_folder, socket) = folder();
    let listener = UnixListener::bind(&socket).unwrap();
    let mut plugin = Plugin::at(&socket);
    let mut runtime = served(&listener).await;
    assert_eq!((runtime.name.as_str(), runtime.index.as_str(), runtime.events), ("gpu-handoff", "90", 8_232));
    let state = plugin.serves(1).await;
    assert!(matches!(state.link, Link::Serving(who) if who.can().validates));

    let adjust = runtime.create("one").await.unwrap().adjust.unwrap();
    assert_eq!(adjust.env, [proto::KeyValue { key: "NAME".into(), value: "one".into() }]);
    assert_eq!(runtime.create("bad").await.unwrap_err().message, "it is bad");
    assert!(runtime.validate(&[("00", "default-validator")]).await.is_ok());
    assert_eq!(runtime.validate(&[("90", "gpu-handoff")]).await.unwrap_err(), "nobody checks");
    runtime.start("one").await.unwrap();
    assert_eq!(
        plugin.told.all(),
        ["configured containerd", "synchronized 0", "create one", "create bad", "start one"]
    );
    assert_eq!(plugin.state.borrow().times.answers(), 5);

    drop(plugin.stop.take());
    within(&mut plugin.task).await.unwrap();
    within(runtime.ended()).await;
}

#[tokio::test]
async fn a_runtime_may_cut_its_messages_as_it_likes_and_answer_the_registration_late() {
    let (_folder, socket) = folder();
    let listener = UnixListener::bind(&socket).unwrap();
    let mut plugin = Plugin::at(&socket);
    for (number, cut) in [1, 7, 4_096, limits::FRAME_BYTES_IN].into_iter().enumerate() {
        let mut runtime = Runtime::accept(&listener).await;
        runtime.cut = cut;
        let registration = runtime.registration().await;
        runtime.configure().await;
        runtime.registered(registration).await;
        let (pods, containers) = pod_and_container("p", "c");
        // A part of 3 MiB, with the pod of what has come before.
        let much =
            proto::Mount { source: "x".repeat(if cut == 1 { 9 } else { 3 << 20 }), ..Default::default() };
        let long = proto::Container { mounts: vec![much], ..containers.clone() };
        runtime.synchronize(vec![], vec![containers.clone(), containers], true).await;
        runtime.synchronize(vec![pods], vec![long], false).await;
        plugin.serves(number as u64 + 1).await;
        assert_eq!(plugin.told.all().last().unwrap(), "synchronized 3");
        runtime.create("one").await.unwrap();
    }
}

#[tokio::test]
async fn a_runtime_that_dies_at_any_point_is_connected_to_again() {
    let (_folder, socket) = folder();
    let listener = UnixListener::bind(&socket).unwrap();
    let mut plugin = Plugin::at(&socket);
    for point in 0..6 {
        let mut runtime = Runtime::accept(&listener).await;
        if point > 0 {
            let registration = runtime.registration().await;
            runtime.registered(registration).await;
        }
        if point > 1 {
            runtime.configure().await;
        }
        if point > 2 {
            runtime.synchronize(vec![], vec![], true).await;
        }
        if point > 3 {
            runtime.synchronize(vec![], vec![], false).await;
        }
        if point > 4 {
            // Half of a question.
            runtime.send_raw(&[0, 0, 0, 1, 0, 0, 1, 0, 0]).await;
        }
        drop(runtime);
        plugin.away("the runtime closed the connection").await;
    }
    served(&listener).await.create("after all").await.unwrap();
    assert_eq!(plugin.serves(3).await.connections, 3);
}

#[tokio::test]
async fn what_is_no_nri_ends_the_connection_and_is_named() {
    let (_folder, socket) = folder();
    let listener = UnixListener::bind(&socket).unwrap();
    let mut plugin = Plugin::at(&socket);
    let bad: [(&[u8], &str); 4] = [
        (&[0, 0, 0, 0, 0, 0, 0, 1, 1], "connection 0"),
        (&[0, 0, 0, 1, 0, 0x40, 0, 11], "more than a message can have"),
        (&[0, 0, 0, 1, 0, 0, 0, 10, 0, 0x40, 0, 1, 0, 0, 0, 1, 1, 0], "more than the protocol allows"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "more than a message can have"),
    ];
    for (bytes, why) in bad {
        let mut runtime = Runtime::accept(&listener).await;
        runtime.send_raw(bytes).await;
        plugin.away(why).await;
    }
    let mut runtime = Runtime::accept(&listener).await;
    let registration = runtime.registration().await;
    runtime.refuse(registration, "that name is taken").await;
    plugin.away("that name is taken").await;
    served(&listener).await.create("after all").await.unwrap();
}

#[tokio::test]
async fn a_runtime_that_asks_more_than_can_wait_is_left() {
    let (_folder, socket) = folder();
    let listener = UnixListener::bind(&socket).unwrap();
    let mut plugin = Plugin::at(&socket);
    let mut runtime = served(&listener).await;
    plugin.serves(1).await;
    // Its answers fill the socket, so that they wait.
    let asks = async {
        let name = "x".repeat(limits::ANSWER_BYTES / 2);
        while !runtime.ask_and_forget(&name).await {}
    };
    within(asks).await;
    plugin.away("asks more at a time").await;
    served(&listener).await.create("after all").await.unwrap();
}

#[tokio::test]
async fn a_new_socket_is_connected_to_at_once_though_the_old_runtime_hangs() {
    let (_folder, socket) = folder();
    let mut plugin = Plugin::at(&socket);
    plugin.away("connect to").await;
    let listener = UnixListener::bind(&socket).unwrap();
    let mut old = served(&listener).await;
    plugin.serves(1).await;

    // A file that vanishes changes nothing, nor one that nobody listens at.
    std::fs::remove_file(&socket).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    tokio::time::timeout(limits::SOCKET_LOOK * 3, old.ended()).await.expect_err("it stays");
    old.create("still").await.unwrap();

    std::fs::remove_file(&socket).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    let mut new = served(&listener).await;
    plugin.serves(2).await;
    within(old.ended()).await;
    new.create("new").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_starts_late_does_not_wait_for_the_longest_pause() {
    let (_folder, socket) = folder();
    let mut plugin = Plugin::at(&socket);
    plugin.away("connect to").await;
    // Time passes where nobody does anything: by now the pauses are the longest.
    tokio::time::sleep(limits::LONGEST_PAUSE * 4).await;
    let listener = UnixListener::bind(&socket).unwrap();
    let soon = tokio::time::timeout(limits::LONGEST_PAUSE / 5, Runtime::accept(&listener));
    soon.await.expect("it comes at once");
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_never_takes_the_plugin_is_asked_ever_less_often() {
    let (_folder, socket) = folder();
    let listener = UnixListener::bind(&socket).unwrap();
    let _plugin = Plugin::at(&socket);
    let (mut held, mut gaps) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let began = tokio::time::Instant::now();
        held.push(Runtime::accept(&listener).await);
        gaps.push(began.elapsed());
    }
    // Between the second and the last there are three doublings.
    let more = gaps[4] - gaps[1];
    assert!(gaps[1] >= limits::REGISTRATION_TIME && more >= limits::FIRST_PAUSE * 6, "{gaps:?}");
}

#[tokio::test]
async fn unknown_calls_do_not_end_anything() {
    let (_folder, socket) = folder();
    let listener = UnixListener::bind(&socket).unwrap();
    let _plugin = Plugin::at(&socket);
    let mut runtime = served(&listener).await;
    let refused = runtime.ask("RunPodSandbox", &proto::Empty {}).await.unwrap_err();
    assert!(refused.message.contains("no such call"), "{refused:?}");
    runtime.ask(names::SHUTDOWN, &proto::Empty {}).await.unwrap();
    runtime.create("one").await.unwrap();
}
