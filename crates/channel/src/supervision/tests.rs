//! Bounds of messages, and messages of former builds.

use super::*;
use crate::user_reports::{USER_REFUSALS, USER_ROWS, UserFlow, UserRows, UserTable, UserTotals};

fn longest_address() -> SocketAddr {
    (std::net::Ipv6Addr::from([0xff; 16]), u16::MAX).into()
}

fn longest() -> Vec<(SupervisorRequest, usize)> {
    let port = PortId(1023);
    let path = || "x".repeat(MAX_LINE - 16);
    let number = u64::MAX;
    let counters = DriverCounters::from_array([number; 6]);
    let driver_pong = SupervisorRequest::DriverPong {
        counters,
        dropped_by_kernel: Some(number),
    };
    let record = SupervisorRequest::StoreSession {
        port,
        record: vec![7; MAX_RECORD],
        numbers: vec![number; MAX_SAVED],
    };
    let goes_on = SupervisorRequest::Serving {
        at_ns: number,
        connections: u32::MAX,
    };
    let reason = SupervisorRequest::DriverEnds {
        reason: path(),
        device_lost: true,
    };
    let dials = (0..1024).map(|n| (PortId(n), "y".repeat(107))).collect();
    let watch = GuestWatch {
        by: GuestStates::Auto,
        threads: (0..1024).map(|n| (PortId(n), "z".repeat(64))).collect(),
    };
    let name = || PortName::try_from("n".repeat(32)).unwrap();
    let rooms = (0..1024).map(|_| (name(), number)).collect();
    let rooms = SupervisorRequest::Rooms(rooms);
    let weights = (0..1024).map(|_| (name(), u16::MAX)).collect();
    let weights = SupervisorRequest::CpuWeights(weights);
    let user = || Some("u".repeat(256));
    let listen_for = SupervisorRequest::ListenFor {
        path: "x".repeat(MAX_LINE - 1024),
        owner: SocketOwner {
            user: user(),
            group: user(),
            mode: Some(0o777),
            peer_user: user(),
        },
    };
    let listen_as = match listen_for.clone() {
        SupervisorRequest::ListenFor { path, owner } => SupervisorRequest::ListenAs {
            path,
            owner,
            socket_type: SocketType::SeqPacket,
        },
        other => other,
    };
    let totals = UserTotals {
        refused: [number; USER_REFUSALS.len()],
        ..UserTotals::default()
    };
    let figures = UserFigures {
        totals,
        ..UserFigures::default()
    };
    let flow = UserFlow {
        state: u8::MAX,
        mac: [0xff; 6],
        guest: longest_address(),
        peer: longest_address(),
        age_ms: Some(number),
        bytes: Some([number; 2]),
    };
    let question = UserQuestion {
        table: UserTable::Flows,
        from: u32::MAX,
    };
    let page = UserPage {
        question,
        rows: UserRows::Flows(vec![flow; USER_ROWS]),
        next: Some(u32::MAX),
    };
    let table = SupervisorRequest::UserTable {
        port: name(),
        question,
    };
    let (word, line, list) = (MAX_NUMBER, MAX_LINE, MAX_LIST);
    vec![
        (SupervisorRequest::Ready, word),
        (SupervisorRequest::Listen { path: path() }, line),
        (SupervisorRequest::Unlisten { path: path() }, line),
        (SupervisorRequest::Processes, word),
        (SupervisorRequest::Drivers(Vec::new()), list),
        (SupervisorRequest::DriverStates, word),
        (SupervisorRequest::Pong(counters), word),
        (reason, line),
        (SupervisorRequest::StoreDescriptor { port, number }, word),
        (record, MAX_SESSION),
        (SupervisorRequest::DropSession { port }, word),
        (SupervisorRequest::Frozen, word),
        (SupervisorRequest::Quiesced { at_ns: number }, word),
        (goes_on, word),
        (SupervisorRequest::Heartbeat, word),
        (SupervisorRequest::WatchGuests(watch), list),
        (SupervisorRequest::WatchedGuests, word),
        (SupervisorRequest::Dial { port }, word),
        (SupervisorRequest::Dials(dials), list),
        (SupervisorRequest::SocketDirs, word),
        (listen_for, line),
        (SupervisorRequest::InterfaceAddresses, word),
        (SupervisorRequest::SwitchGone, word),
        (SupervisorRequest::ProcessUsage, word),
        (SupervisorRequest::Events { had: true }, word),
        (SupervisorRequest::FoundVcpus, word),
        (listen_as, line),
        (SupervisorRequest::InterfaceSpeeds, word),
        (rooms, list),
        (weights, list),
        (SupervisorRequest::CpuWeightErrors, word),
        (SupervisorRequest::DriverCalls, word),
        (SupervisorRequest::VhostRefused { reason: path() }, line),
        (driver_pong, word),
        (SupervisorRequest::KernelDrops, word),
        (SupervisorRequest::UserNetworks(Vec::new()), list),
        (SupervisorRequest::KeepFlows(vec![u32::MAX; 64]), line),
        (SupervisorRequest::DropFlows(vec![u32::MAX; 64]), line),
        (SupervisorRequest::NextFlows, word),
        (SupervisorRequest::NextForwards, word),
        (SupervisorRequest::NetworkDenied, word),
        (SupervisorRequest::UserFigures(figures), line),
        (SupervisorRequest::AllUserFigures, word),
        (SupervisorRequest::UserPage(page), line),
        (table, line),
        (SupervisorRequest::ForwardReach, word),
        (SupervisorRequest::SharedSockets, word),
    ]
}

/// A driver that a supervisor of a former build has started answers without frames and calls.
#[test]
fn a_pong_without_frames_and_calls_is_read() {
    let pong = SupervisorRequest::Pong(DriverCounters::from_array([7, 300, 0, 0, 0, 0]));
    let bytes = postcard::to_allocvec(&pong).unwrap();
    let (former, zeros) = bytes.split_at(bytes.len() - 4);
    assert_eq!(zeros, [0; 4]);
    assert_eq!(postcard::from_bytes(former), Ok(pong));
    assert!(postcard::from_bytes::<SupervisorRequest>(&former[..1]).is_err());
}

#[test]
fn every_message_has_room_for_the_longest_of_its_kind() {
    for (number, (ask, most)) in longest().into_iter().enumerate() {
        let bytes = postcard::to_allocvec(&ask).unwrap();
        assert_eq!(usize::from(bytes[0]), number, "its place is its number");
        assert_eq!(SupervisorRequest::most_bytes(bytes[0]), most, "{number}");
        assert!(bytes.len() <= most, "{number}: {}", bytes.len());
    }
}

#[test]
fn sources_keep_their_numbers() {
    let message = |by| {
        SupervisorRequest::WatchGuests(GuestWatch {
            by,
            threads: Vec::new(),
        })
    };
    for (by, number) in [
        (GuestStates::Auto, 0),
        (GuestStates::Bpf, 1),
        (GuestStates::Off, 3),
    ] {
        let bytes = postcard::to_allocvec(&message(by)).unwrap();
        assert_eq!(bytes, [15, number, 0]);
        assert_eq!(postcard::from_bytes(&bytes), Ok(message(by)));
    }
    let samples = postcard::from_bytes(&[15, 2, 0]);
    assert_eq!(samples, Ok(message(GuestStates::Off)), "of a build before");
    assert!(postcard::from_bytes::<SupervisorRequest>(&[15, 4, 0]).is_err());
}

#[test]
fn a_directory_has_what_is_in_it_and_what_is_below_if_it_says_so() {
    let dir = |below| SocketDir {
        path: "/run/vm".to_owned(),
        below,
    };
    for (path, alone, with_below) in [
        ("/run/vm", true, true),
        ("/run/vm/sub", false, true),
        ("/run/vmx", false, false),
        ("/run", false, false),
    ] {
        assert_eq!(dir(false).has(Path::new(path)), alone, "{path}");
        assert_eq!(dir(true).has(Path::new(path)), with_below, "{path}");
    }
}
