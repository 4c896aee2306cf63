//! A pair of ports with frames at a given rate, whose latency is measured, and beside it pairs that
//! flood: one at a time, or none.

use std::time::Duration;

use anyhow::{Context as _, Result};
use load::lean::{Lean, LeanConfig, Pace, PacedReport, Until};
use testkit::packets::mac;

use super::{Client, lean};
use crate::peers::Peer;
use crate::plan::{Layout, Plan};
use crate::stop;

/// Traffic of a neighbour.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flood {
    /// Bytes of a frame.
    pub(crate) size: u16,
    queue_size: u16,
    /// Frames that it offers at once.
    batch: u16,
}

/// Small frames, frames of an ordinary link, and frames as long as there are.
pub(crate) const FLOODS: [Flood; 3] = [
    Flood {
        size: 64,
        queue_size: 1024,
        batch: 32,
    },
    Flood {
        size: 1500,
        queue_size: 1024,
        batch: 16,
    },
    Flood {
        size: 60_000,
        queue_size: 64,
        batch: 4,
    },
];

/// A back end that dials does so again after some seconds.
const DIALLED: Duration = Duration::from_secs(30);

/// See the module; connected once it knows the size of its frames.
pub(crate) struct NeighbourClient {
    config: LeanConfig,
    /// By the order of [`FLOODS`].
    neighbours: Vec<Lean>,
    flood: Option<usize>,
    pace: Pace,
    lean: Option<Lean>,
    last: Option<PacedReport>,
}

impl NeighbourClient {
    /// On a peer with two ports for the pair, and two for each of [`FLOODS`].
    pub(crate) fn new(plan: &Plan, peer: &Peer) -> Self {
        Self {
            config: LeanConfig {
                timeout: DIALLED,
                ..lean::config(plan, peer, Layout::Split)
            },
            neighbours: Vec::new(),
            flood: None,
            pace: Pace {
                rate: 1.0,
                poisson: true,
            },
            lean: None,
            last: None,
        }
    }

    /// Sets the next measurements: frames per second, and the neighbour that floods meanwhile.
    pub(crate) fn set(&mut self, rate: u32, flood: Option<usize>) {
        self.pace.rate = f64::from(rate);
        self.flood = flood;
    }

    /// The configuration of pair number `pair`.
    fn of_pair(&self, pair: usize) -> LeanConfig {
        let ports = 2 * pair..2 * pair + 2;
        LeanConfig {
            sockets: self.config.sockets[ports.clone()].to_vec(),
            macs: ports.map(|port| mac(port as u8 + 1)).collect(),
            ..self.config.clone()
        }
    }

    fn run(&mut self, time: Duration) -> Result<PacedReport> {
        stop::check()?;
        let lean = self.lean.as_mut().context("the client is not connected")?;
        let neighbour = self.flood.and_then(|flood| self.neighbours.get_mut(flood));
        Ok(lean.paced_beside(self.pace, time, neighbour)?)
    }
}

impl Client for NeighbourClient {
    fn name(&self) -> &'static str {
        "lean, paced, with neighbours"
    }

    fn set_size(&mut self, size: u32) -> Result<()> {
        // The ports must be free before they are connected again.
        (self.lean, self.neighbours) = (None, Vec::new());
        for (at, flood) in FLOODS.into_iter().enumerate() {
            let mut neighbour = Lean::connect(LeanConfig {
                frame_len: flood.size,
                queue_size: flood.queue_size,
                batch: flood.batch,
                window: Some(u64::from(flood.queue_size / 2)),
                ..self.of_pair(at + 1)
            })?;
            neighbour.run(Until::Sent(1))?;
            self.neighbours.push(neighbour);
        }
        let frame_len = u16::try_from(size)?;
        let mut lean = Lean::connect(LeanConfig {
            frame_len,
            ..self.of_pair(0)
        })?;
        // A switch that learns sees where both addresses are.
        lean.run(Until::Sent(1))?;
        self.lean = Some(lean);
        Ok(())
    }

    fn warm_up(&mut self, time: Duration) -> Result<()> {
        self.run(time).map(drop)
    }

    fn mpps(&mut self, window: Duration) -> Result<f64> {
        let report = self.run(window)?;
        let received = report.received as f64;
        let mpps = received / report.elapsed.as_secs_f64().max(1e-9) / 1e6;
        self.last = Some(report);
        Ok(mpps)
    }

    fn paced(&self) -> Option<&PacedReport> {
        self.last.as_ref()
    }
}
