//! All known attacks of a hostile VMM, in turn, against a Lasthop that is started for them, beside
//! honest VMMs.
//!
//! ```text
//!  honest pair  blue0 <-> blue1     numbered frames, one due each millisecond, every byte checked
//!  honest pair  green0 <-> green1   likewise
//!  honest VMM   talker              GET_FEATURES, due every 5 ms
//!  honest VMM   newcomer            connects every second of a trick, and after it
//!  attackers    red0 … red19        one trick at a time: attack, wait, burn as much CPU time
//! ```
//! Latencies are measured from when a frame or message was due, whether or not the one before had
//! arrived.
//!
//! Where a trick did harm, those that follow get a fresh Lasthop with fresh honest guests.
//!
//! Attackers are processes of their own, so that honest guests share no lock with them, or threads
//! where no time is judged. Times count only beside a program that burns as much CPU time and
//! does nothing else (the *burner*): attackers, switch and honest guests share the machine's cores.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

mod arena;
mod attack;
mod burner;
mod files;
mod honest;
mod lasthop;
mod newcomer;
mod raw;
mod report;
mod row;
mod stage;
mod times;
mod tricks;
mod watch;

pub use attack::{Attackers, Played, attack};
pub use files::blocking_calls;
pub use honest::{Counts, Samples};
pub use newcomer::Arrival;
pub use report::Report;
pub use row::{HEAD, Row};
pub use times::{Latencies, Times};
pub use tricks::{TRICKS, Trick};
pub use watch::{PROCESSES, Seen, Snapshot};

use stage::Stages;

/// Ports of attackers: a port that lost its connection by a fault pauses before it takes the next
/// one.
const ATTACKERS: usize = 20;
/// Tolerance for an allocator's mappings.
const MAPPINGS_SLACK: usize = 4;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of Lasthop's binaries.
    pub bin: PathBuf,
    /// Time for all tricks together.
    pub total: Duration,
    /// Kind of attackers.
    pub attackers: Attackers,
    /// Only tricks whose name contains this.
    pub trick: Option<String>,
    /// Seed of random choices.
    pub seed: u64,
    /// Run the burner after each trick, and judge times.
    pub times: bool,
}

/// Runs the tricks, and reports progress to `say`. Ends early and in order when `stop` is set.
///
/// # Errors
/// When there is no such trick, or Lasthop or the honest guests do not start.
pub fn run(options: &Options, stop: &AtomicBool, say: &mut dyn FnMut(&str)) -> io::Result<Report> {
    let desired = |trick: &&Trick| {
        let name = options.trick.as_deref();
        name.is_none_or(|name| trick.name.contains(name))
    };
    let tricks: Vec<&Trick> = TRICKS.iter().filter(desired).collect();
    if tricks.is_empty() {
        return Err(io::Error::other("no trick has such a name"));
    }
    mapping::survive_truncation()?;
    let slot = options.total / tricks.len() as u32;
    let mut stages = Stages::new(options, stop);
    stages.sound()?;
    let mut rows = Vec::new();
    for (trick, number) in tricks.into_iter().zip(0_u64..) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let row = match stages.sound() {
            Ok(stage) => stage.play(trick, slot, options.seed ^ number << 32),
            Err(error) => {
                stages.fault(format!("{}: no Lasthop to try it on: {error}", trick.name));
                break;
            }
        };
        say(&row.line());
        rows.push(row);
    }
    let counts = stages.end();
    let interrupted = stop.load(Ordering::Relaxed);
    Ok(Report::new(rows, counts, options.times, interrupted))
}
