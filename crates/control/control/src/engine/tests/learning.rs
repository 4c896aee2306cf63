//! Upcalls, their answers, and learning.

use std::time::Duration;

use api::v1::FdbFilter;
use ipc::records::Answer;
use policy::{Action, DropReason};

use super::world::{World, flood, key, port, to, upcall};
use crate::engine::Engine;

/// Three ports in blue, one in red.
fn world() -> (World, Engine) {
    let mut world = World::new(vec![
        port("vm0", "blue"),
        port("vm1", "blue"),
        port("vm2", "blue"),
        port("vm3", "red"),
    ]);
    let engine = world.start().unwrap();
    (world, engine)
}

#[test]
fn an_unknown_station_is_flooded_and_then_learned() {
    let (world, mut engine) = world();
    assert_eq!(world.ask(&mut engine, key(0, 1, 2)), flood(1));
    assert_eq!(world.ask(&mut engine, key(1, 2, 1)), to(0));
    assert_eq!(
        world.removed(),
        ["0: 1 > 2"],
        "the flood to what is known now"
    );
    assert_eq!(world.frame(&mut engine, key(0, 1, 2)), to(1));
    assert_eq!(world.frame(&mut engine, key(0, 1, 255)), flood(1));
    assert_eq!(
        world.frame(&mut engine, key(3, 9, 1)),
        flood(2),
        "segments do not see each other"
    );
    let fdb = engine.fdb_document(&api::v1::FdbFilter::default()).unwrap();
    let of = |segment: &str, port: &str| api::v1::FdbFilter {
        segment: (!segment.is_empty()).then(|| segment.to_owned()),
        port: (!port.is_empty()).then(|| port.to_owned()),
    };
    let red = engine.fdb_document(&of("red", "vm0")).unwrap();
    assert_eq!(red.entries, []);
    for (filter, field) in [(of("green", ""), "segment"), (of("", "vm9"), "port")] {
        let problem = engine.fdb_document(&filter).unwrap_err();
        assert_eq!(
            (problem.status, problem.field.as_deref()),
            (404, Some(field))
        );
    }
    let lines: Vec<_> = fdb
        .entries
        .iter()
        .map(|e| format!("{} {} {}", e.segment, e.mac, e.port))
        .collect();
    let expected = [
        "blue 52:54:00:00:00:01 vm0",
        "blue 52:54:00:00:00:02 vm1",
        "red 52:54:00:00:00:09 vm3",
    ];
    assert_eq!(lines, expected);
}

/// Whatever a flooding port sends, the upcall of another port waits for a bounded number of others:
/// those between two reads of the ring, and one of each port.
#[test]
fn an_upcall_waits_for_few_of_a_flooding_port() {
    let (world, mut engine) = world();
    let victim = 1_000_000;
    let mut id = 0;
    let mut spray = |count: usize| {
        for _ in 0..count {
            let from = wire::MacAddr::from_u64(0x5254_0100_0000 + id);
            if !world.send_upcall(id, key(0, 1, 2).with_smac(from)) {
                return;
            }
            id += 1;
        }
    };
    // The ring is full of one port's upcalls, and full again after each turn.
    spray(100_000);
    for round in 0..20 {
        engine.handle_upcalls().unwrap();
        world.answers();
        spray(200);
        assert!(
            world.send_upcall(victim + round, key(1, 50, 51)),
            "there is room again"
        );
        spray(100_000);
        engine.handle_upcalls().unwrap();
        let answered = world.answers();
        let number = |answer: &Answer| match answer {
            Answer::Install { upcall, .. } => *upcall,
            _ => None,
        };
        let mut answered = answered.iter().filter_map(number);
        let before = answered.position(|id| id == victim + round);
        assert!(
            before.is_some_and(|before| before <= 2),
            "{before:?} before it"
        );
    }
}

#[test]
fn frames_without_receiver_are_dropped_with_a_reason() {
    let (world, mut engine) = world();
    world.ask(&mut engine, key(0, 1, 255));
    let reflection = Action::Drop(DropReason::Reflection);
    assert_eq!(world.ask(&mut engine, key(0, 5, 1)), reflection);
    assert_eq!(world.ask(&mut engine, key(0, 1, 1)), reflection);
    let tagged = key(0, 1, 2).with_vlan(Some(20));
    let refused = Action::Drop(DropReason::VlanNotAllowed);
    assert_eq!(world.ask(&mut engine, tagged), refused);
    let source = Action::Drop(DropReason::BadSource);
    assert_eq!(world.ask(&mut engine, key(0, 255, 2)), source);
    let unknown = Action::Drop(DropReason::VlanUnknown);
    assert_eq!(
        world.ask(&mut engine, key(77, 1, 2)),
        unknown,
        "no such port"
    );
}

#[test]
fn a_move_takes_the_flows_from_and_to_the_station_back() {
    let (world, mut engine) = world();
    world.ask(&mut engine, key(0, 1, 255));
    world.ask(&mut engine, key(1, 2, 1));
    world.ask(&mut engine, key(0, 1, 2));
    world.ask(&mut engine, key(1, 2, 255));
    world.removed();
    assert_eq!(world.ask(&mut engine, key(2, 1, 2)), to(1));
    assert_eq!(
        world.removed(),
        ["0: 1 > 2", "0: 1 > 255", "1: 2 > 1"],
        "and no other"
    );
    assert_eq!(world.frame(&mut engine, key(1, 2, 1)), to(2));
}

/// Sends a frame of station 1 at each of these ports in turn, each with its own flow; all pass.
/// Returns the upcalls.
fn alternate(world: &World, engine: &mut Engine, ports: [u32; 2], rounds: usize) -> u64 {
    let before = engine.forwarding.upcall_count;
    for _ in 0..rounds {
        for port in ports {
            assert_eq!(world.frame(engine, key(port, 1, 255)), flood(1));
        }
    }
    engine.forwarding.upcall_count - before
}

#[test]
fn a_spoofer_that_alternates_with_its_victim_costs_few_upcalls_and_the_victim_nothing() {
    let (world, mut engine) = world();
    world.ask(&mut engine, key(0, 1, 255));
    world.ask(&mut engine, key(1, 2, 1));
    // Port 2 claims the address of port 0, which answers each time.
    let upcalls = alternate(&world, &mut engine, [2, 0], 1000);
    assert_eq!(
        upcalls,
        5 * 2 + 1,
        "five moves and their reverts, and one that is refused"
    );
    assert_eq!(world.frame(&mut engine, key(1, 2, 1)), to(0));
    assert_eq!(alternate(&world, &mut engine, [2, 0], 1000), 0);
    // With each other destination there is an upcall, as for any flow, and a move each ten seconds.
    for n in 10..20 {
        world.frame(&mut engine, key(2, 1, n));
    }
    assert_eq!(world.frame(&mut engine, key(1, 2, 1)), to(0));
    let flaps = engine.events().kept();
    let flaps = flaps
        .iter()
        .filter(|event| event.what.name() == "mac_flapping");
    assert_eq!(flaps.count(), 1);
}

#[test]
fn a_silent_victim_has_its_address_with_its_first_frame() {
    let (world, mut engine) = world();
    world.ask(&mut engine, key(0, 1, 255));
    world.ask(&mut engine, key(1, 2, 1));
    let before = engine.forwarding.upcall_count;
    for second in 0..100 {
        world.frame(&mut engine, key(2, 1, 255));
        if second % 10 == 5 {
            world.frame(&mut engine, key(0, 1, 255));
            assert_eq!(world.frame(&mut engine, key(1, 2, 1)), to(0), "{second}");
        }
        world.seconds(&mut engine, 1);
    }
    let upcalls = engine.forwarding.upcall_count - before;
    assert!(upcalls <= 50, "{upcalls}");
}

#[test]
fn a_bond_that_sends_at_two_ports_in_turn_moves_when_one_falls_silent() {
    let (world, mut engine) = world();
    world.ask(&mut engine, key(1, 2, 255));
    alternate(&world, &mut engine, [0, 2], 100);
    let before = engine.forwarding.upcall_count;
    for _ in 0..100 {
        alternate(&world, &mut engine, [0, 2], 5);
        world.seconds(&mut engine, 1);
    }
    assert_eq!(
        engine.forwarding.upcall_count, before,
        "flows of both are cached"
    );
    assert_eq!(world.frame(&mut engine, key(1, 2, 1)), to(0));
    // The first member fails, and the host does not notice it.
    for _ in 0..15 {
        world.frame(&mut engine, key(2, 1, 255));
        world.seconds(&mut engine, 1);
    }
    assert_eq!(world.frame(&mut engine, key(1, 2, 1)), to(2));
    // It is back.
    alternate(&world, &mut engine, [0, 2], 10);
    assert_eq!(world.frame(&mut engine, key(1, 2, 1)), to(0));
}

/// The flows of both members survive, and so does the place of the address.
#[test]
fn a_bond_stays_where_it_is_while_control_restarts() {
    let (mut world, mut engine) = world();
    world.ask(&mut engine, key(1, 2, 255));
    alternate(&world, &mut engine, [0, 2], 100);
    world.seconds(&mut engine, 2);
    world.frame(&mut engine, key(2, 1, 255));
    world.removed();
    drop(engine);
    let mut engine = world.start().unwrap();
    world.settle(&mut engine);
    assert_eq!(world.removed(), [""; 0]);
    assert_eq!(world.frame(&mut engine, key(1, 2, 1)), to(0));
    for _ in 0..15 {
        world.frame(&mut engine, key(2, 1, 255));
        world.seconds(&mut engine, 1);
    }
    assert_eq!(world.frame(&mut engine, key(1, 2, 1)), to(2));
}

#[test]
fn stations_in_use_stay_young_and_silent_ones_age() {
    let (world, mut engine) = world();
    world.ask(&mut engine, key(0, 1, 255));
    world.ask(&mut engine, key(1, 2, 255));
    for _ in 0..310 {
        world.frame(&mut engine, key(1, 2, 255));
        world.seconds(&mut engine, 1);
    }
    let fdb = engine.fdb_document(&api::v1::FdbFilter::default()).unwrap();
    assert_eq!(fdb.entries.len(), 1, "{fdb:?}");
    assert_eq!(fdb.entries[0].port, "vm1");
    assert!(fdb.entries[0].age_seconds <= 5, "{fdb:?}");
    assert_eq!(world.cached(), ["1: 2 > 255"], "it was never asked again");
}

/// An address for which its port had no room when its flow was made.
#[test]
fn the_use_of_flows_that_are_older_than_their_station_counts() {
    let (world, mut engine) = world();
    let station = |n: u32| {
        let [_, _, high, low] = n.to_be_bytes();
        wire::MacAddr([2, 0, 0, 0, high, low])
    };
    for n in 0..4096 {
        world.ask(&mut engine, key(0, 1, 255).with_smac(station(n)));
    }
    let late = key(0, 9, 255);
    world.ask(&mut engine, late);
    // The others age, and the late one sends to another address, too.
    world.seconds(&mut engine, 301);
    world.ask(&mut engine, key(0, 9, 2));
    for _ in 0..310 {
        world.frame(&mut engine, late);
        world.seconds(&mut engine, 1);
    }
    let fdb = engine.fdb_document(&api::v1::FdbFilter::default()).unwrap();
    assert_eq!(fdb.entries.len(), 1, "{fdb:?}");
}

#[test]
fn a_full_answer_ring_keeps_order_and_loses_nothing() {
    let (world, mut engine) = world();
    let mut sent = 0;
    while engine.forwarding.answers.queued() < 500 {
        let from = (sent % 200) as u8;
        assert!(world.send_upcall(sent, key((sent % 3) as u32, from, 255)));
        sent += 1;
        engine.handle_upcalls().unwrap();
    }
    let mut ids = Vec::new();
    let mut last = 0;
    loop {
        let answers = world.answers();
        for answer in &answers {
            if let Answer::Install { upcall, .. } = answer {
                ids.push(upcall.unwrap());
            }
        }
        if answers.is_empty() && engine.forwarding.answers.queued() == 0 {
            break;
        }
        assert!(ids.len() > last || answers.is_empty(), "no progress");
        last = ids.len();
        engine.handle_upcalls().unwrap();
    }
    assert_eq!(ids, (0..sent).collect::<Vec<_>>());
}

#[test]
fn a_flow_that_is_no_longer_right_is_taken_back_by_the_next_check() {
    let (world, mut engine) = world();
    world.ask(&mut engine, key(1, 2, 255));
    world.ask(&mut engine, key(0, 1, 2));
    let words = *key(0, 1, 2).words();
    world.switch().flows.get_mut(&words).unwrap().action = to(2);
    world.seconds(&mut engine, 60);
    assert_eq!(world.removed(), ["0: 1 > 2"]);
    assert_eq!(world.frame(&mut engine, key(0, 1, 2)), to(1));
}

#[test]
fn a_request_covers_the_time_since_the_last_reply() {
    let (world, mut engine) = world();
    world.seconds(&mut engine, 12);
    assert_eq!(world.switch().within, [6000, 6000]);
    // A reply that is not awaited any more has no effect.
    for _ in 0..3 {
        world.pass(Duration::from_secs(1));
        engine.tick().unwrap();
    }
    assert!(engine.stations.open.take().is_some(), "at tick 15");
    world.seconds(&mut engine, 5);
    assert_eq!(world.switch().within[2..], [6000, 11_000]);
}

#[test]
fn only_stations_that_were_learned_are_reported() {
    let (world, mut engine) = world();
    for n in 0..5000u32 {
        let [_, _, high, low] = n.to_be_bytes();
        let source = wire::MacAddr([2, 0, 0, 0, high, low]);
        world.ask(&mut engine, key(0, 1, 255).with_smac(source));
    }
    world.seconds(&mut engine, 5);
    assert_eq!(world.switch().largest, 4096, "as many as a port may have");
}

#[test]
fn the_last_upcalls_of_a_removed_port_do_not_affect_its_successor() {
    let (world, mut engine) = world();
    world.switch().last_upcalls = vec![upcall(5, key(2, 3, 255))];
    engine.remove_port("vm2").unwrap();
    engine.add_port(port("vm4", "blue")).unwrap();
    while engine.handle_upcalls().unwrap() {}
    assert_eq!(world.ask(&mut engine, key(0, 1, 3)), flood(1));
}

#[test]
fn learned_entries_are_flushed_with_their_flows() {
    let mut world = World::new(vec![port("vm0", "blue"), port("vm1", "blue")]);
    let mut engine = world.start().unwrap();
    world.frame(&mut engine, key(0, 1, 2));
    world.frame(&mut engine, key(1, 2, 1));
    let fdb = |engine: &Engine| {
        let all = engine.fdb_document(&FdbFilter::default()).unwrap();
        all.entries.len()
    };
    assert_eq!(fdb(&engine), 2);
    let of = |port: &str| FdbFilter {
        port: Some(port.to_owned()),
        ..FdbFilter::default()
    };
    assert_eq!(engine.flush_fdb(&of("vm9")).unwrap_err().status, 404);
    assert_eq!(engine.flush_fdb(&of("vm1")).unwrap().flushed, 1);
    assert_eq!(fdb(&engine), 1);
    assert_eq!(world.saved().stations.len(), 1);
    world.settle(&mut engine);
    let removed = world.removed();
    assert!(removed.contains(&"1: 2 > 1".to_owned()), "{removed:?}");
    let flooded = world.frame(&mut engine, key(0, 1, 2));
    assert!(matches!(flooded, Action::Flood { .. }), "{flooded:?}");
    assert_eq!(world.frame(&mut engine, key(1, 2, 1)), to(0));
    assert_eq!(engine.flush_fdb(&FdbFilter::default()).unwrap().flushed, 2);
    assert_eq!(fdb(&engine), 0);
}

#[test]
fn flows_are_purged_and_nothing_else() {
    let mut world = World::new(vec![port("vm0", "blue"), port("vm1", "blue")]);
    let mut engine = world.start().unwrap();
    world.frame(&mut engine, key(0, 1, 2));
    world.frame(&mut engine, key(1, 2, 1));
    assert!(!world.cached().is_empty());
    assert_eq!(engine.purge_flows(Some("vm9")).unwrap_err().status, 404);
    engine.purge_flows(None).unwrap();
    assert!(world.cached().is_empty(), "{:?}", world.cached());
    assert_eq!(world.frame(&mut engine, key(0, 1, 2)), to(1));
    assert_eq!(engine.forwarding.program.epoch(), 1);
}
