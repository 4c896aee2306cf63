//! Messages between Lasthop's processes, from arbitrary bytes: decoding ends, and a decoded message
//! is encoded in a way that is decoded to the same.

use ipc::records::{self, Answer, Upcall};
use ipc::supervision::{
    ControlRequest, DriverRequest, EventToControl, EventToDriver, EventToSwitch, SwitchRequest,
};
use ipc::switching::{Request, SwitchEvent};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// One byte chooses the message's type.
pub fn run(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else {
        return;
    };
    match which % 10 {
        0 => drop(again::<Request>(bytes)),
        1 => drop(again::<SwitchEvent>(bytes)),
        2 => {
            let Some(upcall) = again::<Upcall>(bytes) else {
                return;
            };
            assert_eq!(upcall.flow_key().words(), &upcall.key);
        }
        3 => {
            if let Some(Answer::Install { key, mask, .. }) = again::<Answer>(bytes) {
                let (flow, mask) = (
                    records::key_from_words(&key),
                    records::mask_from_words(&mask),
                );
                let masked = flow.masked(&mask);
                assert_eq!(masked.masked(&mask), masked);
            }
        }
        4 => drop(again::<ControlRequest>(bytes)),
        5 => drop(again::<EventToControl>(bytes)),
        6 => drop(again::<SwitchRequest>(bytes)),
        7 => drop(again::<EventToSwitch>(bytes)),
        8 => drop(again::<DriverRequest>(bytes)),
        _ => drop(again::<EventToDriver>(bytes)),
    }
}

/// Decodes, encodes and decodes again.
fn again<T: Serialize + DeserializeOwned + PartialEq>(bytes: &[u8]) -> Option<T> {
    let first: T = postcard::from_bytes(bytes).ok()?;
    let encoded = postcard::to_allocvec(&first).expect("what was decoded can be encoded");
    assert!(
        encoded.len() <= bytes.len(),
        "nothing is made of bytes that are not there"
    );
    let second: T = postcard::from_bytes(&encoded).expect("our own bytes");
    assert!(first == second, "another meaning");
    Some(first)
}
