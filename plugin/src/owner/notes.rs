//! What is written to the log of what happened.

use tracing::{debug, info, warn};

use crate::journal::News;
use crate::registry::{MemberId, Note, SessionId};

/// What one input is worth telling. Collected under the registry's lock, written after it.
#[derive(Debug, Default)]
#[must_use = "notes are to be logged once everybody has been told"]
pub struct Notes {
    notes: Vec<(Note, Option<MemberId>)>,
    journal: Vec<News>,
}

impl Notes {
    pub(super) fn add(&mut self, note: Note, member: impl Fn(SessionId) -> Option<MemberId>) {
        let member = match &note {
            Note::Leased(_, _, session) => {
                // The only note of the fast path is written where somebody wants it alone.
                if !tracing::enabled!(tracing::Level::DEBUG) {
                    return;
                }
                member(*session)
            }
            _ => None,
        };
        self.notes.push((note, member));
    }

    /// Adds what became of the journal.
    pub(super) fn add_news(&mut self, mut news: Vec<News>) {
        self.journal.append(&mut news);
    }

    /// Adds what comes after.
    pub(super) fn append(&mut self, mut later: Self) {
        self.notes.append(&mut later.notes);
        self.journal.append(&mut later.journal);
    }

    /// Writes them to the log.
    pub fn log(self) {
        self.journal.iter().for_each(News::log);
        for (note, member) in self.notes {
            log(&note, member);
        }
    }
}

fn log(note: &Note, member: Option<MemberId>) {
    match note {
        Note::Published(b) => info!(
            buffer = %b.id, pod = %b.owner, name = %b.facts.name, generation = b.generation,
            kind = b.facts.kind.as_str(), bytes = b.facts.size, device = %b.facts.device, verified = b.verified,
            "buffer published"
        ),
        Note::Restored(b) => info!(
            buffer = %b.id, pod = %b.owner, name = %b.facts.name, generation = b.generation, "buffer restored"
        ),
        Note::Leased(lease, buffer, _) => {
            debug!(%buffer, %lease, member = member.map(|m| m.0), "lease given");
        }
        Note::Ending(buffer, reason, leases) => {
            info!(%buffer, reason = reason.as_str(), leases, "buffer takes no new leases");
        }
        Note::Orphaned(buffer, reason, leases) => {
            warn!(%buffer, reason = reason.as_str(), leases, "buffer ended, and leases are left");
        }
        Note::Gone(buffer, reason) => info!(%buffer, reason = reason.as_str(), "buffer gone"),
    }
}
