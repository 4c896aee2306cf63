use interfaces::device::{WireProgramParts, XdpParts};
use ipc::driving::{
    BackEnd, Choice, DeviceSpec, DriverKind, ForwardProtocol, Listen, UserBuffers, UserGuest,
    UserNetwork,
};
use ipc::supervision::{Coalescing, Poll};
use testkit::samples::sample;

use super::*;

fn index(at: u32) -> FdIndex {
    serde_json::from_value(at.into()).unwrap()
}

fn text(text: &str) -> String {
    text.to_owned()
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
        ..SwitchSettings::default()
    }
}

fn child(pid: u32, link: u32) -> PassedChild {
    let process = PassedProcess {
        pid,
        link: index(link),
        uptime_ms: 1000,
        proved: true,
        beat: (true, false),
    };
    PassedChild {
        restarts: 1,
        alive: Some(process),
    }
}

fn driver() -> PassedDriver {
    let spec = DriverSpec {
        port: PortId(3),
        name: "up".parse().unwrap(),
        kind: DriverKind::Interface(DeviceSpec {
            choice: Choice::Xdp,
            own: false,
            interface: "up0".parse().unwrap(),
            netns: None,
            address: None,
            mac: None,
            mtu: None,
            queues: 2,
        }),
        process: true,
        prefilter: ipc::driving::PrefilterChoice::Only(ipc::driving::PrefilterBackEnd::Xdp),
        cpu_weight: Some(200),
    };
    let xdp = XdpParts {
        namespace: index(10),
        index: 7,
        pairs: 2,
        zero_copy: true,
        unfinished: false,
        map: index(11),
        program: index(44),
        link: index(12),
        filtered: true,
        promiscuous: index(13),
        tags: index(14),
        took_tags_off: true,
    };
    let device = Parts {
        interface: text("up0"),
        back_end: BackEnd::Xdp { zero_copy: true },
        uso: false,
        provisional: false,
        queues: vec![index(8), index(9)],
        control: index(15),
        xdp: Some(xdp),
        wire_program: Some(WireProgramParts {
            link: index(45),
            tags: index(46),
            took_tags_off: false,
        }),
        by_vhost: true,
    };
    let counters = |rejected| DriverCounters {
        dropped_by_kernel: Some(9),
        ..DriverCounters::from_array([rejected, 1, 500, 6, 700, 1 << 40])
    };
    PassedDriver {
        spec,
        device: Some(device),
        suspect: true,
        child: Some(child(44, 16)),
        killed: false,
        in_switch: true,
        dial: Some(text("driver:up")),
        counters_before: counters(5),
        counters: counters(6),
        reason: Some(text("it ended")),
    }
}

fn record() -> Record {
    let binaries = |dir, first: u32| PassedBinaries {
        dir: text(dir),
        files: [0_u32, 1, 2, 3, 4].map(|n| index(first + n)),
    };
    let session = PassedSession {
        port: PortId(4),
        fds: vec![(0, index(17)), (u64::MAX, index(18))],
        record: Some(vec![1, 2, 3]),
    };
    Record {
        fds: vec![3, 4, 200],
        runtime_dir: text("/run/lasthop"),
        sockets: PassedSockets {
            listening: BTreeMap::from([(text("api.sock"), index(0))]),
            dirs: vec![SocketDir {
                path: text("/run/vm"),
                below: true,
            }],
            dials: BTreeMap::from([(PortId(3), text("/run/vm/a"))]),
        },
        lock: index(1),
        setup: PassedSetup {
            state: index(2),
            counters: index(3),
            table: Some(index(38)),
            thread_slots: index(4),
            settings: settings(),
        },
        pair: PassedPair {
            control: child(42, 5),
            switch: child(43, 6),
            link: Some(index(39)),
        },
        saved_sessions: PassedSessions {
            ports: vec![session],
            queued: VecDeque::from([
                Transfer::Descriptors(PortId(4), vec![0, u64::MAX]),
                Transfer::Record(PortId(4)),
            ]),
            crash_counts: PassedCrashCounts {
                ports: vec![(PortId(3), 2, 50)],
                quarantined: vec![PortId(4)],
            },
        },
        drivers: vec![driver()],
        uptime_ms: 5,
        binaries: binaries("/bin", 20),
        upgrade: Some(PassedUpgrade {
            client: index(25),
            new: binaries("/new", 26),
            from: text("0.1.0"),
            to: text("0.2.0"),
            failed: Some(text("it hangs")),
        }),
        guests: PassedGuests {
            by: GuestStates::Bpf,
            threads: vec![(PortId(4), text("lcore*"))],
            programs: vec![(text("states"), index(32)), (text("ring"), index(33))],
            reason: Some(text("no right")),
        },
        users: PassedUsers {
            networks: vec![("out".parse().unwrap(), network())],
            flows: vec![PassedFlows {
                port: "out".parse().unwrap(),
                records: index(34),
                slots: 8192,
                sockets: vec![(0, index(35)), (7, index(36))],
                listening: vec![(listen(), index(37))],
            }],
            reach: ForwardReach::new(vec![listen()], &[], vec!["blue".parse().unwrap()]),
        },
        prefilters: PassedPrefilters {
            connections: Some(index(44)),
            spares: vec![prefilter(38)],
            used: vec![("up".parse().unwrap(), prefilter(40))],
            reason: Some(text("no right")),
        },
    }
}

fn prefilter(at: u32) -> PrefilterParts<FdIndex> {
    PrefilterParts {
        table: index(at),
        socket: index(at + 1),
        xdp: (at == 40).then(|| (index(42), index(43))),
    }
}

fn listen() -> Listen {
    Listen {
        protocol: ForwardProtocol::Udp,
        address: ([127, 0, 0, 1], 2222).into(),
    }
}

fn network() -> UserNetwork {
    let guest = UserGuest {
        name: text("vm1"),
        mac: Some([2, 0, 0, 0, 0, 2]),
        addresses: vec![[10, 0, 2, 20].into()],
    };
    UserNetwork {
        network: text("10.0.2.0/24"),
        network6: None,
        mac: [0x52, 0x55, 10, 0, 2, 2],
        mtu: 1500,
        dns: true,
        resolvers: Vec::new(),
        search: text("internal"),
        allow: vec![text("0.0.0.0/0")],
        deny: Vec::new(),
        host: vec![text("tcp 5432")],
        guests: vec![guest],
        forwards: Vec::new(),
        times: vec![text("udp 60")],
        buffers: UserBuffers {
            guest: 256 << 20,
            port: 1 << 30,
        },
        sharers: 1,
    }
}

#[test]
fn sample_of_a_record() {
    let bytes = record().to_bytes().unwrap();
    let sample = sample(
        env!("CARGO_MANIFEST_DIR"),
        "supervisor.bin",
        SUPERVISOR,
        &bytes,
    );
    assert_eq!(Record::from_bytes(&sample).unwrap(), record());
}

#[test]
fn truncated_and_extended_records_are_refused() {
    let bytes = record().to_bytes().unwrap();
    for len in 0..bytes.len() {
        assert!(Record::from_bytes(&bytes[..len]).is_err(), "{len}");
    }
    let more = [&bytes[..], &[0]].concat();
    assert!(Record::from_bytes(&more).is_err());
}

#[test]
fn other_versions_are_refused() {
    let mut bytes = record().to_bytes().unwrap();
    assert!(Record::from_bytes(&bytes).is_ok());
    for version in [SUPERVISOR - 1, SUPERVISOR + 1] {
        bytes[..4].copy_from_slice(&version.to_le_bytes());
        let error = Record::from_bytes(&bytes).unwrap_err();
        assert!(matches!(error, RecordError::Version(of) if of == version));
    }
}
