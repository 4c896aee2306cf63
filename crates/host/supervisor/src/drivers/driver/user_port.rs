//! Parts of a driver that only a user port has: its network, and the things that outlive its
//! process.

#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use interfaces::device::Device;
use ipc::driving::{Listen, RefusedForwards, UserNetwork};
use ipc::forwards::{ListenRefusal, PermittedListen};
use ipc::supervision::{EventToDriver, UserDriverRequest};
use ipc::user_reports::{UserFigures, UserTotals};
use sys::foreign::ForeignFd;

use super::DriverChild;
use super::flows::KeptFlows;
use super::forwards::{ForwardError, Forwards, Share};
use super::questions::Questions;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct UserPort {
    /// The network as control has sent it.
    desired: Option<UserNetwork>,
    /// With the host's resolvers, and the number of ports that share its namespace.
    effective: Option<UserNetwork>,
    /// As the process has it.
    sent: Option<UserNetwork>,
    /// Once it has had a process.
    pub(super) flows: Option<KeptFlows>,
    pub(super) forwards: Forwards,
    pub(super) questions: Questions,
    /// The process has no way out.
    is_denied: bool,
    /// As the process has reported them.
    figures: Option<UserFigures>,
    /// Counters of the processes before.
    totals_before: UserTotals,
}

/// The problem of a port to which the system denies all IP packets.
const DENIED: &str = "all IP packets are denied (IPAddressDeny= of systemd): \
                      /usr/share/lasthop/user-network.conf is a drop-in that permits them";

/// Returns whether flows can stay when one network takes the place of another.
fn can_follow(from: &UserNetwork, to: &UserNetwork) -> bool {
    let fixed = |of: &UserNetwork| (of.network.clone(), of.network6.clone(), of.mac, of.mtu);
    fixed(from) == fixed(to)
}

/// Opens the listening socket of a forward, if it may listen there.
fn open(
    listen: Listen,
    device: &Device,
    permit: impl Fn(Listen) -> Result<PermittedListen, ListenRefusal>,
) -> Result<OwnedFd, ForwardError> {
    Ok(device.listen(permit(listen)?)?)
}

impl UserPort {
    /// Sets the network, or none for a port of another kind. Returns whether a process that runs
    /// has another one.
    pub(super) fn set_network(&mut self, desired: Option<UserNetwork>) -> bool {
        let both = desired.as_ref().zip(self.sent.as_ref());
        let stays = both.is_none_or(|(new, old)| can_follow(old, new));
        self.desired = desired;
        if !stays {
            // The guests of its flows are in another network.
            (self.sent, self.flows) = (None, None);
        }
        !stays
    }

    /// Fills in the host's resolvers, and the number of user ports with the same namespace; opens
    /// the permitted listening sockets of forwards, and has a process that runs follow.
    pub(super) fn follow(
        &mut self,
        (resolvers, sharers, share): (&[SocketAddr], u32, Share),
        device: Option<&Device>,
        process: Option<&DriverChild>,
        permit: impl Fn(Listen) -> Result<PermittedListen, ListenRefusal>,
    ) {
        if let Some((network, device)) = self.desired.as_ref().zip(device)
            && self.forwards.set(
                &network.forwards,
                share,
                |listen| open(listen, device, &permit),
                Instant::now(),
            )
            && let Some(process) = process
        {
            // A process whose link is full does not answer pings either.
            let _ = process.try_send(&EventToDriver::ForwardsChanged, &[]);
        }
        self.effective = self.desired.clone().map(|mut network| {
            if network.dns && network.resolvers.is_empty() {
                network.resolvers = resolvers.to_vec();
            }
            network.sharers = sharers;
            network
        });
        if self.sent.is_some()
            && self.sent != self.effective
            && let Some(process) = process
        {
            self.send(process);
        }
    }

    /// Sends the network to a process. One whose link is full does not answer pings either.
    fn send(&mut self, process: &DriverChild) {
        let Some(network) = self.effective.clone() else {
            return;
        };
        let event = EventToDriver::UserNetwork(network.clone().into());
        if process.try_send(&event, &[]).is_ok() {
            self.sent = Some(network);
        }
    }

    /// Returns the problem of a port that has a process.
    pub(super) fn problem(&self) -> Option<String> {
        let denied = self.is_denied.then(|| DENIED.to_owned());
        denied.or_else(|| {
            let refused = self.forwards.refused().iter();
            let refused: Vec<_> = refused.map(ToString::to_string).collect();
            (!refused.is_empty()).then(|| refused.join("; "))
        })
    }

    /// Returns the forwards that are refused.
    pub(super) fn refused(&self) -> Vec<RefusedForwards> {
        self.forwards.refused().to_vec()
    }

    /// Returns the MAC address of the gateway, if the network is known.
    pub(super) fn mac(&self) -> Option<[u8; 6]> {
        self.desired.as_ref().map(|network| network.mac)
    }

    /// Returns the figures that a process has reported, with the counters of all before it.
    pub(super) fn figures(&self) -> Option<UserFigures> {
        let figures = self.figures?;
        let totals = self.totals_before.plus(&figures.totals);
        Some(UserFigures { totals, ..figures })
    }

    /// Returns whether the network is known, which a process needs.
    pub(super) fn is_known(&self) -> bool {
        self.effective.is_some()
    }

    /// Sends a new process the network, and the memory for records of flows and leases.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn start(&mut self, process: &DriverChild) -> io::Result<()> {
        (self.sent, self.is_denied) = (None, false);
        self.questions.begin();
        if let Some(before) = &mut self.figures {
            let totals = std::mem::take(&mut before.totals);
            self.totals_before = self.totals_before.plus(&totals);
        }
        self.send(process);
        let flows = match &mut self.flows {
            Some(flows) => flows,
            none => none.insert(KeptFlows::new()?),
        };
        flows.begin();
        self.forwards.begin();
        let (records, slots) = flows.records();
        process.try_send(&EventToDriver::FlowRecords { slots }, &[records])
    }

    /// Handles a message of the process. Returns `false` for one that no driver sends. A process
    /// whose link is full does not answer pings either. `kept_most`: so many of its flows may
    /// outlive it.
    pub(super) fn handle(
        &mut self,
        request: UserDriverRequest,
        fds: Vec<ForeignFd>,
        (process, kept_most): (&DriverChild, u64),
    ) -> bool {
        let Some(flows) = &mut self.flows else {
            return false;
        };
        match request {
            UserDriverRequest::NextFlows => {
                let (slots, sockets) = flows.next();
                let _ = process.try_send(&EventToDriver::KeptFlows(slots), &sockets);
            }
            UserDriverRequest::NetworkDenied => {
                tracing::warn!("{DENIED}");
                self.is_denied = true;
            }
            UserDriverRequest::Page(page) => return self.questions.answered(page),
            UserDriverRequest::Figures(figures) => self.figures = Some(*figures),
            UserDriverRequest::NextForwards => {
                let (part, sockets) = self.forwards.next();
                let _ = process.try_send(&EventToDriver::Forwards(part), &sockets);
            }
            UserDriverRequest::KeepFlows(slots) => {
                if !flows.keep(&slots, fds, kept_most) {
                    return false;
                }
                let _ = process.try_send(&EventToDriver::FlowsTaken, &[]);
            }
            UserDriverRequest::DropFlows(slots) => {
                flows.drop(&slots);
                let _ = process.try_send(&EventToDriver::FlowsTaken, &[]);
            }
        }
        true
    }
}
