//! Clients, which send frames through a switch. A client has two ports, and each frame that arrives
//! at one is sent back.
//!
//! `testpmd` is the common one, and with small frames its own core is the limit. `lean` is ours,
//! and leaves the limit to the switch; at a given rate it measures latency, and it can send TCP
//! super-frames. `tap` is for the Linux bridge. Another one implements [`Client`] and is added to
//! [`start`].

pub(crate) mod blocking;
pub(crate) mod bulk;
pub(crate) mod captured;
pub(crate) mod connections;
pub(crate) mod forwarder;
pub(crate) mod grants;
pub(crate) mod guests;
pub(crate) mod lean;
pub(crate) mod neighbours;
pub(crate) mod new_flows;
pub(crate) mod paced;
mod replay;
pub(crate) mod routed;
pub(crate) mod sharing;
pub(crate) mod steady;
pub(crate) mod streams;
mod tap;
mod testpmd;

use std::time::Duration;

use anyhow::Result;
use load::lean::{BurstReport, Histogram, PacedReport};
use serde::Serialize;

use crate::peers::Peer;
use crate::plan::{Layout, Plan, Traffic};

/// Traffic between guests, all of them together.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Exchange {
    /// Answers to requests, a second.
    pub(crate) answers: f64,
    /// Payload of data, in 10^9 bits a second.
    pub(crate) gbit: f64,
    /// From when a request was due to its answer; 0 without requests.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// From the time that a quarter of them do not exceed to that of three quarters.
    pub(crate) quartiles_us: [f64; 2],
    /// Frames that arrived, a second.
    pub(crate) frames: f64,
    /// Kicks, interrupts and sleeps for each of these.
    pub(crate) kicks: f64,
    pub(crate) interrupts: f64,
    pub(crate) sleeps: f64,
    /// How often a guest gave up waiting.
    pub(crate) stalls: u64,
}

/// A capture beside traffic, or none.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Captured {
    /// Frames that it was about, and those of them that were written.
    pub(crate) meant: u64,
    pub(crate) written: u64,
    /// How long there was traffic.
    pub(crate) seconds: f64,
    /// CPU time of the forwarding thread for each frame that arrived, in nanoseconds; of a switch
    /// whose thread pauses where there is nothing to do.
    pub(crate) forwarding_ns: Option<f64>,
    /// CPU time for each frame that was captured, of all that is behind the switch.
    pub(crate) writing_ns: Option<f64>,
}

/// A running client, attached to a peer.
pub(crate) trait Client {
    fn name(&self) -> &'static str;

    /// Changes to frames of `size` bytes, without checksum. The client and its peer must be thawed.
    fn set_size(&mut self, size: u32) -> Result<()>;

    /// Lets traffic flow for a time before it is measured.
    fn warm_up(&mut self, time: Duration) -> Result<()>;

    /// Frames that arrive in a second, both directions added, over `window`, in millions.
    fn mpps(&mut self, window: Duration) -> Result<f64>;

    /// Returns the share of rounds of the last measurement in which the client had nothing to do, 0
    /// to 1: near 0 the client was the limit. `None` if unknown.
    fn idle(&self) -> Option<f64> {
        None
    }

    /// Measures the machine without a switch, if the client can: its core and the switch's are free
    /// meanwhile.
    fn reference(&self, _window: Duration) -> Result<Option<BurstReport>> {
        Ok(None)
    }

    /// How long the sleeping threads of a decision take without a switch, in nanoseconds, of a
    /// client that finds out.
    fn wake_ups(&self, _window: Duration) -> Result<Option<Histogram>> {
        Ok(None)
    }

    /// Returns the switch's speed in bursts in the last measurement of a client that measures them.
    fn bursts(&self) -> Option<&BurstReport> {
        None
    }

    /// The last measurement in full, of a client that measures latency.
    fn paced(&self) -> Option<&PacedReport> {
        None
    }

    /// The last measurement in full, of guests.
    fn exchange(&self) -> Option<&Exchange> {
        None
    }

    /// Returns the capture beside the last measurement, of a client with captures.
    fn captured(&self) -> Option<&Captured> {
        None
    }

    /// Returns whether its frames are of flows that the switch does not know yet, so that it counts
    /// how many it decided about.
    fn meets_new_flows(&self) -> bool {
        false
    }

    /// Stops where it stands, using no CPU. A client of ours uses none between measurements.
    fn freeze(&self) -> Result<()> {
        Ok(())
    }

    /// Resumes.
    fn thaw(&self) -> Result<()> {
        Ok(())
    }
}

/// Starts the client and attaches it to both ports of a peer.
pub(crate) fn start(
    plan: &Plan,
    peer: &Peer,
    layout: Layout,
    traffic: Traffic,
) -> Result<Box<dyn Client>> {
    if let Some(taps) = peer.taps() {
        return Ok(Box::new(tap::TapClient::new(plan.cores, taps)?));
    }
    Ok(match traffic {
        Traffic::Lean(flows) => Box::new(lean::LeanClient::new(plan, peer, layout, flows)),
        Traffic::Guest(flows) => Box::new(lean::LeanClient::guest(plan, peer, layout, flows)),
        Traffic::Bulk => Box::new(bulk::BulkClient::new(plan, peer, layout)),
        Traffic::Paced(rate) => Box::new(paced::PacedClient::new(plan, peer, layout, rate)),
        Traffic::Bounce | Traffic::Flows(_) => {
            Box::new(testpmd::Testpmd::start(plan, peer, layout, traffic)?)
        }
    })
}
