//! Every row of the table, with what it allows and what it does not.

use super::super::message::{F_PROTOCOL_FEATURES, MAX_FDS};
use super::super::table::{Fds, Legal, ReplyKind, Row, Size, TABLE, find};
use super::*;

/// A good message of each kind, for a session that is ready. A new row without one fails the walk.
fn example(row: &Row) -> (Vec<u8>, Vec<OwnedFd>) {
    let plain = |payload: Vec<u8>| (payload, vec![]);
    match row.code {
        code::SET_FEATURES => plain(u64s(&[Features::VERSION_1.bits() | F_PROTOCOL_FEATURES])),
        code::SET_MEM_TABLE => (mem_table(&[[GPA, MEM, UVA, 0]]), vec![memfd(MEM)]),
        code::SET_LOG_BASE => (u64s(&[4096, 0]), vec![memfd(4096)]),
        code::SET_VRING_NUM => plain(state(0, 256)),
        code::SET_VRING_ADDR => plain(addr(0, 1)),
        code::SET_VRING_BASE | code::GET_VRING_BASE => plain(state(3, 0)),
        code::SET_VRING_KICK | code::SET_VRING_CALL | code::SET_VRING_ERR => {
            (u64s(&[2]), vec![event()])
        }
        code::SET_PROTOCOL_FEATURES => plain(u64s(&[ProtocolFeatures::all().bits()])),
        code::SET_VRING_ENABLE => plain(state(1, 1)),
        code::SEND_RARP => plain(vec![2, 0, 0, 0, 0, 7, 0, 0]),
        code::NET_SET_MTU => plain(u64s(&[1500])),
        code::GET_CONFIG => plain([u32s(&[0, 24, 0]), vec![0; 24]].concat()),
        code::SET_CONFIG => plain([u32s(&[0, 6, 1]), vec![9; 6]].concat()),
        code::GET_INFLIGHT_FD => plain(inflight(0, 0, 4, 256)),
        code::SET_INFLIGHT_FD => (inflight(65536, 0, 4, 256), vec![memfd(65536)]),
        code::ADD_MEM_REG => (single([0, 4096, 0x1000, 0]), vec![memfd(4096)]),
        code::REM_MEM_REG => plain(single([GPA, MEM, UVA, 0])),
        code::SET_STATUS => plain(u64s(&[3])),
        code::SET_BACKEND_REQ_FD => (vec![], vec![socket()]),
        code::IOTLB_MSG => plain(super::iotlb::invalidate(0x1000, 0x1000)),
        _ => match (row.size, row.fds, row.legal) {
            (Size::Exact(0), Fds::None, _) => plain(vec![]),
            (Size::Exact(0), Fds::One, _) => (vec![], vec![event()]),
            (_, Fds::One, Legal::Never(_)) => (vec![0; 8], vec![event()]),
            (_, _, Legal::Never(_)) => plain(vec![0; 8]),
            _ => panic!("no example of {}", row.name),
        },
    }
}

/// A session in which the message is legal.
fn ready_for(row: &Row) -> Rig {
    match row.legal {
        Legal::Feature(_) => Rig::translated(),
        _ => Rig::ready(),
    }
}

fn walk() -> impl Iterator<Item = &'static Row> {
    TABLE.iter()
}

#[test]
fn every_offered_message_is_served_and_answered_as_its_row_says() {
    for row in walk().filter(|row| !matches!(row.legal, Legal::Never(_))) {
        let (payload, fds) = example(row);
        let reply = ready_for(row).send(row.code, payload, fds);
        let reply = reply.unwrap_or_else(|fault| panic!("{}: {fault}", row.name));
        assert_eq!(
            reply.is_some(),
            row.reply == ReplyKind::Always,
            "{}",
            row.name
        );

        let (payload, fds) = example(row);
        let reply = ready_for(row).message(row.code, true, payload, fds);
        let reply = reply.expect(row.name).expect(row.name);
        assert_eq!(reply.code, row.code);
        if row.reply == ReplyKind::OnDemand {
            assert_eq!(as_u64(&reply), 0, "{}", row.name);
        }
    }
}

#[test]
fn every_message_that_is_not_offered_is_refused_cleanly() {
    for row in walk() {
        let Legal::Never(why) = row.legal else {
            continue;
        };
        let (payload, fds) = example(row);
        let mut rig = Rig::ready();
        assert_ne!(rig.ack(row.code, payload.clone(), fds), 0, "{}", row.name);
        assert_eq!(
            rig.session.info().last_refusal,
            Some(format!("{}: {why}", row.name))
        );

        let (_, fds) = example(row);
        assert_eq!(
            rig.fault(row.code, payload, fds),
            format!("{} refused: {why}", row.name)
        );
        assert!(rig.backend.events.is_empty());
    }
}

#[test]
fn every_message_has_its_number_of_descriptors() {
    for row in walk() {
        let most = match row.fds {
            Fds::None => 0,
            Fds::One | Fds::UpToOne => 1,
            Fds::UpToEight => MAX_FDS,
        };
        let (payload, _) = example(row);
        let mut rig = Rig::ready();
        let (too_many, watches): (Vec<_>, Vec<_>) = (0..=most).map(|_| watched()).unzip();
        let fault = rig
            .send(row.code, payload.clone(), too_many)
            .expect_err(row.name);
        assert!(
            matches!(fault, Fault::WrongFds { .. }),
            "{}: {fault}",
            row.name
        );
        assert!(
            watches.iter().all(is_closed),
            "{}: all are closed",
            row.name
        );
        if row.fds == Fds::One {
            let fault = rig.send(row.code, payload, vec![]).expect_err(row.name);
            assert!(
                matches!(fault, Fault::WrongFds { got: 0, .. }),
                "{}: {fault}",
                row.name
            );
        }
        assert!(rig.backend.events.is_empty());
    }
}

#[test]
fn every_message_has_its_size() {
    for row in walk().filter(|row| row.size != Size::Any) {
        let wrong: &[usize] = match row.size {
            Size::Exact(0) => &[1, 8, 4096],
            Size::Exact(8) => &[0, 7, 9, 4096],
            Size::Exact(_) | Size::Either(..) => &[0, 15, 19, 21, 39, 41, 4096],
            Size::Regions => &[0, 7, 9, 39, 8 + 9 * 32],
            Size::Config => &[0, 11, 269],
            Size::Any => &[],
        };
        for size in wrong {
            let (_, fds) = example(row);
            let fault = ready_for(row)
                .send(row.code, vec![0; *size], fds)
                .expect_err(row.name);
            assert!(
                matches!(fault, Fault::WrongSize { .. }),
                "{}: {fault}",
                row.name
            );
        }
    }
}

#[test]
fn every_message_waits_for_its_protocol_feature() {
    for row in walk() {
        let (Legal::Protocol(needs) | Legal::ProtocolAndFeatures(needs)) = row.legal else {
            continue;
        };
        let mut rig = Rig::ready();
        rig.protocol(ProtocolFeatures::all() - needs);
        let (payload, fds) = example(row);
        let fault = rig.fault(row.code, payload, fds);
        assert!(
            fault.contains("was not negotiated"),
            "{}: {fault}",
            row.name
        );
    }
}

#[test]
fn messages_about_translations_wait_for_the_feature() {
    for row in walk().filter(|row| matches!(row.legal, Legal::Feature(_))) {
        let (payload, fds) = example(row);
        let mut rig = Rig::ready();
        assert_ne!(rig.ack(row.code, payload.clone(), fds), 0);
        let why = format!("{}: feature ACCESS_PLATFORM was not negotiated", row.name);
        assert_eq!(rig.session.info().last_refusal, Some(why));
        let fault = rig.fault(row.code, payload, vec![]);
        assert!(fault.contains("refused"), "{fault}");
        assert!(rig.backend.events.is_empty());
    }
}

#[test]
fn inflight_messages_wait_for_the_features() {
    for row in walk().filter(|row| matches!(row.legal, Legal::ProtocolAndFeatures(_))) {
        let mut rig = Rig::fresh();
        rig.protocol(ProtocolFeatures::all());
        let (payload, fds) = example(row);
        assert!(
            rig.fault(row.code, payload, fds)
                .contains("before SET_FEATURES")
        );
    }
}

#[test]
fn unknown_messages_are_refused_cleanly() {
    for unknown in [0, 45, 1000, u32::MAX] {
        assert!(find(unknown).is_none());
        let mut rig = Rig::ready();
        assert_ne!(rig.ack(unknown, vec![1, 2, 3], vec![event()]), 0);
        let fault = rig.fault(unknown, vec![], vec![]);
        assert_eq!(
            fault,
            format!("message {unknown} refused: no such message is known")
        );

        let mut rig = Rig::fresh();
        let fault = rig.message(unknown, true, vec![], vec![]);
        assert!(fault.is_err(), "acknowledgements were not negotiated");
    }
}

#[test]
fn a_message_with_an_own_answer_that_cannot_be_given_ends_the_connection() {
    let mut rig = Rig::ready();
    let fault = rig
        .message(code::GET_VRING_BASE, true, state(4, 0), vec![])
        .expect_err("a fault");
    assert_eq!(
        fault.to_string(),
        "GET_VRING_BASE refused: queue 4: this port has 2 queue pairs, queues 0 to 3"
    );
}
