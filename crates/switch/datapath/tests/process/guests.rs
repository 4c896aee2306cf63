//! Guests that follow the rules: in every shape, connecting and disconnecting.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ipc::switching::{PortPhase, Role, SwitchCommand};
use port::{DropReason, PortId, REASONS};
use testkit::driver::Shape;
use testkit::features::{
    ALL_OFFLOADS, EVENT_IDX, INDIRECT_DESC, MRG_RXBUF, RING_PACKED, VERSION_1,
};
use testkit::frontend::{FrontEnd, FrontListener, Inflight};
use testkit::net::{Cuts, NetHeader, RxBuffers};
use testkit::packets::{Flow, mac, on_the_wire, tcp_super, udp};
use testkit::{FakeGuest, GuestConfig};

use crate::host::{Host, LIMIT, wait_for};
use crate::traffic::{disconnect, drain, lengths, numbered, one_way, stray, talk};

fn shapes() -> Vec<GuestConfig> {
    let base = GuestConfig::default;
    vec![
        base(),
        base().packed(),
        base().in_order(),
        base().packed().in_order(),
        base().without(EVENT_IDX),
        base().packed().without(EVENT_IDX | INDIRECT_DESC),
        base().without(MRG_RXBUF | ALL_OFFLOADS),
        GuestConfig {
            shape: Shape::Indirect,
            tx_cuts: Cuts::HeaderApart,
            rx_cuts: Cuts::HeaderApart,
            ..base()
        },
        GuestConfig {
            shape: Shape::Indirect,
            tx_cuts: Cuts::Every(130),
            ..base().packed()
        },
        GuestConfig {
            shape: Shape::Mixed(2),
            tx_cuts: Cuts::Every(121),
            rx_cuts: Cuts::At(vec![3, 9, 500]),
            ..base().in_order()
        },
        GuestConfig {
            busy: true,
            memory_slots: true,
            ..base()
        },
        base().legacy(),
        // As legacy drivers without ANY_LAYOUT: the short header in a descriptor of its own.
        GuestConfig {
            tx_cuts: Cuts::At(vec![10]),
            rx_cuts: Cuts::At(vec![10]),
            ..base().legacy().without(MRG_RXBUF | INDIRECT_DESC)
        },
        base().legacy().without(MRG_RXBUF),
        base().legacy().without(MRG_RXBUF | ALL_OFFLOADS),
    ]
}

#[test]
fn guests_of_every_shape_talk() {
    let mut host = Host::with_ports([1, 2]);
    let shapes = shapes();
    for (at, shape) in shapes.iter().enumerate() {
        let mut a = host.guest(1, shape.clone());
        let mut b = host.guest(2, shapes[(at + 1) % shapes.len()].clone());
        talk(&mut a, &mut b, 300);
        // A TSO frame, whole or segmented as the receiver requires.
        let (frame, header) = tcp_super(&Flow::v4(1, 2), 1, &[9; 30_000], 1448);
        if a.features() & testkit::features::HOST_TSO4 != 0 {
            a.send_on(0, &frame, &header).expect("room");
            let wire = on_the_wire(&frame, &header).expect("fits");
            let mut there = Vec::new();
            while there.len() < wire.len() {
                let got = b.recv(LIMIT).expect("correct").expect("a frame");
                there.extend(on_the_wire(&got.frame, &got.header).expect("fits"));
            }
            assert!(there == wire, "shape {at}");
        }
        let state = host.state(1);
        assert_eq!((state.phase, state.queues.len()), (PortPhase::Up, 2));
        assert_eq!(state.features & !(1 << 30), a.features() & !(1 << 30));
        a.disconnect().expect("a good end");
        b.crash();
        host.wait_phase(1, PortPhase::Waiting);
        host.wait_phase(2, PortPhase::Waiting);
    }
    let (from, to, drops) = host.totals();
    assert!(from > 6_000 && to > from, "{from} {to}");
    assert_eq!(drops, 0);
}

#[test]
fn queues_of_every_size_work() {
    let host = Host::with_ports([1, 2]);
    let split = (0..13).map(|n| (1 << n, false));
    let packed = [1, 2, 3, 7, 100, 1000, 4095, 4096].map(|n| (n, true));
    for (size, packed) in split.chain(packed) {
        let config = GuestConfig {
            queue_size: size,
            ..GuestConfig::default().without(INDIRECT_DESC)
        };
        let config = if packed { config.packed() } else { config };
        let mut a = host.guest(1, config.clone());
        let mut b = host.guest(2, config);
        // More than once around the ring.
        let count = (u64::from(size) * 5 / 2).clamp(20, 1500);
        one_way(&mut a, &mut b, count);
        one_way(&mut b, &mut a, 5);
        disconnect([a, b]);
    }
}

/// A frame lies behind a header of 12 bytes, and with some guests of 10.
#[test]
fn frames_that_lie_otherwise_in_the_receivers_line_are_counted() {
    const COUNT: u64 = 50;
    let modern = GuestConfig::default;
    let short_header = || modern().legacy().without(MRG_RXBUF);
    let merged = |config: GuestConfig| GuestConfig {
        rx_buffers: Some(RxBuffers::Of(1024)),
        ..config
    };
    for (receiver, len, misaligned) in [
        (modern(), 1400, 0),
        (modern().packed(), 1400, 0),
        (merged(modern()), 1400, 0),
        (short_header(), 100, 0),
        (short_header(), 1400, COUNT),
    ] {
        let mut host = Host::with_ports([1, 2]);
        let mut a = host.guest(1, modern());
        let mut b = host.guest(2, receiver);
        // Frames of an unknown flow are copied from memory of the switch.
        lengths(&mut a, &mut b, 5, &[100]);
        lengths(&mut a, &mut b, COUNT, &[len]);
        let counts = host.state(2).queues[0].counts.clone();
        assert_eq!(counts.misaligned, misaligned, "{counts:?}");
        disconnect([a, b]);
    }
}

#[test]
fn two_queue_pairs_carry_flows() {
    let mut host = Host::new();
    host.add_port(1, 2);
    host.add_port(2, 2);
    for config in [GuestConfig::default(), GuestConfig::default().packed()] {
        let mut a = host.guest(1, config.clone().pairs(2));
        let mut b = host.guest(2, config.pairs(2));
        for n in 0..200u16 {
            let flow = Flow::v4(1, 2).ports(n % 20, 9);
            let frame = udp(&flow, &n.to_be_bytes());
            a.send_on(usize::from(n % 2), &frame, &NetHeader::default())
                .expect("room");
        }
        let got = b.recv_count(200, LIMIT).expect("all of them");
        assert_eq!(got.len(), 200);
        let by_pair: Vec<u64> = b.pairs.iter().map(|p| p.stats.received).collect();
        assert!(by_pair.iter().all(|n| *n > 20), "{by_pair:?}");
        assert_eq!(host.state(2).queues.len(), 4);
        // Only the first pair enabled: everything comes there.
        let front = b.front().expect("a session");
        front.set_vring_enable(2, false).expect("off");
        front.set_vring_enable(3, false).expect("off");
        for n in 0..40u16 {
            a.send(&udp(&Flow::v4(1, 2).ports(n, 9), &[1]))
                .expect("room");
        }
        for _ in 0..40 {
            b.pairs[0].recv(LIMIT).expect("correct").expect("a frame");
        }
        disconnect([a, b]);
    }
}

#[test]
fn guests_reboot_leave_crash_and_come_back() {
    let mut host = Host::with_ports([1, 2, 3]);
    for config in [GuestConfig::default(), GuestConfig::default().packed()] {
        let mut a = host.guest(1, config.clone());
        let mut b = host.guest(2, config.clone());
        let mut bystander = host.guest(3, config);
        talk(&mut a, &mut b, 100);
        b.reset().expect("a reboot");
        b.wait_link().expect("a link");
        talk(&mut a, &mut b, 100);
        b.disconnect().expect("a good end");
        host.wait_phase(2, PortPhase::Waiting);
        // A port without a guest: the drop has a reason, and no other port is affected.
        let before = host.counts(2).dropped(DropReason::ReceiverDown);
        (0..5).for_each(|n| a.send(&numbered(1, 2, n, 60)).expect("room"));
        wait_for("drops", || {
            host.counts(2).dropped(DropReason::ReceiverDown) == before + 5
        });
        talk(&mut a, &mut bystander, 100);
        b.reconnect(&host.socket(2)).expect("back");
        b.wait_link().expect("a link");
        talk(&mut a, &mut b, 100);
        b.crash();
        host.wait_phase(2, PortPhase::Waiting);
        talk(&mut a, &mut bystander, 100);
        b.reconnect(&host.socket(2)).expect("back");
        b.wait_link().expect("a link");
        talk(&mut a, &mut b, 100);
    }
    assert!(host.state(2).connections >= 6);
}

/// A session whose in-flight chains are tracked in this memory, or in new memory.
fn tracked(host: &Host, id: u32, config: &GuestConfig, memory: &mut Option<Inflight>) -> FrontEnd {
    let mut front = FrontEnd::connect(&host.socket(id), LIMIT).expect("a session");
    front
        .negotiate(config.features, config.protocol)
        .expect("features");
    if memory.is_none() {
        *memory = Some(front.get_inflight(2, config.queue_size).expect("memory"));
    }
    front
        .set_inflight(memory.as_ref().expect("memory"))
        .expect("taken");
    front
}

#[test]
fn tracked_queues_go_on_after_a_crash() {
    let base = GuestConfig::default;
    let legacy = base().legacy().without(MRG_RXBUF);
    for config in [base(), base().packed(), legacy] {
        let mut host = Host::with_ports([1, 2]);
        let (mut at_a, mut at_b) = (None, None);
        let front = tracked(&host, 1, &config, &mut at_a);
        let mut a = FakeGuest::over(front, config.clone().guest(1)).expect("a guest");
        let front = tracked(&host, 2, &config, &mut at_b);
        let mut b = FakeGuest::over(front, config.clone().guest(2)).expect("a guest");
        b.wait_link().expect("a link");
        talk(&mut a, &mut b, 300);
        for _ in 0..3 {
            // The guests' connections break under traffic, or a new switch takes them over.
            (0..20).for_each(|_| a.send(&stray(1, 2, 500)).expect("room"));
            a.crash();
            b.crash();
            drop(host);
            host = Host::with_ports([1, 2]);
            a.reconnect_over(tracked(&host, 1, &config, &mut at_a))
                .expect("back");
            b.reconnect_over(tracked(&host, 2, &config, &mut at_b))
                .expect("back");
            b.wait_link().expect("a link");
            talk(&mut a, &mut b, 300);
            a.pairs[0].drain().expect("all buffers come back");
        }
    }
}

#[test]
fn a_client_port_dials_until_someone_listens() {
    let mut host = Host::new();
    host.add_port(1, 1);
    let config = host.config(2, 1, Role::Client);
    host.add(config);
    assert_eq!(host.state(2).phase, PortPhase::Dialing);
    wait_for("a reason", || host.state(2).reason.is_some());
    let mut a = host.guest(1, GuestConfig::default());
    for _ in 0..2 {
        let listener = FrontListener::bind(&host.socket(2)).expect("a path");
        let mut b = FakeGuest::accept(&listener, GuestConfig::default().guest(2)).expect("a call");
        b.wait_link().expect("a link");
        talk(&mut a, &mut b, 50);
        assert_eq!(host.state(2).phase, PortPhase::Up);
        assert_eq!(host.state(2).reason, None, "connected");
        drop(b);
        drop(listener);
        host.wait_phase(2, PortPhase::Dialing);
    }
}

#[test]
fn a_second_front_end_is_turned_away() {
    let mut host = Host::with_ports([1, 2]);
    let mut a = host.guest(1, GuestConfig::default());
    let mut b = host.guest(2, GuestConfig::default());
    let config = GuestConfig {
        timeout: Duration::from_millis(500),
        ..GuestConfig::default().guest(2)
    };
    assert!(FakeGuest::connect(&host.socket(2), config).is_err());
    talk(&mut a, &mut b, 50);
    assert_eq!(host.state(2).connections, 1);
}

#[test]
fn a_port_that_is_removed_under_traffic_leaves_the_others_alone() {
    let mut host = Host::with_ports([1, 2, 3]);
    let mut a = host.guest(1, GuestConfig::default());
    let mut c = host.guest(3, GuestConfig::default());
    for _ in 0..5 {
        let mut b = host.guest(2, GuestConfig::default());
        one_way(&mut a, &mut b, 50);
        (0..50).for_each(|_| a.send(&stray(1, 2, 60)).expect("room"));
        (0..50).for_each(|_| b.send(&stray(2, 3, 60)).expect("room"));
        host.remove_port(2);
        assert!(b.wait_link().is_err(), "disconnected");
        drain(&mut c);
        talk(&mut a, &mut c, 50);
        host.add_port(2, 1);
        assert_eq!(
            host.counts(2).to_guest.packets,
            0,
            "a new port starts at zero"
        );
    }
}

#[test]
fn cached_flows_outlive_control_and_new_ones_wait_for_the_next() {
    let mut host = Host::with_ports([1, 2, 3]);
    let mut a = host.guest(1, GuestConfig::default());
    let mut b = host.guest(2, GuestConfig::default());
    let mut c = host.guest(3, GuestConfig::default());
    talk(&mut a, &mut b, 50);
    host.kill_control();
    talk(&mut a, &mut b, 200);
    let desired = numbered(3, 1, 7, 100);
    c.send(&desired).expect("room");
    assert!(
        a.recv(Duration::from_millis(50))
            .expect("correct")
            .is_none()
    );
    host.start_control();
    let got = a.recv(LIMIT).expect("correct").expect("decided");
    assert_eq!(got.frame, desired);
    assert_eq!(host.flows(), 3);
    let figures = host.figures();
    assert_eq!(
        (figures.flows, figures.misses, figures.pending),
        (3, figures.misses, 0)
    );
    talk(&mut b, &mut a, 50);
    // Without a control to decide, pending frames are dropped and counted in the end.
    host.kill_control();
    c.send(&numbered(3, 2, 8, 100)).expect("room");
    wait_for("pending frames to time out", || {
        host.counts(3).dropped(DropReason::UpcallTimeout) == 1
    });
    host.start_control();
    assert!(b.recv_all().expect("correct").is_empty());
}

#[test]
fn pending_frames_are_dropped_with_their_guest() {
    let mut host = Host::with_ports([1]);
    let mut a = host.guest(1, GuestConfig::default());
    host.kill_control();
    a.send(&stray(1, 9, 60)).expect("room");
    wait_for("a frame to be taken", || {
        host.counts(1).from_guest.packets == 1
    });
    a.disconnect().expect("a good end");
    // The next guest connects only after the switch has noticed the disconnect.
    let _next = host.guest(1, GuestConfig::default());
    assert_eq!(host.counts(1).dropped(DropReason::UpcallTimeout), 1);
    host.start_control();
    assert_eq!((host.flows(), host.figures().pending), (0, 0));
}

/// Returns the drops of a port by reason: of the port, and of each of its queues.
fn drops(host: &mut Host, id: u32) -> (Counted, BTreeMap<u16, Counted>) {
    let counts = host.counts(id);
    let all = REASONS.iter().map(|r| (r.name(), counts.dropped(*r)));
    let queues = host.state(id).queues.into_iter().map(|queue| {
        let of = queue.counts.drops.iter().map(|(r, n)| (r.name(), *n));
        (queue.index, of.collect())
    });
    (all.filter(|(_, n)| *n > 0).collect(), queues.collect())
}

type Counted = BTreeMap<&'static str, u64>;

#[test]
fn drops_are_counted_at_their_queue_for_every_worker() {
    let mut host = Host::new();
    host.add_port(1, 2);
    host.add_port(2, 1);
    let mut a = host.guest(1, GuestConfig::default().pairs(2));
    let mut b = host.guest(2, GuestConfig::default());
    talk(&mut a, &mut b, 20);
    let header = NetHeader::default();
    for (pair, times) in [(0, 3), (1, 5)] {
        // Short frames are dropped as they are taken, those to the sender itself as control
        // decides, the first of them after they were pending.
        for _ in 0..times {
            a.send_on(pair, &[0; 5], &header).expect("room");
            let itself = numbered(1, 1, 1, 60);
            a.send_on(pair, &itself, &header).expect("room");
        }
    }
    wait_for("drops", || {
        let counts = host.counts(1);
        let all = [DropReason::Runt, DropReason::Reflection];
        all.map(|reason| counts.dropped(reason)) == [8, 8]
    });
    let of = |times| Counted::from([("reflection", times), ("runt", times)]);
    let (all, queues) = drops(&mut host, 1);
    assert_eq!(all, of(8));
    assert_eq!((&queues[&1], &queues[&3]), (&of(3), &of(5)));
    assert!(queues[&0].is_empty() && queues[&2].is_empty());

    // The worker of the second queue has the flow, too: otherwise more frames would be pending than
    // there is room for.
    a.send_on(1, &numbered(1, 2, 0, 60), &header).expect("room");
    wait_for("a frame", || host.counts(2).to_guest.packets == 21);
    // A receiver that does not read.
    for n in 0..1000 {
        a.send_on((n % 2) as usize, &numbered(1, 2, n, 60), &header)
            .expect("room");
    }
    wait_for("all frames", || {
        let b = host.counts(2);
        b.to_guest.packets + b.dropped(DropReason::ReceiverFull) >= 1021
    });
    let (all, queues) = drops(&mut host, 2);
    assert!(all["receiver-full"] > 0);
    assert_eq!(queues[&0], all);
    b.recv_all().expect("correct");

    // Frames that wait for control in vain.
    host.kill_control();
    a.send_on(1, &stray(1, 9, 60), &header).expect("room");
    wait_for("pending frames to time out", || {
        host.counts(1).dropped(DropReason::UpcallTimeout) == 1
    });
    host.start_control();
    let (_, queues) = drops(&mut host, 1);
    assert_eq!(queues[&3].get("upcall-timeout"), Some(&1));
    assert_eq!(queues[&1], of(3));

    // The counters of a started queue begin at zero.
    a.disconnect().expect("a good end");
    host.wait_phase(1, PortPhase::Waiting);
    let a = host.guest(1, GuestConfig::default().pairs(2));
    let (all, queues) = drops(&mut host, 1);
    assert_eq!(all["runt"], 8);
    assert!(queues.values().all(BTreeMap::is_empty), "{queues:?}");
    drop(a);
}

#[test]
fn a_disabled_queue_drains_by_name() {
    let mut host = Host::with_ports([1, 2]);
    for config in [GuestConfig::default(), GuestConfig::default().packed()] {
        let mut a = host.guest(1, config.clone());
        let mut b = host.guest(2, config);
        talk(&mut a, &mut b, 20);
        let front = a.front().expect("a session");
        front.set_vring_enable(1, false).expect("off");
        let before = host.counts(1);
        (0..300).for_each(|n| a.send(&numbered(1, 2, n, 60)).expect("room"));
        a.pairs[0].drain().expect("the buffers come back");
        let after = host.counts(1);
        let dropped = |c: &port::counters::PortCounts| c.dropped(DropReason::QueueDisabled);
        assert_eq!(dropped(&after) - dropped(&before), 300);
        assert_eq!(after.from_guest.packets - before.from_guest.packets, 300);
        a.front()
            .expect("a session")
            .set_vring_enable(1, true)
            .expect("on");
        assert!(b.recv_all().expect("correct").is_empty());
        talk(&mut a, &mut b, 20);
        // A disabled receiver is down, with its own drop reason.
        b.front()
            .expect("a session")
            .set_vring_enable(0, false)
            .expect("off");
        let down = host.counts(2).dropped(DropReason::ReceiverDown);
        (0..10).for_each(|n| a.send(&numbered(1, 2, n, 60)).expect("room"));
        wait_for("drops", || {
            host.counts(2).dropped(DropReason::ReceiverDown) == down + 10
        });
        let state = host.state(2);
        assert!(!state.queues[0].enabled && state.queues[1].enabled);
        b.front()
            .expect("a session")
            .set_vring_enable(0, true)
            .expect("on");
        talk(&mut a, &mut b, 20);
    }
}

#[test]
fn send_rarp_broadcasts_in_the_guests_name() {
    let host = Host::with_ports([1, 2, 3]);
    let mut a = host.guest(1, GuestConfig::default());
    let mut others = [2, 3].map(|id| host.guest(id, GuestConfig::default()));
    a.front()
        .expect("a session")
        .send_rarp(mac(1))
        .expect("done");
    for other in &mut others {
        let got = other
            .recv(LIMIT)
            .expect("correct")
            .expect("an announcement");
        assert_eq!(got.frame[..42], testkit::packets::rarp(mac(1)));
        assert_eq!(got.frame.len(), 60);
    }
    assert!(
        a.recv(Duration::from_millis(20))
            .expect("correct")
            .is_none()
    );
}

#[test]
fn mtu_is_offered_and_kept() {
    let mut host = Host::new();
    host.add_port(1, 1);
    let config = ipc::switching::PortConfig {
        mtu: Some(1500),
        ..host.config(2, 1, Role::Server)
    };
    host.add(config.clone());
    let mut a = host.guest(1, GuestConfig::default());
    let mut b = host.guest(2, GuestConfig::default().with(testkit::features::MTU));
    assert_ne!(b.features() & testkit::features::MTU, 0);
    lengths(&mut a, &mut b, 4, &[1472]);
    a.send(&numbered(1, 2, 0, 1473)).expect("room");
    wait_for("a drop", || {
        host.counts(2).dropped(DropReason::ExceedsMtu) == 1
    });
    let larger = ipc::switching::PortConfig {
        mtu: Some(9000),
        ..config
    };
    host.order(SwitchCommand::SetPort(larger), &[])
        .expect("an MTU");
    lengths(&mut a, &mut b, 4, &[8972]);
    assert_eq!(host.counts(2).dropped(DropReason::ExceedsMtu), 1);
}

#[test]
fn orders_that_make_no_sense_change_nothing() {
    let mut host = Host::with_ports([1]);
    let again = host.config(1, 1, Role::Client);
    assert!(host.order(SwitchCommand::AddPort(again), &[]).is_err());
    let far = host.config(port::counters::MAX_PORTS as u32, 1, Role::Client);
    assert!(host.order(SwitchCommand::AddPort(far), &[]).is_err());
    let unknown = host.config(77, 1, Role::Server);
    assert!(host.order(SwitchCommand::SetPort(unknown), &[]).is_err());
    assert!(
        host.order(SwitchCommand::RemovePort(PortId(77)), &[])
            .is_err()
    );
    assert_eq!(host.state(1).phase, PortPhase::Waiting);
}

#[test]
fn a_control_that_talks_nonsense_is_let_go_and_the_next_one_taken() {
    let mut host = Host::with_ports([1, 2]);
    let mut a = host.guest(1, GuestConfig::default());
    let mut b = host.guest(2, GuestConfig::default());
    talk(&mut a, &mut b, 20);
    host.talk_nonsense();
    talk(&mut a, &mut b, 20);
    host.kill_control();
    host.start_control();
    assert_eq!(host.flows(), 2);
    talk(&mut a, &mut b, 20);
    assert_eq!(host.state(1).phase, PortPhase::Up);
}

#[test]
fn the_switch_ends_with_its_supervisor() {
    let mut host = Host::with_ports([1]);
    let mut a = host.guest(1, GuestConfig::default());
    host.lose_supervisor().expect("a clean end");
    assert!(a.wait_link().is_err(), "disconnected");
}

#[test]
fn a_slow_guest_loses_its_own_frames_only() {
    let host = Host::with_ports([1, 2, 3]);
    let mut a = host.guest(1, GuestConfig::default());
    let mut slow = host.guest(2, GuestConfig::default());
    let mut c = host.guest(3, GuestConfig::default());
    one_way(&mut a, &mut slow, 10);
    slow.pairs[0].nic.auto_refill = false;
    (0..1000).for_each(|n| a.send(&numbered(1, 2, n, 60)).expect("room"));
    a.pairs[0].drain().expect("buffers come back");
    let counts = host.counts(2);
    assert_eq!(counts.to_guest.packets, 10 + 256);
    assert_eq!(counts.dropped(DropReason::ReceiverFull), 744);
    talk(&mut a, &mut c, 100);
    // A buffer that is too small for the frame has another drop reason.
    let small = GuestConfig {
        rx_buffers: Some(testkit::net::RxBuffers::Small),
        features: VERSION_1 | (1 << 30) | RING_PACKED,
        ..GuestConfig::default()
    };
    drop(slow);
    let mut small = host.guest(2, small);
    one_way(&mut a, &mut small, 20);
    a.send(&numbered(1, 2, 0, 3000)).expect("room");
    wait_for("a drop", || {
        host.counts(2).dropped(DropReason::BufferTooSmall) == 1
    });
    one_way(&mut a, &mut small, 300);
}

#[test]
fn nothing_is_lost_uncounted_in_random_traffic() {
    let mut host = Host::with_ports(1..=4);
    let mut guests: Vec<_> = (1..=4)
        .map(|id| {
            let config = GuestConfig::default();
            let config = if id % 2 == 0 { config.packed() } else { config };
            host.guest(id, config.without(MRG_RXBUF | ALL_OFFLOADS))
        })
        .collect();
    let mut x = 0x1234_5678_9abc_def1_u64;
    let mut sent = 0;
    for _ in 0..4000 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let (a, b) = ((x >> 8) % 4, (x >> 16) % 4);
        let mut frame = numbered(
            a as u8 + 1,
            b as u8 + 1,
            x >> 40,
            16 + (x >> 24) as usize % 1400,
        );
        match x % 40 {
            0 => frame.truncate((x >> 32) as usize % 14),
            1 => frame[6] = 0xff,
            2 => frame[..6].copy_from_slice(&[1, 0x80, 0xc2, 0, 0, 0]),
            3 => frame = testkit::packets::vlan_tagged(&frame, 7),
            _ => {}
        }
        let header = NetHeader {
            gso_type: if x.is_multiple_of(41) { 1 } else { 0 },
            ..NetHeader::default()
        };
        guests[a as usize]
            .send_on(0, &frame, &header)
            .expect("room");
        sent += 1;
        if x.is_multiple_of(7) {
            guests[b as usize].recv_all().expect("correct");
        }
    }
    guests
        .iter_mut()
        .for_each(|g| g.pairs[0].drain().expect("buffers come back"));
    wait_for("all decisions", || host.figures().pending == 0);
    let (from, to, drops) = host.totals();
    assert_eq!(from, sent);
    assert_eq!(to + drops, sent, "{to} delivered, {drops} dropped");
    let mut received = 0;
    for guest in &mut guests {
        guest.recv_all().expect("correct");
        received += guest.stats().received;
    }
    assert_eq!(received, to);
    for reason in [
        DropReason::Runt,
        DropReason::BadHeader,
        DropReason::BadSource,
    ] {
        let n: u64 = (1..=4).map(|id| host.counts(id).dropped(reason)).sum();
        assert!(n > 0, "{reason}");
    }
}

#[test]
fn a_front_end_that_dislikes_the_features_leaves_a_reason() {
    let mut host = Host::with_ports([1]);
    drop(UnixStream::connect(host.socket(1)).expect("it listens"));
    let mut front = FrontEnd::connect(&host.socket(1), LIMIT).expect("a session");
    assert_eq!(host.wait_phase(1, PortPhase::Connected).reason, None);
    front.get_features().expect("an answer");
    drop(front);
    let reason = host.wait_phase(1, PortPhase::Waiting).reason;
    assert!(reason.is_some_and(|r| r.contains("without choosing features")));
    let mut guest = host.guest(1, GuestConfig::default());
    guest.disconnect().expect("a good end");
    assert_eq!(host.wait_phase(1, PortPhase::Waiting).reason, None);
}

#[test]
fn a_port_reports_its_fault_and_why_the_last_connection_ended() {
    let mut host = Host::with_ports([1]);
    let mut guest = host.guest(1, GuestConfig::default());
    host.wait_phase(1, PortPhase::Up);
    // A driver that ends takes its choice of features back, and then its VMM may disconnect: that
    // is no lack of chosen features.
    let front = guest.front().expect("a session");
    let all = front.get_protocol_features().expect("an answer");
    front.set_protocol_features(all).expect("taken");
    front.reset_device().expect("taken");
    front.get_features().expect("an answer");
    assert_eq!(host.wait_phase(1, PortPhase::Connected).reason, None);
    guest.crash();
    assert_eq!(host.wait_phase(1, PortPhase::Waiting).reason, None);
    // A queue that cannot be started, in a connection that continues.
    let mut guest = host.guest(1, GuestConfig::default());
    let front = guest.front().expect("a session");
    let _ = front.set_vring_num(1, 100);
    front.get_features().expect("an answer");
    let says = |reason: Option<String>| {
        let reason = reason.expect("a reason");
        let all = ["queue 1 stopped", "size 100"];
        assert!(all.iter().all(|part| reason.contains(part)), "{reason}");
    };
    let state = host.wait_phase(1, PortPhase::Faulted);
    says(state.reason);
    assert!(
        state.front_ends.refused_messages > 0,
        "it is counted: {:?}",
        state.front_ends
    );
    guest.crash();
    says(host.wait_phase(1, PortPhase::Waiting).reason);
    let mut guest = host.guest(1, GuestConfig::default());
    assert_eq!(host.wait_phase(1, PortPhase::Up).reason, None);
    guest.disconnect().expect("a good end");
}
