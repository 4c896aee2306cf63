//! The highest rate of frames, one way, of which a capture misses none.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::{Run, WHOLE, add, all, traffic};
use crate::captures::Captures;
use crate::clients::Client;
use crate::clients::paced::PacedClient;
use crate::peers::{Kind, Peer};
use crate::placement::{Placement, round_trip};
use crate::plan::{Layout, Plan, progress};
use crate::stop;

const SIZES: [u32; 2] = [64, 1500];
/// Frames a second with which the search begins, and beyond which it does not look.
const LOWEST: f64 = 50_000.0;
const HIGHEST: f64 = 20e6;
/// A rate that is missed by more than this was never offered.
const OFFERED: f64 = 0.99;
/// The rate is found to this factor.
const NEAR_ENOUGH: f64 = 1.1;
/// Of each rate, as the client never sends for a moment only.
const LEAST: Duration = Duration::from_millis(500);

/// The result of one search.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Whole {
    pub(crate) peer: String,
    pub(crate) traffic: String,
    pub(crate) capture: &'static str,
    pub(crate) bytes: u32,
    /// Frames a second of which none was missed; 0 if there were always some.
    pub(crate) rate: f64,
    /// The lowest rate above that at which some were, twice.
    pub(crate) missed_at: Option<f64>,
    /// No more frames were let in, or sent, so that the capture's limit was not reached.
    pub(crate) no_more_came: bool,
    /// Round trips of a cache line between the cores, before and after.
    pub(crate) trips_ns: [f64; 2],
    pub(crate) placement: Option<Placement>,
}

/// Result of one rate.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trial {
    /// So many frames a second were sent, and all of them written.
    Whole(f64),
    Missed,
    /// As many were not let in, or not sent.
    NotSent,
}

/// Searches for all switches in turn.
pub(super) fn measure(
    run: &mut Run<'_>,
    plan: &Plan,
    kinds: &[Kind],
    found: &mut Vec<Whole>,
) -> Result<()> {
    for size in SIZES {
        let mut searches = Vec::new();
        for &kind in kinds {
            add(run, &mut searches, Search::start(plan, kind, size), kind)?;
        }
        for round in 0..plan.rounds {
            for search in &mut searches {
                // A second of waiting for each rate makes its searches long.
                if plan.quick && round > 0 && search.peer.kind() != Kind::Lasthop {
                    continue;
                }
                let whole = search.run(plan)?;
                progress(&format!(
                    "capture, {}: {} misses nothing at {:.0} kpps",
                    whole.traffic,
                    whole.peer,
                    whole.rate / 1e3
                ));
                found.push(whole);
            }
        }
    }
    Ok(())
}

struct Search {
    peer: Peer,
    captures: Captures,
    client: PacedClient,
    size: u32,
}

impl Search {
    fn start(plan: &Plan, kind: Kind, size: u32) -> Result<Self> {
        let peer = Peer::to_be_captured(kind, plan)?;
        let captures = Captures::of(plan, &peer)?;
        let client = PacedClient::new(plan, &peer, Layout::Split, LOWEST as u32);
        let mut search = Self {
            peer,
            captures,
            client,
            size,
        };
        let ready = super::prepare(&search.peer, &mut search.client, size);
        ready.map(|()| search)
    }

    /// One search, with the peer thawed meanwhile.
    fn run(&mut self, plan: &Plan) -> Result<Whole> {
        let before = round_trip(plan.cores)?;
        self.peer.thaw();
        let window = plan.window.max(LEAST);
        let searched = bisect(|rate| match self.attempt(rate, window)? {
            // Whatever else the machine did may have been the reason.
            Trial::Missed => self.attempt(rate, window),
            trial => Ok(trial),
        });
        self.peer.freeze();
        let (rate, failed) = searched?;
        let trips_ns = [before, round_trip(plan.cores)?];
        Ok(Whole {
            peer: self.peer.kind().name().to_owned(),
            traffic: traffic(self.size),
            capture: WHOLE,
            bytes: self.size,
            rate,
            missed_at: failed
                .filter(|(trial, _)| *trial == Trial::Missed)
                .map(|(_, rate)| rate),
            no_more_came: failed.is_none_or(|(trial, _)| trial == Trial::NotSent),
            trips_ns,
            placement: Placement::of_both(trips_ns, plan.near_below),
        })
    }

    /// Returns whether a capture misses none of the frames at this rate.
    fn attempt(&mut self, rate: f64, window: Duration) -> Result<Trial> {
        stop::check()?;
        self.client.set_rate(rate);
        let capture = self.captures.begin(all())?;
        self.client.mpps(window)?;
        let outcome = capture.end()?;
        let report = self.client.paced().context("the client has a report")?;
        // A switch may have frames of its own besides.
        if outcome.written < outcome.meant.unwrap_or(0).max(report.sent) {
            return Ok(Trial::Missed);
        }
        if report.rate() >= OFFERED * rate {
            Ok(Trial::Whole(report.rate()))
        } else {
            Ok(Trial::NotSent)
        }
    }
}

/// The highest rate that is whole, and what became of the lowest one above it that was tried.
fn bisect(mut attempt: impl FnMut(f64) -> Result<Trial>) -> Result<(f64, Option<(Trial, f64)>)> {
    let (mut good, mut rate, mut failed) = (0.0, LOWEST, None);
    while rate <= HIGHEST {
        match attempt(rate)? {
            Trial::Whole(sent) => good = sent,
            trial => {
                failed = Some((trial, rate));
                break;
            }
        }
        rate *= 2.0;
    }
    while let Some((_, bad)) = failed.filter(|(_, bad)| good > 0.0 && bad / good > NEAR_ENOUGH) {
        let rate = (good * bad).sqrt();
        match attempt(rate)? {
            Trial::Whole(_) => good = rate,
            trial => failed = Some((trial, rate)),
        }
    }
    Ok((good, failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_ends_near_the_limit() {
        let limit = 777_000.0;
        let (rate, failed) = bisect(|rate| {
            if rate <= limit {
                Ok(Trial::Whole(rate))
            } else {
                Ok(Trial::Missed)
            }
        })
        .expect("a search");
        let (trial, above) = failed.expect("a rate that failed");
        assert_eq!(trial, Trial::Missed);
        assert!(rate <= limit && above > limit && above / rate <= NEAR_ENOUGH);
    }

    #[test]
    fn a_search_without_a_limit_ends_and_so_does_one_that_never_succeeds() {
        let (rate, failed) = bisect(|rate| Ok(Trial::Whole(rate))).expect("a search");
        assert!(rate > HIGHEST / 2.0 && failed.is_none());
        let (rate, failed) = bisect(|_| Ok(Trial::NotSent)).expect("a search");
        assert_eq!((rate, failed), (0.0, Some((Trial::NotSent, LOWEST))));
    }
}
