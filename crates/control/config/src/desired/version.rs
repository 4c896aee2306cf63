//! The version of a desired state: the API's entity tag (RFC 9110, 8.8.3).

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use api::v1::{AccessModel, ChunkedList, DesiredState, PortList, PortSpec};
use serde::Serialize;
use wire::hash::{BASIS, fnv1a};

/// The base of the polynomial over the elements of a list: odd, with bits all over.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns sixteen hexadecimal digits that identify a desired state. They depend on its contents
/// only, so they stay valid after restarts. The hash is not collision resistant: clients that could
/// construct collisions may set the state anyway.
#[must_use]
pub fn version(state: &DesiredState) -> String {
    let rest = DesiredState {
        access: Arc::default(),
        ports: PortList::default(),
        ..state.clone()
    };
    let access = LAST_ACCESS.with_borrow_mut(|last| last.of(&state.access, of_lists));
    let of_ports = |ports: &Vec<PortSpec>| hash(ports, BASIS);
    let ports = LAST_PORTS.with_borrow_mut(|last| last.of(state.ports.shared(), of_ports));
    format!("{:016x}", hash(&(rest, ports), access))
}

thread_local! {
    static LAST_ACCESS: RefCell<CachedHash<AccessModel>> = const { RefCell::new(CachedHash::NONE) };
    static LAST_PORTS: RefCell<CachedHash<Vec<PortSpec>>> =
        const { RefCell::new(CachedHash::NONE) };
}

/// The hash of the last value that was hashed: access lists and ports may be long, and change
/// rarely.
struct CachedHash<T>(Weak<T>, u64);

impl<T> CachedHash<T> {
    const NONE: Self = Self(Weak::new(), 0);

    /// Returns the hash of a value, which is computed if it is another one than the last.
    fn of(&mut self, value: &Arc<T>, hash: impl Fn(&T) -> u64) -> u64 {
        let last = self.0.upgrade();
        if !last.is_some_and(|last| Arc::ptr_eq(&last, value)) {
            *self = Self(Arc::downgrade(value), hash(value));
        }
        self.1
    }
}

fn of_lists(access: &AccessModel) -> u64 {
    let AccessModel {
        address_sets,
        groups,
        defaults,
        lists,
    } = access;
    let all = hash(&(groups, defaults), of_list(address_sets, BASIS));
    lists.iter().fold(all, |all, list| {
        of_list(&list.rules, hash(&list.without_rules(), all))
    })
}

/// Returns a polynomial of the hashes of the elements. The value of a concatenation follows from
/// those of its parts, so it does not depend on the bounds of chunks, and the value of an unchanged
/// chunk is cached.
fn of_list<T: Serialize>(list: &ChunkedList<T>, basis: u64) -> u64 {
    let of_chunk = |elements: &[T]| {
        let step = |all: u64, one| all.wrapping_mul(FACTOR).wrapping_add(hash(one, BASIS));
        elements.iter().fold(0, step)
    };
    let chunks = list.chunks().iter();
    let all = chunks.fold(0u64, |all, chunk| {
        let shift = FACTOR.wrapping_pow(chunk.elements().len() as u32);
        all.wrapping_mul(shift).wrapping_add(chunk.digest(of_chunk))
    });
    hash(&(list.len(), all), basis)
}

fn hash(document: &impl Serialize, basis: u64) -> u64 {
    // The types have no maps with keys other than text, and nothing else that could fail.
    fnv1a(basis, serde_json::to_vec(document).unwrap_or_default())
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

    fn with_rules(rules: ChunkedList<RuleSpec>, sets: usize) -> DesiredState {
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
        DesiredState {
            access: Arc::new(access),
            ..DesiredState::default()
        }
    }

    proptest! {
        /// Equal states have equal versions, however they were made: by single changes, in other
        /// chunks, or read from JSON.
        #[test]
        fn the_same_state_is_the_same_version(
            first in 0..300u16,
            changes in prop::collection::vec((0..400u16, prop::option::of(0..3u32)), 0..20),
        ) {
            let mut rules: ChunkedList<_> = (0..first).map(|number| rule(number, 0)).collect();
            for (number, priority) in changes {
                let before = rules.clone();
                match priority {
                    Some(priority) => rules.put(rule(number, priority)),
                    None => drop(rules.remove(&format!("r{number}"))),
                }
                let of = |rules: &ChunkedList<_>| version(&with_rules(rules.clone(), 0));
                let versions = [&before, &rules].map(of);
                prop_assert_eq!(versions[0] == versions[1], before == rules);
                let whole: ChunkedList<_> = rules.iter().cloned().collect();
                prop_assert_eq!(&version(&with_rules(whole, 0)), &versions[1]);
                let json = serde_json::to_vec(&with_rules(rules.clone(), 0)).unwrap();
                let read: DesiredState = serde_json::from_slice(&json).unwrap();
                prop_assert_eq!(&version(&read), &versions[1]);
                prop_assert_ne!(version(&with_rules(rules.clone(), 1)), &versions[1][..]);
            }
        }
    }

    #[test]
    fn the_order_of_rules_is_part_of_it() {
        let rules = |numbers: [u16; 3]| -> ChunkedList<_> {
            numbers.map(|n| rule(n, 0)).into_iter().collect()
        };
        let versions = [[1, 2, 3], [2, 1, 3], [1, 3, 2]].map(|n| version(&with_rules(rules(n), 0)));
        assert!(versions[0] != versions[1] && versions[1] != versions[2]);
    }

    #[test]
    fn another_state_is_another_version() {
        let mut state = DesiredState::default();
        let first = version(&state);
        assert_eq!(first, version(&DesiredState::default()));
        state.switch.name = "other".to_owned();
        assert_ne!(first, version(&state));
        assert!(first.len() == 16 && first.bytes().all(|b| b.is_ascii_hexdigit()));
    }
}
