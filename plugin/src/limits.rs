//! The daemon's own limits, each named with its unit. Those of the wire are in `gpu_handoff_protocol::limits`, those
//! of a member in its quota (`gpu_handoff_policy::Quota`).

use std::time::Duration;

/// Commands that may wait for a lane. Nobody waits for room: a member whose lane is that far behind loses its
/// sessions.
pub const LANE_QUEUE: usize = 16_384;
/// Commands that wait for a lane with which another lane that has one more for it pauses first: who is slower than those that
/// it hears of must not be overrun by them.
pub const LANE_PRESSED: usize = LANE_QUEUE / 2;
/// How long.
pub const LANE_PRESSED_PAUSE: Duration = Duration::from_millis(1);
/// How long it is waited before a member gets a lane whose last one could not be started or broke off; doubled each time.
pub const LANE_PAUSE: Duration = Duration::from_secs(1);
/// The longest that it is waited.
pub const LANE_LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A lane that lived that long did not break off soon.
pub const LANE_GOOD_LIFE: Duration = Duration::from_secs(60);
/// What may wait for a process that does not read, in bytes of the daemon's memory; more ends its connection. Half of it
/// is for events of watches: more of those end the watch.
pub const OUTBOX_BYTES: usize = 32 << 20;
/// What may wait for all processes of a member together, in bytes of the daemon's memory.
pub const OUTBOXES_BYTES: usize = 64 << 20;
/// What a packet that waits takes beside its own bytes, in bytes.
pub const WAITING_PACKET_BYTES: usize = 128;
/// What a descriptor in a packet that waits counts as, in bytes: it may be the last one of a buffer that is over. So little
/// that a set of all buffers that a member may have fits into an outbox, where their metadata is short.
pub const WAITING_DESCRIPTOR_BYTES: usize = 1 << 10;
/// Descriptors that one member may have in flight (sent to its processes and its sidecar, and not yet read); more wait
/// before they are sent, and a process that acquires meanwhile is refused. As many may come from it and wait for their
/// verdict.
pub const IN_FLIGHT_OF_MEMBER: u64 = 1_024;
/// At most this part of what the daemon may have open at all: as many may be in flight of all its user's processes.
pub const IN_FLIGHT_SHARE: u64 = 16;
/// How long a process that acquires waits for room in flight, which a sibling that reads much makes soon.
pub const IN_FLIGHT_PATIENCE: Duration = Duration::from_secs(1);
/// What the kernel spends on a packet that is not read, at least, beside its own bytes.
pub const PACKET_OVERHEAD_BYTES: usize = 512;
/// After what time it is looked whether there is room in flight again; doubled each time, up to [`IN_FLIGHT_PAUSE`].
pub const IN_FLIGHT_FIRST_PAUSE: Duration = Duration::from_millis(1);
/// How often it is looked in the end whether there is room in flight again, or what was sent on a connection that is over was
/// read.
pub const IN_FLIGHT_PAUSE: Duration = Duration::from_millis(20);
/// Lines that one member can have written to the log at once, of what it can cause without limit.
pub const LOG_BURST: u32 = 256;
/// How long one member has to wait for each line more.
pub const LOG_PAUSE: Duration = Duration::from_millis(100);
/// How long nobody is accepted after it failed, mostly for want of descriptors.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections of sidecars to one slot; one more is refused.
pub const SLOT_CONNECTIONS: usize = 4;
/// Descriptors that are inspected at a time.
pub const INSPECTIONS: usize = 64;
/// Descriptors of one member that are inspected at a time, so that no member keeps the GPU worker from the others.
pub const INSPECTIONS_OF_MEMBER: usize = 8;
/// How long what comes back after a restart waits for room among them; then it is refused, and may be shown again.
pub const ROOM_PATIENCE: Duration = Duration::from_secs(5);
/// Offers of one connection of a sidecar that may wait for their turn to be checked; more end it.
pub const OFFERS_WAITING: usize = 4;
/// How long a GPU worker may take for one descriptor, from when it begins with it; so as many of them wait as
/// [`INSPECTIONS`] times that in the worst case.
pub const INSPECTION_TIME: Duration = Duration::from_secs(2);
/// How often an inspection is asked for where the worker was replaced before it began.
pub const INSPECTION_TRIES: usize = 3;
/// How long a lane waits for room in the GPU worker's queue before it looks again.
pub const WORKER_QUEUE_PAUSE: Duration = Duration::from_millis(1);
/// How long a GPU worker may take to start (loading the driver takes most of it).
pub const WORKER_START_TIME: Duration = Duration::from_secs(15);
/// How long a lane waits for the road to a GPU worker: more than a start takes, so that the start's own outcome is told.
pub const WORKER_WAIT_TIME: Duration = Duration::from_secs(20);
/// Requests that wait for the driver to name its GPUs; one more is refused.
pub const GPU_ASKERS: usize = 1_024;
/// How long no GPU worker is started after one could not be, and the driver is not asked for its GPUs.
pub const WORKER_PAUSE: Duration = Duration::from_millis(500);
/// How long a GPU that a configuration alone names, and that the driver did not show, is not looked for again.
pub const ABSENT_GPU_PAUSE: Duration = Duration::from_secs(10);
/// How long the daemon, when it stops, and a lane wait for the end of a GPU worker that was killed.
pub const WORKER_END_TIME: Duration = Duration::from_secs(1);
/// How long a lane waits to learn what became of a worker whose time was over, before it gives it up.
pub const WORKER_FATE_TIME: Duration = Duration::from_secs(3);
/// How long a GPU worker stays that nobody asks anything. The next one needs about 10 ms to start.
pub const WORKER_IDLE_TIME: Duration = Duration::from_secs(60);
/// GPU workers that may break over descriptors of one member within [`STRIKE_TIME`]; with so many it may not publish vmm
/// buffers until one of them counts no more.
pub const WORKERS_BROKEN: usize = 3;
/// How long a GPU worker that broke counts against the member.
pub const STRIKE_TIME: Duration = Duration::from_secs(600);
/// GPU workers that were killed and have not ended, with which no further one is started.
pub const WORKERS_ENDING: usize = 8;
/// Distinct failures of GPU workers that are remembered as logged.
pub const WORKER_FAILURES: usize = 64;
/// How long a failure of GPU workers that was logged is not logged again.
pub const WORKER_FAILURE_PAUSE: Duration = Duration::from_secs(600);
/// How long the self-test of legacy handles may take.
pub const SELF_TEST_TIME: Duration = Duration::from_secs(30);
/// Most descriptors that the broker asks for, however many it may have.
pub const WANTED_DESCRIPTORS: u64 = 65_536;
/// Descriptors that the daemon keeps for itself: sockets, pidfds, logs. The rest may hold buffers, and slots that are gone
/// ([`UNCLOSED`]).
pub const RESERVED_DESCRIPTORS: u64 = 256;
/// How long the daemon lets its threads end after it was told to stop.
pub const STOP_TIME: Duration = Duration::from_secs(5);
/// How long the next part of a set may take after the one before it.
pub const SET_PART_TIME: Duration = Duration::from_secs(60);
/// Most bytes of a static members file.
pub const MEMBERS_FILE_BYTES: u64 = 1 << 20;
/// How long a process may take to reattach after its sidecar has offered all that it keeps.
pub const REATTACH_TIME: Duration = Duration::from_secs(5);
/// How much longer it may take where no sidecar has come to offer anything.
pub const SIDECAR_PATIENCE: Duration = Duration::from_secs(5);
/// How long one packet of a sidecar's offers, or of a process's claims, may take to be checked: a worker that starts first,
/// and three inspections that hang.
pub const OFFER_TIME: Duration = Duration::from_secs(21);
/// How long after the start of the broker a sidecar that goes on offering, or a process that goes on claiming, may have its
/// member's past waited for, at most.
pub const OFFERING_TIME: Duration = Duration::from_secs(60);
/// Buffers that ended and whose sidecar has not been told yet; with more, its connection ends, and it comes again.
pub const FORGETS: usize = 16_384;
/// How many times what is alive the journal may grow to, in records, before it is written anew.
pub const JOURNAL_GROWTH: u64 = 4;
/// Records up to which the journal is not written anew, however little is alive (1 MiB).
pub const JOURNAL_RECORDS: u64 = 16_384;
/// Items that all processes of one member wait for, each watch counted as one: a publication may have to look at each.
pub const WAITED_OF_MEMBER: u64 = 4_096;
/// How long an acquire waits for what is being restored where it was not told to wait at all: less than a client waits for an
/// answer.
pub const RESTORING_PATIENCE: Duration = Duration::from_secs(20);
/// Descriptors of buffers that a member may have whatever others have, as long as there are any. With more it may have half of
/// what the others leave.
pub const DESCRIPTORS_FOR_SURE: u64 = 256;
/// How long a member has to wait for each buffer that a watch of its processes begins with.
pub const LISTING_PAUSE: Duration = Duration::from_micros(10);
/// How much of that wait it may put off: watches begin at once until then.
pub const LISTINGS_AHEAD: Duration = Duration::from_secs(2);
/// Buffers (of sets that never came whole, too) and leases that end, or that a sidecar is told to keep, under one taking of
/// the registry's lock, where much does at once.
pub const ENDINGS_AT_A_TIME: usize = 1_024;
/// Buffers, leases and what sessions wait for that are held against a new policy under one taking of the registry's lock, and
/// what is said of those that end; of a watch all that one member has published at least.
pub const POLICY_STEPS: usize = 1_024;
/// How often a thread gives its processor up between two of these while others wait for the lock.
pub const PIECE_YIELDS: usize = 64;
/// Ended buffers that the journal remembers.
pub const JOURNAL_ENDED: usize = 4_096;
/// How long it is not tried again to write a journal that could not be written.
pub const JOURNAL_PAUSE: Duration = Duration::from_secs(1);
/// How long a node that starts waits for an earlier one, and its broker, to end.
pub const TAKE_OVER_TIME: Duration = Duration::from_secs(2);
/// How often it looks.
pub const TAKE_OVER_PAUSE: Duration = Duration::from_millis(10);
/// How long the broker may take from its start until it serves.
pub const BROKER_START_TIME: Duration = Duration::from_secs(15);
/// How often a broker that serves says that it does, and the node looks whether it has.
pub const BROKER_BEAT: Duration = Duration::from_secs(1);
/// How long a broker may say nothing of it before it counts as not serving: more than a busy machine keeps it from running.
pub const BROKER_SILENCE: Duration = Duration::from_secs(10);
/// How long before the node ends it, to start another.
pub const BROKER_LONGEST_SILENCE: Duration = Duration::from_secs(60);
/// How long the node waits for the broker to take an answer.
pub const BROKER_PATIENCE: Duration = Duration::from_secs(5);
/// How long the node waits for the end of a broker that has closed its line, before it kills it, and again after that.
pub const BROKER_END_TIME: Duration = Duration::from_secs(1);
/// Starts of a broker in a row that never served, after which the node gives up.
pub const BROKER_STARTS: u32 = 5;
/// How long the node waits before it starts a broker that died soon after another; doubled each time.
pub const BROKER_PAUSE: Duration = Duration::from_millis(100);
/// The longest that it waits.
pub const BROKER_LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A broker that lived that long did not die soon.
pub const BROKER_GOOD_LIFE: Duration = Duration::from_secs(60);
/// Ends of brokers that the node tells of.
pub const BROKER_ENDS_TOLD: usize = 16;
/// GPU workers that have not ended, with which the node starts no further one.
pub const NODE_WORKERS: usize = 64;
/// Commands of the broker that may wait for an answer of the node.
pub const NODE_COMMANDS: usize = 64;
/// Threads of the node, and of the broker, that close slots which are gone, with what was sent to them; more slots stay open
/// until one of these has come back.
pub const CLOSERS: usize = 64;
/// Those of them that are at slots of one namespace.
pub const CLOSERS_OF_NAMESPACE: usize = 16;
/// Slots of one namespace that are gone and stay open, with which it gets no further one. All that stay open count as taken.
pub const UNCLOSED_OF_NAMESPACE: usize = 64;
/// Slots that are gone, which wait in the broker for a thread that closes them: as many as may leave at once. With one more
/// the broker ends, which closes all of them, and another one takes over. In the node they are slots that are taken.
pub const UNCLOSED: u64 = MEMBERS as u64;
/// At most this part of what the broker may have open: so much of it is kept for them.
pub const UNCLOSED_SHARE: u64 = 16;
/// Words of the broker that wait for room in the pipe to the node, with which no further are taken up.
pub const NODE_WORDS: usize = 128;
/// How long the node looks for the device nodes that a process has, which may be on a file system that does not answer.
pub const LOOK_TIME: Duration = Duration::from_secs(1);
/// Such looks at processes of one member at a time; those that do not come back are counted until they do.
pub const LOOKS_OF_MEMBER: usize = 4;
/// Most GPUs of a node.
pub const NODE_GPUS: usize = 64;
/// Most bytes that are read of what the driver says of a GPU in `/proc`.
pub const GPU_FACTS_BYTES: u64 = 16 << 10;
/// How long asking the driver what GPUs there are may take.
pub const SURVEY_TIME: Duration = Duration::from_secs(60);
/// How long the broker waits before it has them asked again where they did not answer; doubled each time.
pub const SURVEY_PAUSE: Duration = Duration::from_secs(1);
/// The longest that it waits.
pub const SURVEY_LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Most bytes of its answer.
pub const SURVEY_BYTES: u64 = 4 << 20;
/// Most bytes of what it says where it has none.
pub const COMPLAINT_BYTES: u64 = 4 << 10;
/// The protocol version from which on a client understands that what it waits for is announced.
pub const ANNOUNCEMENTS_SINCE: (u32, u32) = (0, 2);
/// How long those that were told of a publication that is about to come poll for it instead of sleeping: about as long as
/// one takes.
pub const AWAKE_TIME: Duration = Duration::from_micros(1000);
/// With fewer processors than this they sleep, unless somebody says otherwise: they would be in the way of the one that they
/// wait for.
pub const AWAKE_PROCESSORS: usize = 8;
/// Of the processors one in so many may be kept awake by the broker at a time, unless somebody says otherwise.
pub const AWAKE_SHARE: usize = 4;
/// The most that somebody may say.
pub const AWAKE_MOST: u32 = 1024;
/// How often the policy's file is looked at.
pub const POLICY_PAUSE: Duration = Duration::from_secs(1);
/// Most bytes of a policy on its way from node to broker.
pub const POLICY_BYTES: u64 = 16 << 20;
/// Members of a node, those included whose lanes have not ended yet.
pub const MEMBERS: usize = 1024;
/// News of members that the broker has not taken in.
pub const NODE_NEWS: usize = 64;
/// How long a process waits for its container to be named by its pod's status.
pub const CONTAINER_NEWS_TIME: Duration = Duration::from_secs(10);
/// How long who still leases a buffer whose time is over is left alone after it was evicted or killed in vain; doubled each
/// time.
pub const OVERSTAY_PAUSE: Duration = Duration::from_secs(5);
/// The longest that it is.
pub const OVERSTAY_LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long the API server may take to answer for an eviction.
pub const EVICTION_TIME: Duration = Duration::from_secs(10);
/// Such processes and pods that the node has not been asked to see to yet; others are named again after that pause.
pub const OVERSTAYS: usize = 256;
/// How often it is looked who still leases such buffers, at most.
pub const OVERSTAYS_PAUSE: Duration = Duration::from_millis(250);
/// Most bytes that are read of a process's list of groups.
pub const CGROUP_BYTES: u64 = 64 << 10;
/// Most bytes that are read of a process's list of mounts.
pub const MOUNTS_BYTES: u64 = 4 << 20;
/// Lists of containers that were there when the runtime was connected to, which may wait to be looked at.
pub const FOUND_LISTS: usize = 4;
/// How long a volume waits for its pod to be told of, before the kubelet hears why it is not: less than the kubelet's service
/// waits for an answer.
pub const POD_NEWS_TIME: Duration = Duration::from_secs(20);
/// Volumes that wait for their pods to be told of; one more is answered at once.
pub const WAITING_VOLUMES: usize = 64;
/// Volumes whose slot cannot be made again after a restart, or whose mount cannot be taken down, that are tried again; more
/// are left for the daemon's next start.
pub const UNDONE_VOLUMES: usize = MEMBERS;
/// After how long; doubled each time.
pub const UNDONE_PAUSE: Duration = Duration::from_secs(5);
/// The longest that it is.
pub const UNDONE_LONGEST_PAUSE: Duration = Duration::from_secs(160);
/// How long after it was asked for last a volume still counts as waited for: the kubelet comes back within some two minutes.
pub const VOLUME_ASKED_AGAIN: Duration = Duration::from_secs(300);
/// The longest end of a pod that is told to holders of its buffers.
pub const LONGEST_END: Duration = Duration::from_secs(24 * 60 * 60);
/// Notices for owners of pods that have not been taken up; more are lost, and counted.
pub const EVENT_QUEUE: usize = 256;
/// Events that wait for the API server; with more, the newest of the namespace that has most are lost, and counted.
pub const EVENTS_WAITING: usize = 256;
/// Events about one pod at once.
pub const EVENT_BURST_OF_POD: u32 = 16;
/// How long a pod waits for each event more.
pub const EVENT_EACH_OF_POD: Duration = Duration::from_secs(30);
/// Events about all pods of a node at once.
pub const EVENT_BURST: u32 = 128;
/// How long the node waits for each event more.
pub const EVENT_EACH: Duration = Duration::from_millis(500);
/// How long an event that comes again is only counted before its count is written; doubled each time.
pub const EVENT_SERIES_PAUSE: Duration = Duration::from_secs(10);
/// The longest that it is only counted.
pub const EVENT_SERIES_LONGEST_PAUSE: Duration = Duration::from_secs(30 * 60);
/// Events of a pod in which what comes again is counted.
pub const EVENT_SERIES_OF_POD: usize = 64;
/// How long a pod must be quiet before it is forgotten what was told of it.
pub const EVENT_MEMORY: Duration = Duration::from_secs(600);
/// Pods of which it is remembered what was told of them.
pub const EVENT_PODS: usize = 2 * MEMBERS;
/// Most bytes of an event's text, by the API's rules.
pub const EVENT_NOTE_BYTES: usize = 1024;
/// Most bytes of an event's reason, by the API's rules.
pub const EVENT_REASON_BYTES: usize = 128;
/// Bytes of a pod's name in the names of its events.
pub const EVENT_POD_NAME_BYTES: usize = 200;
/// Events that are being written to the API server at a time, one of a namespace.
pub const EVENT_WRITES: usize = 4;
/// How long the events of a namespace wait after one could not be written; doubled each time.
pub const EVENT_PAUSE: Duration = Duration::from_millis(500);
/// The longest that it waits.
pub const EVENT_LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How often in a row an event may be forbidden before that is believed: an API server that has just started knows nobody's
/// rights yet.
pub const EVENT_TIMES_FORBIDDEN: u32 = 5;
/// How long the broker collects what pods are to be told, before it tells the node again.
pub const TELL_PAUSE: Duration = Duration::from_millis(500);
/// Things that the broker tells the node at a time; the others follow after the next pause.
pub const TELLS_AT_A_TIME: usize = 64;
/// Things that the node takes of that from the broker at once: two times what it tells at a time. More are left out.
pub const TELLS: u32 = 128;
/// How long until it takes one more: somewhat less than the broker needs for one.
pub const TELL_EACH: Duration = Duration::from_millis(7);
/// Words that the node reads of a broker at once, of whatever kind; more stay where they are until it may.
pub const BROKER_WORDS: u32 = 4_096;
/// How long until it reads one more.
pub const BROKER_WORD_EACH: Duration = Duration::from_micros(500);
/// Processes that the node starts for its brokers at once; more are refused.
pub const CHILDREN: u32 = 128;
/// How long until it starts one more.
pub const CHILD_EACH: Duration = Duration::from_millis(250);
/// Processes that the node kills, and pods that it evicts, at once because the broker names them; more are refused.
pub const OVERSTAY_DEEDS: u32 = 256;
/// How long until it does one more.
pub const OVERSTAY_EACH: Duration = Duration::from_millis(100);
/// How long kubelet and API server may take to say what a pod holds and where its group is.
pub const DEVICES_TIME: Duration = Duration::from_secs(3);
/// Pause between two looks at whether the kubelet would say what pods hold, for whoever asks how the node is.
pub const DEVICES_LOOKS: Duration = Duration::from_secs(60);
/// How long until they are asked again, where another answer may come: what a pod holds, while that is not known, and where its
/// group is, while its applications are held back for being alone. Doubled each time.
pub const DEVICES_PAUSE: Duration = Duration::from_secs(10);
/// The longest that it is.
pub const DEVICES_LONGEST_PAUSE: Duration = Duration::from_secs(160);
/// Pods of which that is asked at a time.
pub const DEVICES_ASKED: usize = 32;
/// Groups that share something beside buffers on one node.
pub const SHARING_GROUPS: usize = 1_024;
/// Things of one group that are remembered with who made them, files and System V's apart; more stay until the group ends.
pub const LEDGER_THINGS: usize = 65_536;
/// What is told of files that is taken in at a time of one group.
pub const LEDGER_EVENTS: usize = 4_096;
/// How long nothing more is taken in of a group of which there was more.
pub const LEDGER_PAUSE: Duration = Duration::from_millis(500);
/// How long nothing is taken in of a group in which more was made than could be told: its files have to be gone through.
/// Doubled each time, up to [`LOSS_LONGEST_PAUSE`].
pub const LOSS_PAUSE: Duration = Duration::from_secs(1);
/// The longest such time.
pub const LOSS_LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How many times that is taken in before a new member comes, who has made none of it.
pub const LEDGER_CATCH_UP: usize = 8;
/// Segments, queues and semaphore sets of one group that are looked at, of each kind.
pub const SYSV_THINGS: usize = 32_768;
/// How often it is looked which there are.
pub const SYSV_PAUSE: Duration = Duration::from_secs(1);
/// Semaphores of a set that are looked at for who uses them; a larger set stays until the group ends.
pub const SEMAPHORES_LOOKED_AT: u16 = 256;
/// How long after a member's end what it left is swept.
pub const SWEEP_TIME: Duration = Duration::from_secs(2);
/// After what time it is swept again where somebody held something, or it failed; doubled each time, up to
/// [`SWEEP_LONGEST_PAUSE`].
pub const SWEEP_PAUSE: Duration = Duration::from_secs(4);
/// The longest such time.
pub const SWEEP_LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Files and folders that a sweep looks at before others get their turn.
pub const SWEEP_FILES: usize = 4_096;
/// Folders within each other that it goes into.
pub const SWEEP_DEPTH: usize = 32;
/// Processes of a group's members that are looked at for what they hold; with more nothing is swept.
pub const HOLDERS: usize = 16_384;
/// Open files of one of them; with more nothing is swept.
pub const HOLDERS_FILES: usize = 65_536;
/// Bytes that are read of what one of them maps; with more nothing is swept.
pub const MAPS_BYTES: u64 = 64 << 20;
/// Bytes that are read of the mounts of one namespace: a file of one that was not read counts as held.
pub const MOUNTINFO_BYTES: u64 = 16 << 20;
/// Bytes that are read of what is said of an open file: what is looked for stands at the beginning.
pub const FDINFO_BYTES: usize = 256;
/// What the node may ask the thread at a time that looks after what groups share: that all members leave, and one thing more
/// for which it waits.
pub const GROUP_ASKS: usize = 2 * MEMBERS;
/// How long that thread waits at most before it looks around.
pub const GROUPS_LONGEST_WAIT: Duration = Duration::from_secs(60);
/// How often it is looked whether processes were started, and where, while members have process numbers of their own.
pub const PIDS_PAUSE: Duration = Duration::from_millis(250);
/// How long until it is looked how far a member has come with its numbers, and who has them, even where nothing was
/// started; for the numbers doubled each time while few are used up.
pub const PIDS_LOOK: Duration = Duration::from_secs(5);
/// The longest that it is.
pub const PIDS_LONGEST_LOOK: Duration = Duration::from_secs(40);
/// Of a range's numbers one in so many is few.
pub const PIDS_FEW: u32 = 64;
/// How long the process may take that reads and sets the last number of a namespace.
pub const PID_SEED_TIME: Duration = Duration::from_secs(1);
/// Such processes at a time.
pub const PID_SEEDS: usize = 4;
/// Most bytes of what one says.
pub const PID_SEED_BYTES: u64 = 256;
/// How long the processes of a pod are not let in because its numbers have not been set yet.
pub const PID_PATIENCE: Duration = Duration::from_secs(3);
/// PID namespaces of one pod whose numbers are set; where its containers share one, it is one.
pub const PID_NAMESPACES_OF_POD: usize = 64;
/// Processes of one pod whose numbers are watched; more are not, and it is said.
pub const PID_PROCESSES_OF_POD: usize = 16_384;
/// Descriptors of one process among which a GPU's is looked for.
pub const PID_DESCRIPTORS: usize = 4_096;
