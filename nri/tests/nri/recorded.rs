//! What a real containerd has said, played again.

use std::path::Path;

use gpu_handoff_nri::exchange::{Exchange, Phase};
use gpu_handoff_nri::mux::{Connection, Demux, framed};
use gpu_handoff_nri::ttrpc::Frames;
use gpu_handoff_nri::view::{Namespace, Stage};
use gpu_handoff_nri::{Link, Settings, State, serve};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio::sync::watch;

use crate::fake::within;
use crate::handler::{ByName, IPC, SHM};

const FROM_RUNTIME: &[u8] = include_bytes!("../recorded/from_runtime.bin");
const FROM_PLUGIN: &[u8] = include_bytes!("../recorded/from_plugin.bin");
const POD_UID: &str = "8c0dd3e6-0d3c-4f0c-9d9e-6c6f3a0a1b2c";

/// What we say when the runtime's half comes in parts of these lengths, over and over.
fn played(handler: &mut ByName, parts: &[usize]) -> Vec<u8> {
    let mut said = framed(Connection::Runtime, &Exchange::<ByName>::register("gpu-handoff", "90").unwrap());
    let mut exchange = Exchange::new(handler);
    let (mut demux, mut plugin, mut runtime) = (Demux::default(), Frames::default(), Frames::default());
    let mut bytes = FROM_RUNTIME;
    for part in parts.iter().cycle() {
        if bytes.is_empty() {
            break;
        }
        let (now, rest) = bytes.split_at(bytes.len().min(*part));
        bytes = rest;
        for piece in demux.feed(now).unwrap() {
            let frames = if piece.connection == Connection::Plugin { &mut plugin } else { &mut runtime };
            for frame in frames.feed(&piece.bytes).unwrap() {
                if let Some(answer) = exchange.take(piece.connection, frame).unwrap() {
                    said.extend(framed(Connection::Plugin, &answer));
                }
            }
        }
    }
    assert!(matches!(exchange.phase(), Phase::Serving(_)));
    said
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn we_say_today_what_containerd_has_understood(parts in prop::collection::vec(1_usize..6_000, 1..5)) {
        prop_assert_eq!(played(&mut ByName::default(), &parts), FROM_PLUGIN);
    }
}

#[test]
fn what_containerd_says_is_understood() {
    let mut told = ByName::default();
    played(&mut told, &[FROM_RUNTIME.len()]);
    assert_eq!((told.runtime.name.as_str(), told.runtime.version.as_str()), ("containerd", "2.4.2+unknown"));
    assert_eq!(told.runtime.nri, "v0.12.3");

    let [(pod, containers)] = told.synchronized.as_slice() else { panic!("{:?}", told.synchronized) };
    assert_eq!(
        (pod.uid.as_str(), pod.namespace.as_str(), pod.name.as_str()),
        (POD_UID, "team-a", "trainer-0")
    );
    let [before] = containers.as_slice() else { panic!("{containers:?}") };
    assert_eq!((before.name.as_str(), before.stage, before.user), ("before", Stage::Running, Some(1_000)));
    assert!(before.pid.is_some() && before.pod_id == pod.id && before.env.is_empty());

    let names: Vec<_> = told.created.iter().map(|(_, container)| container.name.as_str()).collect();
    assert_eq!(names, ["adjusted", "refused", "vetoed", "plain"]);
    for (of, container) in &told.created {
        assert_eq!((of.uid.as_str(), container.pid), (POD_UID, None));
        let shm = container.mounts.iter().find(|mount| mount.destination == "/dev/shm").unwrap();
        assert!(shm.kind == "bind" && shm.source.ends_with(&format!("/{}/shm", pod.id)), "{shm:?}");
        let ipc = container.namespaces.iter().find(|namespace| namespace.kind == "ipc").unwrap();
        assert!(ipc.path.starts_with("/proc/") && ipc.path.ends_with("/ns/ipc"), "{ipc:?}");
    }
    let adjusted = &told.created[0].1;
    assert!(adjusted.env.iter().any(|(name, value)| name == "LONG" && value.len() == 9_000));
}

#[test]
fn what_was_asked_for_is_in_what_containerd_made() {
    let mut told = ByName::default();
    played(&mut told, &[FROM_RUNTIME.len()]);
    let whole = &told.validated[0];
    assert_eq!(whole.container.name, "adjusted");
    assert!(whole.default_validator() && whole.mounts[0].source == SHM && whole.devices[0].minor == 5);
    assert_eq!(whole.env, [("NCCL_HOSTID".into(), "x".into())]);

    let names: Vec<_> = told.started.iter().map(|(_, container)| container.name.as_str()).collect();
    assert_eq!(names, ["adjusted", "vetoed", "plain"]);
    let (_, started) = &told.started[0];
    assert!(started.pid.is_some() && started.stage == Stage::Created);
    assert!(started.namespaces.contains(&Namespace { kind: "ipc".into(), path: IPC.into() }));
    let at_shm = started.mounts.iter().filter(|mount| mount.destination == "/dev/shm");
    assert_eq!(at_shm.map(|mount| mount.source.as_str()).collect::<Vec<_>>(), [SHM]);
    assert!(started.devices.iter().any(|device| device.path == "/dev/zero2"));
    assert!(started.env.contains(&("NCCL_HOSTID".into(), "x".into())));
}

#[tokio::test]
async fn the_same_over_a_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nri.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let settings = Settings::new(Path::new(&socket), "gpu-handoff", 90).unwrap();
    let (state, mut seen) = watch::channel(State::default());
    let runtime = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(FROM_RUNTIME).await.unwrap();
        let mut said = vec![0; FROM_PLUGIN.len()];
        stream.read_exact(&mut said).await.unwrap();
        assert_eq!(said, FROM_PLUGIN);
        drop(stream);
        seen.wait_for(|state| state.connections == 1 && matches!(state.link, Link::Away { .. }))
            .await
            .unwrap();
    };
    within(serve(settings, ByName::default(), state, runtime)).await;
}
