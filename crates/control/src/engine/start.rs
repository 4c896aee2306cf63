//! Start of a control process: messages from the supervisor and the switch.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use channel::limits::Limits;
use channel::link::{Link, Received};
use channel::mirrors::Mirror;
use channel::shared::Region;
use channel::supervision::{SupervisorEvent, SupervisorRequest};
use channel::switching::{PortConfig, StationUse, SwitchCommand, SwitchEvent};
use port::PortId;

use super::peers::SwitchPeer;

/// Contents of [`SupervisorEvent::StartControl`].
pub(super) struct Start {
    pub(super) runtime_dir: PathBuf,
    pub(super) switch: OwnedFd,
    pub(super) api: OwnedFd,
    pub(super) state: OwnedFd,
    pub(super) counters: OwnedFd,
    /// Another control still serves the API.
    pub(super) frozen: bool,
}

/// Waits for the supervisor's first message.
pub(super) fn receive_start(
    link: &mut Link<SupervisorRequest, SupervisorEvent>,
) -> io::Result<Start> {
    let bad = || io::Error::other("no start message from the supervisor");
    let (runtime_dir, frozen, fds) = match link.recv()? {
        Received::Message(
            SupervisorEvent::StartControl {
                runtime_dir,
                frozen,
            },
            fds,
        ) => (runtime_dir, frozen, fds),
        _ => return Err(bad()),
    };
    let [switch, api, state, counters] = <[OwnedFd; 4]>::try_from(fds).map_err(|_| bad())?;
    Ok(Start {
        runtime_dir: runtime_dir.into(),
        switch,
        api,
        state,
        counters,
        frozen,
    })
}

/// State of the switch that control adopts.
pub(super) struct Adopted {
    pub(super) epoch: u64,
    pub(super) region: Region,
    pub(super) ports: Vec<PortConfig>,
    pub(super) limits: Vec<(PortId, Limits)>,
    pub(super) mirrors: Vec<Mirror>,
    pub(super) peers: Vec<(PortId, u32)>,
    pub(super) stations: Vec<StationUse>,
}

/// Adopts the state of the switch.
pub(super) fn adopt(switch: &mut SwitchPeer) -> io::Result<Adopted> {
    let (mut region, mut epoch, mut ports, mut stations) = (None, 0, Vec::new(), Vec::new());
    let (mut limits, mut mirrors, mut peers) = (Vec::new(), Vec::new(), Vec::new());
    switch.request(SwitchCommand::Adopt, &[], |report, fds| match report {
        SwitchEvent::Adopted {
            epoch: running,
            ports: all,
            limits: held_to,
            mirrors: copied,
            peers: alone,
        } => {
            (epoch, ports, limits, mirrors) = (running, all, held_to, copied);
            peers = alone;
            region = <[OwnedFd; 3]>::try_from(fds).ok();
            None
        }
        SwitchEvent::Stations(part) => {
            stations.extend(part);
            None
        }
        other => Some(other),
    })?;
    let [memory, upcall_bell, answer_bell] =
        region.ok_or_else(|| io::Error::other("the switch sent no rings"))?;
    Ok(Adopted {
        epoch,
        region: Region {
            memory,
            upcall_bell,
            answer_bell,
        },
        ports,
        limits,
        mirrors,
        peers,
        stations,
    })
}
