//! Compares our connection tracking with the kernel's on random packets near valid connections:
//! `nf_oracle [PACKETS [SEED]]`. It needs root, Debian's package `nftables`, and a kernel with
//! `nf_conntrack` and `nft_ct`. A difference that is not on the list of intended ones is printed
//! with its trace, and fails the run.

#[path = "../tests/oracle/answer.rs"]
mod answer;
#[path = "../tests/oracle/compare.rs"]
mod compare;
#[path = "../tests/oracle/differences.rs"]
mod differences;
#[path = "../tests/oracle/frames.rs"]
mod frames;
#[path = "../tests/oracle/kernel.rs"]
mod kernel;
#[path = "../tests/oracle/ours.rs"]
mod ours;
#[path = "../tests/oracle/walk.rs"]
mod walk;

use std::process::ExitCode;

/// Differences that are printed.
const SHOWN: usize = 10;

fn main() -> ExitCode {
    let number = |n: usize| std::env::args().nth(n).map(|text| text.parse::<u64>());
    let (Ok(packets), Ok(seed)) = (number(1).unwrap_or(Ok(20_000)), number(2).unwrap_or(Ok(1)))
    else {
        eprintln!("usage: nf_oracle [PACKETS [SEED]]");
        return ExitCode::FAILURE;
    };
    let folder = match tempfile::tempdir() {
        Ok(folder) => folder,
        Err(error) => {
            eprintln!("no folder for logs: {error}");
            return ExitCode::FAILURE;
        }
    };
    let report = match compare::run(seed, packets as usize, folder.path()) {
        Ok(report) => report,
        Err(why) => {
            eprintln!("the kernel cannot be asked: {why}");
            return ExitCode::FAILURE;
        }
    };
    for difference in report.wrong.iter().take(SHOWN) {
        println!("{difference}\n");
    }
    println!(
        "Linux {}, seed {seed}: {} packets in {} traces, {} differences",
        kernel::release(),
        report.packets,
        report.traces,
        report.wrong.len()
    );
    println!("verdicts: {:?}", report.verdicts);
    println!("intended differences: {:?}", report.intended);
    if report.wrong.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
