//! What drivers say.

use super::super::tests::spec;
use super::flows::KeptFlows;
use super::*;
use testkit::wait::wait_until;

#[test]
fn all_flows_are_kept_that_a_process_has_handed_over_when_it_dies() {
    let mut driver = Driver::reopen(spec());
    let (child, link) = DriverChild::idle();
    driver.child = Some(child);
    driver.user.flows = Some(KeptFlows::new().unwrap());
    let socket = sys::event::create().unwrap();
    for slot in 0..3 {
        let request = DriverRequest::User(UserDriverRequest::KeepFlows(vec![slot]));
        link.send(&request, &[socket.as_fd()]).unwrap();
    }
    driver.child.as_ref().unwrap().kill();
    wait_until("it dies", || driver.has_died());
    let mut start = ProcessStart {
        binaries: &Binaries::of_nothing(),
        groups: &mut DriverGroups::default(),
        poll_us: None,
    };
    driver.poll(&mut start, 100);
    let kept = driver.user.flows.as_ref().unwrap();
    assert_eq!(kept.sockets().count(), 3);
    assert!(!driver.is_alive());
}
