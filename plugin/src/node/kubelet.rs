//! The node's side towards its kubelet: the driver's services and their registration, and the pods.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use gpu_handoff_kubelet::api::ApiServer;
use gpu_handoff_kubelet::{csi, pods, registration, resources};
use gpu_handoff_nri::Settings;
use gpu_handoff_policy::Policy;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::{error, info};

use super::children::THIS_PROGRAM;
use super::devices::Asker;
use super::devices::answers::{self, Answers};
use super::events::Events;
use super::groups::{Groups, OnRecord, Places};
use super::membership::{Membership, Records, Seen, Teller, Volume, one_of_each_pod};
use super::nri;
use super::parts::Plans;
use super::pids::{Pids, by_groups};
use super::service::Service;
use super::slots::{Change, Slots};
use crate::config::KubeletConfig;
use crate::identity::cgroup::Root;
use crate::limits;

/// What serves the kubelet: tasks of the node that end with it.
#[derive(Debug)]
pub(super) struct Kubelet {
    tasks: JoinSet<anyhow::Result<()>>,
    stop: watch::Sender<bool>,
    views: Views,
    plans: watch::Receiver<Arc<Plans>>,
}

/// What the node's status tells of it.
#[derive(Debug, Clone)]
pub(super) struct Views {
    /// The kubelet's root folder.
    pub(super) root: PathBuf,
    pub(super) registration: watch::Receiver<registration::State>,
    pub(super) membership: watch::Receiver<Seen>,
    /// Whether it says which devices pods hold.
    pub(super) devices: watch::Receiver<Answers>,
}

impl Kubelet {
    /// Begins: members that are on record join, and the kubelet may come.
    ///
    /// # Errors
    /// What could not be made.
    pub(super) async fn begin(
        config: &KubeletConfig,
        api_server: Option<ApiServer>,
        events: Events,
        changes: mpsc::Sender<Change>,
        slots: &mut Slots,
        service: &mut Service,
    ) -> anyhow::Result<Self> {
        let records = Records::open(&config.run_dir).context("open the records of volumes")?;
        let volumes = records.read().context("read the records of volumes")?;
        let (volumes, others) = one_of_each_pod(volumes, &records);
        let volumes_on_record = volumes.clone();
        let (volumes, left_out) = join(volumes, slots);
        volumes.iter().for_each(|volume| service.serve_slot(volume.slot()));
        let pods = pods::open(config.pods(api_server.clone())).context("follow the pods of this node")?;
        info!(node = config.node, root = %config.root.display(), members = volumes.len(), left_out = left_out.len(), "serving the kubelet");
        let (teller, seen) = Teller::new();
        let membership = Membership::new(changes, events.clone(), records, volumes, slots.policies(), teller);
        let asker = Asker::new(config.root.join(resources::SOCKET), api_server, config.node.clone());
        let membership = membership.finding_out(asker, service.topology());
        let (numbers, settled) = Pids::new(THIS_PROGRAM, by_groups(service.cgroup_root().clone()))
            .context("tell PID namespaces of pods from our own")?;
        let membership = membership.waiting_for_numbers(settled);
        let groups = groups(config, &volumes_on_record, &slots.policies().borrow(), service.places())?;
        let membership = membership.leaving_out(left_out).sharing(groups).await.taking_down(others);
        // Those of the members that are on record are there: whoever creates containers may ask from here on.
        let plans = membership.plans();
        let (stop, stopped) = watch::channel(false);
        let (commands, asked) = csi::queue();
        let mut tasks = JoinSet::new();
        let until = |mut stopped: watch::Receiver<bool>| async move {
            // An error means that the node is gone, so it ends as well.
            let _ = stopped.wait_for(|stopping| *stopping).await;
        };
        let services = csi::Settings {
            socket: config.services(),
            kubelet_root: config.root.clone(),
            node: config.node.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            max_volumes: u32::try_from(slots.limit()).unwrap_or(u32::MAX),
            ready: slots.readiness(),
        };
        let served = csi::serve(services, commands, until(stopped.clone()));
        tasks.spawn(async { served.await.context("serve volumes to the kubelet") });
        let settings = registration::Settings {
            folder: registration::folder_in(&config.root),
            instance: config.instance.clone(),
            endpoint: config.services(),
        };
        let (state, said) = watch::channel(registration::State::default());
        let (answers, devices) = watch::channel(None);
        let views =
            Views { root: config.root.clone(), registration: said.clone(), membership: seen, devices };
        let socket = config.root.join(resources::SOCKET);
        tasks.spawn(cut_off(until(stopped.clone()), answers::look(socket, answers)));
        let registered = registration::serve(settings, state, until(stopped.clone()));
        tasks.spawn(async { registered.await.context("register with the kubelet") });
        tasks.spawn(cut_off(until(stopped.clone()), log_registration(said)));
        tasks.spawn(cut_off(until(stopped.clone()), numbers.run(plans.clone(), events)));
        // It may wait for the node to do something, which does nothing any more when it stops.
        tasks.spawn(cut_off(until(stopped), membership.run(asked, pods)));
        Ok(Self { tasks, stop, views, plans })
    }

    /// What the node's status tells of it.
    pub(super) fn views(&self) -> Views {
        self.views.clone()
    }

    /// Answers the container runtime about its members, until it stops.
    pub(super) fn answer(
        &mut self,
        settings: Settings,
        policies: watch::Receiver<Arc<Policy>>,
        events: Events,
        cgroup_root: Root,
    ) -> nri::Views {
        let seen = nri::Seen::default();
        let views = seen.views(&settings);
        let inputs = nri::Inputs { settings, plans: self.plans.clone(), policies, events, cgroup_root, seen };
        let mut stopped = self.stop.subscribe();
        self.tasks.spawn(async move {
            tokio::select! {
                // An error means that the node is gone, so it ends as well.
                _ = stopped.wait_for(|stopping| *stopping) => Ok(()),
                ended = nri::run(inputs) => ended.context("answer the container runtime"),
            }
        });
        views
    }

    /// Comes back when one of its parts has ended before it was to.
    pub(super) async fn broke(&mut self) -> anyhow::Error {
        match self.tasks.join_next().await {
            Some(Ok(Err(e))) => e,
            Some(Err(e)) => anyhow::Error::new(e).context("a part that serves the kubelet broke off"),
            Some(Ok(Ok(()))) | None => anyhow::anyhow!("a part that serves the kubelet ended"),
        }
    }

    /// Ends what serves the kubelet; its members stay.
    pub(super) async fn stop(&mut self) {
        self.stop.send_replace(true);
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        // Whoever is in the middle of a request is waited for, but not for ever.
        let _ = tokio::time::timeout(limits::STOP_TIME, ended).await;
    }
}

/// What groups share, for the members on record. Where that fails and none of them was granted anything of it, the node goes on
/// without: whoever asks for it is refused.
fn groups(
    config: &KubeletConfig,
    volumes: &[Volume],
    policy: &Policy,
    places: Places,
) -> anyhow::Result<Option<Groups>> {
    let sharers: Vec<OnRecord> = volumes.iter().map(Volume::sharer).collect();
    let is_needed = sharers.iter().any(|(.., wish)| wish.is_some());
    match Groups::begin(&config.run_dir, sharers, policy, places) {
        Ok(groups) => Ok(Some(groups)),
        Err(e) if is_needed => Err(e).context("have groups share what their members were granted"),
        Err(e) => {
            error!(error = %e, "groups can share nothing beside buffers until the daemon is started again");
            Ok(None)
        }
    }
}

/// The members of volumes that are on record join; those that cannot are left out, with the reason.
fn join(volumes: Vec<Volume>, slots: &mut Slots) -> (Vec<Volume>, Vec<(Volume, String)>) {
    let (mut joined, mut left_out) = (Vec::new(), Vec::new());
    for volume in volumes {
        match slots.join(volume.member()) {
            Ok(_) => joined.push(volume),
            Err(e) => left_out.push((volume, format!("{:#}", anyhow::Error::new(e)))),
        }
    }
    (joined, left_out)
}

/// A part that is not waited for when all is to stop.
async fn cut_off(stopped: impl Future<Output = ()>, part: impl Future<Output = ()>) -> anyhow::Result<()> {
    tokio::select! { () = stopped => {}, () = part => {} }
    Ok(())
}

async fn log_registration(mut said: watch::Receiver<registration::State>) {
    while said.changed().await.is_ok() {
        let state = said.borrow_and_update().clone();
        match state {
            registration::State::Registered => info!("the kubelet knows the driver"),
            registration::State::Refused(why) => tracing::warn!(why, "the kubelet does not take the driver"),
            registration::State::Waiting | registration::State::Asked => {}
        }
    }
    // It has ended with what told of it, which says why.
    std::future::pending().await
}

impl KubeletConfig {
    fn services(&self) -> PathBuf {
        csi::socket_in(&self.root.join("plugins"))
    }

    /// Where pods may be asked for: the kubelet, and the API server where there is one.
    fn pods(&self, api_server: Option<ApiServer>) -> pods::Settings {
        let kube = api_server.map(|api_server| (api_server, self.node.clone()));
        pods::Settings { socket: Some(self.root.join(pods::SOCKET)), kube }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use gpu_handoff_inject::Shm;
    use tokio::time::Instant;

    use super::*;
    use crate::node::membership::testing::volume;
    use crate::node::testing;

    /// A kubelet that says nothing, however long it is waited for.
    fn silent(folder: &Path) -> (KubeletConfig, UnixListener) {
        let (root, run_dir) = (folder.join("kubelet"), folder.join("run"));
        let pods_api = root.join(pods::SOCKET);
        std::fs::create_dir_all(pods_api.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(&pods_api).unwrap();
        (KubeletConfig { root, node: "n".to_owned(), instance: "i".to_owned(), run_dir }, listener)
    }

    #[tokio::test(start_paused = true)]
    async fn an_orderly_stop_waits_for_nothing_that_does_not_end() {
        let folder = tempfile::tempdir().unwrap();
        let (config, _silent) = silent(folder.path());
        // One whose slot is to be made again, which nobody does.
        let records = Records::open(&config.run_dir).unwrap();
        records.write(&volume("csi-1")).unwrap();
        std::fs::write(config.run_dir.join("slots"), "in the way").unwrap();
        let (mut slots, changes) =
            Slots::new(&config.run_dir, limits::MEMBERS, gpu_handoff_policy::Policy::default());
        let (events, _told) = Events::for_test();
        let mut service = Service::new(&testing::config(), events.clone(), None);
        let kubelet = Kubelet::begin(&config, None, events, changes, &mut slots, &mut service).await;
        let mut kubelet = kubelet.unwrap();
        let unanswered = slots.next_change().await;
        assert!(matches!(unanswered, Change::Join(..)), "{unanswered:?}");
        let begin = Instant::now();
        kubelet.stop().await;
        assert!(begin.elapsed() < limits::STOP_TIME / 5, "{:?}", begin.elapsed());
        assert!(kubelet.tasks.is_empty());
    }

    #[tokio::test]
    async fn a_pod_two_volumes_of_which_are_on_record_has_one_slot() {
        let folder = tempfile::tempdir().unwrap();
        let (config, _silent) = silent(folder.path());
        let records = Records::open(&config.run_dir).unwrap();
        // The first is where its pod sees it; the second is nowhere.
        let seen = records.slot_folder(volume("csi-1").slot());
        std::fs::create_dir_all(&seen).unwrap();
        let mut both = ["csi-1", "csi-2"].map(volume);
        [both[0].target, both[1].target] = [seen, folder.path().join("none")];
        both.iter().for_each(|volume| records.write(volume).unwrap());
        let (mut slots, changes) =
            Slots::new(&config.run_dir, limits::MEMBERS, gpu_handoff_policy::Policy::default());
        let (events, _told) = Events::for_test();
        let mut service = Service::new(&testing::config(), events.clone(), None);
        let kubelet = Kubelet::begin(&config, None, events, changes, &mut slots, &mut service).await;
        let mut kubelet = kubelet.unwrap();
        let have = both.each_ref().map(|volume| slots.member(volume.slot()).is_some());
        assert_eq!(have, [true, false]);
        assert_eq!(records.read().unwrap(), both[..1]);
        kubelet.stop().await;
    }

    #[tokio::test]
    async fn without_what_groups_share_the_node_goes_on_where_no_member_has_any_of_it() {
        for (shm, begins) in [(Shm::None, true), (Shm::Group, false)] {
            let folder = tempfile::tempdir().unwrap();
            let (config, _silent) = silent(folder.path());
            let records = Records::open(&config.run_dir).unwrap();
            let mut on_record = volume("csi-1");
            on_record.parts.shm = shm;
            on_record.target = records.slot_folder(on_record.slot());
            records.write(&on_record).unwrap();
            std::fs::write(config.run_dir.join("groups"), "in the way").unwrap();
            let policy = gpu_handoff_policy::Policy::default();
            let (mut slots, changes) = Slots::new(&config.run_dir, limits::MEMBERS, policy);
            let (events, _told) = Events::for_test();
            let mut service = Service::new(&testing::config(), events.clone(), None);
            let kubelet = Kubelet::begin(&config, None, events, changes, &mut slots, &mut service).await;
            assert_eq!(kubelet.is_ok(), begins, "{:?}", kubelet.err());
            assert!(slots.member(on_record.slot()).is_some());
        }
    }

    #[test]
    fn a_member_whose_slot_cannot_be_made_is_left_out_and_the_others_join() {
        let run_dir = tempfile::tempdir().unwrap();
        let [one, bad, other] = ["csi-1", "csi-2", "csi-3"].map(volume);
        std::fs::create_dir(run_dir.path().join("slots")).unwrap();
        std::fs::write(run_dir.path().join("slots").join(bad.slot().as_str()), "in the way").unwrap();
        let (mut slots, _changes) = Slots::new(run_dir.path(), 3, gpu_handoff_policy::Policy::default());
        let (joined, left_out) = join(vec![one.clone(), bad.clone(), other.clone()], &mut slots);
        assert_eq!(joined, [one, other]);
        let [(volume, why)] = &left_out[..] else { panic!("{left_out:?}") };
        assert_eq!(*volume, bad);
        // With what the system answered.
        assert!(why.contains("cannot be made: "), "{why}");
    }
}
