//! Soak test for uncounted losses: one pair of ports under full load, while others are added,
//! driven, left without notice and removed beside it; at the end sent frames must equal received
//! plus dropped ones.

mod account;
mod churn;
mod outcome;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use load::lean::{Lean, LeanConfig, LeanReport, Until};

use self::account::Account;
use self::churn::Churn;
use self::outcome::Outcome;
use crate::footprint::Footprint;
use crate::{Plan, progress};
use e2e::lasthop::{Lasthop, port_table};
use e2e::stop;

const STEADY: [&str; 2] = ["p0", "p1"];
const CHURN_SEGMENT: &str = "churn";
/// Frames of each port between two looks at the clock: a few seconds.
const BURST: u64 = 10_000_000;
/// Frames of each port before the processes' memory is looked at for the first time.
const FIRST: u64 = 1_000_000;
/// How long frames may be on their way before the client stops to wait for them. They count when
/// they come later.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How long the last frames and counters are waited for.
const SETTLE: Duration = Duration::from_secs(5);
/// Numbers that go round in the frames. A round does not fit a queue, so every frame is written
/// before it is sent.
const NUMBERS: u32 = 100_003;

/// Runs for `time`, prints the account and writes it to a file.
///
/// # Errors
/// When a frame is missing, altered, or was delivered to a port that it was not for.
pub(crate) fn soak(plan: &Plan, time: Duration) -> Result<()> {
    let lasthop = plan.start(&configuration())?;
    let mut steady = Lean::connect(LeanConfig {
        sockets: STEADY.map(|port| lasthop.socket_of(port)).to_vec(),
        ..client(plan)
    })?;
    let mut account = Account::default();
    account.add(&steady.run(Until::Sent(FIRST))?);
    let before = Footprint::of(lasthop.supervisor());
    let over = AtomicBool::new(false);
    let mut churn = Churn::new(plan, &lasthop);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| churn.run(&over));
        let outcome = drive(&mut steady, &mut account, time, || other.is_finished());
        over.store(true, Ordering::Relaxed);
        let churned = other.join().ok().context("a thread panicked")?;
        outcome.and(churned)
    })?;
    settle(&mut steady, &mut account, &lasthop)?;
    let outcome = Outcome {
        machine: plan.machine.clone(),
        seconds: time.as_secs_f64(),
        steady: account,
        churn: churn.tally,
        growth: before.growth_to(&Footprint::of(lasthop.supervisor())),
    };
    lasthop.end();
    plan.save("soak", &outcome)?;
    println!("{}", outcome.markdown());
    match outcome.wrong() {
        0 => Ok(()),
        wrong => bail!("{wrong} frames are missing, altered or astray"),
    }
}

fn configuration() -> String {
    let mut text = "[switch]\nname = \"soak\"\n".to_owned();
    for segment in ["steady", CHURN_SEGMENT] {
        text += &format!("\n[[segment]]\nname = \"{segment}\"\n");
    }
    text + &STEADY.map(|port| port_table(port, "steady")).concat()
}

/// Returns the common configuration of all clients: they read every frame that they get.
fn client(plan: &Plan) -> LeanConfig {
    LeanConfig {
        flows: NUMBERS,
        touch: true,
        patience: TIMEOUT,
        cpu: Some(plan.cores[1]),
        ..LeanConfig::default()
    }
}

/// Full load for a time, unless the others give up first.
fn drive(
    steady: &mut Lean,
    account: &mut Account,
    time: Duration,
    others_ended: impl Fn() -> bool,
) -> Result<()> {
    let begin = Instant::now();
    while begin.elapsed() < time && !others_ended() {
        stop::check()?;
        let report: LeanReport = steady.run(Until::Sent(BURST))?;
        account.add(&report);
        progress(&format!(
            "soak: {:.0} of {:.0} s, {:.1} million frames sent, {:.2} Mpps",
            begin.elapsed().as_secs_f64(),
            time.as_secs_f64(),
            account.millions_sent(),
            report.mpps(),
        ));
    }
    Ok(())
}

/// Compares with Lasthop's counters until both sides agree or nothing more can be expected.
fn settle(steady: &mut Lean, account: &mut Account, lasthop: &Lasthop) -> Result<()> {
    let end = Instant::now() + SETTLE;
    loop {
        account.compare(&lasthop.try_stats()?, &STEADY);
        if account.missing() == 0 || Instant::now() >= end {
            return Ok(());
        }
        // Late frames are seen by a run only.
        account.add(&steady.run(Until::Sent(1))?);
    }
}
