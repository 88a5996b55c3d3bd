//! Section 8: the self-test that allows the process number in a legacy handle to be rewritten, both halves for real.

use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use gpu_handoff_cuda::self_test::Outcomes;

use crate::conformance::Row;
use crate::conformance::place::Place;
use crate::conformance::puppet::{End, Step};
use crate::conformance::stage::Stage;

const WAIT: Duration = Duration::from_secs(8);

/// Runs both halves, each as process 1 of its own PID namespace or as an ordinary process, and reads the outcomes.
fn run(stage: &mut Stage, place: &Place) -> Step<String> {
    let not_run = |error: std::io::Error| End::NotRun(error.to_string());
    let program = stage.program_for(place)?;
    let mut exporter = place
        .command(&program, &["self-test-export"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(not_run)?;
    let message = exporter.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let importer = place
        .command(&program, &["self-test-import"])
        .stdin(message)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let said = importer.map_err(not_run).and_then(|mut importer| {
        let end = Instant::now() + WAIT;
        while importer.try_wait().map_err(not_run)?.is_none() {
            if Instant::now() > end {
                let _ = importer.kill();
                let _ = importer.wait();
                return Err(End::Hangs);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let (mut line, mut complaint) = (String::new(), String::new());
        importer.stdout.take().map_or(Ok(0), |mut out| out.read_to_string(&mut line)).map_err(not_run)?;
        importer
            .stderr
            .take()
            .map_or(Ok(0), |mut out| out.read_to_string(&mut complaint))
            .map_err(not_run)?;
        Ok(if line.is_empty() { complaint.trim().to_owned() } else { line })
    });
    let _ = exporter.kill();
    let _ = exporter.wait();
    let said = said?;
    Ok(match said.trim().parse::<Outcomes>() {
        Ok(outcomes) => format!(
            "as given {}, changed {}, data right: {}, proof: {}",
            outcomes.as_given,
            outcomes.with_word_changed,
            outcomes.data_ok,
            outcomes.proof().is_some()
        ),
        // The numbers of ordinary processes change from run to run.
        Err(_) if said.contains("not equal") => "no outcomes: the process numbers are not equal".into(),
        Err(_) => format!("no outcomes: {said}"),
    })
}

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::api(
            8,
            "self-test-pid-1",
            "the self-test between two processes that are both process 1",
            |stage| run(stage, &Place::pid()),
        ),
        Row::api(8, "self-test-ordinary", "the self-test between processes of different numbers", |stage| {
            run(stage, &Place::here())
        }),
    ]
}
