//! What a sidecar can make of the broker.
#![no_main]

use gpu_handoff_protocol::codec::{decode_sidecar, encode_sidecar};
use gpu_handoff_protocol_fuzz::decode_and_check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    decode_and_check(input, decode_sidecar, |message| vec![encode_sidecar(message)]);
});
