//! Vulnerabilities of other implementations, one test per record.

use super::super::message::F_PROTOCOL_FEATURES;
use super::*;

#[test]
fn cve_2018_1059_a_ring_that_is_not_mapped_in_one_piece() {
    let mut rig = Rig::ready();
    // Adjacent for the front end, far apart in the guest.
    let regions = [[0, 0x1000, UVA, 0], [0x10_0000, MEM, UVA + 0x1000, 0]];
    rig.tell(
        code::SET_MEM_TABLE,
        mem_table(&regions),
        vec![memfd(MEM), memfd(MEM)],
    );
    rig.set_up(0);
    assert_eq!(
        rig.state_of(0),
        "disabled",
        "4096 bytes of descriptors just fit"
    );
    rig.tell(code::SET_VRING_NUM, state(0, 512), vec![]);
    assert!(
        rig.state_of(0).contains("descriptor area"),
        "{}",
        rig.state_of(0)
    );
    assert!(rig.backend.running.is_empty());
}

#[test]
fn cve_2019_14818_repeated_set_vring_messages_close_the_old_descriptor() {
    let mut rig = Rig::running();
    for which in DESCRIPTORS {
        let mut before: Option<OwnedFd> = None;
        for _ in 0..3 {
            let (fd, set) = watched_event();
            rig.tell(which, u64s(&[0]), vec![fd]);
            // The back end has dropped its copies of kick and call when it was set up anew.
            assert!(before.is_none_or(|set| is_event_closed(&set)));
            before = Some(set);
        }
        rig.session.close(&mut rig.backend);
        assert!(is_event_closed(&before.expect("the last one")));
    }
}

#[test]
fn cve_2019_14818_descriptors_of_refused_messages_are_closed() {
    let mut rig = Rig::ready();
    let (fd, watch) = watched();
    assert_eq!(rig.ack(code::SET_VRING_CALL, u64s(&[200]), vec![fd]), 1);
    assert!(is_closed(&watch));
    let (fd, watch) = watched();
    let payload = inflight(1 << 40, 0, 900, 256);
    assert_eq!(rig.ack(code::SET_INFLIGHT_FD, payload, vec![fd]), 1);
    assert!(is_closed(&watch));
}

/// Refused before and after files were looked at and mapped: nothing of them stays.
#[test]
fn cve_2019_14818_refused_messages_leave_neither_descriptors_nor_mappings() {
    alone(
        "threats::cve_2019_14818_refused_messages_leave_neither_descriptors_nor_mappings",
        || {
            let mut rig = Rig::ready();
            rig.logging(true);
            let whole = [GPA, MEM, UVA, 0];
            let round = |rig: &mut Rig| {
                let mut refuse = |code, payload, fds| {
                    // Some of them cannot be acknowledged: the connection would end.
                    let answer = rig.message(code, true, payload, fds);
                    assert!(answer.is_err() || as_u64(&answer.unwrap().unwrap()) == 1);
                };
                let beside = [GPA + MEM, MEM, UVA + MEM, 0];
                for second in [whole, [1, 2, 3, 4], [GPA + MEM, 2 * MEM, 0, 0]] {
                    let files = vec![memfd(MEM), memfd(MEM)];
                    refuse(code::SET_MEM_TABLE, mem_table(&[whole, second]), files);
                }
                let (fd, watch) = watched();
                let files = vec![memfd(MEM), fd];
                refuse(code::SET_MEM_TABLE, mem_table(&[whole, beside]), files);
                assert!(is_closed(&watch));
                let overlap = [GPA + 4096, MEM, UVA, 0];
                refuse(code::ADD_MEM_REG, single(overlap), vec![memfd(MEM)]);
                refuse(code::ADD_MEM_REG, single(beside), vec![memfd(MEM / 2)]);
                for size in [8, 1 << 40] {
                    refuse(code::SET_LOG_BASE, u64s(&[size, 0]), vec![memfd(size)]);
                }
                refuse(code::SET_LOG_FD, vec![], vec![event(), event()]);
                let (fd, watch) = watched();
                rig.tell(code::SET_LOG_FD, vec![], vec![fd]);
                assert!(is_closed(&watch), "never used");
                let area = inflight(1 << 20, 0, 4, 256);
                let answer = rig.ack(code::SET_INFLIGHT_FD, area, vec![memfd(4096)]);
                assert_eq!(answer, 1);
            };
            round(&mut rig);
            let before = held();
            (0..100).for_each(|_| round(&mut rig));
            assert_eq!(held(), before);
            assert_eq!(rig.session.info().regions, 1);
        },
    );
}

#[test]
fn descriptors_that_are_no_eventfds_are_refused() {
    let mut rig = Rig::ready();
    for which in DESCRIPTORS {
        let (pipe, watch) = watched();
        assert_eq!(rig.ack(which, u64s(&[0]), vec![pipe]), 1);
        assert!(is_closed(&watch));
        assert_eq!(rig.ack(which, u64s(&[0]), vec![memfd(8)]), 1, "a file");
        assert_eq!(rig.ack(which, u64s(&[0]), vec![event()]), 0);
    }
}

#[test]
fn cve_2020_10722_dirty_log_size_that_overflows() {
    let mut rig = Rig::ready();
    for (size, offset) in [
        (u64::MAX, 1),
        (1, u64::MAX),
        (u64::MAX - 4095, 4096),
        (0, 0),
        (4097, 0),
        (4096, 1),
    ] {
        let payload = u64s(&[size, offset]);
        let fault = rig.fault(code::SET_LOG_BASE, payload, vec![memfd(4096)]);
        assert!(fault.contains("dirty log"), "{fault}");
    }
    assert!(!rig.session.info().logging);
}

#[test]
fn cve_2020_10723_ring_index_is_not_truncated() {
    let mut rig = Rig::ready();
    for index in [4, 256, 0x1_0000, u32::MAX] {
        for which in [
            code::SET_VRING_NUM,
            code::SET_VRING_BASE,
            code::SET_VRING_ENABLE,
            code::GET_VRING_BASE,
        ] {
            let fault = rig.fault(which, state(index, 1), vec![]);
            assert!(fault.contains("queues 0 to 3"), "{fault}");
        }
        let mut payload = addr(0, 0);
        payload[..4].copy_from_slice(&index.to_ne_bytes());
        assert!(
            rig.fault(code::SET_VRING_ADDR, payload, vec![])
                .contains("queues 0 to 3")
        );
    }
    for value in [4, 255, 0x1_0000, 1 << 32] {
        for which in DESCRIPTORS {
            rig.fault(which, u64s(&[value]), vec![event()]);
        }
    }
}

#[test]
fn cve_2020_10725_translated_ring_addresses_are_checked() {
    let good = [UVA, UVA + 0x4000, UVA + 0x2000];
    for area in 0..3 {
        for bad in [
            0,
            UVA - 16,
            UVA + MEM,
            UVA + MEM - 16,
            u64::MAX - 15,
            GPA,
            UVA + 1,
        ] {
            let mut areas = good;
            areas[area] = bad;
            let mut rig = Rig::ready();
            rig.tell(code::SET_VRING_NUM, state(0, 256), vec![]);
            rig.tell(code::SET_VRING_ADDR, addr_at(0, 0, areas), vec![]);
            rig.kick(0);
            assert!(rig.backend.running.is_empty(), "area {area} at {bad:#x}");
            assert!(
                rig.state_of(0).starts_with("stopped: its "),
                "{}",
                rig.state_of(0)
            );
        }
    }
}

#[test]
fn cve_2020_10726_get_inflight_fd_keeps_nothing() {
    let mut rig = Rig::ready();
    let ask = inflight(0, 0, 4, 256);
    let first = rig
        .send(code::GET_INFLIGHT_FD, ask.clone(), vec![])
        .expect("served");
    let second = rig
        .send(code::GET_INFLIGHT_FD, ask, vec![])
        .expect("served");
    let fds: Vec<_> = [first, second]
        .map(|r| r.expect("answer").fd.expect("fd"))
        .into();
    let inode = |fd| rustix::fs::fstat(fd).expect("stat").st_ino;
    assert_ne!(inode(&fds[0]), inode(&fds[1]), "each its own, none kept");
    assert!(!rig.session.info().inflight);
    // What we gave away cannot be pulled from under us when it comes back.
    assert!(rustix::fs::ftruncate(&fds[0], 1).is_err());
}

#[test]
fn cve_2020_10726_get_inflight_fd_leaks_neither_descriptors_nor_mappings() {
    alone(
        "threats::cve_2020_10726_get_inflight_fd_leaks_neither_descriptors_nor_mappings",
        || {
            let mut rig = Rig::running();
            let ask = inflight(0, 0, 4, 256);
            let mut round = |n: u64| {
                let reply = rig.send(code::GET_INFLIGHT_FD, ask.clone(), vec![]);
                let reply = reply.expect("served").expect("an answer");
                if n.is_multiple_of(2) {
                    let area = reply.payload.clone();
                    rig.tell(code::SET_INFLIGHT_FD, area, reply.fd.into_iter().collect());
                }
            };
            (0..4).for_each(&mut round);
            let before = held();
            (0..1000).for_each(&mut round);
            assert_eq!(held(), before);
        },
    );
}

#[test]
fn cve_2021_3839_inflight_queue_index_out_of_bounds() {
    let mut rig = Rig::ready();
    for (queues, size) in [
        (0, 256),
        (5, 256),
        (u16::MAX, 256),
        (4, 0),
        (4, 4097),
        (4, u16::MAX),
    ] {
        let ask = inflight(1 << 20, 0, queues, size);
        rig.fault(code::GET_INFLIGHT_FD, ask.clone(), vec![]);
        rig.fault(code::SET_INFLIGHT_FD, ask, vec![memfd(1 << 20)]);
    }
    rig.tell(
        code::SET_INFLIGHT_FD,
        inflight(1 << 20, 0, 1, 256),
        vec![memfd(1 << 20)],
    );
    rig.set_up(0);
    rig.set_up(1);
    assert!(rig.backend.running.contains_key(&0));
    assert!(rig.state_of(1).contains("no room for this queue"));
}

#[test]
fn cve_2022_0669_fds_on_messages_that_carry_none() {
    let mut rig = Rig::ready();
    for _ in 0..100 {
        let (fds, watches): (Vec<_>, Vec<_>) = (0..8).map(|_| watched()).unzip();
        let fault = rig.fault(code::GET_FEATURES, vec![], fds);
        assert_eq!(fault, "GET_FEATURES with 8 file descriptors, expected none");
        assert!(watches.iter().all(is_closed));
    }
}

#[test]
fn cve_2026_86561_memory_region_size_is_checked_before_it_is_mapped() {
    let mut rig = Rig::ready();
    for (gpa, size, uva, offset) in [
        (0, 0, UVA, 0),
        (0, u64::MAX, UVA, 0),
        (u64::MAX - 4095, 8192, UVA, 0),
        (0, 8192, u64::MAX - 4095, 0),
        (0, 4097, UVA, 0),
        (0, 4096, UVA, 4096),
        (0, 4096, UVA, u64::MAX - 4095),
        (0, 1 << 47, UVA, 0),
    ] {
        let region = [gpa, size, uva, offset];
        assert_eq!(
            rig.ack(code::SET_MEM_TABLE, mem_table(&[region]), vec![memfd(4096)]),
            1
        );
        assert_eq!(
            rig.ack(code::ADD_MEM_REG, single(region), vec![memfd(4096)]),
            1
        );
    }
    assert_eq!(rig.session.info().regions, 1, "the one of before");
}

/// Files that are as long as a region says, with nothing in them: the size itself is what is wrong.
#[test]
fn cve_2026_86561_a_large_region_of_a_sparse_file() {
    let mut rig = Rig::ready();
    for (size, file) in [
        (5 << 40, 5 << 40),
        ((4 << 40) + 4096, 1 << 46),
        (1 << 46, 1 << 46),
        (1 << 47, (1 << 62) + 4096),
        (1 << 62, 1 << 62),
        (4095, 4096),
        (4097, 1 << 20),
    ] {
        let region = [0, size, 0, 0];
        let files = |n| (0..n).map(|_| memfd(file)).collect();
        assert_eq!(
            rig.ack(code::SET_MEM_TABLE, mem_table(&[region]), files(1)),
            1
        );
        let beside = [1 << 62, size, 1 << 62, 0];
        assert_eq!(rig.ack(code::ADD_MEM_REG, single(beside), files(1)), 1);
    }
    assert_eq!(rig.session.info().memory_bytes, MEM, "as before");
}

#[test]
fn cve_2026_86563_dirty_log_offset_is_applied_once() {
    let mut rig = Rig::ready();
    rig.logging(true);
    let file = memfd(0x3000);
    let copy = file.try_clone().expect("a copy");
    rig.send(code::SET_LOG_BASE, u64s(&[0x1000, 0x1000]), vec![copy])
        .expect("served");
    let memory = rig.backend.memory.as_ref().expect("memory");
    memory.mark_dirty(GPA, 1);
    let mut bytes = [0; 0x3000];
    rustix::io::pread(&file, &mut bytes, 0).expect("read");
    let marked: Vec<_> = (0..bytes.len()).filter(|i| bytes[*i] != 0).collect();
    assert_eq!(marked, [0x1000 + (GPA / 4096 / 8) as usize]);
}

#[test]
fn cve_2026_86565_queue_size_and_inflight_table_out_of_step() {
    let mut rig = Rig::ready();
    rig.tell(
        code::SET_INFLIGHT_FD,
        inflight(1 << 20, 0, 4, 256),
        vec![memfd(1 << 20)],
    );
    rig.set_up(0);
    assert_eq!(rig.state_of(0), "disabled");
    rig.tell(code::SET_VRING_NUM, state(0, 512), vec![]);
    assert_eq!(
        rig.state_of(0),
        "stopped: the queue is larger than its inflight table"
    );

    // The format changes after the area was set: packed tables are twice as long.
    let mut rig = Rig::ready();
    let size = 4 * crate::queue::Inflight::region_size(256, false);
    rig.tell(
        code::SET_INFLIGHT_FD,
        inflight(size, 0, 4, 256),
        vec![memfd(size)],
    );
    rig.features(
        Features::VERSION_1 | Features::RING_PACKED,
        F_PROTOCOL_FEATURES,
    );
    rig.set_up(3);
    assert!(
        rig.state_of(3).contains("inflight area"),
        "{}",
        rig.state_of(3)
    );

    for (size, offset, file) in [(size - 1, 0, size), (size, 0, size - 1), (size, 64, size)] {
        let payload = inflight(size, offset, 4, 256);
        let mut rig = Rig::ready();
        rig.fault(code::SET_INFLIGHT_FD, payload, vec![memfd(file)]);
    }
    let payload = inflight(size, u64::MAX - 10, 4, 256);
    Rig::ready().fault(code::SET_INFLIGHT_FD, payload, vec![memfd(size)]);
}

#[test]
fn cve_2026_86567_no_ring_outlives_its_memory() {
    let mut rig = Rig::running();
    rig.set_up(1);
    rig.backend.take();
    rig.tell(code::REM_MEM_REG, single([GPA, MEM, UVA, 0]), vec![]);
    assert_eq!(
        rig.backend.take(),
        ["stop 0", "stop 1", "no memory"],
        "stopped first"
    );
    let mut rig = Rig::running();
    assert_eq!(
        rig.ack(code::IOTLB_MSG, vec![0; 32], vec![]),
        1,
        "no other way to unmap"
    );
}
