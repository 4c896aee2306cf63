//! Guests that forward, one behind the other: figure 11 of Garzarella, Lettieri and Rizzo (ANCS
//! 2015) with guests in place of netmap's bridges. Each has a port in two segments and copies
//! frames from one to the other.
//!
//! ```text
//!   guest 1 -- segment 0 -- forwarder 1 -- segment 1 -- … -- forwarder B -- segment B -- guest 2
//! ```

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::lasthop::port_table;
use load::vcpu::{MIN_PAYLOAD, Task};

use super::parts::{Part, Run};
use crate::clients::Client as _;
use crate::clients::forwarder::{Forwarder, Wait};
use crate::clients::guests::{Guests, Shape};
use crate::peers::{Peer, lasthop};
use crate::plan::{Plan, progress};
use crate::report::Report;
use crate::sample::wait_quiet;
use crate::stop;

static CHAIN: Part = Part {
    name: "chain-of-guests",
    axes: ["guests that forward", "Mpps that arrive"],
    published: "figure 11: about 20 Mpps over one to four bridges that copy; VMs about 15 % below \
                processes of the host",
};

/// Most forwarders of the figure.
const MOST: usize = 4;
/// Bytes on their way: as many frames as a queue takes.
const WINDOW: usize = 512 * MIN_PAYLOAD;
const ARRIVE: Duration = Duration::from_secs(20);
const NOTES: [&str; 2] = [
    "the guests at both ends are threads that spend a microsecond on a kick, on an interrupt and \
     on each frame, and acknowledge every second frame; forwarders spend nothing beside their \
     system calls. All share the cores that the switch does not have",
    "forwarders that poll are measured where each has a core",
];

/// A switch with guests at both ends of a chain, and between them.
struct World {
    forwarders: Vec<Forwarder>,
    guests: Guests,
    wait: Wait,
    _peer: Peer,
}

/// See the module.
pub(crate) fn chain(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "chain", &NOTES, &[]);
    let mut sleeping = Vec::new();
    for count in 0..=MOST {
        run.attempt(&format!("{count} guests that sleep"), |_| {
            sleeping.push(World::start(plan, count, Wait::Sleep)?);
            Ok(())
        })?;
    }
    for _ in 0..plan.rounds {
        wait_quiet(plan.patience / 50)?;
        for world in &mut sleeping {
            run.attempt("a chain of guests that sleep", |run| world.sample(run))?;
        }
    }
    drop(sleeping);
    // One core is the switch's, one that of the ends. Those that poll do so all the time.
    for count in (1..=MOST).filter(|count| plan.machine.cores >= 2 + count) {
        run.attempt(&format!("{count} guests that poll"), |run| {
            let mut world = World::start(plan, count, Wait::Poll)?;
            (0..plan.rounds).try_for_each(|_| world.sample(run))
        })?;
    }
    Ok(run.report("Guests that forward, one behind the other"))
}

impl World {
    fn start(plan: &Plan, count: usize, wait: Wait) -> Result<Self> {
        progress(&format!("chain: {count} {}", wait.name()));
        let peer =
            lasthop::with_text(plan, &plan.cores[..1], &configuration(count), 2 + 2 * count)?;
        let (ends, between) = peer.sockets().split_at(2);
        let others = plan.guest_cores();
        let forwarders: Result<Vec<Forwarder>> = between
            .chunks_exact(2)
            .zip(others.iter().skip(1).chain(&others).cycle())
            .map(|(sockets, core)| Forwarder::start([&sockets[0], &sockets[1]], *core, wait))
            .collect();
        let forwarders = forwarders?;
        let mut guests = Guests::at_sockets((ends, false), 0, &others, Shape::default())?;
        guests.set(vec![Task::Stream {
            peers: vec![2],
            payload: MIN_PAYLOAD,
            window: WINDOW,
        }]);
        stop::try_wait("frames arrive", ARRIVE, || {
            guests.warm_up(plan.settle)?;
            Ok(guests.heard().then_some(()))
        })?;
        Ok(Self {
            forwarders,
            guests,
            wait,
            _peer: peer,
        })
    }

    fn sample(&mut self, run: &mut Run<'_>) -> Result<()> {
        let (plan, count) = (run.plan, self.forwarders.len());
        run.take(&CHAIN, self.wait.name(), count as f64, || {
            self.guests.warm_up(plan.settle)?;
            self.guests.mpps(plan.window)?;
            let last = self.guests.exchange().context("guests that ran")?;
            ensure!(last.gbit > 0.0, "no frame arrived");
            Ok(1e3 * last.gbit / (8 * MIN_PAYLOAD) as f64)
        })
    }
}

/// The ports of both ends, then two of each forwarder, one in each of its segments.
fn configuration(forwarders: usize) -> String {
    let mut text = "[switch]\nname = \"bench\"\n".to_owned();
    for segment in 0..=forwarders {
        text += &format!("[[segment]]\nname = \"s{segment}\"\n");
    }
    let between = (0..forwarders).flat_map(|number| [number, number + 1]);
    for (port, segment) in [0, forwarders].into_iter().chain(between).enumerate() {
        text += &port_table(&format!("p{port}"), &format!("s{segment}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_a_chain_share_a_segment() {
        let text = configuration(2);
        let segments: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("segment = "))
            .collect();
        let desired = ["s0", "s2", "s0", "s1", "s1", "s2"].map(|name| format!("\"{name}\""));
        assert_eq!(segments, desired);
    }
}
