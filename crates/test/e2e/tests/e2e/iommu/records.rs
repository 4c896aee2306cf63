//! Records of other back ends: what they got wrong.

use e2e::beside;
use e2e::lasthop::Lasthop;
use e2e::numbered::introduce;
use testkit::iommu::{Access, IommuConfig, Iovas, Lie, Mode, PAGE};
use testkit::net::NetHeader;
use testkit::packets::{Flow, udp};
use testkit::stop::Stop;
use testkit::wait::{LIMIT, wait_until};
use testkit::{FakeGuest, GuestConfig};

use super::{
    LAP, all_arrive, arrive_in_the_end, arrives, layouts, not_granted, one_is_refused, others,
    page_with, pair, send_at, settle_down, sound, start,
};

/// The length of a buffer was not checked against its mapping (DPDK, CVE-2020-10725).
#[test]
fn cve_2020_10725_a_buffer_beyond_its_mapping() {
    let _turn = beside();
    let lasthop = start("");
    for (config, mode) in layouts().into_iter().zip([Mode::Strict, Mode::OnDemand]) {
        let mut guests = pair(&lasthop, &config, IommuConfig::new(mode));
        let [a, b] = &mut guests;
        let iova = a.iommu().reserve(2);
        let (page, len) = page_with(a, b"within");
        a.iommu().set(iova, page, Access::Both);
        let before = not_granted(&lasthop, "vm1");
        let beyond = [
            (iova, PAGE + 1),
            (iova + PAGE - 1, 100),
            (iova, 60_000),
            (u64::MAX - PAGE + 1, 100),
        ];
        for (at, len) in beyond {
            let dropped = || lasthop.stats().drops().values().sum::<u64>();
            let before = dropped();
            send_at(a, at, len);
            wait_until("it is counted", || dropped() > before);
            assert_eq!(dropped(), before + 1, "{at:#x}+{len}");
        }
        assert!(not_granted(&lasthop, "vm1") >= before + 2);
        send_at(a, iova, len);
        arrives(b, b"within");
        all_arrive(&lasthop, a, b, Flow::v4(1, 2), 100);
        sound(&guests);
    }
    lasthop.stop();
}

/// INVALIDATE left pointers into the rings (DPDK, CVE-2026-86567). Under traffic: the queue is
/// suspended until its ring is mapped again, which lies elsewhere then.
#[test]
fn cve_2026_86567_a_ring_is_revoked_under_traffic() {
    let turn = beside();
    let lasthop = start("");
    let [mut c, mut d] = others(&lasthop);
    for (number, config) in layouts().into_iter().enumerate() {
        for mode in [Mode::Strict, Mode::OnDemand] {
            turn.step(&format!("layout {number}, {mode:?}"));
            let mut guests = pair(&lasthop, &config, IommuConfig::new(mode));
            let [a, b] = &mut guests;
            for area in 0..6 {
                // A denial lasts a second: once is enough.
                let lie = (area != 3 * number).then_some(Lie::Late);
                revoked_ring(&lasthop, a, b, area, lie);
                all_arrive(&lasthop, &mut c, &mut d, Flow::v4(3, 4), 10);
            }
            sound(&guests);
        }
    }
    lasthop.stop();
}

/// Takes one of the six ring areas of `a` away while frames go there and come from there. Questions
/// about it are answered like this until it is back.
fn revoked_ring(
    lasthop: &Lasthop,
    a: &mut FakeGuest,
    b: &mut FakeGuest,
    area: usize,
    lie: Option<Lie>,
) {
    let nic = &a.pairs[0].nic;
    let queue = [&nic.rx, &nic.tx][area / 3];
    let addr = [
        queue.addrs().desc,
        queue.addrs().driver,
        queue.addrs().device,
    ][area % 3];
    let stop = Stop::new();
    let (flow, back) = (Flow::v4(1, 2), Flow::v4(2, 1));
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            while !stop.is_set() {
                b.send(&udp(&back, b"more"))
                    .expect("a receiver's ring stops no sender");
            }
        });
        let end = stop.at_end();
        // Frames of both queues are on their way.
        for n in 0..40 {
            a.send(&udp(&flow, &[n])).expect("room");
        }
        let page = a.iommu().iova(addr) / PAGE;
        a.iommu().lie(lie);
        a.iommu().revoke(addr, 1);
        let _ = a.iommu().take_asked();
        wait_until("the ring is asked for", || {
            a.pairs[0].tx_kick.signal();
            let asked = a.iommu().take_asked();
            asked.iter().any(|question| question.iova / PAGE == page)
        });
        a.iommu()
            .verify()
            .expect("a ring that was taken away is left alone");
        a.iommu().restore(addr, 1);
        a.iommu().lie(None);
        a.iommu().answer_held();
        a.recv_count(300, LIMIT).expect("frames arrive again");
        drop(end);
        sender.join().expect("no fault");
    });
    a.pairs[0].drain().expect("all frames are sent");
    settle_down(a, b, flow);
    all_arrive(lasthop, a, b, flow, 50);
    all_arrive(lasthop, b, a, back, 50);
}

/// Entries of a driver before stayed, and made everything slow (DPDK, e7cb7fdf54).
#[test]
fn dpdk_e7cb7fdf54_a_driver_change_leaves_no_entries() {
    let _turn = beside();
    let lasthop = start("");
    for config in layouts() {
        let iommu = IommuConfig {
            iovas: Iovas::Fresh,
            ..IommuConfig::new(Mode::Strict)
        };
        let mut guests = pair(&lasthop, &config, iommu);
        let [a, b] = &mut guests;
        for _ in 0..8 {
            let (page, len) = page_with(a, b"of the old driver");
            let old = a.iommu().map_pages(&[page], Access::Both);
            send_at(a, old, len);
            arrives(b, b"of the old driver");
            a.change_driver().expect("a driver");
            introduce(a, b, Flow::v4(1, 2));
            let before = not_granted(&lasthop, "vm1");
            send_at(a, old, len);
            one_is_refused(&lasthop, before);
            all_arrive(&lasthop, a, b, Flow::v4(1, 2), 50);
            all_arrive(&lasthop, b, a, Flow::v4(2, 1), 50);
        }
        sound(&guests);
    }
    lasthop.stop();
}

/// With a full table no entry could be added (DPDK, 37771844a0).
#[test]
fn dpdk_37771844a0_more_pages_than_the_table_holds() {
    /// More than the 65536 entries of a table.
    const PAGES: u64 = 80_000;
    let turn = beside();
    let lasthop = start("");
    let mut guests = pair(
        &lasthop,
        &GuestConfig::default(),
        IommuConfig::new(Mode::Strict),
    );
    let [a, b] = &mut guests;
    // Neighbours that are none in memory, so that each is an entry of its own.
    let gpas: Vec<u64> = (0..PAGES).map(|n| n * 7 % 2048 * PAGE).collect();
    turn.step("map them");
    let iova = a.iommu().map_pages(&gpas, Access::Read);
    // Entries of buffers were replaced: what needs them is lost until they are asked for again.
    arrive_in_the_end(b, a, Flow::v4(2, 1), LAP);
    all_arrive(&lasthop, a, b, Flow::v4(1, 2), 500);
    all_arrive(&lasthop, b, a, Flow::v4(2, 1), 500);
    turn.step("use them");
    let (page, len) = page_with(a, b"one of many");
    for n in [0, 1, PAGES / 2, PAGES - 1] {
        a.iommu().set(iova + n * PAGE, page, Access::Read);
        send_at(a, iova + n * PAGE, len);
        arrives(b, b"one of many");
    }
    turn.step("take them away");
    a.iommu().unmap_pages(iova, PAGES);
    let before = not_granted(&lasthop, "vm1");
    send_at(a, iova, len);
    one_is_refused(&lasthop, before);
    all_arrive(&lasthop, a, b, Flow::v4(1, 2), 500);
    sound(&guests);
    lasthop.stop();
}

/// A channel that is not read becomes full, and the front end waits for an answer meanwhile (DPDK,
/// 1aadb2f6b1: a deadlock).
#[test]
fn dpdk_1aadb2f6b1_a_full_channel_while_the_front_end_waits() {
    let _turn = beside();
    let lasthop = start("");
    let mut guests = pair(&lasthop, &GuestConfig::default(), IommuConfig::qemu());
    let [a, b] = &mut guests;
    a.iommu().lie(Some(Lie::Deaf));
    for _ in 0..100 {
        a.pairs[0]
            .nic
            .stage(&udp(&Flow::v4(1, 2), b"ask"), &NetHeader::default())
            .expect("room");
        a.pairs[0].flush();
        a.iommu().flush_domain();
    }
    a.iommu().lie(None);
    a.pairs[0]
        .drain()
        .expect("all questions are answered in the end");
    settle_down(a, b, Flow::v4(1, 2));
    arrive_in_the_end(a, b, Flow::v4(1, 2), LAP);
    all_arrive(&lasthop, a, b, Flow::v4(1, 2), 300);
    sound(&guests);
    lasthop.stop();
}
