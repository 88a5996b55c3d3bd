//! Whether the daemon answers, and where it keeps its files.

use gpu_handoff_admin::proto::Folder;

use crate::doctor::Seen;
use crate::doctor::facts::{Facts, Heard, said};
use crate::output::time;

pub(super) fn answers(facts: &Facts) -> Option<Seen> {
    Some(match &facts.daemon {
        Heard::Answer(status) => {
            let daemon = status.daemon.clone().unwrap_or_default();
            let (since, own) = (time(facts.since(daemon.since_ms)), env!("CARGO_PKG_VERSION"));
            let seen = format!("version {}, for {since}", daemon.version);
            if daemon.version == own {
                Seen::ok(seen)
            } else {
                Seen::note(
                    format!("{seen}; this command is of version {own}"),
                    "use the command of the daemon's version: it knows more, or names what the other does not say",
                )
            }
        }
        Heard::Silence(why, remedy) => Seen::problem(why, *remedy),
        Heard::Forbidden(why, remedy) => Seen::unknown(why, *remedy),
    })
}

pub(super) fn folders(facts: &Facts) -> Option<Seen> {
    said(facts.status().map(|status| {
        let daemon = status.daemon.clone().unwrap_or_default();
        let folders: Vec<Folder> = [daemon.run_dir, daemon.state_dir].into_iter().flatten().collect();
        let lasting: Vec<&str> =
            folders.iter().filter(|folder| !folder.is_volatile).map(|folder| folder.path.as_str()).collect();
        if lasting.is_empty() {
            let all: Vec<&str> = folders.iter().map(|folder| folder.path.as_str()).collect();
            return Seen::ok(format!("{}: empty after a boot", all.join(", ")));
        }
        Seen::note(
            format!("{}: on a disk, so what is there outlives the boot that it is of", lasting.join(", ")),
            "put --run-dir and --state-dir on a tmpfs, such as /run",
        )
    }))
}
