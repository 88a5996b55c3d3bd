//! The node of the soak: pods, and the applications that live through all of it and must lose nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use gpu_handoff_simcuda::dump::{Dump, wait_until_free};

use super::report::Report;
use super::talk::{self, Seen};
use super::{Options, memory};
use crate::agent::churn::{Churned, Work};
use crate::agent::many::Random;
use crate::app::App;
use crate::folder::Folder;
use crate::footprint;
use crate::gpu::Gpu;
use crate::node::{Member, Node, PATIENCE};
use crate::pod::{Pod, Walls};
use crate::wait;

/// The pods: where producers die, where consumers die, where the steady buffers are from, where they are used.
const PODS: [&str; 4] = ["makers", "takers", "owners", "users"];
/// Steady buffers of each of the two owners.
const STEADY: usize = 8;
/// Size of a steady buffer, in bytes.
const STEADY_BYTES: u64 = 4 << 20;
/// What the load may be refused: what is not there just now, and what the worker that was killed had under way.
const MAY_BE_REFUSED: [&str; 4] =
    ["acquire NOT_FOUND", "acquire RETIRED", "publish GPU_WORKER_FAILED", "publish GPU_WORKER_TIMEOUT"];
/// How long an acquire may wait: longer than any restart.
pub(super) const WAIT: Duration = Duration::from_secs(15);

/// How often, and after which pause, descriptors are looked at until what has just ended is closed.
const SETTLING_LOOKS: usize = 25;
const SETTLING_PAUSE: Duration = Duration::from_millis(20);

/// A buffer that must outlive everything.
pub(super) struct Steady {
    pub(super) name: String,
    pub(super) word: u32,
    pub(super) seen: Seen,
}

/// Everybody.
pub(super) struct Stage {
    pub(super) node: Node,
    pub(super) pods: [Pod; 4],
    /// Publishes steady buffers, and what the rounds need.
    pub(super) owner: App,
    /// Lives in the pod where producers die; publishes and leases steady buffers too.
    pub(super) resident: App,
    /// Hold leases of all steady buffers.
    pub(super) users: [App; 2],
    pub(super) steady: Vec<Steady>,
    load: Vec<App>,
    pub(super) random: Random,
    options: Options,
    /// Descriptors before anything was published: of the plugin's processes, and of each sidecar.
    base: Descriptors,
    churned: Churned,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Descriptors {
    plugin: usize,
    sidecars: Vec<usize>,
}

impl Descriptors {
    fn of(node: &Node, pods: &[Pod]) -> anyhow::Result<Self> {
        let family = footprint::family(node.plugin_pid())?;
        let plugin = family.iter().map(|pid| footprint::descriptors(*pid)).sum::<anyhow::Result<usize>>()?;
        let sidecars = pods.iter().map(|pod| footprint::descriptors(pod.sidecar_pid()?));
        Ok(Self { plugin, sidecars: sidecars.collect::<anyhow::Result<_>>()? })
    }

    /// The fewest within a short time: connections that have just ended are being closed.
    fn settled(node: &Node, pods: &[Pod]) -> anyhow::Result<Self> {
        let mut fewest = Self::of(node, pods)?;
        for _ in 0..SETTLING_LOOKS {
            std::thread::sleep(SETTLING_PAUSE);
            let now = Self::of(node, pods)?;
            if now.within(&fewest) {
                fewest = now;
            }
        }
        Ok(fewest)
    }

    fn within(&self, base: &Self) -> bool {
        self.plugin <= base.plugin && self.sidecars.iter().zip(&base.sidecars).all(|(now, then)| now <= then)
    }
}

impl Stage {
    pub(super) fn set(options: &Options, folder: &Folder, gpu: Gpu, walls: Walls) -> anyhow::Result<Self> {
        let members = PODS.map(|pod| Member { pod, group: "soak" });
        let node = Node::start(folder, Arc::new(gpu), &members)?;
        node.wait_for_log("self-test of legacy handles done")?;
        let pods: anyhow::Result<Vec<Pod>> = PODS.iter().map(|pod| Pod::start(&node, pod, walls)).collect();
        let Ok(pods) = <[Pod; 4]>::try_from(pods?) else { anyhow::bail!("four pods were started") };
        let connected = |pod: &Pod| pod.connected(&node);
        let owner = connected(&pods[2])?;
        let resident = connected(&pods[0])?;
        let users = [connected(&pods[3])?, connected(&pods[3])?];
        let load =
            pods.iter().cycle().take(options.load).map(connected).collect::<anyhow::Result<Vec<_>>>()?;
        // The GPU worker, every member's way to it, and whatever else comes with a first publication, is there from now on.
        for pod in &pods {
            let mut app = connected(pod)?;
            talk::publish(&mut app, "first", STEADY_BYTES, 1)?;
            talk::retire(&mut app, "first", Duration::ZERO)?;
            app.finish()?;
        }
        let base = Descriptors::settled(&node, &pods)?;
        let random = Random(options.seed);
        let (options, steady, churned) = (options.clone(), Vec::new(), Churned::default());
        let mut stage =
            Self { node, pods, owner, resident, users, steady, load, random, options, base, churned };
        stage.publish_steady()?;
        stage.begin_load()?;
        Ok(stage)
    }

    fn publish_steady(&mut self) -> anyhow::Result<()> {
        for n in 0..STEADY * 2 {
            let (name, word) = (format!("steady-{n}"), 0x5EED_0000 + u32::try_from(n)?);
            let owner = if n < STEADY { &mut self.owner } else { &mut self.resident };
            let seen = talk::publish(owner, &name, STEADY_BYTES, word)?;
            for user in &mut self.users {
                let got = talk::acquire(user, &talk::wanted(Some(&name), None, &name, WAIT))?;
                anyhow::ensure!(got == seen, "{name} was published as {seen:?} and acquired as {got:?}");
            }
            self.steady.push(Steady { name, word, seen });
        }
        Ok(())
    }

    /// What an application of the load, or a victim in addition to those, does all the time.
    pub(super) fn work(&mut self, number: usize) -> Work {
        // One number more than there is load: a victim's.
        Work {
            number,
            of: self.load.len() + 1,
            pause_us: self.options.load_pause_us,
            seed: self.random.number(),
        }
    }

    fn begin_load(&mut self) -> anyhow::Result<()> {
        for number in 0..self.load.len() {
            let work = self.work(number);
            talk::churn(&mut self.load[number], work)?;
        }
        Ok(())
    }

    /// A new application in a pod, which publishes and acquires all the time besides what it is told.
    pub(super) fn victim(&mut self, pod: usize) -> anyhow::Result<App> {
        let work = self.work(self.load.len());
        let mut app = self.pods[pod].connected(&self.node)?;
        talk::churn(&mut app, work)?;
        Ok(app)
    }

    /// Where simulated memory is.
    pub(super) fn device(&self) -> anyhow::Result<std::path::PathBuf> {
        self.node.gpu.device_folder().map(std::path::Path::to_path_buf).context("a simulated GPU")
    }

    /// Lets a random time of up to so many milliseconds pass, so that a kill meets everybody at something else.
    pub(super) fn some_time(&mut self, most_ms: usize) {
        let us = self.random.below(most_ms * 1000 + 1);
        std::thread::sleep(Duration::from_micros(u64::try_from(us).unwrap_or(0)));
    }

    pub(super) fn log_end(&self) -> String {
        let log = self.node.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Every steady buffer can be acquired by its id, is the same, and holds what was written; every lease of it is held,
    /// and can be given back and taken again.
    pub(super) fn check_steady(&mut self, report: &mut Report) -> anyhow::Result<()> {
        for n in 0..self.steady.len() {
            self.check_one_steady(n, report)?;
        }
        Ok(())
    }

    /// The same for one of them.
    pub(super) fn check_one_steady(&mut self, n: usize, report: &mut Report) -> anyhow::Result<()> {
        let Steady { name, word, seen } = &self.steady[n];
        for (number, user) in self.users.iter_mut().enumerate() {
            let state = talk::lease_state(user, name)?;
            report.check(state == "held", || format!("user {number}'s lease of {name} is {state}"));
            let wrong = talk::wrong(user, name, *word)?;
            report.check(wrong == 0, || {
                format!("{name} as user {number} has it mapped: {wrong} words are wrong")
            });
            let released = talk::release(user, name);
            report
                .check(released.is_ok(), || format!("user {number} gives {name} back: {:#}", err(&released)));
            let again = talk::acquire(user, &talk::wanted(None, Some(&seen.id), name, WAIT));
            let same = again.as_ref().is_ok_and(|again| again == seen);
            report.check(same, || {
                format!("user {number} acquires {name}, which is {seen:?}, again: {again:?}")
            });
        }
        Ok(())
    }

    /// Ends everything, and looks at what is left.
    pub(super) fn strike(mut self, report: &mut Report) -> anyhow::Result<()> {
        for app in &mut self.load {
            let churned = talk::end_churn(app)?;
            add(&mut self.churned, churned);
        }
        self.judge_load(report);
        for Steady { name, .. } in &self.steady {
            for user in &mut self.users {
                let _told_before = talk::release(user, name);
            }
        }
        for (n, Steady { name, .. }) in self.steady.iter().enumerate() {
            let owner = if n < STEADY { &mut self.owner } else { &mut self.resident };
            let left = talk::retire(owner, name, Duration::ZERO);
            report
                .check(left.as_ref().is_ok_and(|left| *left == 0), || format!("{name} is retired: {left:?}"));
            talk::free(owner, name)?;
        }
        self.check_descriptors(report)?;
        let device = self.device()?;
        let Self { node, pods, owner, resident, users, load, .. } = self;
        for app in [owner, resident].into_iter().chain(users).chain(load) {
            app.finish()?;
        }
        let mut pids = footprint::family(node.plugin_pid())?;
        for pod in pods {
            pids.insert(pod.sidecar_pid()?);
            pod.stop()?;
        }
        // What stands for the device goes with the node.
        let gpu = Arc::clone(&node.gpu);
        node.stop()?;
        let left: BTreeSet<u32> = pids.into_iter().filter(|pid| alive(*pid)).collect();
        report.check(left.is_empty(), || format!("processes {left:?} are left"));
        report.fact(format!("{} processes of ours are left in the end", left.len()));
        let free = wait_until_free(&device, std::time::Instant::now() + PATIENCE);
        report.check(free.is_ok(), || format!("simulated memory is left: {:#?}", free.err()));
        report.fact(format!(
            "{} bytes of simulated GPU memory are left in the end",
            Dump::read(&device)?.used()
        ));
        drop(gpu);
        Ok(())
    }

    fn judge_load(&self, report: &mut Report) {
        let Churned { published, acquired, released, wrong, refused, failed } = &self.churned;
        report.fact(format!(
            "load: {published} published, {acquired} acquired, {released} released, {wrong} with wrong content; refused: {}",
            list(refused)
        ));
        report.check(*wrong == 0, || {
            format!("{wrong} buffers of the load held something else than was written")
        });
        for (what, times) in refused.iter().filter(|(what, _)| !MAY_BE_REFUSED.contains(&what.as_str())) {
            report.check(false, || {
                format!("the load was refused what it should not be: {what}, {times} times")
            });
        }
        report.check(failed.is_empty(), || format!("calls of the load failed: {failed:#?}"));
    }

    /// The plugin and the sidecars have closed all that they opened since the beginning.
    fn check_descriptors(&self, report: &mut Report) -> anyhow::Result<()> {
        let mut now = None;
        let back = wait::until(PATIENCE, "descriptors are back to what they were", || {
            let found = Descriptors::of(&self.node, &self.pods)?;
            let within = found.within(&self.base);
            now = Some(found);
            Ok(within.then_some(()))
        });
        report.check(back.is_ok(), || format!("descriptors: {:?} at first, {now:?} in the end", self.base));
        if let Some(now) = now {
            report.fact(format!(
                "descriptors of the plugin {} at first, {} in the end; of the sidecars {:?} and {:?}",
                self.base.plugin, now.plugin, self.base.sidecars, now.sidecars
            ));
        }
        Ok(())
    }

    /// Memory of a size that a round works with must not be in use when the round begins.
    pub(super) fn none_of_size(&self, bytes: u64) -> anyhow::Result<()> {
        let left = memory::of_size(&self.device()?, bytes)?;
        anyhow::ensure!(left.is_empty(), "memory of an earlier round is left: {left:#?}");
        Ok(())
    }
}

fn add(sum: &mut Churned, more: Churned) {
    sum.published += more.published;
    sum.acquired += more.acquired;
    sum.released += more.released;
    sum.wrong += more.wrong;
    sum.failed.extend(more.failed);
    for (what, times) in more.refused {
        *sum.refused.entry(what).or_default() += times;
    }
}

fn list(refused: &BTreeMap<String, u64>) -> String {
    if refused.is_empty() {
        return "nothing".to_owned();
    }
    refused.iter().map(|(what, times)| format!("{what} {times}")).collect::<Vec<_>>().join(", ")
}

fn err<T>(outcome: &anyhow::Result<T>) -> String {
    outcome.as_ref().err().map_or_else(String::new, |e| format!("{e:#}"))
}

fn alive(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}
