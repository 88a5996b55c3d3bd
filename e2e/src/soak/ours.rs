//! Our own processes that are killed: nobody loses a buffer or a lease.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::memory::ms;
use super::report::{Report, Time};
use super::stage::{Stage, WAIT};
use super::talk;
use crate::agent::now_ns;
use crate::footprint;
use crate::node::{PATIENCE, kill};
use crate::wait;

/// The random time before a kill, and before something is started again, at most, in milliseconds.
const MOMENT_MS: usize = 20;
/// Size of what is published to see that a worker is there again, in bytes.
const PROBE_BYTES: u64 = 2 << 20;
/// Rounds in which the broker dies after each orderly restart of the plugin.
const UPGRADE_EVERY: usize = 3;
/// From here on the plugin's log is shown for a restart, in milliseconds.
const SLOW_MS: f64 = 1000.0;
/// Steady buffers that are looked at in each round; all are at the end.
const LOOKED_AT: usize = 3;

impl Stage {
    /// The GPU worker dies. What is published next is checked by a new one.
    pub(super) fn kill_worker(&mut self, round: usize, report: &mut Report) -> anyhow::Result<()> {
        let name = format!("worker-{round}");
        let workers = wait::until(PATIENCE, "there is a gpu worker", || {
            let workers = self.plugins("gpu-worker")?;
            Ok((!workers.is_empty()).then_some(workers))
        })?;
        talk::fill(&mut self.owner, &name, PROBE_BYTES, 7)?;
        self.some_time(MOMENT_MS);
        let killed_ns = now_ns();
        for worker in workers {
            kill(worker)?;
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            match talk::publish_filled(&mut self.owner, &name)? {
                Ok(_) => break,
                Err(refused) => {
                    report.check(Instant::now() < deadline, || format!("no worker again: {refused}"));
                    anyhow::ensure!(Instant::now() < deadline, "no worker after {PATIENCE:?}: {refused}");
                }
            }
        }
        report.time(Time::PublishAfterWorker, ms(killed_ns, now_ns()));
        talk::retire(&mut self.owner, &name, Duration::ZERO)?;
        talk::free(&mut self.owner, &name)
    }

    /// A sidecar dies and is started again, as the kubelet would. Its pod's applications go on meanwhile.
    pub(super) fn kill_sidecar(&mut self, _round: usize, report: &mut Report) -> anyhow::Result<()> {
        self.some_time(MOMENT_MS);
        kill(self.pods[0].sidecar_pid()?)?;
        let (begin, steady) = (Instant::now(), self.random.below(self.steady.len()));
        let id = self.steady[steady].seen.id.clone();
        let got = talk::acquire(&mut self.resident, &talk::wanted(None, Some(&id), "round", WAIT))?;
        report.check(got == self.steady[steady].seen, || format!("without a sidecar {got:?} was acquired"));
        talk::release(&mut self.resident, "round")?;
        report.time(Time::HandOffWithoutSidecar, begin.elapsed().as_secs_f64() * 1e3);
        self.some_time(MOMENT_MS);
        let begin = Instant::now();
        let member = self.resident.pid()?;
        self.pods[0].revive(&self.node, member)?;
        report.time(Time::SidecarReady, begin.elapsed().as_secs_f64() * 1e3);
        self.victim(0).context("connect through the new sidecar")?.finish()?;
        self.check_one_steady(steady, report)
    }

    /// The broker dies; the plugin starts another.
    pub(super) fn kill_broker(&mut self, round: usize, report: &mut Report) -> anyhow::Result<()> {
        self.upgrade_now_and_then(round, report)?;
        let broker = self.broker()?;
        self.some_time(MOMENT_MS);
        let killed_ns = now_ns();
        kill(broker)?;
        self.nothing_is_lost(Time::AcquireAfterBroker, killed_ns, report)
    }

    /// Broker and sidecar die together: neither has the pod's descriptors any more, only the applications.
    pub(super) fn kill_sidecar_and_broker(
        &mut self,
        round: usize,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        self.upgrade_now_and_then(round, report)?;
        let broker = self.broker()?;
        let member = self.resident.pid()?;
        self.some_time(MOMENT_MS);
        kill(self.pods[0].sidecar_pid()?)?;
        let killed_ns = now_ns();
        kill(broker)?;
        self.some_time(MOMENT_MS);
        self.pods[0].revive(&self.node, member)?;
        self.nothing_is_lost(Time::AcquireAfterSidecarAndBroker, killed_ns, report)
    }

    /// All of the plugin dies, and is started again.
    pub(super) fn kill_plugin(&mut self, _round: usize, report: &mut Report) -> anyhow::Result<()> {
        let family = footprint::family(self.node.plugin_pid())?;
        self.some_time(MOMENT_MS);
        kill(self.node.plugin_pid())?;
        let ended = wait::until(PATIENCE, "the plugin's processes are gone", || {
            let left: BTreeSet<u32> = family.iter().copied().filter(|pid| is_running(*pid)).collect();
            Ok(left.is_empty().then_some(()))
        });
        report.check(ended.is_ok(), || format!("{:#}", err(&ended)));
        self.some_time(MOMENT_MS);
        let began_ns = now_ns();
        self.node.revive()?;
        self.nothing_is_lost(Time::AcquireAfterPlugin, began_ns, report)
    }

    /// Stops the plugin and starts it again, as an upgrade does: that must lose nothing either. It also makes the plugin
    /// forget how often its broker died, so that its growing pause before the next one does not hide how long a start takes.
    fn upgrade_now_and_then(&mut self, round: usize, report: &mut Report) -> anyhow::Result<()> {
        if !round.is_multiple_of(UPGRADE_EVERY) {
            return Ok(());
        }
        self.some_time(MOMENT_MS);
        let began_ns = now_ns();
        self.node.restart()?;
        self.nothing_is_lost(Time::AcquireAfterUpgrade, began_ns, report)
    }

    /// An acquire that is asked at once is answered when there is a broker again; leases and buffers are what they were.
    fn nothing_is_lost(&mut self, time: Time, since_ns: u64, report: &mut Report) -> anyhow::Result<()> {
        let first = self.random.below(self.steady.len());
        let wanted = talk::wanted(None, Some(&self.steady[first].seen.id.clone()), "probe", WAIT);
        let got = talk::acquire(&mut self.owner, &wanted).context("acquire a steady buffer")?;
        let took = ms(since_ns, now_ns());
        report.time(time, took);
        if took > SLOW_MS {
            eprintln!(
                "slow: {took:.0} ms for {}; the plugin's log ends with:\n{}",
                self.steady[first].name,
                self.log_end()
            );
        }
        let steady = &self.steady[first];
        report.check(got == steady.seen, || format!("{} was {:?} and is {got:?}", steady.name, steady.seen));
        talk::release(&mut self.owner, "probe")?;
        for more in 0..LOOKED_AT {
            self.check_one_steady((first + more) % self.steady.len(), report)?;
        }
        Ok(())
    }

    /// The plugin's process that serves the members.
    fn broker(&self) -> anyhow::Result<u32> {
        wait::until(PATIENCE, "there is a broker", || Ok(self.plugins("broker")?.first().copied()))
    }

    /// The plugin's processes that were started in this mode.
    fn plugins(&self, mode: &str) -> anyhow::Result<Vec<u32>> {
        footprint::family_in_mode(self.node.plugin_pid(), mode)
    }
}

/// A process that has ended and was not waited for runs no more.
fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with(['Z', 'X']) && !rest.is_empty())
}

fn err<T>(outcome: &anyhow::Result<T>) -> String {
    outcome.as_ref().err().map_or_else(String::new, |e| format!("{e:#}"))
}
