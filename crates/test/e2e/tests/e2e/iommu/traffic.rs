//! Traffic in every mode, and pages that are watched meanwhile: also while the switch dies or is
//! replaced.

use std::fs;
use std::path::{Path, PathBuf};

use e2e::lasthop::Lasthop;
use e2e::numbered::introduce;
use e2e::{beside, paths, repetitions};
use rustix::process::Signal;
use testkit::driver::Shape;
use testkit::iommu::{Answers, CANARY, IommuConfig, Iovas, Mode, is_canary};
use testkit::net::Cuts;
use testkit::packets::{Flow, SequenceChecker, tcp_super};
use testkit::process::Process;
use testkit::wait::wait_until;
use testkit::{FakeGuest, GuestConfig};

use super::{LIMIT, Talk, all_arrive, config, layouts, pair, sound, start};

/// The modes of a guest; `Reuse` with fewer pages than the buffers have that are with the device.
const MODES: [Mode; 5] = [
    Mode::Persistent,
    Mode::OnDemand,
    Mode::Strict,
    Mode::Batched(32),
    Mode::Reuse { pages: 600 },
];

#[test]
fn frames_go_both_ways_in_every_mode() {
    let turn = beside();
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
                all_arrive(&lasthop, a, b, Flow::v4(1, 2), 300);
                all_arrive(&lasthop, b, a, Flow::v4(2, 1), 300);
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
    let turn = beside();
    let lasthop = start("");
    for (number, config) in layouts().into_iter().enumerate() {
        for (huge, mode) in [(false, Mode::OnDemand), (true, Mode::Strict)] {
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
            all_arrive(&lasthop, a, b, Flow::v4(1, 2), 2100);
            all_arrive(&lasthop, b, a, Flow::v4(2, 1), 2100);
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
    let got = to.recv(LIMIT).expect("the device keeps the rules");
    assert_eq!(got.expect("it arrives").frame, frame);
}

#[test]
fn pages_are_not_touched_once_invalidate_was_answered() {
    let turn = beside();
    for workers in [1, 2, 4] {
        let mirror = "[[mirror]]\nname = \"m1\"\nto = \"vm4\"\nports = [\"vm1\"]\n";
        let workers_key = format!("workers = {workers}");
        let lasthop = Lasthop::start(&format!("{}{mirror}", config(&workers_key)));
        for (config, mode) in layouts().into_iter().zip([Mode::Strict, Mode::OnDemand]) {
            turn.step(&format!("{workers} workers, {mode:?}"));
            let mut guests = pair(&lasthop, &config, IommuConfig::new(mode));
            let probe = GuestConfig::default().guest(4);
            let mut probe =
                lasthop.connect_translated("vm4", probe, IommuConfig::new(Mode::Strict));
            let (capture, file) = capture(&lasthop, "vm2");
            Talk::during(&mut guests, |talk| {
                for _ in 0..10 {
                    talk.wait_more(50);
                    for _ in 0..20 {
                        let got = probe.recv(LIMIT).expect("the device keeps the rules");
                        let copy = got.expect("copies arrive").frame;
                        assert!(!is_canary(&copy), "a copy has bytes of a revoked page");
                    }
                    let watched = probe.iommu().verify();
                    assert!(watched.as_ref().is_ok_and(|n| *n > 0), "{watched:?}");
                    probe.iommu().flush_domain();
                }
            });
            end_capture(capture, &file);
        }
        lasthop.stop();
    }
}

/// A capture of everything at a port, and its file.
fn capture(lasthop: &Lasthop, port: &str) -> (Process, PathBuf) {
    let (file, log) = (
        lasthop.folder().join("capture"),
        lasthop.folder().join("capture.log"),
    );
    let _ = fs::remove_file(&file);
    let shown = |path: &Path| path.display().to_string();
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

fn end_capture(mut capture: Process, file: &Path) {
    capture.signal(Signal::INT);
    assert!(capture.end(LIMIT).is_some(), "{}", capture.output());
    let captured = fs::read(file).expect("a file");
    let revoked = captured.windows(CANARY.len()).any(|bytes| bytes == CANARY);
    assert!(!revoked, "the capture has bytes of a revoked page");
    assert!(captured.len() > 100_000, "{} bytes", captured.len());
}

#[test]
fn no_page_is_touched_when_the_switch_dies() {
    let turn = beside();
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
    let turn = beside();
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
    all_arrive(lasthop, a, b, Flow::v4(1, 2), 300);
    all_arrive(lasthop, b, a, Flow::v4(2, 1), 300);
    for guest in guests {
        guest.wait_link().expect("the same connection");
    }
    for bad in ["connection not continued", "session not saved"] {
        assert!(!lasthop.log().contains(bad), "{bad}: {}", lasthop.log());
    }
}
