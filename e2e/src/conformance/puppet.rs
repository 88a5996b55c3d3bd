//! The suite's side of a puppet: started somewhere, told what to do, and ended with the row or before.

use std::cell::RefCell;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use gpu_handoff_cuda::Status;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::place::Place;
use super::wire::{self, Request, Response};

/// How long one answer may take, if the row's deadline is not sooner.
const ANSWER: Duration = Duration::from_secs(8);

/// Why a step of a row gave no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The driver answered with a code.
    Answered {
        /// What was asked.
        request: String,
        /// The code.
        status: Status,
    },
    /// The puppet died: the name of a signal or an exit code.
    Died(String),
    /// No answer in time; the puppet was killed.
    Hangs,
    /// The row cannot be tried here.
    NotRun(String),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Answered { status, .. } => write!(f, "{status}"),
            End::Died(how) => f.write_str(how),
            End::Hangs => f.write_str("hangs"),
            End::NotRun(why) => write!(f, "not run: {why}"),
        }
    }
}

/// A step's value or why there is none.
pub(crate) type Step<T> = Result<T, End>;

/// The outcome of the step that a row is about.
pub(crate) fn outcome<T>(step: &Step<T>) -> String {
    match step {
        Ok(_) => Status::SUCCESS.to_string(),
        Err(end) => end.to_string(),
    }
}

/// `SIGSEGV` and the like.
pub(crate) fn signal_name(signal: i32) -> String {
    match signal {
        6 => "SIGABRT".into(),
        7 => "SIGBUS".into(),
        9 => "SIGKILL".into(),
        11 => "SIGSEGV".into(),
        other => format!("signal {other}"),
    }
}

struct Inner {
    /// None where somebody else started it.
    child: Option<Child>,
    socket: OwnedFd,
    deadline: Instant,
    ended: Option<End>,
}

/// A child process that does what it is told. Killed when the last copy of this is dropped.
#[derive(Clone)]
pub(crate) struct Puppet(Rc<RefCell<Inner>>);

impl Puppet {
    /// Starts one; it has loaded the driver's library and called nothing.
    pub(crate) fn start(program: &Path, place: &Place, deadline: Instant) -> Step<Puppet> {
        let not_run = |error: std::io::Error| End::NotRun(format!("start a child process: {error}"));
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|e| not_run(e.into()))?;
        let mut command = place.command(program, &["puppet"]);
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::inherit());
        let child = command.spawn().map_err(not_run)?;
        // It holds the child's end of the socket, whose closing is how a death is noticed.
        drop(command);
        let puppet = Puppet::over(Some(child), ours, deadline);
        // Up and through its wrappers.
        match puppet.ask(&Request::Pid, None) {
            Ok(_) => Ok(puppet),
            Err(end) => Err(End::NotRun(format!("a child process in place \"{}\" ended: {end}", place.name))),
        }
    }

    /// One that somebody else started, at the other end of a connection.
    pub(crate) fn at(socket: OwnedFd, deadline: Instant) -> Puppet {
        Puppet::over(None, socket, deadline)
    }

    fn over(child: Option<Child>, socket: OwnedFd, deadline: Instant) -> Puppet {
        Puppet(Rc::new(RefCell::new(Inner { child, socket, deadline, ended: None })))
    }

    /// The row that it is used in now must end by then.
    pub(crate) fn set_deadline(&self, deadline: Instant) {
        self.0.borrow_mut().deadline = deadline;
    }

    /// Sends a request, to be answered in [`Puppet::finish`].
    pub(crate) fn begin(&self, request: &Request, fd: Option<BorrowedFd<'_>>) -> Step<()> {
        let mut inner = self.0.borrow_mut();
        if let Some(end) = &inner.ended {
            return Err(end.clone());
        }
        match wire::send(inner.socket.as_fd(), request, fd) {
            Ok(()) => Ok(()),
            Err(_) => Err(inner.died()),
        }
    }

    /// Waits for the answer.
    pub(crate) fn finish(&self, request: &Request) -> Step<(Response, Option<OwnedFd>)> {
        let mut inner = self.0.borrow_mut();
        let wait = inner.deadline.saturating_duration_since(Instant::now()).min(ANSWER);
        let wait = Timespec { tv_sec: wait.as_secs().cast_signed(), tv_nsec: wait.subsec_nanos().into() };
        let ready = poll(&mut [PollFd::new(&inner.socket, PollFlags::IN)], Some(&wait)).unwrap_or(0);
        if ready == 0 {
            inner.kill();
            inner.ended = Some(End::Hangs);
            return Err(End::Hangs);
        }
        let Ok(Some((response, fd))) = wire::receive::<Response>(inner.socket.as_fd()) else {
            return Err(inner.died());
        };
        match response.status {
            0 => Ok((response, fd)),
            code if Status(code) == Status::SYMBOL_MISSING => {
                Err(End::NotRun(format!("this driver has no function for {}", request.name())))
            }
            code => Err(End::Answered { request: request.name(), status: Status(code) }),
        }
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn ask(
        &self,
        request: &Request,
        fd: Option<BorrowedFd<'_>>,
    ) -> Step<(Response, Option<OwnedFd>)> {
        self.begin(request, fd)?;
        self.finish(request)
    }

    /// A request without a value.
    pub(crate) fn tell(&self, request: Request) -> Step<()> {
        self.ask(&request, None).map(drop)
    }

    /// A request for a number.
    pub(crate) fn word(&self, request: Request) -> Step<u64> {
        self.ask(&request, None).map(|(response, _)| response.words.first().copied().unwrap_or(0))
    }

    /// A request for two numbers.
    pub(crate) fn words(&self, request: Request) -> Step<(u64, u64)> {
        let word = |words: &[u64], i: usize| words.get(i).copied().unwrap_or(0);
        self.ask(&request, None).map(|(response, _)| (word(&response.words, 0), word(&response.words, 1)))
    }

    /// A request for words of the language.
    pub(crate) fn text(&self, request: Request) -> Step<String> {
        self.ask(&request, None).map(|(response, _)| response.text)
    }

    /// A request for handle bytes.
    pub(crate) fn bytes(&self, request: Request) -> Step<Vec<u8>> {
        self.ask(&request, None).map(|(response, _)| response.bytes)
    }

    /// A request for a descriptor.
    pub(crate) fn fd(&self, request: Request) -> Step<OwnedFd> {
        let (_, fd) = self.ask(&request, None)?;
        fd.ok_or_else(|| End::NotRun("no descriptor came with the answer".into()))
    }

    /// Kills it with SIGKILL and waits until it is gone.
    pub(crate) fn kill(&self) {
        let mut inner = self.0.borrow_mut();
        inner.kill();
        inner.ended.get_or_insert(End::Died("SIGKILL".into()));
    }

    /// Does it answer?
    pub(crate) fn is_there(&self) -> bool {
        self.tell(Request::Pid).is_ok()
    }

    /// Does it answer, and is its context in order?
    pub(crate) fn is_well(&self) -> bool {
        self.tell(Request::Synchronize).is_ok()
    }

    /// Does it answer, and has it no context?
    pub(crate) fn has_no_context(&self) -> bool {
        self.word(Request::Current) == Ok(0)
    }
}

impl Inner {
    fn kill(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Waits for the dead child and keeps how it ended.
    fn died(&mut self) -> End {
        let Some(child) = &mut self.child else {
            return self.ended.get_or_insert(End::Died("connection closed".into())).clone();
        };
        let end = match child.wait() {
            Ok(status) => match (status.signal(), status.code()) {
                (Some(signal), _) => End::Died(signal_name(signal)),
                (None, code) => End::Died(format!("exit {}", code.unwrap_or(-1))),
            },
            Err(error) => End::NotRun(format!("wait for a child process: {error}")),
        };
        self.ended.get_or_insert(end).clone()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.ended.is_none() {
            self.kill();
        }
    }
}
