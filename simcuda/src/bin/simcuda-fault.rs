//! Arms and disarms faults of a simulated machine by hand: `simcuda-fault arm NAME JSON [DIR]`, `simcuda-fault disarm NAME [DIR]`.

use std::path::PathBuf;
use std::process::ExitCode;

use gpu_handoff_simcuda::default_dir;
use gpu_handoff_simcuda::faults::{arm, disarm};

const USAGE: &str = "usage: simcuda-fault arm NAME JSON [DIR] | simcuda-fault disarm NAME [DIR]\n\
    JSON, for example: {\"does\": {\"fail\": 999}, \"call\": \"cuMemCreate\", \"pid\": 7, \"program\": \"demo\", \"argument\": \"run\", \"times\": 2}\n\
    does: \"hang\", \"crash\", {\"fail\": CODE}, {\"lose\": MINOR}; the rest may be left out\n\
    DIR is the rendezvous directory; default: $SIMCUDA_DIR, else /dev/shm/simcuda-<uid>";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let dir = |named: &[&str]| {
        let named =
            named.first().map(PathBuf::from).or_else(|| std::env::var_os("SIMCUDA_DIR").map(PathBuf::from));
        named.unwrap_or_else(default_dir)
    };
    let done = match &words[..] {
        ["arm", name, fault, rest @ ..] if rest.len() <= 1 => serde_json::from_str(fault)
            .map_err(std::io::Error::from)
            .and_then(|fault| arm(&dir(rest), name, &fault)),
        ["disarm", name, rest @ ..] if rest.len() <= 1 => disarm(&dir(rest), name),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("simcuda-fault: {error}");
            ExitCode::FAILURE
        }
    }
}
