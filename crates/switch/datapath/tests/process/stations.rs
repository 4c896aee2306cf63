//! Flow sweeps that control requests, with several workers.

use std::time::Duration;

use ipc::records::StaleFlows;
use ipc::switching::{Station, SwitchCommand};
use policy::SegmentId;
use port::PortId;
use testkit::GuestConfig;
use testkit::net::NetHeader;
use testkit::packets::mac;

use crate::host::{Host, LIMIT, wait_for};
use crate::traffic::{numbered, talk};

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
fn stations_in_use_are_reported_once_for_all_workers() {
    let mut host = Host::with_ports([1, 2, 3]);
    let mut guests = [1, 2, 3].map(|id| host.guest(id, GuestConfig::default()));
    let [a, b, c] = &mut guests;
    talk(a, b, 20);
    talk(a, c, 20);
    talk(b, c, 20);
    let all = [1, 2, 3].map(station);
    assert_eq!(in_use(&mut host, LIMIT), all);
    wait_for("no station to be in use", || {
        in_use(&mut host, Duration::from_millis(1)).is_empty()
    });
    assert_eq!(in_use(&mut host, 2 * LIMIT), all);
    host.kill_control();
    host.start_control();
    assert_eq!(host.flows(), 6, "a new control changes nothing");
}

#[test]
fn a_check_removes_flows_that_contradict_control() {
    let mut host = Host::with_ports([1, 2]);
    let mut guests = [1, 2].map(|id| host.guest(id, GuestConfig::default()));
    let [a, b] = &mut guests;
    talk(a, b, 20);
    assert_eq!(host.flows(), 2);
    let check = |stations: &[Station]| SwitchCommand::Check(stations.to_vec(), Vec::new());
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

#[test]
fn a_station_with_flows_at_two_workers_is_reported_once_and_removed_from_both() {
    let mut host = Host::new();
    host.add_port(1, 2);
    host.add_port(2, 1);
    let mut a = host.guest(1, GuestConfig::default().pairs(2));
    let mut b = host.guest(2, GuestConfig::default());
    for pair in [0, 1] {
        let frame = numbered(1, 2, pair as u64, 60);
        a.send_on(pair, &frame, &NetHeader::default())
            .expect("room");
        let got = b.recv(LIMIT).expect("correct").expect("a frame");
        assert_eq!(got.frame, frame);
    }
    assert_eq!(host.flows(), 2, "each worker has asked");
    assert_eq!(in_use(&mut host, LIMIT), [station(1)]);
    let Station { segment, mac, .. } = station(1);
    host.forget(StaleFlows::Station { segment, mac });
    wait_for("both to forget it", || host.flows() == 0);
    talk(&mut a, &mut b, 20);
}

/// A reused port number means another port, from the first frame.
#[test]
fn a_port_under_the_number_of_another_gets_none_of_its_flows() {
    let mut host = Host::with_ports([1, 2, 3]);
    let mut guests = [1, 2, 3].map(|id| host.guest(id, GuestConfig::default()));
    let [a, b, c] = &mut guests;
    talk(a, b, 20);
    talk(c, b, 20);
    for _ in 0..3 {
        host.remove_port(2);
        assert_eq!(host.flows(), 0, "done means done");
        host.add_port(2, 1);
        let mut heir = host.guest(2, GuestConfig::default());
        assert!(in_use(&mut host, LIMIT).is_empty());
        talk(a, &mut heir, 20);
        talk(c, &mut heir, 20);
        assert_eq!(host.flows(), 4);
    }
}
