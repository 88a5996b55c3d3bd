//! Copies and memsets: ranges are checked when the call is made, bytes move when the stream comes to it.

use crate::address_space::{AddressSpace, Want};
use crate::driver::Driver;
use crate::error::{CuResult, Result};
use crate::measured;
use crate::physical::Span;
use crate::stream::Job;

/// Longest piece that a memset copies at once: the source should stay in the processor's cache.
const WORDS_AT_ONCE: usize = 64 << 10;

/// One end of a copy, as the caller names it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Host(usize),
    Device(u64),
}

impl Place {
    /// An address of unified addressing: device memory if it can be nothing else.
    pub(crate) fn unified(address: usize) -> Self {
        match u64::try_from(address) {
            Ok(address) if AddressSpace::is_device(address) => Self::Device(address),
            _ => Self::Host(address),
        }
    }
}

/// One end of a copy, checked; owns what it touches on the device.
enum End {
    Host(HostRange),
    Device(Vec<Span>),
}

/// Memory of the program, which it promised to keep until the copy is done.
struct HostRange {
    start: *mut u8,
}

// SAFETY: the range is only touched by the job that owns it; that it stays valid on any thread until then is the contract of
// the asynchronous copies, which the program has to keep with the real driver too.
unsafe impl Send for HostRange {}

/// The value of a memset and how often it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fill {
    Bytes(u8),
    Words(u32),
}

impl Driver {
    /// The job of a copy, or `None` if there is nothing to copy.
    pub(crate) fn copy_job(&self, gpu: usize, to: Place, from: Place, bytes: u64) -> Result<Option<Job>> {
        if bytes == 0 {
            return Ok(None);
        }
        let (to, from) = (self.end(gpu, to, bytes, Want::Write)?, self.end(gpu, from, bytes, Want::Read)?);
        let length = usize::try_from(bytes).map_err(|_| CuResult::ERROR_INVALID_VALUE)?;
        Ok(Some(Box::new(move || move_bytes(&to, &from, length))))
    }

    fn end(&self, gpu: usize, place: Place, bytes: u64, want: Want) -> Result<End> {
        match place {
            Place::Host(0) => Err(CuResult::ERROR_INVALID_VALUE),
            Place::Host(address) => {
                Ok(End::Host(HostRange { start: std::ptr::with_exposed_provenance_mut(address) }))
            }
            Place::Device(address) => self.state().space.resolve(address, bytes, gpu, want).map(End::Device),
        }
    }

    /// The job of a memset of `count` elements.
    pub(crate) fn fill_job(&self, gpu: usize, to: u64, fill: Fill, count: u64) -> Result<Option<Job>> {
        let element = match fill {
            Fill::Bytes(_) => 1,
            Fill::Words(_) => 4,
        };
        if count == 0 {
            return Ok(None);
        }
        let bytes = count.checked_mul(element).ok_or(measured::COPY_OUT_OF_RANGE)?;
        if !to.is_multiple_of(element) {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        let spans = self.state().space.resolve(to, bytes, gpu, Want::Write)?;
        Ok(Some(Box::new(move || spans.iter().try_for_each(|span| fill_span(span, fill)))))
    }
}

fn fill_span(span: &Span, fill: Fill) -> Result<()> {
    span.back()?;
    let start = span.pointer();
    match fill {
        // SAFETY: the span's bytes are mapped writable and stay so while `span` lives; they are device memory, which
        // nothing in this process borrows.
        Fill::Bytes(value) => unsafe { start.write_bytes(value, span.bytes()) },
        // SAFETY: as above; the span begins at a multiple of 4 and holds whole words.
        Fill::Words(value) => unsafe { fill_words(start.cast(), span.bytes() / 4, value) },
    }
    Ok(())
}

/// Writes a first run of words one by one, then copies what stands already, doubling it.
///
/// # Safety
///
/// `start` must be aligned and valid for writes of `count` words that nothing borrows.
unsafe fn fill_words(start: *mut u32, count: usize, value: u32) {
    let mut done = count.min(1024);
    for index in 0..done {
        // SAFETY: `index` is below `count`.
        unsafe { start.add(index).write(value) };
    }
    while done < count {
        let length = done.min(count - done).min(WORDS_AT_ONCE);
        // SAFETY: the source lies in the words already written, the target begins behind it and ends at `count`.
        unsafe { std::ptr::copy_nonoverlapping(start, start.add(done), length) };
        done += length;
    }
}

fn move_bytes(to: &End, from: &End, bytes: usize) -> Result<()> {
    let (to, from) = (pieces(to, bytes)?, pieces(from, bytes)?);
    let (mut to_at, mut from_at) = ((0, 0), (0, 0));
    let mut left = bytes;
    while left > 0 {
        let (Some(target), Some(source)) = (to.get(to_at.0), from.get(from_at.0)) else {
            return Err(CuResult::ERROR_UNKNOWN);
        };
        let length = left.min(target.1 - to_at.1).min(source.1 - from_at.1);
        // SAFETY: both pieces are valid for their lengths (device spans are mapped, host ranges are the caller's
        // promise) and the offsets stay inside; `copy` allows the two to overlap.
        unsafe { std::ptr::copy(source.0.add(from_at.1), target.0.add(to_at.1), length) };
        left -= length;
        advance(&mut to_at, length, target.1);
        advance(&mut from_at, length, source.1);
    }
    Ok(())
}

/// Moves a position, given as piece and offset in it, within pieces of which the current one is `piece` long.
fn advance(at: &mut (usize, usize), by: usize, piece: usize) {
    at.1 += by;
    if at.1 == piece {
        *at = (at.0 + 1, 0);
    }
}

/// The host addresses and lengths that make up one end.
fn pieces(end: &End, bytes: usize) -> Result<Vec<(*mut u8, usize)>> {
    match end {
        End::Host(range) => Ok(vec![(range.start, bytes)]),
        End::Device(spans) => spans
            .iter()
            .map(|span| {
                span.back()?;
                Ok((span.pointer(), span.bytes()))
            })
            .collect(),
    }
}
