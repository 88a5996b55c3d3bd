//! `gpu-handoff status`: how the node is, as its daemon tells.

use std::io::Write;

use gpu_handoff_admin::proto::kubelet::Registration;
use gpu_handoff_admin::proto::{
    Broker, Daemon, Gpus, Kernel, Kubelet, Member, Policy, Runtime, StatusResponse, Waiting,
};
use gpu_handoff_admin::proto::{pods, policy, runtime};

use crate::admin::{self, AdminArgs, AdminFailure};
use crate::args::Format;
use crate::failure::Failure;
use crate::output::{self, one_line, row, time};

mod ready;

/// Where to ask, and for what.
#[derive(Debug, Clone, clap::Args)]
pub struct StatusArgs {
    /// Say only whether pods are served: the broker serves, and the kubelet knows the driver; exit code 1 if not, and why
    #[arg(long)]
    pub ready: bool,
    /// Where the node's daemon is asked.
    #[command(flatten)]
    pub admin: AdminArgs,
}

pub(crate) fn run(args: &StatusArgs, format: Format, out: &mut dyn Write) -> Result<(), Failure> {
    let status = admin::wait_for(admin::ask(&args.admin.admin_socket))?.map_err(AdminFailure::from)?;
    if args.ready {
        let why = ready::why_not(&status, admin::now());
        writeln!(
            out,
            "{}",
            why.as_ref().map_or_else(|| "ready".to_owned(), |why| format!("not ready: {why}"))
        )?;
        return if why.is_none() { Ok(()) } else { Err(Failure::Findings(1)) };
    }
    match format {
        Format::Json => output::json(out, &status),
        Format::Text | Format::Yaml => write(&status, admin::now(), out),
    }
}

fn write(status: &StatusResponse, now: u64, out: &mut dyn Write) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let mut say = |what: &str, text: String| rows.push(row([what, &one_line(&text)]));
    if let Some(daemon) = &status.daemon {
        say("daemon", of_daemon(daemon, now));
        say("boot", daemon.boot.clone());
    }
    if let Some(broker) = &status.broker {
        say("broker", of_broker(broker, now));
    }
    match &status.kubelet {
        Some(kubelet) => {
            say("kubelet", of_registration(kubelet));
            say("pods", of_pods(kubelet, now));
        }
        None => say("kubelet", "none: a file says who the members are".to_owned()),
    }
    if let Some(runtime) = &status.runtime {
        say("runtime", of_runtime(runtime, now));
    }
    if let Some(policy) = &status.policy {
        of_policy(policy, now).into_iter().for_each(|line| say("policy", line));
    }
    if let Some(gpus) = &status.gpus {
        of_gpus(gpus).into_iter().for_each(|line| say("gpus", line));
    }
    if let Some(kernel) = &status.kernel {
        say("kernel", of_kernel(kernel));
    }
    let slots = status.slots.clone().unwrap_or_default();
    say("slots", format!("{} of {} taken", slots.members.len(), slots.limit));
    output::table(out, &rows)?;
    if !slots.members.is_empty() {
        writeln!(out)?;
        output::table(out, &members(&slots.members, now))?;
    }
    let waiting = status.kubelet.as_ref().map(|kubelet| &kubelet.waiting[..]).unwrap_or_default();
    if !waiting.is_empty() {
        writeln!(out)?;
        output::table(out, &volumes(waiting, now))?;
    }
    let unserved = not_served(&slots.members);
    if !unserved.is_empty() {
        writeln!(out)?;
        output::table(out, &unserved)?;
    }
    Ok(())
}

fn ago(at: u64, now: u64) -> String {
    time(now.saturating_sub(at))
}

fn of_daemon(daemon: &Daemon, now: u64) -> String {
    let mut text = format!("version {}, for {}", daemon.version, ago(daemon.since_ms, now));
    for (what, name) in [("node", &daemon.node), ("instance", &daemon.instance)] {
        if !name.is_empty() {
            text += &format!(", {what} {name}");
        }
    }
    text
}

fn of_broker(broker: &Broker, now: u64) -> String {
    let since = ago(broker.since_ms, now);
    let mut text = match (broker.serving, broker.pid) {
        (true, pid) => format!("serving, process {pid} for {since}"),
        (false, 0) => format!("not there for {since}"),
        (false, pid) if let Some(at) = broker.silent_since_ms => {
            format!("silent for {}, process {pid}", ago(at, now))
        }
        (false, pid) => format!("not serving yet, process {pid} for {since}"),
    };
    if let Some(last) = broker.ends_ms.last() {
        let (restarts, how) = (broker.restarts, &broker.last_end);
        text += &format!("; started again {restarts} times, last {} ago: {how}", ago(*last, now));
    }
    text
}

fn of_registration(kubelet: &Kubelet) -> String {
    match Registration::try_from(kubelet.registration) {
        Ok(Registration::Registered) => "knows the driver".to_owned(),
        Ok(Registration::Waiting) => "has not come to ask for the driver".to_owned(),
        Ok(Registration::Asked) => {
            "has asked for the driver, and not said yet whether it takes it".to_owned()
        }
        Ok(Registration::Refused) => format!("does not take the driver: {}", kubelet.refusal),
        Err(_) => "says what this program does not know".to_owned(),
    }
}

fn of_pods(kubelet: &Kubelet, now: u64) -> String {
    let pods = kubelet.pods.clone().unwrap_or_default();
    let mut text = match pods::Source::try_from(pods.source) {
        Ok(pods::Source::Kubelet) => "told of by the kubelet's Pods API".to_owned(),
        Ok(pods::Source::ApiServer) => "told of by the API server".to_owned(),
        _ => "told of by nobody".to_owned(),
    };
    text += &format!(", {} known", pods.known);
    match pods.away {
        Some(why) => text += &format!("; away for {}: {why}", ago(pods.away_since_ms, now)),
        None if !pods.complete => text += "; not all are told of yet",
        None => {}
    }
    text
}

fn of_runtime(runtime: &Runtime, now: u64) -> String {
    let since = ago(runtime.since_ms, now);
    match runtime::Link::try_from(runtime.link) {
        Ok(runtime::Link::Off) => {
            "not connected: no member has anything that is put into its containers".to_owned()
        }
        Ok(runtime::Link::Away) => format!("away for {since}: {}", runtime.away),
        Ok(runtime::Link::Registering | runtime::Link::Synchronizing) => {
            format!("does not ask yet, for {since}")
        }
        Ok(runtime::Link::Serving) => format!(
            "{} {} asks before it makes containers, for {since}; adjusted {}, refused {}, killed {}",
            runtime.name, runtime.version, runtime.adjusted, runtime.refused, runtime.killed
        ),
        Err(_) => "says what this program does not know".to_owned(),
    }
}

fn of_policy(policy: &Policy, now: u64) -> Vec<String> {
    let origin = match policy::Origin::try_from(policy.origin) {
        Ok(policy::Origin::File) => policy.path.clone(),
        Ok(policy::Origin::MembersFile) => "of the members' file".to_owned(),
        _ => "built-in".to_owned(),
    };
    let (version, rules, since) = (&policy.version, policy.rules, ago(policy.since_ms, now));
    let mut lines = vec![format!("{origin}, version {version}, rules {rules}, for {since}")];
    if let Some(why) = &policy.refusal {
        let since = ago(policy.refusal_since_ms, now);
        lines.push(format!("what is in the file is refused, for {since}: {why}"));
    }
    if policy.refused > 0 {
        lines.push(format!("refused so far: {}", policy.refused));
    }
    lines.extend(policy.not_yet.iter().map(|what| format!("warning: {what}")));
    lines
}

fn of_gpus(gpus: &Gpus) -> Vec<String> {
    let driver = if gpus.driver.is_empty() { "no driver" } else { &gpus.driver };
    let first = format!("{} found below {}; {driver}", gpus.gpus.len(), gpus.proc_root);
    let failure = gpus.loaded.iter().filter_map(|driver| driver.failure.as_ref());
    let failure = failure.map(|why| format!("the driver cannot be asked: {why}"));
    let gpus = gpus.gpus.iter().map(|gpu| format!("{} (nvidia{})", gpu.uuid, gpu.minor));
    [first].into_iter().chain(gpus).chain(failure).collect()
}

fn of_kernel(kernel: &Kernel) -> String {
    let by = match (kernel.peer_pidfd, kernel.process_number) {
        (true, true) => "by the very process (SO_PEERPIDFD), which has a number of its own",
        (true, false) => "by the very process (SO_PEERPIDFD)",
        (false, _) => "by a process's number and its start: SO_PEERPIDFD came with Linux 6.5",
    };
    format!("{}; who connects is told {by}", kernel.release)
}

fn members(members: &[Member], now: u64) -> Vec<Vec<String>> {
    let header = row(["SLOT", "POD", "UID", "GROUP", "ACCOUNT", "CONTAINERS", "ENDS"]);
    let line = |m: &Member| {
        let pod = format!("{}/{}", m.namespace, m.pod);
        let containers = m.containers.map_or_else(|| "-".to_owned(), |count| count.to_string());
        let ends = m.ends_ms.map(|at| format!("in {}", time(at.saturating_sub(now))));
        let account = if m.service_account.is_empty() { "-" } else { &m.service_account };
        row([&m.slot, &pod, &m.uid, &m.group, account, &containers, ends.as_deref().unwrap_or("-")])
    };
    [header].into_iter().chain(members.iter().map(line)).collect()
}

fn volumes(waiting: &[Waiting], now: u64) -> Vec<Vec<String>> {
    let header = row(["WAITING POD", "VOLUME", "FOR", "BECAUSE"]);
    let line = |w: &Waiting| {
        let pod = format!("{}/{}", w.namespace, w.pod);
        row([&pod, &w.volume, &ago(w.since_ms, now), &one_line(&w.why)])
    };
    [header].into_iter().chain(waiting.iter().map(line)).collect()
}

/// Empty: all are served.
fn not_served(members: &[Member]) -> Vec<Vec<String>> {
    let line = |m: &Member| {
        let why = m.unserved.as_ref()?;
        Some(row([&m.slot, &format!("{}/{}", m.namespace, m.pod), &one_line(why)]))
    };
    let mut lines: Vec<_> = members.iter().filter_map(line).collect();
    if !lines.is_empty() {
        lines.insert(0, row(["NOT SERVED", "POD", "BECAUSE"]));
    }
    lines
}
