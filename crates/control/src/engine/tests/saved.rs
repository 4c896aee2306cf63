//! Numbers that are handed out.

use std::collections::BTreeSet;

use api::v1::{PortSpec, SegmentSpec, WantedState};
use channel::state::StateFile;
use proptest::prelude::*;

use crate::engine::Saved;

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
            let before = saved.ports.clone();
            saved.wanted = wanted(&names);
            saved.forget_unwanted();
            for n in &names {
                let name = format!("p{n}");
                let taken: BTreeSet<_> = saved.ports.values().copied().collect();
                let id = saved.port_id(&name);
                match before.get(&name) {
                    Some(old) => prop_assert_eq!(id, *old),
                    None => {
                        prop_assert!(!taken.contains(&id));
                        // So few are wanted that none is in the way when the numbers start over.
                        prop_assert_eq!(id, port::PortId(handed_out));
                        handed_out += 1;
                    }
                }
                prop_assert_eq!(saved.segment_id(&format!("s{n}")).0, id.0 as u16);
                prop_assert_eq!(saved.port_id(&name), id);
            }
            prop_assert_eq!(saved.ports.len(), names.len());
            saved.store(&file).unwrap();
            let loaded = Saved::load(&file).unwrap();
            prop_assert_eq!(&loaded.ports, &saved.ports);
            prop_assert_eq!(&loaded.segments, &saved.segments);
            saved = loaded;
        }
    }
}

#[test]
fn when_all_numbers_were_handed_out_the_oldest_free_one_is_next() {
    let mut saved = Saved::default();
    let all = port::counters::MAX_PORTS as u32;
    let ids: Vec<u32> = (0..all).map(|n| saved.port_id(&n.to_string()).0).collect();
    assert_eq!(ids, (0..all).collect::<Vec<_>>());
    for name in ["70", "3", "500"] {
        saved.ports.remove(name);
    }
    let again = ["a", "b", "c"].map(|name| saved.port_id(name).0);
    assert_eq!(again, [3, 70, 500]);
    let all: BTreeSet<_> = saved.ports.values().copied().collect();
    assert_eq!(all.len(), port::counters::MAX_PORTS);
    saved.ports.remove("b");
    assert_eq!(saved.port_id("d").0, 70, "the only one there is");
}

#[test]
fn a_document_of_an_earlier_version_is_read() {
    let file = StateFile::create().unwrap();
    file.save(b"{\"wanted\":{}}").unwrap();
    let saved = Saved::load(&file).unwrap();
    assert_eq!((saved.epoch, saved.stations.len()), (0, 0));
}
