//! Instructions of the switch per frame, compared with the committed ones: `make instructions`.
//!
//! ```text
//! main       one run of itself under callgrind for each scenario; the table; --bless
//! scenarios  the frames and flows, and the replay of them that is counted
//! tracked    connections of tracked frames
//! iommu      guests whose queues have I/O virtual addresses
//! callgrind  runs valgrind and reads its counts
//! ledger     the file of committed numbers, and the comparison
//! ```
//!
//! Instructions do not depend on the clock, the load or the machine, so small regressions show here
//! that time measurements miss. They do not cover cache misses: see `make bench`.

mod callgrind;
#[path = "../../tests/common/mod.rs"]
mod common;
mod iommu;
mod ledger;
mod scenarios;
#[path = "../../tests/common/slot_clients.rs"]
mod slot_clients;
mod tracked;

use std::process::ExitCode;

use ledger::{Ledger, Measurement, Tools};
use scenarios::SCENARIOS;

fn main() -> ExitCode {
    let argument = std::env::args().nth(1);
    let done = match argument.as_deref() {
        None => check(),
        Some("--bless") => bless(),
        Some(name) => replay(name),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Replays one scenario; callgrind runs this.
fn replay(name: &str) -> Result<(), String> {
    // Under callgrind every CPU is one of Intel; counted is the longer path.
    memory::copy::decide_prefetches(true);
    let scenario = SCENARIOS.iter().find(|s| s.name == name);
    scenario.ok_or(format!("no scenario {name}"))?.replay();
    Ok(())
}

fn measure() -> Result<Measurement, String> {
    let counted = SCENARIOS.iter().map(|s| {
        let total = callgrind::count(s.name)?;
        Ok((s.name.to_owned(), total.per_frame(s.frames())))
    });
    Ok(Measurement {
        tools: Tools::here()?,
        counts: counted.collect::<Result<_, String>>()?,
    })
}

fn bless() -> Result<(), String> {
    let measured = measure()?;
    if let Ok(before) = Ledger::read() {
        print!("{}", before.compare(&measured));
    }
    Ledger::write(&measured)
}

fn check() -> Result<(), String> {
    let comparison = Ledger::read()?.compare(&measure()?);
    print!("{comparison}");
    comparison.verdict()
}
