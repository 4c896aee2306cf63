//! The lean client at a given rate, in one direction: it measures how long frames are on their way.

use std::time::Duration;

use anyhow::{Context as _, Result};
use load::lean::{Lean, LeanConfig, Pace, PacedReport, Until};

use super::{Client, lean};
use crate::peers::Peer;
use crate::plan::{Layout, Plan};
use crate::stop;

/// See the module; connected once it knows the size of its frames.
pub(crate) struct PacedClient {
    config: LeanConfig,
    pace: Pace,
    lean: Option<Lean>,
    last: Option<PacedReport>,
}

impl PacedClient {
    pub(crate) fn new(plan: &Plan, peer: &Peer, layout: Layout, rate: u32) -> Self {
        let pace = Pace {
            rate: f64::from(rate),
            poisson: false,
        };
        Self {
            config: LeanConfig {
                // As guests of Linux.
                event_index: layout == Layout::Split,
                ..lean::config(plan, peer, layout)
            },
            pace,
            lean: None,
            last: None,
        }
    }

    /// Sets the rate in frames per second.
    pub(crate) fn set_rate(&mut self, rate: f64) {
        self.pace.rate = rate;
    }

    fn run(&mut self, time: Duration) -> Result<PacedReport> {
        stop::check()?;
        let lean = self.lean.as_mut().context("the client is not connected")?;
        Ok(lean.paced(self.pace, time)?)
    }
}

impl Client for PacedClient {
    fn name(&self) -> &'static str {
        "lean, paced"
    }

    fn set_size(&mut self, size: u32) -> Result<()> {
        // The ports must be free before they are connected again.
        self.lean = None;
        self.config.frame_len = u16::try_from(size)?;
        let mut lean = Lean::connect(self.config.clone())?;
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
