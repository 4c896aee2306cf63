//! Scenarios: two guests in this process, their virtio queues, and the switch between them.

use std::sync::Arc;

use conntrack::table::{DEFAULT_CAPACITY, Layout};
use conntrack::{Settings, Table, Tracker};
use datapath::forward::egress::Output;
use datapath::forward::limits::PortLimits;
use datapath::forward::switch::Switch;
use datapath::forward::tracking::Tracking;
use datapath::ports::attached::AttachedPort;
use datapath::ports::guest::GuestPort;
use ipc::egress::{Beyond, FullAction, MAX_CLASSES, OutputConfig, Rates, Sender};
use ipc::limits::{Limit, Limits, Rate};
use ipc::records::{Answer, SourceRole};
use policy::acl::RuleId;
use policy::port_security::{Macs, PortSecurity, PortSecurityTable};
use policy::{
    Action, ConnectionChange, DECISION_MASK, Model, PortMode, Program, Segment, SegmentId,
};
use port::counters::Counters;
use port::{DropReason, PortId};
use testkit::driver::Shape;
use testkit::features::*;
use testkit::net::{Cuts, NetHeader, NetOptions, NetPair};
use testkit::packets::{Flow, tcp, tcp_super, udp};
use testkit::slots::{SlotFormat, SlotNic, SlotOptions};
use wire::flow::{Ct, CtState, FlowKey, FlowMask};
use wire::packet::ParsedHeaders;

use crate::common::{NoUpcalls, guest};
use crate::iommu::{Translations, translated};
use crate::slot_clients::slot_client;
use crate::tracked::open;

/// Rounds before the counted ones, in which arenas and rings reach their working size.
const WARM_UP: usize = 4;
const ROUNDS: usize = 16;

/// Features that a current Linux guest negotiates besides offloads.
const LINUX: u64 = VERSION_1 | MRG_RXBUF | INDIRECT_DESC | EVENT_IDX;
const OFFLOADS: u64 = LINUX | HOST_OFFLOADS | GUEST_OFFLOADS;
const PACKED: u64 = LINUX | RING_PACKED;

const QUEUE: u16 = 1024;
const MEMORY: u64 = 24 << 20;
pub(crate) const SENDER: PortId = PortId(1);
pub(crate) const RECEIVER: PortId = PortId(2);
pub(crate) const NOW: u64 = 1000;
/// Epoch of the rules of the tracked segment.
pub(crate) const EPOCH: u16 = 3;
/// Bits a second that no frame exceeds.
const RATE: u64 = 1_000_000_000_000;

/// Ethernet, IPv4 and UDP headers, bytes.
const UDP_HEADERS: usize = 42;
/// Sequence number of the data of TCP connections.
pub(crate) const SEQUENCE: u32 = 1;
/// States of frames in their connections.
const KNOWN: CtState = CtState::TRACKED.union(CtState::ESTABLISHED);
const NEW: CtState = CtState::TRACKED.union(CtState::NEW);
/// Mask of flows that a rule for a service has decided.
const RULE: FlowMask = DECISION_MASK.with_ethertype().with_ip_proto().with_l4_dst();
/// Mask of flows per conversation, for which whole headers are parsed.
const DEEP: FlowMask = DECISION_MASK
    .with_ethertype()
    .with_ip_proto()
    .with_src_ip()
    .with_dst_ip()
    .with_l4_src()
    .with_l4_dst();

type Frame = (Vec<u8>, NetHeader);

/// Frames from one guest to another, with their flows cached.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Features that both guests negotiated.
    features: u64,
    /// Format of slot queues, of clients that are no guests.
    slots: Option<SlotFormat>,
    /// Entries of the IOTLB, if both guests have an IOMMU.
    iommu: Option<Entries>,
    /// Frames that are sent repeatedly in this order.
    frames: fn() -> Vec<Frame>,
    /// Frames that wait at once.
    round: usize,
    /// Mask of the cached flows.
    mask: FlowMask,
    fate: Fate,
    /// Whether the sender's port has the default port security of guests.
    port_security: bool,
    /// Whether a rule of an access list has decided, and is counted.
    ruled: bool,
    /// Reason for which frames may have to wait; none does.
    hold: Hold,
    /// Whether the receiver's port is tracked, with a flow that looks above Ethernet.
    beside_tracked: bool,
    /// Whether the sender's port is tracked, and what its frames are to their connections.
    tracked: Option<CtState>,
}

/// Result of a frame.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    /// They arrive.
    Delivered,
    /// The receiver reads nothing: its buffers are used up before frames are counted.
    Unread,
    /// A rule denies them.
    Denied,
}

/// Reasons for which frames of the sender may have to wait.
#[derive(Clone, Copy)]
enum Hold {
    Nothing,
    /// A rate limit.
    Limit,
    /// The receiver is scheduled, with so many senders.
    Schedule(u32),
}

/// Sizes of entries of an IOTLB.
#[derive(Clone, Copy, PartialEq)]
enum Entries {
    /// 4 KiB.
    Small,
    /// 2 MiB.
    Large,
}

const PLAIN: Scenario = Scenario {
    name: "",
    features: LINUX,
    slots: None,
    iommu: None,
    frames: || bytes(64),
    round: 64,
    mask: DECISION_MASK,
    fate: Fate::Delivered,
    port_security: false,
    ruled: false,
    hold: Hold::Nothing,
    beside_tracked: false,
    tracked: None,
};

/// All scenarios. Sizes are frame lengths from the Ethernet header on.
pub(crate) const SCENARIOS: [Scenario; 35] = [
    Scenario {
        name: "split-64",
        ..PLAIN
    },
    Scenario {
        name: "packed-64",
        features: PACKED,
        ..PLAIN
    },
    Scenario {
        name: "netmap-64",
        slots: Some(SlotFormat::Netmap { header: 0 }),
        ..PLAIN
    },
    Scenario {
        name: "netmap-64-header",
        slots: Some(SlotFormat::Netmap { header: 12 }),
        ..PLAIN
    },
    Scenario {
        name: "memif-64",
        slots: Some(SlotFormat::Memif),
        ..PLAIN
    },
    Scenario {
        name: "memif-1500",
        slots: Some(SlotFormat::Memif),
        frames: || bytes(1500),
        ..PLAIN
    },
    Scenario {
        name: "split-64-dead",
        fate: Fate::Unread,
        ..PLAIN
    },
    Scenario {
        name: "denied-64",
        fate: Fate::Denied,
        ruled: true,
        ..PLAIN
    },
    Scenario {
        name: "denied-64k",
        features: OFFLOADS,
        frames: super_frame,
        round: 16,
        fate: Fate::Denied,
        ruled: true,
        ..PLAIN
    },
    Scenario {
        name: "split-256",
        frames: || bytes(256),
        ..PLAIN
    },
    Scenario {
        name: "split-1500",
        frames: || bytes(1500),
        ..PLAIN
    },
    Scenario {
        name: "packed-1500",
        features: PACKED,
        frames: || bytes(1500),
        ..PLAIN
    },
    Scenario {
        name: "split-64-flows-1024",
        frames: stations,
        ..PLAIN
    },
    Scenario {
        name: "split-64-deep-flow",
        mask: DEEP,
        ..PLAIN
    },
    Scenario {
        name: "split-64-deep-1024",
        frames: connections,
        mask: DEEP,
        ..PLAIN
    },
    Scenario {
        name: "split-64-ruled",
        ruled: true,
        ..PLAIN
    },
    Scenario {
        name: "split-64-ruled-1024",
        frames: connections,
        mask: DEEP,
        ruled: true,
        ..PLAIN
    },
    Scenario {
        name: "split-64-port-security",
        port_security: true,
        ..PLAIN
    },
    Scenario {
        name: "split-1500-port-security",
        frames: || bytes(1500),
        port_security: true,
        ..PLAIN
    },
    Scenario {
        name: "split-64-limited",
        hold: Hold::Limit,
        ..PLAIN
    },
    Scenario {
        name: "split-64-scheduled",
        hold: Hold::Schedule(1),
        ..PLAIN
    },
    Scenario {
        name: "split-64-scheduled-64",
        hold: Hold::Schedule(64),
        ..PLAIN
    },
    Scenario {
        name: "split-1500-scheduled",
        frames: || bytes(1500),
        hold: Hold::Schedule(1),
        ..PLAIN
    },
    Scenario {
        name: "split-64-beside-tracked",
        beside_tracked: true,
        ..PLAIN
    },
    Scenario {
        name: "split-64-tagged",
        frames: tagged,
        ..PLAIN
    },
    Scenario {
        name: "split-64-iotlb",
        iommu: Some(Entries::Small),
        ..PLAIN
    },
    Scenario {
        name: "split-64-iotlb-2m",
        iommu: Some(Entries::Large),
        ..PLAIN
    },
    Scenario {
        name: "packed-64-iotlb",
        iommu: Some(Entries::Small),
        features: PACKED,
        ..PLAIN
    },
    Scenario {
        name: "split-1500-iotlb",
        iommu: Some(Entries::Small),
        frames: || bytes(1500),
        ..PLAIN
    },
    Scenario {
        name: "split-tso-64k",
        features: OFFLOADS,
        frames: super_frame,
        round: 16,
        ..PLAIN
    },
    Scenario {
        name: "tracked-64-1",
        frames: || tcp_connections(1, Flow::v4),
        tracked: Some(KNOWN),
        ..PLAIN
    },
    Scenario {
        name: "tracked-64-1024",
        frames: || tcp_connections(1024, Flow::v4),
        tracked: Some(KNOWN),
        ..PLAIN
    },
    Scenario {
        name: "tracked-64-new",
        frames: new_connections,
        mask: RULE,
        tracked: Some(NEW),
        ..PLAIN
    },
    Scenario {
        name: "tracked-64-v6",
        frames: || tcp_connections(1, Flow::v6),
        tracked: Some(KNOWN),
        ..PLAIN
    },
    Scenario {
        name: "tracked-tso-64k",
        features: OFFLOADS,
        frames: super_frame,
        round: 16,
        tracked: Some(KNOWN),
        ..PLAIN
    },
];

/// Returns one frame of this length.
fn bytes(len: usize) -> Vec<Frame> {
    let payload = vec![1; len - UDP_HEADERS];
    vec![(udp(&Flow::v4(1, 2), &payload), NetHeader::default())]
}

/// Returns frames of 1024 connections between two stations.
fn connections() -> Vec<Frame> {
    let connection = |n: u16| {
        let flow = Flow::v4(1, 2).ports(n, 53);
        (udp(&flow, &[1; 64 - UDP_HEADERS]), NetHeader::default())
    };
    (0..1024).map(connection).collect()
}

/// Returns a segment of ten bytes of each of so many connections between two stations: what is sent
/// again and again is old, and of the connection.
fn tcp_connections(count: u16, flow: fn(u8, u8) -> Flow) -> Vec<Frame> {
    let segment = |n: u16| {
        let flow = flow(1, 2).ports(n, 80);
        (tcp(&flow, SEQUENCE, &[1; 10]), NetHeader::default())
    };
    (0..count).map(segment).collect()
}

/// Returns frames of UDP that begin a connection each, more than are sent.
fn new_connections() -> Vec<Frame> {
    let datagram = |n: u16| {
        let flow = Flow::v4(1, 2).ports(n, 53);
        (udp(&flow, &[1; 64 - UDP_HEADERS]), NetHeader::default())
    };
    (0..2048).map(datagram).collect()
}

/// Returns frames of 1024 stations, each with a flow of its own.
fn stations() -> Vec<Frame> {
    let station = |n: u16| {
        let [high, low] = n.to_be_bytes();
        let flow = Flow {
            src_mac: [0x02, 0x1a, 0x57, 1, high, low],
            ..Flow::v4(1, 2)
        };
        (udp(&flow, &[1; 64 - UDP_HEADERS]), NetHeader::default())
    };
    (0..1024).map(station).collect()
}

/// Returns a frame of a trunk port; an access port gets it without its tag.
fn tagged() -> Vec<Frame> {
    let flow = Flow::v4(1, 2).tagged(10);
    vec![(udp(&flow, &[1; 64 - UDP_HEADERS]), NetHeader::default())]
}

/// Returns a TSO frame of maximum length, with segments of equal length.
fn super_frame() -> Vec<Frame> {
    vec![tcp_super(&Flow::v4(1, 2), 1, &[1; 45 * 1448], 1448)]
}

impl Scenario {
    /// Returns the number of frames that are counted.
    pub(crate) fn frames(&self) -> usize {
        ROUNDS * self.round
    }

    /// Sends the frames.
    ///
    /// # Panics
    /// When a frame does not arrive.
    pub(crate) fn replay(&self) {
        let mut scene = Scene::new(self);
        if self.port_security {
            scene.enable_port_security();
        }
        scene.hold(self.hold);
        if let Some(state) = self.tracked {
            scene.track_sender(&(self.frames)(), state);
        }
        if self.beside_tracked {
            scene.track_receiver();
        }
        let frames = (self.frames)();
        let rules = if self.ruled {
            vec![RuleId(7)]
        } else {
            Vec::new()
        };
        let action = match self.fate {
            Fate::Denied => Action::Drop(DropReason::AclDenied),
            Fate::Delivered | Fate::Unread => Action::Unicast {
                port: RECEIVER,
                tag: None,
            },
        };
        for (frame, _) in &frames {
            scene.install(frame, &self.mask, (action, rules.clone()));
        }
        let mut sent = frames.iter().cycle();
        let unread = match self.fate {
            Fate::Unread => usize::from(QUEUE) / self.round,
            Fate::Delivered | Fate::Denied => 0,
        };
        let warm_up = WARM_UP + unread;
        for round in 0..warm_up + ROUNDS {
            let serve = if round < warm_up {
                serve
            } else {
                serve_counted
            };
            let frames = sent.by_ref().take(self.round);
            match self.fate {
                Fate::Delivered => scene.round(frames, serve),
                Fate::Unread | Fate::Denied => drop(scene.send(frames, serve)),
            }
        }
    }

    /// Returns the options of a Linux guest: a small frame has one buffer; a large one has headers
    /// and pages, in an indirect table.
    fn options(&self) -> NetOptions {
        let options = NetOptions::new(self.features, QUEUE);
        if self.features & HOST_OFFLOADS == 0 {
            return options;
        }
        NetOptions {
            tx_cuts: Cuts::At([&[66][..], &[4096; 15]].concat()),
            shape: Shape::Indirect,
            ..options
        }
    }
}

/// The other side of a port.
enum Nic {
    Guest(Box<NetPair>, Option<Box<Translations>>),
    Client(SlotNic),
}

impl Nic {
    fn plug(scenario: &Scenario) -> (Self, GuestPort) {
        match (scenario.slots, scenario.iommu) {
            (None, None) => {
                let (_, nic, port) = guest(scenario.options(), MEMORY);
                (Self::Guest(Box::new(nic), None), port)
            }
            (None, Some(entries)) => {
                let huge = entries == Entries::Large;
                let (translations, nic, port) = translated(scenario.options(), huge);
                (
                    Self::Guest(Box::new(nic), Some(Box::new(translations))),
                    port,
                )
            }
            (Some(format), _) => {
                let options = SlotOptions::new(format, QUEUE);
                let (_, nic, port) = slot_client(options, scenario.features);
                (Self::Client(nic), port)
            }
        }
    }

    /// Sends frames, which are visible together, as a client that polls.
    fn send<'a>(&mut self, frames: impl Iterator<Item = &'a Frame>) -> usize {
        let mut sent = 0;
        for (frame, header) in frames {
            let room = match self {
                Self::Guest(nic, _) => nic.stage(frame, header).expect("sound"),
                Self::Client(nic) => nic.stage(frame, header),
            };
            assert!(room, "room");
            sent += 1;
        }
        match self {
            Self::Guest(nic, translations) => {
                if let Some(translations) = translations {
                    translations.grant();
                }
                nic.tx.publish();
                nic.tx.set_notifications(false);
            }
            Self::Client(nic) => nic.tx.publish(),
        }
        sent
    }

    /// Does not want to be notified of frames.
    fn poll(&mut self) {
        if let Self::Guest(nic, _) = self {
            nic.rx.set_notifications(false);
        }
    }

    /// Takes all frames, and offers their buffers again. Returns the number.
    fn receive(&mut self, bytes: &mut Vec<u8>) -> usize {
        let mut frames = 0;
        match self {
            Self::Guest(nic, _) => {
                while nic.receive_into(bytes).expect("correct").is_some() {
                    frames += 1;
                }
                nic.offer();
            }
            Self::Client(nic) => {
                while nic.receive_into(bytes).is_some() {
                    frames += 1;
                }
                nic.offer();
            }
        }
        frames
    }
}

struct Scene {
    // On the heap: the address on the stack would depend on the size of the environment.
    switch: Box<Switch<AttachedPort>>,
    sender: Nic,
    receiver: Nic,
    got: Vec<u8>,
    /// State of the sender's frames in their connections.
    state: Ct,
}

impl Scene {
    fn new(scenario: &Scenario) -> Self {
        let mut switch = Box::new(Switch::new(Counters::heap(), 7));
        let mut plug = |id| {
            let (nic, port) = Nic::plug(scenario);
            switch.add_port(id, port.into());
            nic
        };
        let (sender, receiver) = (plug(SENDER), plug(RECEIVER));
        Self {
            switch,
            sender,
            receiver,
            got: Vec::new(),
            state: Ct::UNTRACKED,
        }
    }

    /// Enables port security at the sender's port.
    fn enable_port_security(&mut self) {
        let host = PortSecurity {
            macs: Macs::Learned,
            no_dhcp_server: true,
            no_router: true,
            ..PortSecurity::default()
        };
        let table = PortSecurityTable::from_iter([(SENDER, host)]);
        self.switch
            .set_program(Program::default().with_port_security(table));
    }

    /// Lets frames of the sender wait beyond a rate that they do not reach.
    fn hold(&mut self, hold: Hold) {
        match hold {
            Hold::Nothing => {}
            Hold::Limit => {
                let bits = Some(Rate {
                    per_second: RATE,
                    burst: RATE / 100,
                });
                let from_guest = Limit {
                    packets: None,
                    bits,
                };
                let limits = Limits {
                    from_guest,
                    ..Limits::default()
                };
                self.switch.set_limits(SENDER, PortLimits::new(limits));
            }
            Hold::Schedule(senders) => {
                let sender = |at| Sender {
                    port: if at == 0 { SENDER.0 } else { RECEIVER.0 + at },
                    rates: Rates::usual(),
                    priority: 0,
                    group: None,
                    beyond: Beyond::Hold,
                    classes: Vec::new(),
                };
                let config = OutputConfig {
                    rate: Some(RATE),
                    overhead: 24,
                    full: FullAction::Drop,
                    room: 0,
                    groups: Vec::new(),
                    priorities: [0; MAX_CLASSES],
                    senders: (0..senders).map(sender).collect(),
                };
                let output = Output::new(config, None);
                self.switch.set_output(RECEIVER, Some(Arc::new(output)));
            }
        }
    }

    /// Lets the sender be tracked, and opens the connections of its frames if they are known.
    fn track_sender(&mut self, frames: &[Frame], state: CtState) {
        let tracking = Tracking::new(
            Table::heap_filtered(Layout::new(DEFAULT_CAPACITY), 7),
            Settings::default(),
            0,
        )
        .expect("few threads");
        let zone = SegmentId(1);
        let model = Model {
            segments: [(
                zone,
                Segment {
                    name: "blue".into(),
                    vlan: None,
                },
            )]
            .into(),
            ports: [SENDER, RECEIVER]
                .map(|id| (id, PortMode::Access(zone)))
                .into(),
        };
        let program = Program::compile(&model, 0).expect("a sound model");
        let program = program.with_tracked([(zone, EPOCH)]);
        self.switch.set_program(program);
        assert!(
            self.switch.set_tracking(Some(tracking.clone())),
            "few threads"
        );
        self.switch.continue_work(NOW);
        let state = Ct::new(state, 0);
        self.state = state;
        if state == Ct::new(KNOWN, 0) {
            let mut tracker = Tracker::new(&tracking.table).expect("few threads");
            for (frame, _) in frames {
                open(&mut tracker, &tracking.settings, zone.0, frame);
            }
        }
    }

    /// Lets the receiver be tracked, and caches a flow of it.
    fn track_receiver(&mut self) {
        self.switch.set_tracked_ports(&[RECEIVER], NOW);
        let answer = udp(&Flow::v4(2, 1), &[1]);
        let key = FlowKey::new(RECEIVER.0, &ParsedHeaders::parse(&answer, answer.len()));
        self.switch
            .answer(Answer::unicast(&key, &DEEP, SENDER), NOW);
        self.switch.continue_work(NOW);
    }

    /// Caches the frame's flow, as control's answer does.
    fn install(&mut self, frame: &[u8], mask: &FlowMask, (action, rules): (Action, Vec<RuleId>)) {
        let key =
            FlowKey::new(SENDER.0, &ParsedHeaders::parse(frame, frame.len())).with_ct(self.state);
        let mask = &if self.state == Ct::UNTRACKED {
            *mask
        } else {
            mask.with_ct()
        };
        let connection = if self.state == Ct::new(NEW, 0) {
            ConnectionChange::Commit {
                mark: 0,
                reply: false,
            }
        } else {
            ConnectionChange::None
        };
        let answer = Answer::Install {
            upcall: None,
            key: *key.masked(mask).words(),
            mask: *mask.words(),
            action,
            segment: None,
            source: SourceRole::Unlearned,
            class: policy::DEFAULT_CLASS,
            connection,
            except: Vec::new(),
            rules,
            epoch: self.switch.program().epoch(),
        };
        self.switch.answer(answer, NOW);
        self.switch.continue_work(NOW);
    }

    /// Runs a round in which both guests poll, as under load.
    fn round<'a>(
        &mut self,
        frames: impl Iterator<Item = &'a Frame>,
        serve: fn(&mut Switch<AttachedPort>),
    ) {
        let sent = self.send(frames, serve);
        let got = self.receiver.receive(&mut self.got);
        assert_eq!(got, sent, "frames that did not arrive");
    }

    /// Sends frames through the switch. Returns their number.
    fn send<'a>(
        &mut self,
        frames: impl Iterator<Item = &'a Frame>,
        serve: fn(&mut Switch<AttachedPort>),
    ) -> usize {
        let sent = self.sender.send(frames);
        self.receiver.poll();
        serve(&mut self.switch);
        sent
    }
}

fn serve(switch: &mut Switch<AttachedPort>) {
    switch.drain(SENDER, 0, NOW, &mut NoUpcalls);
}

/// Serves the queue. Callgrind counts this function, which it finds by its name.
#[inline(never)]
fn serve_counted(switch: &mut Switch<AttachedPort>) {
    serve(switch);
    // The call above must not become a tail call.
    std::hint::black_box(());
}
