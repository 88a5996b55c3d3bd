//! The plugin watcher's half.

use std::os::unix::net::UnixListener;
use std::path::Path;

use gpu_handoff_kubelet::ServeError;
use gpu_handoff_kubelet::registration::{Settings, State, fits_in, folder_in, serve};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::fake::wire::pluginregistration::registration_client::RegistrationClient;
use crate::fake::wire::pluginregistration::{InfoRequest, RegistrationStatus};
use crate::fake::{connect_as, soon, until};

struct Running {
    settings: Settings,
    state: watch::Receiver<State>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ServeError>>,
}

fn start(folder: &Path, instance: &str) -> Running {
    let settings = Settings {
        folder: folder_in(folder),
        instance: instance.to_owned(),
        endpoint: "/var/lib/kubelet/plugins/gpu-handoff.io/csi.sock".into(),
    };
    let (state, told) = watch::channel(State::default());
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(serve(settings.clone(), state, async { drop(stopped.await) }));
    Running { settings, state: told, stop, task }
}

/// What the kubelet's gRPC library makes of a socket's path (grpc-go, `encodeAuthority`).
fn authority(socket: &Path) -> String {
    let kept = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(&byte);
    let encode = |byte: u8| if kept(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    socket.to_str().unwrap().bytes().map(encode).collect()
}

async fn ask(running: &Running) -> RegistrationClient<tonic::transport::Channel> {
    let channel = connect_as(running.settings.socket(), &authority(&running.settings.socket())).await;
    let mut client = RegistrationClient::new(channel);
    let info = client.get_info(InfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", "gpu-handoff.io"));
    assert_eq!(info.endpoint, "/var/lib/kubelet/plugins/gpu-handoff.io/csi.sock");
    assert_eq!(info.supported_versions, ["1.0.0"]);
    client
}

async fn end(running: Running) {
    running.stop.send(()).unwrap();
    soon(running.task).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_kubelet_asks_and_says_how_it_went() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = start(folder.path(), "one");
    assert_eq!(*running.state.borrow(), State::Waiting);
    let mut client = ask(&running).await;
    assert_eq!(*running.state.borrow_and_update(), State::Asked);
    for (status, expected) in [
        (
            RegistrationStatus { plugin_registered: false, error: "registered already".to_owned() },
            State::Refused("registered already".to_owned()),
        ),
        (RegistrationStatus { plugin_registered: true, error: String::new() }, State::Registered),
    ] {
        client.notify_registration_status(status).await.unwrap();
        assert_eq!(*running.state.borrow_and_update(), expected);
    }
    let socket = running.settings.socket();
    end(running).await;
    assert!(!socket.exists());
}

#[tokio::test]
async fn the_socket_is_there_again_after_it_vanished() {
    let folder = tempfile::tempdir().unwrap();
    let running = start(folder.path(), "one");
    ask(&running).await;
    std::fs::remove_dir_all(folder.path().join("plugins_registry")).unwrap();
    ask(&running).await;
    end(running).await;
}

#[tokio::test]
async fn what_the_dead_left_is_removed_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let registry = folder.path().join("plugins_registry");
    std::fs::create_dir(&registry).unwrap();
    let at = |name: &str| registry.join(name);
    let dead = at("gpu-handoff.io@dead-reg.sock");
    let foreign = at("other.example-dead-reg.sock");
    drop(UnixListener::bind(&dead).unwrap());
    drop(UnixListener::bind(&foreign).unwrap());
    let living = UnixListener::bind(at("gpu-handoff.io@old-reg.sock")).unwrap();
    let file = at("gpu-handoff.io@file-reg.sock");
    std::fs::write(&file, "").unwrap();

    let running = start(folder.path(), "new");
    ask(&running).await;
    assert!(!dead.exists());
    assert!(foreign.exists() && file.exists() && at("gpu-handoff.io@old-reg.sock").exists());
    end(running).await;
    assert!(at("gpu-handoff.io@old-reg.sock").exists());
    drop(living);
}

#[tokio::test]
async fn an_instance_has_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let error = soon(start(folder.path(), "").task).await.unwrap().unwrap_err();
    assert!(matches!(error, ServeError::Instance), "{error}");
}

/// As long a name as a pod's UID.
const UID: &str = "2c48913c-b29f-11e7-9350-020968147796";

#[tokio::test]
async fn the_longest_root_folder_that_fits_is_one_in_which_the_kubelet_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let longest = "/var/snap/microk8s/common/var/lib/kubelet".len() + 7;
    let fill = longest - folder.path().as_os_str().len() - 1;
    let [root, longer] = [fill, fill + 1].map(|n| folder.path().join("r".repeat(n)));
    let error = fits_in(&longer).unwrap_err();
    assert!(error.to_string().contains("has 108 bytes, more than the kernel takes (107)"), "{error}");
    assert!(matches!(soon(start(&longer, UID).task).await.unwrap(), Err(ServeError::Socket(_))));
    fits_in(&root).unwrap();
    let running = start(&root, UID);
    ask(&running).await;
    // The one of the services is shorter.
    let services = gpu_handoff_kubelet::csi::socket_in(&root.join("plugins"));
    assert!(services.as_os_str().len() <= running.settings.socket().as_os_str().len());
    let other = start(&root, &UID.replace('2', "3"));
    assert_ne!(other.settings.socket(), running.settings.socket());
    ask(&other).await;
    end(other).await;
    ask(&running).await;
    end(running).await;
}

#[tokio::test]
async fn an_instance_that_lives_keeps_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let first = start(folder.path(), "one");
    let socket = first.settings.socket();
    until(|| socket.exists()).await;
    let second = soon(start(folder.path(), "one").task).await.unwrap();
    assert!(matches!(second, Err(ServeError::Socket(_))));
    ask(&first).await;
}
