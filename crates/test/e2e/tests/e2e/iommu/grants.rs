//! What a guest maps is reached, and nothing else.

use e2e::beside;
use testkit::GuestConfig;
use testkit::frontend::{FrontError, IotlbKind, IotlbMessage};
use testkit::iommu::{Access, Answers, IommuConfig, Mode, PAGE};
use testkit::packets::Flow;

use super::{
    all_arrive, arrives, layouts, not_granted, one_is_refused, page_with, pair, send_at, sound,
    start,
};

#[test]
fn what_is_not_granted_costs_one_frame_by_name() {
    let _turn = beside();
    let lasthop = start("");
    for config in layouts() {
        for answers in [Answers::Exact, Answers::Qemu] {
            let iommu = IommuConfig {
                answers,
                ..IommuConfig::new(Mode::OnDemand)
            };
            let mut guests = pair(&lasthop, &config, iommu);
            let [a, b] = &mut guests;
            let before = not_granted(&lasthop, "vm1");
            let nowhere = a.iommu().reserve(1);
            send_at(a, nowhere, 100);
            one_is_refused(&lasthop, before);
            let refused = a.iommu().counts().refused;
            assert!(refused > 0, "it was asked for");
            all_arrive(&lasthop, a, b, Flow::v4(1, 2), 100);

            // What was refused is asked again once it is mapped.
            let (page, len) = page_with(a, b"mapped later");
            a.iommu().set(nowhere, page, Access::Read);
            send_at(a, nowhere, len);
            arrives(b, b"mapped later");
            one_is_refused(&lasthop, before);
            sound(&guests);
        }
    }
    lasthop.stop();
}

#[test]
fn a_permission_is_added_later() {
    let _turn = beside();
    let lasthop = start("");
    for mode in [Mode::OnDemand, Mode::Strict] {
        let mut guests = pair(&lasthop, &GuestConfig::default(), IommuConfig::new(mode));
        let [a, b] = &mut guests;
        let (page, len) = page_with(a, b"readable now");
        let iova = a.iommu().map_pages(&[page], Access::Write);
        let before = not_granted(&lasthop, "vm1");
        send_at(a, iova, len);
        one_is_refused(&lasthop, before);
        a.iommu().set(iova, page, Access::Both);
        send_at(a, iova, len);
        arrives(b, b"readable now");
        one_is_refused(&lasthop, before);
        sound(&guests);
    }
    lasthop.stop();
}

/// UPDATEs that are not for the port's own memory are refused and change nothing.
#[test]
fn updates_of_what_is_not_the_guests_are_refused() {
    let _turn = beside();
    let lasthop = start("");
    let mut guests = pair(
        &lasthop,
        &GuestConfig::default(),
        IommuConfig::new(Mode::Strict),
    );
    let [a, b] = &mut guests;
    let (page, len) = page_with(a, b"granted");
    let iova = a.iommu().map_pages(&[page], Access::Both);
    let right = IotlbMessage {
        iova,
        size: PAGE,
        user: a.ram().user_address(page),
        perm: 3,
        kind: IotlbKind::Update,
    };
    let last = a.ram().regions().last().expect("a region").spec();
    let outside = last.uva + last.size;
    let refused = [
        IotlbMessage {
            user: outside,
            ..right
        },
        IotlbMessage {
            user: outside - PAGE,
            size: 2 * PAGE,
            ..right
        },
        IotlbMessage {
            user: right.user + 1,
            ..right
        },
        IotlbMessage { size: 100, ..right },
        IotlbMessage { size: 0, ..right },
        IotlbMessage {
            iova: u64::MAX - PAGE + 1,
            size: 2 * PAGE,
            ..right
        },
        IotlbMessage { perm: 0, ..right },
        IotlbMessage { perm: 4, ..right },
    ];
    for message in refused {
        let said = a.front().expect("a session").iotlb(&message);
        assert!(
            matches!(said, Err(FrontError::Refused { .. })),
            "{message:?}: {said:?}"
        );
    }
    send_at(a, iova, len);
    arrives(b, b"granted");
    sound(&guests);
    lasthop.stop();
}
