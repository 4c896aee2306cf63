//! Tricks with memory tables, logs and the files behind them.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate};

use super::super::arena::{Arena, Random};
use super::super::files::{any, hugetlb, memfd};
use super::super::raw;
use testkit::driver::{DESC_INDIRECT, DESC_NEXT, SplitDesc};
use testkit::frontend::{Event, FrontEnd, FrontError};
use testkit::guest_ram::{RegionSpec, USER_BASE};
use testkit::packets::{BROADCAST, Flow, mac, udp};
use testkit::{FakeGuest, GuestConfig};

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

fn at_base(gpa: u64, size: u64) -> RegionSpec {
    RegionSpec {
        gpa,
        size,
        uva: USER_BASE + gpa,
        file_offset: 0,
    }
}

/// Memory of one region with both rings of a pair in it, and kicks.
fn run_in(front: &mut FrontEnd, file: &OwnedFd, size: u64) -> Result<(), FrontError> {
    raw::table(front, &[at_base(0, size)], &[file.as_fd()])?;
    let kick = Event::new()?;
    raw::start(front, 0, USER_BASE, kick.as_fd(), None)?;
    raw::start(front, 1, USER_BASE + 1024, kick.as_fd(), None)?;
    kick.signal();
    front.get_features().map(|_| ())
}

fn hugetlb_kill(arena: &Arena<'_>, page: MemfdFlags, bytes: u64) {
    let sizes = [4096, bytes, bytes + 4096, 2 * bytes - 4096];
    for step in 0.. {
        if !arena.on() {
            return;
        }
        let Some(mut front) = arena.front() else {
            continue;
        };
        let Ok(file) = hugetlb(page, 2 * bytes) else {
            return;
        };
        let size = sizes[step % sizes.len()];
        let _ = run_in(&mut front, &file, size);
        // Where the pool has pages, they go now.
        let _ = ftruncate(&file, 0);
        let _ = front.get_features();
        arena.step();
    }
}

pub(super) fn hugetlb_2m(arena: &Arena<'_>) {
    hugetlb_kill(arena, MemfdFlags::HUGE_2MB, 2 * MIB);
}

pub(super) fn hugetlb_1g(arena: &Arena<'_>) {
    hugetlb_kill(arena, MemfdFlags::HUGE_1GB, 1024 * MIB);
}

pub(super) fn hugetlb_loop(arena: &Arena<'_>) {
    let Ok(file) = hugetlb(MemfdFlags::HUGE_2MB, 4 * MIB) else {
        return;
    };
    add_and_remove(arena, &file, &[4096, 2 * MIB, 2 * MIB + 4096]);
}

pub(super) fn regions_loop(arena: &Arena<'_>) {
    let Ok(file) = memfd(4 * MIB) else { return };
    add_and_remove(arena, &file, &[4096, 2 * MIB, 4 * MIB, 8192, 4097, 1]);
}

fn add_and_remove(arena: &Arena<'_>, file: &OwnedFd, sizes: &[u64]) {
    for mut front in arena.fronts() {
        for (step, size) in (0..).zip(sizes.iter().cycle()) {
            let spec = at_base(step % 7 * 16 * MIB, *size);
            let added = raw::add(&mut front, &spec, file.as_fd());
            let removed = front.rem_mem_reg(&spec);
            arena.step();
            if !arena.on() || !raw::can_continue(&added) || !raw::can_continue(&removed) {
                break;
            }
        }
    }
}

pub(super) fn log_sparse(arena: &Arena<'_>) {
    let sizes = [80 * TIB, 37 * TIB, 8 * TIB, 2 * TIB, TIB, TIB / 1024];
    let mut held = Vec::new();
    while arena.on() {
        for size in sizes {
            let Some(mut front) = arena.logging_front() else {
                break;
            };
            let Ok(file) = memfd(size) else { continue };
            let _ = raw::log(&mut front, size, 0, file.as_fd());
            let Ok(small) = memfd(TIB) else { continue };
            let spec = at_base(0, TIB);
            let _ = raw::table(&mut front, &[spec], &[small.as_fd()]);
            arena.step();
            held.push(front);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        held.clear();
    }
}

pub(super) fn table_refused(arena: &Arena<'_>) {
    let Ok(file) = memfd(15 * TIB) else { return };
    for mut front in arena.fronts() {
        for size in [15 * TIB, 5 * TIB, TIB, TIB / 2].into_iter().cycle() {
            let specs: Vec<_> = (0..8).map(|n| at_base(n * 16 * TIB, size)).collect();
            let sent = raw::table(&mut front, &specs, &[file.as_fd(); 8]);
            arena.step();
            if !arena.on() || !raw::can_continue(&sent) {
                break;
            }
        }
    }
}

pub(super) fn regions_many(arena: &Arena<'_>) {
    let Ok(file) = memfd(4096) else { return };
    while arena.on() {
        let mut held = Vec::new();
        for _ in arena.ports() {
            let Some(mut front) = arena.front() else {
                break;
            };
            for n in 0..520 {
                let added = raw::add(&mut front, &at_base(n * 8192, 4096), file.as_fd());
                if !arena.on() || !raw::can_continue(&added) {
                    break;
                }
                arena.step();
            }
            held.push(front);
        }
    }
}

pub(super) fn one_byte(arena: &Arena<'_>) {
    for mut guest in arena.guests(GuestConfig::default()) {
        let _ = one_byte_chains(arena, &mut guest);
    }
}

/// Many tiny regions behind the guest's own one, and indirect chains across all of them.
fn one_byte_chains(arena: &Arena<'_>, guest: &mut FakeGuest) -> Result<(), FrontError> {
    const FROM: u64 = 1 << 36;
    let file = memfd(MIB)?;
    let front = guest.front().map_err(|_| FrontError::Closed)?;
    let mut size = 1;
    for n in 0..508 {
        let spec = RegionSpec {
            file_offset: n * size,
            ..at_base(FROM + n * size, size)
        };
        let added = raw::add(front, &spec, file.as_fd());
        if n == 0 && added.is_err() {
            // Refused: a page each, then, where the rule allows that.
            size = 4096;
        }
        if !raw::can_continue(&added) || !arena.on() {
            return Ok(());
        }
    }
    let ram = guest.ram().clone();
    let entries = 1024_u16;
    let table = ram.alloc(16 * u64::from(entries), 16);
    for n in 0..entries {
        let last = n + 1 == entries;
        let next = SplitDesc {
            gpa: FROM,
            len: 508 * size as u32,
            flags: if last { 0 } else { DESC_NEXT },
            next: n + 1,
        };
        ram.write(table + 16 * u64::from(n), &next.to_bytes());
    }
    let pair = &guest.pairs[0];
    for index in 0..64 {
        let flags = DESC_INDIRECT;
        let desc = SplitDesc {
            gpa: table,
            len: 16 * u32::from(entries),
            flags,
            next: 0,
        };
        pair.nic.tx.poke_desc(index, desc);
        pair.nic.tx.poke_avail_ring(index, index);
    }
    let mut index = pair.nic.tx.peek_avail_idx();
    for _ in 0..200 {
        index = index.wrapping_add(8);
        pair.nic.tx.poke_avail_idx(index);
        pair.tx_kick.signal();
        arena.step();
        std::thread::sleep(std::time::Duration::from_millis(1));
        if !arena.on() {
            break;
        }
    }
    Ok(())
}

pub(super) fn any_file(arena: &Arena<'_>) {
    let mut random = arena.random();
    for mut front in arena.fronts() {
        let count = 1 + random.below(8);
        let files: Vec<_> = (0..count).filter_map(|_| any(&mut random)).collect();
        let specs: Vec<_> = files.iter().map(|_| any_region(&mut random)).collect();
        let borrowed: Vec<_> = files.iter().map(OwnedFd::as_fd).collect();
        let _ = raw::table(&mut front, &specs, &borrowed);
        let file = files.first().map(OwnedFd::as_fd);
        if let Some(file) = file {
            let _ = raw::add(&mut front, &any_region(&mut random), file);
            let _ = raw::log(&mut front, random.number(), random.number(), file);
        }
        arena.step();
    }
}

fn any_region(random: &mut Random) -> RegionSpec {
    RegionSpec {
        gpa: random.number(),
        size: random.number(),
        uva: random.number(),
        file_offset: if random.below(2) == 0 {
            0
        } else {
            random.number()
        },
    }
}

fn broadcast(from: u8) -> Vec<u8> {
    let flow = Flow {
        src_mac: mac(from),
        dst_mac: BROADCAST,
        ..Flow::v4(from, 255)
    };
    udp(&flow, &[0x5a; 600])
}

/// Sends from addresses all over a sparse region.
pub(super) fn sparse(arena: &Arena<'_>) {
    let mut random = arena.random();
    let size = 64 << 30;
    let config = GuestConfig {
        regions: Some(vec![RegionSpec::at(0x10_0000, size)]),
        ..GuestConfig::default()
    };
    for guest in arena.guests(config) {
        let tx = &guest.pairs[0].nic.tx;
        // Bounded: each frame makes a page of the file.
        for frame in 0..2000_u16 {
            let gpa = 0x10_0000 + random.below(size - 4096);
            tx.poke_desc(
                frame % 64,
                SplitDesc {
                    gpa,
                    len: 100,
                    flags: 0,
                    next: 0,
                },
            );
            tx.poke_avail_ring(frame % 64, frame % 64);
            tx.poke_avail_idx(frame.wrapping_add(1));
            guest.pairs[0].tx_kick.signal();
            arena.step();
            if !arena.on() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
    }
}

/// Traffic of a guest while `harm` is done to its memory again and again.
fn under_traffic(arena: &Arena<'_>, log: bool, harm: fn(&FakeGuest, &mut Random)) {
    let mut random = arena.random();
    for mut guest in arena.guests(GuestConfig::default()) {
        let taken = if log { guest.start_log().ok() } else { None };
        let frame = broadcast(210);
        for round in 0..200 {
            let sent = (0..8).all(|_| {
                guest.pairs[0]
                    .stage(&frame, &Default::default())
                    .is_ok_and(|b| b)
            });
            guest.pairs[0].flush();
            let _ = guest.recv_all();
            if round % 20 == 19 {
                match &taken {
                    Some(log) => _ = ftruncate(log.file(), 0),
                    None => harm(&guest, &mut random),
                }
                guest.pairs[0].tx_kick.signal();
                arena.step();
            }
            if !arena.on() || (!sent && round > 40) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }
}

pub(super) fn punched(arena: &Arena<'_>) {
    under_traffic(arena, false, |guest, random| {
        let region = &guest.ram().regions()[0];
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let from = random.below(region.spec().size / 4096) * 4096;
        if let Some(file) = region.fd() {
            let _ = fallocate(file, mode, from, region.spec().size - from);
        }
    });
}

pub(super) fn truncated(arena: &Arena<'_>) {
    under_traffic(arena, false, |guest, random| {
        let region = &guest.ram().regions()[0];
        if let Some(file) = region.fd() {
            let _ = ftruncate(file, random.below(region.spec().size / 4096) * 4096);
        }
    });
}

pub(super) fn log_truncated(arena: &Arena<'_>) {
    under_traffic(arena, true, |_, _| {});
}
