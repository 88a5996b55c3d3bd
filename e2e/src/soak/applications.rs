//! Applications that are killed: what others are told, and when memory is free.

use std::io::{BufRead, BufReader};
use std::process::{Command as Program, Stdio};
use std::time::Duration;

use anyhow::Context;
use gpu_handoff_sys::isolate::die_with_parent;
use rustix::process::Signal;

use super::memory::{self, ms};
use super::report::{Report, Time};
use super::stage::{Stage, WAIT};
use super::talk::{self, Seen};
use crate::agent::now_ns;
use crate::node::{PATIENCE, raw_pid};

/// Sizes by which the memory of a round is told from all other memory, in bytes.
const UNMAPPED_BYTES: u64 = 6 << 20;
const MAPPED_BYTES: u64 = 10 << 20;
const RETIRED_BYTES: u64 = 14 << 20;
/// What it is filled with.
const WORD: u32 = 0x0D1E_D0FF;
/// The random time before a kill, at most, in milliseconds.
const MOMENT_MS: usize = 20;
/// A deadline that does not come.
const NEVER: Duration = Duration::from_secs(600);

impl Stage {
    /// A producer dies. It has published two buffers: both importers hold leases of one, nobody has the other.
    pub(super) fn kill_producer(&mut self, round: usize, report: &mut Report) -> anyhow::Result<()> {
        let device = self.device()?;
        self.none_of_size(UNMAPPED_BYTES)?;
        self.none_of_size(MAPPED_BYTES)?;
        let mut producer = self.victim(0)?;
        let unmapped = talk::publish(&mut producer, &format!("unmapped-{round}"), UNMAPPED_BYTES, WORD)?;
        let mapped = talk::publish(&mut producer, &format!("mapped-{round}"), MAPPED_BYTES, WORD)?;
        self.users_acquire(&mapped)?;
        self.users_await("orphaned", &mapped)?;
        self.some_time(MOMENT_MS);
        let killed_ns = now_ns();
        producer.kill()?;
        report.time(Time::UnmappedMemoryBack, memory::back_ms(&device, UNMAPPED_BYTES, killed_ns)?);
        self.users_told(Time::ImporterTold, killed_ns, report)?;
        producer.reap()?;
        self.check_orphan(&mapped, report)?;
        for id in [&mapped.id, &unmapped.id] {
            let code = talk::refusal(&mut self.owner, id)?;
            report.check(code == "RETIRED", || format!("a dead producer's buffer is refused with {code}"));
        }
        self.let_orphan_go(report)
    }

    /// The memory of the orphan is mapped by both importers, and by nobody else.
    fn check_orphan(&mut self, orphan: &Seen, report: &mut Report) -> anyhow::Result<()> {
        let left = memory::of_size(&self.device()?, MAPPED_BYTES)?;
        report.check(left.len() == 1, || format!("of {orphan:?} there is {left:?}"));
        let mut users = Vec::new();
        for user in &mut self.users {
            users.push(user.pid()?);
            let state = talk::lease_state(user, "round")?;
            report.check(state == "ended", || format!("the lease of an orphan is {state}"));
            let wrong = talk::wrong(user, "round", WORD)?;
            report.check(wrong == 0, || format!("{wrong} words of an orphan are wrong"));
        }
        users.sort_unstable();
        for allocation in left {
            let holders: Vec<u32> =
                allocation.holders.iter().filter(|h| h.mapped_bytes > 0).map(|h| h.pid).collect();
            let right = !allocation.creator.alive && holders == users;
            report.check(right, || format!("{allocation:?} should be mapped by {users:?}, its maker dead"));
        }
        Ok(())
    }

    /// The importers let go one after the other; with the second the memory is free.
    fn let_orphan_go(&mut self, report: &mut Report) -> anyhow::Result<()> {
        let device = self.device()?;
        let [first, last] = &mut self.users;
        talk::release(first, "round")?;
        let left = memory::of_size(&device, MAPPED_BYTES)?.len();
        report.check(left == 1, || "an orphan's memory is free though an importer maps it".to_owned());
        let released_ns = now_ns();
        talk::release(last, "round")?;
        report.time(Time::OrphanedMemoryBack, memory::back_ms(&device, MAPPED_BYTES, released_ns)?);
        Ok(())
    }

    /// A producer dies whose child process still holds its connection: that must keep nothing alive.
    pub(super) fn kill_producer_with_child(
        &mut self,
        _round: usize,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let mut command = Program::new(self.node.folder.binary("rough")?);
        command
            .arg("fork")
            .arg("--socket")
            .arg(self.pods[0].socket())
            .args(["--source", &self.steady[0].name]);
        die_with_parent(&mut command);
        let mut parent =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("start `rough`")?;
        let mut line = String::new();
        BufReader::new(parent.stdout.take().context("its output")?).read_line(&mut line)?;
        let child = raw_pid(line.trim().parse().with_context(|| format!("a number, not {line:?}"))?)?;
        let name = "of-the-dead";
        let seen = talk::acquire(&mut self.owner, &talk::wanted(Some(name), None, "probe", WAIT))?;
        talk::release(&mut self.owner, "probe")?;
        self.users_acquire(&seen)?;
        self.users_await("orphaned", &seen)?;
        self.some_time(MOMENT_MS);
        let killed_ns = now_ns();
        parent.kill()?;
        self.users_told(Time::ImporterToldDespiteChild, killed_ns, report)?;
        parent.wait()?;
        let lives = rustix::process::test_kill_process(child).is_ok();
        report
            .check(lives, || "the dead producer's child was gone before its importers were told".to_owned());
        for user in &mut self.users {
            talk::release(user, "round")?;
        }
        rustix::process::kill_process(child, Signal::KILL).context("kill the child")?;
        Ok(())
    }

    /// A consumer dies that alone still maps a buffer which its producer has retired and freed.
    pub(super) fn kill_consumer(&mut self, round: usize, report: &mut Report) -> anyhow::Result<()> {
        let device = self.device()?;
        self.none_of_size(RETIRED_BYTES)?;
        let name = format!("retired-{round}");
        let seen = talk::publish(&mut self.owner, &name, RETIRED_BYTES, WORD)?;
        let mut consumer = self.victim(1)?;
        talk::acquire(&mut consumer, &talk::wanted(None, Some(&seen.id), "l", WAIT))?;
        talk::watch(&mut self.owner)?;
        let leases = talk::retire(&mut self.owner, &name, NEVER)?;
        report.check(leases == 1, || format!("{leases} leases are left of a buffer that one consumer has"));
        talk::free(&mut self.owner, &name)?;
        let left = memory::of_size(&device, RETIRED_BYTES)?.len();
        report.check(left == 1, || "a consumer's memory is free though it maps it".to_owned());
        talk::await_event(&mut self.owner, "gone", &seen.id, PATIENCE)?;
        self.some_time(MOMENT_MS);
        let killed_ns = now_ns();
        consumer.kill()?;
        report.time(Time::ConsumersMemoryBack, memory::back_ms(&device, RETIRED_BYTES, killed_ns)?);
        let told = talk::told(&mut self.owner)?;
        report.check(told.reason.as_deref() == Some("retired"), || {
            format!("told of a dead consumer: {told:?}")
        });
        report.time(Time::ProducerTold, ms(killed_ns, told.at_ns));
        consumer.reap()
    }

    fn users_acquire(&mut self, seen: &Seen) -> anyhow::Result<()> {
        for user in &mut self.users {
            talk::acquire(user, &talk::wanted(None, Some(&seen.id), "round", WAIT))?;
        }
        Ok(())
    }

    fn users_await(&mut self, what: &str, seen: &Seen) -> anyhow::Result<()> {
        for user in &mut self.users {
            talk::watch(user)?;
            talk::await_event(user, what, &seen.id, PATIENCE)?;
        }
        Ok(())
    }

    fn users_told(&mut self, time: Time, killed_ns: u64, report: &mut Report) -> anyhow::Result<()> {
        for user in &mut self.users {
            let told = talk::told(user)?;
            let right = told.reason.as_deref() == Some("owner-died") && told.leases == Some(2);
            report.check(right, || format!("an importer of a dead producer's buffer was told {told:?}"));
            report.time(time, ms(killed_ns, told.at_ns));
        }
        Ok(())
    }
}
