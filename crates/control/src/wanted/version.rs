//! Which wanted state it is: what the API calls an entity tag (RFC 9110, 8.8.3).

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use api::v1::{AccessModel, WantedState};
use serde::Serialize;

/// FNV-1a's numbers for 64 bits (draft-eastlake-fnv).
const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// Sixteen hexadecimal digits that are others when something else is wanted. They depend on nothing but what is wanted: they
/// outlive control and Lasthop. Nobody who might want two states with the same digits can choose one.
#[must_use]
pub fn version(state: &WantedState) -> String {
    let rest = WantedState {
        access: Arc::default(),
        ..state.clone()
    };
    format!("{:016x}", hash(&rest, of_access(&state.access)))
}

thread_local! {
    /// Of the access lists that were asked about last: they may be long, and are seldom others.
    static LAST: RefCell<(Weak<AccessModel>, u64)> = const { RefCell::new((Weak::new(), 0)) };
}

fn of_access(access: &Arc<AccessModel>) -> u64 {
    LAST.with_borrow_mut(|(last, of_last)| {
        if !last
            .upgrade()
            .is_some_and(|last| Arc::ptr_eq(&last, access))
        {
            (*last, *of_last) = (Arc::downgrade(access), hash(&**access, BASIS));
        }
        *of_last
    })
}

fn hash(document: &impl Serialize, basis: u64) -> u64 {
    // They have no maps with keys other than text, and nothing else that could fail.
    let bytes = serde_json::to_vec(document).unwrap_or_default();
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
    bytes.iter().fold(basis, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_state_is_another_version() {
        let mut state = WantedState::default();
        let first = version(&state);
        assert_eq!(first, version(&WantedState::default()));
        state.switch.name = "other".to_owned();
        assert_ne!(first, version(&state));
        assert!(first.len() == 16 && first.bytes().all(|b| b.is_ascii_hexdigit()));
    }
}
