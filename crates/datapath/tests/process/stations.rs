//! What control asks about flows, and has done to them, with several workers.

use std::time::Duration;

use channel::switching::{Order, Station};
use policy::SegmentId;
use port::PortId;
use testkit::GuestConfig;
use testkit::packets::mac;

use crate::host::{Host, PATIENCE, wait_for};
use crate::traffic::talk;

fn station(n: u8) -> Station {
    Station {
        segment: SegmentId(1),
        mac: mac(n),
        port: PortId(n.into()),
    }
}

fn in_use(host: &mut Host, within: Duration) -> Vec<Station> {
    let uses = host.stations(within);
    uses.into_iter().map(|used| used.station).collect()
}

#[test]
fn stations_in_use_are_told_once_whichever_worker_has_their_flows() {
    let mut host = Host::with_ports([1, 2, 3]);
    let mut guests = [1, 2, 3].map(|id| host.guest(id, GuestConfig::default()));
    let [a, b, c] = &mut guests;
    talk(a, b, 20);
    talk(a, c, 20);
    talk(b, c, 20);
    let all = [1, 2, 3].map(station);
    assert_eq!(in_use(&mut host, PATIENCE), all);
    wait_for("nobody to be in use", || {
        in_use(&mut host, Duration::from_millis(1)).is_empty()
    });
    assert_eq!(in_use(&mut host, 2 * PATIENCE), all);
    host.kill_control();
    host.start_control();
    assert_eq!(host.flows(), 6, "a new control changes nothing");
}

#[test]
fn a_check_with_what_control_knows_forgets_what_is_wrong() {
    let mut host = Host::with_ports([1, 2]);
    let mut guests = [1, 2].map(|id| host.guest(id, GuestConfig::default()));
    let [a, b] = &mut guests;
    talk(a, b, 20);
    assert_eq!(host.flows(), 2);
    let check = |stations: &[Station]| Order::Check(stations.to_vec());
    host.order(check(&[1, 2].map(station)), &[]).expect("done");
    assert_eq!(host.flows(), 2);
    // Without station 2, frames to it would be flooded.
    host.order(check(&[station(1)]), &[]).expect("done");
    assert_eq!(host.flows(), 1);
    talk(a, b, 20);
    assert_eq!(host.flows(), 2);
    host.remove_port(2);
    assert_eq!(host.flows(), 0);
}
