//! Whether this driver lets the process-number word of a legacy handle be rewritten: two short-lived children, each
//! PID 1 of its own PID namespace, try it once. Without a proof nothing is rewritten.

use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use gpu_handoff_cuda::Driver;
use gpu_handoff_cuda::self_test::{Outcomes, export_half, import_half};
use gpu_handoff_sys::isolate::{self, Privilege};

use crate::limits;
use crate::node::children::Programs;

/// Which half a child is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Half {
    /// Makes the memory and the handle.
    Export,
    /// Opens it.
    Import,
}

/// Runs one half: the child's side.
///
/// # Errors
/// What the driver or the other half's pipe answers.
pub fn run_half(half: Half) -> anyhow::Result<()> {
    let driver = Driver::load()?;
    let device = *driver.devices()?.first().ok_or_else(|| anyhow::anyhow!("the driver shows no device"))?;
    match half {
        Half::Export => export_half(driver, device, &mut io::stdout().lock(), &mut io::stdin().lock())?,
        Half::Import => {
            let outcomes = import_half(driver, device, &mut io::stdin().lock())?;
            writeln!(io::stdout().lock(), "{outcomes}")?;
        }
    }
    Ok(())
}

/// Runs the test: the node's side. Blocks for as long as the driver needs to start twice.
///
/// # Errors
/// When namespaces cannot be made, or a half does not run; that is no proof either way.
pub fn run(programs: &Programs) -> io::Result<bool> {
    let privilege = isolate::available()?;
    let mut exporter = spawn(programs, "export", privilege, Stdio::piped())?;
    let handle = take(exporter.0.stdout.take())?;
    let mut importer = spawn(programs, "import", privilege, Stdio::from(handle))?;
    let mut line = String::new();
    let mut out: ChildStdout = take(importer.0.stdout.take())?;
    read_within(&mut out, &mut line)?;
    drop::<Option<ChildStdin>>(exporter.0.stdin.take());
    let outcomes: Outcomes = line
        .trim()
        .parse()
        .map_err(|e| io::Error::other(format!("the importing half answered {line:?}: {e}")))?;
    Ok(outcomes.proof().is_some())
}

/// A child that is ended and reaped however the test goes.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        // A child that has ended by itself cannot be killed: that is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(programs: &Programs, half: &str, privilege: Privilege, stdin: Stdio) -> io::Result<Reaped> {
    let mut command = programs.isolated_child(&["legacy-self-test", half], privilege);
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().map(Reaped)
}

fn take<T>(pipe: Option<T>) -> io::Result<T> {
    pipe.ok_or_else(|| io::Error::other("the child has no pipe"))
}

/// Reads to the end, but not longer than the test may take.
fn read_within(from: &mut ChildStdout, line: &mut String) -> io::Result<()> {
    use gpu_handoff_protocol::socket::wait;
    use std::os::fd::AsFd;
    let deadline = std::time::Instant::now() + limits::SELF_TEST_TIME;
    if !wait(&[(from.as_fd(), rustix::event::PollFlags::IN)], Some(deadline))? {
        return Err(io::ErrorKind::TimedOut.into());
    }
    from.read_to_string(line)?;
    Ok(())
}
