//! What an application can make of the broker's first reader.
#![no_main]

use gpu_handoff_protocol::codec::{decode_client, encode_client};
use gpu_handoff_protocol_fuzz::decode_and_check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    decode_and_check(input, decode_client, |message| vec![encode_client(&message)]);
});
