//! Every known trick of a hostile VMM, briefly: Lasthop's processes live, keep nothing, lose none
//! of the others' frames, and have room for who comes.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use e2e::machine;
use e2e::paths::binary;
use hostile::{Attackers, HEAD, Options, TRICKS, run};

#[test]
fn no_trick_of_a_vmm_reaches_the_others() {
    let turn = machine();
    let bin = binary("lasthop");
    let stop = AtomicBool::new(false);
    // On a busy machine a trick needs longer for its first step.
    let idle = [16, 64, 256]
        .map(Duration::from_secs)
        .into_iter()
        .map(|total| {
            let options = Options {
                bin: bin.parent().expect("a folder").to_owned(),
                total,
                attackers: Attackers::Threads,
                trick: None,
                seed: 1,
                times: false,
            };
            turn.step(HEAD);
            let report = run(&options, &stop, &mut |line| turn.step(line)).expect("Lasthop starts");
            assert!(report.missed.is_empty(), "{}", report.summary());
            assert_eq!(report.rows.len(), TRICKS.len());
            assert!(report.counts.sent > 1000, "{}", report.summary());
            let rows = report.rows.iter();
            rows.filter(|row| row.played.steps == 0).count()
        });
    // Ports pause after faults, all of them at times.
    let few = |idle: &usize| *idle <= TRICKS.len() / 4;
    assert!(
        idle.inspect(|idle| turn.step(&format!("{idle} tricks did nothing")))
            .any(|idle| few(&idle))
    );
}
