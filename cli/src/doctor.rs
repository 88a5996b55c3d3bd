//! `gpu-handoff doctor`: looks for what is wrong with a node and with what gpu-handoff has in the cluster.
//!
//! **A check** is a [`Check`]: a stable id, and a pure function of [`Facts`] that says what was seen, how that is, and what to do
//! about it. Where it has no bearing (a check of the kubelet where none runs the node) it says nothing. What could not be asked
//! is never well: that is [`Verdict::CouldNotCheck`].
//!
//! **To add one:** what it needs to know goes into [`Facts`] (a field of the daemon's status, or one more question in
//! [`cluster`], with its right in `manifests/gpu-handoff.yaml`); the check, with its tests on facts, into the file of its concern
//! below `checks`; its line into [`checks::ALL`]; its section into `docs/doctor.md`, which a test holds against that list.
//!
//! | concern | file |
//! |---|---|
//! | what was found out | [`facts`] |
//! | asking the API server | [`cluster`] |
//! | the checks | [`checks`] |
//! | how findings are written | [`report`] |

use std::io::Write;

use crate::admin::{self, AdminArgs};
use crate::args::Format;
use crate::failure::Failure;

mod checks;
mod cluster;
mod facts;
mod report;

use facts::{Facts, Heard};

/// Where to look.
#[derive(Debug, Clone, clap::Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// The namespace of gpu-handoff's own objects
    #[arg(long, env = "GPU_HANDOFF_NAMESPACE", value_name = "NAME", default_value = "gpu-handoff")]
    namespace: String,
}

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// It could not be asked.
    CouldNotCheck,
    /// It is not as it should be.
    Problem,
}

/// What a check has seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    verdict: Verdict,
    seen: String,
    remedy: Option<String>,
}

impl Seen {
    fn ok(seen: impl Into<String>) -> Self {
        Self { verdict: Verdict::Ok, seen: seen.into(), remedy: None }
    }

    fn note(seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Note, seen: seen.into(), remedy: Some(remedy.into()) }
    }

    fn problem(seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Problem, seen: seen.into(), remedy: Some(remedy.into()) }
    }

    fn unknown(seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::CouldNotCheck, seen: seen.into(), remedy: Some(remedy.into()) }
    }
}

/// A check.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Check {
    /// What it is called, for ever.
    id: &'static str,
    /// What it sees; `None`: it has no bearing here.
    look: fn(&Facts) -> Option<Seen>,
}

pub(crate) fn run(args: &DoctorArgs, format: Format, out: &mut dyn Write) -> Result<(), Failure> {
    let facts = admin::wait_for(gather(args))?;
    let findings = report::Findings::of(&facts);
    match format {
        Format::Json => findings.write_json(out)?,
        Format::Text | Format::Yaml => findings.write_text(out)?,
    }
    match findings.exit_code() {
        0 => Ok(()),
        number => Err(Failure::Findings(number)),
    }
}

async fn gather(args: &DoctorArgs) -> Facts {
    let socket = &args.admin.admin_socket;
    let daemon = Heard::of(admin::ask(socket).await);
    let cluster = if daemon.is_without_kubelet() {
        facts::Cluster::NoBearing
    } else {
        cluster::look(&args.namespace).await
    };
    Facts { now: admin::now(), daemon, cluster }
}
