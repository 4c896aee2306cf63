//! Which wanted state it is: what the API calls an entity tag (RFC 9110, 8.8.3).

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use api::v1::{AccessModel, Shared, WantedState};
use serde::Serialize;

/// FNV-1a's numbers for 64 bits (draft-eastlake-fnv).
const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;
/// What the place of an element means for the hash of a list: an odd number with bits all over.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

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
            (*last, *of_last) = (Arc::downgrade(access), of_lists(access));
        }
        *of_last
    })
}

fn of_lists(access: &AccessModel) -> u64 {
    let AccessModel {
        address_sets,
        groups,
        defaults,
        lists,
    } = access;
    let all = hash(&(groups, defaults), of_shared(address_sets, BASIS));
    lists.iter().fold(all, |all, list| {
        of_shared(&list.rules, hash(&list.without_rules(), all))
    })
}

/// A polynomial of the hashes of its elements: that of two lists, one behind the other, is known from theirs, so that it does not
/// matter where pieces end; and a piece that is the same as before need not be read.
fn of_shared<T: Serialize>(list: &Shared<T>, basis: u64) -> u64 {
    let of_piece = |elements: &[T]| {
        let step = |all: u64, one| all.wrapping_mul(FACTOR).wrapping_add(hash(one, BASIS));
        elements.iter().fold(0, step)
    };
    let pieces = list.pieces().iter();
    let all = pieces.fold(0u64, |all, piece| {
        let shift = FACTOR.wrapping_pow(piece.elements().len() as u32);
        all.wrapping_mul(shift).wrapping_add(piece.digest(of_piece))
    });
    hash(&(list.len(), all), basis)
}

fn hash(document: &impl Serialize, basis: u64) -> u64 {
    // They have no maps with keys other than text, and nothing else that could fail.
    let bytes = serde_json::to_vec(document).unwrap_or_default();
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
    bytes.iter().fold(basis, step)
}

#[cfg(test)]
mod tests {
    use api::v1::{AddressSet, RuleSpec};
    use proptest::prelude::*;

    use super::*;

    fn rule(number: u16, priority: u32) -> RuleSpec {
        RuleSpec {
            name: format!("r{number}"),
            priority,
            ..RuleSpec::default()
        }
    }

    fn with_rules(rules: Shared<RuleSpec>, sets: usize) -> WantedState {
        let list = r#"{"name": "l", "direction": "to-guest"}"#;
        let mut list: api::v1::AccessListSpec = serde_json::from_str(list).unwrap();
        list.rules = rules;
        let set = |n: usize| AddressSet {
            name: n.to_string(),
            addresses: Vec::new(),
        };
        let access = AccessModel {
            lists: vec![list],
            address_sets: (0..sets).map(set).collect(),
            ..AccessModel::default()
        };
        WantedState {
            access: Arc::new(access),
            ..WantedState::default()
        }
    }

    proptest! {
        /// Whichever way there was to a state: by changes one by one, in other pieces, or read from JSON.
        #[test]
        fn the_same_state_is_the_same_version(
            first in 0..300u16,
            changes in prop::collection::vec((0..400u16, prop::option::of(0..3u32)), 0..20),
        ) {
            let mut rules: Shared<_> = (0..first).map(|number| rule(number, 0)).collect();
            for (number, priority) in changes {
                let before = rules.clone();
                match priority {
                    Some(priority) => rules.put(rule(number, priority)),
                    None => drop(rules.remove(&format!("r{number}"))),
                }
                let versions = [&before, &rules].map(|rules| version(&with_rules(rules.clone(), 0)));
                prop_assert_eq!(versions[0] == versions[1], before == rules);
                let whole: Shared<_> = rules.iter().cloned().collect();
                prop_assert_eq!(&version(&with_rules(whole, 0)), &versions[1]);
                let json = serde_json::to_vec(&with_rules(rules.clone(), 0)).unwrap();
                let read: WantedState = serde_json::from_slice(&json).unwrap();
                prop_assert_eq!(&version(&read), &versions[1]);
                prop_assert_ne!(version(&with_rules(rules.clone(), 1)), &versions[1][..]);
            }
        }
    }

    #[test]
    fn the_order_of_rules_is_part_of_it() {
        let rules =
            |numbers: [u16; 3]| -> Shared<_> { numbers.map(|n| rule(n, 0)).into_iter().collect() };
        let versions = [[1, 2, 3], [2, 1, 3], [1, 3, 2]].map(|n| version(&with_rules(rules(n), 0)));
        assert!(versions[0] != versions[1] && versions[1] != versions[2]);
    }

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
