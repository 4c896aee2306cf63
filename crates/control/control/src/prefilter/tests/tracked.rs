//! Segments with stateful rules: frames of known connections pass, whatever lists say of new ones.

use super::*;

/// The guest may open connections to all, and no other port to it.
fn stateful() -> Vec<AccessListSpec> {
    let out = vec![rule(10, RuleAction::AllowStateful, "0.0.0.0/0", None)];
    let into = vec![rule(10, RuleAction::Drop, "0.0.0.0/0", None)];
    vec![
        list("out", Direction::FromGuest, "vm", out),
        list("in", Direction::ToGuest, "vm", into),
    ]
}

fn flood(world: &mut World) -> usize {
    let mut ended = 0;
    for _ in 0..20 {
        ended = world.interval((0..1000).map(|n| frame(0x0101_0000 + n % 100, 80)));
    }
    ended
}

#[test]
fn a_flood_ends_but_for_the_connections_that_the_switch_knows() {
    let mut world = World::new(stateful());
    assert_eq!(flood(&mut world), 1000);
    let own = frame(0x0101_0007, 80);
    // A connection that begins meanwhile, to one of the flood's hosts.
    let connection = Conversation::of(&own);
    world.known.raise(&connection);
    assert!(!world.receive(&own, 0));
    assert!(world.receive(&frame(0x0101_0008, 80), 0));
    assert!(world.receive(&frame(0x0101_0007, 81), 0), "its other ports");
    world.known.lower(&connection);
    assert!(world.receive(&own, 0));
    // A switch that has just started knows all, for the time being.
    let words = Words::of_filter();
    offload::connections::create(&words);
    world.known = ConnectionFilter::new(words);
    assert!(!world.receive(&frame(0x0101_0008, 80), 0));
}

#[test]
fn of_tcp_only_the_first_segments_end() {
    let mut world = World::new(stateful());
    let segment = |n: u32, flags| {
        let frame = frame(0x0101_0000 + n % 100, 80);
        frame.with_ip_proto(6).with_l4_flags(flags)
    };
    for _ in 0..20 {
        world.interval((0..1000).map(|n| segment(n, [0x02, 0x10][n as usize % 2])));
    }
    let ends = |world: &mut World, flags| world.receive(&segment(3, flags), 0);
    assert!(ends(&mut world, 0x02) && ends(&mut world, 0x5042));
    // An acknowledgement, the answer to a SYN, a reset, an end.
    for flags in [0x10, 0x12, 0x04, 0x14, 0x11, 0x00] {
        assert!(!ends(&mut world, flags), "{flags:x}");
    }
}

#[test]
fn of_icmp_only_requests_end() {
    let mut world = World::new(stateful());
    let message = |n: u32, kind: u16| {
        let frame = frame(0x0101_0000 + n % 100, 0).with_l4_ports(0, 0);
        frame.with_ip_proto(1).with_l4_flags(kind << 8)
    };
    for _ in 0..20 {
        world.interval((0..1000).map(|n| message(n, [8, 3, 11, 0][n as usize % 4])));
    }
    for kind in 0..20 {
        assert_eq!(world.receive(&message(3, kind), 0), kind == 8, "{kind}");
    }
}

#[test]
fn entries_of_before_go_when_a_segment_is_tracked_or_no_more() {
    let plain = || {
        let out = vec![rule(10, RuleAction::Allow, "0.0.0.0/0", None)];
        let mut lists = stateful();
        lists[0] = list("out", Direction::FromGuest, "vm", out);
        lists
    };
    let mut world = World::new(plain());
    assert_eq!(flood(&mut world), 1000);
    let own = frame(0x0101_0007, 80);
    let connection = Conversation::of(&own);
    world.known.raise(&connection);
    assert!(world.receive(&own, 0), "no connection counts here");
    world.publish(stateful());
    assert_eq!(world.prefilter.len(), 0);
    flood(&mut world);
    assert!(world.prefilter.len() > 0 && !world.receive(&own, 0));
    world.publish(plain());
    assert_eq!(world.prefilter.len(), 0);
}

#[test]
fn wide_entries_in_the_place_of_narrow_ones_leave_connections_alone_too() {
    let mut lists = stateful();
    lists[1] = usual().remove(0);
    let mut world = World::new(lists);
    for n in 0..20_u32 {
        let near = (0..64).map(|flow| frame(0x0a08_ff00 + (n + flow) % 64, 53));
        world.interval(near.cycle().take(2000));
    }
    let mut random = SplitMix64(9);
    for _ in 0..40 {
        let flood = || frame(random.number() as u32, 53);
        world.interval(std::iter::repeat_with(flood).take(20_000));
    }
    assert!(world.prefilter.len() <= 64, "{}", world.prefilter.len());
    for _ in 0..100 {
        let own = frame(random.number() as u32, 53);
        let ends = world.receive(&own, 0);
        let connection = Conversation::of(&own);
        world.known.raise(&connection);
        assert!(!world.receive(&own, 0), "{ends}");
        world.known.lower(&connection);
    }
}
