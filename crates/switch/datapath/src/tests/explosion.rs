//! A guest that sprays keys against lists that distinguish as many keys as possible, which would
//! need many flows and masks (Open vSwitch, CVE-2019-25076: tuple space explosion).

use std::collections::HashSet;
use std::net::IpAddr;

use policy::acl::MAX_MASKS;
use testkit::packets::{Flow, udp};

use super::bench::{Bench, Move::*};

const SPRAYED: u32 = 2000;

/// Returns rules for port 1 alone, with prefixes and ports of all lengths.
fn lists(extra: u32) -> String {
    let mut text = "[[acl]]\nname = 'out'\ndirection = 'from-guest'\nports = ['p1']\n".to_owned();
    for len in 1..=32u32 {
        let (high, low) = (1u32 << (32 - len), 0x0a00_0000 ^ extra);
        let address = |bits: u32| std::net::Ipv4Addr::from_bits(bits & u32::MAX << (32 - len));
        let (source, destination) = (address(low ^ high), address(low ^ high.reverse_bits()));
        let port = 1u32 << (len % 16);
        text += &format!(
            "[[acl.rule]]\nname = 's{len}'\npriority = {len}\naction = 'drop'\nprotocol = 'udp'\n\
             source = ['{source}/{len}']\ndestination_ports = ['{port}-{}']\n\
             [[acl.rule]]\nname = 'd{len}'\npriority = {len}\naction = 'drop'\nprotocol = 'udp'\n\
             destination = ['{destination}/{len}']\nsource_ports = ['{port}-{}']\n",
            2 * port - 1,
            2 * port - 1,
        );
    }
    text
}

/// Sends frames of port 1 whose addresses and ports look random: a rotated Weyl sequence.
fn spray(bench: &mut Bench, round: u32) {
    for n in 0..SPRAYED {
        let turn = |by: u32| {
            (n + round * SPRAYED)
                .wrapping_mul(0x9e37_79b9)
                .rotate_left(by)
        };
        let address = |by| IpAddr::V4((0x0a00_0000 ^ turn(by) >> (n % 32)).into());
        let flow = Flow {
            src: address(3),
            dst: address(11),
            ..Flow::v4(1, 2).ports((turn(17) >> 16) as u16, (turn(5) >> 16) as u16)
        };
        bench.send_and_decide(1, &udp(&flow, &[7; 58]));
        bench.finish();
    }
    bench.port(2).delivered();
}

#[test]
fn cve_2019_25076_sprayed_keys_make_few_masks_and_cost_others_no_flow() {
    let mut bench = Bench::with_stations();
    let others = [(2, 3), (3, 2)];
    let frame = |(from, to): (u32, u32)| udp(&Flow::v4(from as u8, to as u8), &[7; 58]);
    for (from, to) in others {
        bench.send_and_decide(from, &frame((from, to)));
    }
    for round in 0..3 {
        // The flows of the old rules are removed, those of ports without rules stay.
        bench.set_access(&lists(round));
        spray(&mut bench, round);
        let flows = bench.switch.lookup.flows.records(bench.now);
        let masks: HashSet<_> = flows.iter().map(|flow| flow.mask).collect();
        let (all, many) = (masks.len(), flows.len());
        assert!(all <= MAX_MASKS, "{all} masks");
        assert!(
            all > 10 && many > 100,
            "{many} flows of {all} masks are no attack"
        );
        for (from, to) in others {
            let moves = [From(from, 1, 100), Hits(1), To(to, 1, 100)];
            bench.step(&moves, |b| b.send(from, &frame((from, to))));
        }
    }
}
