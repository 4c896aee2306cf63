//! Access lists: decisions, cached decisions, and new decisions when lists change.

use ipc::records::{Answer, SourceRole};
use policy::Action;
use port::{DropReason, PortId};
use proptest::prelude::*;
use testkit::packets::{BROADCAST, Flow, ethernet, mac, tcp, udp};
use wire::MacAddr;
use wire::build::{PacketBuilder, TcpFields};

use super::bench::{BLUE, Bench, Move::*, RED};
use crate::forward::reject::PER_SECOND;

/// Ports 2 and 3 receive nothing that a list does not allow.
const NOTHING: &str = "
[[acl]]
name = 'in'
direction = 'to-guest'
ports = ['p2', 'p3']
[[acl.rule]]
name = 'all'
action = 'drop'
";

/// Only port 3 receives nothing.
const NOT_THREE: &str = "
[[acl]]
name = 'in'
direction = 'to-guest'
ports = ['p3']
[[acl.rule]]
name = 'all'
action = 'drop'
";

/// Port 1 sends no UDP to one address.
const NOT_FROM_ONE: &str = "
[[acl]]
name = 'out'
direction = 'from-guest'
ports = ['p1']
[[acl.rule]]
name = 'udp'
action = 'drop'
protocol = 'udp'
destination = ['10.0.0.2']
";

/// Everything in red needs a rule.
const RED_DENIES: &str = "
[[acl_default]]
segment = 'red'
from_guest = 'deny'
to_guest = 'deny'
";

const ALL: [&str; 5] = ["", NOTHING, NOT_THREE, NOT_FROM_ONE, RED_DENIES];

fn frame(a: u8, b: u8) -> Vec<u8> {
    udp(&Flow::v4(a, b), &[7; 58])
}

fn broadcast(a: u8) -> Vec<u8> {
    ethernet(BROADCAST, mac(a), 0x88b5, &[0; 86])
}

fn known() -> Bench {
    let mut bench = Bench::with_stations();
    bench.learn(RED, mac(4), 4);
    bench.learn(RED, mac(5), 5);
    bench
}

/// Returns the number of frames that each of the ports 1 to 7 gets from `act`.
fn received(bench: &mut Bench, act: impl FnOnce(&mut Bench)) -> [usize; 7] {
    let take = |bench: &Bench| [1, 2, 3, 4, 5, 6, 7].map(|id| bench.port(id).frames().len());
    take(bench);
    act(bench);
    take(bench)
}

#[test]
fn frames_that_a_receiver_denies_cause_one_upcall() {
    let mut bench = known();
    bench.set_access(NOTHING);
    let denied = Drop(1, DropReason::AclDenied, 1);
    bench.step(&[From(1, 1, 100), Misses(1), Upcalls(1), denied], |b| {
        b.send_and_decide(1, &frame(1, 2));
    });
    bench.step(&[From(1, 1, 100), Hits(1), denied], |b| {
        b.send(1, &frame(1, 2));
    });
    bench.set_access("");
    let got = received(&mut bench, |b| b.send_and_decide(1, &frame(1, 2)));
    assert_eq!(got, [0, 1, 0, 0, 0, 0, 0]);
}

/// Port 2 rejects some frames with a reply.
const REJECTS: &str = "
[[acl]]
name = 'in'
direction = 'to-guest'
ports = ['p2']
[[acl.rule]]
name = 'all'
action = 'reject'
";

#[test]
fn rejected_frames_get_replies_from_the_cache_up_to_a_rate() {
    let mut bench = known();
    bench.set_access(REJECTS);
    let rejects = |bench: &mut Bench| {
        let frames = bench.port(1).frames();
        let is_answer = |f: &Vec<u8>| {
            let p = wire::ParsedHeaders::parse(f, f.len());
            (p.src.0, p.dst.0, p.l4_flags) == (mac(2), mac(1), 3 << 8 | 13)
        };
        assert!(frames.iter().all(is_answer));
        frames.len()
    };
    for again in 0..3 {
        bench.send_and_decide(1, &frame(1, 2));
        assert_eq!(rejects(&mut bench), 1, "{again}");
    }
    assert_eq!(bench.switch.figures().flows, 1);
    for _ in 0..2 * PER_SECOND {
        bench.send(1, &frame(1, 2));
    }
    assert_eq!(rejects(&mut bench), PER_SECOND as usize - 3);
    bench.switch.set_clock(1_000_000_000);
    bench.send(1, &frame(1, 2));
    assert_eq!(rejects(&mut bench), 1);
    let all = u64::from(2 * PER_SECOND) + 4;
    let moves = [
        From(1, 1, 100),
        Hits(1),
        Drop(1, DropReason::AclRejected, 1),
        To(1, 1, 128),
    ];
    bench.step(&moves, |b| b.send(1, &frame(1, 2)));
    assert_eq!(bench.totals().2, all + 1);
}

/// Frames that get no reply do not use the budget of the port.
#[test]
fn rejected_frames_without_a_reply_do_not_use_the_budget() {
    let mut bench = known();
    bench.set_access(REJECTS);
    let segment = |flags| {
        PacketBuilder::new(MacAddr(mac(1)), MacAddr(mac(2)))
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
            .tcp(TcpFields {
                flags,
                ..TcpFields::default()
            })
            .build()
    };
    let (reset, syn) = (segment(4), segment(2));
    for _ in 0..2 * PER_SECOND {
        bench.send_and_decide(1, &reset);
    }
    assert_eq!(bench.port(1).frames().len(), 0);
    bench.send_and_decide(1, &syn);
    assert_eq!(bench.port(1).frames().len(), 1);
}

#[test]
fn a_tagged_sender_gets_a_tagged_reply() {
    let mut bench = known();
    bench.set_access(REJECTS);
    let tagged = udp(&Flow::v4(4, 2).tagged(10), &[7; 58]);
    bench.send_and_decide(4, &tagged);
    let [rejects] = bench.port(4).frames().try_into().unwrap();
    let p = wire::ParsedHeaders::parse(&rejects, rejects.len());
    assert_eq!(p.vlan.map(|tag| tag.vid), Some(10));
}

#[test]
fn a_reset_over_ipv6_comes_from_the_cache_too() {
    let mut bench = known();
    bench.set_access(REJECTS);
    for again in 0..2 {
        bench.send_and_decide(1, &tcp(&Flow::v6(1, 2), 7, &[7; 58]));
        let [rejects] = bench.port(1).frames().try_into().unwrap();
        let p = wire::ParsedHeaders::parse(&rejects, rejects.len());
        assert_eq!((p.l4_proto, p.l4_flags & 4), (6, 4), "{again}");
    }
}

#[test]
fn a_cached_flood_excludes_denying_receivers() {
    let mut bench = known();
    assert_eq!(
        received(&mut bench, |b| b.send_and_decide(1, &broadcast(1))),
        [0, 1, 1, 1, 0, 1, 0]
    );
    let counted = |bench: &Bench| [2, 3].map(|port| bench.dropped(port, DropReason::AclExcluded));
    for (access, two, three) in [(NOT_THREE, 1, 0), (NOTHING, 0, 0), ("", 1, 1)] {
        bench.set_access(access);
        let before = counted(&bench);
        for again in 0..3 {
            let got = received(&mut bench, |b| b.send_and_decide(1, &broadcast(1)));
            assert_eq!(got, [0, two, three, 1, 0, 1, 0], "{access} {again}");
        }
        let excluded = [two, three].map(|got| 3 * (1 - got as u64));
        let expected = [before[0] + excluded[0], before[1] + excluded[1]];
        assert_eq!(
            counted(&bench),
            expected,
            "{access}: the drop is counted at the excluded receiver"
        );
        assert_eq!(bench.switch.figures().flows, 1);
    }
}

#[test]
fn only_outdated_flows_cause_new_upcalls() {
    let mut bench = known();
    bench.send_and_decide(1, &frame(1, 2));
    bench.send_and_decide(2, &frame(2, 1));
    bench.send_and_decide(2, &frame(2, 3));
    bench.send_and_decide(5, &frame(5, 4));
    bench.send_and_decide(5, &broadcast(5));
    assert_eq!(bench.switch.figures().flows, 5);
    // Flows from and to port 3.
    bench.set_access(NOT_THREE);
    assert_eq!(bench.switch.figures().flows, 4);
    // Flows from and to port 1.
    bench.set_access(&format!("{NOT_THREE}{NOT_FROM_ONE}"));
    assert_eq!(bench.switch.figures().flows, 2);
    bench.set_access(&format!("{NOT_FROM_ONE}{NOT_THREE}"));
    assert_eq!(bench.switch.figures().flows, 2, "nothing is another");
}

#[test]
fn a_decision_of_another_program_is_not_cached() {
    let mut bench = known();
    bench.send(1, &frame(1, 2));
    let upcall = bench.ring.upcalls.remove(0);
    bench.set_access(NOTHING);
    let key = upcall.flow_key();
    let late = Answer::Install {
        upcall: Some(upcall.id),
        key: *key.masked(&policy::DECISION_MASK).words(),
        mask: *policy::DECISION_MASK.words(),
        action: Action::Unicast {
            port: PortId(2),
            tag: None,
        },
        segment: Some(BLUE),
        source: SourceRole::Holder,
        class: policy::DEFAULT_CLASS,
        connection: policy::ConnectionChange::None,
        except: Vec::new(),
        rules: Vec::new(),
        epoch: 1,
    };
    // The frame was sent before the lists changed, and is not lost.
    bench.step(&[To(2, 1, 100)], |b| b.switch.answer(late, b.now));
    assert_eq!(bench.switch.figures().flows, 0);
    let denied = Drop(1, DropReason::AclDenied, 1);
    bench.step(&[From(1, 1, 100), Misses(1), Upcalls(1), denied], |b| {
        b.send_and_decide(1, &frame(1, 2));
    });
}

#[test]
fn an_answer_that_is_not_cached_excludes_members_too() {
    let mut bench = known();
    bench.send(1, &broadcast(1));
    let upcall = bench.ring.upcalls.remove(0).id;
    let once = Answer::Once {
        upcall,
        action: Action::flood(BLUE),
        class: policy::DEFAULT_CLASS,
        connection: policy::ConnectionChange::None,
        except: vec![PortId(6), PortId(2)],
        rules: Vec::new(),
        epoch: 1,
    };
    let got = received(&mut bench, |b| b.switch.answer(once, b.now));
    assert_eq!(got, [0, 0, 1, 1, 0, 0, 0]);
}

#[test]
fn a_check_keeps_allowed_flows_and_removes_denied_ones() {
    let mut bench = known();
    bench.set_access(NOT_THREE);
    bench.send_and_decide(1, &frame(1, 2));
    bench.send_and_decide(1, &broadcast(1));
    bench.send_and_decide(1, &frame(1, 3));
    assert_eq!(bench.switch.figures().flows, 3);
    bench.check();
    assert_eq!(bench.switch.figures().flows, 2);
    bench.step(&[From(1, 1, 100), Hits(1), To(2, 1, 100)], |b| {
        b.send(1, &frame(1, 2));
    });
    let got = received(&mut bench, |b| b.send(1, &broadcast(1)));
    assert_eq!(got, [0, 1, 0, 1, 0, 1, 0]);
    // A station that moved is found in spite of the lists.
    bench.learn(BLUE, mac(2), 4);
    bench.check();
    assert_eq!(bench.switch.figures().flows, 1);
}

/// A case has up to forty steps, each of which sends a frame of every kind.
fn cases() -> u32 {
    if testkit::is_complete_run() { 256 } else { 40 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    /// Lists that change at any time: the result for a frame equals that of a switch without a
    /// cache.
    #[test]
    fn the_cache_never_differs_from_the_lists(
        steps in prop::collection::vec((0..ALL.len(), 1..=3u8, 0..=5u8, any::<bool>()), 1..40),
    ) {
        let (mut bench, mut last) = (known(), 0);
        for (access, from, to, check) in steps {
            if access != last {
                bench.set_access(ALL[access]);
                last = access;
            }
            if check {
                bench.check();
            }
            let from = if to > 3 { 9 - to } else { from };
            let frame = if to == 0 { broadcast(from) } else { frame(from, to) };
            let got = received(&mut bench, |b| b.send_and_decide(from.into(), &frame));
            let mut fresh = known();
            fresh.set_access(ALL[access]);
            let desired = received(&mut fresh, |b| b.send_and_decide(from.into(), &frame));
            prop_assert_eq!(got, desired, "from {} to {} with {}", from, to, ALL[access]);
        }
    }
}

/// Port 1 may send UDP only; ports 2 and 3 receive everything, by rules of their own.
const COUNTED: &str = "
[[acl]]
name = 'out'
direction = 'from-guest'
ports = ['p1']
rule = [
    { name = 'udp', action = 'allow', protocol = 'udp' },
    { name = 'rest', action = 'drop', priority = 0 },
]
[[acl]]
name = 'in'
direction = 'to-guest'
ports = ['p2', 'p3']
rule = [{ name = 'all', action = 'allow' }]
";

#[test]
fn frames_are_counted_for_every_rule_that_decides_about_them_and_once_each() {
    let mut bench = known();
    bench.set_access(COUNTED);
    assert_eq!(bench.counted(), [].into());
    // The first frame waits for the answer and has no flow.
    bench.send_and_decide(1, &frame(1, 2));
    let each = [("udp", (1, 100)), ("all", (1, 100))];
    assert_eq!(bench.counted(), each.into());
    for _ in 0..3 {
        bench.send(1, &frame(1, 2));
    }
    assert_eq!(
        bench.counted(),
        [("udp", (3, 300)), ("all", (3, 300))].into()
    );
    assert_eq!(bench.counted(), [].into(), "counts are reset");
    // A flood to two ports by one rule.
    let flood = udp(&Flow::v4(1, 77), &[7; 58]);
    bench.send_and_decide(1, &flood);
    bench.send(1, &flood);
    assert_eq!(
        bench.counted(),
        [("udp", (2, 200)), ("all", (2, 200))].into()
    );
    // A rule that drops counts, too, and no further rule is evaluated.
    bench.send_and_decide(1, &broadcast(1));
    bench.send(1, &broadcast(1));
    assert_eq!(bench.counted(), [("rest", (2, 200))].into());
    // Without rules nothing is counted.
    bench.send_and_decide(2, &frame(2, 1));
    bench.send(2, &frame(2, 1));
    assert_eq!(bench.counted(), [].into());
}

/// Everything may be sent, and UDP alone may be received.
const UDP_ALONE: &str = "
[[acl]]
name = 'out'
direction = 'from-guest'
ports = ['p1']
rule = [{ name = 'all', action = 'allow' }]
[[acl]]
name = 'in'
direction = 'to-guest'
ports = ['p2', 'p3']
rule = [
    { name = 'udp', action = 'allow', protocol = 'udp' },
    { name = 'rest', action = 'drop', priority = 0 },
]
";

#[test]
fn frames_that_cannot_be_parsed_count_for_no_rule() {
    let mut bench = known();
    bench.set_access(UDP_ALONE);
    // IPv6 with half of a header of hop-by-hop options.
    let mut packet = vec![0x60, 0, 0, 0, 0, 4, 0, 64];
    packet.extend([0x20; 32]);
    packet.extend([6, 0, 1, 4]);
    let cut_off = ethernet(mac(2), mac(1), 0x86dd, &packet);
    let dropped = |number| Drop(1, DropReason::Unparseable, number);
    let len = cut_off.len() as u64;
    bench.step(&[From(1, 1, len), Misses(1), Upcalls(1), dropped(1)], |b| {
        b.send_and_decide(1, &cut_off);
    });
    // From the cache, too.
    bench.step(&[From(1, 1, len), Hits(1), dropped(1)], |b| {
        b.send(1, &cut_off)
    });
    assert_eq!(bench.counted(), [].into());
    bench.send_and_decide(1, &frame(1, 2));
    assert_eq!(
        bench.counted(),
        [("all", (1, 100)), ("udp", (1, 100))].into(),
        "what can be parsed"
    );
}

#[test]
fn rule_counts_survive_removed_flows() {
    let mut bench = known();
    bench.set_access(COUNTED);
    bench.send_and_decide(1, &frame(1, 2));
    bench.send(1, &frame(1, 2));
    bench.set_access("");
    bench.send(1, &frame(1, 2));
    assert_eq!(
        bench.counted(),
        [("udp", (2, 200)), ("all", (2, 200))].into()
    );
}
