//! What the kubelet and the node know of each other: the driver, the pods, their volumes.

use gpu_handoff_admin::proto::kubelet::Registration;
use gpu_handoff_admin::proto::{Waiting, pods};

use crate::doctor::Seen;
use crate::doctor::facts::{Facts, said};
use crate::limits;
use crate::output::time;

/// What takes that long is no matter of a moment any more, in milliseconds.
const LONG_MS: u64 = 60_000;

fn soon_or_problem(ms: u64, seen: String, remedy: &str) -> Seen {
    if ms < LONG_MS { Seen::note(seen, remedy) } else { Seen::problem(seen, remedy) }
}

pub(super) fn registration(facts: &Facts) -> Option<Seen> {
    said(facts.kubelet().and_then(|kubelet| {
        let daemon = facts.status()?.daemon.clone().unwrap_or_default();
        let age = facts.since(daemon.since_ms);
        let folder = format!("{}/plugins_registry", kubelet.root);
        Ok(match Registration::try_from(kubelet.registration) {
            Ok(Registration::Registered) => Seen::ok("the kubelet knows the driver"),
            Ok(Registration::Refused) => Seen::problem(
                format!("the kubelet does not take the driver: {}", kubelet.refusal),
                "stop the other instance where it says that there is one; else its log says more",
            ),
            Ok(Registration::Asked) => soon_or_problem(
                age,
                "the kubelet has asked for the driver, and not said yet whether it takes it".to_owned(),
                "look again in a moment; then at the kubelet's log",
            ),
            Ok(Registration::Waiting) => soon_or_problem(
                age,
                format!("the kubelet has not come to {folder}, the daemon is there for {}", time(age)),
                "see whether the kubelet runs and has this root folder (--kubelet-root), mounted into the plugin as it is",
            ),
            Err(_) => unknown_word(),
        })
    }))
}

fn unknown_word() -> Seen {
    Seen::unknown(
        "the daemon says what this command does not know",
        "use the command of the daemon's version",
    )
}

pub(super) fn pods(facts: &Facts) -> Option<Seen> {
    said(facts.kubelet().map(|kubelet| {
        let pods = kubelet.pods.clone().unwrap_or_default();
        let who = match pods::Source::try_from(pods.source) {
            Ok(pods::Source::Kubelet) => "the kubelet's Pods API",
            Ok(pods::Source::ApiServer) => "the API server (this kubelet has no Pods API)",
            Ok(pods::Source::Nobody) => "nobody",
            Err(_) => return unknown_word(),
        };
        let remedy =
            "known pods are served and new ones wait; see whether who tells of them runs and can be reached";
        match &pods.away {
            Some(why) => {
                let since = facts.since(pods.away_since_ms);
                soon_or_problem(since, format!("{who} is away for {}: {why}", time(since)), remedy)
            }
            None if pods.source == pods::Source::Nobody as i32 => {
                Seen::problem("nobody tells of this node's pods", remedy)
            }
            None if !pods.complete => Seen::note(
                format!("{who} has not told of all pods yet, {} so far", pods.known),
                "look again in a moment",
            ),
            None => Seen::ok(format!("{who} tells of {}", pods.known)),
        }
    }))
}

pub(super) fn volumes(facts: &Facts) -> Option<Seen> {
    said(facts.kubelet().map(|kubelet| {
        let Some(longest) = kubelet.waiting.iter().map(|one| facts.since(one.since_ms)).max() else {
            return Seen::ok("none waits");
        };
        let line = |one: &Waiting| {
            let since = time(facts.since(one.since_ms));
            format!("{}/{} for {since} ({})", one.namespace, one.pod, one.why)
        };
        let named: Vec<String> = kubelet.waiting.iter().take(limits::NAMED).map(line).collect();
        let more = match kubelet.waiting.len() - named.len() {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let seen = format!("pods wait for their slots: {}{more}", named.join(", "));
        soon_or_problem(longest, seen, "what each waits for stands beside it; the pods' events say the same")
    }))
}

pub(super) fn devices(facts: &Facts) -> Option<Seen> {
    said(facts.kubelet().map(|kubelet| {
        let Some(devices) = &kubelet.devices else { return unknown_word() };
        match &devices.away {
            Some(why) => {
                let since = facts.since(devices.away_since_ms);
                soon_or_problem(
                    since,
                    format!("the kubelet's PodResources API is away for {}: {why}", time(since)),
                    "see whether the kubelet runs and has this root folder (--kubelet-root), mounted into the plugin as it is; until \
                     then each process of a new pod may use the GPUs whose device nodes it has",
                )
            }
            None if !devices.asked => {
                Seen::note("the kubelet's PodResources API was not asked yet", "look again in a moment")
            }
            None => Seen::ok("the kubelet's PodResources API answers"),
        }
    }))
}
