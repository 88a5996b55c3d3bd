//! Whether the container runtime asks the daemon before it makes containers, which it need only do where a member has
//! something that is put into them.

use gpu_handoff_admin::proto::Runtime;
use gpu_handoff_admin::proto::runtime::Link;

use crate::doctor::Seen;
use crate::doctor::facts::{Facts, Otherwise, said};
use crate::output::time;

/// What takes that long is no matter of a moment any more, in milliseconds.
const LONG_MS: u64 = 15_000;
/// What the runtime may have to wait for 99 of 100 answers, in microseconds.
const P99_US: u64 = 5_000;

fn runtime(facts: &Facts) -> Otherwise<&Runtime> {
    facts.status()?.runtime.as_ref().ok_or(None)
}

fn link(runtime: &Runtime) -> Option<Link> {
    Link::try_from(runtime.link).ok()
}

fn called(runtime: &Runtime) -> String {
    let nri = if runtime.nri.is_empty() { "does not say" } else { &runtime.nri };
    format!("{} {} (NRI: {nri})", runtime.name, runtime.version)
}

pub(super) fn connected(facts: &Facts) -> Option<Seen> {
    said(runtime(facts).map(|runtime| {
        let since = facts.since(runtime.since_ms);
        let not_yet = |seen: String, remedy: &str| {
            if since < LONG_MS { Seen::note(seen, remedy) } else { Seen::problem(seen, remedy) }
        };
        match link(runtime) {
            Some(Link::Off) => Seen::ok("not connected: no member has anything that is put into its containers"),
            Some(Link::Serving) => {
                Seen::ok(format!("{} asks before it makes containers, for {}", called(runtime), time(since)))
            }
            Some(Link::Away) => not_yet(
                format!("no connection to {} for {}: {}", runtime.socket, time(since), runtime.away),
                "see whether the container runtime runs with NRI on (containerd: plugins.\"io.containerd.nri.v1.nri\", \
                 disable = false and disable_connections = false), and whether its socket's folder is mounted into the \
                 plugin (--nri-socket); meanwhile pods lack what their profiles bring",
            ),
            Some(Link::Registering | Link::Synchronizing) => not_yet(
                format!("connected to {}, which has not taken the daemon for {}", runtime.socket, time(since)),
                "look again in a moment: the runtime takes plugins one after the other; then at its log",
            ),
            None => Seen::unknown(
                "the daemon says what this command does not know",
                "use the command of the daemon's version",
            ),
        }
    }))
}

/// Where it has said who it is.
fn known(facts: &Facts) -> Otherwise<&Runtime> {
    let runtime = runtime(facts)?;
    if runtime.name.is_empty() { Err(None) } else { Ok(runtime) }
}

pub(super) fn able(facts: &Facts) -> Option<Seen> {
    said(known(facts).map(|runtime| {
        let missing: Vec<&str> = [
            (runtime.namespaces, "put containers into namespaces (ipc: group)"),
            (runtime.validates, "hold a container up in whose making the daemon dies"),
        ]
        .into_iter()
        .filter_map(|(can, what)| (!can).then_some(what))
        .collect();
        if missing.is_empty() {
            return Seen::ok(format!("{} can do all that is needed", called(runtime)));
        }
        Seen::note(
            format!("{} cannot {}", called(runtime), missing.join(", nor ")),
            "use containerd 2.2 or CRI-O 1.34, or later",
        )
    }))
}

pub(super) fn validator(facts: &Facts) -> Option<Seen> {
    said(known(facts).map(|runtime| match runtime.default_validator {
        Some(true) => Seen::ok("the runtime's own validator is on: pods can demand the daemon"),
        Some(false) => Seen::note(
            "the runtime's own validator is off: what it makes while the daemon is away is found and killed afterwards",
            "turn it on, where that is not enough (containerd: \
             plugins.\"io.containerd.nri.v1.nri\".default_validator, enable = true)",
        ),
        None if !runtime.validates => Seen::ok("the runtime does not say whether its own validator is on"),
        None => Seen::ok("the runtime has made no container since it was connected to"),
    }))
}

pub(super) fn answers(facts: &Facts) -> Option<Seen> {
    said(known(facts).map(|runtime| {
        if runtime.left_out > 0 {
            return Seen::problem(
                format!("{} pods and containers are more than the daemon looks at", runtime.left_out),
                "have fewer on the node: what was made of them while the daemon was away is not noticed",
            );
        }
        let Some(p99) = runtime.p99_us else { return Seen::ok("nothing was asked yet") };
        let seen = format!(
            "{} answers, 99 of 100 within {} ms, the longest took {} ms; containers adjusted {}, refused {}, killed {}",
            runtime.answers,
            ms(p99),
            ms(runtime.longest_us),
            runtime.adjusted,
            runtime.refused,
            runtime.killed
        );
        if p99 <= P99_US {
            return Seen::ok(seen);
        }
        Seen::note(seen, "give the plugin more of the processor (requests): every container of the node waits for it")
    }))
}

/// With one digit after the point.
fn ms(us: u64) -> String {
    let tenths = us.div_ceil(100);
    format!("{}.{}", tenths / 10, tenths % 10)
}
