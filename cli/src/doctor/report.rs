//! Findings, as they are written, and as an exit code.

use std::io::Write;

use serde::Serialize;

use super::facts::Facts;
use super::{Verdict, checks};
use crate::failure::Failure;
use crate::output;

/// What the checks have seen.
#[derive(Debug, Serialize)]
pub(super) struct Findings {
    /// The worst of all.
    verdict: Verdict,
    checks: Vec<Finding>,
}

#[derive(Debug, Serialize)]
struct Finding {
    id: &'static str,
    verdict: Verdict,
    seen: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Findings {
    pub(super) fn of(facts: &Facts) -> Self {
        let look = |check: &super::Check| {
            let super::Seen { verdict, seen, remedy } = (check.look)(facts)?;
            Some(Finding { id: check.id, verdict, seen: output::one_line(&seen), remedy })
        };
        let checks: Vec<Finding> = checks::ALL.iter().filter_map(look).collect();
        let verdict = checks.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::CouldNotCheck);
        Self { verdict, checks }
    }

    /// 0: all is well; 1: something is not; 2: something could not be looked at, and the rest is well.
    pub(super) const fn exit_code(&self) -> u8 {
        match self.verdict {
            Verdict::Ok | Verdict::Note => 0,
            Verdict::Problem => 1,
            Verdict::CouldNotCheck => 2,
        }
    }

    pub(super) fn write_json(&self, out: &mut dyn Write) -> Result<(), Failure> {
        output::json(out, self)
    }

    pub(super) fn write_text(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let (mut rows, mut said) = (Vec::new(), None);
        for Finding { id, verdict, seen, remedy } in &self.checks {
            rows.push(output::row([word(*verdict), id, seen]));
            // Many may have one reason.
            let remedy = remedy.as_ref().filter(|_| said != remedy.as_ref());
            if let Some(remedy) = remedy {
                said = Some(remedy);
                rows.push(output::row(["", "", &format!("do: {remedy}")]));
            }
        }
        output::table(out, &rows)?;
        Ok(writeln!(out, "\n{}", self.in_short())?)
    }

    fn in_short(&self) -> String {
        let count = |verdict| self.checks.iter().filter(|finding| finding.verdict == verdict).count();
        let parts = [Verdict::Problem, Verdict::CouldNotCheck, Verdict::Note, Verdict::Ok];
        let parts =
            parts.map(|verdict| (count(verdict), word(verdict))).into_iter().filter(|part| part.0 > 0);
        let parts: Vec<String> = parts.map(|(count, word)| format!("{count} {word}")).collect();
        parts.join(", ")
    }
}

const fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "ok",
        Verdict::Note => "note",
        Verdict::Problem => "problem",
        Verdict::CouldNotCheck => "could not check",
    }
}
