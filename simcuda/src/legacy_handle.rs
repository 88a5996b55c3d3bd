//! The 64 bytes of a legacy memory handle, laid out as measured (sharing 1).
//!
//! | bytes | content |
//! |---|---|
//! | 8-11 | the exporter's `getpid()` in its own PID namespace |
//! | 16-19 | low half of the size in bytes; the driver opens a handle with another number here |
//! | 20-23 | high half of it (whether the driver has it here was not measured) |
//! | 24-27 | the size in pages of 4,096 bytes, rounded up |
//! | 28-31 | offset inside the block |
//! | 32-39 | the same in every handle (what the driver has here is unknown) |
//! | 40-43 | a counter over the exporter's allocations; the driver opens a handle with another number here |
//! | 44-45 | GPU (where the driver keeps this is unknown) |
//! | 48-51, 52-55 | client and object number |
//! | 56-63 | 0 |
//!
//! The other bytes are 0. Of the 64 bytes 28 may be changed one at a time without the real driver's noticing; the simulator does not
//! look at as many: 0-7, the PID as long as it is not the importer's, 16-19, 40-43 and 56-63.

use crate::abi::IpcHandle;
use crate::header::{u32_at, u64_at};

const PAGE: u64 = 4096;
const TAG: &[u8; 8] = b"simcuda1";

/// What a handle says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LegacyHandle {
    pub(crate) pid: u32,
    pub(crate) bytes: u64,
    pub(crate) pages: u32,
    pub(crate) offset: u32,
    pub(crate) generation: u32,
    pub(crate) gpu: u16,
    pub(crate) client: u32,
    pub(crate) object: u32,
}

impl LegacyHandle {
    pub(crate) fn encode(&self) -> IpcHandle {
        let mut bytes = [0; 64];
        let mut put = |at: usize, value: &[u8]| {
            for (to, from) in bytes.iter_mut().skip(at).zip(value) {
                *to = *from;
            }
        };
        put(8, &self.pid.to_le_bytes());
        put(16, &self.bytes.to_le_bytes());
        put(24, &self.pages.to_le_bytes());
        put(28, &self.offset.to_le_bytes());
        put(32, TAG);
        put(40, &self.generation.to_le_bytes());
        put(44, &self.gpu.to_le_bytes());
        put(48, &self.client.to_le_bytes());
        put(52, &self.object.to_le_bytes());
        IpcHandle { bytes }
    }

    /// `None` for what no exporter ever wrote.
    pub(crate) fn decode(handle: &IpcHandle) -> Option<Self> {
        let raw = &handle.bytes;
        let decoded = Self {
            pid: Self::pid(handle),
            bytes: u64_at(raw, 16)?,
            pages: u32_at(raw, 24)?,
            offset: u32_at(raw, 28)?,
            generation: u32_at(raw, 40)?,
            gpu: u16::from_le_bytes([raw[44], raw[45]]),
            client: u32_at(raw, 48)?,
            object: u32_at(raw, 52)?,
        };
        let whole = raw[12..16] == [0; 4] && raw[32..40] == *TAG && raw[46..48] == [0; 2];
        whole.then_some(decoded)
    }

    /// The PID word alone, which the driver looks at before anything else.
    pub(crate) fn pid(handle: &IpcHandle) -> u32 {
        u32_at(&handle.bytes, 8).unwrap_or(0)
    }
}

/// A size in pages, rounded up.
pub(crate) fn pages(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(PAGE)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::{LegacyHandle, pages};

    const HANDLE: LegacyHandle = LegacyHandle {
        pid: 7,
        bytes: 10_000,
        pages: 3,
        offset: 512,
        generation: 3,
        gpu: 1,
        client: 0xc1d0_0001,
        object: 9,
    };

    #[test]
    fn words_stand_where_they_were_measured() {
        let raw = HANDLE.encode().bytes;
        assert_eq!(raw[8..12], 7_u32.to_le_bytes());
        assert_eq!(raw[16..24], 10_000_u64.to_le_bytes());
        assert_eq!(raw[24..28], 3_u32.to_le_bytes());
        assert_eq!(raw[28..32], 512_u32.to_le_bytes());
        assert_eq!(raw[48..52], 0xc1d0_0001_u32.to_le_bytes());
        assert_eq!(raw[52..56], 9_u32.to_le_bytes());
        assert_eq!(raw[56..64], [0; 8]);
    }

    #[test]
    fn decoding_gives_back_what_was_encoded() {
        assert_eq!(LegacyHandle::decode(&HANDLE.encode()), Some(HANDLE));
    }

    #[test]
    fn noise_is_no_handle_and_pages_are_rounded_up() {
        let mut handle = HANDLE.encode();
        handle.bytes[33] ^= 1;
        assert_eq!(LegacyHandle::decode(&handle), None);
        assert_eq!([pages(1), pages(4096), pages(4097)], [1, 1, 2]);
    }
}
