//! An application in a pod, and how the scenario drives it.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use anyhow::Context;
use gpu_handoff_sys::isolate;
use rustix::event::PollFlags;
use rustix::process::{Pid, Resource, Rlimit};

use crate::agent::order::{Outcome, Step};
use crate::agent::{Answer, Command, Told};
use crate::node::{PATIENCE, kill};
use crate::wait;

/// How long an application may take for one command.
const COMMAND_TIME: Duration = Duration::from_secs(120);

/// A running application.
#[derive(Debug)]
pub struct App {
    child: Child,
    isolated: bool,
    input: ChildStdin,
    output: ChildStdout,
    read: Vec<u8>,
}

impl App {
    /// Takes over a child that was started with pipes.
    ///
    /// # Errors
    /// When it has no pipes.
    pub fn new(mut child: Child, isolated: bool) -> anyhow::Result<Self> {
        let input = child.stdin.take().context("the application's input")?;
        let output = child.stdout.take().context("the application's output")?;
        Ok(Self { child, isolated, input, output, read: Vec::new() })
    }

    /// Tells it to do something without waiting for the answer.
    ///
    /// # Errors
    /// When it is gone.
    pub fn tell(&mut self, command: &Command) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(command)?;
        line.push(b'\n');
        self.input.write_all(&line).with_context(|| format!("tell the application {command:?}"))
    }

    /// Waits for its next answer.
    ///
    /// # Errors
    /// When it is gone or silent.
    pub fn hear(&mut self) -> anyhow::Result<Answer> {
        let deadline = Some(Instant::now() + COMMAND_TIME);
        loop {
            if let Some(end) = self.read.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return serde_json::from_slice(&line).context("read the application's answer");
            }
            let ready =
                gpu_handoff_protocol::socket::wait(&[(self.output.as_fd(), PollFlags::IN)], deadline)?;
            anyhow::ensure!(ready, "the application did not answer within {COMMAND_TIME:?}");
            let mut chunk = [0; 4096];
            match rustix::io::read(&self.output, &mut chunk)? {
                0 => anyhow::bail!("the application has ended ({:?})", self.child.try_wait()),
                n => self.read.extend_from_slice(&chunk[..n]),
            }
        }
    }

    /// Tells it to do something and waits for the answer.
    ///
    /// # Errors
    /// When it is gone or silent. A refusal is an answer.
    pub fn ask(&mut self, command: &Command) -> anyhow::Result<Answer> {
        self.tell(command)?;
        self.hear()
    }

    /// Like `ask`, where anything but what is expected is an error.
    ///
    /// # Errors
    /// When the answer is another.
    pub fn expect<T>(
        &mut self,
        command: &Command,
        pick: impl FnOnce(Answer) -> Result<T, Answer>,
    ) -> anyhow::Result<T> {
        let answer = self.ask(command)?;
        pick(answer).map_err(|other| anyhow::anyhow!("told {command:?}, the application answered {other:?}"))
    }

    /// Has it connect to the pod's socket; gives the pod and the group that it is taken for.
    ///
    /// # Errors
    /// When it is not served.
    pub fn connect(&mut self, socket: &Path) -> anyhow::Result<(String, String)> {
        self.expect(&Command::Connect { socket: socket.to_path_buf() }, |answer| match answer {
            Answer::Connected { pod, group } => Ok((pod, group)),
            other => Err(other),
        })
    }

    /// Has it do something that has no other outcome than to be done.
    ///
    /// # Errors
    /// When it is not done.
    pub fn done(&mut self, command: &Command) -> anyhow::Result<()> {
        self.expect(command, |answer| match answer {
            Answer::Done { .. } => Ok(()),
            other => Err(other),
        })
    }

    /// The same in order with GPU work, or by sets.
    ///
    /// # Errors
    /// When it is not done.
    pub fn order(&mut self, step: Step) -> anyhow::Result<()> {
        self.expect(&Command::Order(step), |answer| match answer {
            Answer::Order(Outcome::Done) => Ok(()),
            other => Err(other),
        })
    }

    /// Waits for the next event of the watch that `wanted` picks, and passes over others.
    ///
    /// # Errors
    /// When it does not come in time.
    pub fn await_event(&mut self, what: &str, wanted: impl Fn(&Told) -> bool) -> anyhow::Result<Told> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            match self.ask(&Command::NextEvent { timeout_ms: 1000 })? {
                Answer::Event(told) if wanted(&told) => return Ok(told),
                Answer::Event(_) | Answer::Nothing => {}
                other => anyhow::bail!("waiting until {what}, the application answered {other:?}"),
            }
        }
        anyhow::bail!("waited {PATIENCE:?} in vain until {what}")
    }

    /// The application's process number on the node.
    ///
    /// # Errors
    /// When it is gone.
    pub fn pid(&self) -> anyhow::Result<u32> {
        if self.isolated { Ok(isolate::isolated_pid(self.child.id())?) } else { Ok(self.child.id()) }
    }

    /// Leaves it room for so many more open files; gives the limit that was.
    ///
    /// # Errors
    /// When it is gone.
    pub fn leave_room(&self, files: usize) -> anyhow::Result<Rlimit> {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.pid()?))?;
        let numbers = open.map(|file| Ok(file?.file_name().to_string_lossy().parse::<u64>()?));
        let numbers = numbers.collect::<anyhow::Result<Vec<_>>>()?;
        let current = (0..).filter(|number| !numbers.contains(number)).nth(files);
        let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
        self.set_limit(Rlimit { current, maximum })
    }

    /// Sets its limit of open files; gives what it was.
    ///
    /// # Errors
    /// When it is gone.
    pub fn set_limit(&self, limit: Rlimit) -> anyhow::Result<Rlimit> {
        let pid = Pid::from_raw(self.pid()?.cast_signed());
        Ok(rustix::process::prlimit(pid, Resource::Nofile, limit)?)
    }

    /// `kill -9`, without waiting for the end.
    ///
    /// # Errors
    /// When it is gone already.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        kill(self.pid()?)
    }

    /// Lets it end by itself, and waits for that.
    ///
    /// # Errors
    /// When it does not end well.
    pub fn finish(self) -> anyhow::Result<()> {
        let Self { mut child, input, output, .. } = self;
        drop(input);
        let status = wait::until(PATIENCE, "the application ends", || Ok(child.try_wait()?))?;
        drop(output);
        anyhow::ensure!(status.success(), "the application ended with {status}");
        Ok(())
    }

    /// Waits for the end after a `kill`.
    ///
    /// # Errors
    /// When it lives on.
    pub fn reap(mut self) -> anyhow::Result<()> {
        wait::until(PATIENCE, "the killed application is gone", || Ok(self.child.try_wait()?)).map(drop)
    }
}
