//! The lean client behind an IOMMU: frames from one port to the other, of which either or both have
//! one.

use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::lean::{Grants, Lean, LeanConfig, LeanReport, SUPER_FRAME_LEN, Until};

use super::{bulk, lean};
use crate::peers::Peer;
use crate::plan::{Layout, Plan};
use crate::stop;

/// Which ports have an IOMMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behind {
    Sender,
    Receiver,
    Both,
}

/// How a client has its pages mapped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mapped {
    pub(crate) behind: Behind,
    /// None: neither port has an IOMMU.
    pub(crate) mode: Option<Grants>,
    /// Frames that are offered together.
    pub(crate) batch: u16,
}

impl Mapped {
    fn ports(self) -> Vec<Option<Grants>> {
        let port = |other| self.mode.filter(|_| self.behind != other);
        vec![port(Behind::Receiver), port(Behind::Sender)]
    }
}

/// See the module.
pub(crate) struct GrantsClient(Lean);

impl GrantsClient {
    /// Connects, with frames of `size` bytes, super-frames if that is their size, and queues of so
    /// many entries.
    pub(crate) fn connect(
        plan: &Plan,
        peer: &Peer,
        (size, queue_size): (u32, u16),
        mapped: Mapped,
    ) -> Result<Self> {
        let config = if size == u32::from(SUPER_FRAME_LEN) {
            bulk::config(plan, peer, Layout::Split)
        } else {
            LeanConfig {
                frame_len: u16::try_from(size)?,
                batch: mapped.batch,
                ..lean::config(plan, peer, Layout::Split)
            }
        };
        let mut lean = Lean::connect(LeanConfig {
            queue_size,
            // Buffers come back by their elements, which a device that is in order need not write.
            in_order: false,
            grants: mapped.ports(),
            ..config
        })?;
        // A switch that learns sees where both addresses are.
        lean.run(Until::Sent(1))?;
        lean.one_way();
        Ok(Self(lean))
    }

    /// Lets frames flow for a time; frames that arrived in a second, in thousands, and how many did
    /// in all.
    pub(crate) fn run(&mut self, time: Duration) -> Result<(f64, LeanReport)> {
        stop::check()?;
        let report = self.0.run(Until::Elapsed(time))?;
        let strange: u64 = report.ports.iter().map(|port| port.strange).sum();
        ensure!(strange == 0, "{strange} frames did not arrive whole");
        Ok((1e3 * report.mpps(), report))
    }
}
