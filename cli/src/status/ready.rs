//! `gpu-handoff status --ready`: whether the node serves, by the exit code. Pure.

use gpu_handoff_admin::proto::StatusResponse;
use gpu_handoff_admin::proto::kubelet::Registration;

/// Why the node does not serve pods yet, or not any more; `None`: it does. Whether the API server can be reached is no matter:
/// members are served without it.
pub(super) fn why_not(status: &StatusResponse, now: u64) -> Option<String> {
    let broker = status.broker.clone().unwrap_or_default();
    if !broker.serving {
        return Some(format!("the broker is {}", super::of_broker(&broker, now)));
    }
    let kubelet = status.kubelet.as_ref()?;
    let is_known = kubelet.registration == i32::from(Registration::Registered);
    (!is_known).then(|| format!("the kubelet {}", super::of_registration(kubelet)))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use gpu_handoff_admin::proto::{Broker, Kubelet, Pods};
    use k8s_openapi::api::apps::v1::DaemonSet;
    use k8s_openapi::api::core::v1::Probe;

    use super::*;
    use crate::{Args, Command};

    fn status(serving: bool, registration: Option<Registration>) -> StatusResponse {
        let kubelet = registration.map(|registration| Kubelet {
            registration: registration.into(),
            refusal: "no such version".into(),
            // The API server is away.
            pods: Some(Pods { away: Some("connection refused".into()), ..Pods::default() }),
            ..Kubelet::default()
        });
        let broker = Some(Broker { serving, pid: 7, ..Broker::default() });
        StatusResponse { broker, kubelet, ..StatusResponse::default() }
    }

    #[test]
    fn a_node_is_ready_when_its_broker_serves_and_the_kubelet_knows_it_whatever_else_is_away() {
        assert_eq!(why_not(&status(true, Some(Registration::Registered)), 0), None);
        assert_eq!(why_not(&status(true, None), 0), None, "where a file says who the members are");
        let mut silent = status(false, None);
        silent.broker.as_mut().unwrap().silent_since_ms = Some(0);
        for (status, said) in [
            (status(false, Some(Registration::Registered)), "the broker is not serving yet, process 7"),
            (status(true, Some(Registration::Waiting)), "the kubelet has not come to ask for the driver"),
            (status(true, Some(Registration::Asked)), "the kubelet has asked for the driver"),
            (status(true, Some(Registration::Refused)), "does not take the driver: no such version"),
            (StatusResponse::default(), "the broker is not there"),
            (silent, "the broker is silent for 3 s, process 7"),
        ] {
            let why = why_not(&status, 3_000).unwrap();
            assert!(why.contains(said), "{why}");
        }
    }

    /// What a probe of the manifest runs.
    fn command(probe: Option<&Probe>) -> Vec<String> {
        probe.and_then(|probe| probe.exec.as_ref()).and_then(|exec| exec.command.clone()).unwrap()
    }

    #[test]
    fn the_manifests_probes_are_commands_of_this_program() {
        let text = include_str!("../../../manifests/gpu-handoff.yaml");
        let documents = serde_yaml::Deserializer::from_str(text)
            .map(|one| <serde_json::Value as serde::Deserialize>::deserialize(one).unwrap());
        let set: Vec<_> = documents.filter(|object| object["kind"] == "DaemonSet").collect();
        let [set] = &set[..] else { panic!("{set:?}") };
        let set: DaemonSet = serde_json::from_value(set.clone()).unwrap();
        let spec = set.spec;
        let container = &spec.template.spec.unwrap().containers[0];
        let (readiness, liveness) = (container.readiness_probe.as_ref(), container.liveness_probe.as_ref());
        for (probe, is_ready) in [(readiness, true), (liveness, false)] {
            match Args::try_parse_from(command(probe)).unwrap().command {
                Command::Status(args) => assert_eq!(args.ready, is_ready),
                other => panic!("{other:?}"),
            }
            let time = u64::try_from(probe.and_then(|probe| probe.timeout_seconds).unwrap()).unwrap();
            let own = gpu_handoff_admin::limits::CLIENT_TIME.as_secs();
            assert!(time > own, "the command says first why there is no answer");
        }
        // A machine that is busy for a while is no reason to restart what serves all of its pods.
        let liveness = liveness.unwrap();
        let patience = liveness.period_seconds.unwrap() * liveness.failure_threshold.unwrap();
        assert!(patience >= 180, "{patience} s");
        assert!(
            container.startup_probe.is_none(),
            "it would restart a daemon whose kubelet is not there yet"
        );
        assert!(spec.min_ready_seconds.is_some_and(|seconds| seconds > 0));
        let how = spec.update_strategy.unwrap().rolling_update.unwrap();
        assert_eq!(how.max_surge, None, "one daemon owns a node");
    }
}
