//! Negotiation of `VIRTIO_F_ACCESS_PLATFORM`: offered, required, and the channel that it needs.

use super::super::message::{F_LOG_ALL, F_PROTOCOL_FEATURES};
use super::*;

const IOMMU: Features = Features::VERSION_1.union(Features::ACCESS_PLATFORM);
const REQUIRED: &str = "ACCESS_PLATFORM, and the port has iommu = \"required\"";

/// All protocol features and memory, at a port that offers `ACCESS_PLATFORM`, or requires it.
fn rig(required: bool) -> Rig {
    let mut offer = Offer::new(offered() | Features::ACCESS_PLATFORM, 2);
    offer.iommu_required = required;
    let mut rig = Rig {
        session: Session::new(offer),
        backend: Recorder::default(),
    };
    rig.protocol(ProtocolFeatures::all());
    rig.memory();
    rig.backend.take();
    rig
}

fn offer_of(rig: &mut Rig) -> u64 {
    let word = rig.ask(code::GET_FEATURES, vec![]);
    u64::from_ne_bytes(word.try_into().expect("8 bytes"))
}

/// Sets the device status of a driver that has chosen features, and returns what it then reads.
fn status(rig: &mut Rig) -> u64 {
    rig.tell(code::SET_STATUS, u64s(&[0xb]), vec![]);
    let status = rig.ask(code::GET_STATUS, vec![]);
    u64::from_ne_bytes(status.try_into().expect("8 bytes"))
}

#[test]
fn the_offer_differs_in_one_bit() {
    let before = offered().bits() | F_LOG_ALL | F_PROTOCOL_FEATURES;
    for required in [false, true] {
        let offered = offer_of(&mut rig(required));
        assert_eq!(offered ^ before, 1 << 33);
    }
    let slots = Offer::new(offered() | Features::ACCESS_PLATFORM, 1).of_slot_queues(256);
    assert!(!slots.features.contains(Features::ACCESS_PLATFORM));
}

#[test]
fn a_front_end_that_does_not_take_it_negotiates_as_before() {
    let mut rig = rig(false);
    rig.features(Features::VERSION_1, F_PROTOCOL_FEATURES);
    rig.set_up(0);
    assert_eq!(rig.backend.take(), ["start 0 at 0x0 disabled"]);
    assert_eq!(rig.backend.running[&0].features, Features::VERSION_1);
    assert_eq!(status(&mut rig), 0xb);
    assert_eq!(rig.session.info().no_start, None);
}

#[test]
fn required_refuses_guests_that_did_not_take_it_by_name() {
    let modern = "the guest did not take";
    let legacy = "the guest has a legacy driver, which cannot take";
    for (features, who) in [
        (Features::VERSION_1, modern),
        (Features::VERSION_1 | Features::RING_PACKED, modern),
        (Features::NET_MRG_RXBUF, legacy),
        (Features::empty(), legacy),
    ] {
        let mut rig = rig(true);
        assert_eq!(rig.session.info().no_start, None, "nothing is chosen yet");
        rig.features(features, F_PROTOCOL_FEATURES);
        let reason = format!("{who} {REQUIRED}");
        assert_eq!(rig.session.info().no_start.as_ref(), Some(&reason));
        assert_eq!(status(&mut rig), 3, "FEATURES_OK stays clear");
        rig.backend.take();

        // A driver that does not look at the status sets its queues up.
        rig.set_up(0);
        assert_eq!(rig.backend.take(), [format!("refused 0: {reason}")]);
        assert_eq!(rig.state_of(0), format!("stopped: {reason}"));
    }
}

#[test]
fn the_next_driver_of_a_refused_guest_may_take_it() {
    let mut rig = rig(true);
    rig.tell(code::SET_BACKEND_REQ_FD, vec![], vec![socket()]);
    rig.features(Features::VERSION_1, F_PROTOCOL_FEATURES);
    rig.set_up(0);
    rig.tell(code::SET_STATUS, u64s(&[0]), vec![]);
    assert_eq!(rig.session.info().no_start, None);
    rig.features(IOMMU, F_PROTOCOL_FEATURES);
    assert_eq!(rig.session.info().no_start, None);
    assert_eq!(rig.state_of(0), "waits for a kick descriptor");
    assert_eq!(status(&mut rig), 0xb);
}

#[test]
fn it_needs_version_1() {
    let mut rig = rig(false);
    rig.features(Features::ACCESS_PLATFORM, F_PROTOCOL_FEATURES);
    let reason = "features 0x200000000 without VERSION_1, which they need";
    assert_eq!(rig.session.info().no_start.as_deref(), Some(reason));
    assert_eq!(status(&mut rig), 3);
}

#[test]
fn queues_of_a_guest_that_took_it_wait_for_the_channel() {
    let mut rig = rig(false);
    rig.features(IOMMU, F_PROTOCOL_FEATURES);
    rig.set_up(0);
    let missing = "a back-end channel (SET_BACKEND_REQ_FD), which ACCESS_PLATFORM needs";
    assert_eq!(rig.state_of(0), format!("waits for {missing}"));
    let no_start = format!("the queues wait for {missing}");
    assert_eq!(rig.session.info().no_start, Some(no_start));
    let done = rig.backend.take();
    let is_table = |done: &String| done.contains("iotlb");
    assert!(
        done.iter().all(is_table),
        "no start, and no refusal: {done:?}"
    );

    rig.tell(code::SET_BACKEND_REQ_FD, vec![], vec![socket()]);
    assert_eq!(rig.session.info().no_start, None);
    assert!(!rig.state_of(0).contains("channel"), "{}", rig.state_of(0));
}

#[test]
fn a_front_end_without_backend_req_can_bring_no_channel() {
    let mut rig = rig(false);
    rig.protocol(ProtocolFeatures::all() - ProtocolFeatures::BACKEND_REQ);
    rig.features(IOMMU, F_PROTOCOL_FEATURES);
    rig.set_up(0);
    let missing = "protocol feature BACKEND_REQ, which ACCESS_PLATFORM needs";
    assert_eq!(rig.state_of(0), format!("waits for {missing}"));
}
