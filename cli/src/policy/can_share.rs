//! `gpu-handoff policy can-share`.

use std::io::Write;
use std::path::PathBuf;

use gpu_handoff_policy::{Almost, Exchange, Gap, Policy, Rule};
use gpu_handoff_protocol::Namespace;
use serde::Serialize;

use super::PolicyFailure;
use super::pods::{self, Pod};
use crate::args::Format;
use crate::failure::Failure;
use crate::output;

/// Which pods, and by which policy.
#[derive(Debug, Clone, clap::Args)]
pub struct CanShareArgs {
    /// The pod that publishes and the one that acquires; those of files come before those named here
    #[arg(value_name = "NAMESPACE/GROUP[/SERVICE-ACCOUNT]")]
    pods: Vec<Pod>,
    /// A file of Kubernetes objects whose pods take part, YAML or JSON; - for standard input
    #[arg(short, long, value_name = "FILE")]
    filename: Vec<PathBuf>,
    /// The policy
    #[arg(long, value_name = "FILE", default_value = super::POLICY)]
    file: PathBuf,
    /// The namespace of objects that do not say theirs
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<Namespace>,
}

#[derive(Serialize)]
struct AnswerJson<'a> {
    publisher: &'a str,
    acquirer: &'a str,
    allowed: bool,
    /// In one sentence.
    why: String,
    /// The rule that grants it.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    /// The rule that comes nearest, and what it does not fit by.
    #[serde(skip_serializing_if = "Option::is_none")]
    nearest: Option<NearestJson<'a>>,
    /// The rule that would grant it, and nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<&'a Rule>,
}

#[derive(Serialize)]
struct NearestJson<'a> {
    rule: &'a str,
    differs: Vec<String>,
}

pub(super) fn run(args: CanShareArgs, output: Format, out: &mut dyn Write) -> Result<(), Failure> {
    let CanShareArgs { pods: named, filename, file, namespace } = args;
    let policy = super::read_policy(&file)?;
    let mut all = Vec::new();
    for file in &filename {
        all.extend(pods::read(file, namespace.as_ref())?);
    }
    all.extend(named);
    let [publisher, acquirer] = &all[..] else { return Err(PolicyFailure::NotTwo(all.len()).into()) };
    let answer = policy.exchange(&publisher.party(), &acquirer.party());
    let stranger = [publisher, acquirer].into_iter().find(|pod| !policy.is_invited(&pod.party()));
    let allowed = stranger.is_none() && !matches!(answer, Exchange::Denied(_));
    match output {
        Format::Json => write_json(publisher, acquirer, stranger, &answer, out)?,
        Format::Text | Format::Yaml => write_text(&policy, publisher, acquirer, stranger, &answer, out)?,
    }
    if allowed { Ok(()) } else { Err(PolicyFailure::No.into()) }
}

/// In one sentence.
fn why(publisher: &Pod, acquirer: &Pod, stranger: Option<&Pod>, answer: &Exchange<'_>) -> String {
    let (one, other) = (&publisher.shown, &acquirer.shown);
    if let Some(pod) = stranger {
        let group = pod.party().group;
        return format!(
            "{} may not be in group {group}: no rule names it with those who are at home there",
            pod.shown
        );
    }
    match answer {
        Exchange::SameGroup => format!("{one} and {other} are of one namespace and one group"),
        Exchange::Rule(rule) => format!("rule {} grants {other} what {one} publishes", rule.name),
        Exchange::Denied(_) => {
            let same = publisher.party().namespace == acquirer.party().namespace;
            let of = if same { "groups" } else { "namespaces" };
            format!(
                "{one} and {other} are of two {of}, and no rule grants the second what the first publishes"
            )
        }
    }
}

fn write_text(
    policy: &Policy,
    publisher: &Pod,
    acquirer: &Pod,
    stranger: Option<&Pod>,
    answer: &Exchange<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let why = why(publisher, acquirer, stranger, answer);
    let Exchange::Denied(gap) = answer else {
        let word = if stranger.is_some() { "no" } else { "yes" };
        writeln!(out, "{word}: {why}")?;
        if stranger.is_none() && publisher.party().namespace != acquirer.party().namespace {
            writeln!(out, "  except legacy handles, which stay within a namespace")?;
        }
        return Ok(());
    };
    writeln!(out, "no: {why}")?;
    if let Some(Almost { rule, differs }) = &gap.almost {
        let differs: Vec<String> = differs.iter().map(ToString::to_string).collect();
        writeln!(out, "  nearest: rule {rule}; {}", differs.join(", "))?;
    }
    let below = if policy.exchange.is_empty() { "write" } else { "write under `exchange`" };
    writeln!(out, "  to allow it, {below}:")?;
    if policy.exchange.is_empty() {
        writeln!(out, "    exchange:")?;
    }
    Ok(write_rule(gap, out)?)
}

fn write_rule(gap: &Gap<'_>, out: &mut dyn Write) -> std::io::Result<()> {
    let text = serde_yaml::to_string(&[&gap.rule]).map_err(std::io::Error::other)?;
    text.lines().try_for_each(|line| writeln!(out, "    {line}"))
}

fn write_json(
    publisher: &Pod,
    acquirer: &Pod,
    stranger: Option<&Pod>,
    answer: &Exchange<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let why = why(publisher, acquirer, stranger, answer);
    let (rule, gap) = match answer {
        Exchange::SameGroup => (None, None),
        Exchange::Rule(rule) => (Some(rule.name.as_str()), None),
        Exchange::Denied(gap) => (None, Some(gap)),
    };
    let nearest = gap.and_then(|gap| gap.almost.as_ref()).map(|almost| NearestJson {
        rule: almost.rule.as_str(),
        differs: almost.differs.iter().map(ToString::to_string).collect(),
    });
    output::json(
        out,
        &AnswerJson {
            publisher: &publisher.shown,
            acquirer: &acquirer.shown,
            allowed: stranger.is_none() && gap.is_none(),
            why,
            rule,
            nearest,
            missing: gap.map(|gap| &gap.rule),
        },
    )
}
