//! The kubelet's half of a volume's life.

use std::path::Path;

use gpu_handoff_kubelet::csi::{Command, Refusal, Settings, queue, serve, socket_in};
use gpu_handoff_kubelet::{ServeError, limits};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tonic::Code;
use tonic::client::Grpc;
use tonic::transport::Channel;

use crate::fake::wire::csi::identity_client::IdentityClient;
use crate::fake::wire::csi::node_client::NodeClient;
use crate::fake::wire::csi::volume_capability::access_mode::Mode;
use crate::fake::wire::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use crate::fake::wire::csi::{
    GetPluginCapabilitiesRequest, GetPluginInfoRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest,
    NodePublishVolumeRequest, NodeUnpublishVolumeRequest, ProbeRequest, VolumeCapability,
};
use crate::fake::{connect, soon};

const UID: &str = "8c0dd3e6-0d3c-4f0c-9d9e-6c6f3a0a1b2c";

struct Running {
    channel: Channel,
    commands: mpsc::Receiver<Command>,
    ready: watch::Sender<bool>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ServeError>>,
}

async fn start(folder: &Path) -> Running {
    let (ready, is_ready) = watch::channel(false);
    let settings = Settings {
        socket: socket_in(&folder.join("plugins")),
        kubelet_root: folder.to_owned(),
        node: "node-1".to_owned(),
        version: "9".to_owned(),
        max_volumes: 64,
        ready: is_ready,
    };
    let socket = settings.socket.clone();
    assert!(socket.ends_with("plugins/gpu-handoff.io/csi.sock"));
    let (sender, commands) = queue();
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(serve(settings, sender, async { drop(stopped.await) }));
    Running { channel: connect(socket).await, commands, ready, stop, task }
}

fn target(folder: &Path) -> String {
    format!("{}/pods/{UID}/volumes/kubernetes.io~csi/gpu-handoff-slot/mount", folder.display())
}

fn publish(folder: &Path) -> NodePublishVolumeRequest {
    let context = [
        ("pod.name", "web-0"),
        ("pod.namespace", "default"),
        ("pod.uid", UID),
        ("serviceAccount.name", "builder"),
        ("ephemeral", "true"),
    ];
    NodePublishVolumeRequest {
        volume_id: "csi-1".to_owned(),
        target_path: target(folder),
        volume_capability: Some(VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        }),
        readonly: true,
        volume_context: context
            .map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned()))
            .into(),
        ..Default::default()
    }
}

#[tokio::test]
async fn the_driver_says_who_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let running = start(folder.path()).await;
    let mut identity = IdentityClient::new(running.channel.clone());
    let info = identity.get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.name.as_str(), info.vendor_version.as_str()), ("gpu-handoff.io", "9"));
    identity.get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap();
    assert_eq!(identity.probe(ProbeRequest {}).await.unwrap().into_inner().ready, Some(false));
    running.ready.send_replace(true);
    assert_eq!(identity.probe(ProbeRequest {}).await.unwrap().into_inner().ready, Some(true));

    let mut node = NodeClient::new(running.channel.clone());
    let info = node.node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("node-1", 64));
    node.node_get_capabilities(NodeGetCapabilitiesRequest {}).await.unwrap();
    drop((identity, node));
    drop(running.channel);
    running.stop.send(()).unwrap();
    soon(running.task).await.unwrap().unwrap();
    assert!(!socket_in(&folder.path().join("plugins")).exists());
}

#[tokio::test]
async fn what_is_asked_comes_as_a_command_and_its_answer_as_a_code() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = start(folder.path()).await;
    let mut node = NodeClient::new(running.channel.clone());
    let refusals = [
        (None, Code::Ok),
        (Some(Refusal::NoSlot("all 64 slots are taken".to_owned())), Code::ResourceExhausted),
        (Some(Refusal::NotYet("the broker starts".to_owned())), Code::Unavailable),
        (Some(Refusal::Invalid("no group".to_owned())), Code::InvalidArgument),
        (Some(Refusal::Internal("x".repeat(5_000))), Code::Internal),
    ];
    for (refusal, code) in refusals {
        let said = refusal.as_ref().map(ToString::to_string).unwrap_or_default();
        let answer = refusal.clone().map_or(Ok(()), Err);
        let asked = publish(folder.path());
        let done = async {
            let Some(Command::Publish(publish, to)) = running.commands.recv().await else {
                panic!("a volume")
            };
            assert_eq!(publish.pod.to_string(), format!("default/web-0 ({UID})"));
            assert_eq!(publish.target, Path::new(&target(folder.path())));
            to.send(answer).unwrap();
        };
        let (answered, ()) = tokio::join!(node.node_publish_volume(asked), done);
        let answered = answered.err();
        assert_eq!(answered.as_ref().map_or(Code::Ok, tonic::Status::code), code);
        let text = answered.map(|status| status.message().to_owned()).unwrap_or_default();
        assert_eq!(text, said[..said.len().min(limits::REFUSAL_BYTES)]);
    }
    let asked =
        NodeUnpublishVolumeRequest { volume_id: "csi-1".to_owned(), target_path: target(folder.path()) };
    let done = async {
        let Some(Command::Unpublish(unpublish, to)) = running.commands.recv().await else {
            panic!("its end")
        };
        assert_eq!((unpublish.volume.as_str(), unpublish.pod_uid.as_str()), ("csi-1", UID));
        to.send(Ok(())).unwrap();
    };
    let (answered, ()) = tokio::join!(node.node_unpublish_volume(asked), done);
    answered.unwrap();
}

#[tokio::test]
async fn what_is_wrong_is_refused_before_anybody_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = start(folder.path()).await;
    let mut node = NodeClient::new(running.channel.clone());
    let mut asked = publish(folder.path());
    asked.volume_context.remove("csi.storage.k8s.io/pod.uid");
    let status = node.node_publish_volume(asked).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("podInfoOnMount: true"), "{status}");
    let asked = NodeUnpublishVolumeRequest { volume_id: "csi-1".to_owned(), target_path: "/etc".to_owned() };
    assert_eq!(node.node_unpublish_volume(asked).await.unwrap_err().code(), Code::InvalidArgument);
    assert!(running.commands.try_recv().is_err());

    let mut asked = publish(folder.path());
    asked.volume_context.insert("key".to_owned(), "x".repeat(limits::REQUEST_BYTES));
    assert_eq!(node.node_publish_volume(asked).await.unwrap_err().code(), Code::OutOfRange);
}

#[tokio::test]
async fn nobody_waits_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = start(folder.path()).await;
    let mut node = NodeClient::new(running.channel.clone());
    // The answer is dropped.
    let dropping = async { drop(running.commands.recv().await) };
    let (answered, ()) = tokio::join!(node.node_publish_volume(publish(folder.path())), dropping);
    let status = answered.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("could not do it now"), "{status}");
    // Nobody does anything any more.
    drop(running.commands);
    let status = node.node_publish_volume(publish(folder.path())).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn what_takes_too_long_is_not_yet_done() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = start(folder.path()).await;
    let mut node = NodeClient::new(running.channel.clone());
    let (answered, kept) =
        tokio::join!(node.node_publish_volume(publish(folder.path())), running.commands.recv());
    let status = answered.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("not done within 30 s"), "{status}");
    drop(kept);
}

#[tokio::test]
async fn a_full_queue_says_not_yet() {
    let folder = tempfile::tempdir().unwrap();
    let running = start(folder.path()).await;
    let mut waiting = tokio::task::JoinSet::new();
    // On connections of their own: one has room for fewer.
    for _ in 0..limits::COMMANDS.div_ceil(16) {
        let channel = connect(socket_in(&folder.path().join("plugins"))).await;
        for _ in 0..16 {
            let (mut node, asked) = (NodeClient::new(channel.clone()), publish(folder.path()));
            waiting.spawn(async move { node.node_publish_volume(asked).await });
        }
    }
    crate::fake::until(|| running.commands.len() == limits::COMMANDS).await;
    let mut node = NodeClient::new(running.channel.clone());
    let status = node.node_publish_volume(publish(folder.path())).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("128 volumes are waiting"), "{status}");
}

#[tokio::test]
async fn what_is_not_done_is_unimplemented() {
    let folder = tempfile::tempdir().unwrap();
    let running = start(folder.path()).await;
    for method in
        ["/csi.v1.Node/NodeStageVolume", "/csi.v1.Node/NodeExpandVolume", "/csi.v1.Controller/CreateVolume"]
    {
        let mut client = Grpc::new(running.channel.clone());
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<ProbeRequest, ProbeRequest>::default();
        let asked = tonic::Request::new(ProbeRequest {});
        let status = client.unary(asked, method.parse().unwrap(), codec).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{method}");
    }
}
