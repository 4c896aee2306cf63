//! The lean client with frames that no switch has seen before: as fast as they are let through, or
//! at a given rate.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use load::lean::{Head, Histogram, Lean, LeanConfig, Pace, PacedReport, Until};

use super::{Client, lean};
use crate::peers::Peer;
use crate::plan::{Layout, Plan};
use crate::relay::{Cores, relay};
use crate::stop;

/// Frames that may be on their way from each port: no switch that keeps frames while it decides
/// runs out of room.
const WINDOW: u64 = 96;
/// Frames of the first of several runs, from each port.
const FIRST: u64 = 256;

/// How frames are sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    /// So many from each port, each when there is room for it.
    AsManyAsFit(u64),
    /// So many a second from one port.
    Paced(u32),
}

/// See the module; connected once it knows the size of its frames. Its heads must be for frames of
/// this size.
pub(crate) struct NewFlowsClient {
    config: LeanConfig,
    cores: Cores,
    way: Way,
    lean: Option<Lean>,
    last: Option<PacedReport>,
}

impl NewFlowsClient {
    pub(crate) fn new(plan: &Plan, peer: &Peer, heads: Arc<[Head]>, way: Way) -> Self {
        let window = match way {
            Way::AsManyAsFit(_) => Some(WINDOW),
            Way::Paced(_) => None,
        };
        let config = LeanConfig {
            heads,
            window,
            ..lean::config(plan, peer, Layout::Split)
        };
        Self {
            config,
            cores: Cores {
                client: plan.cores[1],
                switch: plan.cores[0],
                control: plan.spare().unwrap_or(plan.cores[0]),
            },
            way,
            lean: None,
            last: None,
        }
    }

    /// Millions of frames that arrived in a second.
    fn run(&mut self, count: u64, time: Duration) -> Result<f64> {
        stop::check()?;
        let lean = self.lean.as_mut().context("the client is not connected")?;
        match self.way {
            Way::AsManyAsFit(_) => Ok(lean.run(Until::Sent(count))?.mpps()),
            Way::Paced(rate) => {
                let pace = Pace {
                    rate: f64::from(rate),
                    poisson: false,
                };
                let report = lean.paced(pace, time)?;
                let rate = report.received as f64 / report.elapsed.as_secs_f64().max(1e-9);
                self.last = Some(report);
                Ok(rate / 1e6)
            }
        }
    }
}

impl Client for NewFlowsClient {
    fn name(&self) -> &'static str {
        "lean, new flows"
    }

    fn set_size(&mut self, size: u32) -> Result<()> {
        self.lean = None;
        self.config.frame_len = u16::try_from(size)?;
        let mut lean = Lean::connect(self.config.clone())?;
        // A switch that learns sees where both addresses are.
        lean.run(Until::Sent(1))?;
        self.lean = Some(lean);
        Ok(())
    }

    fn warm_up(&mut self, time: Duration) -> Result<()> {
        self.run(FIRST, time).map(drop)
    }

    fn mpps(&mut self, window: Duration) -> Result<f64> {
        let count = match self.way {
            Way::AsManyAsFit(count) => count,
            Way::Paced(_) => 0,
        };
        self.run(count, window)
    }

    fn meets_new_flows(&self) -> bool {
        true
    }

    fn wake_ups(&self, window: Duration) -> Result<Option<Histogram>> {
        match self.way {
            Way::AsManyAsFit(_) => Ok(None),
            Way::Paced(rate) => relay(self.cores, rate, window).map(Some),
        }
    }

    fn paced(&self) -> Option<&PacedReport> {
        self.last.as_ref()
    }
}
