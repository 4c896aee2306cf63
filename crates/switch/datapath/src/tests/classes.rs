//! Classes of frames, seen by the priorities of their tags on trunk port 4.

use ipc::egress::SenderQos;
use policy::{Action, DscpClasses};
use port::PortId;
use testkit::packets::{BROADCAST, Flow, mac, udp, udp_super, vlan_stripped, vlan_tagged};

use super::bench::{BLUE, Bench, offload};
use crate::ports::port::Accepts;

const EF: u8 = 46;
/// A priority tag.
const PRIORITY_3: u16 = 3 << 13;

/// From test guest 1 to a UDP port of guest 4 with a DSCP.
fn packet(port: u16, dscp: u8) -> Vec<u8> {
    let mut frame = udp(&Flow::v4(1, 4).ports(7, port), &[port as u8; 58]);
    frame[15] = dscp << 2;
    frame
}

/// Port 9 is `storage`, with priority 4; DSCP 46 of port 1 `voice`, with priority 5.
fn bench() -> Bench {
    let mut bench = Bench::with_stations();
    bench.learn(BLUE, mac(4), 4);
    bench.switch.set_priorities(vec![None, Some(4), Some(5)]);
    bench.set_dscp_classes(DscpClasses::new([(EF, 2)], [PortId(1)]));
    bench.set_access(
        "[[acl]]\nname='a'\ndirection='from-guest'\nports=['p1']\n\
         [[acl.rule]]\nname='r'\naction='allow'\nprotocol='udp'\ndestination_ports=[9]\n\
         class='storage'\n",
    );
    bench
}

/// Returns the priorities of the frames that port 4 got, which are tagged.
fn priorities(bench: &Bench) -> Vec<u16> {
    let tag = |(frame, _): (Vec<u8>, _)| {
        let tci = vlan_stripped(&frame).1.expect("a tag");
        assert_eq!(tci & 0xfff, 10);
        tci >> 13
    };
    bench.port(4).delivered().into_iter().map(tag).collect()
}

/// Sends frames as one batch.
fn batch(bench: &mut Bench, frames: &[Vec<u8>]) {
    for frame in frames {
        bench.port(1).push(frame, Default::default());
    }
    bench.serve(1);
}

#[test]
fn tags_get_the_priorities_of_classes() {
    let mut bench = bench();
    let frames = [(9, 0), (9, EF), (8, EF), (8, 0)].map(|(port, dscp)| packet(port, dscp));
    let received = [4, 4, 5, 0];
    // While they wait for control, then as a batch, then to a receiver with several queues.
    batch(&mut bench, &frames);
    assert!(bench.decide() >= 3, "each class has flows of its own");
    assert_eq!(priorities(&bench), received);
    batch(&mut bench, &frames);
    assert_eq!(priorities(&bench), received);
    bench.port(4).set_pairs(3);
    batch(&mut bench, &frames);
    let mut by_queue = priorities(&bench);
    by_queue.sort_unstable();
    assert_eq!(by_queue, [0, 4, 4, 5]);
}

#[test]
fn a_received_priority_stays_unless_the_class_has_one() {
    let mut bench = bench();
    for (frame, pcp) in [(packet(8, 0), 3), (packet(9, 0), 4)] {
        let tagged = vlan_tagged(&frame, PRIORITY_3);
        bench.send_and_decide(1, &tagged);
        bench.send(1, &tagged);
        assert_eq!(priorities(&bench), [pcp; 2]);
    }
    bench.switch.set_priorities(Vec::new());
    bench.send(1, &vlan_tagged(&packet(9, 0), PRIORITY_3));
    assert_eq!(priorities(&bench), [3]);
}

#[test]
fn floods_and_segments_of_super_frames_have_their_class() {
    let mut bench = bench();
    let flow = Flow {
        dst_mac: BROADCAST,
        ..Flow::v4(1, 4).ports(7, 9)
    };
    bench.send_and_decide(1, &udp(&flow, &[1; 58]));
    bench.send(1, &udp(&flow, &[1; 58]));
    assert_eq!(priorities(&bench), [4, 4]);
    bench.port(4).set_accepts(Accepts::default());
    let (frame, header) = udp_super(&Flow::v4(1, 4).ports(7, 9), &[7; 3000], 1000);
    for _ in 0..2 {
        bench.port(1).push(&frame, offload(&header));
        bench.serve(1);
        bench.decide();
        assert_eq!(priorities(&bench), [4; 3]);
    }
}

#[test]
fn the_class_of_a_queue_pair_comes_before_others() {
    let mut bench = bench();
    let frames = [(9, 0), (8, EF), (8, 0)].map(|(port, dscp)| packet(port, dscp));
    let set = |bench: &mut Bench, class_by_pair: Vec<Option<u8>>| {
        let qos = SenderQos {
            class_by_pair,
            ..SenderQos::default()
        };
        bench.switch.set_qos(PortId(1), qos);
    };
    set(&mut bench, vec![Some(2)]);
    batch(&mut bench, &frames);
    bench.decide();
    assert_eq!(priorities(&bench), [5, 5, 5], "they waited for control");
    batch(&mut bench, &frames);
    assert_eq!(priorities(&bench), [5, 5, 5]);
    set(&mut bench, vec![None, Some(2)]);
    batch(&mut bench, &frames);
    assert_eq!(priorities(&bench), [4, 5, 0], "another pair has it");
    set(&mut bench, vec![Some(0)]);
    batch(&mut bench, &frames);
    assert_eq!(
        priorities(&bench),
        [0, 0, 0],
        "the default class is one, too"
    );
}

#[test]
fn changed_classes_remove_the_flows_that_they_concern() {
    let mut bench = bench();
    let frames = [packet(8, EF)];
    batch(&mut bench, &frames);
    bench.decide();
    batch(&mut bench, &frames);
    assert_eq!(priorities(&bench), [5, 5]);
    bench.set_dscp_classes(DscpClasses::new([(EF, 1)], [PortId(1)]));
    batch(&mut bench, &frames);
    assert_eq!(bench.decide(), 1);
    assert_eq!(priorities(&bench), [4]);
    bench.set_dscp_classes(DscpClasses::new([(EF, 1)], []));
    batch(&mut bench, &frames);
    assert_eq!(bench.decide(), 1);
    assert_eq!(priorities(&bench), [0]);
}

#[test]
fn an_answer_to_one_frame_has_a_class() {
    let mut bench = bench();
    bench.send(1, &packet(8, 0));
    let action = Action::Unicast {
        port: PortId(4),
        tag: Some(10),
    };
    bench.answer_once_as(action, 1);
    assert_eq!(priorities(&bench), [4]);
}
