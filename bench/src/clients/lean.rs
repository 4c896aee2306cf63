//! The project's own client, in this process: it runs while it is asked for figures, and only then.

use std::time::Duration;

use anyhow::{Context as _, Result};
use load::lean::{Lean, LeanConfig, LeanReport, Until};

use super::{Client, bulk};
use crate::peers::Peer;
use crate::plan::{Layout, Plan};
use crate::stop;

/// Returns the configuration of every client of this kind.
pub(crate) fn config(plan: &Plan, peer: &Peer, layout: Layout) -> LeanConfig {
    LeanConfig {
        sockets: peer.sockets().to_vec(),
        listen: peer.client_listens(),
        packed: layout == Layout::Packed,
        slots: layout == Layout::Slots,
        cpu: Some(plan.cores[1]),
        ..LeanConfig::default()
    }
}

/// A lean client; connected once it knows the size of its frames.
pub(crate) struct LeanClient {
    config: LeanConfig,
    lean: Option<Lean>,
    idle: Option<f64>,
}

impl LeanClient {
    pub(crate) fn new(plan: &Plan, peer: &Peer, layout: Layout, flows: u32) -> Self {
        let config = LeanConfig {
            flows,
            ..config(plan, peer, layout)
        };
        Self {
            config,
            lean: None,
            idle: None,
        }
    }

    /// One that reads the head of every frame that it receives and writes into every frame that it
    /// sends.
    pub(crate) fn guest(plan: &Plan, peer: &Peer, layout: Layout, flows: u32) -> Self {
        let mut client = Self::new(plan, peer, layout, flows);
        client.config.touch = true;
        client.config.rewrite = true;
        client
    }

    /// One that sends super-frames, without a pause.
    pub(crate) fn bulk(plan: &Plan, peer: &Peer, layout: Layout) -> Self {
        Self {
            config: bulk::config(plan, peer, layout),
            lean: None,
            idle: None,
        }
    }

    fn run(&mut self, until: Until) -> Result<LeanReport> {
        stop::check()?;
        let lean = self.lean.as_mut().context("the client is not connected")?;
        Ok(lean.run(until)?)
    }
}

impl Client for LeanClient {
    fn name(&self) -> &'static str {
        "lean"
    }

    fn set_size(&mut self, size: u32) -> Result<()> {
        // The ports must be free before they are connected again.
        self.lean = None;
        self.config.frame_len = u16::try_from(size)?;
        self.lean = Some(Lean::connect(self.config.clone())?);
        // A switch that learns sees where both addresses are.
        self.run(Until::Sent(1)).map(drop)
    }

    fn warm_up(&mut self, time: Duration) -> Result<()> {
        self.run(Until::Elapsed(time)).map(drop)
    }

    fn mpps(&mut self, window: Duration) -> Result<f64> {
        let report = self.run(Until::Elapsed(window))?;
        self.idle = Some(report.idle);
        Ok(report.mpps())
    }

    fn idle(&self) -> Option<f64> {
        self.idle
    }
}
