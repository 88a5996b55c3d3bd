use gpu_handoff_inject::{DenialCode, Settings, keys};
use gpu_handoff_policy::Policy;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn injected(pod: &Value) -> Result<Injected, Denial> {
    let Rules { settings, policy } = rules();
    inject(pod, &"ml".parse().unwrap(), &settings, &policy)
}

fn rules() -> Rules {
    Rules { settings: Settings::with_image("sidecar:1"), policy: Policy::default() }
}

fn pod(annotations: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "web-0", "annotations": annotations, "fieldOfTheFuture": [1, null] },
        "spec": { "containers": [{ "name": "app", "image": "app:1" }] },
    })
}

/// What the API server sends when a pod is created in the namespace `ml`.
fn review(pod: Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "1f0c0a5e-0b5e-4e57-9a5b-0e6a0a9b7d11",
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "requestKind": { "group": "", "version": "v1", "kind": "Pod" },
            "requestResource": { "group": "", "version": "v1", "resource": "pods" },
            "name": "web-0", "namespace": "ml", "operation": "CREATE",
            "userInfo": { "username": "someone", "groups": ["a"], "extra": { "x": ["y"] } },
            "object": pod, "oldObject": null, "dryRun": false,
            "options": { "kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1" },
        },
    })
}

fn with(path: &str, value: Value) -> Value {
    let mut review = review(pod(json!({ "gpu-handoff.io/group": "llama" })));
    let (parent, key) = path.rsplit_once('/').unwrap();
    review.pointer_mut(parent).unwrap()[key] = value;
    review
}

/// The answer as the API server reads it.
fn answered(review: &Value) -> Value {
    let answer = answer(review.to_string().as_bytes(), &rules()).unwrap();
    let sent: Value = serde_json::from_slice(&answer.review).unwrap();
    assert_eq!((&sent["apiVersion"], &sent["kind"]), (&review["apiVersion"], &review["kind"]));
    assert_eq!(sent["response"]["uid"], review["request"]["uid"]);
    sent["response"].clone()
}

fn denied(review: &Value) -> Value {
    let response = answered(review);
    assert_eq!(response["allowed"], false);
    assert_eq!(
        (&response["status"]["code"], &response["status"]["reason"]),
        (&json!(403), &json!("Forbidden"))
    );
    assert!(response["patch"].is_null());
    response["status"].clone()
}

fn patched(pod: &Value, response: &Value) -> Value {
    assert_eq!((&response["allowed"], &response["patchType"]), (&json!(true), &json!("JSONPatch")));
    let bytes: ByteString = serde_json::from_value(response["patch"].clone()).unwrap();
    let patch: gpu_handoff_inject::Patch = serde_json::from_slice(&bytes.0).unwrap();
    let mut pod = pod.clone();
    json_patch::patch(&mut pod, &patch).unwrap();
    pod
}

#[test]
fn a_pod_that_asks_gets_what_the_library_gives_it() {
    let asking = pod(json!({ "gpu-handoff.io/group": "llama" }));
    let response = answered(&review(asking.clone()));
    let expected = injected(&asking).unwrap();
    assert_eq!(patched(&asking, &response), expected.object);
    assert_eq!(expected.object["metadata"]["fieldOfTheFuture"], json!([1, null]));
    assert!(expected.object["metadata"]["labels"][keys::GROUP_HASH_LABEL].is_string());
}

#[test]
fn the_namespace_is_the_requests_not_the_pods() {
    let mut lying = pod(json!({ "gpu-handoff.io/group": "llama" }));
    lying["metadata"]["namespace"] = json!("elsewhere");
    let response = answered(&review(lying.clone()));
    let expected = injected(&lying).unwrap();
    assert_eq!(patched(&lying, &response), expected.object);
}

#[test]
fn a_dry_run_is_answered_as_any_other() {
    let asking = pod(json!({ "gpu-handoff.io/group": "llama" }));
    assert_eq!(answered(&with("/request/dryRun", json!(true))), answered(&review(asking)));
}

#[test]
fn a_pod_that_asks_for_nothing_or_has_all_of_it_is_let_in_as_it_is() {
    let asking = pod(json!({ "gpu-handoff.io/group": "llama" }));
    let whole = injected(&asking).unwrap().object;
    for unchanged in [pod(Value::Null), pod(json!({})), pod(json!({ "other": "x" })), whole] {
        let response = answered(&review(unchanged));
        assert_eq!(response["allowed"], true);
        assert!(
            response["patch"].is_null() && response["patchType"].is_null() && response["warnings"].is_null()
        );
    }
}

#[test]
fn warnings_are_passed_on() {
    let mut labelled = pod(Value::Null);
    labelled["metadata"]["labels"] = json!({ "gpu-handoff.io/group": "llama" });
    let response = answered(&review(labelled));
    assert_eq!(response["allowed"], true);
    assert!(response["warnings"][0].as_str().unwrap().contains("gpu-handoff.io/group"), "{response}");
}

#[test]
fn a_denial_has_a_sentence_for_people_and_codes_for_programs() {
    let status = denied(&review(pod(json!({ "gpu-handoff.io/gruop": "llama" }))));
    let message = status["message"].as_str().unwrap();
    assert!(message.starts_with("denied: UNKNOWN_ANNOTATION (annotation: wanted "), "{message}");
    assert!(message.contains("remedy: did you mean gpu-handoff.io/group?"), "{message}");
    assert_eq!(status["details"]["causes"][0]["reason"], DenialCode::UnknownAnnotation.as_str());
    assert_eq!(status["details"]["causes"][0]["field"], "annotation");
}

#[test]
fn what_is_not_the_creation_of_a_pod_is_denied() {
    let table = [
        ("/request/operation", json!("UPDATE"), "UPDATE of v1 pods"),
        ("/request/operation", json!("DELETE"), "DELETE of v1 pods"),
        ("/request/operation", json!("CONNECT"), "CONNECT of v1 pods"),
        ("/request/subResource", json!("ephemeralcontainers"), "CREATE of v1 pods/ephemeralcontainers"),
        (
            "/request/resource",
            json!({ "group": "apps", "version": "v1", "resource": "deployments" }),
            "CREATE of apps/v1 deployments",
        ),
        ("/request/resource/version", json!("v2"), "CREATE of v2 pods"),
    ];
    for (path, value, found) in table {
        let status = denied(&with(path, value));
        let message = status["message"].as_str().unwrap();
        let wanted =
            format!("denied: WRONG_REQUEST (request: wanted CREATE of v1 pods, found {found}); remedy: ");
        assert!(message.starts_with(&wanted), "{message}");
    }
    for namespace in [Value::Null, json!(""), json!("No Such Name"), json!("a".repeat(5_000))] {
        let status = denied(&with("/request/namespace", namespace));
        let message = status["message"].as_str().unwrap();
        assert!(message.starts_with("denied: WRONG_REQUEST (request.namespace: "), "{message}");
        assert!(message.len() < 1_024, "{message}");
    }
}

#[test]
fn the_largest_pod_has_an_answer_and_one_of_many_more_containers_a_short_no() {
    let of = |containers: usize| {
        let named: Vec<Value> = (0..containers).map(|i| json!({ "name": format!("c{i}") })).collect();
        let mut pod = pod(json!({ "gpu-handoff.io/group": "llama" }));
        pod["spec"]["containers"] = json!(named);
        pod
    };
    let largest = of(gpu_handoff_inject::limits::POD_CONTAINERS);
    assert_eq!(patched(&largest, &answered(&review(largest.clone()))), injected(&largest).unwrap().object);
    let status = denied(&review(of(20_000)));
    assert_eq!(status["details"]["causes"][0]["reason"], DenialCode::TooManyContainers.as_str());
}

#[test]
fn an_answer_has_a_limit() {
    let long = with("/request/uid", json!("u".repeat(limits::ANSWER_BYTES)));
    let error = answer(long.to_string().as_bytes(), &rules()).unwrap_err();
    assert!(matches!(error, ReviewError::AnswerTooLarge { .. }), "{error}");
}

#[test]
fn a_pod_that_is_none_is_denied() {
    for object in [Value::Null, json!([]), json!("pod"), json!({ "spec": { "hostPID": "yes" } })] {
        let status = denied(&review(object));
        assert_eq!(status["details"]["causes"][0]["reason"], DenialCode::PodUnreadable.as_str());
    }
}

#[test]
fn an_old_object_of_any_form_is_not_even_read() {
    let mut update = with("/request/operation", json!("UPDATE"));
    update["request"]["oldObject"] = json!([{ "metadata": 7 }]);
    assert!(denied(&update)["message"].as_str().unwrap().contains("found UPDATE of v1 pods"));
}

#[test]
fn what_is_no_review_of_this_version_is_refused() {
    let whole = review(pod(Value::Null));
    let failure = |review: &Value| answer(review.to_string().as_bytes(), &rules()).unwrap_err();
    for (key, value) in
        [("apiVersion", "admission.k8s.io/v1beta1"), ("kind", "ConversionReview"), ("kind", "")]
    {
        let mut other = whole.clone();
        other[key] = json!(value);
        let error = failure(&other);
        assert!(matches!(error, ReviewError::Version { .. }) && error.to_string().contains(value), "{error}");
    }
    for strange in [json!(null), json!([]), json!(7), json!({}), json!({ "request": {} })] {
        assert!(matches!(failure(&strange), ReviewError::Version { .. }), "{strange}");
    }
    let mut without = whole.clone();
    without["request"] = Value::Null;
    assert!(matches!(failure(&without), ReviewError::NoRequest));
    for (path, value) in [
        ("/request/uid", json!("")),
        ("/request/uid", json!(7)),
        ("/request/operation", json!("PATCH")),
        ("/request/resource", json!("pods")),
        ("/request/userInfo", json!([])),
        ("/request", json!([])),
    ] {
        let error = failure(&with(path, value));
        assert!(matches!(error, ReviewError::NoRequest | ReviewError::Form(_)), "{path}: {error}");
    }
}

#[test]
fn garbage_is_refused_whatever_it_is() {
    let deep = "[".repeat(10_000);
    let wide = format!("[{}0]", "0,".repeat(limits::REVIEW_VALUES + 1));
    for text in ["", "{", "\0\0", "{}{}", "nul", "{\"kind\":", deep.as_str(), wide.as_str()] {
        assert!(answer(text.as_bytes(), &rules()).is_err());
    }
    assert!(matches!(answer(wide.as_bytes(), &rules()), Err(ReviewError::TooMany(_))));
    assert!(answer(&[0xff; 64], &rules()).is_err());
}

fn values() -> impl Strategy<Value = Value> {
    let word = prop_oneof![
        ".{0,12}",
        Just("gpu-handoff.io/group".to_owned()),
        Just("CREATE".to_owned()),
        Just("metadata".to_owned()),
        Just("annotations".to_owned()),
        Just("spec".to_owned()),
        Just("containers".to_owned()),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        word.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(word.clone(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        drop(answer(&bytes, &rules()));
    }

    #[test]
    fn whatever_stands_anywhere_there_is_an_answer_or_a_refusal(
        place in prop::sample::select(vec![
            "/kind", "/request", "/request/uid", "/request/kind", "/request/resource", "/request/namespace",
            "/request/name", "/request/operation", "/request/object", "/request/object/metadata",
            "/request/object/metadata/annotations", "/request/object/spec", "/request/object/spec/containers",
            "/request/dryRun", "/request/options", "/request/userInfo", "/request/userInfo/extra",
        ]),
        value in values(),
    ) {
        let review = with(place, value);
        if let Ok(answer) = answer(review.to_string().as_bytes(), &rules()) {
            let review: Value = serde_json::from_slice(&answer.review).unwrap();
            let response = &review["response"];
            prop_assert_eq!(response["allowed"] == true, answer.told.denied.is_empty());
            let message = response["status"]["message"].as_str().unwrap_or_default();
            prop_assert!(response["allowed"] == true || message.starts_with("denied: "));
        }
    }
}
