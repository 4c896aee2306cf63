//! Writes the seeds: `cargo run -p lasthop-fuzz --example seeds`. One small input for each thing
//! that a fuzzer would take long to find by itself.

use std::fs;
use std::path::Path;

use ipc::figures::{QueueCounts, WorkerFigures};
use ipc::records::{Answer, Connection, SourceRole, StaleFlows, Upcall};
use ipc::rules::RuleUse;
use ipc::supervision::{
    ControlRequest, DriverRequest, EventToControl, EventToDriver, EventToSwitch, ProcessInfo,
    SocketAnswer, SocketRequest, SwitchRequest, UserDriverRequest,
};
use ipc::switching::{
    Clients, FrontEnds, Iommu, PhaseReport, PortConfig, PortPhase, PortState, QueueState, Request,
    Role, Station, StationUse, SwitchCommand, SwitchEvent, SwitchFigures,
};
use policy::acl::RuleId;
use policy::{Action, ConnectionChange, ExcludeSetId, SegmentId};
use port::PortId;
use serde::Serialize;
use wire::build::{PacketBuilder, TcpFields};
use wire::{EtherType, MacAddr, VlanTci};

#[path = "seeds/queues.rs"]
mod queues;
#[path = "seeds/usernet.rs"]
mod usernet;

fn main() {
    wire();
    offload();
    coalesce();
    queues::driver();
    queues::iotlb();
    queues::queues();
    slots();
    ring();
    races();
    vhost_user();
    memif();
    channel();
    session_record();
    pipe_messages();
    config();
    expression();
    classifier();
    egress();
    conntrack();
    connections();
    usernet::seeds();
    api();
}

/// Trees of six shapes: bytes that look like chance make groups, ports and classes of all kinds.
fn egress() {
    for tree in 0..6u32 {
        let byte = |at: u32| (at.wrapping_mul(2_654_435_761) ^ tree.wrapping_mul(40_503)) >> 13;
        let bytes: Vec<u8> = (1..120).map(|at| byte(at * (tree + 1)) as u8).collect();
        save("egress_tree", &format!("tree-{tree}"), &bytes);
    }
}

/// Steps and changes of all kinds, by bytes that look random.
fn connections() {
    for seed in 0..6_u32 {
        let byte = |at: u32| (at.wrapping_mul(2_654_435_761) ^ seed.wrapping_mul(40_503)) >> 13;
        let bytes: Vec<u8> = (1..900).map(|at| byte(at * (seed + 1)) as u8).collect();
        save("conntrack_table", &format!("walk-{seed}"), &bytes);
        save("conntrack_file", &format!("words-{seed}"), &bytes[..300]);
        save("offload_page", &format!("walk-{seed}"), &bytes);
    }
}

/// Frames of connections: bytes that look like chance choose hosts, ports and flags out of few.
fn conntrack() {
    for walk in 0..8u32 {
        let byte = |at: u32| (at.wrapping_mul(2_246_822_519) ^ walk.wrapping_mul(48_271)) >> 11;
        let bytes: Vec<u8> = (1..1500).map(|at| byte(at * (walk + 3)) as u8).collect();
        save("conntrack", &format!("walk-{walk}"), &bytes);
    }
}

fn save(target: &str, name: &str, bytes: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("seeds")
        .join(target);
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join(name), bytes).expect("a seed");
}

fn builder() -> PacketBuilder {
    PacketBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]))
}

/// Frames of every kind that the parser knows.
fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let (v4, v6) = (
        ([10, 0, 0, 1], [10, 0, 0, 2]),
        ([0xfe80, 0, 0, 0, 0, 0, 0, 1], [0xfe80, 0, 0, 0, 0, 0, 0, 2]),
    );
    let ip4 = || builder().ipv4(v4.0, v4.1);
    let ip6 = || builder().ipv6(v6.0, v6.1);
    let tcp = || TcpFields {
        flags: 0x99,
        ..TcpFields::default()
    };
    vec![
        ("tcp4", ip4().tcp(tcp()).payload(b"hello").build()),
        ("tcp6", ip6().tcp(tcp()).payload(b"hello").build()),
        ("udp4", ip4().udp(53, 4000).payload(b"hello").build()),
        ("udp6", ip6().udp(53, 4000).payload(b"hello").build()),
        (
            "udp4-tagged",
            ip4().vlan(VlanTci::new(10)).udp(53, 4000).build(),
        ),
        ("icmp4", ip4().echo_request(1, 2).build()),
        (
            "icmp6",
            ip6().icmp(135, 0, [0; 4]).payload(&[0; 16]).build(),
        ),
        ("arp", builder().arp_request(v4.0, v4.1).build()),
        ("rarp", builder().rarp_announce().build()),
        (
            "fragment-first4",
            ip4().fragment(0, true).udp(1, 2).payload(&[1; 16]).build(),
        ),
        (
            "fragment-later4",
            ip4().fragment(9, false).udp(1, 2).build(),
        ),
        ("fragment6", ip6().fragment(0, true).udp(1, 2).build()),
        (
            "extensions6",
            ip6()
                .extension(0, &[0; 6])
                .extension(43, &[0; 6])
                .extension(60, &[0; 14])
                .tcp(tcp())
                .build(),
        ),
        ("padded", ip4().tcp(tcp()).pad_to(60).build()),
        ("gre", ip4().protocol(47).payload(&[0; 8]).build()),
        ("dhcp4", ip4().udp(67, 68).payload(&[2; 16]).build()),
        ("router6", ip6().ttl(255).icmp(134, 0, [0; 4]).build()),
        ("neighbour6", neighbour(ip6())),
        (
            "snap",
            builder()
                .ethertype(EtherType(40))
                .payload(&[0xaa, 0xaa, 3, 0, 0, 0, 8, 6, 0, 1])
                .build(),
        ),
    ]
}

/// An advertisement of the sender's own address, with the option that says where it is.
fn neighbour(packet: PacketBuilder) -> Vec<u8> {
    let target = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let option = [2, 1, 2, 0, 0, 0, 0, 1];
    let packet = packet.ttl(255).icmp(136, 0, [0x60, 0, 0, 0]);
    packet.payload(&[&target[..], &option].concat()).build()
}

fn wire() {
    for (name, frame) in frames() {
        let len = (frame.len() as u16).to_le_bytes();
        save("wire_parse", name, &[&len[..], &frame].concat());
        let kind = ["tcp4", "tcp6", "udp4", "udp6"]
            .iter()
            .position(|kind| name.starts_with(kind));
        if let Some(kind) = kind {
            let head = [
                &3000u16.to_le_bytes()[..],
                &1000u16.to_le_bytes(),
                &[kind as u8],
            ]
            .concat();
            save("wire_segment", name, &[&head, &frame[..]].concat());
        }
    }
}

/// Batches of one flow of each kind, and of several with something unusual in between.
fn coalesce() {
    let frame = |flow: u8, len: u16, how: u8, flags: u8| {
        let [low, high] = len.to_le_bytes();
        [flow, low, high, how, flags, 14, 0x46, 20, 1]
    };
    for (name, flow) in [
        ("tcp4", 0),
        ("tcp6", 6),
        ("udp4", 1),
        ("udp6", 3),
        ("df", 17),
    ] {
        let mut bytes = vec![1];
        for at in 0..6u8 {
            let len = [100, 0, 0, 0, 0, 40][usize::from(at)];
            bytes.extend(frame(flow, len, at % 2, 0));
        }
        save("coalesce", name, &bytes);
    }
    let mut bytes = vec![1];
    for at in 0..24u8 {
        let len = if at < 4 { 1448 } else { 0 };
        // Bits of unusual frames, one after the other; flags with PSH.
        let how = if at % 3 == 2 { 1 << (at / 4) } else { 0 };
        bytes.extend(frame(at % 4 + 32 * (at % 2), len, how, 0x18));
    }
    save("coalesce", "mixed", &bytes);
}

fn offload() {
    let types = [
        ("tcp4", 1),
        ("tcp6", 4),
        ("udp4", 5),
        ("udp6", 5),
        ("icmp4", 0),
    ];
    for (name, frame) in frames() {
        let Some((_, gso)) = types.iter().find(|(kind, _)| name.starts_with(kind)) else {
            continue;
        };
        for (which, accepts) in [("all", 0x3f), ("checksum", 1), ("none", 0u8)] {
            // Flags, type, header length, segment size, start, offset, buffers: offsets are filled
            // in by bit 0.
            let mut input = vec![1, *gso, 0, 0];
            input.extend(1000u16.to_le_bytes());
            input.extend([0; 6]);
            input.extend([accepts, 3]);
            input.extend(2500u16.to_le_bytes());
            input.extend(700u16.to_le_bytes());
            input.extend(&frame);
            save("offload_deliver", &format!("{name}-{which}"), &input);
        }
    }
}

/// Options of a slot queue and steps: see `src/queue_slots.rs`.
fn slots() {
    let sound = |len: u16| [&[0][..], &len.to_le_bytes()].concat();
    let slot = |slot: u8, at: u8, value: u32| {
        let value = value.to_le_bytes();
        [&[4, slot, at][..], &value].concat()
    };
    let line = |at: u8, value: u16| [&[6, at][..], &value.to_le_bytes()].concat();
    let (take, put, untake, publish): (&[u8], &[u8], &[u8], &[u8]) = (&[7], &[9, 7], &[11], &[12]);
    let kicks: &[u8] = &[13, 1, 14, 2, 0, 13, 0];
    let restart: &[u8] = &[15, 0];
    let turn = [
        &sound(60)[..],
        &sound(700),
        take,
        put,
        publish,
        kicks,
        &sound(14),
        take,
        untake,
        take,
        restart,
        take,
        put,
        publish,
    ]
    .concat();
    for (options, name) in [
        (0, "netmap"),
        (1, "memif"),
        (2, "netmap-rx"),
        (3, "memif-rx"),
        (8, "header"),
    ] {
        let more = |n: u8| slot(n, if options & 1 == 0 { 6 } else { 0 }, 0x21);
        let incomplete = [
            &sound(60)[..],
            &more(0),
            take,
            kicks,
            &sound(60),
            take,
            put,
            publish,
        ]
        .concat();
        save(
            "queue_slots",
            name,
            &[&[options][..], &turn, &turn].concat(),
        );
        save(
            "queue_slots",
            &format!("{name}-incomplete"),
            &[&[options][..], &incomplete].concat(),
        );
        let head = line(if options & 1 == 0 { 0 } else { 6 }, 77);
        save(
            "queue_slots",
            &format!("{name}-jump"),
            &[&[options][..], &head, take, put].concat(),
        );
        let beyond = [
            &sound(60)[..],
            &slot(0, 8, 0xffff_f000),
            &slot(0, 0, 0xffff_0000),
            take,
        ]
        .concat();
        save(
            "queue_slots",
            &format!("{name}-beyond"),
            &[&[options][..], &beyond].concat(),
        );
    }
}

/// Seeds of data that is rewritten while it is read.
fn races() {
    // Split and packed, with tables, event index, order and offloads; slot queues.
    for (name, options) in [
        ("split", 0u8),
        ("split-all", 0x1e),
        ("packed", 1),
        ("packed-all", 0x1f),
        ("netmap", 0x80),
        ("netmap-header", 0x92),
        ("memif", 0xc0),
        ("iommu-split", 0x60),
        ("iommu-packed", 0x7f),
    ] {
        let chain: &[u8] = &[0, 1, 0, 0, 12, 0, 0, 64, 0, 100, 0, 0];
        let table: &[u8] = &[5, 1, 0, 0, 12, 0, 0, 64, 0, 100, 0, 0];
        let frame: &[u8] = &[&[9, 1][..], &[0; 11], &[64, 0]].concat();
        let steps = [
            chain,
            table,
            frame,
            &[12, 200, 0],
            chain,
            table,
            &[15],
            frame,
            chain,
        ]
        .concat();
        // Descriptors, the driver's index, tables and data.
        let writes: &[(u8, u16, u16)] = &[
            (0, 8, 0xffff),
            (0, 12, 4),
            (1, 2, 500),
            (6, 8, 0xf000),
            (6, 12, 3),
            (7, 0, 1),
            (7, 6, 0xffff),
            (3, 8, 1),
        ];
        let bytes = writes.iter().flat_map(|(area, at, value)| {
            let ([a, b], [c, d]) = (at.to_le_bytes(), value.to_le_bytes());
            [*area, a, b, c, d]
        });
        let writes: Vec<u8> = bytes.collect();
        let calm = [&[options, 0][..], &steps].concat();
        save("switch_race", &format!("{name}-calm"), &calm);
        let wild = [&[options, 8][..], &writes, &steps, &steps].concat();
        save("switch_race", name, &wild);
        // Pages of rings, of the table, of data, and some of any.
        let revoked: Vec<u8> = (0..16u8)
            .flat_map(|n| [if n < 8 { 8 | n } else { 24 }, 0, 0, 7 * n, 0])
            .collect();
        let holes = [&[options, 16][..], &revoked, &steps, &steps, &steps].concat();
        save("switch_race", &format!("{name}-holes"), &holes);
    }
    let steps: Vec<u8> = (0..60u8).flat_map(|n| [0, n, 1, n ^ 31, n % 8]).collect();
    for (name, header, at) in [("head", 1u8, 16u8), ("tail", 1, 32), ("length", 0, 0)] {
        let write = [&[header, at][..], &[0xff, 0xff, 0, 0, 0, 0, 0, 0]].concat();
        save("ring_race", name, &[&[2, 1][..], &write, &steps].concat());
    }
    save("ring_race", "calm", &[&[2, 0][..], &steps].concat());
}

fn ring() {
    let honest = [
        0u8, 10, 0, 200, 0, 0, 3, 9, 1, 4, 2, 5, 0, 20, 6, 0, 30, 3, 2,
    ];
    let header = |at: u8, kind: u8| [7, at, kind];
    save(
        "ring_record",
        "honest",
        &[&[1], &honest[..], &honest].concat(),
    );
    save(
        "ring_record",
        "head-jumps",
        &[&[0, 0, 8][..], &header(16, 6), &[2, 5, 2]].concat(),
    );
    save(
        "ring_record",
        "tail-jumps",
        &[&[0, 0, 8][..], &header(32, 9), &[0, 9, 6, 2]].concat(),
    );
    save(
        "ring_record",
        "capacity",
        &[&[2, 0, 8][..], &header(2, 6), &[5, 6, 0, 70, 2]].concat(),
    );
    save(
        "ring_record",
        "length",
        &[&[0, 0, 8, 8, 0, 0, 1][..], &[1, 1, 2]].concat(),
    );
}

/// Messages as `vhost_user/steps.rs` reads them: 0, code - 1, how, then the fields. Numbers: 0x40 +
/// n is page n, 0xc0 is the size of the memory file.
fn memif() {
    let message = |which: u8, fields: &[u8]| [&[0, which], fields].concat();
    let (init, connect) = (message(0, &[0]), message(6, &[]));
    let region = |index: u8| message(1, &[index, 0, 0]);
    // Place, direction, index, region, log2 of the size, descriptor.
    let ring = |place: u8, from: u8, index: u8| message(3, &[place, from, index, 0, 6, 0]);
    let set_up = [init, region(0), ring(0, 1, 0), ring(1, 0, 0)].concat();
    let serve = [0xe0].repeat(4);
    // The client offers two buffers at the end of its page of rings, and a frame in one.
    let write = |at: u16, value: u8| [&[0xc4][..], &at.to_le_bytes(), &[0, 0, value, 0]].concat();
    let frames = [
        write(0x84, 64),
        write(6, 1),
        write(0x884, 64),
        write(0x806, 2),
    ]
    .concat();
    let all = |last: &[u8]| [&set_up[..], &connect, &serve, &frames, &serve, last].concat();
    let more = [
        &set_up[..],
        &region(1),
        &ring(2, 1, 1),
        &ring(3, 0, 1),
        &connect,
        &serve,
    ]
    .concat();
    for (options, socket) in [(0, "direct"), (1, "socket")] {
        let seed = |name: &str, steps: &[u8]| {
            let bytes = [&[options], steps].concat();
            save("memif_messages", &format!("{socket}-{name}"), &bytes);
        };
        seed("frames", &all(&[]));
        seed("deaths", &all(&[0xf6, 0xe0, 0xf6, 0xff]));
        seed("cut-off", &all(&[0xf4, 0, 1, 0xe0, 0xf6]));
        seed("two-pairs", &more);
        seed("again", &[&all(&[0xff])[..], &set_up, &connect].concat());
    }
}

fn vhost_user() {
    let message = |code: u8, how: u8, fields: &[u8]| [&[0, code - 1, how], fields].concat();
    let hello = [
        message(1, 0, &[]),
        message(15, 0, &[]),
        message(16, 0, &[0]),
        message(3, 1, &[]),
        message(17, 0, &[]),
        message(36, 0, &[]),
    ]
    .concat();
    let features = |which| message(2, 1, &[which]);
    let memory = message(5, 1, &[1, 0x40, 0xc0, 0x40, 0x00, 0]);
    let queue = |index: u8| {
        [
            message(13, 0, &[index]),
            message(8, 1, &[index, 16]),
            message(10, 1, &[index, 0]),
            message(9, 1, &[index, 0, 0x41 + index, 0, 32, 16, 0]),
            message(12, 0, &[index]),
            message(18, 1, &[index, 1]),
        ]
        .concat()
    };
    let guest = [0xcc, 0x06, 0x18, 0, 0, 1, 0, 0xe0, 0xf8, 1, 0xdc, 5];
    let stop = [message(11, 0, &[0]), message(11, 0, &[1])].concat();
    let all = |middle: &[u8]| {
        [
            &hello,
            &features(0),
            &memory,
            middle,
            &queue(0),
            &queue(1),
            &guest,
            &stop,
        ]
        .concat()
    };
    let log = [features(3), message(6, 0x30, &[0x41, 0x00])].concat();
    let inflight = [
        message(31, 0, &[0, 0, 4, 16]),
        message(32, 0x30, &[0x42, 0x00, 4, 16]),
    ]
    .concat();
    let slots = [
        message(37, 1, &[0x70, 0x41, 0x70, 0x00, 5]),
        message(38, 1, &[0x70, 0x41, 0x70, 0x00]),
    ]
    .concat();
    let rest = [
        message(19, 1, &[7]),
        message(20, 1, &[0x8a]),
        message(21, 0x70, &[]),
        message(24, 0, &[12, 0]),
        message(39, 1, &[15]),
        message(40, 0, &[]),
        message(34, 1, &[]),
    ]
    .concat();
    // The rings are on pages 1 and 2; page 9 is refused, and the channel ends with nonsense.
    let grant = |page: u8| message(22, 0, &[page, 0x41, page, 3, 2]);
    let iommu = [
        features(1),
        message(21, 0x71, &[]),
        vec![0xec, 1, 0, 0xec, 2, 2, 0xec, 9, 0],
        grant(0x41),
        grant(0x42),
        vec![0xf0, 0, 0xf0, 0, 0xf0, 1, 0xec, 7, 1, 0xf5, 0xe8, 3],
        message(22, 0, &[0x41, 0x41, 0, 0, 3]),
        vec![0xec, 1, 0, 0xf4, 24, 0],
        vec![5; 23],
    ]
    .concat();
    for (how, socket) in [("direct", 0), ("socket", 1)] {
        let parts: [(&str, &[u8]); 7] = [
            ("iommu", &iommu),
            ("plain", &[]),
            ("log", &log),
            ("inflight", &inflight),
            ("slots", &slots),
            ("rest", &rest),
            ("packed", &features(4)),
        ];
        for (name, middle) in parts {
            save(
                "vhost_user_session",
                &format!("{how}-{name}"),
                &[&[socket], &all(middle)[..]].concat(),
            );
        }
        let twice = [all(&[]), memory.clone(), queue(0), vec![0xfc], all(&rest)].concat();
        save(
            "vhost_user_session",
            &format!("{how}-twice"),
            &[&[socket], &twice[..]].concat(),
        );
    }
    let cut = [
        all(&[]),
        memory.clone(),
        queue(0),
        vec![0xfa, 0, 1],
        guest.to_vec(),
    ]
    .concat();
    save(
        "vhost_user_session",
        "truncated",
        &[&[0], &cut[..]].concat(),
    );
    save(
        "vhost_user_session",
        "bytes",
        &[1, 0xc8, 12, 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 2, 0, 3],
    );
}

fn message(which: u8, name: &str, value: &impl Serialize) {
    let bytes = postcard::to_allocvec(value).expect("our own message");
    save("channel_messages", name, &[&[which], &bytes[..]].concat());
}

fn channel() {
    let config = PortConfig {
        id: PortId(3),
        name: "vm1".into(),
        socket: "vm1.sock".into(),
        role: Role::Server,
        queues: 2,
        weight: ipc::switching::WEIGHT,
        mtu: Some(1500),
        mac: Some([2, 0, 0, 0, 0, 1]),
        clients: Clients::default(),
        iommu: Iommu::default(),
    };
    let station = Station {
        segment: SegmentId(1),
        mac: [2, 0, 0, 0, 0, 1],
        port: PortId(3),
    };
    let orders = [
        SwitchCommand::Adopt,
        SwitchCommand::AddPort(config.clone()),
        SwitchCommand::RemovePort(PortId(3)),
        SwitchCommand::Stations { within_ms: 6000 },
        SwitchCommand::Check(vec![station], Vec::new()),
    ];
    for (at, order) in orders.into_iter().enumerate() {
        message(0, &format!("order-{at}"), &Request { number: 7, order });
    }
    // A program of one segment: epoch, segments, ports.
    save(
        "channel_messages",
        "order-program",
        &[0, 7, 1, 5, 1, 2, 1, 0, 2, 1, 10, 2, 1, 0, 0],
    );
    let (key, mask) = ([1, 2, 3, 4, 5, 6, 7, 8], [u64::MAX; 8]);
    let action = Action::Unicast {
        port: PortId(2),
        tag: Some(10),
    };
    let segment = Some(SegmentId(1));
    let queues = vec![QueueState {
        index: 1,
        size: 256,
        enabled: true,
        fault: Some("loop".into()),
        counts: QueueCounts::default(),
    }];
    let state = PortState {
        config: config.clone(),
        phase: PortPhase::Up,
        reason: None,
        features: 1 << 32,
        protocol_features: 1,
        memory: 4096,
        queues,
        connections: 1,
        front_ends: FrontEnds::default(),
        client: None,
        iommu: Some(Iommu::default()),
        translation: None,
    };
    message(
        1,
        "adopted",
        &SwitchEvent::Adopted {
            epoch: 4,
            ports: vec![config],
            limits: vec![],
            mirrors: vec![],
            peers: vec![],
            without_listener: vec![PortId(1)],
        },
    );
    let used = StationUse {
        station,
        held: true,
        idle_ms: 5,
    };
    message(1, "stations", &SwitchEvent::Stations(vec![used]));
    message(
        1,
        "states",
        &SwitchEvent::PortStates(
            vec![state],
            SwitchFigures::default(),
            vec![WorkerFigures::default()],
        ),
    );
    message(
        1,
        "done",
        &SwitchEvent::Done {
            number: 7,
            error: Some("no".into()),
        },
    );
    let uses = RuleUse {
        rule: RuleId(7),
        packets: 3,
        bytes: 180,
        idle_ms: 5,
    };
    message(1, "rules", &SwitchEvent::Rules(vec![uses]));
    message(
        1,
        "phase",
        &SwitchEvent::Phases(vec![PhaseReport {
            port: PortId(1),
            phase: PortPhase::Faulted,
            reason: Some("loop".into()),
        }]),
    );
    message(
        2,
        "upcall",
        &Upcall {
            id: 1,
            key,
            frame_len: 60,
            headers: vec![7; 20],
            connection: Some(Connection {
                far: Some(PortId(2)),
                epoch: 3,
                age_ms: 4,
            }),
        },
    );
    message(
        3,
        "install",
        &Answer::Install {
            upcall: Some(1),
            key,
            mask,
            action,
            segment,
            source: SourceRole::Holder,
            class: 5,
            connection: ConnectionChange::Commit {
                mark: 6,
                reply: false,
            },
            except: Vec::new(),
            rules: vec![RuleId(7)],
            epoch: 0,
        },
    );
    message(
        3,
        "once",
        &Answer::Once {
            upcall: 1,
            action: Action::Flood {
                segment: SegmentId(1),
                excluded: ExcludeSetId::NONE,
            },
            class: 5,
            connection: ConnectionChange::Deny,
            except: vec![PortId(3), PortId(4)],
            rules: vec![RuleId(7)],
            epoch: 0,
        },
    );
    let station = StaleFlows::Station {
        segment: SegmentId(1),
        mac: [2, 0, 0, 0, 0, 1],
    };
    message(3, "forget-station", &Answer::Forget(station));
    message(
        3,
        "forget-port",
        &Answer::Forget(StaleFlows::Port(PortId(3))),
    );
    let listen = SocketRequest::Listen {
        path: "vm1.sock".parse().expect("a path"),
    };
    message(4, "ask", &ControlRequest::Sockets(listen));
    // A driver's answer to a ping that ends within its counters.
    save("channel_messages", "pong-cut", &[8, 0, 0, 0, 0, 0xf0]);
    message(
        5,
        "tell",
        &EventToControl::Sockets(SocketAnswer::Listening {
            path: "vm1.sock".parse().expect("a path"),
            error: Some("no".into()),
        }),
    );
    let process = ProcessInfo {
        name: "switch".into(),
        pid: 7,
        restarts: 1,
        uptime_ms: 2,
    };
    message(5, "processes", &EventToControl::Processes(vec![process]));
    message(6, "dial", &SwitchRequest::Dial { port: PortId(1) });
    message(7, "stop", &EventToSwitch::Stop);
    let flows = UserDriverRequest::KeepFlows(vec![0, 7]);
    message(8, "flows", &DriverRequest::User(flows));
    message(9, "kept", &EventToDriver::KeptFlows(vec![0, 7]));
}

fn session_record() {
    save("session_record", "edited-split", &[0, 3, 0, 1, 40, 0, 9]);
    save("session_record", "edited-packed", &[1, 0, 0, 1]);
    save("session_record", "connection", &[2, 1, 1, 0]);
    save("session_record", "iommu-split", &[4, 3, 0, 1, 40, 0, 9]);
    save("session_record", "iommu-packed", &[5, 0, 0, 1]);
    // The version in the head, a slot in use, any slot.
    for (name, at, value) in [
        ("version", 8u16, 2),
        ("slot", 0x2010, 0x55),
        ("garbage", 0x6123, 7),
    ] {
        let [low, high] = (0x8000 | at).to_le_bytes();
        save(
            "session_record",
            &format!("table-{name}"),
            &[4, low, high, value],
        );
    }
    // A ring of four slots, two of them offered and one of those staged, and a journal that says
    // so.
    let slot = |len: u32, id: u16, flags: u16| {
        let mut bytes = (0x11_0000_u64).to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(id.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes
    };
    let mut journal = vec![0; 192];
    journal[..4].copy_from_slice(&[0x00, 0x80, 0x02, 0x80]);
    journal[72..80].copy_from_slice(&[60, 0, 0, 0, 1, 0, 0x80, 0]);
    let ring = [slot(60, 0, 0x80), slot(0, 1, 0x8080)].concat();
    save(
        "session_record",
        "journal",
        &[&[3, 3][..], &journal, &ring].concat(),
    );
}

/// Messages, and steps of two ends: they connect, register, offer and leave.
fn pipe_messages() {
    let register = pipes::Register {
        id: 1,
        end: pipes::End::Slave,
        instance: 7,
        slots: 2048,
        program: [b'p'; 16],
    };
    let message = [&[0][..], &register.to_bytes()].concat();
    save("pipe_messages", "register", &message);
    let refused = pipes::Answer::Refused("in use".into()).to_bytes();
    save("pipe_messages", "refused", &[&[0][..], &refused].concat());
    let register = |which: u8, end: u8, instance: u8| {
        let mut step = vec![which, 1, 1, end, instance, 0, 0];
        step.extend([b'p'; 16]);
        step
    };
    let steps = [
        vec![1, 0, 8, 0, 0, 0, 0],
        register(0, 0, 0),
        register(1, 1, 0),
        vec![0, 2, 3, 5],
        vec![0, 4, 0, 0],
        register(1, 0, 3),
        vec![0, 4, 0, 4, 0, 5, 0xff, 0xff],
    ];
    save("pipe_messages", "meeting", &steps.concat());
}

/// Bytes without a pattern, of several lengths: of a short one, most of the case is zeros.
fn classifier() {
    let mut state = 1_u64;
    for len in [64, 256, 600, 1200, 2400, 4000] {
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(len)
        .collect();
        save("classifier", &format!("bytes-{len}"), &bytes);
    }
}

fn config() {
    let example = include_str!("../../crates/cli/lasthop/src/cli/example.toml");
    let port = "[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"a.sock\"\n";
    save("config_toml", "example", example.as_bytes());
    save("config_toml", "empty", b"\n");
    save("config_toml", "one-port", port.as_bytes());
    save("config_toml", "same-name", [port, port].concat().as_bytes());
    save(
        "config_toml",
        "wrong-type",
        [port, "queues = \"two\"\n"].concat().as_bytes(),
    );
    save(
        "config_toml",
        "unknown-key",
        [port, "colour = 1\n"].concat().as_bytes(),
    );
    save("config_toml", "syntax", b"[switch\nname = ");
    save(
        "config_toml",
        "trunk",
        [port, "trunk = [\"red\", \"blue\"]\n"].concat().as_bytes(),
    );
}

/// Filters and descriptions, each before a frame.
fn expression() {
    let texts = [
        ("ports", "tcp port 80 and host 10.0.0.1 or 10.0.0.2"),
        ("nested", "udp src port 53 or not (broadcast and !vlan 5)"),
        (
            "sides",
            "src and dst net 10.0.0.0/8 && ip6 net 2001:db8::/64",
        ),
        (
            "ether",
            "ether host 02:00:00:00:00:01 or ether proto 0x88b5",
        ),
        ("lengths", "less 100 or greater 1000 or portrange 1-1000"),
        ("ping", "icmp 10.0.0.1 > 10.0.0.2 type 3 code 1 length 9"),
        (
            "ping6",
            "ether 02:00:00:00:00:01 > 02:00:00:00:00:02 vlan 5 icmp6 ::1 > ::2",
        ),
        ("tcp", "tcp [2001:db8::1]:4000 > [2001:db8::2]:80 syn ack"),
        ("arp", "arp who-has 10.0.0.2 tell 10.0.0.1"),
        (
            "arp-reply",
            "arp reply 10.0.0.2 is-at 02:00:00:00:00:02 tell 10.0.0.1",
        ),
        ("nd", "nd who-has fe80::2 tell fe80::1"),
        ("other", "type 0x88b5 length 100"),
        ("protocol", "ip proto 47 10.0.0.1 > 10.0.0.2"),
    ];
    let frame = frames().swap_remove(0).1;
    for (name, text) in texts {
        let len = (text.len() as u16).to_le_bytes();
        save(
            "expression",
            name,
            &[&len, text.as_bytes(), &frame].concat(),
        );
    }
}

/// Requests; the first byte says which.
fn api() {
    for (name, which, body) in [
        (
            "state",
            0,
            r#"{"switch":{"name":"a"},"metrics":{"listen":"127.0.0.1:9464"},"segments":[{"name":"blue","vlan":10}],"ports":[{"name":"a","kind":"vhost-user","socket":"a.sock","trunk":["blue"]}]}"#,
        ),
        ("empty-state", 0, "{}"),
        (
            "patch-state",
            1,
            r#"{"segments":[{"name":"blue","vlan":11},{"name":"red"}],"ports":[]}"#,
        ),
        (
            "patch-null",
            1,
            r#"{"ports":null,"switch":{"coalescing":null}}"#,
        ),
        ("switch", 2, r#"{"name":"b","workers":"auto"}"#),
        ("segment", 3, r#"{"name":"green","vlan":30}"#),
        ("tag", 4, r#"{"vlan":null}"#),
        (
            "port",
            5,
            r#"{"name":"up","kind":"uplink","interface":"eth0","driver":"xdp","queues":2}"#,
        ),
        (
            "patch-port",
            6,
            r#"{"mtu":9000,"mac":null,"segment":"red"}"#,
        ),
        ("remove-segment", 7, "red"),
        ("remove-port", 8, "vm2"),
        (
            "mirror",
            9,
            r#"{"name":"m2","to":"t0","ports":["vm2"],"direction":"in","segments":["blue"],"filter":"tcp port 80"}"#,
        ),
        (
            "put-mirror",
            10,
            r#"{"name":"m1","to":"vm2","segments":["default"]}"#,
        ),
        ("remove-mirror", 11, "m1"),
    ] {
        save("api_json", name, &[&[which], body.as_bytes()].concat());
    }
}
