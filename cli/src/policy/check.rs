//! `gpu-handoff policy check`.

use std::io::Write;
use std::path::PathBuf;

use gpu_handoff_policy::{Policy, PolicyError};
use serde::Serialize;

use super::PolicyFailure;
use crate::args::Format;
use crate::failure::Failure;
use crate::{files, output};

/// Which file.
#[derive(Debug, Clone, clap::Args)]
pub struct CheckArgs {
    /// The file; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(Serialize)]
struct CheckJson<'a> {
    file: &'a str,
    valid: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespaces: Option<usize>,
    warnings: &'a [String],
}

#[derive(Serialize)]
struct ErrorJson<'a> {
    line: Option<usize>,
    column: Option<usize>,
    message: &'a str,
}

pub(super) fn run(args: &CheckArgs, output: Format, out: &mut dyn Write) -> Result<(), Failure> {
    let (file, text) =
        (files::shown(&args.file), files::read_policy(&args.file).map_err(PolicyFailure::from)?);
    let read = Policy::read(&text);
    let warnings = read.as_ref().map(Policy::not_yet).unwrap_or_default();
    match output {
        Format::Json => write_json(&file, &read, &warnings, out)?,
        Format::Text | Format::Yaml => write_text(&file, &read, &warnings, out)?,
    }
    read.map(drop).map_err(|_| PolicyFailure::No.into())
}

fn write_text(
    file: &str,
    read: &Result<Policy, PolicyError>,
    warnings: &[String],
    out: &mut dyn Write,
) -> Result<(), Failure> {
    match read {
        Err(error) => writeln!(out, "{}", output::one_line(&format!("{file}: {error}")))?,
        Ok(policy) => writeln!(
            out,
            "{file}: a policy; rules of exchange: {}, namespaces with terms of their own: {}",
            policy.exchange.len(),
            policy.namespaces.len()
        )?,
    }
    for warning in warnings {
        writeln!(out, "  warning: {warning}")?;
    }
    Ok(())
}

fn write_json(
    file: &str,
    read: &Result<Policy, PolicyError>,
    warnings: &[String],
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let error = read.as_ref().err().map(|error| ErrorJson {
        line: error.place.map(|place| place.line),
        column: error.place.map(|place| place.column),
        message: &error.what,
    });
    let policy = read.as_ref().ok();
    let (rules, namespaces) = (policy.map(|p| p.exchange.len()), policy.map(|p| p.namespaces.len()));
    output::json(out, &CheckJson { file, valid: error.is_none(), error, rules, namespaces, warnings })
}
