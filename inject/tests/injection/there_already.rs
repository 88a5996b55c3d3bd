//! Pods that have parts of it already: completed where they can be, denied where they are something else.

use crate::common::{asking, codes, injected, injected_by, named, pod, settings};
use gpu_handoff_inject::{DenialCode, Settings};
use serde_json::{Value, json};

fn with_volume(volume: Value) -> Value {
    pod(json!({"volumes": [volume]}))
}

fn with_sidecar(sidecar: Value) -> Value {
    pod(json!({"initContainers": [{"name": "before"}, sidecar]}))
}

fn with_mount(mount: Value) -> Value {
    pod(json!({"containers": [{"name": "app", "volumeMounts": [mount]}]}))
}

#[test]
fn what_is_complete_stays_as_it_is() {
    let once = injected(&asking(&[]));
    let again = injected_by(&once, &settings()).unwrap();
    assert_eq!((again.object, again.patch.0.len()), (once, 0));
}

#[test]
fn what_an_older_version_or_other_settings_gave_stays_as_it_is() {
    let mut old = injected(&asking(&[]));
    old["metadata"]["annotations"]["gpu-handoff.io/injected"] = json!("0.0.9");
    old["spec"]["initContainers"][0]["startupProbe"]["failureThreshold"] = json!(60);
    let new = Settings::with_image("sidecar:2");
    assert_eq!(injected_by(&old, &new).unwrap().object, old);
}

#[test]
fn parts_that_are_ours_are_completed() {
    let volumes = |volume| injected(&with_volume(volume))["spec"]["volumes"].clone();
    let slot = volumes(json!({"name": "gpu-handoff-slot", "csi": {"driver": "gpu-handoff.io"}}));
    assert_eq!(slot[0]["csi"], json!({"driver": "gpu-handoff.io", "readOnly": true}));
    let folder = volumes(json!({"name": "gpu-handoff", "emptyDir": {}}));
    assert_eq!((&folder[0]["emptyDir"], folder.as_array().unwrap().len()), (&json!({}), 2));

    let mount = json!({"name": "gpu-handoff", "mountPath": "//run/./gpu-handoff/"});
    let container = injected(&with_mount(mount))["spec"]["containers"][0].clone();
    let wanted = json!([{"name": "gpu-handoff", "mountPath": "//run/./gpu-handoff/", "readOnly": true}]);
    assert_eq!(container["volumeMounts"], wanted);
}

#[test]
fn a_users_say_about_the_sidecar_holds() {
    let resources = json!({"requests": {"memory": "64Mi"}});
    let security = json!({"runAsUser": 1234, "capabilities": {"drop": ["NET_RAW"]}});
    let own = json!({"name": "gpu-handoff", "image": "sidecar:1", "resources": resources, "securityContext": security});
    let after = injected(&with_sidecar(own));
    assert_eq!(after["spec"]["initContainers"][0]["name"], "before", "it stays where it is");
    let sidecar = named(&after["spec"]["initContainers"], "gpu-handoff");
    assert_eq!(sidecar["resources"], resources);
    assert_eq!(sidecar["securityContext"]["runAsUser"], 1234);
    assert_eq!(sidecar["securityContext"]["capabilities"], json!({"drop": ["NET_RAW"]}));
    assert_eq!(sidecar["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(sidecar["restartPolicy"], "Always");
    assert_eq!(sidecar["volumeMounts"].as_array().unwrap().len(), 2);
}

#[test]
fn what_has_our_name_and_is_something_else_is_denied() {
    let taken = [
        with_volume(json!({"name": "gpu-handoff-slot", "emptyDir": {}})),
        with_volume(json!({"name": "gpu-handoff-slot", "csi": {"driver": "other.io"}})),
        with_volume(
            json!({"name": "gpu-handoff-slot", "csi": {"driver": "gpu-handoff.io", "readOnly": false}}),
        ),
        with_volume(json!({"name": "gpu-handoff", "hostPath": {"path": "/"}})),
        with_sidecar(json!({"name": "gpu-handoff", "image": "mine:1"})),
        with_sidecar(json!({"name": "gpu-handoff", "args": ["sleep"]})),
        with_sidecar(json!({"name": "gpu-handoff", "command": ["sh"]})),
        with_sidecar(json!({"name": "gpu-handoff", "restartPolicy": "OnFailure"})),
        with_sidecar(
            json!({"name": "gpu-handoff", "volumeMounts": [{"name": "x", "mountPath": "/run/gpu-handoff"}]}),
        ),
        pod(json!({"containers": [{"name": "gpu-handoff"}]})),
    ];
    for pod in taken {
        assert_eq!(codes(&pod), [DenialCode::NameTaken], "{pod}");
    }
    let mut labelled = asking(&[]);
    labelled["metadata"]["labels"] = json!({"gpu-handoff.io/group-hash": "0123456789abcdef"});
    assert_eq!(codes(&labelled), [DenialCode::NameTaken]);
}

#[test]
fn what_is_mounted_in_our_place_is_denied() {
    for mount in [
        json!({"name": "data", "mountPath": "/run/gpu-handoff"}),
        json!({"name": "data", "mountPath": "/run//gpu-handoff/"}),
        json!({"name": "gpu-handoff", "mountPath": "/run/gpu-handoff", "readOnly": false}),
    ] {
        assert_eq!(codes(&with_mount(mount.clone())), [DenialCode::MountTaken], "{mount}");
    }
    assert!(injected_by(&with_mount(json!({"name": "data", "mountPath": "/run"})), &settings()).is_ok());
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let mut pod = pod(json!({
        "hostPID": true,
        "os": {"name": "windows"},
        "volumes": [{"name": "gpu-handoff", "hostPath": {"path": "/"}}],
    }));
    pod["metadata"]["annotations"]["gpu-handoff.io/containers"] = json!("nobody");
    let wanted =
        [DenialCode::HostPid, DenialCode::Windows, DenialCode::NameTaken, DenialCode::UnknownContainer];
    assert_eq!(codes(&pod), wanted);
}
