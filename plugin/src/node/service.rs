//! Answering the broker's commands.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use gpu_handoff_admin::proto;
use gpu_handoff_kubelet::api::ApiServer;
use gpu_handoff_protocol::{DeviceUuid, SlotId};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::admin::broker::Teller;
use super::children::Programs;
use super::events::{self, About, Events, Notice};
use super::gpus::Gpus;
use super::groups::Places;
use super::looks::{self, Looks, NOT_LOOKED_AT};
use super::overstays::Overstays;
use super::rates::Rates;
use super::slots::Slots;
use super::survey;
use super::words::{Answer, Command, FromNode, Tell, Told};
use super::workers::Workers;
use crate::config::Config;
use crate::gpu::self_test;
use crate::identity::cgroup::Root;
use crate::identity::{self, ProcessKey};
use crate::limits;
use crate::members::Member;
use crate::registry::Topology;

/// What the node does for its broker, from broker to broker.
#[derive(Debug)]
pub(super) struct Service {
    programs: Programs,
    /// Where the driver says its version.
    driver_version: PathBuf,
    workers: Workers,
    /// The self-test's outcome, and the driver that it was run with.
    proven: Option<(String, bool)>,
    /// The self-test that runs, and the commands that wait for it.
    proving: JoinSet<(String, io::Result<bool>)>,
    wait_for_proof: Vec<u64>,
    gpus: Arc<Gpus>,
    looks: Looks,
    cgroup_root: Root,
    events: Events,
    overstays: Overstays,
    rates: Rates,
    /// The survey that runs, and the commands that wait for it.
    surveying: JoinSet<Result<Topology, String>>,
    /// What the last one said.
    topology: watch::Sender<Option<Topology>>,
    /// What came of the last one, for whoever asks how the node is.
    driver: watch::Sender<proto::Driver>,
    wait_for_survey: Vec<u64>,
    /// Tells of the broker's processes.
    told: Teller,
}

/// An answer, the number of the command, and the descriptor that goes along.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) id: u64,
    pub(super) outcome: Result<Answer, String>,
    pub(super) descriptor: Option<OwnedFd>,
}

impl Reply {
    const fn new(id: u64, outcome: Result<Answer, String>) -> Self {
        Self { id, outcome, descriptor: None }
    }
}

impl Service {
    pub(super) fn new(config: &Config, events: Events, api_server: Option<ApiServer>) -> Self {
        Self {
            programs: Programs { user: config.user, log_format: config.log_format },
            driver_version: config.nvidia_proc_root.join("driver/nvidia/version"),
            workers: Workers::new(config.awake > 0),
            proven: None,
            proving: JoinSet::new(),
            wait_for_proof: Vec::new(),
            gpus: Arc::new(Gpus::read(&config.nvidia_proc_root, &config.nvidia_dev_root)),
            looks: Looks::default(),
            cgroup_root: config.cgroup_root.clone(),
            overstays: Overstays::new(config.cgroup_root.clone(), api_server, events.clone()),
            events,
            rates: Rates::new(Instant::now()),
            surveying: JoinSet::new(),
            topology: watch::channel(None).0,
            driver: watch::channel(proto::Driver::default()).0,
            wait_for_survey: Vec::new(),
            told: Teller::default(),
        }
    }

    /// Tells of the broker's processes.
    pub(super) const fn told(&self) -> &Teller {
        &self.told
    }

    pub(super) const fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Does what is asked; gives the answers that are there at once. The others come from [`Service::next`].
    pub(super) fn take(&mut self, id: u64, command: &Command, slots: &Slots) -> Option<Reply> {
        match command {
            Command::StartWorker { gpu } => Some(self.start_worker(id, *gpu)),
            Command::EndWorker { worker } => match self.workers.end(*worker, id) {
                Ok(ended) => ended.map(|ended| Reply::new(id, Ok(ended.answer()))),
                Err(why) => Some(Reply::new(id, Err(why))),
            },
            Command::ProveLegacy => self.prove(id),
            Command::Survey => self.survey(id),
            Command::Reachable { slot, pid, started } => {
                let (gpus, pid, started) = (Arc::clone(&self.gpus), *pid, *started);
                let may_be_of = |member| looks::may_be_of(member, pid, started, &self.cgroup_root);
                if !slots.member(slot).is_some_and(may_be_of) {
                    return Some(Reply::new(id, Err(NOT_LOOKED_AT.to_owned())));
                }
                let looked = self.looks.begin(id, slot, move || gpus.reachable(pid, started));
                looked.map(|(id, outcome)| Reply::new(id, outcome.map(Answer::Reachable)))
            }
            Command::Kill { slot, pid, started, pidfs_inode } => {
                let key = ProcessKey { pid: *pid, started: *started, pidfs_inode: *pidfs_inode };
                let may = self.rates.may_end(Instant::now());
                let kill = |()| self.overstays.kill(slots.member(slot), &slots.policy(), key);
                Some(Reply::new(id, may.and_then(kill).map(|()| Answer::Killed)))
            }
            Command::Evict { slot } => {
                let evicted = match self.rates.may_end(Instant::now()) {
                    Ok(()) => self.overstays.evict(id, slots.member(slot), &slots.policy()),
                    Err(why) => Some((id, Err(why))),
                };
                evicted.map(|(id, outcome)| Reply::new(id, outcome.map(|()| Answer::Evicted)))
            }
        }
    }

    fn start_worker(&mut self, id: u64, gpu: Option<DeviceUuid>) -> Reply {
        let gpu = gpu.map(|gpu| (gpu, self.gpus.visible_name(gpu)));
        let may = self.rates.may_start(Instant::now());
        match may.and_then(|()| self.workers.start(&self.programs, gpu)) {
            Ok(started) => {
                let outcome = Ok(Answer::Started { worker: started.worker, pid: started.pid });
                Reply { id, outcome, descriptor: Some(started.socket) }
            }
            Err(why) => Reply::new(id, Err(why)),
        }
    }

    /// Lets the owner of a pod read what the broker says happened to it.
    pub(super) fn tell(&mut self, member: &Member, tell: &Tell) {
        if !self.rates.may_tell(Instant::now()) {
            return;
        }
        let about = About::from(member);
        let notice = match &tell.what {
            Told::Refused(refused) => refused.refusal().map(|refusal| Notice::refused(about, &refusal)),
            Told::Orphaned { leases } => Some(events::orphaned(about, *leases)),
        };
        if let Some(notice) = notice {
            self.events.tell(notice.times(tell.times.max(1)));
        }
    }

    /// A member has come or gone: its processes are looked at, or not any more.
    pub(super) fn hear(&mut self, word: &FromNode) {
        match word {
            FromNode::Member(member) => self.serve_slot(&member.slot),
            FromNode::Left(slot) => self.looks.take_room(slot),
            _ => {}
        }
    }

    /// The processes of a slot are looked at from now on.
    pub(super) fn serve_slot(&mut self, slot: &SlotId) {
        self.looks.give_room(slot);
    }

    /// Of which pod a process is.
    pub(super) fn places(&self) -> Places {
        let root = self.cgroup_root.clone();
        Box::new(move |pid| identity::pod_of(pid, &root))
    }

    /// What the driver says of the GPUs, once it has been asked.
    pub(super) fn topology(&self) -> watch::Receiver<Option<Topology>> {
        self.topology.subscribe()
    }

    /// Whether the driver could be asked.
    pub(super) fn driver(&self) -> watch::Receiver<proto::Driver> {
        self.driver.subscribe()
    }

    /// What stands before the groups of this node's pods.
    pub(super) const fn cgroup_root(&self) -> &Root {
        &self.cgroup_root
    }

    /// The node's GPUs.
    pub(super) fn gpus(&self) -> &Gpus {
        &self.gpus
    }

    /// What the broker may still have done.
    #[cfg(test)]
    pub(super) const fn rates(&mut self) -> &mut Rates {
        &mut self.rates
    }

    fn survey(&mut self, id: u64) -> Option<Reply> {
        if self.wait_for_survey.len() >= limits::NODE_COMMANDS {
            return Some(Reply::new(id, Err("it was asked for too often".to_owned())));
        }
        self.wait_for_survey.push(id);
        if self.surveying.is_empty() {
            let failed = |e| format!("the survey could not be started: {e}");
            let may = self.rates.may_start(Instant::now());
            match may.and_then(|()| survey::start(&self.programs).map_err(failed)) {
                Ok(child) => {
                    let gpus = self.gpus.uuids();
                    self.surveying.spawn(async move { survey::outcome(child, gpus).await });
                }
                Err(why) => {
                    self.wait_for_survey.clear();
                    return Some(Reply::new(id, Err(why)));
                }
            }
        }
        None
    }

    fn prove(&mut self, id: u64) -> Option<Reply> {
        let driver = std::fs::read_to_string(&self.driver_version).unwrap_or_default();
        if let Some((tested, proven)) = &self.proven
            && *tested == driver
        {
            return Some(Reply::new(id, Ok(Answer::Proven(*proven))));
        }
        if self.wait_for_proof.len() >= limits::NODE_COMMANDS {
            return Some(Reply::new(id, Err("it was asked for too often".to_owned())));
        }
        self.wait_for_proof.push(id);
        if self.proving.is_empty() {
            if let Err(why) = self.rates.may_start(Instant::now()) {
                self.wait_for_proof.clear();
                return Some(Reply::new(id, Err(why)));
            }
            let programs = self.programs;
            self.proving.spawn_blocking(move || (driver, self_test::run(&programs)));
        }
        None
    }

    /// The next answers to what took its time. Safe to cancel.
    pub(super) async fn next(&mut self) -> Vec<Reply> {
        tokio::select! {
            (ended, asked) = self.workers.next() => {
                asked.into_iter().map(|id| Reply::new(id, Ok(ended.answer()))).collect()
            }
            (id, outcome) = self.looks.next() => vec![Reply::new(id, outcome.map(Answer::Reachable))],
            (id, outcome) = self.overstays.next() => vec![Reply::new(id, outcome.map(|()| Answer::Evicted))],
            Some(surveyed) = self.surveying.join_next() => {
                let outcome = surveyed.map_err(|e| e.to_string()).and_then(|o| o);
                self.driver.send_replace(survey::told(&outcome));
                if let Ok(topology) = &outcome {
                    self.topology.send_replace(Some(topology.clone()));
                }
                let outcome = outcome.map(Answer::Surveyed);
                std::mem::take(&mut self.wait_for_survey).into_iter().map(|id| Reply::new(id, outcome.clone())).collect()
            }
            Some(tested) = self.proving.join_next() => {
                let outcome = match tested {
                    Ok((driver, Ok(proven))) => {
                        info!(proven, "self-test of legacy handles done");
                        self.proven = Some((driver, proven));
                        Ok(Answer::Proven(proven))
                    }
                    Ok((_, Err(e))) => Err(e.to_string()),
                    Err(e) => {
                        warn!(error = %e, "self-test of legacy handles broke off");
                        Err("it broke off".to_owned())
                    }
                };
                std::mem::take(&mut self.wait_for_proof).into_iter().map(|id| Reply::new(id, outcome.clone())).collect()
            }
        }
    }

    /// Ends what was started for a broker that is gone, and forgets what that waited for. A survey that runs says the same to the next
    /// one.
    pub(super) fn abandon(&mut self) {
        self.rates.begin_anew();
        self.wait_for_survey.clear();
        self.wait_for_proof.clear();
        self.looks.abandon();
        self.overstays.abandon();
        self.workers.abandon();
    }

    /// Waits for the end of all that was started, but not for ever; whether it has ended.
    pub(super) async fn end_all(&mut self) -> bool {
        self.abandon();
        self.workers.all_have_ended().await
    }
}
