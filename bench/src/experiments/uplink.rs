//! An uplink that is slower than its senders. The guest at port 0 is at the far end of a wire with
//! a shaper, of which the switch knows nothing but that the interface takes no more.
//!
//! ```text
//! senders, others - up - up0, shaped -- wire0 - far - port 0
//! ```

use std::process::Command;

use anyhow::{Context as _, Result, bail};
use e2e::lasthop::port_table;
use e2e::uplinks::wire;
use tempfile::TempDir;
use testkit::netns::Netns;

use crate::clients::streams::Guests;
use crate::folders;
use crate::peers::{Peer, lasthop};
use crate::plan::Plan;

/// Bytes that the shaper sends at once, more than a super-frame, and those that it keeps.
const SHAPER: &str = "burst 128k limit 16m";

/// Treatment of frames that the interface does not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    Hold,
    Drop,
}

impl Full {
    pub(super) const ALL: [Self; 2] = [Self::Hold, Self::Drop];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Drop => "drop",
        }
    }
}

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Uplink {
    /// Bits a second of the shaper.
    pub(super) rate: u64,
    pub(super) full: Full,
    /// Ports beside the receiver's.
    pub(super) ports: usize,
    /// Queue pairs of each.
    pub(super) pairs: u16,
}

/// A running one. What is started last ends first.
pub(super) struct Running {
    pub(super) guests: Guests,
    _peer: Peer,
    _netns: [Netns; 2],
    _folder: TempDir,
}

impl Uplink {
    pub(super) fn start(self, plan: &Plan) -> Result<Running> {
        if !Netns::allowed() {
            bail!("there are no network namespaces here");
        }
        let folder = folders::new("wire")?;
        let netns = ["near", "far"].map(|name| Netns::new(name, folder.path()));
        wire(&netns[0], &netns[1]);
        self.shape(&netns[0])?;
        let peer = lasthop::with_text(
            plan,
            &plan.cores[..1],
            &self.configuration(&netns),
            self.ports + 1,
        )?;
        let guests = Guests::attach(&peer, self.pairs, plan.cores[1])?;
        Ok(Running {
            guests,
            _peer: peer,
            _netns: netns,
            _folder: folder,
        })
    }

    fn shape(self, netns: &Netns) -> Result<()> {
        let command = format!("qdisc add dev up0 root tbf rate {}bit {SHAPER}", self.rate);
        let status = netns.run(|| Command::new("tc").args(command.split(' ')).status());
        let done = status.context("tc does not run")?.success();
        done.then_some(()).with_context(|| format!("tc {command}"))
    }

    fn configuration(self, netns: &[Netns; 2]) -> String {
        let guest = |port: usize| {
            let segment = if port == 0 { "far" } else { "near" };
            let table = port_table(&format!("p{port}"), segment);
            format!("{table}queues = {}\n", self.pairs)
        };
        let uplink = |name: &str, interface: &str, netns: &Netns| {
            format!(
                "[[port]]\nname = \"{name}\"\nkind = \"uplink\"\ninterface = \"{interface}\"\n\
                 driver = \"packet\"\nsegment = \"{name}\"\nnetns = \"{}\"\n",
                netns.path().display()
            )
        };
        let guests: String = (0..=self.ports).map(guest).collect();
        format!(
            "[switch]\nname = \"bench\"\n[[segment]]\nname = \"near\"\n[[segment]]\n\
             name = \"far\"\n{guests}{}{}[port.egress]\nfull = \"{}\"\n",
            uplink("far", "wire0", &netns[1]),
            uplink("near", "up0", &netns[0]),
            self.full.name()
        )
    }
}
