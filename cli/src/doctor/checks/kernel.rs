//! How the kernel says who connects, and holds those that read what is sent.

use gpu_handoff_admin::proto::kernel::Held;

use crate::doctor::Seen;
use crate::doctor::facts::{Facts, said};

pub(super) fn identity(facts: &Facts) -> Option<Seen> {
    said(facts.status().map(|status| {
        let kernel = status.kernel.clone().unwrap_or_default();
        let release = &kernel.release;
        if kernel.peer_pidfd {
            return Seen::ok(format!("{release}: it names the very process that connected (SO_PEERPIDFD)"));
        }
        Seen::note(
            format!("{release}: it names a process by its number, and its start is compared: SO_PEERPIDFD is not there"),
            "nothing has to be done; Linux 6.5 and later name the process itself",
        )
    }))
}

/// What to do about a kernel that does not hold all.
const REMEDY: &str = "Linux 6.12 and later hold all of it, where Landlock is switched on (lsm= on the kernel's command line); the filter of \
    system calls and the user without rights are there in any case";

/// What kernels leave out that know Landlock and not all of it.
const BUT: &str = "but not from truncating others, devices, signals and abstract sockets";

pub(super) fn holds(facts: &Facts) -> Option<Seen> {
    said(facts.status().map(|status| {
        let kernel = status.kernel.clone().unwrap_or_default();
        let (release, user) = (&kernel.release, "what their user may open is open to whoever takes one over");
        match kernel.held() {
            Held::Fully => Seen::ok(format!("{release}: Landlock holds them to their own files")),
            Held::Partly => {
                Seen::note(format!("{release}: Landlock holds them to their own files, {BUT}"), REMEDY)
            }
            Held::Not => {
                Seen::note(format!("{release}: no Landlock, or it is not switched on: {user}"), REMEDY)
            }
            Held::Unknown => {
                Seen::unknown("the daemon does not say it", "use the command that is in the plugin's image")
            }
        }
    }))
}
