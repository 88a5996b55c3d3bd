//! What a broker can make of a client library, and of a sidecar: both kinds of answer.
#![no_main]

use gpu_handoff_protocol::codec::{decode_broker, decode_slot, encode_broker, encode_slot};
use gpu_handoff_protocol_fuzz::decode_and_check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    // A part of a longer answer need not be an answer of its own: it is not read again.
    decode_and_check(
        input,
        decode_broker,
        |(message, more)| {
            if more { Vec::new() } else { encode_broker(&message) }
        },
    );
    decode_and_check(
        input,
        decode_slot,
        |(message, more)| {
            if more { Vec::new() } else { encode_slot(&message) }
        },
    );
});
