//! Messages of DHCP and BOOTP clients at the server of user ports, and at dnsmasq: the answers are
//! alike, but for a list.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use testkit::netns::{Netns, Wire};
use testkit::process::Process;
use testkit::skip::skipped;
use testkit::wait::LIMIT;
use usernet::network::Network;
use usernet::services::{Checksum, FramePurpose, Offer, Search, Services};
use wire::MacAddr;

mod message;
mod variants;

use message::{Answer, Client};
use variants::{DIFFERENT, VARIANTS};

/// Addresses of both servers, and of hosts that have a fixed one.
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);
const FIXED: [&str; 3] = ["10.7.0.14", "10.7.0.75", "10.7.0.76"];
const GATEWAY: MacAddr = MacAddr([0x52, 0x55, 10, 7, 0, 2]);

/// A server.
trait Server {
    /// The address of its station.
    fn station(&self) -> MacAddr;

    /// Hands in a frame; returns the frame that answers it.
    fn answer(&mut self, frame: &[u8]) -> Option<Vec<u8>>;
}

impl Server for Services {
    fn station(&self) -> MacAddr {
        GATEWAY
    }

    fn answer(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        match self.frame(frame, Checksum::InFrame, 0) {
            Ok(FramePurpose::Here(answer)) => answer,
            Ok(other) => panic!("{other:?}"),
            Err(_) => None,
        }
    }
}

/// dnsmasq in a network namespace.
struct Dnsmasq {
    wire: Wire,
    station: MacAddr,
    _process: Process,
}

impl Dnsmasq {
    fn start(netns: &Netns, folder: &Path) -> Self {
        netns.ip("link add srv0 type veth peer name cli0");
        netns.ip(&format!("address add {SERVER}/24 dev srv0"));
        netns.ip("link set srv0 up");
        netns.ip("link set cli0 up");
        for fixed in FIXED {
            let neighbour = format!("neigh replace {fixed} lladdr 02:00:00:00:00:77 dev srv0");
            netns.ip(&format!("{neighbour} nud permanent"));
        }
        let args = format!(
            "--net={} dnsmasq --keep-in-foreground --conf-file=/dev/null --pid-file= --user=root \
             --port=0 --interface=srv0 --bind-interfaces --log-facility=- --no-ping \
             --leasefile-ro --dhcp-authoritative --bootp-dynamic \
             --dhcp-range=10.7.0.15,10.7.0.254,255.255.255.0,1h --dhcp-option=3,{SERVER} \
             --dhcp-option=6,10.7.0.3 --dhcp-option=15,internal --dhcp-option=26,1500",
            netns.path().display()
        );
        let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
        let mut process = Process::start("dnsmasq", "nsenter", &args, &folder.join("dnsmasq"));
        process.printed("dnsmasq serves", LIMIT, |line| {
            line.contains("sockets bound exclusively")
        });
        let links = netns.ip("-o link show dev srv0");
        let mut words = links.split_whitespace();
        let station = words.find(|word| *word == "link/ether").and(words.next());
        let station = station.and_then(|text| text.parse().ok());
        Self {
            wire: netns.wire("cli0"),
            station: station.expect("a station"),
            _process: process,
        }
    }
}

impl Server for Dnsmasq {
    fn station(&self) -> MacAddr {
        self.station
    }

    /// The server handles one message after the other: what has not come before the answer to
    /// another one does not come.
    fn answer(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let last = Client::new("the last one");
        let end = last.frame("53:01 flags=8000", self.station);
        self.wire.send(frame);
        self.wire.send(&end);
        let (asked, end) = (message::transaction(frame), message::transaction(&end));
        let mut answer = None;
        loop {
            let frame = self.wire.receive();
            match Answer::parse(&frame).map(|answer| answer.transaction) {
                Some(of) if Some(of) == end => return answer,
                Some(of) if Some(of) == asked => answer = Some(frame),
                _ => {}
            }
        }
    }
}

/// Returns the answer to the last message of a variant, in words.
fn outcome(server: &mut impl Server, name: &str, messages: &str) -> String {
    let mut client = Client::new(name);
    let mut outcome = String::new();
    for message in messages.split(';') {
        let frame = client.frame(message, server.station());
        let answer = server.answer(&frame);
        let answer = answer
            .as_deref()
            .map(|frame| Answer::parse(frame).unwrap_or_else(|| panic!("{name}: {frame:02x?}")));
        outcome = Answer::words(answer.as_ref(), &client);
        client.take(answer.as_ref());
    }
    outcome
}

#[test]
fn answers_are_those_of_dnsmasq() {
    if !Netns::allowed() {
        return;
    }
    if Command::new("dnsmasq").arg("--version").output().is_err() {
        return skipped("no dnsmasq (package dnsmasq-base)");
    }
    let _turn = e2e::beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let netns = Netns::new("dhcp", folder.path());
    let mut theirs = Dnsmasq::start(&netns, folder.path());
    let prefix = "10.7.0.0/24".parse().expect("a prefix");
    let network = Network::new(prefix, None, GATEWAY, 1500).expect("a network");
    let offer = Offer {
        route6: false,
        dns: true,
        search: Search::default(),
    };
    let mut own = Services::new(network, offer);
    let mut wrong = Vec::new();
    for (name, messages) in VARIANTS {
        let found = [
            outcome(&mut theirs, name, messages),
            outcome(&mut own, name, messages),
        ];
        let listed = DIFFERENT.iter().find(|listed| listed.name == name);
        let is_right = match listed {
            Some(listed) => found == [listed.theirs, listed.own],
            None => found[0] == found[1],
        };
        if !is_right {
            let [theirs, own] = found;
            wrong.push(format!("{name}: dnsmasq {theirs:?}, here {own:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let names = VARIANTS.map(|(name, _)| name);
    for listed in &DIFFERENT {
        assert!(names.contains(&listed.name), "{}", listed.name);
        assert!(
            !listed.why.is_empty() && listed.theirs != listed.own,
            "{}",
            listed.name
        );
    }
}
