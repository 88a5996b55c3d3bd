//! The crate's limits, each named with its unit.

use std::time::Duration;

/// Bytes of a review: what the API server itself takes of a request.
pub const REVIEW_BYTES: usize = 3 << 20;
/// Values, and entries of maps, in a review. A pod has a few hundred; in memory each takes a hundred times its text.
pub const REVIEW_VALUES: usize = 65_536;
/// Bytes of all reviews that are being read and of their answers that have not gone. One more waits for room within its time.
pub const ROOM_BYTES: usize = 32 << 20;
/// Bytes of those of one address: a few addresses cannot take all of it.
pub const ROOM_BYTES_PER_ADDRESS: usize = 8 << 20;
/// How long a request may take, from its first byte to the last of its answer: the API server waits no longer.
pub const REQUEST_TIME: Duration = Duration::from_secs(5);
/// How long of that it may take to arrive: the rest is for saying that it took too long.
pub const READING_TIME: Duration = Duration::from_secs(4);
/// Bytes of an answer. One has a few thousand.
pub const ANSWER_BYTES: usize = 1 << 20;
/// Bytes of a user's text in an answer that is no review.
pub const SHOWN_BYTES: usize = 256;

/// Connections at a time. For one more, one of an address that has more gives way, or it is closed at once.
pub const CONNECTIONS: usize = 768;
/// Connections of one address at a time: a pod of the cluster cannot take all of them.
pub const CONNECTIONS_PER_ADDRESS: usize = 384;
/// How long a TLS handshake may take.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// How long a new connection may take to its first request.
pub const FIRST_REQUEST_TIME: Duration = Duration::from_secs(5);
/// How long a connection may be without a request after one: the API server gives up idle ones after 90 s.
pub const NEXT_REQUEST_TIME: Duration = Duration::from_secs(100);
/// Bytes of a request's line and headers.
pub const HEADER_BYTES: usize = 16 << 10;
/// Bytes of what is read of a connection at a time.
pub const BUFFER_BYTES: usize = 64 << 10;
/// How long nobody is accepted after that failed, mostly for want of descriptors.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often it is told, at most, that connections are turned away.
pub const CROWDED_TOLD: Duration = Duration::from_secs(10);
/// How long it goes on after it was told to stop, and says that it is not ready: so long others may take to hear of it.
pub const LEAVE_TIME: Duration = Duration::from_secs(5);
/// How long requests that are being answered may take to end after that.
pub const DRAIN_TIME: Duration = Duration::from_secs(6);

/// How often files are looked at: settings, and certificates that somebody else makes.
pub const FILE_LOOK: Duration = Duration::from_secs(2);
/// Bytes of the settings.
pub const SETTINGS_BYTES: u64 = 256 << 10;
/// Bytes of a file with certificates or a key.
pub const PEM_BYTES: u64 = 256 << 10;

/// How long an authority is good for.
pub const AUTHORITY_LIFE: Duration = days(3_650);
/// How long before its end the next one is made and trusted beside it.
pub const AUTHORITY_RENEWAL: Duration = days(365);
/// How long a new authority is only trusted: until everybody has heard of it, the one before it signs nothing, and it does not either.
pub const AUTHORITY_SETTLES: Duration = days(1);
/// Authorities that are trusted at a time.
pub const AUTHORITIES: usize = 4;
/// How long a serving certificate is good for.
pub const SERVING_LIFE: Duration = days(90);
/// How long before its end the next one is made.
pub const SERVING_RENEWAL: Duration = days(30);
/// How long before they are made certificates begin to be good: others' clocks differ.
pub const BACKDATED: Duration = Duration::from_secs(3_600);
/// How often it is looked whether certificates are to be renewed, though nothing was heard.
pub const RENEWAL_LOOK: Duration = Duration::from_secs(3_600);
/// How often the Secret is read anew because somebody else wrote it meanwhile, before a pause.
pub const SECRET_TRIES: usize = 5;

/// How long it may take to have certificates from the API server, or to tell it which to trust.
pub const API_TIME: Duration = Duration::from_secs(10);
const fn days(days: u64) -> Duration {
    Duration::from_secs(days * 24 * 3_600)
}

// A serving certificate must not outlive the authority that signed it, nor be due before a new authority has settled.
const _: () = {
    assert!(SERVING_LIFE.as_secs() + SERVING_RENEWAL.as_secs() < AUTHORITY_RENEWAL.as_secs());
    assert!(AUTHORITY_SETTLES.as_secs() < SERVING_RENEWAL.as_secs());
    assert!(ROOM_BYTES_PER_ADDRESS >= REVIEW_BYTES && ROOM_BYTES > ROOM_BYTES_PER_ADDRESS);
    assert!(ROOM_BYTES_PER_ADDRESS >= ANSWER_BYTES);
    assert!(READING_TIME.as_secs() < REQUEST_TIME.as_secs() && REQUEST_TIME.as_secs() < DRAIN_TIME.as_secs());
};
