//! What somebody can make of a receipt: of the whole, whose MAC is not looked at before it is taken apart, and of what
//! was signed, should a key ever leak.
#![no_main]

use gpu_handoff_protocol::codec::{decode_receipt_body, encode_receipt_body, open_receipt, seal_receipt};
use gpu_handoff_protocol::{Code, Receipt};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Ok(receipt) = Receipt::new(input) {
        match open_receipt(&receipt) {
            Ok((body, mac)) => {
                let again = seal_receipt(body.clone(), &mac).expect("not longer than it was");
                assert_eq!(open_receipt(&again).expect("a receipt"), (body, mac));
            }
            Err(refusal) => assert_eq!(refusal.code(), Code::ReceiptInvalid),
        }
    }
    match decode_receipt_body(input) {
        Ok(body) => {
            let bytes = encode_receipt_body(&body);
            let again = decode_receipt_body(&bytes).expect("what was accepted is accepted again");
            assert_eq!(encode_receipt_body(&again), bytes);
        }
        Err(refusal) => assert_eq!(refusal.code(), Code::ReceiptInvalid),
    }
});
