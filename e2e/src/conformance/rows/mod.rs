//! The rows, a file per subject.

mod attributes;
mod broker;
mod contexts;
mod events;
mod handles;
mod life;
mod matrix;
mod misuse;
mod peers;
mod protection;
mod selftest;
mod timeline;
mod times;
mod waits;

use super::Row;

/// Every row, in the order in which they run.
pub(super) fn all() -> Vec<Row> {
    [
        matrix::rows(),
        handles::rows(),
        protection::rows(),
        events::rows(),
        life::rows(),
        broker::rows(),
        attributes::rows(),
        contexts::rows(),
        misuse::rows(),
        timeline::rows(),
        waits::rows(),
        peers::rows(),
        selftest::rows(),
        times::rows(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// As the suite itself.
fn here() -> super::place::Place {
    super::place::Place::here()
}
