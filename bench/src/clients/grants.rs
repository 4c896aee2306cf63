//! The lean client behind an IOMMU: frames from one port to the other, of which either or both have
//! one.

use std::time::Duration;

use anyhow::{Result, ensure};
use load::lean::{
    Grants, Lean, LeanConfig, LeanReport, Probed, SUPER_FRAME_LEN, SinglyReport, Until,
};
use testkit::packets::{BROADCAST, mac};

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
    /// Frames go to all ports of the switch, and not to the receiver alone.
    pub(crate) to_all: bool,
}

impl Mapped {
    fn ports(self) -> Vec<Option<Grants>> {
        let port = |other| self.mode.filter(|_| self.behind != other);
        vec![port(Behind::Receiver), port(Behind::Sender)]
    }
}

/// A back end that dials does so again after some seconds.
const DIALLED: Duration = Duration::from_secs(30);
/// How long a switch may take until the first frames arrive.
const FIRST: Duration = Duration::from_secs(5);

/// See the module.
pub(crate) struct GrantsClient(Lean);

impl GrantsClient {
    /// Connects, with frames of `size` bytes, super-frames if that is their size, and queues of so
    /// many entries.
    pub(crate) fn connect(
        plan: &Plan,
        peer: &Peer,
        (size, queue_size, layout): (u32, u16, Layout),
        mapped: Mapped,
    ) -> Result<Self> {
        let config = if size == u32::from(SUPER_FRAME_LEN) {
            bulk::config(plan, peer, layout)
        } else {
            LeanConfig {
                frame_len: u16::try_from(size)?,
                batch: mapped.batch,
                ..lean::config(plan, peer, layout)
            }
        };
        let receiver = if mapped.to_all { BROADCAST } else { mac(2) };
        let mut lean = Lean::connect(LeanConfig {
            sockets: config.sockets[..2].to_vec(),
            macs: vec![mac(1), receiver],
            queue_size,
            // Buffers come back by their elements, which a device that is in order need not write.
            in_order: false,
            grants: mapped.ports(),
            timeout: DIALLED,
            ..config
        })?;
        if !mapped.to_all {
            // A switch that learns sees where both addresses are.
            stop::try_wait("frames arrive", FIRST, || {
                let report = lean.run(Until::Sent(1))?;
                let arrived = report.ports.iter().all(|port| port.received > 0);
                Ok(arrived.then_some(()))
            })?;
        }
        lean.one_way();
        Ok(Self(lean))
    }

    /// Sends messages for the sender's port while frames flow, or no more; see [`Lean::probe`].
    pub(crate) fn probe(&mut self, on: bool) -> Result<Option<Probed>> {
        Ok(self.0.probe(on)?)
    }

    /// Sends one frame after the other for a time; see [`Lean::singly`].
    pub(crate) fn singly(&mut self, time: Duration) -> Result<SinglyReport> {
        stop::check()?;
        Ok(self.0.singly(time)?)
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
