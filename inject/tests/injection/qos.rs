//! The quality-of-service class is what it was: as Kubernetes computes it, written down once more for comparison.

use serde_json::{Value, json};

use crate::common::{injected, pod};

/// `ComputePodQOS` of Kubernetes for whole processors and mebibytes.
fn class(pod: &Value) -> &'static str {
    let spec = &pod["spec"];
    let holders: Vec<&Value> = if spec["resources"].is_object() {
        vec![spec]
    } else {
        ["containers", "initContainers"]
            .iter()
            .flat_map(|list| spec[*list].as_array().into_iter().flatten())
            .collect()
    };
    let amount = |holder: &Value, kind: &str, name: &str| milli(&holder["resources"][kind][name]);
    let (mut any, mut guaranteed) = (false, true);
    for name in ["cpu", "memory"] {
        let (mut requests, mut limits) = (0, 0);
        for holder in &holders {
            let limit = amount(holder, "limits", name);
            let request = amount(holder, "requests", name);
            guaranteed &= limit > 0;
            limits += limit;
            // The API server's defaulting.
            requests += if holder["resources"]["requests"][name].is_null() { limit } else { request };
        }
        any |= requests > 0 || limits > 0;
        guaranteed &= requests == limits;
    }
    if !any {
        "BestEffort"
    } else if guaranteed {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

fn milli(amount: &Value) -> u64 {
    let Some(text) = amount.as_str() else { return amount.as_u64().unwrap_or(0) * 1000 };
    let number = |text: &str| text.parse::<u64>().unwrap();
    match (text.strip_suffix('m'), text.strip_suffix("Mi"), text.strip_suffix("Gi")) {
        (Some(milli), ..) => number(milli),
        (_, Some(mebi), _) => (number(mebi) * 1000) << 20,
        (.., Some(gibi)) => (number(gibi) * 1000) << 30,
        _ => number(text) * 1000,
    }
}

#[test]
fn the_class_is_what_it_was() {
    let both = json!({"cpu": "2", "memory": "1Gi"});
    let table = [
        ("BestEffort", json!({})),
        (
            "BestEffort",
            json!({"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}),
        ),
        ("BestEffort", json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "0"}}}]})),
        ("Burstable", json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "100m"}}}]})),
        ("Burstable", json!({"containers": [{"name": "a", "resources": {"limits": {"memory": "64Mi"}}}]})),
        ("Burstable", json!({"containers": [{"name": "a", "resources": {"limits": both}}, {"name": "b"}]})),
        (
            "Burstable",
            json!({"containers": [{"name": "a", "resources": {"limits": both, "requests": {"cpu": "1"}}}]}),
        ),
        ("Burstable", json!({"initContainers": [{"name": "i", "resources": {"requests": {"cpu": 1}}}]})),
        ("Guaranteed", json!({"containers": [{"name": "a", "resources": {"limits": both}}]})),
        (
            "Guaranteed",
            json!({"containers": [{"name": "a", "resources": {"limits": both, "requests": {"cpu": "2000m", "memory": "1024Mi"}}}]}),
        ),
        (
            "Guaranteed",
            json!({
                "containers": [{"name": "a", "resources": {"limits": both}}],
                "initContainers": [{"name": "i", "resources": {"limits": both}}],
            }),
        ),
        ("Guaranteed", json!({"resources": {"limits": both, "requests": both}})),
        ("Burstable", json!({"resources": {"requests": {"cpu": "1"}}})),
    ];
    for (wanted, spec) in table {
        let before = pod(spec);
        assert_eq!(class(&before), wanted, "{before}");
        let after = injected(&before);
        assert_eq!(class(&after), wanted, "{after}");
    }
}

#[test]
fn the_sidecar_asks_for_as_much_as_the_class_needs() {
    let resources = |spec| injected(&pod(spec))["spec"]["initContainers"][0]["resources"].clone();
    let container = |resources| json!({"containers": [{"name": "a", "resources": resources}]});
    let (large, small) = (json!({"cpu": "100m", "memory": "32Mi"}), json!({"cpu": "10m", "memory": "16Mi"}));
    assert_eq!(resources(json!({})), Value::Null);
    assert_eq!(resources(json!({"resources": {"limits": large}})), Value::Null);
    assert_eq!(resources(container(json!({"requests": {"cpu": 1}}))), json!({"requests": small}));
    assert_eq!(resources(container(json!({"limits": large}))), json!({"requests": large, "limits": large}));
}

#[test]
fn a_sidecar_that_is_there_without_resources_does_not_count() {
    let limits = json!({"limits": {"cpu": "1", "memory": "64Mi"}});
    let before = pod(json!({
        "containers": [{"name": "a", "resources": limits}],
        "initContainers": [{"name": "gpu-handoff"}],
    }));
    assert_eq!(class(&injected(&before)), "Guaranteed");
}
