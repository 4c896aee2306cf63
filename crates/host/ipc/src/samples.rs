//! Samples of the formats that one build leaves to the next: see `formats`.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use port::PortId;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use serde::Serialize;
use serde::de::DeserializeOwned;
use testkit::samples::sample;

use crate::connections::AdoptedTable;
use crate::driving::{
    BackEnd, Choice, DeviceSpec, DriverCounters, DriverKind, DriverSpec, DriverStart, DriverState,
    ForwardProtocol, InterfaceStart, Listen, PrefilterBackEnd, PrefilterChoice, RefusedForwards,
    UserBuffers, UserForward, UserGuest, UserNetwork, XdpStart,
};
use crate::formats::{CONNECTION, CRASH_RECORD, SUPERVISION};
use crate::forwards::ForwardReach;
use crate::keeping::{CRASH_RECORD_LEN, ConnectionRecord, ThreadSlots};
use crate::names::{PortName, SocketPath};
use crate::owners::{NoSocket, SocketKey, SocketOwner};
use crate::sockets::SocketType;
use crate::supervision::{
    Coalescing, ControlRequest, DriverRequest, EventToControl, EventToDriver, EventToSwitch,
    FoundVcpus, GuestAnswer, GuestRequest, Poll, PortDriverAnswer, PortDriverRequest, PortVcpus,
    ProcessInfo, ProcessUsage, SavedPart, SessionRequest, SocketAnswer, SocketDir, SocketRequest,
    SwitchRequest, SwitchSettings, UserDriverRequest, UserPortAnswer, UserPortRequest,
    WatchedGuests,
};
use crate::switching::{Clients, Iommu, PortConfig, Role};
use crate::user_reports::{
    USER_RESOLVERS, UserFigures, UserFlow, UserForwardRow, UserLease, UserOutcome, UserPage,
    UserQuestion, UserResolver, UserRows, UserTable, UserTcp, UserTimer, UserTotals, UserWait,
    UserWay,
};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

fn text(text: &str) -> String {
    text.to_owned()
}

fn path(text: &str) -> SocketPath {
    text.parse().unwrap()
}

fn port_name(text: &str) -> PortName {
    text.parse().unwrap()
}

fn counters() -> DriverCounters {
    DriverCounters {
        dropped_by_kernel: Some(9),
        ..DriverCounters::from_array([7, 300, 1 << 40, 1 << 20, 128, 2])
    }
}

fn socket_requests() -> [SocketRequest; 6] {
    let owner = SocketOwner {
        user: Some(text("root")),
        group: Some(text("kvm")),
        mode: Some(0o660),
        peer_user: Some(text("vm1")),
    };
    [
        SocketRequest::Listen { path: path("a") },
        SocketRequest::ListenFor {
            path: path("c"),
            owner,
            socket_type: SocketType::SeqPacket,
        },
        SocketRequest::Unlisten { path: path("a") },
        SocketRequest::Dials(vec![(PortId(3), path("vm.sock"))]),
        SocketRequest::Dirs,
        SocketRequest::Shared,
    ]
}

fn port_driver_requests() -> [PortDriverRequest; 5] {
    let device = DeviceSpec {
        choice: Choice::Packet,
        own: true,
        interface: "eth0".parse().unwrap(),
        netns: Some("/run/netns/a".parse().unwrap()),
        address: Some((IpAddr::from([192, 0, 2, 1]), 24)),
        mac: Some([2, 0, 0, 0, 0, 1]),
        mtu: Some(9000),
        queues: 2,
    };
    let driver = DriverSpec {
        port: PortId(3),
        name: port_name("up"),
        kind: DriverKind::Interface(device),
        process: true,
        prefilter: PrefilterChoice::Only(PrefilterBackEnd::Xdp),
        cpu_weight: Some(200),
    };
    let user = DriverSpec {
        port: PortId(3),
        name: port_name("out"),
        kind: DriverKind::User {
            netns: None,
            queues: 1,
        },
        process: false,
        prefilter: PrefilterChoice::Auto,
        cpu_weight: None,
    };
    [
        PortDriverRequest::Set(vec![driver, user]),
        PortDriverRequest::States,
        PortDriverRequest::Speeds,
        PortDriverRequest::Rooms(vec![(port_name("up"), 256_000)]),
        PortDriverRequest::Prefilter(port_name("up")),
    ]
}

fn control_requests() -> Vec<ControlRequest> {
    let guests = [
        GuestRequest::Watch(vec![(PortId(3), text("CPU */KVM"))]),
        GuestRequest::Watched,
        GuestRequest::FoundVcpus,
    ];
    let users = [
        UserPortRequest::Networks(vec![(port_name("out"), network())]),
        UserPortRequest::Table {
            port: port_name("out"),
            question: question(UserTable::Forwards),
        },
        UserPortRequest::ForwardReach,
    ];
    let mut all = vec![
        ControlRequest::Ready,
        ControlRequest::Heartbeat,
        ControlRequest::Frozen,
        ControlRequest::SwitchGone,
        ControlRequest::Events { had: true },
        ControlRequest::Processes,
        ControlRequest::ProcessUsage,
    ];
    all.extend(socket_requests().map(ControlRequest::from));
    all.extend(port_driver_requests().map(ControlRequest::from));
    all.extend(guests.map(ControlRequest::from));
    all.extend(users.map(ControlRequest::from));
    all.push(ControlRequest::ConnectionTable { bytes: 1 << 26 });
    all
}

fn switch_requests() -> Vec<SwitchRequest> {
    let port = PortId(3);
    let sessions = [
        SessionRequest::StoreDescriptor { port, number: 9 },
        SessionRequest::StoreSession {
            port,
            record: vec![1, 2, 3],
            numbers: vec![0, u64::MAX],
        },
        SessionRequest::DropSession { port },
    ];
    let mut all = vec![SwitchRequest::Heartbeat, SwitchRequest::Dial { port }];
    all.extend(sessions.map(SwitchRequest::from));
    all.extend([
        SwitchRequest::Prepared,
        SwitchRequest::Quiesced { at_ns: 1 << 40 },
        SwitchRequest::Serving {
            at_ns: 1 << 41,
            connections: 5,
            table: Some(AdoptedTable {
                is_new: false,
                connections: 2000,
            }),
        },
        SwitchRequest::InterfaceLost {
            port,
            reason: text("it was pulled out"),
            device_lost: true,
        },
        SwitchRequest::InterfaceCounters {
            port,
            counters: counters(),
        },
    ]);
    all
}

fn driver_requests() -> Vec<DriverRequest> {
    let users = [
        UserDriverRequest::KeepFlows(vec![0, 7]),
        UserDriverRequest::DropFlows(vec![1 << 20]),
        UserDriverRequest::NextFlows,
        UserDriverRequest::NextForwards,
        UserDriverRequest::NetworkDenied,
        UserDriverRequest::Figures(figures().into()),
        UserDriverRequest::Page(page(UserTable::Flows)),
        UserDriverRequest::Page(page(UserTable::StalledFlows(5000))),
    ];
    let mut all = vec![
        DriverRequest::Pong(counters()),
        DriverRequest::Ends {
            reason: text("it was pulled out"),
            device_lost: true,
        },
    ];
    all.extend(users.map(DriverRequest::from));
    all
}

fn question(table: UserTable) -> UserQuestion {
    UserQuestion { table, from: 64 }
}

fn page(table: UserTable) -> UserPage {
    let flow = UserFlow {
        state: 1,
        mac: [2, 0, 0, 0, 0, 1],
        guest: "10.0.2.15:40000".parse().unwrap(),
        peer: "[2001:db8::1]:443".parse().unwrap(),
        age_ms: Some(1500),
        bytes: Some([3, 1 << 40]),
        waits_for: UserWait::GuestWindow,
        progress_ms: 5000,
        timer: Some((UserTimer::Probe, 800)),
        tcp: Some(UserTcp {
            unacknowledged: 1460,
            window: 0,
            pending: 300_000,
            queued: 2,
            room: 40_000,
            retransmissions: 3,
        }),
    };
    let unknown = UserFlow {
        age_ms: None,
        bytes: None,
        waits_for: UserWait::Nothing,
        timer: None,
        tcp: None,
        ..flow.clone()
    };
    let lease = UserLease {
        mac: [2, 0, 0, 0, 0, 1],
        address: [10, 0, 2, 15].into(),
        seconds: 3600,
    };
    let forward = UserForwardRow {
        listen: network().forwards[0].listen,
        address: Some([10, 0, 2, 15].into()),
        has_station: true,
    };
    UserPage {
        question: question(table),
        rows: match table {
            UserTable::Flows | UserTable::StalledFlows(_) => UserRows::Flows(vec![flow, unknown]),
            UserTable::Leases => UserRows::Leases(vec![lease]),
            UserTable::Forwards => UserRows::Forwards(vec![forward]),
        },
        next: Some(128),
    }
}

fn resolvers() -> [Option<UserResolver>; USER_RESOLVERS] {
    let outcomes = [
        UserOutcome::NotAsked,
        UserOutcome::Answered,
        UserOutcome::Error(300),
        UserOutcome::Lame,
        UserOutcome::Nonsense,
        UserOutcome::Closed,
        UserOutcome::Unreachable,
        UserOutcome::Silent,
    ];
    std::array::from_fn(|at| {
        let way = |at: usize| UserWay {
            outcome: outcomes[at % outcomes.len()],
            is_last: at == 2,
        };
        let address = ([192, 0, 2, at as u8], 53).into();
        (at < 7).then(|| UserResolver {
            address,
            udp: way(at),
            tcp: way(at + 1),
        })
    })
}

fn figures() -> UserFigures {
    UserFigures {
        flows: [1, 2, 3, 4, 300],
        flows_max: 65_536,
        kept: 10,
        kept_max: 8192,
        resolvers: resolvers(),
        echo_denied: true,
        totals: UserTotals {
            results: [7, 8, 9],
            refused: [1, 2, 3, 4, 1 << 40, 6],
            from_guests: 1 << 33,
            to_guests: 1 << 34,
            dns_questions: 6,
        },
    }
}

fn network() -> UserNetwork {
    let guest = UserGuest {
        name: text("vm1"),
        mac: Some([2, 0, 0, 0, 0, 2]),
        addresses: vec![IpAddr::from([10, 0, 2, 20])],
    };
    let forward = UserForward {
        listen: Listen {
            protocol: ForwardProtocol::Udp,
            address: ([127, 0, 0, 1], 2222).into(),
        },
        to: text("vm1"),
        port: 22,
    };
    UserNetwork {
        network: text("10.0.2.0/24"),
        network6: Some(text("fd00:1::/64")),
        mac: [0x52, 0x55, 10, 0, 2, 2],
        mtu: 1500,
        dns: true,
        resolvers: vec![SocketAddr::from(([192, 0, 2, 53], 5353))],
        search: text("internal"),
        allow: vec![text("0.0.0.0/0")],
        deny: vec![text("10.0.0.0/8 tcp 1-1023")],
        host: vec![text("tcp 5432")],
        guests: vec![guest],
        forwards: vec![forward],
        times: vec![text("udp 60")],
        buffers: UserBuffers {
            guest: 256 << 20,
            port: 1 << 30,
        },
        sharers: 3,
    }
}

fn settings() -> SwitchSettings {
    SwitchSettings {
        poll: Poll::Always,
        poll_us: Some(50),
        workers: Some(3),
        coalescing: Some(Coalescing {
            period_us: 200,
            threshold: 32,
            kick_us: 100,
        }),
        successor: true,
        waits: true,
    }
}

fn error() -> Option<String> {
    Some(text("no"))
}

fn socket_answers() -> [SocketAnswer; 5] {
    let none = NoSocket {
        key: SocketKey::PeerUser,
        expected: text("a user"),
        found: text("nothing"),
    };
    let dir = SocketDir {
        path: text("/run/vm"),
        below: true,
    };
    [
        SocketAnswer::Listening {
            path: path("a"),
            error: error(),
        },
        SocketAnswer::ListeningFor {
            path: path("b"),
            outcome: Err(none),
        },
        SocketAnswer::Dials { error: error() },
        SocketAnswer::Dirs(vec![dir]),
        SocketAnswer::Shared(vec![(text("vm1.sock"), vec![text("vm1"), text("vm2")])]),
    ]
}

fn port_driver_answers() -> [PortDriverAnswer; 4] {
    let state = DriverState {
        name: text("up"),
        back_end: Some(BackEnd::Packet),
        mac: Some([2, 0, 0, 0, 0, 1]),
        user: Some(figures()),
        cpu_weight_error: Some(text("not delegated")),
        in_switch: true,
        pid: Some(77),
        restarts: 2,
        counters: counters(),
        reason: error(),
        refused: vec![RefusedForwards {
            first: network().forwards[0].listen,
            last: 2999,
            reason: text("no"),
        }],
        prefilter: Some(Ok(PrefilterBackEnd::Socket)),
    };
    [
        PortDriverAnswer::Set {
            error: Some((text("up"), text("no"))),
        },
        PortDriverAnswer::States(vec![state]),
        PortDriverAnswer::Speeds(vec![(text("up"), 10_000_000_000)]),
        PortDriverAnswer::Prefilter {
            port: text("up"),
            table: Err(text("no")),
        },
    ]
}

fn guest_answers() -> [GuestAnswer; 2] {
    let watched = WatchedGuests {
        by: text("off"),
        reason: error(),
        no_halts: error(),
        threads: vec![(PortId(3), 4)],
    };
    let vcpus = PortVcpus {
        found: 2,
        by: text("names"),
        reason: error(),
    };
    let found = FoundVcpus {
        ports: vec![(PortId(3), vcpus)],
        missing: vec![text("debugfs")],
    };
    [
        GuestAnswer::Watched(watched),
        GuestAnswer::FoundVcpus(found),
    ]
}

fn events_to_control() -> Vec<EventToControl> {
    let process = ProcessInfo {
        name: text("switch"),
        pid: 42,
        restarts: 1,
        uptime_ms: 1 << 33,
    };
    let usage = ProcessUsage {
        pid: 42,
        cpu_ms: 1000,
        wake_ups: 3000,
        resident_bytes: 1 << 30,
        anonymous_bytes: 1 << 20,
        mapped_bytes: 1 << 40,
    };
    let users = [
        UserPortAnswer::Page {
            port: text("out"),
            question: question(UserTable::Leases),
            page: Ok(page(UserTable::Leases)),
        },
        UserPortAnswer::ForwardReach(forward_reach()),
    ];
    let mut all = vec![
        EventToControl::Start {
            runtime_dir: text("/run/lasthop"),
            frozen: true,
        },
        EventToControl::Stop,
        EventToControl::Ping,
        EventToControl::Freeze,
        EventToControl::Thaw,
        EventToControl::Events(vec![text("{}")]),
        EventToControl::Processes(vec![process]),
        EventToControl::ProcessUsage(vec![usage]),
    ];
    all.extend(socket_answers().map(EventToControl::Sockets));
    all.extend(port_driver_answers().map(EventToControl::Drivers));
    all.extend(guest_answers().map(EventToControl::Guests));
    all.extend(users.map(EventToControl::Users));
    all.extend([Ok(()), Err(text("it needs 8 bytes"))].map(EventToControl::ConnectionTable));
    all
}

fn events_to_switch() -> Vec<EventToSwitch> {
    let port = PortId(3);
    vec![
        EventToSwitch::Start(settings()),
        EventToSwitch::Stop,
        EventToSwitch::Ping,
        EventToSwitch::SavedSessions(vec![
            SavedPart::Descriptors {
                port,
                numbers: vec![0, u64::MAX],
            },
            SavedPart::Record {
                port,
                record: vec![1, 2, 3],
                quarantined: true,
            },
            SavedPart::Over { port },
        ]),
        EventToSwitch::Prepare,
        EventToSwitch::ControlLink,
        EventToSwitch::Dialed {
            port,
            path: text("vm.sock"),
            error: error(),
        },
        EventToSwitch::Quiesce,
        EventToSwitch::Resume,
        EventToSwitch::TakeOver,
        EventToSwitch::GuestStates,
        EventToSwitch::GuestThreads {
            port,
            slots: vec![1, 2],
        },
        EventToSwitch::InterfaceQueues { port },
        EventToSwitch::Interface {
            port,
            path: text("driver:up"),
            interface: InterfaceStart {
                back_end: BackEnd::Packet,
                uso: true,
            },
        },
        EventToSwitch::CloseInterface {
            port,
            reason: text("its MTU changed"),
        },
        EventToSwitch::ConnectionTable,
    ]
}

fn events_to_driver() -> Vec<EventToDriver> {
    let start = DriverStart {
        port: PortId(3),
        name: text("up"),
        back_end: BackEnd::Xdp { zero_copy: true },
        uso: true,
        queues: 2,
        xdp: Some(XdpStart {
            longest: 1514,
            unfinished: true,
        }),
        poll_us: Some(50),
    };
    vec![
        EventToDriver::Start(start),
        EventToDriver::Stop,
        EventToDriver::Ping,
        EventToDriver::Queue,
        EventToDriver::UserNetwork(network().into()),
        EventToDriver::FlowRecords { slots: 8192 },
        EventToDriver::KeptFlows(vec![0, 7]),
        EventToDriver::FlowsTaken,
        EventToDriver::Forwards(network().forwards),
        EventToDriver::ForwardsChanged,
        EventToDriver::UserQuestion(question(UserTable::Leases)),
    ]
}

fn forward_reach() -> ForwardReach {
    let listens = network().forwards.iter().map(|of| of.listen).collect();
    let namespaces = vec!["blue".parse().unwrap()];
    ForwardReach::new(listens, &[IpAddr::from([192, 0, 2, 9])], namespaces)
}

/// Messages of each kind, in the order of their numbers; those about one matter, which share the
/// first number, in the order of their second ones.
fn check_messages<T>(what: &str, messages: &[T])
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let numbers = messages.iter().map(|message| {
        let bytes = postcard::to_allocvec(message).unwrap();
        for len in 0..bytes.len() {
            let cut = postcard::from_bytes::<T>(&bytes[..len]);
            assert!(cut.is_err(), "{len} bytes of {message:?}");
        }
        (bytes[0], bytes.get(1).copied())
    });
    let numbers: Vec<_> = numbers.collect();
    assert_eq!(numbers[0].0, 0);
    for (before, (first, second)) in numbers.iter().zip(&numbers[1..]) {
        if *first == before.0 {
            let next = before.1.map(|number| number + 1);
            assert!(
                [before.1, next].contains(second),
                "{what} {first} {second:?}"
            );
        } else {
            assert_eq!(*first, before.0 + 1, "{what}");
        }
    }
    let bytes = postcard::to_allocvec(messages).unwrap();
    let name = format!("supervision-{what}.bin");
    let sample = sample(HERE, &name, SUPERVISION, &bytes);
    let read: Vec<T> = postcard::from_bytes(&sample).unwrap();
    assert_eq!(read, messages);
}

#[test]
fn sample_of_messages_to_the_supervisor() {
    check_messages("control-request", &control_requests());
    check_messages("switch-request", &switch_requests());
    check_messages("driver-request", &driver_requests());
}

#[test]
fn sample_of_messages_of_the_supervisor() {
    check_messages("event-to-control", &events_to_control());
    check_messages("event-to-switch", &events_to_switch());
    check_messages("event-to-driver", &events_to_driver());
}

#[test]
fn sample_of_a_connection() {
    let clients = Clients::Memif {
        id: 7,
        secret: Some(text("secret").into()),
    };
    let record = ConnectionRecord {
        port: PortConfig {
            id: PortId(3),
            name: text("vm1"),
            socket: text("vm1.sock"),
            role: Role::Client,
            queues: 4,
            mtu: Some(9000),
            weight: 200,
            mac: Some([2, 0, 0, 0, 0, 1]),
            clients,
            iommu: Iommu::Off,
        },
        offered: 1 << 32,
        session: vec![1, 2, 3],
        answered: Some((2, vec![4, 5])),
        torn: true,
        starts: vec![1, 2],
        connections: 9,
        iommu_required: true,
    };
    let sample = sample(HERE, "connection.bin", CONNECTION, &record.to_bytes());
    assert_eq!(ConnectionRecord::from_bytes(&sample), Ok(record));
}

/// Returns a crash record with these bytes.
fn crash_record_file(bytes: &[u8]) -> OwnedFd {
    let fd = memfd_create("crash-record", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, CRASH_RECORD_LEN).unwrap();
    assert_eq!(rustix::io::pwrite(&fd, bytes, 0), Ok(bytes.len()));
    fd
}

#[test]
fn sample_of_a_crash_record() {
    let fd = crash_record_file(&[]);
    let slots = ThreadSlots::map(&fd).unwrap();
    slots.of(0).serve(PortId(7));
    slots.of(2).serve(PortId(3));
    slots.of(2).record_crash();
    // The crashed thread's port, the session thread and three workers.
    let mut bytes = [0; 40];
    assert_eq!(rustix::io::pread(&fd, &mut bytes[..], 0), Ok(40));
    let sample = sample(HERE, "crash-record.bin", CRASH_RECORD, &bytes);
    let read = crash_record_file(&sample);
    let slots = ThreadSlots::map(&read).unwrap();
    assert_eq!(slots.of(0).served(), Some(PortId(7)));
    assert_eq!(slots.of(2).served(), Some(PortId(3)));
    assert_eq!(crate::keeping::suspects(&read).unwrap(), [PortId(3)]);
}
