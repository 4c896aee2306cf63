//! Which wanted state it is: what the API calls an entity tag (RFC 9110, 8.8.3).

use api::v1::WantedState;

/// FNV-1a's numbers for 64 bits (draft-eastlake-fnv).
const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// Sixteen hexadecimal digits that are others when something else is wanted. They depend on nothing but what is wanted: they
/// outlive control and Lasthop. Nobody who might want two states with the same digits can choose one.
#[must_use]
pub fn version(state: &WantedState) -> String {
    // It has no maps with keys other than text, and nothing else that could fail.
    let bytes = serde_json::to_vec(state).unwrap_or_default();
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
    format!("{:016x}", bytes.iter().fold(BASIS, step))
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
