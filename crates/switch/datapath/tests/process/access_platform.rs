//! What ports offer about `VIRTIO_F_ACCESS_PLATFORM`, and guests that do not take it.

use ipc::switching::{Clients, Iommu, PortConfig, PortPhase, Role, SwitchCommand};
use testkit::features::{RING_PACKED, VERSION_1, protocol};
use testkit::frontend::FrontEnd;
use testkit::iommu::IommuConfig;
use testkit::{FakeGuest, GuestConfig};

use crate::host::{Host, LIMIT, wait_for};
use crate::traffic::{disconnect, one_way, talk};

const ACCESS_PLATFORM: u64 = 1 << 33;

fn port(host: &Host, id: u32, iommu: Iommu) -> PortConfig {
    PortConfig {
        iommu,
        ..host.config(id, 1, Role::Server)
    }
}

fn set(host: &mut Host, config: &PortConfig, iommu: Iommu) {
    let config = PortConfig {
        iommu,
        ..config.clone()
    };
    host.order(SwitchCommand::SetPort(config), &[])
        .expect("set");
}

fn offered(host: &Host, id: u32) -> u64 {
    let mut front = FrontEnd::connect(&host.socket(id), LIMIT).expect("it listens");
    front.get_features().expect("an answer")
}

/// Waits until port 1 has a reason that begins so, and returns it.
fn wait_reason(host: &mut Host, begin: &str) -> String {
    let mut found = String::new();
    wait_for(&format!("a reason: {begin}"), || {
        found = host.state(1).reason.unwrap_or_default();
        found.starts_with(begin)
    });
    found
}

#[test]
fn ports_differ_in_one_bit_and_ports_for_processes_do_not() {
    let mut host = Host::new();
    for (id, iommu) in (1..).zip([Iommu::Off, Iommu::Offered, Iommu::Required]) {
        let config = port(&host, id, iommu);
        host.add(config);
    }
    let slots = PortConfig {
        clients: Clients::Netmap { slots: 256 },
        ..port(&host, 4, Iommu::Required)
    };
    host.add(slots);
    let off = offered(&host, 1);
    assert_eq!(off & ACCESS_PLATFORM, 0);
    assert_eq!(
        [offered(&host, 2), offered(&host, 3)],
        [off | ACCESS_PLATFORM; 2]
    );
    assert_eq!(offered(&host, 4) & ACCESS_PLATFORM, 0);
}

#[test]
fn a_guest_that_does_not_take_it_has_the_same_features_with_and_without() {
    let mut host = Host::new();
    for (id, iommu) in [(1, Iommu::Off), (2, Iommu::Offered)] {
        let config = port(&host, id, iommu);
        host.add(config);
    }
    for config in [GuestConfig::default(), GuestConfig::default().packed()] {
        let mut a = host.guest(1, config.clone());
        let mut b = host.guest(2, config);
        assert_eq!(a.features(), b.features());
        assert_eq!(host.state(1).features, host.state(2).features);
        talk(&mut a, &mut b, 20);
        disconnect([a, b]);
    }
}

#[test]
fn required_refuses_a_guest_that_did_not_take_it_and_says_so() {
    let mut host = Host::new();
    let config = port(&host, 1, Iommu::Required);
    host.add(config.clone());
    for (features, reason) in [
        (
            VERSION_1 | RING_PACKED,
            "the guest did not take ACCESS_PLATFORM",
        ),
        (
            0,
            "the guest has a legacy driver, which cannot take ACCESS_PLATFORM",
        ),
    ] {
        let mut front = FrontEnd::connect(&host.socket(1), LIMIT).expect("it listens");
        front.negotiate(features, 0).expect("features");
        let found = wait_reason(&mut host, reason);
        drop(front);
        // It is the reason of the last connection then.
        let state = host.wait_phase(1, PortPhase::Waiting);
        assert_eq!((state.reason, state.iommu), (Some(found), None));
    }
    set(&mut host, &config, Iommu::Off);
    host.add_port(2, 1);
    let mut guest = host.guest(1, GuestConfig::default());
    let mut other = host.guest(2, GuestConfig::default());
    talk(&mut guest, &mut other, 20);
}

#[test]
fn a_change_holds_for_the_next_connection() {
    let mut host = Host::new();
    let config = port(&host, 1, Iommu::Offered);
    host.add(config.clone());
    host.add_port(2, 1);
    let mut a = host.guest(1, GuestConfig::default());
    let mut b = host.guest(2, GuestConfig::default());
    talk(&mut a, &mut b, 20);
    set(&mut host, &config, Iommu::Required);
    let state = host.state(1);
    assert_eq!(
        (state.config.iommu, state.iommu),
        (Iommu::Required, Some(Iommu::Offered))
    );
    talk(&mut a, &mut b, 20);
    a.disconnect().expect("a good end");
    host.wait_phase(1, PortPhase::Waiting);

    let mut front = FrontEnd::connect(&host.socket(1), LIMIT).expect("it listens");
    front.negotiate(VERSION_1, 0).expect("features");
    wait_reason(&mut host, "the guest did not take ACCESS_PLATFORM");
    assert_eq!(host.state(1).iommu, Some(Iommu::Required));
}

#[test]
fn a_front_end_that_brings_no_channel_is_told_of() {
    let mut host = Host::new();
    host.add_port(1, 1);
    for (protocol, missing) in [
        (0, "protocol feature BACKEND_REQ"),
        (
            protocol::BACKEND_REQ,
            "a back-end channel (SET_BACKEND_REQ_FD)",
        ),
    ] {
        let mut front = FrontEnd::connect(&host.socket(1), LIMIT).expect("it listens");
        let features = VERSION_1 | ACCESS_PLATFORM | testkit::features::PROTOCOL_FEATURES;
        front.negotiate(features, protocol).expect("features");
        wait_reason(&mut host, &format!("the queues wait for {missing}"));
        drop(front);
        host.wait_phase(1, PortPhase::Waiting);
    }
}

/// Linux offers receive buffers after its queues were started, when the interface comes up. They
/// are asked for then: the first frame is delivered.
#[test]
fn receive_buffers_that_come_late_are_asked_for_before_frames_come() {
    let mut host = Host::new();
    for id in [1, 2] {
        let config = port(&host, id, Iommu::Offered);
        host.add(config);
    }
    for config in [GuestConfig::default(), GuestConfig::default().packed()] {
        let buffers = u64::from(config.queue_size);
        let mut guests = [1, 2].map(|id: u8| {
            let (socket, config) = (host.socket(id.into()), config.clone().guest(id));
            FakeGuest::connect_translated(&socket, config, IommuConfig::qemu()).expect("a session")
        });
        for guest in &guests {
            wait_for("all buffers are asked for", || {
                guest.iommu().counts().misses > buffers
            });
        }
        let [a, b] = &mut guests;
        one_way(a, b, 1);
        host.gone(guests, 2);
    }
}
