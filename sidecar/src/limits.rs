//! The sidecar's limits, each named with its unit.

use std::time::Duration;

/// Connections that are held while the daemon is away; one more is refused. As many may be with the daemon, handed on
/// and not yet answered for; those after them are held.
pub const HELD_CONNECTIONS: usize = 64;
/// How long a connection is held before it is refused, counted once, from when it was accepted.
pub const HOLD_TIME: Duration = Duration::from_secs(10);
/// How long nobody is accepted after it failed, mostly for want of descriptors.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long the daemon may take to answer a hello, or to take and answer a connection handed on, which is then refused.
pub const ANSWER_TIME: Duration = Duration::from_secs(5);
/// First pause between two tries to reach the daemon; it doubles with each.
pub const RETRY_FIRST: Duration = Duration::from_millis(20);
/// Longest pause between two tries to reach the daemon.
pub const RETRY_LONGEST: Duration = Duration::from_secs(1);
/// How long a sidecar whose slot was taken over by another one stays away before it tries to serve it again; it doubles each
/// time, so that two do not fight.
pub const DISPLACED_FIRST: Duration = Duration::from_secs(1);
/// The longest that it stays away.
pub const DISPLACED_LONGEST: Duration = Duration::from_secs(60);
/// How long the readiness check may take in all.
pub const READY_TIME: Duration = Duration::from_secs(3);

/// Buffers of the pod that are kept for the daemon; as many as a member may publish. One more is not kept.
pub const KEPT_ITEMS: usize = 16 * 1024;
/// Receipts of those, packed, in bytes; mostly they take about 100 each, with long metadata up to 4,096.
pub const KEPT_BYTES: usize = 4 << 20;
/// Descriptors that are left to the door itself: connections held and handed on, those of one packet, and what a
/// process has anyway.
pub const OWN_DESCRIPTORS: usize = 256;
/// Packets of what is kept that the daemon has not answered, when a new daemon is told. Their descriptors are in
/// flight, which the kernel counts for all processes of a user.
pub const OFFERS_UNANSWERED: usize = 4;
/// How long the daemon may take to answer an offer: in the worst case it checks one buffer after the other, 2 s each.
pub const OFFER_TIME: Duration = Duration::from_secs(130);
/// How long the daemon's refusals of offers that pass by themselves are taken as such, from the first one: as long as it
/// waits for a process after the last offer.
pub const OFFER_AGAIN_TIME: Duration = Duration::from_secs(5);
/// After what time what was refused so is offered again.
pub const OFFER_PAUSE: Duration = Duration::from_millis(250);
/// How often something is offered that the daemon's GPU worker failed to check.
pub const OFFER_TRIES: u32 = 2;
