//! The lean client against the straight-line back end, which sends every frame back to its sender,
//! and against the null back end.

use std::os::unix::net::UnixListener;

use super::*;
use testkit::echo::connection;
use testkit::features::{IN_ORDER, MRG_RXBUF, RING_PACKED};
use testkit::wait::LIMIT;

fn layouts() -> Vec<LeanConfig> {
    let mut all = Vec::new();
    for (packed, in_order) in [(false, true), (false, false), (true, true), (true, false)] {
        all.push(LeanConfig {
            packed,
            in_order,
            queue_size: 128,
            batch: 8,
            window: Some(32),
            touch: true,
            apart: in_order,
            patience: LIMIT,
            ..LeanConfig::default()
        });
    }
    all
}

/// Each port receives its own frames, so each expects them.
fn echoing(config: LeanConfig) -> LeanConfig {
    LeanConfig {
        macs: vec![mac(1); 2],
        ..config
    }
}

#[test]
#[cfg(not(miri))] // Miri maps no files
fn every_frame_comes_back_in_every_layout() {
    for config in layouts() {
        // 128 entries hold whole rounds of 4 flows; 100 000 are written as they go.
        for flows in [1, 4, 100_000] {
            let (first, one) = connection();
            let (second, two) = connection();
            let config = echoing(LeanConfig {
                flows,
                ..config.clone()
            });
            let mut lean = Lean::over(vec![first, second], config.clone()).expect("sessions");
            for features in lean.features() {
                assert_eq!(features & RING_PACKED != 0, config.packed);
                assert_eq!(features & IN_ORDER != 0, config.in_order);
                assert_ne!(features & MRG_RXBUF, 0);
            }
            for count in [1000, 3] {
                let report = lean.run(Until::Sent(count)).expect("a correct device");
                let totals = (report.sent, report.received, report.lost);
                assert_eq!(totals, (2 * count, 2 * count, 0), "{config:?}");
                for port in report.ports {
                    assert_eq!((port.sent, port.received), (count, count));
                    assert_eq!((port.bytes, port.strange), (64 * count, 0), "{config:?}");
                    if flows > 128 {
                        assert_eq!(port.flows_sent, port.flows_received);
                    }
                }
            }
            drop(lean);
            one.join().expect("a back end without complaints");
            two.join().expect("a back end without complaints");
        }
    }
}

#[test]
#[cfg(not(miri))]
fn frames_of_another_port_are_strange() {
    let (first, one) = connection();
    let (second, two) = connection();
    let config = layouts().remove(0);
    let mut lean = Lean::over(vec![first, second], config).expect("sessions");
    let report = lean.run(Until::Sent(64)).expect("a correct device");
    assert!(report.ports.iter().all(|p| p.strange == 64), "{report:?}");
    drop(lean);
    one.join().expect("a back end without complaints");
    two.join().expect("a back end without complaints");
}

/// Slot queues too, which only the null back end has here.
fn null_layouts() -> Vec<LeanConfig> {
    let mut all = layouts();
    all.push(LeanConfig {
        packed: false,
        slots: true,
        ..all[0].clone()
    });
    all
}

#[test]
#[cfg(not(miri))]
fn the_null_back_end_keeps_count() {
    for config in null_layouts() {
        let (mut lean, back) = Lean::null(config.clone(), 4, None).expect("ports");
        let config = LeanConfig {
            touch: false,
            ..config
        };
        let report = lean.run(Until::Sent(5000)).expect("a correct device");
        assert_eq!(
            (report.sent, report.received, report.lost),
            (20_000, 20_000, 0)
        );
        assert!(
            report.ports.iter().all(|p| p.bytes == 64 * 5000),
            "{config:?}"
        );
        let short = Until::Elapsed(Duration::from_millis(5));
        let report = lean.run(short).expect("a correct device");
        assert!(report.elapsed >= Duration::from_millis(5));
        assert_eq!(report.lost, 0, "{report:?}");
        drop(back);
        // The peer is gone: frames in the window are lost.
        lean.config.patience = Duration::from_millis(1);
        let report = lean.run(Until::Sent(64)).expect("no device");
        assert_eq!((report.sent, report.received, report.lost), (128, 0, 128));
    }
}

/// Frames at this pace for this time fit the receive buffers, should the client not run in between.
const PACE: Pace = Pace {
    rate: 5_000.0,
    poisson: false,
};
const PACED: Duration = Duration::from_millis(10);

#[test]
#[cfg(not(miri))]
fn paced_frames_carry_the_time() {
    for config in layouts() {
        let (first, one) = connection();
        let (second, two) = connection();
        let mut lean = Lean::over(vec![first, second], echoing(config)).expect("sessions");
        lean.run(Until::Sent(100)).expect("a correct device");
        for poisson in [false, true] {
            let pace = Pace { poisson, ..PACE };
            let report = lean.paced(pace, PACED).expect("a correct device");
            assert!(report.sent > 0, "{report:?}");
            assert_eq!((report.received, report.lost), (report.sent, 0));
            assert_eq!(report.latency.count(), report.sent);
            assert_eq!(report.lag.count(), report.sent);
            assert!(poisson || report.sent + report.unsent == 50, "{report:?}");
            assert!(report.elapsed >= PACED);
        }
        drop(lean);
        one.join().expect("a back end without complaints");
        two.join().expect("a back end without complaints");
    }
}

#[test]
#[cfg(not(miri))]
fn frames_of_earlier_runs_have_no_latency() {
    let config = layouts().remove(0);
    let (mut lean, _back) = Lean::null(config, 2, None).expect("ports");
    lean.config.patience = Duration::from_millis(1);
    // The null back end brings empty buffers.
    let report = lean.paced(PACE, PACED).expect("a correct device");
    assert_eq!((report.received, report.latency.count()), (0, 0));
    assert_eq!(report.lost, report.sent);
}

#[test]
#[cfg(not(miri))]
fn a_pace_that_cannot_be_kept_is_refused() {
    let short = LeanConfig {
        frame_len: 51,
        ..layouts().remove(0)
    };
    let (mut lean, _back) = Lean::null(short, 2, None).expect("ports");
    assert!(matches!(lean.paced(PACE, PACED), Err(LeanError::Config(_))));
    let (mut lean, _back) = Lean::null(layouts().remove(0), 2, None).expect("ports");
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let refused = lean.paced(Pace { rate, ..PACE }, PACED);
        assert!(matches!(refused, Err(LeanError::Config(_))), "{rate}");
    }
}

#[test]
#[cfg(not(miri))]
fn super_frames_come_back_whole() {
    for config in layouts() {
        let (first, one) = connection();
        let (second, two) = connection();
        // The back end of these tests wants one buffer for each.
        let bulk = LeanConfig {
            bulk: true,
            rx_buffer: 65_280,
            window: Some(16),
            ..echoing(config)
        };
        let mut lean = Lean::over(vec![first, second], bulk).expect("sessions");
        let report = lean.run(Until::Sent(100)).expect("a correct device");
        assert_eq!((report.received, report.lost), (200, 0));
        for port in report.ports {
            assert_eq!((port.bytes, port.strange), (100 * 65_214, 0));
            assert_eq!(port.payload_received, port.payload_sent);
            assert_ne!(port.payload_sent, 0);
        }
        let bursts = lean
            .bursts(Duration::from_millis(1))
            .expect("a correct device");
        assert!(bursts.bytes > 0 && bursts.bytes.is_multiple_of(2 * 16 * 65_214));
        let refused = lean.paced(PACE, PACED);
        assert!(matches!(refused, Err(LeanError::Config(_))));
        drop(lean);
        one.join().expect("a back end without complaints");
        two.join().expect("a back end without complaints");
    }
}

#[test]
fn nonsense_is_refused() {
    let sockets: Vec<PathBuf> = vec!["a".into(), "b".into()];
    let good = LeanConfig {
        sockets,
        ..LeanConfig::default()
    };
    let bad = [
        LeanConfig {
            sockets: vec!["a".into()],
            ..good.clone()
        },
        LeanConfig {
            queue_size: 100,
            ..good.clone()
        },
        LeanConfig {
            batch: 1024,
            ..good.clone()
        },
        LeanConfig {
            frame_len: 41,
            ..good.clone()
        },
        LeanConfig {
            flows: 0,
            ..good.clone()
        },
        LeanConfig {
            window: Some(31),
            ..good.clone()
        },
        LeanConfig {
            bulk: true,
            rx_buffer: 100,
            ..good.clone()
        },
        LeanConfig {
            bulk: true,
            rx_buffer: 4096,
            queue_size: 64,
            ..good.clone()
        },
        LeanConfig {
            macs: vec![mac(1)],
            ..good
        },
    ];
    for config in bad {
        let refused = Lean::connect(config.clone());
        assert!(matches!(refused, Err(LeanError::Config(_))), "{config:?}");
    }
}

#[test]
#[cfg(not(miri))]
fn a_silent_back_end_is_not_waited_for_forever() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("a.sock");
    let _silent = UnixListener::bind(&path).expect("a free path");
    let config = LeanConfig {
        sockets: vec![path.clone(), path],
        timeout: Duration::from_millis(20),
        ..LeanConfig::default()
    };
    assert!(matches!(
        Lean::connect(config.clone()),
        Err(LeanError::Front(_))
    ));
    let nobody = LeanConfig {
        listen: true,
        sockets: vec![dir.path().join("b.sock"), dir.path().join("c.sock")],
        ..config
    };
    assert!(matches!(Lean::connect(nobody), Err(LeanError::Front(_))));
}
