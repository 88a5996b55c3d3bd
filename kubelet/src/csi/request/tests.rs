//! What is taken, and one by one what is not.

use proptest::prelude::*;

use super::*;
use crate::proto::csi::volume_capability::{AccessMode, BlockVolume, MountVolume};

const UID: &str = "8c0dd3e6-0d3c-4f0c-9d9e-6c6f3a0a1b2c";
const ROOT: &str = "/var/lib/kubelet";

fn path(uid: &str) -> String {
    format!("{ROOT}/pods/{uid}/volumes/kubernetes.io~csi/gpu-handoff-slot/mount")
}

fn capability(access_type: AccessType, mode: Mode) -> Option<VolumeCapability> {
    let access_mode = Some(AccessMode { mode: mode.into() });
    Some(VolumeCapability { access_type: Some(access_type), access_mode })
}

fn good() -> NodePublishVolumeRequest {
    let context = [
        (POD_NAME, "web-0"),
        (POD_NAMESPACE, "default"),
        (POD_UID, UID),
        (SERVICE_ACCOUNT, "builder"),
        (EPHEMERAL, "true"),
    ];
    NodePublishVolumeRequest {
        volume_id: format!("csi-{}", "0a".repeat(32)),
        target_path: path(UID),
        volume_capability: capability(AccessType::Mount(MountVolume::default()), Mode::SingleNodeWriter),
        readonly: true,
        volume_context: context.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        ..Default::default()
    }
}

#[track_caller]
fn refused(change: impl FnOnce(&mut NodePublishVolumeRequest)) -> Invalid {
    let mut asked = good();
    change(&mut asked);
    publish(asked, Path::new(ROOT)).expect_err("it is refused")
}

#[test]
fn what_the_kubelet_sends_is_taken() {
    let taken = publish(good(), Path::new(ROOT)).unwrap();
    assert_eq!(taken.pod.to_string(), format!("default/web-0 ({UID})"));
    assert_eq!(taken.service_account, "builder");
    assert_eq!(taken.name, "gpu-handoff-slot");
    assert_eq!(taken.target, Path::new(&path(UID)));
    // With whatever slash the root is configured.
    assert!(publish(good(), Path::new("/var/lib/kubelet/")).is_ok());
}

#[test]
fn a_static_pod_has_no_service_account() {
    let mut asked = good();
    asked.volume_context.insert(SERVICE_ACCOUNT.to_owned(), String::new());
    assert_eq!(publish(asked, Path::new(ROOT)).unwrap().service_account, "");
}

#[test]
fn the_pod_must_be_named_whole_and_well() {
    for key in KNOWN {
        let missing = refused(|asked| drop(asked.volume_context.remove(key)));
        assert_eq!(missing, Invalid::Missing(key));
        if key != SERVICE_ACCOUNT {
            let empty = refused(|asked| drop(asked.volume_context.insert(key.to_owned(), String::new())));
            assert_eq!(empty, Invalid::Missing(key));
        }
    }
    for (key, value) in [
        (POD_NAME, "../x"),
        (POD_NAMESPACE, "a.b"),
        (POD_NAMESPACE, "kube/system"),
        (POD_UID, "../../etc"),
        (SERVICE_ACCOUNT, "A"),
    ] {
        let malformed = refused(|asked| drop(asked.volume_context.insert(key.to_owned(), value.to_owned())));
        assert_eq!(malformed, Invalid::Malformed { key, value: value.to_owned() });
    }
}

#[test]
fn only_inline_volumes_without_anything_else() {
    for other in ["false", "True", "1"] {
        let seen = refused(|asked| drop(asked.volume_context.insert(EPHEMERAL.to_owned(), other.to_owned())));
        assert_eq!(seen, Invalid::NotInline);
    }
    let one = || [("key".to_owned(), "value".to_owned())].into();
    type Change = Box<dyn Fn(&mut NodePublishVolumeRequest)>;
    let changes: [Change; 7] = [
        Box::new(move |asked| drop(asked.volume_context.insert("slots".to_owned(), "2".to_owned()))),
        Box::new(move |asked| asked.publish_context = one()),
        Box::new(move |asked| asked.secrets = one()),
        Box::new(|asked| asked.staging_target_path = "/stage".to_owned()),
        Box::new(|asked| mount(asked).fs_type = "ext4".to_owned()),
        Box::new(|asked| mount(asked).mount_flags.push("suid".to_owned())),
        Box::new(|asked| mount(asked).volume_mount_group = "0".to_owned()),
    ];
    for (which, change) in changes.iter().enumerate() {
        assert!(matches!(refused(change), Invalid::Unknown(_)), "{which}");
    }
}

fn mount(asked: &mut NodePublishVolumeRequest) -> &mut MountVolume {
    match asked.volume_capability.as_mut().and_then(|capability| capability.access_type.as_mut()) {
        Some(AccessType::Mount(mount)) => mount,
        _ => panic!("the good request mounts"),
    }
}

#[test]
fn only_read_only_file_systems_of_one_node() {
    assert_eq!(refused(|asked| asked.readonly = false), Invalid::Writable);
    let block = AccessType::Block(BlockVolume {});
    let mounted = || AccessType::Mount(MountVolume::default());
    for capability in [
        None,
        capability(block, Mode::SingleNodeWriter),
        capability(mounted(), Mode::MultiNodeMultiWriter),
        capability(mounted(), Mode::Unknown),
        Some(VolumeCapability { access_type: Some(mounted()), access_mode: None }),
    ] {
        let said = format!("{capability:?}");
        let seen = refused(|asked| asked.volume_capability = capability);
        assert!(matches!(seen, Invalid::Access(_)), "{said}: {seen}");
    }
}

#[test]
fn the_target_is_in_the_folder_of_exactly_that_pod() {
    let other = "11111111-0d3c-4f0c-9d9e-6c6f3a0a1b2c";
    assert!(matches!(refused(|asked| asked.target_path = path(other)), Invalid::OtherPod { .. }));
    let mount = path(UID);
    for bad in [
        String::new(),
        "/".to_owned(),
        mount.replacen("/pods/", "/pods//", 1),
        mount.replacen("/pods/", "/./pods/", 1),
        mount.replacen("/pods/", "/pods/../pods/", 1),
        mount.replacen(UID, "..", 1),
        mount.replacen("gpu-handoff-slot", "..", 1),
        mount.replacen("gpu-handoff-slot", "a/b", 1),
        mount.replacen("kubernetes.io~csi", "kubernetes.io~empty-dir", 1),
        mount.replacen("kubelet", "kubelet2", 1),
        mount.replacen("/mount", "/mount/", 1),
        mount.replacen("/mount", "/mount/x", 1),
        mount.replacen("/mount", "", 1),
        mount.trim_start_matches('/').to_owned(),
        format!("/host{mount}"),
        format!("{mount}\0"),
    ] {
        let seen = refused(|asked| asked.target_path = bad.clone());
        assert!(matches!(seen, Invalid::Target { .. }), "{bad}: {seen}");
        let asked = NodeUnpublishVolumeRequest { volume_id: "csi-1".to_owned(), target_path: bad.clone() };
        assert!(matches!(unpublish(asked, Path::new(ROOT)), Err(Invalid::Target { .. })), "{bad}");
    }
}

#[test]
fn volume_ids_have_a_form_and_a_length() {
    for bad in ["", "a/b", "..", "CSI-1", &"a".repeat(129)] {
        let seen = refused(|asked| asked.volume_id = bad.to_owned());
        assert_eq!(seen, Invalid::VolumeId(bad.len()));
    }
}

#[test]
fn the_end_of_a_volume_names_the_pod_by_its_folder() {
    let asked = NodeUnpublishVolumeRequest { volume_id: "csi-1".to_owned(), target_path: path(UID) };
    let taken = unpublish(asked, Path::new(ROOT)).unwrap();
    assert_eq!((taken.volume.as_str(), taken.pod_uid.as_str()), ("csi-1", UID));
}

proptest! {
    /// Whatever path is taken, it names what it seems to: no part of it is resolved, and it is below the root.
    #[test]
    fn a_path_that_is_taken_needs_no_resolving(path in "(/var/lib/kubelet)?(/(pods|volumes|mount|kubernetes.io~csi|\\.\\.|\\.|a|)){0,8}") {
        if let Ok(taken) = target(&path, Path::new(ROOT)) {
            let rebuilt = format!("{ROOT}/pods/{}/volumes/kubernetes.io~csi/{}/mount", taken.uid, taken.name);
            prop_assert_eq!(&rebuilt, &path);
            prop_assert!(Path::new(&path).components().all(|part| !matches!(part, std::path::Component::ParentDir)));
        }
    }
}
