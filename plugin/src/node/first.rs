//! Being the first process of a container: whoever loses its parent there is its child, and nobody else reaps it. So the
//! first process does nothing but that, and has the node run as a child of its own.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use anyhow::{Context, bail};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use super::children::THIS_PROGRAM;

/// Whether this process is the first one.
#[must_use]
pub fn is_first() -> bool {
    std::process::id() == 1
}

/// Runs this very command line as a child, until that ends.
///
/// # Errors
/// When it cannot be started, or does not end in good order.
pub fn run() -> anyhow::Result<()> {
    let mut command = Command::new(THIS_PROGRAM);
    command.arg0("gpu-handoff-plugin").args(std::env::args_os().skip(1));
    let status = look_after(command).context("run the node as a child of the first process")?;
    if !status.success() {
        bail!("the node ended with {status}");
    }
    Ok(())
}

/// Runs a command, passes the signals on to it that ask it to stop, and reaps it and all others, until it ends.
fn look_after(mut command: Command) -> io::Result<ExitStatus> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Before there is a child whose end could be missed.
        let mut ended = signal(SignalKind::child())?;
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        // Of a group of its own: what people type at a terminal reaches it once, by this process.
        let child = Pid::from_child(&command.process_group(0).spawn()?);
        info!(
            node = child.as_raw_nonzero(),
            "this is the first process: it reaps, and the node is its child"
        );
        loop {
            let asked = tokio::select! {
                _ = terminate.recv() => Signal::TERM,
                _ = interrupt.recv() => Signal::INT,
                _ = ended.recv() => match reap(child)? {
                    Some(status) => return Ok(status),
                    None => continue,
                },
            };
            match kill_process(child, asked) {
                // It has ended already.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(e) => return Err(e.into()),
            }
        }
    })
}

/// Reaps all that have ended; gives the child's status if it is among them.
fn reap(child: Pid) -> io::Result<Option<ExitStatus>> {
    let mut own = None;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == child => own = Some(as_exit_status(status)),
            Ok(Some(_)) => {}
            Ok(None) | Err(Errno::CHILD) => return Ok(own),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

fn as_exit_status(status: WaitStatus) -> ExitStatus {
    ExitStatus::from_raw(status.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpu_handoff_sys::isolate::{Isolation, available};

    const NAME: &str = "node::first::tests::the_first_process_reaps_those_that_lost_their_parent";
    /// Tells this program, started again as the first process, to be that.
    const ROLE: &str = "GPU_HANDOFF_FIRST_TEST";

    /// Makes an orphan, waits until nothing is left of it once it has ended, and ends with another code if that does not come.
    const CHILD: &str = r#"
        orphan=$(sh -c 'sleep 0.1 >/dev/null & echo $!')
        for n in $(seq 200); do
            [ -d /proc/$orphan ] || exit 7
            sleep 0.05
        done
        exit 8
    "#;

    #[test]
    fn the_first_process_reaps_those_that_lost_their_parent() {
        if std::env::var_os(ROLE).is_some() {
            assert!(is_first());
            let mut command = Command::new("/bin/sh");
            command.args(["-c", CHILD]);
            let status = look_after(command).unwrap();
            assert_eq!(status.code(), Some(7), "the orphan was not reaped");
            println!("reaped");
            return;
        }
        let privilege = match available() {
            Ok(privilege) => privilege,
            Err(e) => {
                assert!(
                    std::env::var("GPU_HANDOFF_TESTS").as_deref() != Ok("all"),
                    "cannot make namespaces: {e}"
                );
                let line = format!("SKIPPED: {NAME}: this user cannot make namespaces ({e})\n");
                let _unheard = io::Write::write_all(&mut io::stderr(), line.as_bytes());
                return;
            }
        };
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture"]).env(ROLE, "1");
        Isolation::own_pids(privilege).apply(&mut command);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && said.contains("reaped"), "{} {said}", output.status);
    }
}
