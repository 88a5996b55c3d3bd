//! Pods that nobody would write.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

const FUTURE: &str = "fieldOfTheFuture";

/// An object of these members, each there or not, or `null`, and a field that no version knows.
fn object(members: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let (names, values): (Vec<_>, Vec<_>) = members.into_iter().unzip();
    let values: Vec<_> =
        values.into_iter().map(|v| prop_oneof![4 => option::of(v), 1 => Just(Some(Value::Null))]).collect();
    (values, any::<bool>())
        .prop_map(move |(values, future)| {
            let there =
                names.iter().zip(values).filter_map(|(name, value)| Some(((*name).to_owned(), value?)));
            let mut object: Map<_, _> = there.collect();
            if future {
                object.insert(FUTURE.to_owned(), json!({"deep": [null, {"x": 1}]}));
            }
            Value::Object(object)
        })
        .boxed()
}

/// An object of names that users choose: each there or not, and no other.
fn texts(members: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    object(members)
        .prop_map(|mut object| {
            object.as_object_mut().unwrap().retain(|name, value| name != FUTURE && !value.is_null());
            object
        })
        .boxed()
}

fn list(item: BoxedStrategy<Value>, most: usize) -> BoxedStrategy<Value> {
    vec(item, 0..=most).prop_map(Value::Array).boxed()
}

fn one_of(values: Vec<Value>) -> BoxedStrategy<Value> {
    proptest::sample::select(values).boxed()
}

fn resources() -> BoxedStrategy<Value> {
    let cpu = || one_of(vec![json!("1"), json!("1000m"), json!(2), json!("0")]);
    let memory = || one_of(vec![json!("1Gi"), json!("1024Mi"), json!(1024)]);
    let amounts =
        || texts(vec![("cpu", cpu()), ("memory", memory()), ("nvidia.com/gpu", Just(json!(1)).boxed())]);
    object(vec![("requests", amounts()), ("limits", amounts())])
}

fn container(names: &[&str]) -> BoxedStrategy<Value> {
    let variable = one_of(vec![json!({"name": "A"}), json!({"name": "GPU_HANDOFF_SOCKET", "value": "/x"})]);
    let mount = one_of(vec![
        json!({"name": "data", "mountPath": "/data"}),
        json!({"name": "gpu-handoff", "mountPath": "/run/gpu-handoff"}),
        json!({"name": "gpu-handoff", "mountPath": "/run/gpu-handoff/", "readOnly": true}),
        json!({"name": "gpu-handoff", "mountPath": "/mine"}),
    ]);
    let name = one_of(names.iter().map(|name| json!(name)).collect());
    let rest = object(vec![
        ("image", Just(json!("app:1")).boxed()),
        ("env", list(variable, 2)),
        ("volumeMounts", list(mount, 2)),
        ("resources", resources()),
        ("securityContext", Just(json!({"privileged": true})).boxed()),
    ]);
    (name, rest)
        .prop_map(|(name, mut container)| {
            container["name"] = name;
            container
        })
        .boxed()
}

/// A sidecar of which some is there.
fn sidecar() -> BoxedStrategy<Value> {
    let rest = object(vec![
        ("restartPolicy", Just(json!("Always")).boxed()),
        ("image", Just(json!("sidecar:1")).boxed()),
        ("resources", resources()),
        ("securityContext", Just(json!({"runAsUser": 7})).boxed()),
        ("volumeMounts", Just(json!([{"name": "gpu-handoff", "mountPath": "/run/gpu-handoff"}])).boxed()),
        ("startupProbe", Just(json!({"periodSeconds": 9})).boxed()),
    ]);
    rest.prop_map(|mut sidecar| {
        sidecar["name"] = json!("gpu-handoff");
        sidecar
    })
    .boxed()
}

fn affinity() -> BoxedStrategy<Value> {
    let term = json!({"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "zone"});
    let weighted = json!({"weight": 1, "podAffinityTerm": term});
    let expressions = json!([{"key": "zone", "operator": "Exists"}]);
    let node_term = one_of(vec![
        json!({}),
        json!({"matchExpressions": expressions}),
        json!({"matchFields": expressions}),
    ]);
    let nodes = object(vec![("nodeSelectorTerms", list(node_term, 2))]);
    let pods = || {
        object(vec![
            (REQUIRED, list(Just(term.clone()).boxed(), 2)),
            (PREFERRED, list(Just(weighted.clone()).boxed(), 2)),
        ])
    };
    let nodes = object(vec![(REQUIRED, nodes), (PREFERRED, Just(json!([1])).boxed())]);
    object(vec![("podAffinity", pods()), ("podAntiAffinity", pods()), ("nodeAffinity", nodes)])
}

fn volume() -> BoxedStrategy<Value> {
    one_of(vec![
        json!({"name": "data", "hostPath": {"path": "/data"}}),
        json!({"name": "gpu-handoff", "emptyDir": {}}),
        json!({"name": "gpu-handoff-slot", "csi": {"driver": "gpu-handoff.io"}}),
    ])
}

fn metadata() -> BoxedStrategy<Value> {
    let annotations = texts(vec![
        ("gpu-handoff.io/colocate", one_of(vec![json!("required"), json!("preferred"), json!("none")])),
        ("gpu-handoff.io/on-failure", one_of(vec![json!("block"), json!("start")])),
        ("gpu-handoff.io/containers", one_of(vec![json!("a"), json!("b,a")])),
        ("example.com/other", Just(json!("x")).boxed()),
    ]);
    let labels = texts(vec![("app", Just(json!("x")).boxed())]);
    (annotations, labels, any::<bool>())
        .prop_map(|(mut annotations, mut labels, from_label)| {
            if from_label {
                labels["set"] = json!("llama");
                annotations["gpu-handoff.io/group-from-label"] = json!("set");
            } else {
                annotations["gpu-handoff.io/group"] = json!("llama");
            }
            json!({"name": "p", "annotations": annotations, "labels": labels})
        })
        .boxed()
}

/// A pod that takes part, with containers `a` and `b`, and some of it there already.
pub(crate) fn pod() -> BoxedStrategy<Value> {
    let init = (list(container(&["i", "j"]), 2), option::of(sidecar())).prop_map(|(mut list, sidecar)| {
        list.as_array_mut().unwrap().extend(sidecar);
        list
    });
    let applications = (container(&["a"]), container(&["b"])).prop_map(|(a, b)| json!([a, b]));
    let spec = object(vec![
        ("initContainers", init.boxed()),
        ("volumes", list(volume(), 3)),
        ("affinity", affinity()),
        ("securityContext", one_of(vec![json!({"runAsUser": 7}), json!({"fsGroup": 7})])),
        ("resources", resources()),
    ]);
    (metadata(), spec, applications)
        .prop_map(|(metadata, mut spec, applications)| {
            spec["containers"] = applications;
            json!({"metadata": metadata, "spec": spec})
        })
        .boxed()
}
