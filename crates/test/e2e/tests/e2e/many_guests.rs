//! Twenty real guests, all of which talk: kills of the switch and upgrades cost none of them its
//! connection, and each pair a few echo requests. It takes long; a hundred front ends without
//! guests are in the tests of processes.

use e2e::guest::{Guest, GuestSpec, boot};
use e2e::lasthop::{Lasthop, guest_ports};
use e2e::traffic::{PingRun, reachable};
use e2e::{is_long, machine};

const GUESTS: usize = 20;
const KILLS: usize = 5;
const UPGRADES: usize = 3;

#[test]
fn twenty_guests_survive_kills_and_upgrades() {
    let turn = machine();
    if !is_long() {
        return;
    }
    let names: Vec<String> = (1..=GUESTS).map(|n| format!("vm{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let lasthop = Lasthop::start(&guest_ports("", &names));
    turn.step("boot twenty guests");
    let spec = |at: usize| {
        let spec = GuestSpec::at(&lasthop, names[at], at as u8 + 1);
        if at.is_multiple_of(4) {
            spec.packed()
        } else {
            spec
        }
    };
    let mut guests: [Guest; GUESTS] = boot(std::array::from_fn(spec));
    let links: Vec<_> = guests.iter_mut().map(Guest::link_changes).collect();
    let (askers, _) = guests.split_at_mut(GUESTS / 2);
    let other = |at: usize| format!("10.0.0.{}", GUESTS / 2 + at + 1);
    let start = |(at, guest): (usize, &mut Guest)| PingRun::endless(guest, &other(at));
    let runs: Vec<PingRun> = askers.iter_mut().enumerate().map(start).collect();

    turn.step("kill -9 of the switch, and upgrades, under ten pings");
    for _ in 0..KILLS {
        lasthop.replace_switch();
    }
    for _ in 0..UPGRADES {
        lasthop.ok(&["upgrade"]);
    }
    let stop = |(run, guest): (PingRun, &mut Guest)| run.stop(guest);
    let results: Vec<_> = runs.into_iter().zip(askers.iter_mut()).map(stop).collect();
    for (at, result) in results.iter().enumerate() {
        // What waited in the switch for an answer dies with it.
        assert!(
            result.lost() <= 4 * KILLS as u32,
            "{}: {result:?}",
            names[at]
        );
    }

    turn.step("no guest has noticed");
    let now: Vec<_> = guests.iter_mut().map(Guest::link_changes).collect();
    assert_eq!(now, links);
    let log = lasthop.log();
    assert!(!log.contains("disconnected"), "{log}");
    assert_eq!(log.matches("front end connected").count(), GUESTS, "{log}");
    for (at, guest) in guests.iter_mut().take(GUESTS / 2).enumerate() {
        assert!(reachable(guest, &other(at)), "{log}");
    }
    lasthop.stop();
}
