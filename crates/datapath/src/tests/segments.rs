//! How much work a super-frame is for those who do not take it whole.

use std::collections::BTreeMap;

use channel::records::{Answer, Upcall};
use policy::{Action, Model, PortMode, Program, Segment, SegmentId};
use port::counters::Counters;
use port::loopback::LoopbackPort;
use port::{Accepts, Batch, DropReason, Outgoing, Port, PortId};
use testkit::packets::{BROADCAST, Flow, mac, udp_super};

use super::bench::{BLUE, Bench, offload};
use crate::switch::{Switch, UpcallSink};

/// Says what is wrong with a frame behind the first ones.
#[derive(Default)]
struct Refusing {
    /// Frames that it takes.
    room: usize,
    why: Option<DropReason>,
    asked: std::rc::Rc<std::cell::Cell<usize>>,
}

impl Port for Refusing {
    fn pairs(&self) -> u16 {
        1
    }

    fn accepts(&self) -> Accepts {
        Accepts::default()
    }

    fn take(&mut self, _pair: u16, _batch: &mut Batch) {}

    fn release(&mut self, _pair: u16) {}

    fn deliver(&mut self, _pair: u16, _frame: &Outgoing<'_>) -> Result<(), DropReason> {
        let asked = self.asked.get() + 1;
        self.asked.set(asked);
        match self.why {
            Some(why) if asked > self.room => Err(why),
            _ => Ok(()),
        }
    }

    fn flush(&mut self, _pair: u16, _now: u64) -> Option<u64> {
        None
    }

    fn arm(&mut self, _pair: u16, _on: bool) -> bool {
        false
    }
}

/// Who has no room for a segment is not asked again for each of the others; all of them are counted.
#[test]
fn a_receiver_without_room_is_asked_once() {
    let (frame, header) = udp_super(&Flow::v4(1, 2), &[7; 40 * 1000], 1000);
    for (why, tried) in [
        (DropReason::ReceiverFull, 1),
        (DropReason::ReceiverDown, 1),
        // It may be too small for one and not for the next.
        (DropReason::BufferTooSmall, 37),
    ] {
        let mut bench = Bench::new();
        bench.learn(BLUE, mac(2), 2);
        let (room, port) = (3, Refusing::default());
        let asked = port.asked.clone();
        let why_not = Some(why);
        bench.plug(
            2,
            Refusing {
                room,
                why: why_not,
                ..port
            },
        );
        bench.send_with(1, &frame, &header);
        bench.decide();
        assert_eq!(asked.get(), room + tried, "{why}");
        assert_eq!(bench.totals(), (1, 3, 37), "{why}");
    }
}

/// The last question that was asked.
#[derive(Default)]
struct Last(Option<u64>);

impl UpcallSink for Last {
    fn send(&mut self, upcall: &Upcall) -> bool {
        self.0 = Some(upcall.id);
        true
    }
}

/// Port 0 and so many more, which take nothing that is left undone.
fn segment_of(receivers: u32) -> Switch<LoopbackPort> {
    let ports = 0..=receivers;
    let model = Model {
        segments: BTreeMap::from([(
            SegmentId(1),
            Segment {
                name: "lan".into(),
                vlan: None,
            },
        )]),
        ports: ports
            .clone()
            .map(|id| (PortId(id), PortMode::Access(SegmentId(1))))
            .collect(),
    };
    let mut switch = Switch::new(Counters::heap(), 7);
    switch.set_program(Program::compile(&model, 1).expect("a sound model"));
    for id in ports {
        let mut port = LoopbackPort::new(false);
        port.accepts = Accepts::default();
        switch.add_port(PortId(id), port);
    }
    switch
}

/// What 64 receivers cost is 64 copies, and not that all is read again to be summed up for each.
#[test]
fn a_flooded_super_frame_is_summed_up_once() {
    let flow = Flow {
        dst_mac: BROADCAST,
        ..Flow::v4(1, 2)
    };
    let (frame, header) = udp_super(&flow, &[7; 60 * 1000], 1000);
    for receivers in [1, 64] {
        let mut switch = segment_of(receivers);
        for times in 1..=2 {
            let sender = switch.port_mut(PortId(0)).expect("port 0");
            sender.waiting.push_back((frame.clone(), offload(&header)));
            let mut last = Last::default();
            assert!(switch.serve(PortId(0), 0, 1, &mut last));
            let once = Answer::Once {
                upcall: last.0.expect("a question"),
                action: Action::flood(SegmentId(1)),
                except: Vec::new(),
                rules: Vec::new(),
                epoch: 1,
            };
            switch.answer(once, 1);
            assert_eq!(switch.fabric.fitter.summed, times * 60, "{receivers}");
            for id in 1..=receivers {
                let port = switch.port_mut(PortId(id)).expect("a receiver");
                assert_eq!(std::mem::take(&mut port.delivered).len(), 60);
            }
        }
    }
}
