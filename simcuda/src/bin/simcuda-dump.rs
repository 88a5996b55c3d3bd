//! Lists who holds which memory of a simulated machine: `simcuda-dump [-o json] [DIR]`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use gpu_handoff_simcuda::default_dir;
use gpu_handoff_simcuda::dump::Dump;

const USAGE: &str = "usage: simcuda-dump [-o text|json] [DIR]\n\
    DIR is the rendezvous directory; default: $SIMCUDA_DIR, else /dev/shm/simcuda-<uid>";

fn main() -> ExitCode {
    let Some((json, dir)) = arguments(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match print(json, &dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("simcuda-dump: {}: {error}", dir.display());
            ExitCode::FAILURE
        }
    }
}

fn arguments(mut words: impl Iterator<Item = String>) -> Option<(bool, PathBuf)> {
    let mut json = false;
    let mut dir = std::env::var_os("SIMCUDA_DIR").map(PathBuf::from);
    while let Some(word) = words.next() {
        match word.as_str() {
            "-o" => json = is_json(&words.next()?)?,
            _ if word.starts_with('-') => return None,
            _ => dir = Some(word.into()),
        }
    }
    Some((json, dir.unwrap_or_else(default_dir)))
}

fn is_json(format: &str) -> Option<bool> {
    match format {
        "json" => Some(true),
        "text" => Some(false),
        _ => None,
    }
}

fn print(json: bool, dir: &Path) -> std::io::Result<()> {
    let dump = Dump::read(dir)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&dump)?);
        return Ok(());
    }
    for (device, bytes) in dump.used_by_device() {
        println!("GPU {device}: {} MiB used", bytes >> 20);
    }
    for allocation in &dump.allocations {
        let maker = &allocation.creator;
        let life = if maker.alive { "alive" } else { "dead" };
        let process_less = if allocation.process_less { ", held by no process" } else { "" };
        println!(
            "{} {} on GPU {}: {} MiB, made by {} (pid {} in ns {}, uid {}, {life}){process_less}",
            allocation.id,
            allocation.kind,
            allocation.device,
            allocation.bytes >> 20,
            maker.comm,
            maker.pid,
            maker.pid_namespace,
            maker.uid
        );
        for holder in &allocation.holders {
            let (pid, comm) = (holder.pid, &holder.comm);
            println!(
                "    pid {pid} {comm}: {} MiB mapped, {} descriptors",
                holder.mapped_bytes >> 20,
                holder.descriptors
            );
        }
    }
    Ok(())
}
