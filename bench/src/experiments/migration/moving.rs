//! A guest and a station on the client's core, and moves of the guest.

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use e2e::echo::{Echo, Report};
use e2e::guest::{Guest, GuestSpec};
use e2e::migration::Migrated;
use serde::Serialize;
use tempfile::TempDir;
use testkit::frontend::FrontListener;
use testkit::packets::Flow;
use testkit::{FakeGuest, GuestConfig};

use crate::peers::Peer;
use crate::plan::{Layout, Plan};
use crate::{folders, stop};
use e2e::machine::pin;

const NAME: &str = "mover";
const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 0x77];
/// Traffic before a move, and after it: longer than a switch that is slow to learn needs.
const BEFORE: Duration = Duration::from_millis(300);
const AFTER: Duration = Duration::from_secs(1);
/// Limit of the time in which a switch notices a listener.
const ATTACH: Duration = Duration::from_secs(20);
/// Fewer pings of the station's and of the guest's in the time around a move say nothing.
const LEAST: [usize; 2] = [100, 20];

/// Measurements of a move.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Moved {
    /// From the station's first ping that was never answered to the next one that was, where that
    /// took longest.
    pub(crate) outage_ms: f64,
    /// The longest time in which nothing of the guest came to the station.
    pub(crate) silence_ms: f64,
    /// How long the guest stood still, as QEMU says.
    pub(crate) standstill_ms: f64,
    /// From the begin of the migration to its end.
    pub(crate) total_ms: f64,
    /// How often the guest's memory was gone through.
    pub(crate) passes: u64,
    /// Pings of the station, and those of the guest that came to it.
    pub(crate) pings: [usize; 2],
    /// Pings of the station without an answer in that outage.
    pub(crate) lost_in_outage: usize,
    /// Others, and those of the guest that did not come.
    pub(crate) lost_beyond: usize,
}

impl Moved {
    /// # Errors
    /// When the station saw what may not be, or too little to say anything.
    fn new(migrated: Migrated, seen: &Report) -> Result<Self> {
        let answers = &seen.answers;
        ensure!(
            seen.answered_last(),
            "the guest does not answer after its move"
        );
        ensure!(
            answers.damaged + answers.reordered + answers.duplicated == 0,
            "answers are not what they should be: {answers:?}"
        );
        let pings = [seen.requests(), seen.asked.len()];
        ensure!(
            pings[0] >= LEAST[0] && pings[1] >= LEAST[1],
            "there was hardly any traffic: {pings:?} pings"
        );
        let gaps = seen.gaps();
        let longest = gaps.iter().max_by_key(|gap| gap.lasted);
        let lost: usize = gaps.iter().map(|gap| gap.count).sum();
        let lost_in_outage = longest.map_or(0, |gap| gap.count);
        Ok(Self {
            outage_ms: ms(longest.map_or(Duration::ZERO, |gap| gap.lasted)),
            silence_ms: ms(seen.silence),
            standstill_ms: ms(migrated.downtime),
            total_ms: ms(migrated.total),
            passes: migrated.passes,
            pings,
            lost_in_outage,
            lost_beyond: lost - lost_in_outage + seen.asked_lost(),
        })
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Boots a guest at a switch and moves it from port to port, reporting each move.
///
/// # Errors
/// When the guest does not come up or a move fails; earlier reports hold.
pub(super) fn go(
    plan: &Plan,
    peer: &Peer,
    layout: Layout,
    mut tell: impl FnMut(Moved),
) -> Result<()> {
    let core = plan.cores[1];
    let (sender, receiver) = channel();
    std::thread::scope(|scope| {
        // All that is started is where its thread is, and dies with it.
        let thread = scope.spawn(move || {
            pin(core)?;
            let [outside, first, others @ ..] = peer.sockets() else {
                return Err(anyhow!("the guest needs a port, and the station too"));
            };
            let mut world = World::new(peer, [outside, first], layout)?;
            for port in others {
                stop::check()?;
                let (next, moved) = world.go_over(port)?;
                world = next;
                sender.send(moved)?;
            }
            Ok(())
        });
        receiver.iter().for_each(&mut tell);
        thread.join().map_err(|panic| anyhow!(words_of(&*panic)))?
    })
}

/// Returns the message of a panic: the harness of the end-to-end tests has no other errors.
fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| Some((*panic.downcast_ref::<&str>()?).to_owned()));
    text.unwrap_or_else(|| "a panic".to_owned())
}

/// A guest at a port, and a station that it talks with at another one.
struct World {
    spec: GuestSpec,
    guest: Guest,
    station: FakeGuest,
    folder: TempDir,
}

impl World {
    fn new(peer: &Peer, [outside, here]: [&Path; 2], layout: Layout) -> Result<Self> {
        let plug = if peer.client_listens() {
            GuestSpec::listening
        } else {
            GuestSpec::dialing
        };
        let mut spec = plug(NAME, here.to_owned())
            .mac("52:54:00:00:00:77")
            .ip("10.0.0.2/24");
        let mut config = GuestConfig::default().guest(1);
        if layout == Layout::Packed {
            spec = spec.packed();
            config = config.packed();
        }
        let guest = spec.clone().start();
        let station = if peer.client_listens() {
            let listener = FrontListener::bind(outside)?;
            FakeGuest::over(listener.accept(ATTACH)?, config)?
        } else {
            FakeGuest::connect(outside, config)?
        };
        Ok(Self {
            spec,
            guest: guest.ready(),
            station,
            folder: folders::new("migration")?,
        })
    }

    /// One move to another port, under traffic.
    fn go_over(mut self, there: &Path) -> Result<(Self, Moved)> {
        let way = self.folder.path().join("way");
        let mut next = self.spec.clone().arriving(there.to_owned(), &way).start();
        next.wait_ready_for_arrival();
        let flow = Flow {
            dst_mac: MAC,
            ..Flow::v4(1, 2)
        };
        self.station.recv_all()?;
        let echo = Echo::start(self.station, flow);
        self.guest.run("ping -q -i 0.01 10.0.0.1 >/dev/null 2>&1 &");
        stop::sleep(BEFORE)?;
        self.guest.migrate(&way);
        self.guest.let_go();
        let migrated = self.guest.wait_migrated();
        stop::sleep(AFTER)?;
        // Before the end, because what it sent later would be taken for the next move's.
        next.run("killall ping");
        let (station, seen) = echo.end();
        let moved = Moved::new(migrated, &seen)?;
        let next = Self {
            guest: next,
            station,
            ..self
        };
        Ok((next, moved))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_does_not_answer_is_no_sample() {
        let migrated = Migrated {
            downtime: Duration::from_millis(30),
            passes: 3,
            total: Duration::from_secs(1),
        };
        let nothing = Moved::new(migrated, &Report::default());
        let error = nothing.expect_err("no guest answered").to_string();
        assert_eq!(error, "the guest does not answer after its move");
    }

    #[test]
    fn a_panic_of_the_harness_becomes_an_error() {
        for what in ["not within 30s", "the end"] {
            let panic = std::thread::spawn(move || std::panic::panic_any(what.to_owned()));
            let words = panic.join().map_err(|panic| words_of(&*panic));
            assert_eq!(words, Err(what.to_owned()));
        }
    }
}
