//! Bounds of messages.

use sys::descriptors::MAX_FDS;

use super::*;
use crate::keeping::{MAX_RECORD, MAX_SAVED};
use crate::names::{PortName, SocketPath};
use crate::user_reports::{
    USER_REFUSALS, USER_RESOLVERS, USER_ROWS, UserFigures, UserFlow, UserOutcome, UserPage,
    UserQuestion, UserResolver, UserRows, UserTable, UserTcp, UserTimer, UserTotals, UserWait,
    UserWay,
};

fn longest_address() -> SocketAddr {
    (std::net::Ipv6Addr::from([0xff; 16]), u16::MAX).into()
}

/// Checks that a request is no longer than the supervisor decodes.
fn fits<T: Request>(request: impl Into<T>) {
    let bytes = postcard::to_allocvec(&request.into()).unwrap();
    assert!(bytes.len() <= T::MAX_BYTES, "{}", bytes.len());
}

#[test]
fn the_longest_requests_of_control_fit() {
    let ports = || (0..1024).map(PortId);
    let name = || PortName::try_from("n".repeat(32)).unwrap();
    let path = || SocketPath::try_from("y".repeat(107)).unwrap();
    let dials = ports().map(|port| (port, path()));
    fits::<ControlRequest>(SocketRequest::Dials(dials.collect()));
    let threads = ports().map(|port| (port, "z".repeat(64)));
    fits::<ControlRequest>(GuestRequest::Watch(threads.collect()));
    let rooms = ports().map(|_| (name(), u64::MAX));
    fits::<ControlRequest>(PortDriverRequest::Rooms(rooms.collect()));
}

#[test]
fn the_longest_requests_of_the_switch_fit() {
    fits::<SwitchRequest>(SessionRequest::StoreSession {
        port: PortId(1023),
        record: vec![7; MAX_RECORD],
        numbers: vec![u64::MAX; MAX_SAVED],
    });
}

#[test]
fn the_longest_requests_of_a_driver_fit() {
    let number = u64::MAX;
    let totals = UserTotals {
        refused: [number; USER_REFUSALS.len()],
        ..UserTotals::default()
    };
    let way = UserWay {
        outcome: UserOutcome::Error(u16::MAX),
        is_last: true,
    };
    let resolver = UserResolver {
        address: longest_address(),
        udp: way,
        tcp: way,
    };
    let figures = UserFigures {
        resolvers: [Some(resolver); USER_RESOLVERS],
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
        waits_for: UserWait::HostSocket,
        progress_ms: number,
        timer: Some((UserTimer::Expiry, number)),
        tcp: Some(UserTcp {
            unacknowledged: u32::MAX,
            window: u32::MAX,
            pending: u32::MAX,
            queued: u32::MAX,
            room: u32::MAX,
            retransmissions: u32::MAX,
        }),
    };
    let question = UserQuestion {
        table: UserTable::StalledFlows(u32::MAX),
        from: u32::MAX,
    };
    let page = UserPage {
        question,
        rows: UserRows::Flows(vec![flow; USER_ROWS]),
        next: Some(u32::MAX),
    };
    fits::<DriverRequest>(UserDriverRequest::Figures(figures.into()));
    fits::<DriverRequest>(UserDriverRequest::Page(page));
    fits::<DriverRequest>(UserDriverRequest::KeepFlows(vec![u32::MAX; MAX_FDS]));
    fits::<DriverRequest>(DriverRequest::Ends {
        reason: "x".repeat(8000),
        device_lost: true,
    });
}

#[test]
fn a_path_that_is_too_long_is_malformed() {
    let path = "x".parse().unwrap();
    let request = ControlRequest::from(SocketRequest::Listen { path });
    let bytes = postcard::to_allocvec(&request).unwrap();
    // The text is the last part, after its length.
    let before = &bytes[..bytes.len() - 2];
    for (length, is_read) in [(4095, true), (4096, false)] {
        let text = postcard::to_allocvec(&"x".repeat(length)).unwrap();
        let read = postcard::from_bytes::<ControlRequest>(&[before, &text].concat());
        assert_eq!(read.is_ok(), is_read, "{length}");
    }
}

/// A request of one kind of process is none of another: bytes that say the same mean nothing.
#[test]
fn a_request_of_another_kind_of_process_is_malformed() {
    let path = || "/run/vm.sock".parse::<SocketPath>().unwrap();
    let requests: [ControlRequest; 3] = [
        SocketRequest::Listen { path: path() }.into(),
        PortDriverRequest::Set(Vec::new()).into(),
        SocketRequest::Dials(vec![(PortId(1), path())]).into(),
    ];
    for request in &requests {
        let bytes = postcard::to_allocvec(request).unwrap();
        assert_eq!(postcard::from_bytes(&bytes).as_ref(), Ok(request));
        assert!(postcard::from_bytes::<DriverRequest>(&bytes).is_err());
        assert!(postcard::from_bytes::<SwitchRequest>(&bytes).is_err());
    }
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

#[test]
fn a_quarter_of_the_cpus_is_for_workers() {
    let cases = [(1, 1), (4, 1), (7, 1), (8, 2), (16, 4), (35, 8), (1024, 8)];
    for (cpus, workers) in cases {
        assert_eq!(workers_for(cpus), workers, "{cpus} CPUs");
    }
    let settings = |workers| SwitchSettings {
        workers,
        ..SwitchSettings::default()
    };
    assert_eq!(settings(Some(64)).worker_count(), 64);
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert_eq!(settings(None).worker_count(), workers_for(cpus));
}
