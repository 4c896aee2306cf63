//! The state file: numbers, documents, access lists.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::v1::{
    AccessModel, AddressSet, DesiredState, Group, Iommu, PortKind, PortSpec, RuleSpec, SegmentSpec,
    Workers,
};
use ipc::formats::STATE;
use ipc::state::{Part, Place, StateFile};
use policy::SegmentId;
use policy::acl::RuleId;
use policy::port_security::Bindings;
use port::PortId;
use proptest::prelude::*;
use serde_json::{from_value, json};
use testkit::samples::sample;

use crate::rule_counts::Count;
use crate::saved::{EncodedChunks, SavedState, SavedStation};

/// A desired state with these ports and segments.
fn desired(names: &BTreeSet<u8>) -> DesiredState {
    let port = |n: &u8| PortSpec::vhost_user(format!("p{n}"), format!("{n}.sock"));
    let segment = |n: &u8| SegmentSpec {
        name: format!("s{n}"),
        vlan: None,
        neighbour_suppression: false,
    };
    DesiredState {
        ports: names.iter().map(port).collect(),
        segments: names.iter().map(segment).collect(),
        ..DesiredState::default()
    }
}

proptest! {
    #[test]
    fn numbers_are_stable_and_unique_and_come_again_when_all_others_had_their_turn(
        rounds in prop::collection::vec(prop::collection::btree_set(0u8..30, 0..12), 1..12)
    ) {
        let file = StateFile::create().unwrap();
        let mut saved = SavedState::default();
        let mut handed_out = 0;
        for names in rounds {
            let before = saved.numbers.ports.clone();
            saved.desired = desired(&names);
            saved.numbers.release_undesired(&saved.desired);
            for n in &names {
                let name = format!("p{n}");
                let taken: BTreeSet<_> = saved.numbers.ports.values().copied().collect();
                let id = saved.numbers.port_id(&name);
                match before.get(&name) {
                    Some(old) => prop_assert_eq!(id, *old),
                    None => {
                        prop_assert!(!taken.contains(&id));
                        // Few enough that all numbers are free when the search wraps around.
                        prop_assert_eq!(id, port::PortId(handed_out));
                        handed_out += 1;
                    }
                }
                prop_assert_eq!(saved.numbers.segment_id(&format!("s{n}")).0, id.0 as u16);
                prop_assert_eq!(saved.numbers.port_id(&name), id);
            }
            prop_assert_eq!(saved.numbers.ports.len(), names.len());
            saved.store(&file).unwrap();
            let loaded = SavedState::load(&file).unwrap();
            prop_assert_eq!(&loaded.numbers.ports, &saved.numbers.ports);
            prop_assert_eq!(&loaded.numbers.segments, &saved.numbers.segments);
            saved = loaded;
        }
    }
}

#[test]
fn when_all_numbers_were_handed_out_the_oldest_free_one_is_next() {
    let mut saved = SavedState::default();
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

/// Offset of the number that makes one of the file's documents valid. It is written last, at once.
pub(super) fn valid(file: &StateFile) -> [u8; 8] {
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
    #![proptest_config(ProptestConfig::with_cases(if testkit::is_complete_run() { 24 } else { 8 }))]

    /// A store that ends early changes nothing without this number. If that holds at the last byte,
    /// it holds at any.
    #[test]
    fn a_store_that_does_not_end_changes_nothing(
        changes in prop::collection::vec(
            (0..300u16, prop::option::weighted(0.9, 0..2000usize)), 1..120
        )
    ) {
        let file = StateFile::create().unwrap();
        let mut saved = SavedState::initial(DesiredState::default());
        saved.store(&file).unwrap();
        for (at, (number, length)) in changes.into_iter().enumerate() {
            let (before, was_valid) = (saved.desired.clone(), valid(&file));
            let mut access = AccessModel::clone(&before.access);
            match length {
                Some(length) => access.address_sets.put(set(number, length)),
                None => drop(access.address_sets.remove(&number.to_string())),
            }
            // Pieces may have been encoded before, with the same result.
            if at % 2 == 0 {
                saved.encoded = EncodedChunks::new(&before.access, &access).unwrap();
            }
            saved.desired.access = Arc::new(access);
            saved.store(&file).unwrap();
            saved.encoded = EncodedChunks::default();
            let is_valid = valid(&file);
            set_valid(&file, &was_valid);
            prop_assert_eq!(&SavedState::load(&file).unwrap().desired, &before);
            set_valid(&file, &is_valid);
            let loaded = SavedState::load(&file).unwrap();
            prop_assert_eq!(&loaded.desired, &saved.desired);
            if at % 7 == 0 {
                saved = loaded;
            }
        }
        let live = serde_json::to_vec(&saved.desired).unwrap().len() as i64;
        let bytes = rustix::fs::fstat(&file).unwrap().st_blocks * 512;
        prop_assert!(bytes < 6 * live.max(1 << 20) + (4 << 20), "{} for {}", bytes, live);
    }
}

#[test]
fn the_document_written_each_second_has_no_rules() {
    let rule = |n: u32| RuleSpec {
        name: format!("r{n}"),
        ..RuleSpec::default()
    };
    let mut access: AccessModel =
        serde_json::from_str(r#"{"lists": [{"name": "l", "direction": "to-guest"}]}"#).unwrap();
    access.lists[0].rules = (0..20_000).map(rule).collect();
    let file = StateFile::create().unwrap();
    let mut saved = SavedState::default();
    saved.desired.access = Arc::new(access);
    saved.store(&file).unwrap();
    assert!(file.load().unwrap().unwrap().len() < 1000);
    let blocks = || rustix::fs::fstat(&file).unwrap().st_blocks;
    // The other slot is filled for the first time.
    saved.store(&file).unwrap();
    let before = blocks();
    (0..10).for_each(|_| saved.store(&file).unwrap());
    assert_eq!(blocks(), before);
    assert_eq!(SavedState::load(&file).unwrap().desired, saved.desired);
}

#[test]
fn access_lists_that_are_too_long_are_not_kept() {
    let file = StateFile::create().unwrap();
    let mut saved = SavedState::initial(desired(&BTreeSet::from([1])));
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
    saved.desired.access = Arc::clone(&some);
    saved.store(&file).unwrap();
    saved.desired.access = with(64 << 20);
    let refused = saved.store(&file).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::FileTooLarge);
    assert_eq!(SavedState::load(&file).unwrap().desired.access, some);
    // There is no room beside the others, but there is in the other half.
    let others = with(41 << 20);
    saved.desired.access = Arc::clone(&others);
    saved.store(&file).unwrap();
    assert_eq!(SavedState::load(&file).unwrap().desired.access, others);
}

/// Returns a state with scheduled ports, settings of IOMMUs and CPU weights.
fn complete_state() -> DesiredState {
    let mut desired = desired(&BTreeSet::from([1, 2]));
    let class = json!([{"name": "storage", "priority": 6, "dscp": [26, 28], "pcp": 4}]);
    desired.qos_classes = from_value(class).unwrap();
    desired.qos_groups = from_value(json!([{"name": "tenant1", "min": 1_000_000_000}])).unwrap();
    desired.ports[0].qos = from_value(json!({
        "min": 500_000_000, "max": 2_000_000_000, "group": "tenant1", "priority": 1,
        "class_by_pair": ["default", "storage"], "classes": {"storage": {"min": 200_000_000}},
    }))
    .unwrap();
    let output = json!({"rate": 10_000_000_000u64, "overhead": 24});
    desired.ports[1].egress = from_value(output).unwrap();
    let connections = json!({"max": 4096, "timeouts": {"udp": 60}});
    desired.switch.connections = from_value(connections).unwrap();
    desired.ports[0].limits.connections = Some(20_000);
    desired.ports[0].iommu = Iommu::Off;
    desired.ports[1].iommu = Iommu::Required;
    desired.ports.push(PortSpec {
        interface: Some("eth0".to_owned()),
        driver_process: Some(true),
        cpu_weight: Some(200),
        ..PortSpec::new("up", PortKind::Uplink)
    });
    desired
}

/// Returns the document, and the parts of the file that it refers to.
#[test]
fn sample_of_the_state() {
    let set = AddressSet {
        name: "dns".to_owned(),
        addresses: vec!["192.0.2.1".to_owned()],
    };
    let group = Group {
        name: "g".to_owned(),
        ports: vec!["p1".to_owned()],
    };
    let mut desired = complete_state();
    desired.switch.workers = Workers::Count(1);
    desired.access = Arc::new(AccessModel {
        address_sets: [set].into_iter().collect(),
        groups: vec![group],
        ..AccessModel::default()
    });
    let mut saved = SavedState::initial(desired.clone());
    let _ = saved.numbers.model(&desired);
    let (_, _) = saved.numbers.mirror_number("m1");
    saved.epoch = 7;
    saved.rules_epochs = vec![(SegmentId(1), 6)];
    let (port, seen) = (PortId(0), Duration::from_millis(1500));
    saved.stations.push(SavedStation {
        segment: SegmentId(1),
        mac: [2, 0, 0, 0, 0, 1],
        port,
        seen,
    });
    let bound = Bindings {
        mac: Some([2, 0, 0, 0, 0, 1]),
        v4: Some([192, 0, 2, 7].into()),
        ..Bindings::default()
    };
    saved.bound.insert(port, bound);
    let count = Count {
        packets: 1,
        bytes: 60,
        last: seen,
    };
    saved.rule_counts.push((RuleId(99), count));
    saved.scheduled = true;

    let file = StateFile::create().unwrap();
    saved.store(&file).unwrap();
    let document = file.load().unwrap().unwrap();
    let parts = |len: usize| serde_json::from_value::<Part>(serde_json::json!([0, len])).unwrap();
    let used = (1..4096).rfind(|len| file.load_part(parts(*len)).unwrap()[len - 1] != 0);
    let lists = file.load_part(parts(used.unwrap())).unwrap();

    let here = env!("CARGO_MANIFEST_DIR");
    let document = sample(here, "state.json", STATE, &document);
    let lists = sample(here, "state-lists.json", STATE, &lists);
    let read = StateFile::create().unwrap();
    read.save_part(&mut Place::default(), &lists).unwrap();
    read.save(&document).unwrap();
    let read = SavedState::load(&read).unwrap();
    assert_eq!(read.desired, saved.desired);
    assert_eq!(read.numbers, saved.numbers);
    assert_eq!(
        (read.numbers.classes["storage"], read.epoch, read.scheduled),
        (1, 7, true)
    );
    let [station] = &read.stations[..] else {
        panic!("{:?}", read.stations);
    };
    assert_eq!(
        (station.mac[5], station.port, station.seen),
        (1, port, seen)
    );
    assert_eq!(read.bound, saved.bound);
    assert_eq!(read.rule_counts, saved.rule_counts);
}
