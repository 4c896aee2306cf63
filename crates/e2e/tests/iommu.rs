//! Guests with an IOMMU: what they map is reached, and nothing else, and nothing any more once
//! INVALIDATE was answered.
//!
//! The guests are our own (`testkit::iommu`): their pages lie scattered, their buffers get other
//! pages each time, and the old ones are watched. `LASTHOP_IOMMU_KILLS=1000` increases the number of
//! kills.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use e2e::lasthop::{Lasthop, guest_ports};
use e2e::numbered::{Stream, introduce, settle};
use e2e::{paths, repetitions, turn};
use rustix::process::Signal;
use testkit::driver::{Piece, Shape};
use testkit::iommu::{Access, Answers, CANARY, IommuConfig, Iovas, Lie, Mode, PAGE, is_canary};
use testkit::net::{Cuts, HEADER_LEN, NetHeader};
use testkit::packets::{Flow, SequenceChecker, payload_of, tcp_super, udp};
use testkit::process::Process;
use testkit::wait::wait_until;
use testkit::{FakeGuest, GuestConfig};

const TIMEOUT: Duration = Duration::from_secs(10);
/// Frames of one sender on their way: fewer than a receiver's buffers.
const WINDOW: u64 = 32;
/// The modes of a guest; `Reuse` with fewer pages than the buffers have that are with the device.
const MODES: [Mode; 5] = [
    Mode::Persistent,
    Mode::OnDemand,
    Mode::Strict,
    Mode::Batched(32),
    Mode::Reuse { pages: 600 },
];

fn start(switch: &str) -> Lasthop {
    Lasthop::start(&guest_ports(switch, &["vm1", "vm2", "vm3", "vm4"]))
}

fn layouts() -> [GuestConfig; 2] {
    [GuestConfig::default(), GuestConfig::default().packed()]
}

/// Guests at `vm1` and `vm2` that know each other.
fn pair(lasthop: &Lasthop, config: &GuestConfig, iommu: IommuConfig) -> [FakeGuest; 2] {
    let [mut a, mut b] = [1, 2].map(|n| {
        let config = config.clone().guest(n);
        lasthop.connect_translated(&format!("vm{n}"), config, iommu)
    });
    introduce(&mut a, &mut b, Flow::v4(1, 2));
    [a, b]
}

/// Guests at `vm3` and `vm4` without an IOMMU.
fn others(lasthop: &Lasthop) -> [FakeGuest; 2] {
    let [mut c, mut d] = [("vm3", 3), ("vm4", 4)].map(|(port, n)| lasthop.connect(port, n));
    introduce(&mut c, &mut d, Flow::v4(3, 4));
    [c, d]
}

fn sound(guests: &[FakeGuest]) {
    for guest in guests {
        if let Err(fault) = guest.iommu().verify() {
            panic!("{fault}; {:?}", guest.iommu().counts());
        }
    }
}

/// Numbered frames between two guests, few of them on their way, until `done`.
struct Talk {
    /// How many of each guest's frames its peer has seen.
    seen: [AtomicU64; 2],
    stop: AtomicBool,
}

impl Talk {
    fn new() -> Talk {
        Talk {
            seen: Default::default(),
            stop: AtomicBool::new(false),
        }
    }

    /// The part of guest `me`. Frames that seem lost do not stop it.
    fn part(&self, guest: &mut FakeGuest, me: usize, flow: Flow) -> SequenceChecker {
        let mut stream = Stream::new(me as u16, flow);
        let mut checker = SequenceChecker::default();
        let mut moved = (0, Instant::now());
        while !self.stop.load(SeqCst) {
            let seen = self.seen[me].load(SeqCst);
            if seen > moved.0 {
                moved = (seen, Instant::now());
            }
            let seems_lost = moved.1.elapsed() > Duration::from_millis(100);
            if stream.sent() < seen + WINDOW || seems_lost {
                moved.1 = Instant::now();
                stream.send(guest, 64 + (stream.sent() as usize * 37) % 1300);
            }
            self.collect(guest, me, &mut checker);
        }
        let quiet = Instant::now() + Duration::from_millis(300);
        while Instant::now() < quiet {
            self.collect(guest, me, &mut checker);
            std::thread::sleep(Duration::from_millis(5));
        }
        checker
    }

    fn collect(&self, guest: &mut FakeGuest, me: usize, checker: &mut SequenceChecker) {
        for got in guest.recv_all().expect("the device keeps the rules") {
            assert!(!is_canary(&got.frame), "it has bytes of a revoked page");
            if let Ok(payload) = payload_of(&got.frame) {
                checker.see(payload);
            }
        }
        let peer = 1 - me;
        self.seen[peer].store(checker.next_of(peer as u16), SeqCst);
    }

    /// Waits until the peers of both guests have seen so many frames more.
    fn wait_more(&self, frames: u64) {
        let before = [0, 1].map(|n| self.seen[n].load(SeqCst));
        wait_until("both guests see traffic", || {
            [0, 1]
                .iter()
                .all(|n| self.seen[*n].load(SeqCst) >= before[*n] + frames)
        });
    }

    /// Lets the guests talk while `work` is done. Both have seen nothing damaged, and no page that
    /// they took back was touched.
    fn during(guests: &mut [FakeGuest; 2], work: impl FnOnce(&Talk)) -> [SequenceChecker; 2] {
        let talk = Talk::new();
        let [a, b] = &mut *guests;
        let checkers = std::thread::scope(|scope| {
            let first = scope.spawn(|| talk.part(a, 0, Flow::v4(1, 2)));
            let second = scope.spawn(|| talk.part(b, 1, Flow::v4(2, 1)));
            work(&talk);
            talk.stop.store(true, SeqCst);
            [first, second].map(|part| part.join().expect("frames are sound"))
        });
        sound(guests);
        assert_eq!(checkers.each_ref().map(|checker| checker.damaged), [0; 2]);
        checkers
    }
}

/// Frames one way, all of which arrive.
fn all_arrive(from: &mut FakeGuest, to: &mut FakeGuest, flow: Flow, frames: u64) {
    let mut stream = Stream::new(9, flow);
    let mut checker = SequenceChecker::default();
    while stream.sent() < frames {
        for _ in 0..WINDOW.min(frames - stream.sent()) {
            stream.send(from, 64 + (stream.sent() as usize * 131) % 1300);
        }
        let whole = settle(to, &mut checker, &stream, TIMEOUT);
        assert!(whole, "{checker:?} of {}", stream.sent());
    }
}

#[test]
fn frames_go_both_ways_in_every_mode() {
    let turn = turn();
    let lasthop = start("");
    for (number, config) in layouts().into_iter().enumerate() {
        for mode in MODES {
            turn.step(&format!("{mode:?}, layout {number}"));
            let config = GuestConfig {
                tx_cuts: Cuts::HeaderApart,
                shape: [Shape::Direct, Shape::Indirect][number],
                ..config.clone()
            };
            let iommu = IommuConfig {
                iovas: [Iovas::Reused, Iovas::Fresh][number],
                answers: [Answers::Exact, Answers::Qemu][number],
                ..IommuConfig::new(mode)
            };
            let mut guests = pair(&lasthop, &config, iommu);
            let before = lasthop.stats();
            let [a, b] = &mut guests;
            for _ in 0..2 {
                all_arrive(a, b, Flow::v4(1, 2), 300);
                all_arrive(b, a, Flow::v4(2, 1), 300);
            }
            let drops = lasthop.stats().since(&before);
            assert!(drops.drops().is_empty(), "{drops:?}");
            sound(&guests);
        }
    }
    lasthop.stop();
}

#[test]
fn rings_of_1024_entries_lie_scattered_page_by_page() {
    let turn = turn();
    let lasthop = start("");
    for (number, config) in layouts().into_iter().enumerate() {
        for (huge, mode) in [
            (false, Mode::OnDemand),
            (false, Mode::Strict),
            (true, Mode::Strict),
        ] {
            turn.step(&format!("layout {number}, {mode:?}, huge pages: {huge}"));
            let config = GuestConfig {
                queue_size: 1024,
                ..config.clone()
            };
            let iommu = IommuConfig {
                huge,
                ..IommuConfig::new(mode)
            };
            let mut guests = pair(&lasthop, &config, iommu);
            let [a, b] = &mut guests;
            // More than two laps of each ring.
            all_arrive(a, b, Flow::v4(1, 2), 2500);
            all_arrive(b, a, Flow::v4(2, 1), 2500);
            for n in 0..20 {
                super_frame(a, b, n);
            }
            sound(&guests);
        }
    }
    lasthop.stop();
}

/// A frame of 44 segments, which takes many buffers.
fn super_frame(from: &mut FakeGuest, to: &mut FakeGuest, n: u32) {
    let payload: Vec<u8> = (0..44 * 1448u32).map(|at| (at / 5 + n) as u8).collect();
    let (frame, header) = tcp_super(&Flow::v4(1, 2), n, &payload, 1448);
    from.send_on(0, &frame, &header)
        .expect("the guest can send");
    let got = to.recv(TIMEOUT).expect("the device keeps the rules");
    assert_eq!(got.expect("it arrives").frame, frame);
}

#[test]
fn pages_are_not_touched_once_invalidate_was_answered() {
    let turn = turn();
    for workers in [1, 2, 4] {
        let mirror = "[[mirror]]\nname = \"m1\"\nto = \"vm4\"\nports = [\"vm1\"]\n";
        let lasthop = Lasthop::start(&format!(
            "{}{mirror}",
            guest_ports(
                &format!("workers = {workers}"),
                &["vm1", "vm2", "vm3", "vm4"]
            )
        ));
        for (config, mode) in layouts().into_iter().zip([Mode::Strict, Mode::OnDemand]) {
            turn.step(&format!("{workers} workers, {mode:?}"));
            let mut guests = pair(&lasthop, &config, IommuConfig::new(mode));
            let probe = GuestConfig::default().guest(4);
            let mut probe =
                lasthop.connect_translated("vm4", probe, IommuConfig::new(Mode::Strict));
            let (capture, file) = capture(&lasthop, "vm2");
            Talk::during(&mut guests, |talk| {
                for _ in 0..20 {
                    talk.wait_more(50);
                    for got in probe.recv_all().expect("the device keeps the rules") {
                        assert!(!is_canary(&got.frame), "a copy has bytes of a revoked page");
                    }
                    probe.iommu().verify().expect("copies go where they may");
                    probe.iommu().flush_domain();
                }
            });
            end_capture(capture, &file);
        }
        lasthop.stop();
    }
}

/// A capture of everything at a port, and its file.
fn capture(lasthop: &Lasthop, port: &str) -> (Process, std::path::PathBuf) {
    let (file, log) = (
        lasthop.folder().join("capture"),
        lasthop.folder().join("capture.log"),
    );
    let _ = fs::remove_file(&file);
    let shown = |path: &std::path::Path| path.display().to_string();
    let args = [
        "--runtime-dir",
        &shown(&lasthop.folder()),
        "capture",
        port,
        "-w",
        &shown(&file),
    ];
    let args = args.map(str::to_owned);
    let process = Process::start("capture", paths::binary("lasthop"), &args, &log);
    wait_until("the capture begins", || {
        fs::metadata(&file).is_ok_and(|file| file.len() > 0)
    });
    (process, file)
}

fn end_capture(mut capture: Process, file: &std::path::Path) {
    capture.signal(Signal::INT);
    assert!(capture.end(TIMEOUT).is_some(), "{}", capture.output());
    let captured = fs::read(file).expect("a file");
    let revoked = captured.windows(CANARY.len()).any(|bytes| bytes == CANARY);
    assert!(!revoked, "the capture has bytes of a revoked page");
}

/// Sends what lies at `iova` as one descriptor, and waits until the device has returned it.
fn send_at(guest: &mut FakeGuest, iova: u64, len: u64) {
    let pair = &mut guest.pairs[0];
    pair.drain().expect("the device returns frames");
    let pieces = [Piece::new(iova, len as u32)];
    pair.nic
        .tx
        .add(&pieces, &[], Shape::Direct, 0)
        .expect("room");
    pair.flush();
    wait_until("the descriptor is used", || {
        pair.nic
            .tx
            .poll()
            .expect("the device keeps the rules")
            .is_some()
    });
}

/// A page with a frame behind an empty header, and their length.
fn page_with(guest: &FakeGuest, payload: &[u8]) -> (u64, u64) {
    let page = guest.iommu().page();
    let header = &NetHeader::default().to_bytes()[..HEADER_LEN];
    let bytes = [header, &udp(&Flow::v4(1, 2), payload)].concat();
    guest.ram().write(page, &bytes);
    (page, bytes.len() as u64)
}

fn arrives(guest: &mut FakeGuest, payload: &[u8]) {
    let got = guest.recv(TIMEOUT).expect("the device keeps the rules");
    let frame = got.expect("it arrives").frame;
    assert_eq!(payload_of(&frame).expect("a sound frame"), payload);
}

fn not_granted(lasthop: &Lasthop, port: &str) -> u64 {
    lasthop.stats().get(&format!("{port}.drops.not-granted"))
}

#[test]
fn what_is_not_granted_costs_one_frame_by_name() {
    let _turn = turn();
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
            assert_eq!(not_granted(&lasthop, "vm1"), before + 1);
            let refused = a.iommu().counts().refused;
            assert!(refused > 0, "it was asked for");
            all_arrive(a, b, Flow::v4(1, 2), 100);

            // What was refused is asked again once it is mapped.
            let (page, len) = page_with(a, b"mapped later");
            a.iommu().set(nowhere, page, Access::Read);
            send_at(a, nowhere, len);
            arrives(b, b"mapped later");
            assert_eq!(not_granted(&lasthop, "vm1"), before + 1);
            sound(&guests);
        }
    }
    lasthop.stop();
}

#[test]
fn a_permission_is_added_later() {
    let _turn = turn();
    let lasthop = start("");
    for mode in [Mode::OnDemand, Mode::Strict] {
        let mut guests = pair(&lasthop, &GuestConfig::default(), IommuConfig::new(mode));
        let [a, b] = &mut guests;
        let (page, len) = page_with(a, b"readable now");
        let iova = a.iommu().map_pages(&[page], Access::Write);
        let before = not_granted(&lasthop, "vm1");
        send_at(a, iova, len);
        assert_eq!(not_granted(&lasthop, "vm1"), before + 1, "{mode:?}");
        a.iommu().set(iova, page, Access::Both);
        send_at(a, iova, len);
        arrives(b, b"readable now");
        assert_eq!(not_granted(&lasthop, "vm1"), before + 1, "{mode:?}");
        sound(&guests);
    }
    lasthop.stop();
}

/// The length of a buffer was not checked against its mapping (DPDK, CVE-2020-10725).
#[test]
fn cve_2020_10725_a_buffer_beyond_its_mapping() {
    let _turn = turn();
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
            (iova, u64::from(u32::MAX)),
            (u64::MAX - 50, 100),
        ];
        for (at, len) in beyond {
            let dropped = lasthop.stats().sum("drops");
            send_at(a, at, len);
            assert_eq!(lasthop.stats().sum("drops"), dropped + 1, "{at:#x}+{len}");
        }
        assert!(not_granted(&lasthop, "vm1") >= before + 2);
        send_at(a, iova, len);
        arrives(b, b"within");
        all_arrive(a, b, Flow::v4(1, 2), 100);
        sound(&guests);
    }
    lasthop.stop();
}

/// INVALIDATE left pointers into the rings (DPDK, CVE-2026-86567). Under traffic: the queue is
/// suspended until its ring is mapped again, which lies elsewhere then.
#[test]
fn cve_2026_86567_a_ring_is_revoked_under_traffic() {
    let turn = turn();
    let lasthop = start("");
    let [mut c, mut d] = others(&lasthop);
    for (number, config) in layouts().into_iter().enumerate() {
        for mode in [Mode::Strict, Mode::OnDemand] {
            turn.step(&format!("layout {number}, {mode:?}"));
            let mut guests = pair(&lasthop, &config, IommuConfig::new(mode));
            let [a, b] = &mut guests;
            for round in 0..6 {
                revoked_ring(a, b, round);
                all_arrive(&mut c, &mut d, Flow::v4(3, 4), 10);
            }
            sound(&guests);
        }
    }
    lasthop.stop();
}

/// Takes one of the six ring areas of `a` away while frames go there and come from there.
fn revoked_ring(a: &mut FakeGuest, b: &mut FakeGuest, area: usize) {
    let nic = &a.pairs[0].nic;
    let queue = [&nic.rx, &nic.tx][area / 3];
    let addr = [
        queue.addrs().desc,
        queue.addrs().driver,
        queue.addrs().device,
    ][area % 3];
    let stop = AtomicBool::new(false);
    let (flow, back) = (Flow::v4(1, 2), Flow::v4(2, 1));
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            while !stop.load(SeqCst) {
                b.send(&udp(&back, b"more"))
                    .expect("a receiver's ring stops no sender");
            }
        });
        // Frames of both queues are on their way.
        for n in 0..40 {
            a.send(&udp(&flow, &[n])).expect("room");
        }
        a.iommu().revoke(addr, 1);
        std::thread::sleep(Duration::from_millis(10));
        a.iommu()
            .verify()
            .expect("a ring that was taken away is left alone");
        a.iommu().restore(addr, 1);
        a.pairs[0].rx_kick.signal();
        a.pairs[0].tx_kick.signal();
        let mut got = 0;
        wait_until("frames arrive again", || {
            got += a.recv_all().expect("the device keeps the rules").len();
            a.pairs[0].rx_kick.signal();
            got > 300
        });
        stop.store(true, SeqCst);
        sender.join().expect("no fault");
    });
    a.pairs[0].drain().expect("all frames are sent");
    settle_down([a, b]);
    all_arrive(a, b, flow, 50);
    all_arrive(b, a, back, 50);
}

/// Throws away what is still on its way.
fn settle_down(guests: [&mut FakeGuest; 2]) {
    for guest in guests {
        let pause = Duration::from_millis(100);
        while guest
            .recv(pause)
            .expect("the device keeps the rules")
            .is_some()
        {}
    }
}

/// Entries of a driver before stayed, and made everything slow (DPDK, e7cb7fdf54).
#[test]
fn dpdk_e7cb7fdf54_a_driver_change_leaves_no_entries() {
    let _turn = turn();
    let lasthop = start("");
    for config in layouts() {
        let iommu = IommuConfig {
            iovas: Iovas::Fresh,
            ..IommuConfig::new(Mode::Strict)
        };
        let mut guests = pair(&lasthop, &config, iommu);
        let [a, b] = &mut guests;
        for _ in 0..20 {
            let (page, len) = page_with(a, b"of the old driver");
            let old = a.iommu().map_pages(&[page], Access::Both);
            send_at(a, old, len);
            arrives(b, b"of the old driver");
            a.change_driver().expect("a driver");
            introduce(a, b, Flow::v4(1, 2));
            let before = not_granted(&lasthop, "vm1");
            send_at(a, old, len);
            assert_eq!(not_granted(&lasthop, "vm1"), before + 1);
            all_arrive(a, b, Flow::v4(1, 2), 50);
            all_arrive(b, a, Flow::v4(2, 1), 50);
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
    let turn = turn();
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
    all_arrive(a, b, Flow::v4(1, 2), 500);
    all_arrive(b, a, Flow::v4(2, 1), 500);
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
    assert_eq!(not_granted(&lasthop, "vm1"), before + 1);
    all_arrive(a, b, Flow::v4(1, 2), 500);
    sound(&guests);
    lasthop.stop();
}

/// Frames whose receiver's buffers are not translated are dropped by name, and come again when
/// questions are answered again.
#[test]
fn buffers_that_are_not_translated_are_counted_at_their_receiver() {
    let _turn = turn();
    let lasthop = start("");
    let mut guests = pair(&lasthop, &GuestConfig::default(), IommuConfig::qemu());
    let [a, b] = &mut guests;
    b.iommu().lie(Some(Lie::Missing));
    let untranslated = || lasthop.stats().get("vm2.drops.receiver-untranslated");
    wait_until("buffers that were asked for ahead are used up", || {
        a.send(&udp(&Flow::v4(1, 2), b"more")).expect("room");
        b.recv_all().expect("the device keeps the rules");
        untranslated() > 10
    });
    b.iommu().lie(None);
    introduce(a, b, Flow::v4(1, 2));
    settle_down([a, b]);
    all_arrive(a, b, Flow::v4(1, 2), 500);
    sound(&guests);
    lasthop.stop();
}

/// A front end that answers late, twice, wrong or not at all: its own frames wait, and no others
/// do.
#[test]
fn wrong_answers_cost_the_port_that_gives_them() {
    let turn = turn();
    let lasthop = start("");
    let [mut c, mut d] = others(&lasthop);
    for lie in [
        Lie::Late,
        Lie::Refused,
        Lie::Doubled,
        Lie::Missing,
        Lie::OtherPage,
        Lie::Deaf,
        Lie::Nonsense,
    ] {
        turn.step(&format!("{lie:?}"));
        let mut guests = pair(&lasthop, &GuestConfig::default(), IommuConfig::qemu());
        let [a, _] = &mut guests;
        a.iommu().lie(Some(lie));
        for _ in 0..200 {
            // Questions about everything, with or without answers.
            let nowhere = a.iommu().reserve(1);
            let pieces = [Piece::new(nowhere, 100)];
            let nic = &mut a.pairs[0].nic;
            while nic.tx.poll().expect("the device keeps the rules").is_some() {}
            nic.tx.add(&pieces, &[], Shape::Direct, 0);
            a.pairs[0].flush();
            a.front()
                .expect("a session")
                .get_features()
                .expect("an answer");
        }
        all_arrive(&mut c, &mut d, Flow::v4(3, 4), 100);
        a.iommu().answer_held();
        a.iommu().lie(None);
        a.wait_link().expect("the connection goes on");
        sound(&guests);
    }
    lasthop.stop();
}

/// A channel that is not read becomes full, and the front end waits for an answer meanwhile (DPDK,
/// 1aadb2f6b1: a deadlock).
#[test]
fn dpdk_1aadb2f6b1_a_full_channel_while_the_front_end_waits() {
    let _turn = turn();
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
    settle_down([a, b]);
    all_arrive(a, b, Flow::v4(1, 2), 300);
    sound(&guests);
    lasthop.stop();
}

#[test]
fn no_page_is_touched_when_the_switch_dies() {
    let turn = turn();
    let kills = repetitions("LASTHOP_IOMMU_KILLS", 20);
    for (workers, (config, mode)) in [1, 2]
        .into_iter()
        .zip(layouts().into_iter().zip([Mode::Strict, Mode::OnDemand]))
    {
        turn.step(&format!(
            "{mode:?}, {workers} workers, {kills} kills in all"
        ));
        let lasthop = start(&format!("workers = {workers}"));
        let mut guests = pair(&lasthop, &config, IommuConfig::new(mode));
        let checkers = Talk::during(&mut guests, |talk| {
            for round in 0..kills as u64 / 2 {
                talk.wait_more(50 + 37 * (round % 10));
                lasthop.kill_switch();
            }
            talk.wait_more(300);
        });
        turn.step(&format!(
            "{:?}",
            checkers.each_ref().map(|c| (c.received, c.lost()))
        ));
        connected(&lasthop, &mut guests);
        lasthop.stop();
    }
}

#[test]
fn an_upgrade_under_traffic_keeps_mappings_and_connections() {
    let turn = turn();
    let lasthop = start("");
    for (config, mode) in layouts().into_iter().zip([Mode::OnDemand, Mode::Strict]) {
        turn.step(&format!("{mode:?}"));
        let mut guests = pair(&lasthop, &config, IommuConfig::new(mode));
        let checkers = Talk::during(&mut guests, |talk| {
            for _ in 0..2 {
                talk.wait_more(200);
                let said = lasthop.ok(&["upgrade"]);
                assert!(said.contains(": 2 connections kept, "), "{said}");
            }
            talk.wait_more(200);
        });
        let lost = checkers.each_ref().map(SequenceChecker::lost);
        turn.step(&format!("lost: {lost:?}"));
        connected(&lasthop, &mut guests);
    }
    lasthop.stop();
}

/// Both guests are connected as they were at the start, and all their frames arrive.
fn connected(lasthop: &Lasthop, guests: &mut [FakeGuest; 2]) {
    let [a, b] = guests;
    introduce(a, b, Flow::v4(1, 2));
    all_arrive(a, b, Flow::v4(1, 2), 300);
    all_arrive(b, a, Flow::v4(2, 1), 300);
    for guest in guests {
        guest.wait_link().expect("the same connection");
    }
    for bad in ["connection not continued", "session not saved"] {
        assert!(!lasthop.log().contains(bad), "{bad}: {}", lasthop.log());
    }
}

/// UPDATEs that are not for the port's own memory are refused and change nothing.
#[test]
fn updates_of_what_is_not_the_guests_are_refused() {
    use testkit::frontend::{FrontError, IotlbKind, IotlbMessage};
    let _turn = turn();
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
