//! The kubelet's half of the stream of pods.

use std::path::Path;
use std::sync::Mutex;

use futures_util::stream::{self, BoxStream, StreamExt};
use gpu_handoff_kubelet::limits;
use gpu_handoff_kubelet::pods::{OpenError, PodEvent, Pods, Settings, Source, open};
use prost::Message;
use tokio::sync::mpsc;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::fake::wire::core;
use crate::fake::wire::pods::pods_server::{Pods as PodsService, PodsServer};
use crate::fake::wire::pods::{
    EventType, GetPodRequest, GetPodResponse, ListPodsRequest, ListPodsResponse, WatchPodsEvent,
    WatchPodsRequest,
};
use crate::fake::{Served, soon};

type Words = mpsc::UnboundedReceiver<Result<WatchPodsEvent, Status>>;

/// Each who watches hears the next of these conversations; where none is left, that it starts.
struct Kubelet(Mutex<mpsc::UnboundedReceiver<Words>>);

#[tonic::async_trait]
impl PodsService for Kubelet {
    type WatchPodsStream = BoxStream<'static, Result<WatchPodsEvent, Status>>;

    async fn watch_pods(
        &self,
        _: Request<WatchPodsRequest>,
    ) -> Result<Response<Self::WatchPodsStream>, Status> {
        let words = self.0.lock().unwrap().try_recv();
        let words = words.map_err(|_| Status::failed_precondition("Kubelet is initializing"))?;
        let words = stream::unfold(words, |mut words| async { Some((words.recv().await?, words)) });
        Ok(Response::new(words.boxed()))
    }

    async fn list_pods(&self, _: Request<ListPodsRequest>) -> Result<Response<ListPodsResponse>, Status> {
        Err(Status::internal("nobody asks this"))
    }

    async fn get_pod(&self, _: Request<GetPodRequest>) -> Result<Response<GetPodResponse>, Status> {
        Err(Status::internal("nobody asks this"))
    }
}

/// A kubelet, and what it is to say.
struct Playing {
    conversations: mpsc::UnboundedSender<Words>,
    _served: Served,
}

impl Playing {
    fn at(socket: &Path) -> Self {
        let (conversations, words) = mpsc::unbounded_channel();
        let service = PodsServer::new(Kubelet(Mutex::new(words)));
        Self { conversations, _served: Served::at(socket, Server::builder().add_service(service)) }
    }

    /// Who asks next is told of these pods, and what is said to this then.
    fn tells(&self, uids: &[&str]) -> Conversation {
        let (say, words) = mpsc::unbounded_channel();
        let conversation = Conversation(say);
        for uid in uids {
            conversation.says(EventType::Added, Some(&pod(uid, "Running")));
        }
        conversation.says(EventType::InitialSyncComplete, None);
        self.conversations.send(words).unwrap();
        conversation
    }
}

struct Conversation(mpsc::UnboundedSender<Result<WatchPodsEvent, Status>>);

impl Conversation {
    fn says(&self, kind: EventType, pod: Option<&core::Pod>) {
        let pod = pod.map(Message::encode_to_vec).unwrap_or_default();
        self.0.send(Ok(WatchPodsEvent { r#type: kind.into(), pod })).unwrap();
    }
}

fn pod(uid: &str, phase: &str) -> core::Pod {
    core::Pod {
        metadata: Some(core::ObjectMeta {
            name: Some("web-0".to_owned()),
            namespace: Some("default".to_owned()),
            uid: Some(uid.to_owned()),
            ..Default::default()
        }),
        spec: None,
        status: Some(core::PodStatus { phase: Some(phase.to_owned()), ..Default::default() }),
    }
}

/// An event in short.
pub(crate) fn short(event: &PodEvent) -> String {
    match event {
        PodEvent::Source(source) => format!("source {source:?}"),
        PodEvent::Added(facts) => format!("added {}", facts.uid),
        PodEvent::Changed(facts) => format!("changed {} {:?}", facts.uid, facts.phase),
        PodEvent::Deleted(gone) => format!("deleted {}", gone.uid),
        PodEvent::Synced => "synced".to_owned(),
        PodEvent::Away(why) => format!("away: {why}"),
    }
}

/// The next events are these; they begin so.
#[track_caller]
pub(crate) fn hears<'a>(pods: &'a mut Pods, expected: &'a [&str]) -> impl Future<Output = ()> + 'a {
    let caller = std::panic::Location::caller();
    async move {
        for expected in expected {
            let event = short(&soon(pods.next()).await.expect("it goes on"));
            assert!(event.starts_with(expected), "{event:?} is not {expected:?}, at {caller}");
        }
    }
}

fn settings(socket: &Path) -> Settings {
    Settings { socket: Some(socket.to_owned()), kube: None }
}

#[tokio::test]
async fn pods_come_change_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("pods-api.sock");
    let kubelet = Playing::at(&socket);
    let conversation = kubelet.tells(&["a", "b"]);
    let mut pods = open(settings(&socket)).unwrap();
    hears(&mut pods, &["source Kubelet", "added a", "added b", "synced"]).await;
    conversation.says(EventType::Modified, Some(&pod("a", "Running")));
    conversation.says(EventType::Modified, Some(&pod("a", "Failed")));
    conversation.says(EventType::Deleted, Some(&pod("a", "")));
    conversation.says(EventType::Modified, Some(&pod("a", "Running")));
    conversation.says(EventType::Modified, Some(&pod("c", "Running")));
    hears(&mut pods, &["changed a Failed", "deleted a", "added c"]).await;
}

#[tokio::test]
async fn a_kubelet_that_restarts_loses_no_deletion() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("pods-api.sock");
    let kubelet = Playing::at(&socket);
    let conversation = kubelet.tells(&["a", "b"]);
    let mut pods = open(settings(&socket)).unwrap();
    hears(&mut pods, &["source Kubelet", "added a", "added b", "synced"]).await;
    drop((kubelet, conversation));
    hears(&mut pods, &["away: "]).await;
    let kubelet = Playing::at(&socket);
    // While it starts it has nothing to say; another word of why comes before.
    while !short(&soon(pods.next()).await.unwrap()).contains("Kubelet is initializing") {}
    let _conversation = kubelet.tells(&["b", "c"]);
    hears(&mut pods, &["added c", "deleted a", "synced"]).await;
}

#[tokio::test]
async fn a_conversation_that_breaks_off_before_all_are_named_deletes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("pods-api.sock");
    let kubelet = Playing::at(&socket);
    let first = kubelet.tells(&["a", "b"]);
    let mut pods = open(settings(&socket)).unwrap();
    hears(&mut pods, &["source Kubelet", "added a", "added b", "synced"]).await;
    let (say, words) = mpsc::unbounded_channel();
    let broken = Conversation(say);
    broken.says(EventType::Added, Some(&pod("b", "Running")));
    broken.0.send(Err(Status::internal("error marshalling"))).unwrap();
    kubelet.conversations.send(words).unwrap();
    let _last = kubelet.tells(&["a", "b"]);
    drop(first);
    hears(
        &mut pods,
        &["away: the kubelet has ended the stream", "away: the kubelet's Pods API says Internal", "synced"],
    )
    .await;
}

#[tokio::test]
async fn what_cannot_be_read_hurts_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("pods-api.sock");
    let kubelet = Playing::at(&socket);
    let conversation = kubelet.tells(&["a"]);
    let mut pods = open(settings(&socket)).unwrap();
    let unreadable = WatchPodsEvent { r#type: EventType::Added.into(), pod: vec![0xff; 40] };
    conversation.0.send(Ok(unreadable)).unwrap();
    conversation.says(EventType::Added, Some(&pod("../x", "Running")));
    conversation.says(EventType::Added, Some(&pod("b", "Running")));
    hears(&mut pods, &["source Kubelet", "added a", "synced", "added b"]).await;
}

#[tokio::test]
async fn who_reads_slowly_and_is_dropped_for_it_misses_nothing_in_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("pods-api.sock");
    let kubelet = Playing::at(&socket);
    let many: Vec<String> = (0..2 * limits::POD_EVENTS).map(|which| format!("p{which}")).collect();
    let first = kubelet.tells(&many.iter().map(String::as_str).collect::<Vec<_>>());
    first.0.send(Err(Status::resource_exhausted("watch client channel closed"))).unwrap();
    let _second = kubelet.tells(&[many[0].as_str(), "new"]);
    let mut pods = open(settings(&socket)).unwrap();
    let mut alive = std::collections::BTreeSet::new();
    let mut synced = 0;
    while synced < 2 {
        match soon(pods.next()).await.unwrap() {
            PodEvent::Added(facts) => assert!(alive.insert(facts.uid)),
            PodEvent::Deleted(gone) => assert!(alive.remove(&gone.uid)),
            PodEvent::Synced => synced += 1,
            PodEvent::Changed(_) | PodEvent::Away(_) | PodEvent::Source(_) => {}
        }
    }
    assert_eq!(alive.into_iter().collect::<Vec<_>>(), ["new", "p0"]);
}

#[tokio::test]
async fn where_nobody_can_be_asked_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let error = open(settings(&folder.path().join("none.sock"))).unwrap_err();
    assert!(matches!(error, OpenError::NoSource { .. }));
    assert!(error.to_string().contains("none.sock"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn all_pods_are_named_anew_now_and_then() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("pods-api.sock");
    let kubelet = Playing::at(&socket);
    let _quiet = kubelet.tells(&["a", "b"]);
    // The kubelet has dropped the event that says that b is gone.
    let _next = kubelet.tells(&["a"]);
    let mut pods = open(settings(&socket)).unwrap();
    let begin = tokio::time::Instant::now();
    for expected in ["source Kubelet", "added a", "added b", "synced", "deleted b", "synced"] {
        assert_eq!(short(&pods.next().await.unwrap()), expected);
    }
    assert!(begin.elapsed() >= limits::RESYNC_PERIOD);
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_stays_away_is_left_for_the_api_server() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("pods-api.sock");
    // A kubelet whose Pods API was switched off: the file stays, and nobody listens.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let (client, server) = crate::api_server::client();
    server.lists(&["a"], "1");
    let settings = Settings { socket: Some(socket), kube: Some((client.into(), "node-1".to_owned())) };
    let mut pods = open(settings).unwrap();
    hears(&mut pods, &["source Kubelet", "away: connect to the kubelet's Pods API"]).await;
    // Without the deadline of the others: the clock goes as fast as it can here.
    for expected in ["source ApiServer", "added a", "synced"] {
        let event = pods.next().await.unwrap();
        assert_eq!(short(&event), expected);
    }
    assert_eq!(Source::ApiServer.to_string(), "the API server");
}
