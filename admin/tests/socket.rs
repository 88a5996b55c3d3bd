//! The socket as others meet it: who is answered, who is not, and that nobody keeps others from being answered.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests: a failure is a failed test")]

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gpu_handoff_admin::client::{ClientError, status};
use gpu_handoff_admin::proto::{Daemon, StatusResponse};
use gpu_handoff_admin::{Door, SOCKET, Server, limits};
use rustix::process::{Gid, Uid};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tonic::Code;

/// How long anything may take that is not to take long.
const PATIENCE: Duration = Duration::from_secs(20);
/// Users and groups that nobody has.
const USER: u32 = 4_242;
const GROUP: u32 = 4_343;

/// A daemon that answers, until it is dropped.
struct Daemons {
    folder: TempDir,
    _served: JoinSet<()>,
}

impl Daemons {
    fn start(group: Option<u32>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let door = Door { own: rustix::process::geteuid().as_raw(), group };
        let server = Server::bind(&folder.path().join(SOCKET), door).unwrap();
        let mut served = JoinSet::new();
        served.spawn(async move { server.serve(answer).await.unwrap() });
        Self { folder, _served: served }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join(SOCKET)
    }

    async fn answers(&self) -> Result<(), ClientError> {
        let told = status(&self.socket()).await?;
        assert_eq!(told, answer());
        Ok(())
    }
}

fn answer() -> StatusResponse {
    let daemon = Daemon { version: "7".into(), ..Daemon::default() };
    StatusResponse { daemon: Some(daemon), ..StatusResponse::default() }
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        assert_ne!(std::env::var("GPU_HANDOFF_TESTS").as_deref(), Ok("all"), "this takes root");
        eprintln!("skipped: this takes root, to be somebody else");
    }
    is_root
}

/// Does something as another user, in a thread of its own that ends as that.
async fn as_another<T: Send + 'static>(groups: &[u32], work: impl FnOnce() -> T + Send + 'static) -> T {
    let groups: Vec<Gid> = groups.iter().map(|&group| Gid::from_raw(group)).collect();
    let thread = std::thread::spawn(move || {
        rustix::thread::set_thread_groups(&groups).unwrap();
        let (group, user) = (Gid::from_raw(USER), Uid::from_raw(USER));
        rustix::thread::set_thread_res_gid(group, group, group).unwrap();
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        work()
    });
    tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap()
}

async fn asked_by_another(socket: PathBuf, groups: &[u32]) -> Result<StatusResponse, ClientError> {
    as_another(groups, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(status(&socket))
    })
    .await
}

/// Whether a connection was closed by the other side, without a word.
fn is_closed(mut stream: &UnixStream) -> bool {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut byte = [0];
    !matches!(stream.read(&mut byte), Ok(n) if n > 0)
}

#[tokio::test]
async fn its_own_user_is_answered_and_the_file_goes_with_it() {
    let daemon = Daemons::start(None);
    daemon.answers().await.unwrap();
    let mode = std::fs::metadata(daemon.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // The next one takes the place over, and keeps it when the first one ends.
    let Daemons { folder, _served: mut served } = daemon;
    let door = Door { own: rustix::process::geteuid().as_raw(), group: None };
    let next = Server::bind(&folder.path().join(SOCKET), door).unwrap();
    served.shutdown().await;
    assert!(folder.path().join(SOCKET).exists());
    drop(next);
    assert!(!folder.path().join(SOCKET).exists());
    let error = status(&folder.path().join(SOCKET)).await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_user_is_answered_as_a_member_of_the_group_alone() {
    if !is_root() {
        return;
    }
    let closed = Daemons::start(None);
    let error = asked_by_another(closed.socket(), &[GROUP]).await.unwrap_err();
    assert!(matches!(error, ClientError::Forbidden { .. }), "{error}");
    let open = Daemons::start(Some(GROUP));
    let mode = std::fs::metadata(open.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    assert_eq!(asked_by_another(open.socket(), &[7, GROUP]).await.unwrap(), answer());
    let error = asked_by_another(open.socket(), &[7]).await.unwrap_err();
    assert!(matches!(error, ClientError::Forbidden { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_ask_is_looked_at_besides_the_files_mode() {
    if !is_root() {
        return;
    }
    let daemon = Daemons::start(Some(GROUP));
    std::fs::set_permissions(daemon.socket(), std::fs::Permissions::from_mode(0o666)).unwrap();
    let error = asked_by_another(daemon.socket(), &[7]).await.unwrap_err();
    assert!(matches!(error, ClientError::Closed(_)), "{error}");
    assert_eq!(asked_by_another(daemon.socket(), &[GROUP]).await.unwrap(), answer());
}

#[tokio::test]
async fn garbage_ends_its_own_connection_only() {
    let daemon = Daemons::start(None);
    let floods: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        &[0; 4_096],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x00\x00\x00\x00\x00\x00",
        &[0xff; 65_536],
    ];
    for _ in 0..10 {
        for flood in floods {
            let mut stream = UnixStream::connect(daemon.socket()).unwrap();
            // It may be closed in the middle of it.
            drop(stream.write_all(flood));
            let closed = tokio::task::spawn_blocking(move || {
                // What it answers in HTTP/2's words before it closes does not matter.
                while !is_closed(&stream) {}
            });
            tokio::time::timeout(PATIENCE, closed).await.unwrap().unwrap();
        }
        daemon.answers().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_say_nothing_end_and_keep_nobody_else_out() {
    let daemon = Daemons::start(Some(GROUP));
    let begin = Instant::now();
    let mut silent: Vec<UnixStream> = Vec::new();
    for _ in 0..limits::CONNECTIONS_OF_USER {
        silent.push(UnixStream::connect(daemon.socket()).unwrap());
    }
    let error = daemon.answers().await.unwrap_err();
    assert!(matches!(error, ClientError::Closed(_)), "{error}");
    if is_root() {
        let told = asked_by_another(daemon.socket(), &[GROUP]).await.unwrap();
        assert_eq!(told, answer());
    }
    assert!(begin.elapsed() < limits::CONNECTION_TIME);
    let ended = tokio::task::spawn_blocking(move || {
        let server_said = |stream: &UnixStream| while !is_closed(stream) {};
        silent.iter().for_each(server_said);
    });
    ended.await.unwrap();
    assert!(begin.elapsed() >= limits::CONNECTION_TIME && begin.elapsed() < limits::CONNECTION_TIME * 2);
    daemon.answers().await.unwrap();
}

/// A request that is not as long as ours.
#[derive(Clone, PartialEq, prost::Message)]
struct Long {
    #[prost(bytes, tag = "9")]
    bytes: Vec<u8>,
}

#[tokio::test]
async fn a_long_message_is_refused_and_unknown_fields_are_passed_over() {
    let daemon = Daemons::start(None);
    let endpoint = tonic::transport::Endpoint::from_shared(format!("unix://{}", daemon.socket().display()));
    let channel = endpoint.unwrap().connect().await.unwrap();
    for (bytes, wanted) in [(100, None), (64 << 20, Some(Code::OutOfRange))] {
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.unwrap();
        let request = tonic::Request::new(Long { bytes: vec![7; bytes] });
        let path = "/gpu_handoff.admin.v1.Admin/Status".parse().unwrap();
        let codec = tonic_prost::ProstCodec::<Long, StatusResponse>::default();
        match (client.unary(request, path, codec).await, wanted) {
            (Ok(told), None) => assert_eq!(told.into_inner(), answer()),
            (Err(error), Some(code)) => assert_eq!(error.code(), code, "{error}"),
            other => panic!("{other:?}"),
        }
        daemon.answers().await.unwrap();
    }
}
