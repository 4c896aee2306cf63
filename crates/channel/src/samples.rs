//! Samples of the formats that one build leaves to the next: see `formats`.

use std::fmt::Debug;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use port::PortId;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use serde::Serialize;
use serde::de::DeserializeOwned;
use testkit::samples::sample;

use crate::cores::CoreFacts;
use crate::driving::{
    BackEnd, Calls, Choice, DeviceSpec, DriverCounters, DriverSpec, DriverStart, DriverState,
    ForwardProtocol, Listen, UserBuffers, UserForward, UserGuest, UserNetwork, XdpStart,
};
use crate::formats::formats;
use crate::forwards::ForwardReach;
use crate::keeping::{CRASH_RECORD_LEN, ConnectionRecord, ThreadSlots};
use crate::names::PortName;
use crate::owners::{NoSocket, SocketKey, SocketOwner};
use crate::sockets::SocketType;
use crate::supervision::{
    Coalescing, FoundVcpus, GuestStates, GuestWatch, HelpersConfig, Poll, PortVcpus, ProcessInfo,
    ProcessUsage, SocketDir, SupervisorEvent, SupervisorRequest, SwitchSettings, WatchedGuests,
};
use crate::switching::{Clients, Iommu, PortConfig, Role};
use crate::user_reports::{
    UserFigures, UserFlow, UserLease, UserPage, UserQuestion, UserRows, UserTable, UserTotals,
};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

fn name(what: &str, format: &str) -> String {
    format!("{what}-{}.bin", formats()[format].writes)
}

fn text(text: &str) -> String {
    text.to_owned()
}

fn port_name(text: &str) -> PortName {
    text.parse().unwrap()
}

fn counters() -> DriverCounters {
    DriverCounters::from_array([7, 300, 1 << 40, 1 << 20, 128, 2])
}

fn requests() -> Vec<SupervisorRequest> {
    let port = PortId(3);
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
        port,
        name: port_name("up"),
        device,
    };
    let watch = GuestWatch {
        by: GuestStates::Off,
        threads: vec![(port, text("CPU */KVM"))],
    };
    let owner = SocketOwner {
        user: Some(text("root")),
        group: Some(text("kvm")),
        mode: Some(0o660),
        peer_user: Some(text("vm1")),
    };
    vec![
        SupervisorRequest::Ready,
        SupervisorRequest::Listen { path: text("a") },
        SupervisorRequest::Unlisten { path: text("a") },
        SupervisorRequest::Processes,
        SupervisorRequest::Drivers(vec![driver]),
        SupervisorRequest::DriverStates,
        SupervisorRequest::Pong(counters()),
        SupervisorRequest::DriverEnds {
            reason: text("it was pulled out"),
            device_lost: true,
        },
        SupervisorRequest::StoreDescriptor { port, number: 9 },
        SupervisorRequest::StoreSession {
            port,
            record: vec![1, 2, 3],
            numbers: vec![0, u64::MAX],
        },
        SupervisorRequest::DropSession { port },
        SupervisorRequest::Frozen,
        SupervisorRequest::Quiesced { at_ns: 1 << 40 },
        SupervisorRequest::Serving {
            at_ns: 1 << 41,
            connections: 5,
        },
        SupervisorRequest::Heartbeat,
        SupervisorRequest::WatchGuests(watch),
        SupervisorRequest::WatchedGuests,
        SupervisorRequest::Dial { port },
        SupervisorRequest::Dials(vec![(port, text("vm.sock"))]),
        SupervisorRequest::SocketDirs,
        SupervisorRequest::ListenFor {
            path: text("b"),
            owner,
        },
        SupervisorRequest::InterfaceAddresses,
        SupervisorRequest::SwitchGone,
        SupervisorRequest::ProcessUsage,
        SupervisorRequest::Events { had: true },
        SupervisorRequest::FoundVcpus,
        SupervisorRequest::ListenAs {
            path: text("c"),
            owner: SocketOwner::default(),
            socket_type: SocketType::SeqPacket,
        },
        SupervisorRequest::InterfaceSpeeds,
        SupervisorRequest::Rooms(vec![(port_name("up"), 256_000)]),
        SupervisorRequest::CpuWeights(vec![(port_name("up"), 200)]),
        SupervisorRequest::CpuWeightErrors,
        SupervisorRequest::DriverCalls,
        SupervisorRequest::VhostRefused {
            reason: text("not permitted"),
        },
        SupervisorRequest::DriverPong {
            counters: counters(),
            dropped_by_kernel: Some(9),
        },
        SupervisorRequest::KernelDrops,
        SupervisorRequest::UserNetworks(vec![(port_name("out"), network())]),
        SupervisorRequest::KeepFlows(vec![0, 7]),
        SupervisorRequest::DropFlows(vec![1 << 20]),
        SupervisorRequest::NextFlows,
        SupervisorRequest::NextForwards,
        SupervisorRequest::NetworkDenied,
        SupervisorRequest::UserFigures(figures()),
        SupervisorRequest::AllUserFigures,
        SupervisorRequest::UserPage(page(UserTable::Flows)),
        SupervisorRequest::UserTable {
            port: port_name("out"),
            question: question(UserTable::Flows),
        },
        SupervisorRequest::ForwardReach,
        SupervisorRequest::SharedSockets,
    ]
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
    };
    let unknown = UserFlow {
        age_ms: None,
        bytes: None,
        ..flow.clone()
    };
    let lease = UserLease {
        mac: [2, 0, 0, 0, 0, 1],
        address: [10, 0, 2, 15].into(),
        seconds: 3600,
    };
    UserPage {
        question: question(table),
        rows: match table {
            UserTable::Flows => UserRows::Flows(vec![flow, unknown]),
            UserTable::Leases => UserRows::Leases(vec![lease]),
        },
        next: Some(128),
    }
}

fn figures() -> UserFigures {
    UserFigures {
        flows: [1, 2, 3, 4, 300],
        flows_max: 65_536,
        kept: 10,
        kept_max: 8192,
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
        resolvers: vec![IpAddr::from([192, 0, 2, 53])],
        allow: vec![text("0.0.0.0/0")],
        deny: vec![text("10.0.0.0/8 tcp 1-1023")],
        host: vec![text("tcp 5432")],
        guests: vec![guest],
        forwards: vec![forward],
        buffers: UserBuffers {
            guest: 256 << 20,
            port: 1 << 30,
        },
        sharers: 3,
    }
}

fn settings() -> SwitchSettings {
    let core = CoreFacts {
        core: 1,
        allowed: true,
        smt: 2,
        l1: 3,
        l2: 4,
        l3: 5,
        node: 6,
    };
    SwitchSettings {
        poll: Poll::Always,
        workers: Some(3),
        coalescing: Some(Coalescing {
            period_us: 200,
            threshold: 32,
            kick_us: 100,
        }),
        helpers: HelpersConfig {
            enabled: true,
            backlog: 7,
            hysteresis_us: 20,
            cores: vec![1, 3],
        },
        cores: vec![core],
        successor: true,
        waits: true,
    }
}

fn events() -> Vec<SupervisorEvent> {
    let port = PortId(3);
    let error = || Some(text("no"));
    let start = DriverStart {
        port,
        name: text("up"),
        back_end: BackEnd::Xdp { zero_copy: true },
        uso: true,
        queues: 2,
        xdp: Some(XdpStart {
            longest: 1514,
            unfinished: true,
        }),
    };
    let state = DriverState {
        name: text("up"),
        back_end: Some(BackEnd::Packet),
        // They are not in the message, nor are frames and calls.
        mac: None,
        user: None,
        cpu_weight_error: None,
        pid: Some(77),
        restarts: 2,
        counters: DriverCounters {
            received: Calls::default(),
            sent: Calls::default(),
            ..counters()
        },
        reason: error(),
    };
    let process = ProcessInfo {
        name: text("switch"),
        pid: 42,
        restarts: 1,
        uptime_ms: 1 << 33,
    };
    let usage = ProcessUsage {
        pid: 42,
        cpu_ms: 1000,
        resident_bytes: 1 << 30,
        anonymous_bytes: 1 << 20,
    };
    let watched = WatchedGuests {
        by: text("off"),
        reason: error(),
        no_halts: error(),
        threads: vec![(port, 4)],
    };
    let vcpus = PortVcpus {
        found: 2,
        by: text("names"),
        reason: error(),
    };
    let found = FoundVcpus {
        ports: vec![(port, vcpus)],
        missing: vec![text("debugfs")],
    };
    let none = NoSocket {
        key: SocketKey::PeerUser,
        expected: text("a user"),
        found: text("nothing"),
    };
    let dir = SocketDir {
        path: text("/run/vm"),
        below: true,
    };
    vec![
        SupervisorEvent::StartControl {
            runtime_dir: text("/run/lasthop"),
            frozen: true,
        },
        SupervisorEvent::StartSwitch(settings()),
        SupervisorEvent::SavedDescriptors {
            port,
            numbers: vec![0, u64::MAX],
        },
        SupervisorEvent::SavedSession {
            port,
            record: vec![1, 2, 3],
            quarantined: true,
        },
        SupervisorEvent::ControlLink,
        SupervisorEvent::Listening {
            path: text("a"),
            error: error(),
        },
        SupervisorEvent::Dialed {
            port,
            path: text("vm.sock"),
            error: error(),
        },
        SupervisorEvent::Processes(vec![process]),
        SupervisorEvent::Stop,
        SupervisorEvent::Drivers {
            error: Some((text("up"), text("no"))),
        },
        SupervisorEvent::DriverStates(vec![state]),
        SupervisorEvent::StartDriver(start),
        SupervisorEvent::DriverQueue,
        SupervisorEvent::Ping,
        SupervisorEvent::Freeze,
        SupervisorEvent::Thaw,
        SupervisorEvent::Quiesce,
        SupervisorEvent::Resume,
        SupervisorEvent::TakeOver,
        SupervisorEvent::GuestStates,
        SupervisorEvent::GuestThreads {
            port,
            slots: vec![1, 2],
        },
        SupervisorEvent::WatchedGuests(watched),
        SupervisorEvent::Dials { error: error() },
        SupervisorEvent::SocketDirs(vec![dir]),
        SupervisorEvent::ListeningFor {
            path: text("b"),
            outcome: Err(none),
        },
        SupervisorEvent::InterfaceAddresses(vec![(text("up"), [2, 0, 0, 0, 0, 1])]),
        SupervisorEvent::ProcessUsage(vec![usage]),
        SupervisorEvent::Events(vec![text("{}")]),
        SupervisorEvent::FoundVcpus(found),
        SupervisorEvent::InterfaceSpeeds(vec![(text("up"), 10_000_000_000)]),
        SupervisorEvent::CpuWeightErrors(vec![(text("up"), text("not delegated"))]),
        SupervisorEvent::DriverCalls(vec![(text("up"), [counters().received, counters().sent])]),
        SupervisorEvent::VhostQueue { or_tap: true },
        SupervisorEvent::PingDriver,
        SupervisorEvent::KernelDrops(vec![(text("up"), 9)]),
        SupervisorEvent::UserNetwork(network().into()),
        SupervisorEvent::FlowRecords { slots: 8192 },
        SupervisorEvent::KeptFlows(vec![0, 7]),
        SupervisorEvent::FlowsTaken,
        SupervisorEvent::Forwards(network().forwards),
        SupervisorEvent::ForwardsChanged,
        SupervisorEvent::UserFigures(vec![(text("out"), figures())]),
        SupervisorEvent::UserQuestion(question(UserTable::Leases)),
        SupervisorEvent::UserPage {
            port: text("out"),
            question: question(UserTable::Leases),
            page: Ok(page(UserTable::Leases)),
        },
        SupervisorEvent::ForwardReach(forward_reach()),
        SupervisorEvent::SharedSockets(vec![(text("vm1.sock"), vec![text("vm1"), text("vm2")])]),
    ]
}

fn forward_reach() -> ForwardReach {
    let listens = network().forwards.iter().map(|of| of.listen).collect();
    let namespaces = vec!["blue".parse().unwrap()];
    ForwardReach::new(listens, &[IpAddr::from([192, 0, 2, 9])], namespaces)
}

/// One message of each kind, in the order of their numbers.
fn check_messages<T>(what: &str, messages: &[T])
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    for (number, message) in messages.iter().enumerate() {
        let bytes = postcard::to_allocvec(message).unwrap();
        assert_eq!(usize::from(bytes[0]), number, "{message:?}");
    }
    let bytes = postcard::to_allocvec(messages).unwrap();
    let sample = sample(HERE, &name(what, "supervision"), &bytes);
    let read: Vec<T> = postcard::from_bytes(&sample).unwrap();
    assert_eq!(read, messages);
}

#[test]
fn sample_of_messages_to_the_supervisor() {
    check_messages("supervisor-request", &requests());
}

#[test]
fn sample_of_messages_of_the_supervisor() {
    check_messages("supervisor-event", &events());
}

fn connection_of(clients: Clients) -> ConnectionRecord {
    ConnectionRecord {
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
            iommu: Iommu::default(),
        },
        offered: 1 << 32,
        session: vec![1, 2, 3],
        answered: Some((2, vec![4, 5])),
        torn: true,
        starts: vec![1, 2],
        connections: 9,
        iommu_required: false,
    }
}

/// Records of guests are written as a build of version 10 reads them, those of other clients as
/// version 11, and those of guests that need an IOMMU as version 12.
#[test]
fn sample_of_connections() {
    let memif = Clients::Memif {
        id: 7,
        secret: Some(text("secret").into()),
    };
    for (clients, file) in [
        (Clients::VhostUser, "connection-10.bin"),
        (Clients::Netmap { slots: 1024 }, "connection-11-netmap.bin"),
        (memif, "connection-11-memif.bin"),
    ] {
        check_connection(&connection_of(clients), file);
    }
    let required = ConnectionRecord {
        iommu_required: true,
        ..connection_of(Clients::VhostUser)
    };
    check_connection(&required, "connection-12.bin");
    // What holds for the next connection is not of this one.
    let mut port = required.clone();
    port.port.iommu = Iommu::Off;
    assert_eq!(port.to_bytes(), required.to_bytes());
}

fn check_connection(record: &ConnectionRecord, file: &str) {
    let sample = sample(HERE, file, &record.to_bytes());
    assert_eq!(ConnectionRecord::from_bytes(&sample).as_ref(), Ok(record));
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
    let sample = sample(HERE, &name("crash-record", "journal"), &bytes);
    let read = crash_record_file(&sample);
    let slots = ThreadSlots::map(&read).unwrap();
    assert_eq!(slots.of(0).served(), Some(PortId(7)));
    assert_eq!(slots.of(2).served(), Some(PortId(3)));
    assert_eq!(crate::keeping::suspects(&read).unwrap(), [PortId(3)]);
}
