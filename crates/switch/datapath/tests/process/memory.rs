//! Memory that a VMM shares in invalid ways: its own port ends, other ports are not affected.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ipc::switching::PortPhase;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use testkit::features::{PROTOCOL_FEATURES, VERSION_1, protocol};
use testkit::frontend::{Event, FrontEnd, VringAddr, request};
use testkit::guest_ram::{GuestRam, RamRegion, RegionSpec};
use testkit::net::RxBuffers;
use testkit::stop::Stop;
use testkit::wait::wait_until;
use testkit::{FakeGuest, GuestConfig, procfs};

use crate::host::{Host, LIMIT};
use crate::traffic::{drain, numbered, stray, talk};

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

/// Creates a file of huge pages, if the system knows this size; pages need not be available.
fn huge(name: &str, size: MemfdFlags, len: u64) -> Option<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | size;
    let file = memfd_create(name, flags).ok()?;
    ftruncate(&file, len).expect("its length");
    Some(file)
}

/// Returns the number of mappings of a file in switch and test, which are one process.
fn mapped(name: &str) -> usize {
    procfs::mapped(std::process::id(), name)
}

/// A front end of port 1 with features and nothing else.
fn front(host: &Host) -> FrontEnd {
    let mut front = FrontEnd::connect(&host.socket(1), LIMIT).expect("a session");
    let protocol = protocol::REPLY_ACK
        | protocol::LOG_SHMFD
        | protocol::CONFIGURE_MEM_SLOTS
        | protocol::INFLIGHT_SHMFD;
    front
        .negotiate(VERSION_1 | PROTOCOL_FEATURES, protocol)
        .expect("features");
    front.acknowledge = true;
    front
}

/// A region of this file as a front end names it.
fn region(file: &OwnedFd, spec: RegionSpec) -> RamRegion {
    let file = file.try_clone().expect("a descriptor");
    RamRegion::from_fd(file, spec).expect("a mapping")
}

/// Guests 2 and 3, which must not be affected.
fn honest(host: &Host) -> (FakeGuest, FakeGuest) {
    let mut b = host.guest(2, GuestConfig::default());
    let mut c = host.guest(3, GuestConfig::default().packed());
    talk(&mut b, &mut c, 20);
    (b, c)
}

/// Rings in the first page of a region whose file has no page, or was truncated: the switch's first
/// access to them.
#[test]
fn rings_in_huge_pages_that_do_not_exist_end_their_own_port() {
    let mut host = Host::with_ports([1, 2, 3]);
    let (mut b, mut c) = honest(&host);
    let sizes = [
        (MemfdFlags::HUGE_2MB, 2 * MIB),
        (MemfdFlags::HUGE_1GB, 1024 * MIB),
    ];
    for round in 0..4 {
        for (flag, page) in sizes {
            let name = format!("lasthop-test-{page}");
            let Some(file) = huge(&name, flag, 2 * page) else {
                continue;
            };
            // Less than a huge page, and more than one.
            let size = [4096, page + 4096][round % 2];
            let ram = GuestRam::of(vec![Arc::new(region(&file, RegionSpec::at(0, size)))]);
            let mut front = front(&host);
            front.set_mem_table(&ram).expect("taken");
            ftruncate(&file, 0).expect("no page, wherever the host has some");
            let kick = Event::new().expect("an eventfd");
            front.set_vring_num(0, 16).expect("taken");
            let addr = VringAddr {
                desc: ram.user_address(0),
                avail: ram.user_address(1024),
                used: ram.user_address(2048),
                log: None,
            };
            front.set_vring_addr(0, &addr).expect("taken");
            // The switch reads the rings now, and may end the connection before it can reply.
            let _ = front.set_vring_kick(0, Some(kick.as_fd()));
            let _ = front.set_vring_enable(0, true);
            assert!(front.closes_within(LIMIT));
            let state = host.wait_phase(1, PortPhase::Waiting);
            let reason = state.reason.expect("a reason");
            assert!(reason.contains("memory was taken away"), "{reason}");
            talk(&mut b, &mut c, 20);
            drop((front, ram));
            assert_eq!(mapped(&name), 0);
        }
    }
    let mut a = host.guest(1, GuestConfig::default());
    talk(&mut a, &mut b, 10);
}

/// Each region would leave a mapping behind if it was unmapped with its own length.
#[test]
fn regions_of_less_than_a_huge_page_come_and_go() {
    let host = Host::with_ports([1, 2, 3]);
    let (mut b, mut c) = honest(&host);
    let name = "lasthop-test-leak";
    let Some(file) = huge(name, MemfdFlags::HUGE_2MB, 4 * MIB) else {
        return;
    };
    let mut front = front(&host);
    let ours = region(&file, RegionSpec::at(0, 2 * MIB + 4096));
    for _ in 0..200 {
        front.add_mem_reg(&ours).expect("taken");
        assert_eq!(mapped(name), 2, "ours and the switch's");
        front.rem_mem_reg(&ours.spec()).expect("taken back");
        // The closer unmaps it.
        wait_until("ours alone", || mapped(name) == 1);
    }
    talk(&mut b, &mut c, 20);
}

/// Address space is limited for a process: files of any length are refused before they are mapped.
#[test]
fn a_vmm_cannot_have_all_address_space_mapped() {
    let host = Host::with_ports([1, 2, 3]);
    let (mut b, mut c) = honest(&host);
    for size in [5 * TIB, 80 * TIB] {
        let file = memfd_create("lasthop-test-space", MemfdFlags::CLOEXEC).expect("a file");
        ftruncate(&file, size).expect("its length");
        let region = [0, size, 0, 0].map(u64::to_le_bytes).concat();
        let mut front = front(&host);
        let refused = front.tell(
            request::ADD_MEM_REG,
            &[vec![0; 8], region].concat(),
            &[file.as_fd()],
        );
        assert!(refused.is_err(), "more than there is");
        let log = [size, 0].map(u64::to_le_bytes).concat();
        let refused = front.ask(request::SET_LOG_BASE, &log, &[file.as_fd()]);
        assert!(refused.is_err(), "a log of {size} bytes");
        assert_eq!(mapped("lasthop-test-space"), 0);
        talk(&mut b, &mut c, 5);
    }
}

/// QEMU CVE-2021-3748: buffers that a frame is merged over are unmapped while it is written. The
/// writer holds the memory until it is done.
#[test]
fn cve_2021_3748_receive_buffers_that_are_unmapped_while_a_frame_is_merged() {
    let host = Host::with_ports([1, 2, 3, 4]);
    let mut a = host.guest(1, GuestConfig::default());
    let (mut b, mut c) = honest(&host);
    let config = GuestConfig {
        rx_buffers: Some(RxBuffers::Of(200)),
        memory_slots: true,
        ..GuestConfig::default()
    };
    let mut victim = host.guest(4, config);
    talk(&mut a, &mut victim, 10);
    let ram = victim.ram().clone();
    let stop = Stop::new();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            while !stop.is_set() {
                // Some arrive, some find no queue.
                a.send(&stray(1, 4, 9000)).expect("room");
            }
        });
        let end = stop.at_end();
        let front = victim.front().expect("a session");
        for _ in 0..100 {
            for region in ram.regions() {
                front.rem_mem_reg(&region.spec()).expect("taken back");
            }
            for region in ram.regions() {
                front.add_mem_reg(region).expect("taken");
            }
        }
        drop(end);
        sender.join().expect("no panic");
    });
    talk(&mut b, &mut c, 20);
    victim.crash();
    let mut next = host.guest(4, GuestConfig::default());
    drain(&mut next);
    let frame = numbered(1, 4, 1, 1000);
    a.send(&frame).expect("room");
    assert_eq!(
        next.recv(LIMIT).expect("correct").expect("a frame").frame,
        frame
    );
}
