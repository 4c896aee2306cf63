//! Numbers that are handed out.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::v1::{AccessModel, AddressSet, Group, PortSpec, RuleSpec, SegmentSpec, WantedState};
use channel::state::StateFile;
use proptest::prelude::*;

use crate::engine::Saved;
use crate::engine::saved::Written;

/// A wanted state with these ports and segments.
fn wanted(names: &BTreeSet<u8>) -> WantedState {
    let port = |n: &u8| PortSpec::vhost_user(format!("p{n}"), format!("{n}.sock"));
    let segment = |n: &u8| SegmentSpec {
        name: format!("s{n}"),
        vlan: None,
        neighbour_suppression: false,
    };
    WantedState {
        ports: names.iter().map(port).collect(),
        segments: names.iter().map(segment).collect(),
        ..WantedState::default()
    }
}

proptest! {
    #[test]
    fn numbers_are_stable_and_unique_and_come_again_when_all_others_had_their_turn(
        rounds in prop::collection::vec(prop::collection::btree_set(0u8..30, 0..12), 1..12)
    ) {
        let file = StateFile::create().unwrap();
        let mut saved = Saved::default();
        let mut handed_out = 0;
        for names in rounds {
            let before = saved.numbers.ports.clone();
            saved.wanted = wanted(&names);
            saved.numbers.forget_unwanted(&saved.wanted);
            for n in &names {
                let name = format!("p{n}");
                let taken: BTreeSet<_> = saved.numbers.ports.values().copied().collect();
                let id = saved.numbers.port_id(&name);
                match before.get(&name) {
                    Some(old) => prop_assert_eq!(id, *old),
                    None => {
                        prop_assert!(!taken.contains(&id));
                        // So few are wanted that none is in the way when the numbers start over.
                        prop_assert_eq!(id, port::PortId(handed_out));
                        handed_out += 1;
                    }
                }
                prop_assert_eq!(saved.numbers.segment_id(&format!("s{n}")).0, id.0 as u16);
                prop_assert_eq!(saved.numbers.port_id(&name), id);
            }
            prop_assert_eq!(saved.numbers.ports.len(), names.len());
            saved.store(&file).unwrap();
            let loaded = Saved::load(&file).unwrap();
            prop_assert_eq!(&loaded.numbers.ports, &saved.numbers.ports);
            prop_assert_eq!(&loaded.numbers.segments, &saved.numbers.segments);
            saved = loaded;
        }
    }
}

#[test]
fn when_all_numbers_were_handed_out_the_oldest_free_one_is_next() {
    let mut saved = Saved::default();
    let all = port::counters::MAX_PORTS as u32;
    let ids: Vec<u32> = (0..all)
        .map(|n| saved.numbers.port_id(&n.to_string()).0)
        .collect();
    assert_eq!(ids, (0..all).collect::<Vec<_>>());
    for name in ["70", "3", "500"] {
        saved.numbers.ports.remove(name);
    }
    let again = ["a", "b", "c"].map(|name| saved.numbers.port_id(name).0);
    assert_eq!(again, [3, 70, 500]);
    let all: BTreeSet<_> = saved.numbers.ports.values().copied().collect();
    assert_eq!(all.len(), port::counters::MAX_PORTS);
    saved.numbers.ports.remove("b");
    assert_eq!(saved.numbers.port_id("d").0, 70, "the only one there is");
}

#[test]
fn a_document_of_an_earlier_version_is_read() {
    let file = StateFile::create().unwrap();
    file.save(b"{\"wanted\":{}}").unwrap();
    let saved = Saved::load(&file).unwrap();
    assert_eq!((saved.epoch, saved.stations.len()), (0, 0));
}

#[test]
fn access_lists_of_an_earlier_version_are_in_the_document() {
    let file = StateFile::create().unwrap();
    file.save(br#"{"wanted":{},"access":{"groups":[{"name":"g","ports":[]}]}}"#)
        .unwrap();
    let mut saved = Saved::load(&file).unwrap();
    let group = Group {
        name: "g".to_owned(),
        ports: Vec::new(),
    };
    assert_eq!(saved.wanted.access.groups, [group]);
    saved.store(&file).unwrap();
    assert_eq!(Saved::load(&file).unwrap().wanted, saved.wanted);
}

/// Which of the file's documents is valid: that is written last, at once.
fn valid(file: &StateFile) -> [u8; 8] {
    let mut number = [0; 8];
    assert_eq!(rustix::io::pread(file, &mut number, 0), Ok(8));
    number
}

fn set_valid(file: &StateFile, number: &[u8]) {
    assert_eq!(rustix::io::pwrite(file, number, 0), Ok(8));
}

fn set(number: u16, length: usize) -> AddressSet {
    AddressSet {
        name: number.to_string(),
        addresses: (0..length)
            .map(|n| format!("10.0.{}.{}", n / 256, n % 256))
            .collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever a store has written when it ends early: without the number it is as if nothing had been. That is so at any byte
    /// of it if it is so at the last.
    #[test]
    fn a_store_that_does_not_end_changes_nothing(
        changes in prop::collection::vec((0..300u16, prop::option::weighted(0.9, 0..2000usize)), 1..120)
    ) {
        let file = StateFile::create().unwrap();
        let mut saved = Saved::initial(WantedState::default());
        saved.store(&file).unwrap();
        for (at, (number, length)) in changes.into_iter().enumerate() {
            let (before, was_valid) = (saved.wanted.clone(), valid(&file));
            let mut access = AccessModel::clone(&before.access);
            match length {
                Some(length) => access.address_sets.put(set(number, length)),
                None => drop(access.address_sets.remove(&number.to_string())),
            }
            // Pieces may have been made JSON before, which is the same.
            if at % 2 == 0 {
                saved.written = Written::new(&before.access, &access).unwrap();
            }
            saved.wanted.access = Arc::new(access);
            saved.store(&file).unwrap();
            saved.written = Written::default();
            let is_valid = valid(&file);
            set_valid(&file, &was_valid);
            prop_assert_eq!(&Saved::load(&file).unwrap().wanted, &before);
            set_valid(&file, &is_valid);
            let loaded = Saved::load(&file).unwrap();
            prop_assert_eq!(&loaded.wanted, &saved.wanted);
            if at % 7 == 0 {
                saved = loaded;
            }
        }
        let live = serde_json::to_vec(&saved.wanted).unwrap().len() as i64;
        let bytes = rustix::fs::fstat(&file).unwrap().st_blocks * 512;
        prop_assert!(bytes < 6 * live.max(1 << 20) + (4 << 20), "{} for {}", bytes, live);
    }
}

#[test]
fn what_is_written_each_second_has_no_rules_in_it() {
    let rule = |n: u32| RuleSpec {
        name: format!("r{n}"),
        ..RuleSpec::default()
    };
    let mut access: AccessModel =
        serde_json::from_str(r#"{"lists": [{"name": "l", "direction": "to-guest"}]}"#).unwrap();
    access.lists[0].rules = (0..20_000).map(rule).collect();
    let file = StateFile::create().unwrap();
    let mut saved = Saved::default();
    saved.wanted.access = Arc::new(access);
    saved.store(&file).unwrap();
    assert!(file.load().unwrap().unwrap().len() < 1000);
    let blocks = || rustix::fs::fstat(&file).unwrap().st_blocks;
    // The other slot is filled for the first time.
    saved.store(&file).unwrap();
    let before = blocks();
    (0..10).for_each(|_| saved.store(&file).unwrap());
    assert_eq!(blocks(), before);
    assert_eq!(Saved::load(&file).unwrap().wanted, saved.wanted);
}

#[test]
fn access_lists_that_are_too_long_are_not_kept() {
    let file = StateFile::create().unwrap();
    let mut saved = Saved::initial(wanted(&BTreeSet::from([1])));
    let with = |length: usize| {
        let set = AddressSet {
            name: "long".to_owned(),
            addresses: vec!["1".repeat(length)],
        };
        let address_sets = [set].into_iter().collect();
        Arc::new(AccessModel {
            address_sets,
            ..AccessModel::default()
        })
    };
    let some = with(40 << 20);
    saved.wanted.access = Arc::clone(&some);
    saved.store(&file).unwrap();
    saved.wanted.access = with(64 << 20);
    let refused = saved.store(&file).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::FileTooLarge);
    assert_eq!(Saved::load(&file).unwrap().wanted.access, some);
    // There is no room beside the others, but there is in the other half.
    let others = with(41 << 20);
    saved.wanted.access = Arc::clone(&others);
    saved.store(&file).unwrap();
    assert_eq!(Saved::load(&file).unwrap().wanted.access, others);
}
