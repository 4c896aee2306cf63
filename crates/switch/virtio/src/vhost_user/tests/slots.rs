//! Sessions of netmap clients: vhost-user whose rings are slot queues.

use super::*;

/// A session of a port for netmap clients with 1024 slots, in which nothing was said yet.
fn fresh() -> Rig {
    Rig {
        session: Session::new(Offer::new(offered(), 2).of_slot_queues(1024)),
        backend: Recorder::default(),
    }
}

#[track_caller]
fn ask_u64(rig: &mut Rig, code: u32) -> u64 {
    let bytes = rig.ask(code, vec![]);
    u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
}

#[test]
fn a_port_for_netmap_clients_offers_what_slot_queues_have() {
    let mut rig = fresh();
    let features = ask_u64(&mut rig, code::GET_FEATURES);
    let expected = Features::VERSION_1 | Features::NET_MRG_RXBUF;
    assert_eq!(features, expected.bits() | F_PROTOCOL_FEATURES, "no log");
    let protocol = ask_u64(&mut rig, code::GET_PROTOCOL_FEATURES);
    assert_eq!(protocol >> 63, 1);
    let left = ProtocolFeatures::INFLIGHT_SHMFD | ProtocolFeatures::LOG_SHMFD;
    assert_eq!(protocol & left.bits(), 0);
    assert_eq!(protocol & ProtocolFeatures::MQ.bits(), 1);
    // Queues, and slots of each.
    rig.protocol(ProtocolFeatures::SLOT_QUEUES | ProtocolFeatures::MQ);
    let queues = ask_u64(&mut rig, code::GET_QUEUE_NUM);
    assert_eq!((queues as u32, queues >> 32), (4, 1024));
}

#[test]
fn a_port_for_guests_offers_no_slot_queues() {
    let mut rig = Rig::fresh();
    assert_eq!(ask_u64(&mut rig, code::GET_PROTOCOL_FEATURES) >> 63, 0);
    let desired = u64s(&[ProtocolFeatures::SLOT_QUEUES.bits()]);
    let reason = rig.fault(code::SET_PROTOCOL_FEATURES, desired, vec![]);
    assert!(reason.contains("were not offered"), "{reason}");
}

#[test]
fn a_guest_is_told_that_it_is_at_the_wrong_port() {
    let mut rig = fresh();
    let desired = u64s(&[ProtocolFeatures::MQ.bits()]);
    let reason = rig.fault(code::SET_PROTOCOL_FEATURES, desired, vec![]);
    assert!(reason.contains("for netmap clients"), "{reason}");
    // One that chooses no protocol features gets no queue.
    let mut rig = fresh();
    rig.features(Features::VERSION_1, F_PROTOCOL_FEATURES);
    rig.memory();
    rig.set_up(0);
    let state = rig.state_of(0);
    assert!(state.contains("for netmap clients"), "{state}");
}

#[test]
fn slot_queues_start_where_their_lines_are_whole_and_aligned() {
    for (driver, device, starts) in [
        (0x2000, 0x3000, true),
        (0x2040, 0x2080, true),
        (0x2020, 0x3000, false),
        (0x2000, 0x3010, false),
        (MEM - 64, 0x3000, false),
        (0x2000, MEM - 32, false),
    ] {
        let mut rig = fresh();
        rig.protocol(ProtocolFeatures::SLOT_QUEUES | ProtocolFeatures::MQ);
        rig.features(Features::VERSION_1, F_PROTOCOL_FEATURES);
        rig.memory();
        rig.tell(code::SET_VRING_NUM, state(1, 64), vec![]);
        let areas = [UVA, UVA + device, UVA + driver];
        rig.tell(code::SET_VRING_ADDR, addr_at(1, 0, areas), vec![]);
        rig.kick(1);
        let info = &rig.session.info().queues[1];
        assert_eq!(info.running, starts, "{}", info.state);
    }
}

#[test]
fn a_slot_queue_has_a_power_of_two_of_slots() {
    let mut rig = fresh();
    rig.protocol(ProtocolFeatures::SLOT_QUEUES);
    rig.features(Features::VERSION_1, F_PROTOCOL_FEATURES);
    rig.memory();
    rig.tell(code::SET_VRING_NUM, state(0, 100), vec![]);
    rig.tell(code::SET_VRING_ADDR, addr(0, 0), vec![]);
    rig.kick(0);
    let state = rig.state_of(0);
    assert!(state.contains("size 100 of a slot queue"), "{state}");
}
