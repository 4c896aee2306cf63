//! Honest VMMs that come up while others attack, and go.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::arena::dial;
use testkit::frontend::FrontEnd;
use testkit::guest::GuestError;
use testkit::guest_ram::RegionSpec;
use testkit::{FakeGuest, GuestConfig};

/// A newcomer is up within this.
pub(super) const LIMIT: Duration = Duration::from_secs(20);
/// Memory of a newcomer, as much as a small guest has: attackers must leave the switch room to map
/// it. Hardly any of it is touched.
const MEMORY: u64 = 256 << 20;
/// From one newcomer to the next.
const EVERY: Duration = Duration::from_secs(1);

/// How long a newcomer took to be up, or why it was not up in time.
pub type Arrival = Result<Duration, String>;

/// A guest that connects to `path`, starts its queues and goes; it tries again until [`LIMIT`].
pub(super) fn newcomer(path: &Path) -> Arrival {
    let began = Instant::now();
    loop {
        let left = LIMIT.saturating_sub(began.elapsed());
        match come(path, left) {
            Ok(()) if began.elapsed() <= LIMIT => return Ok(began.elapsed()),
            Ok(()) => return Err("it was up too late".to_owned()),
            Err(error) if began.elapsed() >= LIMIT => return Err(error.to_string()),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn come(path: &Path, timeout: Duration) -> Result<(), GuestError> {
    let config = GuestConfig {
        regions: Some(vec![RegionSpec::at(0x10_0000, MEMORY)]),
        queue_size: 64,
        timeout,
        ..GuestConfig::default()
    };
    let front = FrontEnd::over(dial(path)?, timeout)?;
    FakeGuest::over(front, config.guest(200))?.wait_link()
}

/// Connects one newcomer after another, each gone before the next, during an attack of about
/// `time`; at least one.
pub(super) fn newcomers(path: &Path, time: Duration, attacking: &AtomicBool) -> Vec<Arrival> {
    let mut all = Vec::new();
    // The first leaves the attackers some time to do harm.
    let mut due = Instant::now() + (time / 4).min(EVERY / 2);
    loop {
        let on = wait_until(due, attacking);
        if !on && !all.is_empty() {
            return all;
        }
        all.push(newcomer(path));
        due = (due + EVERY).max(Instant::now());
    }
}

/// False when the attack was over before `due`.
fn wait_until(due: Instant, attacking: &AtomicBool) -> bool {
    while attacking.load(Ordering::Relaxed) {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(Duration::from_millis(5)));
    }
    false
}
