//! Features, protocol features, status, configuration space, and the small messages.

use std::os::unix::net::UnixStream;

use wire::virtio::vhost_user::{HEADER_LEN, Header};

use super::super::message::{F_LOG_ALL, F_PROTOCOL_FEATURES};
use super::*;

fn ask_u64(rig: &mut Rig, code: u32) -> u64 {
    u64::from_ne_bytes(rig.ask(code, vec![]).try_into().expect("8 bytes"))
}

#[test]
fn what_is_offered() {
    let mut rig = Rig::ready();
    let features = ask_u64(&mut rig, code::GET_FEATURES);
    assert_eq!(features, offered().bits() | F_LOG_ALL | F_PROTOCOL_FEATURES);
    assert_eq!(ask_u64(&mut rig, code::GET_PROTOCOL_FEATURES), 0x1_b23f);
    assert_eq!(
        ask_u64(&mut rig, code::GET_QUEUE_NUM),
        4,
        "queues, not pairs"
    );
    assert_eq!(ask_u64(&mut rig, code::GET_MAX_MEM_SLOTS), 509);
}

#[test]
fn features_that_were_not_offered_are_refused() {
    let mut rig = Rig::ready();
    let desired = u64s(&[(Features::VERSION_1 | Features::NET_MQ).bits()]);
    assert_eq!(rig.ack(code::SET_FEATURES, desired.clone(), vec![]), 1);
    assert_eq!(
        rig.session.info().features,
        Some(Features::VERSION_1),
        "as before"
    );
    assert!(
        rig.fault(code::SET_FEATURES, desired, vec![])
            .contains("0x400000 were not offered")
    );
    let desired = u64s(&[1 << 14]);
    assert!(
        rig.fault(code::SET_PROTOCOL_FEATURES, desired, vec![])
            .contains("were not offered")
    );
}

#[test]
fn set_protocol_features_is_acknowledged_by_what_it_sets() {
    let mut rig = Rig::fresh();
    let without = u64s(&[ProtocolFeatures::MQ.bits()]);
    let reply = rig
        .message(code::SET_PROTOCOL_FEATURES, true, without, vec![])
        .expect("served");
    assert!(reply.is_none());
    assert_eq!(rig.ack(code::SET_PROTOCOL_FEATURES, u64s(&[8]), vec![]), 0);
}

#[test]
fn features_stay_while_queues_run_except_for_logging() {
    let mut rig = Rig::running();
    let other = Features::VERSION_1 | Features::RING_EVENT_IDX;
    let other = u64s(&[other.bits() | F_PROTOCOL_FEATURES]);
    assert!(
        rig.fault(code::SET_FEATURES, other, vec![])
            .contains("change while queues run")
    );
    rig.send(code::SET_LOG_BASE, u64s(&[4096, 0]), vec![memfd(4096)])
        .expect("served");
    rig.logging(true);
    rig.logging(false);
    assert_eq!(rig.state_of(0), "disabled", "the session continues");
}

#[test]
fn status_zero_resets() {
    let mut rig = Rig::running();
    rig.backend.position = Some(77);
    rig.tell(code::SET_STATUS, u64s(&[0xf]), vec![]);
    assert_eq!(ask_u64(&mut rig, code::GET_STATUS), 0xf);
    rig.tell(code::SET_STATUS, u64s(&[0]), vec![]);
    assert_eq!(
        rig.backend.take(),
        ["status 0xf", "stop 0", "reset", "status 0x0"]
    );
    assert_eq!(ask_u64(&mut rig, code::GET_STATUS), 0);
    assert_eq!(rig.session.info().features, None);
    assert_eq!(rig.session.info().protocol, Some(ProtocolFeatures::all()));
    assert!(
        rig.fault(code::SET_STATUS, u64s(&[0x100]), vec![])
            .contains("more than 8 bits")
    );
}

#[test]
fn features_ok_stays_clear_for_features_that_need_another() {
    let both = Features::VERSION_1 | Features::RING_PACKED;
    let cases = [
        (Features::empty(), 0xb),
        (Features::RING_PACKED, 3),
        (both, 0xb),
    ];
    for (features, status) in cases {
        let mut rig = Rig::ready();
        rig.features(features, F_PROTOCOL_FEATURES);
        rig.tell(code::SET_STATUS, u64s(&[0xb]), vec![]);
        let found = ask_u64(&mut rig, code::GET_STATUS);
        assert_eq!(found, status, "{features:?}");
    }
}

#[test]
fn reset_device_keeps_memory_and_call_descriptors() {
    let mut rig = Rig::running();
    rig.tell(code::RESET_DEVICE, vec![], vec![]);
    assert_eq!(rig.backend.take(), ["stop 0", "reset"]);
    rig.features(Features::VERSION_1, F_PROTOCOL_FEATURES);
    rig.tell(code::SET_VRING_NUM, state(0, 128), vec![]);
    rig.tell(code::SET_VRING_ADDR, addr(0, 0), vec![]);
    assert_eq!(rig.state_of(0), "waits for a kick descriptor");
    rig.kick(0);
    assert!(rig.backend.running[&0].call.is_some());
}

#[test]
fn owner_messages_change_nothing() {
    let mut rig = Rig::running();
    rig.tell(code::SET_OWNER, vec![], vec![]);
    rig.tell(code::RESET_OWNER, vec![], vec![]);
    assert!(rig.backend.take().is_empty());
}

#[test]
fn the_configuration_space_shows_the_offer() {
    let mut rig = Rig::ready();
    let answer = rig.ask(code::GET_CONFIG, [u32s(&[0, 24, 0]), vec![0; 24]].concat());
    assert_eq!(answer[..12], u32s(&[0, 24, 0]));
    let config = &answer[12..];
    assert_eq!(config[..6], [2, 0, 0, 0, 0, 7]);
    assert_eq!(
        config[6..12],
        [1, 0, 2, 0, 0xdc, 5],
        "link up, 2 pairs, MTU 1500"
    );
    assert_eq!(config[12..17], [0xff; 5], "speed and duplex unknown");

    let long = rig.ask(code::GET_CONFIG, u32s(&[20, 236, 0]));
    assert_eq!(long.len(), 12 + 236, "zeros behind the last field");
    let beyond = rig.ask(code::GET_CONFIG, u32s(&[1, 256, 0]));
    assert_eq!(beyond, u32s(&[1, 0, 0]), "size 0 says no");
    let wrapping = rig.ask(code::GET_CONFIG, u32s(&[u32::MAX, 2, 0]));
    assert_eq!(wrapping, u32s(&[u32::MAX, 0, 0]));
}

#[test]
fn only_a_migration_writes_the_configuration_space() {
    let mut rig = Rig::ready();
    let write = |flags| [u32s(&[0, 6, flags]), vec![4; 6]].concat();
    assert_eq!(rig.ack(code::SET_CONFIG, write(0), vec![]), 1);
    assert_eq!(rig.ack(code::SET_CONFIG, write(1), vec![]), 0);
    assert_eq!(rig.ask(code::GET_CONFIG, u32s(&[0, 6, 0]))[12..], [4; 6]);
    let beyond = [u32s(&[20, 6, 1]), vec![4; 6]].concat();
    assert_eq!(rig.ack(code::SET_CONFIG, beyond, vec![]), 1);
    let lying = [u32s(&[0, 200, 1]), vec![4; 6]].concat();
    assert_eq!(rig.ack(code::SET_CONFIG, lying, vec![]), 1);
}

#[test]
fn mtu_and_rarp_reach_the_back_end() {
    let mut rig = Rig::ready();
    assert_eq!(rig.ack(code::NET_SET_MTU, u64s(&[9000]), vec![]), 0);
    for mtu in [0, 67, 9001, 65536, u64::MAX] {
        assert_eq!(rig.ack(code::NET_SET_MTU, u64s(&[mtu]), vec![]), 1, "{mtu}");
    }
    rig.tell(code::NET_SET_MTU, u64s(&[67]), vec![]);
    rig.tell(code::SEND_RARP, vec![2, 1, 2, 3, 4, 5, 0xee, 0xee], vec![]);
    assert_eq!(rig.backend.take(), ["mtu 9000", "rarp [2, 1, 2, 3, 4, 5]"]);
    let config = rig.ask(code::GET_CONFIG, u32s(&[10, 2, 0]));
    assert_eq!(config[12..], 9000u16.to_le_bytes());
}

#[test]
fn the_front_end_hears_of_link_and_mtu() {
    let mut rig = Rig::ready();
    assert!(!rig.session.set_link(false), "no channel yet");
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    rig.tell(code::SET_BACKEND_REQ_FD, vec![], vec![theirs.into()]);
    assert!(rig.session.set_link(true));
    assert!(rig.session.set_mtu(1400));
    let mut bytes = [0; 2 * HEADER_LEN];
    std::io::Read::read_exact(&mut &ours, &mut bytes).expect("two messages");
    let (first, _) = bytes.split_first_chunk().expect("a header");
    assert_eq!(
        Header::parse(*first),
        Header {
            code: 2,
            flags: 1,
            size: 0
        }
    );

    drop(ours);
    assert!(
        !rig.session.set_link(false),
        "closed, and no signal killed us"
    );
    let refused = rig.ack(code::SET_BACKEND_REQ_FD, vec![], vec![event()]);
    assert_ne!(refused, 0, "not a socket");
}

#[test]
fn a_request_channel_that_nobody_reads_loses_messages_and_blocks_nobody() {
    let mut rig = Rig::ready();
    let (_ours, theirs) = UnixStream::pair().expect("a pair");
    rig.tell(code::SET_BACKEND_REQ_FD, vec![], vec![theirs.into()]);
    let sent = (0..100_000)
        .take_while(|_| rig.session.set_link(true))
        .count();
    assert!(sent > 0 && sent < 100_000);
}

#[test]
fn closing_stops_everything_and_starts_over() {
    let mut rig = Rig::running();
    rig.session.close(&mut rig.backend);
    assert_eq!(rig.backend.take(), ["stop 0", "no memory"]);
    let info = rig.session.info();
    assert_eq!(
        (info.features, info.protocol, info.regions),
        (None, None, 0)
    );
    rig.session.close(&mut rig.backend);
    assert!(rig.backend.take().is_empty());
}
