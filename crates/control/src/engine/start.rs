//! What a new control process is given, by the supervisor and by the switch.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use channel::limits::Limits;
use channel::link::{Link, Received};
use channel::mirrors::Mirror;
use channel::shared::Region;
use channel::supervision::{Ask, Tell};
use channel::switching::{Order, PortConfig, Report, StationUse};
use port::PortId;

use super::peers::SwitchPeer;

/// What [`Tell::StartControl`] brings.
pub(super) struct Start {
    pub(super) runtime_dir: PathBuf,
    pub(super) switch: OwnedFd,
    pub(super) api: OwnedFd,
    pub(super) state: OwnedFd,
    pub(super) counters: OwnedFd,
    /// Another control serves the API still.
    pub(super) frozen: bool,
}

/// Waits for the supervisor's first message.
pub(super) fn receive_start(link: &mut Link<Ask, Tell>) -> io::Result<Start> {
    let bad = || io::Error::other("the supervisor did not say how to start");
    let (runtime_dir, frozen, fds) = match link.recv()? {
        Received::Message(
            Tell::StartControl {
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

/// What the switch hands over.
pub(super) struct Adopted {
    pub(super) epoch: u64,
    pub(super) region: Region,
    pub(super) ports: Vec<PortConfig>,
    pub(super) limits: Vec<(PortId, Limits)>,
    pub(super) mirrors: Vec<Mirror>,
    pub(super) peers: Vec<(PortId, u32)>,
    pub(super) stations: Vec<StationUse>,
}

/// Takes the switch over from whoever had it.
pub(super) fn adopt(switch: &mut SwitchPeer) -> io::Result<Adopted> {
    let (mut region, mut epoch, mut ports, mut stations) = (None, 0, Vec::new(), Vec::new());
    let (mut limits, mut mirrors, mut peers) = (Vec::new(), Vec::new(), Vec::new());
    switch.request(Order::Adopt, &[], |report, fds| match report {
        Report::Adopted {
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
        Report::Stations(part) => {
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
