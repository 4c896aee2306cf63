//! Guests whose memory goes, or is revoked, while frames in it go to interfaces of the host: the
//! system reads that memory when the switch writes them. It costs the guest its connection, and
//! neither the interface nor another sender anything.
//!
//! ```text
//! vm1, whose memory goes ----+---- t0, a TAP device ---------------- station 8
//! vm2, which is honest  -----+---- uplink, a packet socket on up0 -- station 9
//! ```
//! Everything is in network namespaces of the test's own; where they cannot be had, a test says so
//! and ends.

use std::os::fd::OwnedFd;

use e2e::lasthop::Lasthop;
use e2e::uplinks::{tap, uplink, wire};
use e2e::{Turn, beside};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use tempfile::TempDir;
use testkit::driver::{Piece, Shape};
use testkit::guest_ram::{RamRegion, RegionSpec};
use testkit::iommu::{Access, IommuConfig, Mode, is_canary};
use testkit::lasthop::port;
use testkit::net::{HEADER_LEN, NetHeader};
use testkit::netns::{Netns, Wire};
use testkit::packets::{Numbered, SequenceChecker, ethernet, mac, numbered_payload, numbered_read};
use testkit::skip::skipped;
use testkit::wait::wait_until;
use testkit::{FakeGuest, GuestConfig};

/// Test guests at `vm1` and `vm2`.
const EVIL: u8 = 1;
const HONEST: u8 = 2;
/// Frames of a flow that the switch knows no protocol of are not coalesced (IEEE 802, local).
const ETHER_TYPE: u16 = 0x88b5;
const ETHERNET: usize = 14;
/// Bytes of a payload.
const LEN: usize = 1200;
/// Bytes of a frame, header included, that are in memory which stays: more than the switch copies
/// before it sends.
const KEPT: usize = 400;
/// Frames of one sender to one station at once.
const BURST: u64 = 24;
/// Where the memory that goes is in the guest.
const PLACE: u64 = 0x40 << 32;
/// Bytes of it: a huge page.
const SIZE: u64 = 2 << 20;

/// A station beyond a port with an interface.
struct Station {
    number: u8,
    port: &'static str,
    wire: Wire,
    /// Of the honest sender.
    checker: SequenceChecker,
    /// Payloads of the other one.
    of_evil: Vec<Vec<u8>>,
}

impl Station {
    fn new(number: u8, port: &'static str, wire: Wire) -> Self {
        Self {
            number,
            port,
            wire,
            checker: SequenceChecker::default(),
            of_evil: Vec::new(),
        }
    }

    /// Takes the frames that have come.
    fn collect(&mut self) {
        while let Some(frame) = self.wire.take() {
            let (addresses, payload) = frame.split_at(ETHERNET);
            if addresses[..6] != mac(self.number) {
                continue;
            }
            if addresses[6..12] == mac(EVIL) {
                self.of_evil.push(payload.to_vec());
            } else if addresses[6..12] == mac(HONEST) {
                self.checker.see(payload);
            }
        }
    }
}

/// Frame `seq` of a guest to a station.
fn frame(from: u8, to: u8, seq: u64) -> Vec<u8> {
    let stream = u16::from(from);
    let payload = numbered_payload(Numbered { stream, seq }, LEN);
    ethernet(mac(to), mac(from), ETHER_TYPE, &payload)
}

fn with_header(frame: &[u8]) -> Vec<u8> {
    [&NetHeader::default().to_bytes()[..HEADER_LEN], frame].concat()
}

struct World {
    turn: Turn,
    _folder: TempDir,
    _netns: [Netns; 2],
    lasthop: Lasthop,
    honest: FakeGuest,
    stations: [Station; 2],
    /// Frames of the honest guest to each.
    sent: u64,
}

impl World {
    fn start(workers: u8) -> Option<Self> {
        if !Netns::allowed() {
            return None;
        }
        let turn = beside();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let netns = ["near", "far"].map(|name| Netns::new(name, folder.path()));
        for netns in &netns {
            // Frames of IPv6's own would come among ours.
            let key = "/proc/sys/net/ipv6/conf/all/disable_ipv6";
            netns.run(|| drop(std::fs::write(key, "1")));
        }
        wire(&netns[0], &netns[1]);
        let near = netns[0].path();
        let config = format!(
            "[switch]\nname = \"host1\"\nworkers = {workers}\n{}{}{}{}",
            port("vm1", ""),
            port("vm2", ""),
            tap("t0", &near, "10.1.0.1/24", ""),
            uplink(&near, "driver = \"packet\"")
        );
        let lasthop = Lasthop::start(&config);
        for port in ["t0", "uplink"] {
            let status = lasthop.wait_port(port, "up");
            assert_eq!(status["driver_status"]["in_switch"], true, "{status}");
        }
        let stations = [
            Station::new(8, "t0", netns[0].wire("t0")),
            Station::new(9, "uplink", netns[1].wire("wire0")),
        ];
        let honest = lasthop.connect("vm2", HONEST);
        let mut world = Self {
            turn,
            _folder: folder,
            _netns: netns,
            lasthop,
            honest,
            stations,
            sent: 0,
        };
        world.introduce();
        Some(world)
    }

    /// Teaches the switch where the stations and the honest guest are.
    fn introduce(&mut self) {
        for station in &self.stations {
            let hello = ethernet(mac(HONEST), mac(station.number), ETHER_TYPE, &[1; 60]);
            wait_until("the guest hears of a station", || {
                station.wire.send(&hello);
                let got = self.honest.recv_all().expect("a sound device");
                got.iter().any(|got| got.frame == hello)
            });
        }
        self.exchange();
    }

    /// Stages frames of the honest guest to each station.
    fn stage(&mut self) {
        for seq in self.sent..self.sent + BURST {
            for station in &self.stations {
                let frame = frame(HONEST, station.number, seq);
                let staged = self.honest.pairs[0].stage(&frame, &NetHeader::default());
                assert!(staged.expect("a sound device"), "room");
            }
        }
        self.sent += BURST;
    }

    /// Sends what is staged, and waits until all frames of the honest guest are there, in order.
    fn settle(&mut self) {
        self.honest.pairs[0].flush();
        for station in &mut self.stations {
            let stream = u16::from(HONEST);
            wait_until("all frames of the honest guest arrive", || {
                station.collect();
                station.checker.next_of(stream) >= self.sent
            });
            let checker = &station.checker;
            let stats = self.lasthop.stats();
            assert!(
                checker.is_clean(stream, self.sent),
                "{checker:?}, {stats:?}"
            );
        }
    }

    fn exchange(&mut self) {
        self.stage();
        self.settle();
    }

    /// Checks that the interfaces are as they were, and have refused nothing.
    fn check_interfaces(&self) {
        let stats = self.lasthop.stats();
        for station in &self.stations {
            let status = self.lasthop.port(station.port);
            let driver = &status["driver_status"];
            assert_eq!(status["state"], "up", "{status}");
            assert_eq!(driver["in_switch"], true, "{status}");
            assert_eq!(driver["rejected_by_interface"], 0, "{status}");
            assert!(stats.drops_of(station.port).is_empty(), "{stats:?}");
        }
        assert!(stats.drops_of("vm2").is_empty(), "{stats:?}");
        assert!(!self.lasthop.log().contains("interface detached"));
    }

    /// Waits until frame `seq` of the guest at `vm1` is at a station.
    fn wait_for_evil(&mut self, at: usize, seq: u64) {
        let station = &mut self.stations[at];
        wait_until("a frame of the other guest arrives", || {
            station.collect();
            let mut all = station.of_evil.iter().filter_map(|of| numbered_read(of));
            all.any(|of| of.seq == seq)
        });
    }
}

/// A file that shrinks, or, if `huge`, one whose huge page the host does not have.
fn file(huge: bool) -> Option<OwnedFd> {
    let kind = match huge {
        true => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
        false => MemfdFlags::empty(),
    };
    let file = memfd_create("guest", MemfdFlags::CLOEXEC | kind).ok()?;
    ftruncate(&file, SIZE).expect("its length");
    Some(file)
}

/// Whether the host would have a huge page for the file.
fn has_huge_pages() -> bool {
    let free = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    let free = std::fs::read_to_string(free);
    free.is_ok_and(|free| free.trim() != "0")
}

/// Adds a frame of `vm1` to its queue. The end of it is in the memory that goes, if `missing`.
fn add(evil: &mut FakeGuest, bytes: &[u8], missing: bool) {
    let kept = if missing { KEPT } else { bytes.len() };
    let at = evil.ram().alloc(kept as u64, 64);
    evil.ram().write(at, &bytes[..kept]);
    let rest = Piece::new(PLACE + 64, (bytes.len() - kept) as u32);
    let pieces = [Piece::new(at, kept as u32), rest];
    let pieces = &pieces[..1 + usize::from(missing)];
    let tx = &mut evil.pairs[0].nic.tx;
    tx.add(pieces, &[], Shape::Direct, 0).expect("room");
}

/// One round: a guest comes, its memory goes while a frame in it is sent to the station, and its
/// connection ends.
fn lose_memory(world: &mut World, at: usize, file: &OwnedFd, config: GuestConfig) {
    let to = world.stations[at].number;
    let config = GuestConfig {
        memory_slots: true,
        ..config.guest(EVIL)
    };
    let mut evil = world.lasthop.connect_as("vm1", config);
    let ours = file.try_clone().expect("a descriptor");
    let region = RamRegion::from_fd(ours, RegionSpec::at(PLACE, SIZE)).expect("a mapping");
    evil.front()
        .expect("a session")
        .add_mem_reg(&region)
        .expect("taken");
    // Frames that wait for a decision are copied whole.
    evil.send(&frame(EVIL, to, 0)).expect("room");
    world.wait_for_evil(at, 0);
    world.stations[at].of_evil.clear();
    ftruncate(file, 0).expect("cut off, wherever the host has pages");
    world.stage();
    for seq in 1..=9 {
        add(&mut evil, &with_header(&frame(EVIL, to, seq)), seq == 5);
    }
    evil.pairs[0].flush();
    world.settle();
    world.lasthop.wait_reason("vm1", "memory was taken away");
    drop(evil);
    world.exchange();
    // The others of the batch have left, in their order, and of the one only what was there.
    let got = &world.stations[at].of_evil;
    let sound = got.iter().filter_map(|of| Some(numbered_read(of)?.seq));
    let sound: Vec<_> = sound.collect();
    assert!(
        sound.starts_with(&[1, 2, 3, 4]) && sound.is_sorted(),
        "{sound:?}"
    );
    for torn in got.iter().filter(|of| numbered_read(of).is_none()) {
        let kept = KEPT - HEADER_LEN - ETHERNET;
        assert_eq!(torn[..kept], frame(EVIL, to, 5)[ETHERNET..][..kept]);
        assert!(torn[kept..].iter().all(|byte| *byte == 0), "the dummy page");
    }
    assert!(got.len() <= sound.len() + 1);
    world.stations[at].of_evil.clear();
}

#[test]
fn memory_that_goes_while_the_system_reads_it_ends_its_guest_alone() {
    let Some(mut world) = World::start(2) else {
        return;
    };
    for huge in [false, true] {
        for round in 0..4 {
            let Some(file) = file(huge) else {
                skipped("no huge pages of 2 MiB");
                continue;
            };
            if huge && has_huge_pages() {
                world.turn.step("a host with huge pages: the file shrinks");
            }
            let config = GuestConfig::default();
            let config = if round % 2 == 0 {
                config
            } else {
                config.packed()
            };
            lose_memory(&mut world, round / 2, &file, config);
        }
    }
    world.check_interfaces();
    world.lasthop.stop();
}

/// A guest takes the pages of its frames back as soon as it has sent them, and writes other bytes
/// there when that is granted. Each frame leaves whole or not at all, and never with those bytes.
#[test]
fn pages_that_are_revoked_are_not_read_for_an_interface_any_more() {
    let Some(mut world) = World::start(2) else {
        return;
    };
    for (at, mode) in [(0, Mode::Strict), (1, Mode::OnDemand), (1, Mode::Strict)] {
        world.turn.step(&format!("{mode:?}"));
        let to = world.stations[at].number;
        let config = GuestConfig::default().guest(EVIL);
        let config = if at == 0 { config } else { config.packed() };
        let (lasthop, iommu) = (&world.lasthop, IommuConfig::new(mode));
        let mut evil = lasthop.connect_translated("vm1", config, iommu);
        evil.send(&frame(EVIL, to, 0)).expect("room");
        world.wait_for_evil(at, 0);
        world.stations[at].of_evil.clear();
        let before = world.lasthop.stats();
        let sent = revoke_what_is_sent(&mut world, &mut evil, to);
        let moved = world.lasthop.stats().since(&before);
        let denied = moved.get("vm1.drops.not-granted");
        let station = &mut world.stations[at];
        wait_until("all others have arrived", || {
            station.collect();
            station.of_evil.len() as u64 + denied >= sent
        });
        let all = std::mem::take(&mut station.of_evil);
        assert_eq!(all.len() as u64 + denied, sent, "{moved:?}");
        assert!(
            !all.iter().any(|of| is_canary(of)),
            "bytes of a revoked page"
        );
        let numbers = all
            .iter()
            .map(|of| numbered_read(of).expect("a whole frame").seq);
        assert!(numbers.is_sorted_by(|a, b| a < b), "{denied} denied");
        let watched = evil.iommu().verify();
        assert!(watched.as_ref().is_ok_and(|n| *n > 0), "{watched:?}");
        let step = format!("{denied} of {sent} frames were revoked in time");
        world.turn.step(&step);
        drop(evil);
        world.lasthop.wait_port("vm1", "waiting");
    }
    world.exchange();
    world.check_interfaces();
    world.lasthop.stop();
}

/// Returns the number of frames that were sent.
fn revoke_what_is_sent(world: &mut World, evil: &mut FakeGuest, to: u8) -> u64 {
    let len = (HEADER_LEN + ETHERNET + LEN) as u64;
    let buffers: Vec<_> = (0..BURST).map(|_| evil.ram().alloc(len, 64)).collect();
    let mut sent = 0;
    for round in 0..40u64 {
        world.stage();
        for buffer in &buffers {
            sent += 1;
            evil.ram()
                .write(*buffer, &with_header(&frame(EVIL, to, sent)));
            let at = evil.ram().map(*buffer, len, Access::Read);
            let piece = Piece::new(at, len as u32);
            let tx = &mut evil.pairs[0].nic.tx;
            tx.add(&[piece], &[], Shape::Direct, 0).expect("room");
        }
        evil.pairs[0].flush();
        world.honest.pairs[0].flush();
        // Those in the middle of a batch, too.
        let first = (round % BURST) as usize;
        for buffer in buffers.iter().cycle().skip(first).take(buffers.len()) {
            evil.iommu().revoke(*buffer, len);
        }
        let tx = &mut evil.pairs[0].nic.tx;
        wait_until("the buffers come back", || {
            while tx.poll().expect("a sound device").is_some() {}
            tx.outstanding() == 0
        });
        buffers.iter().for_each(|buffer| evil.ram().unmap(*buffer));
        world.settle();
    }
    sent
}
