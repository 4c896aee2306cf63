//! The lean client with super-frames of 64 KiB in both directions, and beside it a plain copy of as
//! many.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use load::lean::{BurstReport, Lean, LeanConfig, LeanReport, Until, memcpy};

use super::{Client, lean};
use crate::peers::Peer;
use crate::plan::{Layout, Plan};
use crate::stop;

/// Entries of a receive queue, as QEMU has them, with buffers of a page, as Linux fills them for
/// large frames.
const QUEUE: u16 = 256;
const RX_BUFFER: u32 = 4096;

/// See the module; connected once its size is set.
pub(crate) struct BulkClient {
    config: LeanConfig,
    switch_core: usize,
    lean: Option<Lean>,
    idle: Option<f64>,
    bursts: Option<BurstReport>,
}

/// Returns the configuration of a client of super-frames.
pub(super) fn config(plan: &Plan, peer: &Peer, layout: Layout) -> LeanConfig {
    with_super_frames(lean::config(plan, peer, layout))
}

/// Returns a configuration with super-frames in place of frames.
pub(crate) fn with_super_frames(config: LeanConfig) -> LeanConfig {
    LeanConfig {
        bulk: true,
        queue_size: QUEUE,
        rx_buffer: RX_BUFFER,
        batch: 1,
        ..config
    }
}

impl BulkClient {
    pub(crate) fn new(plan: &Plan, peer: &Peer, layout: Layout) -> Self {
        Self {
            config: config(plan, peer, layout),
            switch_core: plan.cores[0],
            lean: None,
            idle: None,
            bursts: None,
        }
    }

    /// A run whose frames arrived as they were sent.
    fn run(&mut self, until: Until) -> Result<LeanReport> {
        stop::check()?;
        let lean = self.lean.as_mut().context("the client is not connected")?;
        let report = lean.run(until)?;
        if report.ports.iter().any(|port| port.strange > 0) {
            bail!("super-frames do not arrive whole");
        }
        Ok(report)
    }
}

impl Client for BulkClient {
    fn name(&self) -> &'static str {
        "lean, bulk"
    }

    /// Connects; super-frames have one size.
    fn set_size(&mut self, _size: u32) -> Result<()> {
        // The ports must be free before they are connected again.
        self.lean = None;
        self.lean = Some(Lean::connect(self.config.clone())?);
        // A switch that learns sees where both addresses are.
        self.run(Until::Sent(1)).map(drop)
    }

    fn warm_up(&mut self, time: Duration) -> Result<()> {
        self.run(Until::Elapsed(time)).map(drop)
    }

    /// Half of the time without a pause, the other half in bursts.
    fn mpps(&mut self, window: Duration) -> Result<f64> {
        let report = self.run(Until::Elapsed(window / 2))?;
        self.idle = Some(1.0 - report.working());
        // A switch that has not noticed both ports yet would lose a burst.
        if report.ports.iter().any(|port| port.received == 0) {
            return Ok(0.0);
        }
        let lean = self.lean.as_mut().context("the client is not connected")?;
        self.bursts = Some(lean.bursts(window / 2)?);
        Ok(report.mpps())
    }

    fn idle(&self) -> Option<f64> {
        self.idle
    }

    fn reference(&self, window: Duration) -> Result<Option<BurstReport>> {
        Ok(Some(memcpy(&self.config, self.switch_core, window / 2)?))
    }

    fn bursts(&self) -> Option<&BurstReport> {
        self.bursts.as_ref()
    }
}
