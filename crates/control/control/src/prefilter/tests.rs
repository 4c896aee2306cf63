//! The filling of a table in virtual time, with frames in place of a wire: the switch's part is the
//! decision.

mod tracked;

use std::collections::BTreeMap;

use api::v1::{AccessListSpec, AccessModel, Direction, PortText, RuleAction, RuleSpec};
use offload::heap::Words;
use offload::{ConnectionFilter, Conversation, Page};
use policy::acl::{Names, Rules};
use policy::{Action, Model, PortMode, Segment, SegmentId, decide};
use port::DropReason;
use wire::hash::SplitMix64;
use wire::{EtherType, MacAddr};

use super::*;

const LAN: SegmentId = SegmentId(0);
const UPLINK: PortId = PortId(1);
const GUEST: u64 = 0x0200_0000_0002;

/// An uplink and a guest in one segment, and what happens to frames.
struct World {
    program: Program,
    named: NamedMacs,
    memory: Words,
    prefilter: Prefilter<Words>,
    /// Connections that the switch knows.
    known: ConnectionFilter<Words>,
    now: Duration,
    /// Frames that the switch has denied, and let pass.
    denied: u64,
    passed: u64,
}

fn station(_: SegmentId, mac: MacAddr) -> Option<PortId> {
    (mac.to_u64() == GUEST).then_some(PortId(2))
}

fn program(lists: Vec<AccessListSpec>) -> Program {
    let segment = Segment {
        name: "lan".to_owned(),
        vlan: None,
    };
    let model = Model {
        segments: [(LAN, segment)].into(),
        ports: [UPLINK, PortId(2)]
            .map(|port| (port, PortMode::Access(LAN)))
            .into(),
    };
    let access = AccessModel {
        lists,
        ..AccessModel::default()
    };
    let ports = BTreeMap::from([("up".to_owned(), UPLINK), ("vm".to_owned(), PortId(2))]);
    let classes = BTreeMap::new();
    let names = Names {
        segments: &model.segments,
        ports: &ports,
        classes: &classes,
    };
    let rules = Rules::compile(&access, names).expect("sound lists").rules;
    Program::compile(&model, 1)
        .expect("a sound model")
        .with_rules(rules, 2)
}

/// A rule by its priority; `port`: its destination port.
fn rule(priority: u32, action: RuleAction, source: &str, port: Option<i64>) -> RuleSpec {
    RuleSpec {
        name: format!("r{priority}"),
        priority,
        action,
        source: vec![source.to_owned()],
        protocol: port.map(|_| "udp".to_owned()),
        destination_ports: port.map(PortText::Number).into_iter().collect(),
        ..RuleSpec::default()
    }
}

/// A list of a port.
fn list(name: &str, direction: Direction, port: &str, rules: Vec<RuleSpec>) -> AccessListSpec {
    AccessListSpec {
        name: name.to_owned(),
        direction,
        segments: Vec::new(),
        groups: Vec::new(),
        ports: vec![port.to_owned()],
        rules: rules.into(),
    }
}

/// A list of the guest: only 10.9.0.0/16 may send to port 53, and no other anything.
fn usual() -> Vec<AccessListSpec> {
    let rules = vec![
        rule(20, RuleAction::Allow, "10.9.0.0/16", Some(53)),
        rule(10, RuleAction::Drop, "0.0.0.0/0", None),
    ];
    vec![list("web", Direction::ToGuest, "vm", rules)]
}

fn frame(source: u32, port: u16) -> FlowKey {
    FlowKey::default()
        .with_ethertype(EtherType::IPV4)
        .with_smac(MacAddr::from_u64(0x0200_0000_0099))
        .with_dmac(MacAddr::from_u64(GUEST))
        .with_ip_proto(17)
        .with_src_ip(source.into())
        .with_dst_ip(0x0a00_0002)
        .with_l4_ports(999, port)
}

impl World {
    fn new(lists: Vec<AccessListSpec>) -> Self {
        let memory = Words::zeros();
        offload::create(&memory);
        let of_filter = Words::of_filter();
        offload::connections::create(&of_filter);
        let known = ConnectionFilter::begin(of_filter, 3).unwrap();
        known.publish();
        let program = program(lists);
        Self {
            named: NamedMacs::of(&program),
            program,
            prefilter: Prefilter::new(UPLINK, memory.clone(), 7).unwrap(),
            memory,
            known,
            now: Duration::from_secs(100),
            denied: 0,
            passed: 0,
        }
    }

    /// A frame arrives. Returns whether it ended before the switch.
    fn receive(&mut self, key: &FlowKey, cpu: usize) -> bool {
        let now = self.now.as_nanos() as u64;
        let decision = decide(&self.program, &station, &key.with_in_port(UPLINK.0));
        let is_denied = decision.action == Action::Drop(DropReason::AclDenied);
        let may_be_known = self.known.may_know(&Conversation::of(key));
        if Page::new(&self.memory).receive_of((key, may_be_known), cpu, 60, now) {
            assert!(is_denied, "the policy allows {key:?}");
            return true;
        }
        *if is_denied {
            &mut self.denied
        } else {
            &mut self.passed
        } += 1;
        false
    }

    /// An interval passes, with these frames in it. Returns how many ended before the switch.
    fn interval(&mut self, frames: impl Iterator<Item = FlowKey>) -> usize {
        let ended = frames
            .enumerate()
            .filter(|(n, key)| self.receive(key, n % 3))
            .count();
        self.now += INTERVAL;
        if self.prefilter.is_active() {
            let policy = Policy {
                program: &self.program,
                fdb: &station,
                named: self.named,
            };
            self.prefilter.tick(self.now, self.denied, &policy);
        } else {
            self.prefilter.look(self.now, self.denied);
        }
        ended
    }

    fn publish(&mut self, lists: Vec<AccessListSpec>) {
        let program = program(lists);
        let named = NamedMacs::of(&program);
        let policy = Policy {
            program: &program,
            fdb: &station,
            named,
        };
        self.prefilter.revalidate(self.now, &policy, None);
        (self.program, self.named) = (program, named);
    }
}

#[test]
fn a_flood_of_one_flow_ends_at_one_entry_and_its_frames_are_counted_for_the_rule() {
    let mut world = World::new(usual());
    let flood = || std::iter::repeat_n(frame(0x0101_0101, 80), 1000);
    let mut ended = 0;
    for _ in 0..20 {
        ended += world.interval(flood());
    }
    assert!(ended >= 16_000, "{ended}");
    assert_eq!(world.prefilter.len(), 1);
    assert_eq!(world.prefilter.total().frames, ended as u64);
    for _ in 0..10 {
        ended += world.interval(flood());
    }
    // As of the last second.
    let uses = world.prefilter.take_uses();
    assert_eq!(uses.len(), 1);
    assert!(uses[0].packets >= ended as u64 - 11_000 && uses[0].packets <= ended as u64);
    assert_eq!(uses[0].bytes, 60 * uses[0].packets);
    assert_eq!(uses[0].rule, RuleId::of("web", "r10"));
}

#[test]
fn random_sources_and_ports_end_at_few_entries_and_those_that_are_allowed_pass() {
    let mut world = World::new(usual());
    let mut random = SplitMix64(3);
    let mut last = 0;
    for _ in 0..40 {
        let numbers: Vec<u64> = (0..4000).map(|_| random.number()).collect();
        let flood = numbers.iter().map(|n| match n % 64 {
            // Of the network that may ask, each to another port.
            0 => frame(0x0a09_0000 | (n >> 48) as u32, 53),
            1 => frame(0x0a09_0000 | (n >> 48) as u32, (n >> 8) as u16),
            _ => frame((n >> 32) as u32, (n >> 8) as u16),
        });
        last = world.interval(flood);
    }
    assert!(last >= 3880, "{last} of 4000");
    assert!(world.prefilter.len() <= 128, "{}", world.prefilter.len());
    assert!(world.passed >= 2000, "{}", world.passed);
}

#[test]
fn random_sources_end_at_few_entries_where_a_network_may_send() {
    let arp = RuleSpec {
        name: "arp".to_owned(),
        priority: 30,
        action: RuleAction::Allow,
        ether_type: Some("arp".to_owned()),
        ..RuleSpec::default()
    };
    let rules = vec![
        arp,
        rule(20, RuleAction::Allow, "10.77.0.0/24", None),
        RuleSpec {
            source: Vec::new(),
            ..rule(10, RuleAction::Drop, "", None)
        },
    ];
    let mut world = World::new(vec![list("web", Direction::ToGuest, "vm", rules)]);
    let mut random = SplitMix64(5);
    for _ in 0..40 {
        let flood = || frame(random.number() as u32, 80);
        world.interval(std::iter::repeat_with(flood).take(60_000));
    }
    assert!(world.prefilter.len() <= 128, "{}", world.prefilter.len());
}

#[test]
fn entries_of_a_few_flows_become_few_wide_ones_in_a_flood_of_many() {
    let mut world = World::new(usual());
    // Close to the network that may send, so that many bits decide.
    for n in 0..20_u32 {
        let near = (0..64).map(|flow| frame(0x0a08_ff00 + (n + flow) % 64, 53));
        world.interval(near.cycle().take(2000));
    }
    let mut random = SplitMix64(9);
    for _ in 0..40 {
        let flood = || {
            let number = random.number();
            frame(number as u32, [53, 80][(number >> 40) as usize % 2])
        };
        world.interval(std::iter::repeat_with(flood).take(20_000));
    }
    let flood = |random: &mut SplitMix64| frame(random.number() as u32, 53);
    let ended = world.interval((0..10_000).map(|_| flood(&mut random)));
    assert!(ended >= 9_900, "{ended}");
    assert!(world.prefilter.len() <= 64, "{}", world.prefilter.len());
}

/// An entry may be narrower than its sample needs, and stay when a change of lists makes more bits
/// decide.
#[test]
fn wide_entries_are_those_of_the_present_lists() {
    // Where 200.222 may send, many bits decide.
    let strict = || {
        let rules = vec![
            rule(30, RuleAction::Allow, "200.222.0.0/16", None),
            rule(10, RuleAction::Drop, "0.0.0.0/0", None),
        ];
        vec![list("web", Direction::ToGuest, "vm", rules)]
    };
    let mut world = World::new(strict());
    let from = |first: u32| move |n: u32| frame(0xc800_0000 | (first + n % 20) << 16, 53);
    for _ in 0..25 {
        world.interval((0..2000).map(from(226)));
    }
    let before = world.prefilter.len();
    // Few bits decide for a moment, in which more entries of the same masks are added.
    world.publish(usual());
    for _ in 0..2 {
        world.interval((0..2000).map(from(160)));
    }
    assert!(
        world.prefilter.len() > before,
        "{before} {}",
        world.prefilter.len()
    );
    world.publish(strict());
    assert!(world.prefilter.len() > before, "they stay");
    for _ in 0..30 {
        // Each frame that ends is checked.
        world.interval((0..2000).map(from(160)));
        world.interval([frame(0xc8de_0001, 53)].into_iter());
    }
    assert_eq!(world.passed, 30);
}

#[test]
fn few_denied_frames_cause_nothing() {
    let mut world = World::new(usual());
    for _ in 0..50 {
        world.interval(std::iter::repeat_n(frame(0x0101_0101, 80), 90));
    }
    assert!(!world.prefilter.is_active());
    assert_eq!(world.prefilter.changes, Changes::default());
}

#[test]
fn entries_go_when_the_flood_has_ended_and_then_nothing_is_done() {
    let mut world = World::new(usual());
    for _ in 0..10 {
        world.interval(std::iter::repeat_n(frame(0x0101_0101, 80), 1000));
    }
    assert!(world.prefilter.len() == 1 && world.prefilter.is_active());
    for _ in 0..130 {
        world.interval(std::iter::empty());
    }
    assert!(world.prefilter.len() == 0 && !world.prefilter.is_active());
    assert!(!world.receive(&frame(0x0101_0101, 80), 0));
}

#[test]
fn entries_outlive_a_control_that_hangs_for_two_seconds() {
    let mut world = World::new(usual());
    for _ in 0..10 {
        world.interval(std::iter::repeat_n(frame(0x0101_0101, 80), 1000));
    }
    world.now += Duration::from_millis(1300);
    assert!(world.receive(&frame(0x0101_0101, 80), 0));
    world.now += Duration::from_millis(700);
    assert!(!world.receive(&frame(0x0101_0101, 80), 0));
}

#[test]
fn a_new_policy_removes_what_it_allows_or_denies_by_another_rule() {
    let mut world = World::new(usual());
    let both = || {
        [frame(0x0101_0101, 80), frame(0x0a0a_0a0a, 80)]
            .into_iter()
            .cycle()
            .take(2000)
    };
    for _ in 0..10 {
        world.interval(both());
    }
    let before = world.prefilter.len();
    let mut lists = usual();
    let of = &mut lists[0].rules;
    *of = of
        .iter()
        .cloned()
        .chain([rule(15, RuleAction::Allow, "1.0.0.0/8", None)])
        .collect();
    world.publish(lists.clone());
    assert!(world.prefilter.len() < before);
    assert!(!world.receive(&frame(0x0101_0101, 80), 0));
    for _ in 0..10 {
        world.interval(both());
    }
    assert!(world.receive(&frame(0x0a0a_0a0a, 80), 0), "still denied");
    let of = &mut lists[0].rules;
    *of = of
        .iter()
        .cloned()
        .chain([rule(12, RuleAction::Drop, "10.0.0.0/8", None)])
        .collect();
    world.publish(lists);
    assert_eq!(world.prefilter.len(), 0, "by another rule");
    world.publish(Vec::new());
    for _ in 0..10 {
        assert_eq!(world.interval(both()), 0);
    }
}

#[test]
fn a_station_that_moves_is_decided_anew_and_the_others_stay() {
    let mut world = World::new(usual());
    for _ in 0..10 {
        world.interval(std::iter::repeat_n(frame(0x0101_0101, 80), 1000));
    }
    let nowhere = |_: SegmentId, _: MacAddr| Some(UPLINK);
    let policy = Policy {
        program: &world.program,
        fdb: &nowhere,
        named: world.named,
    };
    world
        .prefilter
        .revalidate(world.now, &policy, Some(MacAddr::from_u64(GUEST + 1)));
    assert_eq!(world.prefilter.len(), 1, "it is another station");
    world
        .prefilter
        .revalidate(world.now, &policy, Some(MacAddr::from_u64(GUEST)));
    assert_eq!(world.prefilter.len(), 0, "its frames are reflected now");
}

#[test]
fn when_it_is_stopped_nothing_ends_until_there_is_a_flood_again() {
    let mut world = World::new(usual());
    for _ in 0..10 {
        world.interval(std::iter::repeat_n(frame(0x0101_0101, 80), 1000));
    }
    world.prefilter.stop(world.now);
    assert!(!world.receive(&frame(0x0101_0101, 80), 0));
    assert!(!world.prefilter.is_active());
    let total = world.prefilter.total();
    let next = Prefilter::new(UPLINK, world.memory.clone(), 8).unwrap();
    assert_eq!(next.total(), total, "counters stay");
    for _ in 0..10 {
        world.interval(std::iter::repeat_n(frame(0x0101_0101, 80), 1000));
    }
    assert!(world.receive(&frame(0x0101_0101, 80), 0));
}

/// Policies and frames at random, and changes under way: no frame ends that the policy allows
/// (`receive` asserts it).
#[test]
fn no_frame_ends_that_the_policy_allows() {
    for seed in 0..if testkit::is_complete_run() { 400 } else { 40 } {
        let mut random = SplitMix64(seed);
        let lists = |random: &mut SplitMix64| {
            let rules = (0..random.below(6)).map(|n| {
                let action = match random.below(2) {
                    0 => RuleAction::Allow,
                    _ => RuleAction::Drop,
                };
                let source = format!("{}.0.0.0/{}", random.below(4) * 64, 2 + random.below(7));
                let port = (random.below(2) == 0).then(|| random.below(8) as i64);
                rule(100 - n as u32, action, &source, port)
            });
            let rules = rules.collect();
            let direction = match random.below(2) {
                0 => Direction::ToGuest,
                _ => Direction::FromGuest,
            };
            let port = match direction {
                Direction::ToGuest => "vm",
                Direction::FromGuest => "up",
            };
            vec![list("l", direction, port, rules)]
        };
        let first = lists(&mut random);
        let mut world = World::new(first);
        for n in 0..60 {
            if n % 7 == 6 {
                let next = lists(&mut random);
                world.publish(next);
            }
            let numbers: Vec<u64> = (0..600).map(|_| random.number()).collect();
            let frames = numbers
                .iter()
                .map(|n| frame((n >> 32) as u32, (n % 8) as u16));
            world.interval(frames);
        }
    }
}
