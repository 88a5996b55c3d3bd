//! What the registry has answered since it started.

use gpu_handoff_protocol::Refusal;
use gpu_handoff_protocol::message::BrokerBody;

/// Outcomes that were told to applications, counted item by item. Never falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Buffers published.
    pub published: u64,
    /// Leases given.
    pub granted: u64,
    /// Leases given back.
    pub released: u64,
    /// Items and requests refused.
    pub refused: u64,
}

impl Counters {
    /// Counts what is about to be said.
    pub(super) fn count(&mut self, body: &BrokerBody) {
        let refused = match body {
            BrokerBody::Published(outcomes) => tally(outcomes, &mut self.published),
            BrokerBody::Acquired(outcomes) => tally(outcomes, &mut self.granted),
            BrokerBody::AcquiredSet { grants, .. } => {
                self.granted += grants.len() as u64;
                0
            }
            BrokerBody::Released(outcomes) => tally(outcomes, &mut self.released),
            BrokerBody::Retired(Err(_)) | BrokerBody::Refused(_) => 1,
            _ => 0,
        };
        self.refused += refused;
    }
}

/// Adds the good outcomes to their counter, and gives back how many were refused.
fn tally<T>(outcomes: &[Result<T, Refusal>], good: &mut u64) -> u64 {
    let refused = outcomes.iter().filter(|outcome| outcome.is_err()).count() as u64;
    *good += outcomes.len() as u64 - refused;
    refused
}
