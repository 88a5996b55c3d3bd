//! How an example ends: with what went wrong, why, and what to do, a line each.

use std::error::Error;
use std::process::ExitCode;

use gpu_handoff_client::{ClientError, Refusal};
use gpu_handoff_cuda::LoadError;

/// The exit code of an outcome, once a failure has been told on standard error.
pub(crate) fn end(outcome: Result<(), Box<dyn Error>>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", told(&*error));
            ExitCode::FAILURE
        }
    }
}

fn told(error: &(dyn Error + 'static)) -> String {
    let client_error = error.downcast_ref::<ClientError>();
    let refusal = client_error.and_then(ClientError::refusal);
    let mut lines = vec![error.to_string()];
    if let Some(refusal) = refusal {
        let compared = refusal.compared().iter();
        lines.extend(compared.map(|c| format!("{}: wanted {}, found {}", c.what, c.wanted, c.found)));
    } else {
        let causes = std::iter::successors(error.source(), |&cause| cause.source());
        lines.extend(causes.map(|cause| format!("because: {cause}")));
    }
    let without_gpu = "the top of this example says how to run it without a GPU";
    let remedy = client_error.and_then(ClientError::remedy);
    let remedy = remedy.or_else(|| error.is::<LoadError>().then_some(without_gpu));
    lines.extend(remedy.map(|remedy| format!("remedy: {remedy}")));
    let code = refusal.map(Refusal::code);
    lines.extend(code.map(|code| format!("more: gpu-handoff explain {code}, {}", code.anchor())));
    lines.join("\n  ")
}
