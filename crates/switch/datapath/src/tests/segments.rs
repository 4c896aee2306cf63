//! Cost of TSO frames at receivers that do not accept them.

use std::collections::BTreeMap;

use ipc::records::{Answer, Upcall};
use policy::{Action, Model, PortMode, Program, Segment, SegmentId};
use port::counters::Counters;
use port::{DropReason, PortId};
use testkit::packets::{BROADCAST, Flow, mac, udp_super};

use super::bench::{BLUE, Bench, offload};
use crate::forward::switch::{Switch, UpcallSink};
use crate::ports::batch::Batch;
use crate::ports::calls::PendingCalls;
use crate::ports::loopback::LoopbackPort;
use crate::ports::payload::Outgoing;
use crate::ports::port::{Accepts, Port};

/// Port that drops all frames behind the first ones.
#[derive(Default)]
struct Refusing {
    /// Frames that it accepts.
    room: usize,
    why: Option<DropReason>,
    attempts: std::rc::Rc<std::cell::Cell<usize>>,
}

impl Port for Refusing {
    fn pairs(&self) -> u16 {
        1
    }

    fn accepts(&self) -> Accepts {
        Accepts::default()
    }

    fn take(&mut self, _pair: u16, _batch: &mut Batch) {}

    fn leave(&mut self, _pair: u16, _kept: usize) {}

    fn release(&mut self, _pair: u16, _calls: &mut PendingCalls) {}

    fn deliver(&mut self, _pair: u16, _frame: &Outgoing<'_>) -> Result<(), DropReason> {
        let attempts = self.attempts.get() + 1;
        self.attempts.set(attempts);
        match self.why {
            Some(why) if attempts > self.room => Err(why),
            _ => Ok(()),
        }
    }

    fn flush(&mut self, _pair: u16, _now: u64, _calls: &mut PendingCalls) -> Option<u64> {
        None
    }

    fn arm(&mut self, _pair: u16, _on: bool) -> bool {
        false
    }
}

/// A receiver without room for a segment is not tried with the others; all of them are counted.
#[test]
fn a_receiver_without_room_is_tried_once() {
    let (frame, header) = udp_super(&Flow::v4(1, 2), &[7; 40 * 1000], 1000);
    for (why, tried) in [
        (DropReason::ReceiverFull, 1),
        (DropReason::ReceiverDown, 1),
        // A buffer may be too small for one segment and not for the next.
        (DropReason::BufferTooSmall, 37),
    ] {
        let mut bench = Bench::new();
        bench.learn(BLUE, mac(2), 2);
        let (room, port) = (3, Refusing::default());
        let attempts = port.attempts.clone();
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
        assert_eq!(attempts.get(), room + tried, "{why}");
        assert_eq!(bench.totals(), (1, 3, 37), "{why}");
    }
}

/// Last upcall.
#[derive(Default)]
struct Last(Option<u64>);

impl UpcallSink for Last {
    fn send(&mut self, upcall: &Upcall) -> bool {
        self.0 = Some(upcall.id);
        true
    }
}

/// Returns a switch with port 0 and so many others, which accept no offload.
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

/// 64 receivers cost 64 copies, and the payload is summed once.
#[test]
fn the_payload_of_a_flooded_tso_frame_is_summed_once() {
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
                upcall: last.0.expect("an upcall"),
                action: Action::flood(SegmentId(1)),
                class: policy::DEFAULT_CLASS,
                connection: policy::ConnectionChange::None,
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
