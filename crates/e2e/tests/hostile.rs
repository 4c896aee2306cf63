//! Every known trick of a hostile VMM, briefly: Lasthop's processes live, keep nothing, lose none
//! of the others' frames, and have room for who comes.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use e2e::paths::binary;
use e2e::turn;
use testkit::hostile::{Attackers, HEAD, Options, TRICKS, run};

#[test]
fn no_trick_of_a_vmm_reaches_the_others() {
    let turn = turn();
    let bin = binary("lasthop");
    let options = Options {
        bin: bin.parent().expect("a folder").to_owned(),
        total: Duration::from_secs(16),
        attackers: Attackers::Threads,
        trick: None,
        seed: 1,
        times: false,
    };
    turn.step(HEAD);
    let stop = AtomicBool::new(false);
    let report = run(&options, &stop, &mut |line| turn.step(line)).expect("Lasthop starts");
    assert!(report.missed.is_empty(), "{}", report.summary());
    assert_eq!(report.rows.len(), TRICKS.len());
    // Ports pause after faults, all of them at times.
    let idle = report
        .rows
        .iter()
        .filter(|row| row.played.steps == 0)
        .count();
    assert!(idle <= TRICKS.len() / 4, "{idle} tricks did nothing");
    assert!(report.counts.sent > 1000, "{}", report.summary());
}
