//! What a broker can make of a client library, and of a sidecar: both kinds of answer.
#![no_main]

use gpu_handoff_protocol::codec::{decode_broker, decode_slot, encode_broker, encode_slot};
use gpu_handoff_protocol_fuzz::decode_and_check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    decode_and_check(input, |frame| decode_broker(frame).map(|(message, _)| message), |m| encode_broker(&m));
    decode_and_check(input, decode_slot, |message| vec![encode_slot(&message)]);
});
