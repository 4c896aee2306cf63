//! Every message: what it does, and each reason to refuse it.

use virtio::queue::SlotFormat;

use super::*;
use crate::table::{Legal, TABLE};
use crate::{MAX_REGION, MAX_REGIONS, REASON_LEN};

#[test]
fn hello_names_the_limits() {
    let hello = Session::new(offer()).hello();
    assert_eq!(hello.code, code::HELLO);
    let payload = hello.payload;
    assert_eq!(payload[..8], *b"Lasthop\0");
    let numbers: Vec<u16> = payload[32..42]
        .as_chunks()
        .0
        .iter()
        .map(|n| u16::from_ne_bytes(*n))
        .collect();
    // Versions, then the largest indices of regions, of M2S and of S2M rings.
    assert_eq!(numbers, [0x200, 0x200, 15, 1, 1]);
    assert_eq!(payload[42..], [12]);
}

#[test]
fn a_client_is_served_from_init_to_its_end() {
    let mut rig = Rig::fresh();
    let mut answers = Vec::new();
    for (code, payload, fd) in rig.steps() {
        let answer = rig.send(code, payload, fd).expect("no fault");
        answers.push(answer.expect("an answer"));
        assert!(rig.backend.events.is_empty(), "too early");
    }
    let codes: Vec<_> = answers.iter().map(|answer| answer.code).collect();
    let expected = [code::ACK, code::ACK, code::ACK, code::ACK, code::CONNECTED];
    assert_eq!(codes, expected);
    assert_eq!(answers[4].payload[..5], *b"cnf1\0");
    assert_eq!(rig.session.program(), "dpdk 22.11");
    assert!(!rig.session.is_connected());

    // Only when CONNECTED has left the queues start, and once.
    assert!(rig.session.sent(&mut rig.backend));
    assert!(!rig.session.sent(&mut rig.backend));
    let events = rig.backend.take();
    let started = [
        "memory: 1 regions",
        "start 0 with call",
        "start 1 with kick",
    ];
    assert_eq!(events, started);
    let (to_client, from_client) = (&rig.backend.running[&0], &rig.backend.running[&1]);
    assert!(from_client.call.is_none());
    for (setup, ring) in [(to_client, RINGS[0]), (from_client, RINGS[1])] {
        let (layout, ring) = (setup.layout, u64::from(ring));
        let to_client = setup.call.is_some();
        assert_eq!(layout.slots, Some(SlotFormat::Memif { to_client }));
        assert_eq!(layout.size, 64);
        let areas = [layout.driver, layout.device, layout.desc];
        assert_eq!(areas, [ring, ring + 64, ring + 128]);
    }
    let info = rig.session.info();
    assert_eq!(info.memory_bytes, SIZE);
    let states: Vec<_> = info.queues.iter().map(|q| (q.size, &*q.state)).collect();
    let waits = (0, "waits for its ring");
    assert_eq!(states, [(64, "running"), (64, "running"), waits, waits]);

    let reason = [&[0; 4][..], b"Device \x1bclosed"].concat();
    let fault = rig
        .send(code::DISCONNECT, reason, None)
        .expect_err("the end");
    assert!(fault.is_close());
    assert_eq!(
        fault.to_string(),
        "the front end ended the connection: Device ?closed"
    );
    rig.session.close(&mut rig.backend);
    assert_eq!(rig.backend.take(), ["stop 0", "stop 1", "no memory"]);
    assert_eq!(rig.session.record(), Session::new(offer()).record());
}

/// Every row of the table: descriptors that it does not allow, states in which it is not legal.
#[test]
fn every_row_is_checked() {
    for row in &TABLE {
        let good = |rig: &Rig| {
            let mut steps = rig.steps().into_iter();
            let found = steps.find(|(code, ..)| *code == row.code);
            found.map_or((vec![], None), |(_, payload, fd)| (payload, fd))
        };
        for (said, state) in [(0, "before INIT"), (1, "second time"), (5, "after CONNECT")] {
            let mut rig = Rig::after(said);
            let (payload, fd) = good(&rig);
            let answer = rig.send(row.code, payload, fd);
            match (row.legal, answer) {
                (Legal::Never(why), Err(fault)) => {
                    let text = format!("{} refused: {why}", row.name);
                    assert_eq!(fault.to_string(), text);
                }
                (Legal::Always, Err(fault)) => assert!(fault.is_close(), "{fault}"),
                // Legal, and perhaps refused for what it says.
                (Legal::In(stage), answer) if Rig::after(said).session.stage == stage => {
                    if let Err(fault) = answer {
                        assert!(!fault.to_string().contains("it comes"), "{fault}");
                    }
                }
                (Legal::In(_), Err(fault)) => {
                    assert!(fault.to_string().contains(state), "{}: {fault}", row.name);
                }
                (_, answer) => panic!("{}: {answer:?}", row.name),
            }
        }
        for wrong in [1 - row.fds, 2] {
            let fds = (0..wrong).map(|_| event()).collect();
            let mut rig = Rig::after(1);
            let answer = rig
                .session
                .handle(message(row.code, []), fds, &mut rig.backend);
            let expected = if row.fds == 0 { "none" } else { "1" };
            assert_eq!(
                answer.expect_err("a fault").to_string(),
                format!(
                    "{} with {wrong} file descriptors, expected {expected}",
                    row.name
                )
            );
        }
        let short = Message {
            code: row.code,
            need_reply: false,
            payload: vec![0; PAYLOAD_LEN - 1],
        };
        let fds = (0..row.fds).map(|_| event()).collect();
        let mut rig = Rig::after(1);
        let answer = rig.session.handle(short, fds, &mut rig.backend);
        assert!(
            matches!(answer, Err(Fault::WrongSize { .. })),
            "{}",
            row.name
        );
    }
}

#[test]
fn unknown_messages_are_refused() {
    for code in [0, 9, 0xffff] {
        let mut rig = Rig::after(1);
        assert_eq!(
            rig.fault(code, [], None),
            format!("message {code} refused: no such message is known")
        );
        assert_eq!(rig.session.info().refused_messages, 1);
    }
}

#[test]
fn init_is_refused_with_the_reason() {
    type Change = fn(&mut testkit::memif::Spec);
    let cases: [(Change, &str); 9] = [
        (|s| s.version = 0x201, "memif version 2.1, 2.0 is served"),
        (|s| s.version = 0x100, "memif version 1.0, 2.0 is served"),
        (|s| s.id = 0, "interface 0, this port has id 7"),
        (|s| s.id = 7 << 16, "interface 458752, this port has id 7"),
        (|s| s.mode = 1, "interface mode 1, Ethernet (0) is served"),
        (|s| s.mode = 2, "interface mode 2, Ethernet (0) is served"),
        (|s| s.secret.clear(), "the port requires a secret"),
        (|s| s.secret = "swordfis".into(), "wrong secret"),
        (|s| s.secret = "swordfish2".into(), "wrong secret"),
    ];
    for (change, reason) in cases {
        let (mut rig, mut spec) = (Rig::fresh(), spec());
        change(&mut spec);
        let fault = rig.fault(code::INIT, spec.init(), None);
        assert_eq!(fault, format!("INIT refused: {reason}"));
        assert_eq!(rig.session.program(), "");
    }
}

#[test]
fn a_port_without_a_secret_takes_any_client() {
    for secret in ["", "whatever"] {
        let mut rig = Rig::fresh();
        rig.session.offer.secret = None;
        let secret = secret.into();
        let init = testkit::memif::Spec { secret, ..spec() }.init();
        assert!(rig.send(code::INIT, init, None).is_ok());
    }
}

#[test]
fn a_secret_of_24_bytes_is_compared_whole() {
    let secret = "abcdefghijklmnopqrstuvwx";
    for (last, good) in [("x", true), ("y", false), ("", false)] {
        let mut rig = Rig::fresh();
        rig.session.offer.secret = Some(secret.into());
        let secret = format!("{}{last}", &secret[..23]).into();
        let init = testkit::memif::Spec { secret, ..spec() }.init();
        assert_eq!(rig.send(code::INIT, init, None).is_ok(), good, "{last}");
    }
}

#[test]
fn a_region_is_refused_with_the_reason() {
    let cases: [(u16, u64, OwnedFd, &str); 7] = [
        (1, SIZE, memfd(SIZE), "region 1, the next one is 0"),
        (0, 0, memfd(SIZE), "region 0: a memory region of size 0"),
        (
            0,
            SIZE + 1,
            memfd(SIZE),
            "region 0: memory region needs 0x10081 bytes of its file",
        ),
        (0, SIZE, memfd(SIZE - 1), "--single-file-segments"),
        (
            0,
            MAX_REGION + 1,
            memfd(MAX_REGION + 1),
            "at most 4294963200 are served",
        ),
        (0, SIZE, event(), "region 0: guest memory must be a memfd"),
        (0, u64::MAX, memfd(SIZE), "at most 4294963200 are served"),
    ];
    for (index, size, file, reason) in cases {
        let mut rig = Rig::after(1);
        let fault = rig.fault(code::ADD_REGION, add_region(index, size), Some(file));
        assert!(fault.starts_with("ADD_REGION refused: "), "{fault}");
        assert!(fault.contains(reason), "{fault}");
        assert_eq!(files(&rig), 0);
        assert!(rig.backend.kept.is_empty());
    }
}

#[test]
fn there_are_sixteen_regions_at_most() {
    let mut rig = Rig::after(1);
    for index in 0..MAX_REGIONS {
        let sent = rig.send(code::ADD_REGION, add_region(index, 1), Some(memfd(1)));
        assert!(sent.is_ok(), "{index}");
    }
    let fault = rig.fault(code::ADD_REGION, add_region(16, 1), Some(memfd(1)));
    assert_eq!(fault, "ADD_REGION refused: region 16: more than 16 regions");
}

#[test]
fn a_ring_is_refused_with_the_reason() {
    let good = ring(true);
    let end = SIZE as u32 - (128 + 16 * 64);
    let cases: [(AddRing, &str); 11] = [
        (AddRing { flags: 3, ..good }, "unknown flags 0x3"),
        (
            AddRing { index: 1, ..good },
            "S2M ring 1: the next one is 0",
        ),
        (
            AddRing {
                index: 0xffff,
                ..good
            },
            "the next one is 0",
        ),
        (
            AddRing { region: 1, ..good },
            "it lies in region 1, which does not exist",
        ),
        (
            AddRing {
                private_header: 4,
                ..good
            },
            "private headers are not served",
        ),
        (
            AddRing {
                log2_size: 0,
                ..good
            },
            "2^0 entries, 2 to 4096 are served",
        ),
        (
            AddRing {
                log2_size: 13,
                ..good
            },
            "2^13 entries, 2 to 4096 are served",
        ),
        (
            AddRing {
                log2_size: 255,
                ..good
            },
            "2^255 entries, 2 to 4096 are served",
        ),
        (AddRing { offset: 4, ..good }, "offset 4, no multiple of 8"),
        (
            AddRing {
                offset: end + 8,
                ..good
            },
            "1152 bytes at 64520 are not in region 0, which has 65664",
        ),
        (
            AddRing {
                offset: u32::MAX - 7,
                ..good
            },
            "are not in region 0",
        ),
    ];
    for (add, reason) in cases {
        let mut rig = Rig::after(2);
        let fault = rig.fault(code::ADD_RING, add.payload(), Some(event()));
        assert!(fault.starts_with("ADD_RING refused: "), "{fault}");
        assert!(fault.contains(reason), "{fault}");
        assert_eq!(files(&rig), 1, "the region's");
    }
    // The last place that is possible.
    let last = AddRing {
        offset: end,
        ..good
    };
    let mut rig = Rig::after(2);
    assert!(
        rig.send(code::ADD_RING, last.payload(), Some(event()))
            .is_ok()
    );
}

#[test]
fn interrupts_are_eventfds() {
    let mut rig = Rig::after(2);
    let fault = rig.fault(code::ADD_RING, ring(true).payload(), Some(memfd(8)));
    assert!(
        fault.ends_with("S2M ring 0: the descriptor is no eventfd"),
        "{fault}"
    );
}

#[test]
fn each_direction_has_as_many_rings_as_the_port_has_pairs() {
    let mut rig = Rig::after(2);
    for (index, flags) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let add = AddRing {
            index,
            flags,
            ..ring(true)
        };
        assert!(
            rig.send(code::ADD_RING, add.payload(), Some(event()))
                .is_ok()
        );
    }
    for (flags, name) in [(0, "M2S"), (1, "S2M")] {
        let add = AddRing {
            index: 2,
            flags,
            ..ring(true)
        };
        assert_eq!(
            rig.fault(code::ADD_RING, add.payload(), Some(event())),
            format!("ADD_RING refused: {name} ring 2: this port has 2 queue pairs")
        );
    }
}

#[test]
fn connect_is_refused_with_the_reason() {
    let cases: [(u32, &[u8], &str); 4] = [
        (
            RINGS[0],
            &[0, 0, 0, 0],
            "M2S ring 0 has cookie 0x0, not 0x3e31f20",
        ),
        (
            RINGS[1],
            &[0x20, 0x1f, 0xe3, 2],
            "S2M ring 0 has cookie 0x2e31f20, not 0x3e31f20",
        ),
        (
            RINGS[1] + 64,
            &[5, 0],
            "S2M ring 0 does not start at 0: its tail is 5",
        ),
        (
            RINGS[0] + 6,
            &[65, 0],
            "M2S ring 0 of 64 entries has its head at 65",
        ),
    ];
    for (at, bytes, reason) in cases {
        let mut rig = Rig::after(4);
        write(&rig.file, at, bytes);
        let fault = rig.fault(code::CONNECT, name("x"), None);
        assert_eq!(fault, format!("CONNECT refused: {reason}"));
        assert!(!rig.session.sent(&mut rig.backend));
        assert!(rig.backend.events.is_empty());
    }
    let fault = Rig::after(2).fault(code::CONNECT, name("x"), None);
    assert_eq!(fault, "CONNECT refused: no ring was added");
    // Buffers that the client offered before it connects.
    let mut rig = Rig::after(4);
    write(&rig.file, RINGS[0] + 6, &[64, 0]);
    assert!(rig.send(code::CONNECT, name("x"), None).is_ok());
}

#[test]
fn a_queue_that_cannot_start_or_fails_shows_the_reason() {
    let mut rig = Rig::after(5);
    rig.backend.no_start = Some("no room".into());
    rig.session.sent(&mut rig.backend);
    let events = rig.backend.take();
    assert_eq!(events[1..], ["refused 0: no room", "refused 1: no room"]);
    let queues = rig.session.info().queues;
    assert_eq!(queues[0].fault.as_deref(), Some("no room"));
    assert_eq!(queues[0].state, "stopped: no room");

    let mut rig = Rig::connected();
    rig.backend.take();
    rig.session
        .queue_failed(1, "head is out of range", &mut rig.backend);
    rig.session
        .queue_failed(9, "no such queue", &mut rig.backend);
    assert_eq!(rig.backend.take(), ["stop 1"]);
    let queues = rig.session.info().queues;
    assert_eq!(queues[1].fault.as_deref(), Some("head is out of range"));
    assert!(queues[0].running);
}

#[test]
fn memory_that_is_cut_off_is_noticed() {
    mapping::survive_truncation().expect("a handler");
    let rig = Rig::connected();
    assert!(!rig.session.memory_is_lost());
    ftruncate(&rig.file, 0).expect("a size");
    let memory = rig.backend.memory.as_ref().expect("memory");
    let segment = memory.translate(0, 4).expect("the ring");
    // SAFETY: four mapped bytes, aligned to a page, which the handler replaces.
    let cookie = unsafe { segment.ptr.cast::<u32>().read_volatile() };
    assert_eq!(cookie, 0);
    assert!(rig.session.memory_is_lost());
}

#[test]
fn regions_do_not_touch() {
    let mut rig = Rig::after(1);
    for index in 0..2 {
        let add = add_region(index, MAX_REGION);
        let sent = rig.send(code::ADD_REGION, add, Some(memfd(MAX_REGION)));
        assert!(sent.is_ok());
    }
    let memory = rig.session.regions.snapshot().expect("memory");
    let end = MAX_REGION - 16;
    assert!(memory.translate(end, 16).is_some());
    let mut pieces = Vec::new();
    assert!(!memory.translate_into(end, 8192, &mut pieces), "{pieces:?}");
    assert!(memory.translate(1 << 32, 16).is_some());
}

#[test]
fn a_reason_is_cut_to_its_field() {
    let long = "x".repeat(200);
    let reply = crate::message::disconnect(&long);
    let bytes = crate::message::to_bytes(reply.code, &reply.payload);
    assert_eq!(bytes[..6], [8, 0, 0, 0, 0, 0]);
    assert_eq!(
        bytes[6..6 + REASON_LEN - 1],
        long.as_bytes()[..REASON_LEN - 1]
    );
    assert!(bytes[6 + REASON_LEN - 1..].iter().all(|byte| *byte == 0));
}
