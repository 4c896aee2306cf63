//! The lean client with connections: frames of those that are established, or new ones all the
//! time.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use load::lean::{CONNECTIONS, Dialogue, Lean, LeanConfig, Until};

use super::{Client, lean};
use crate::peers::Peer;
use crate::plan::{Layout, Plan};
use crate::stop;

/// How long frames may take to be answered after the client was attached.
const ARRIVE: Duration = Duration::from_secs(10);

/// The use of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Frames of this number of connections, opened beforehand.
    Established(Dialogue, u32),
    /// Connections from their first frame to their last.
    Opened(Dialogue),
    /// UDP datagrams of one port, each of a connection of its own.
    Unanswered,
}

impl Deed {
    /// Frames of a connection, where connections are what is counted.
    pub(crate) fn frames(self) -> Option<u64> {
        match self {
            Self::Established(..) => None,
            Self::Opened(dialogue) => Some(dialogue.frames()),
            Self::Unanswered => Some(1),
        }
    }
}

/// See the module; connected once it knows the size of its frames.
pub(crate) struct ConnectionsClient {
    config: LeanConfig,
    deed: Deed,
    lean: Option<Lean>,
    idle: Option<f64>,
}

impl ConnectionsClient {
    pub(crate) fn new(plan: &Plan, peer: &Peer, deed: Deed) -> Self {
        Self {
            config: lean::config(plan, peer, Layout::Split),
            deed,
            lean: None,
            idle: None,
        }
    }

    /// Millions of frames that arrived in a second, without those of connections that were begun
    /// and not ended.
    fn run(&mut self, time: Duration) -> Result<f64> {
        stop::check()?;
        let lean = self.lean.as_mut().context("the client is not connected")?;
        let (mpps, idle) = match self.deed {
            Deed::Established(..) | Deed::Unanswered => {
                let report = lean.run(Until::Elapsed(time))?;
                (report.mpps(), report.idle)
            }
            Deed::Opened(dialogue) => {
                let report = lean.dialogues(dialogue, time)?;
                (report.rate() * dialogue.frames() as f64 / 1e6, report.idle)
            }
        };
        self.idle = Some(idle);
        Ok(mpps)
    }
}

impl Client for ConnectionsClient {
    fn name(&self) -> &'static str {
        "lean, connections"
    }

    fn set_size(&mut self, size: u32) -> Result<()> {
        self.lean = None;
        self.config.frame_len = u16::try_from(size)?;
        let mut lean = Lean::connect(self.config.clone())?;
        // A switch that learns sees where both addresses are.
        stop::try_wait("frames are answered", ARRIVE, || {
            Ok(lean.establish(Dialogue::Datagrams, 1).ok())
        })?;
        match self.deed {
            Deed::Established(dialogue, count) => {
                ensure!(count <= CONNECTIONS, "too many connections");
                lean.establish(dialogue, count)?;
            }
            Deed::Unanswered => lean.unanswered()?,
            Deed::Opened(_) => {}
        }
        self.lean = Some(lean);
        Ok(())
    }

    fn warm_up(&mut self, time: Duration) -> Result<()> {
        self.run(time).map(drop)
    }

    fn mpps(&mut self, window: Duration) -> Result<f64> {
        self.run(window)
    }

    fn idle(&self) -> Option<f64> {
        self.idle
    }
}
