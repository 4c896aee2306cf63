//! With an interface of the test's own, where the machine lets us make one.

use ipc::driving::Choice;

use super::*;
use crate::testing::with_veth;

fn spec() -> DeviceSpec {
    crate::testing::spec(Choice::Xdp, false)
}

#[test]
fn a_foreign_program_stays() {
    with_veth(|| {
        let index = Control::new().unwrap().index("up0").unwrap() as u32;
        let other = Map::new(1).unwrap().program().unwrap();
        let theirs = program::attach(&other, index).unwrap();
        let error = open(&spec(), true).unwrap_err().to_string();
        assert_eq!(error, "another XDP program is attached to it");
        drop(theirs);
        open(&spec(), true).expect("nothing of the first attempt is left");
    });
}

#[test]
fn each_process_has_sockets_of_its_own_and_the_program_stays() {
    with_veth(|| {
        let mut device = open(&spec(), true).unwrap();
        assert_eq!(device.back_end(), BackEnd::Xdp { zero_copy: false });
        for _ in 0..3 {
            assert_eq!(device.check(), Ok(()));
            let given = device.hand_over(Choice::Xdp).unwrap();
            let (memory, start) = given.xdp.expect("memory");
            assert_eq!(given.queues.len(), 1);
            assert_eq!((start.longest, start.unfinished), (1518, true));
            let size = rustix::fs::fstat(&memory).unwrap().st_size;
            assert_eq!(size as u64, SHAPE.size(1));
            assert!(open(&spec(), true).is_err(), "it is in use");
        }
    });
}

#[test]
fn what_is_kept_can_be_passed_on_while_a_process_works() {
    with_veth(|| {
        let control = Control::new().unwrap();
        let taken_off = || control.takes_tags_off("up0").unwrap();
        let mut device = open(&spec(), true).unwrap();
        let first = device.hand_over(Choice::Xdp).unwrap();
        let copies = device.parts(|fd| fd.try_clone_to_owned().unwrap());
        // As it goes with the program that it is of: nothing is undone.
        std::mem::forget(device);
        let mut device = Device::of(copies, Ok::<_, io::Error>).unwrap();
        assert_eq!(device.check(), Ok(()));
        assert_eq!(device.back_end(), BackEnd::Xdp { zero_copy: false });
        assert!(
            device.hand_over(Choice::Xdp).is_err(),
            "the sockets of the process are there"
        );
        drop(first);
        let second = device.hand_over(Choice::Xdp).unwrap();
        assert!(second.xdp.is_some() && !taken_off());
        drop((second, device));
        assert!(taken_off());
    });
}

#[test]
fn tags_are_left_in_frames_only_meanwhile() {
    with_veth(|| {
        let control = Control::new().unwrap();
        let taken_off = || control.takes_tags_off("up0").unwrap();
        assert!(taken_off());
        let device = open(&spec(), true).unwrap();
        assert!(!taken_off());
        drop(device);
        assert!(taken_off());
    });
}

#[test]
fn another_mtu_is_for_another_process() {
    with_veth(|| {
        let mut device = open(&spec(), true).unwrap();
        assert!(!device.has_changed(), "there is no process");
        device.hand_over(Choice::Xdp).unwrap();
        for mtu in [3000, 1400] {
            assert!(!device.has_changed());
            device.set_mtu(Some(mtu)).unwrap();
            assert!(device.has_changed());
            let (_, start) = device.hand_over(Choice::Xdp).unwrap().xdp.expect("memory");
            assert_eq!(start.longest, u32::from(mtu) + 18);
        }
        assert!(!device.has_changed());
    });
}
