//! Every limit of the client, named with its unit.

use std::time::Duration;

/// How long connecting may take, hello and welcome included. A sidecar holds connections while its node daemon
/// restarts, so this is generous.
pub const CONNECT: Duration = Duration::from_secs(30);
/// How long the node may take to answer a request, beyond the time that the request itself asks it to wait.
pub const ANSWER: Duration = Duration::from_secs(30);
/// How much longer than [`ANSWER`] the node may take for each buffer in a packet of publications: in the worst case it
/// checks one after the other, and each takes as long as it lets a check take.
pub const PUBLISH_ITEM: Duration = Duration::from_secs(2);
/// How long a full connection may take to have room for one more request.
pub const SEND: Duration = Duration::from_secs(10);
/// How long another broker is looked for when the connection to one is lost, unless the caller says otherwise.
pub const RECONNECT: Duration = Duration::from_secs(30);
/// First pause between two tries to reach another broker; it doubles with each.
pub const RETRY_FIRST: Duration = Duration::from_millis(10);
/// Longest pause between two tries to reach another broker.
pub const RETRY_LONGEST: Duration = Duration::from_secs(1);
/// How long another broker is asked again for what it refused to restore for reasons that pass: as long as it waits for
/// what its predecessor had.
pub const REATTACH: Duration = Duration::from_secs(5);
/// How often something is claimed of another broker whose GPU worker fails over it. Few: if it is that memory that breaks
/// the workers, the broker suspends the pod.
pub const CLAIM_TRIES: u32 = 2;
/// Pause before the second of those, and after each that a worker failed over: until there is another worker.
pub const CLAIM_PAUSE: Duration = Duration::from_millis(250);
/// Pause before a packet is tried again that the kernel did not take though there was room for it: nothing tells when
/// fewer descriptors are in flight.
pub const SEND_PAUSE: Duration = Duration::from_millis(20);
/// Packets of one call that are asked for before the first of them is answered. With 64 buffers in each, that is half of
/// the descriptors that a node lets be under way to a pod.
pub const PACKETS_AHEAD: usize = 8;
/// Buffers of a set that are being retired at a time.
pub const RETIRES_AHEAD: usize = 64;
/// How often publishing a set is begun, when each time another broker breaks it.
pub const SET_TRIES: u32 = 3;
/// How long nobody may have called before the background thread listens for notices again.
pub const QUIET: Duration = Duration::from_millis(2);
/// How long an iterator over a watch waits before it looks again. Not seen from outside.
pub const WATCH_ROUND: Duration = Duration::from_secs(60 * 60);
/// The longest time that a caller can set; more counts as this, about a hundred years.
pub const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Words of a timeline that this library makes, at most: 1 MiB.
pub const TIMELINE_WORDS: u32 = 128 * 1024;
/// How many leases an ordered buffer can have at a time, if its publisher does not say.
pub const SEATS: u32 = 4;
/// How long a thread that waits for a word looks at it without a pause.
pub const WORD_SPIN: Duration = Duration::from_micros(500);
/// The pause between looks at a word after that.
pub const WORD_PAUSE: Duration = Duration::from_micros(200);
/// How long after the one before a poisoned word is looked at again: the dead may have written it last.
pub const POISON_LOOKS: [Duration; 4] =
    [Duration::from_millis(1), Duration::from_millis(10), Duration::from_millis(100), Duration::from_secs(1)];
/// How long a poisoned word is kept for nothing else: longer than all [`POISON_LOOKS`] together.
pub const POISON_REST: Duration = Duration::from_millis(1_500);
/// How long the words of a buffer that is gone are left alone before it is looked again whether its readiness was
/// written.
pub const WORDS_PAUSE: Duration = Duration::from_millis(100);
/// How long after one look whether streams still wait for a timeline that nobody has a handle of the next one comes.
pub const WAITS_PAUSE: Duration = Duration::from_millis(10);
/// What there may be to do to words at a time because of news. With more, the timeline that it is about counts as lost.
pub const WORD_TASKS: usize = 128 * 1024;
/// Leases that are given back on streams and that these have not come to, or whose memory is still to be let go of. One
/// more is refused.
pub const LEASES_ON_STREAMS: usize = 64 * 1024;

/// What the slots of a ring begin at a multiple of, in bytes.
pub const SLOT_ALIGNMENT: u64 = 512;

/// Events that a watch may leave unread. One more ends it with `WATCH_OVERFLOW`.
pub const WATCH_EVENTS: usize = 8 * 1024;
/// Imports that stay mapped though nobody leases them.
pub const CACHED_MAPPINGS: usize = 1024;
/// Memory that may stay mapped though nobody leases it, in bytes. The addresses cost nothing; a mapping keeps its
/// buffer's memory alive only until the node says that the buffer ends.
pub const CACHED_BYTES: u64 = 512 << 30;
/// How long a thread that was told that what it waits for is about to come polls for it instead of sleeping: about as long
/// as that takes.
pub const AWAKE: Duration = Duration::from_micros(1000);
/// With fewer processors than this it sleeps: it would be in the way of those that it waits for.
pub const AWAKE_PROCESSORS: usize = 8;
