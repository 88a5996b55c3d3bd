//! The broker's process, from its start to its end.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use gpu_handoff_policy::Policy;
use gpu_handoff_protocol::DeviceUuid;
use gpu_handoff_protocol::codec::Outgoing;
use gpu_handoff_protocol::socket_tokio::AsyncSeqPacket;
use tokio::process::Child;
use tokio::time::{sleep_until, timeout};
use tracing::{info, warn};

use super::children::spawn_heard;
use super::place::Place;
use super::pulse::{Found, Pulse};
use super::rates;
use super::service::{Reply, Service};
use super::slots::{self, Slots};
use super::words::pipe::Ear;
use super::words::{FromBroker, FromNode, Setup};
use crate::allowance::Allowance;
use crate::config::Config;
use crate::limits;

/// A broker that runs, or is getting ready to.
#[derive(Debug)]
pub(super) struct Broker {
    child: Child,
    /// What it is told goes there.
    socket: AsyncSeqPacket,
    /// What it says comes there.
    ear: Ear,
    /// Of words that are read.
    words: Allowance,
    /// What it is told first.
    first_words: Vec<Outgoing>,
    began: Instant,
    ready: bool,
    pulse: Pulse,
    /// The policy that it was told of last, and how many that were since its setup.
    policy: Arc<Policy>,
    policies: u64,
}

/// How a broker ended.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) lived: Duration,
    pub(super) was_ready: bool,
    pub(super) how: String,
}

impl Broker {
    /// Starts one.
    pub(super) fn start(
        config: &Config,
        place: &Place,
        slots: &Slots,
        service: &Service,
    ) -> anyhow::Result<Self> {
        let programs = service.programs();
        let first_words = first_words(config, place, slots, service.gpus().uuids())
            .context("write down what the broker is to do")?;
        let (child, socket, ear) = spawn_heard(programs.child(&["broker"])).context("start the broker")?;
        info!(pid = child.id(), "broker started");
        service.told().started(child.id());
        let socket = AsyncSeqPacket::new(socket)?;
        Ok(Self {
            child,
            socket,
            ear,
            words: rates::words(Instant::now()),
            first_words,
            began: Instant::now(),
            ready: false,
            pulse: Pulse::new(),
            policy: slots.policy(),
            policies: 0,
        })
    }

    /// Serves it until it ends, or has to be ended.
    pub(super) async fn attend(&mut self, service: &mut Service, slots: &mut Slots) -> Ending {
        let why = self.serve(service, slots).await.err();
        slots.are_served(false);
        // One that has broken its line is of no use, whatever it still does.
        let status = self.end().await;
        let how = why.map_or_else(|| status.clone(), |why| format!("{why}; {status}"));
        Ending { lived: self.began.elapsed(), was_ready: self.ready, how }
    }

    /// Its commands, one after the other; comes back when it has closed its line, with an error when it has to be ended.
    async fn serve(&mut self, service: &mut Service, slots: &mut Slots) -> Result<(), String> {
        for packet in std::mem::take(&mut self.first_words) {
            self.send(&packet).await?;
        }
        let late = tokio::time::Instant::from_std(self.began + limits::BROKER_START_TIME);
        loop {
            let may_read = self.words.next(Instant::now());
            let word = async {
                sleep_until(may_read.into()).await;
                self.ear.hear().await
            };
            let replies = tokio::select! {
                heard = word => match heard {
                    Ok(Some(word)) => self.heard(&word, service, slots)?,
                    Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                        return Err("it said more at once than a broker does".to_owned());
                    }
                    Ok(None) | Err(_) => return Ok(()),
                },
                // Its line may be in somebody else's hands, to whom one that was taken over has given it.
                _ = self.child.wait() => return Ok(()),
                replies = service.next() => replies,
                // It takes members in when it serves; one that does not get that far is told of them as it begins.
                change = slots.next_change(), if self.ready => {
                    if let Some(word) = slots.apply(change) {
                        if matches!(word.0, FromNode::Policy) {
                            (self.policy, self.policies) = (slots.policy(), self.policies + 1);
                        }
                        service.hear(&word.0);
                        self.send(&slots::packet(word).map_err(|e| e.to_string())?).await?;
                    }
                    Vec::new()
                }
                found = self.pulse.look(), if self.ready => {
                    self.looked(&found, service, slots)?;
                    Vec::new()
                }
                () = sleep_until(late), if !self.ready => {
                    return Err(format!("it was not ready within {:?}", limits::BROKER_START_TIME));
                }
            };
            for Reply { id, outcome, descriptor } in replies {
                let packet = slots::packet((
                    FromNode::Answer { id, outcome },
                    descriptor.map(Arc::new).into_iter().collect(),
                ));
                self.send(&packet.map_err(|e| e.to_string())?).await?;
            }
        }
    }

    /// Does what it says; gives the answers that are there at once.
    fn heard(&mut self, word: &[u8], service: &mut Service, slots: &mut Slots) -> Result<Vec<Reply>, String> {
        self.words.take(Instant::now());
        match serde_json::from_slice(word) {
            Ok(FromBroker::Ready) => {
                self.ready = true;
                slots.are_served(true);
                slots.go_by(&self.policy);
            }
            Ok(FromBroker::Alive { policies }) => self.is_alive(policies, service, slots)?,
            Ok(FromBroker::Ask { id, command }) => {
                return Ok(service.take(id, &command, slots).into_iter().collect());
            }
            Ok(FromBroker::Tell(tell)) => {
                // Of whoever left meanwhile nobody wants to read.
                if let Some(member) = slots.member(&tell.slot) {
                    service.tell(member, &tell);
                }
            }
            Ok(FromBroker::Unserved { slot, with }) => {
                slots.is_unserved(&slot, with.and_then(|refused| refused.refusal()));
            }
            Err(e) => return Err(format!("it said what a broker does not say ({e})")),
        }
        Ok(Vec::new())
    }

    /// It still serves, and has taken in so many policies.
    fn is_alive(&mut self, policies: u64, service: &Service, slots: &Slots) -> Result<(), String> {
        if !self.ready || policies > self.policies {
            return Err("it goes by what it was not told".to_owned());
        }
        if self.pulse.beat() {
            info!("the broker is heard again");
            service.told().heard(true);
            slots.are_heard(true);
        }
        if policies == self.policies {
            slots.go_by(&self.policy);
        }
        Ok(())
    }

    /// What a look at its silence found.
    fn looked(&self, found: &Found, service: &Service, slots: &Slots) -> Result<(), String> {
        match found {
            Found::NothingNew => Ok(()),
            Found::Silent => {
                let longest = limits::BROKER_LONGEST_SILENCE;
                warn!(pid = self.child.id(), silent = ?limits::BROKER_SILENCE, "the broker is silent and does not count as serving; after {longest:?} it is ended");
                service.told().heard(false);
                slots.are_heard(false);
                Ok(())
            }
            Found::Hung => Err(format!("it said nothing for {:?}", limits::BROKER_LONGEST_SILENCE)),
        }
    }

    async fn send(&self, packet: &Outgoing) -> Result<(), String> {
        match timeout(limits::BROKER_PATIENCE, self.socket.send(packet)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(e)) => Err(format!("it takes no answer ({e})")),
            Err(_elapsed) => Err(format!("it took no answer within {:?}", limits::BROKER_PATIENCE)),
        }
    }

    /// Kills it, if it has not ended, and reaps it; says how it ended.
    async fn end(&mut self) -> String {
        // One that has closed its line is ending by itself, and its status is worth more than our signal's.
        if let Ok(Ok(status)) = timeout(limits::BROKER_END_TIME, self.child.wait()).await {
            return status.to_string();
        }
        if let Err(e) = self.child.start_kill() {
            return format!("not killed: {e}");
        }
        match timeout(limits::BROKER_END_TIME, self.child.wait()).await {
            Ok(Ok(_)) => "killed".to_owned(),
            Ok(Err(e)) => format!("killed, and not reaped: {e}"),
            // Stuck in the kernel, such as in closing a stranger's file: who it served is not to wait for that.
            Err(_elapsed) => format!("killed, and not gone within {:?}", limits::BROKER_END_TIME),
        }
    }

    /// Lets it say farewell and end.
    pub(super) async fn stop(&mut self, service: &mut Service, slots: &mut Slots) -> anyhow::Result<()> {
        let asked = match slots::packet((FromNode::Stop, Vec::new())) {
            Ok(packet) => self.send(&packet).await,
            Err(e) => Err(e.to_string()),
        };
        if let Err(why) = asked {
            warn!(why, "the broker could not be told to stop");
        }
        let farewell = timeout(limits::STOP_TIME + limits::BROKER_END_TIME, self.serve(service, slots)).await;
        if farewell.is_err() {
            self.child.start_kill().context("kill the broker")?;
        }
        let ended = timeout(limits::BROKER_END_TIME, self.child.wait()).await;
        let status = ended.context("the broker does not end")?.context("reap the broker")?;
        if !status.success() {
            bail!("the broker did not stop in order: {status}");
        }
        Ok(())
    }
}

/// What a broker is told first.
fn first_words(
    config: &Config,
    place: &Place,
    slots: &Slots,
    gpus: Vec<DeviceUuid>,
) -> io::Result<Vec<Outgoing>> {
    let setup = Setup {
        boot: config.boot.0,
        cgroup_root: config.cgroup_root.clone(),
        gpus,
        awake: config.awake,
        daemon_user: rustix::process::geteuid().as_raw(),
    };
    let policy = Arc::new(super::policy::packed(&slots.policy())?);
    let setup = (FromNode::Setup(setup), vec![Arc::clone(&place.state), Arc::clone(&place.lock), policy]);
    let (members, beside) = slots.first_words(Instant::now());
    let begin = (FromNode::Begin, Vec::new());
    [setup].into_iter().chain(members).chain([begin]).chain(beside).map(slots::packet).collect()
}

#[cfg(test)]
mod tests;
