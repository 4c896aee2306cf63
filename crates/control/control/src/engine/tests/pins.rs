//! Addresses that port security lists, and that no other port may take while their own is up.

use api::v1::{AllowedAddresses, FdbFilter, PortSecuritySpec, PortSpec, StaticEntry};
use ipc::switching::{PhaseReport, PortPhase, SwitchEvent};
use policy::Action;
use port::{DropReason, PortId};

use super::super::Engine;
use super::world::{World, asked, flood, key, mac, port, to};
use config::desired::{Change, FdbChange};

const CLAIM: Action = Action::Drop(DropReason::SpoofedSource);

/// A port with this address only.
fn owner(name: &str, n: u8) -> PortSpec {
    PortSpec {
        port_security: PortSecuritySpec {
            macs: Some(AllowedAddresses::List(vec![mac(n).to_string()])),
            ..PortSecuritySpec::open()
        },
        ..port(name, "blue")
    }
}

/// Port 0 has the address 1; the guests of ports 1 and 2 may have any.
fn world() -> World {
    let world = World::new(vec![
        owner("owner", 1),
        port("liar", "blue"),
        port("other", "blue"),
    ]);
    world.switch().guests_are_there = true;
    world
}

/// Control starts, and the guests connect.
fn started(world: &mut World) -> Engine {
    let mut engine = world.start().unwrap();
    for port in 0..3 {
        phase(world, &mut engine, port, PortPhase::Up);
    }
    engine
}

fn phase(world: &World, engine: &mut Engine, port: u32, phase: PortPhase) {
    let report = SwitchEvent::Phases(vec![PhaseReport {
        port: PortId(port),
        phase,
        reason: None,
    }]);
    world.report(&report);
    world.settle(engine);
    world.answers();
}

#[test]
fn a_listed_address_is_its_ports_before_its_first_frame() {
    let mut world = world();
    let mut engine = started(&mut world);
    assert_eq!(world.frame(&mut engine, key(2, 3, 1)), to(0), "not flooded");
    assert_eq!(world.frame(&mut engine, key(1, 1, 255)), CLAIM);
    assert_eq!(world.frame(&mut engine, key(1, 1, 3)), CLAIM);
    assert_eq!(world.frame(&mut engine, key(2, 3, 1)), to(0));
    assert_eq!(world.frame(&mut engine, key(0, 1, 3)), to(2));
    // Also after years.
    world.seconds(&mut engine, 400);
    assert_eq!(world.frame(&mut engine, key(1, 1, 255)), CLAIM);
    assert_eq!(world.frame(&mut engine, key(2, 3, 1)), to(0));
    let entries = engine.fdb_document(&FdbFilter::default()).unwrap().entries;
    let listed = entries.iter().map(|entry| (&*entry.port, entry.is_static));
    assert_eq!(
        listed.collect::<Vec<_>>(),
        [("owner", true), ("other", false)]
    );
}

#[test]
fn a_port_that_is_not_up_loses_its_pinned_address_until_it_is() {
    let mut world = world();
    let mut engine = started(&mut world);
    assert_eq!(world.frame(&mut engine, key(1, 1, 255)), CLAIM);
    assert_eq!(world.frame(&mut engine, key(2, 3, 1)), to(0));
    // As when it has moved to another host, behind an uplink.
    phase(&world, &mut engine, 0, PortPhase::Connected);
    assert_eq!(
        world.frame(&mut engine, key(2, 3, 1)),
        to(0),
        "known as any other"
    );
    assert_eq!(world.frame(&mut engine, key(1, 1, 255)), flood(1));
    assert_eq!(world.frame(&mut engine, key(2, 3, 1)), to(1));
    phase(&world, &mut engine, 0, PortPhase::Up);
    assert_eq!(world.frame(&mut engine, key(1, 1, 255)), CLAIM);
    assert_eq!(world.frame(&mut engine, key(2, 3, 1)), to(0));
}

#[test]
fn an_address_that_two_ports_list_is_learned() {
    let mut world = World::new(vec![
        owner("a", 1),
        owner("b", 1),
        port("other", "blue"),
        owner("c", 5),
    ]);
    world.switch().guests_are_there = true;
    let mut engine = started(&mut world);
    phase(&world, &mut engine, 3, PortPhase::Up);
    assert_eq!(
        world.frame(&mut engine, key(2, 3, 1)),
        to(0),
        "who was first"
    );
    assert_eq!(world.frame(&mut engine, key(1, 1, 3)), to(2), "a move");
    assert_eq!(world.frame(&mut engine, key(2, 3, 1)), to(1));
    assert_eq!(
        world.frame(&mut engine, key(2, 1, 255)),
        CLAIM,
        "another port has no part in it"
    );
    for _ in 0..50 {
        for port in [0, 1] {
            assert_eq!(world.frame(&mut engine, key(port, 1, 3)), to(2));
            assert_eq!(world.frame(&mut engine, key(2, 3, 1)), to(port));
        }
    }
    phase(&world, &mut engine, 1, PortPhase::Waiting);
    assert_eq!(world.frame(&mut engine, key(2, 3, 1)), to(0), "one is left");
    engine.remove_port("a").unwrap();
    phase(&world, &mut engine, 1, PortPhase::Up);
    assert_eq!(world.frame(&mut engine, key(2, 3, 1)), to(1));
    assert_eq!(world.frame(&mut engine, key(2, 5, 255)), CLAIM);
    engine.remove_port("c").unwrap();
    world.answers();
    assert_eq!(world.frame(&mut engine, key(2, 5, 255)), flood(1));
}

#[test]
fn a_virtual_router_moves_between_ports_that_may_use_any_address() {
    let mut world = world();
    let mut engine = started(&mut world);
    let shared = wire::MacAddr([0, 0, 0x5e, 0, 2, 33]);
    let from = |port| key(port, 1, 255).with_smac(shared);
    let to_it = || key(0, 1, 2).with_dmac(shared);
    for _ in 0..50 {
        for port in [1, 2] {
            assert_eq!(world.frame(&mut engine, from(port)), flood(1));
            assert_eq!(world.frame(&mut engine, to_it()), to(port));
        }
    }
}

/// A trunk lists the address for each of its segments.
#[test]
fn a_trunk_shares_an_address_only_where_another_port_lists_it() {
    let mut trunk = owner("up", 1);
    (trunk.segment, trunk.trunk) = (None, Some(vec!["blue".to_owned(), "red".to_owned()]));
    let mut world = World::new(vec![
        owner("a", 1),
        trunk,
        port("other", "blue"),
        port("far", "red"),
    ]);
    world.switch().guests_are_there = true;
    let mut engine = started(&mut world);
    phase(&world, &mut engine, 3, PortPhase::Up);
    for _ in 0..20 {
        assert_eq!(world.frame(&mut engine, key(0, 1, 255)), flood(1));
        assert_eq!(world.frame(&mut engine, key(2, 3, 1)), to(0));
        let tagged = key(1, 1, 255).with_vlan(Some(10));
        assert!(!matches!(world.frame(&mut engine, tagged), Action::Drop(_)));
        let to_it = world.frame(&mut engine, key(2, 3, 1));
        assert!(matches!(
            to_it,
            Action::Unicast {
                port: PortId(1),
                ..
            }
        ));
    }
    assert_eq!(world.frame(&mut engine, key(2, 1, 255)), CLAIM);
    assert_eq!(world.frame(&mut engine, key(3, 1, 255)), CLAIM);
}

/// A guest that was moved to another port of the host, whose old port is still up.
#[test]
fn the_other_port_of_a_contested_address_has_it_when_the_holder_goes_down() {
    let mut world = World::new(vec![
        port("a", "blue"),
        port("b", "blue"),
        port("c", "blue"),
    ]);
    world.switch().guests_are_there = true;
    let mut engine = started(&mut world);
    for port in [0, 1].repeat(10) {
        world.frame(&mut engine, key(port, 1, 255));
    }
    assert_eq!(world.frame(&mut engine, key(2, 3, 1)), to(0));
    phase(&world, &mut engine, 0, PortPhase::Connected);
    assert_eq!(world.frame(&mut engine, key(1, 1, 255)), flood(1));
    assert_eq!(world.frame(&mut engine, key(2, 3, 1)), to(1));
}

#[test]
fn a_new_control_takes_back_no_flow() {
    let mut world = world();
    let mut engine = started(&mut world);
    assert_eq!(world.frame(&mut engine, key(2, 3, 1)), to(0));
    assert_eq!(world.frame(&mut engine, key(0, 1, 3)), to(2));
    world.seconds(&mut engine, 2);
    world.removed();
    drop(engine);
    let mut engine = world.start().unwrap();
    world.settle(&mut engine);
    assert_eq!(world.removed(), [""; 0]);
    assert_eq!(world.frame(&mut engine, key(1, 1, 255)), CLAIM);
}

#[test]
fn flows_of_the_interim_owner_of_an_address_are_removed() {
    let mut world = world();
    world.switch().guests_are_there = false;
    let mut engine = world.start().unwrap();
    assert_eq!(world.frame(&mut engine, key(2, 3, 255)), flood(1));
    assert_eq!(world.frame(&mut engine, key(1, 1, 3)), to(2));
    drop(engine);
    world.switch().guests_are_there = true;
    let mut engine = world.start().unwrap();
    world.settle(&mut engine);
    assert!(world.removed().contains(&"1: 1 > 3".to_owned()));
    assert_eq!(world.frame(&mut engine, key(1, 1, 3)), CLAIM);
    assert_eq!(world.frame(&mut engine, key(2, 3, 1)), to(0));
}

/// FDB entry of the address 5.
fn station(port: Option<&str>) -> Change {
    let (segment, mac) = ("blue".to_owned(), mac(5).to_string());
    Change::Fdb(match port {
        Some(port) => FdbChange::Put(StaticEntry {
            segment,
            mac: mac.to_uppercase(),
            port: port.to_owned(),
        }),
        None => FdbChange::Remove { segment, mac },
    })
}

/// The switch has done its commands.
fn followed(world: &World, engine: &mut Engine) {
    world.settle(engine);
    world.answers();
}

#[test]
fn a_static_entry_is_right_from_the_start_for_all_and_until_it_is_removed() {
    let mut world = world();
    let mut engine = started(&mut world);
    assert_eq!(world.frame(&mut engine, key(1, 3, 5)), flood(1));
    engine.try_change(&asked(station(Some("other")))).unwrap();
    followed(&world, &mut engine);
    assert_eq!(
        world.frame(&mut engine, key(1, 3, 5)),
        to(2),
        "decided anew"
    );
    assert_eq!(world.frame(&mut engine, key(1, 5, 3)), CLAIM);
    // It does not age, is not flushed, does not end with the guest, and is known to the next
    // control.
    world.seconds(&mut engine, 400);
    engine.flush_fdb(&FdbFilter::default()).unwrap();
    phase(&world, &mut engine, 2, PortPhase::Waiting);
    drop(engine);
    let mut engine = world.start().unwrap();
    followed(&world, &mut engine);
    assert_eq!(world.frame(&mut engine, key(1, 3, 5)), to(2));
    engine.try_change(&asked(station(Some("owner")))).unwrap();
    followed(&world, &mut engine);
    assert_eq!(
        world.frame(&mut engine, key(1, 3, 5)),
        to(0),
        "it has moved"
    );
    engine.try_change(&asked(station(None))).unwrap();
    followed(&world, &mut engine);
    engine.flush_fdb(&FdbFilter::default()).unwrap();
    followed(&world, &mut engine);
    assert_eq!(world.frame(&mut engine, key(1, 3, 5)), flood(1));
    let again = engine.try_change(&asked(station(None)));
    assert_eq!(again.unwrap_err().status, 404);
}
