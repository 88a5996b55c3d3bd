//! What is alive on this node, written down as it changes, so that a daemon that was killed loses nothing.
//!
//! The journal says what is *alive*; the *facts* of a buffer or lease are in its receipt, which its sidecar or process
//! keeps. Neither is of use without the other: a receipt of something that the journal does not hold alive revives
//! nothing, and what nobody shows a receipt of ends.
//!
//! Records of a fixed size are appended with one `write` for all that an input changed, before anybody is told of it.
//! Nothing is synced: the file is on a tmpfs and dies with the boot, as the buffers do; a killed process has written what
//! it has written. A torn tail, or one that this key has not sealed, is cut off. When the file has grown to
//! [`limits::JOURNAL_GROWTH`] times what is alive, it is written anew beside and put in its place.
//!
//! | concern | file |
//! |---|---|
//! | one record as bytes | [`record`] |
//! | what records add up to | [`alive`] |
//! | the folder, its key and its boot | [`state_dir`] |

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::time::Instant;

use gpu_handoff_protocol::LeaseId;
use tracing::{error, info, warn};

use crate::limits;

pub mod alive;
pub mod record;
pub mod state_dir;
#[cfg(test)]
mod tests;

pub use alive::{Alive, AliveBuffer, AliveLease};
pub use record::{Holder, RECORD_BYTES, Record, SinceBoot, Tag};
pub use state_dir::{NodeKey, StateDir};

use record::{Header, Seal};
use state_dir::{JOURNAL, NEXT_JOURNAL};

/// Bytes read or written at a time.
const CHUNK_BYTES: usize = 1024 * RECORD_BYTES;

/// The open journal.
#[derive(Debug)]
pub struct Journal {
    folder: StateDir,
    seal: Seal,
    life: u32,
    file: File,
    /// Records in the file, the header not counted.
    records: u64,
    /// Records in the file when it was last written anew.
    base: u64,
    /// Since when the file could not be written: it says nothing until it has been written anew.
    broken: Option<Instant>,
    bytes: Vec<u8>,
    news: Vec<News>,
}

/// What became of a journal, for the log.
#[derive(Debug)]
pub enum News {
    /// It cannot be written.
    Broken(io::Error),
    /// Nor can it be emptied.
    NotEmptied(io::Error),
    /// It can be written again.
    Again,
    /// It has so many records, and cannot be written anew.
    Grows(io::Error, u64),
}

impl News {
    /// Writes it to the log.
    pub fn log(&self) {
        match self {
            Self::Broken(e) => error!(
                error = %e, "the journal cannot be written: a restart of the daemon now would lose what is alive"
            ),
            Self::NotEmptied(e) => error!(error = %e, "the journal cannot be emptied either"),
            Self::Again => info!("the journal can be written again"),
            Self::Grows(e, records) => {
                warn!(error = %e, records, "the journal cannot be written anew, and grows");
            }
        }
    }
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal(secret)")
    }
}

/// What a daemon finds when it starts.
#[derive(Debug, Default)]
pub struct Found {
    /// What was alive.
    pub alive: Alive,
    /// How many daemons have served in this boot, this one included.
    pub life: u32,
    /// Leases that were alive, and whose processes are not.
    pub left: Vec<LeaseId>,
}

impl Found {
    /// Sets the leases apart whose processes have ended meanwhile: nobody will claim them, and nobody has to wait for that.
    #[must_use]
    pub fn without_those_that_have_ended(mut self, has_ended: impl Fn(Holder) -> bool) -> Self {
        let mut known = HashMap::new();
        let mut is_over =
            |process: Holder| process.pid != 0 && *known.entry(process).or_insert_with(|| has_ended(process));
        let over = self.alive.leases.extract_if(|_, alive| is_over(alive.process));
        self.left.extend(over.map(|(lease, _)| lease));
        self
    }
}

impl Journal {
    /// Reads the journal of the folder and begins a new one that says the same.
    ///
    /// # Errors
    /// When the new one cannot be written.
    pub fn open(folder: StateDir) -> io::Result<(Self, Found)> {
        let seal = Seal::new(folder.key().as_bytes());
        let mut found = replay(&folder, &seal)?;
        found.life = found.life.saturating_add(1);
        let mut journal = Self {
            file: folder.files().create(NEXT_JOURNAL)?,
            folder,
            seal,
            life: found.life,
            records: 0,
            base: 0,
            broken: None,
            bytes: Vec::new(),
            news: Vec::new(),
        };
        journal.rewrite(found.alive.records())?;
        let (buffers, leases) = (found.alive.buffers.len(), found.alive.leases.len());
        info!(life = found.life, buffers, leases, "the journal is open");
        Ok((journal, found))
    }

    /// Writes these down. When it cannot, it says so, and the journal says that nothing is alive until it can be written
    /// anew: what has ended must not come back.
    pub fn append(&mut self, records: &[Record]) {
        if self.broken.is_some() || records.is_empty() {
            return;
        }
        self.bytes.clear();
        for (place, record) in (self.records + 1..).zip(records) {
            self.bytes.extend_from_slice(&self.seal.record(*record, place));
        }
        match self.file.write_all(&self.bytes) {
            Ok(()) => self.records += records.len() as u64,
            Err(e) => self.give_up(e),
        }
    }

    /// Whether the file should be written anew: it has grown, or it could not be written a while ago.
    #[must_use]
    pub fn wants_rewrite(&self) -> bool {
        match self.broken {
            Some(since) => since.elapsed() >= limits::JOURNAL_PAUSE,
            None => self.records > (self.base * limits::JOURNAL_GROWTH).max(limits::JOURNAL_RECORDS),
        }
    }

    /// Writes the file anew, beside, and puts it into its place.
    ///
    /// # Errors
    /// When it cannot: the old one stays in use.
    pub fn rewrite(&mut self, records: impl Iterator<Item = Record>) -> io::Result<()> {
        self.broken = self.broken.map(|_| Instant::now());
        let mut file = self.folder.files().create(NEXT_JOURNAL)?;
        self.bytes.clear();
        let header = Header { boot: self.folder.boot(), life: self.life };
        self.bytes.extend_from_slice(&self.seal.header(header));
        let mut written = 0;
        for record in records {
            written += 1;
            self.bytes.extend_from_slice(&self.seal.record(record, written));
            if self.bytes.len() >= CHUNK_BYTES {
                file.write_all(&self.bytes)?;
                self.bytes.clear();
            }
        }
        file.write_all(&self.bytes)?;
        self.bytes = Vec::new();
        self.folder.files().rename(NEXT_JOURNAL, JOURNAL)?;
        if self.broken.is_some() {
            self.news.push(News::Again);
        }
        (self.file, self.records, self.base, self.broken) = (file, written, written, None);
        Ok(())
    }

    /// Writes the file anew when it is due. A failure is told, and tried again when the file has grown further.
    pub fn tend(&mut self, alive: impl Iterator<Item = Record>) {
        if let Err(e) = self.rewrite(alive) {
            self.news.push(News::Grows(e, self.records));
            self.base = self.records;
        }
    }

    /// Records in the file.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.records
    }

    /// Whether the file says that nothing is, or was, alive.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// What is to be written to the log of what became of it since this was asked last: not by the journal itself, which is
    /// written under the registry's lock.
    pub fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    fn give_up(&mut self, why: io::Error) {
        self.news.push(News::Broken(why));
        self.broken = Some(Instant::now());
        if let Err(e) = self.file.set_len(0) {
            // Then at least nobody finds it.
            self.news.push(News::NotEmptied(e));
            drop(self.folder.files().remove(JOURNAL));
        }
    }
}

/// What the journal of an earlier daemon says, up to the first record that is torn or not its own.
fn replay(folder: &StateDir, seal: &Seal) -> io::Result<Found> {
    let Some(mut file) = folder.files().open(JOURNAL)? else { return Ok(Found::default()) };
    let bytes = file.metadata()?.len();
    let mut found = Found::default();
    let mut good = 0;
    let mut chunk = vec![0; CHUNK_BYTES];
    'file: loop {
        let filled = fill(&mut file, &mut chunk)?;
        for raw in chunk[..filled].as_chunks().0 {
            if good == 0 {
                match seal.read_header(raw).filter(|h| h.boot == folder.boot()) {
                    Some(header) => found.life = header.life,
                    None => break 'file,
                }
            } else {
                let Some(record) = seal.read_record(raw, good, folder.boot()) else { break 'file };
                found.alive.take(record);
            }
            good += 1;
        }
        if filled < chunk.len() {
            break;
        }
    }
    let cut = bytes.saturating_sub(good * RECORD_BYTES as u64);
    if cut > 0 {
        warn!(bytes = cut, "the end of the journal is torn or foreign and is cut off");
    }
    Ok(found)
}

/// Reads until the chunk is full or the file is over.
fn fill(file: &mut File, chunk: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < chunk.len() {
        match file.read(&mut chunk[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}
