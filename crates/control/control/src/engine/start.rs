//! Start of a control process: messages from the supervisor and the switch.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use ipc::limits::Limits;
use ipc::link::{Link, LinkEvent};
use ipc::mirrors::Mirror;
use ipc::shared::Region;
use ipc::supervision::{ControlRequest, EventToControl};
use ipc::switching::{PortConfig, StationUse, SwitchCommand, SwitchEvent};
use port::PortId;
use sys::foreign::ForeignFd;

use super::links::switch::SwitchLink;

/// Contents of [`EventToControl::Start`].
pub(crate) struct Start {
    pub(super) runtime_dir: PathBuf,
    pub(super) switch: OwnedFd,
    pub(crate) api: ForeignFd,
    pub(super) state: OwnedFd,
    pub(super) counters: OwnedFd,
    /// Another control still serves the API.
    pub(crate) frozen: bool,
}

/// Waits for the supervisor's first message.
pub(crate) fn receive_start(link: &mut Link<ControlRequest, EventToControl>) -> io::Result<Start> {
    let bad = || io::Error::other("no start message from the supervisor");
    let (runtime_dir, frozen, fds) = match link.recv()? {
        LinkEvent::Message(
            EventToControl::Start {
                runtime_dir,
                frozen,
            },
            fds,
        ) => (runtime_dir, frozen, fds),
        LinkEvent::Closed => return Err(io::ErrorKind::BrokenPipe.into()),
        _ => return Err(bad()),
    };
    let [switch, api, state, counters] = <[ForeignFd; 4]>::try_from(fds).map_err(|_| bad())?;
    Ok(Start {
        runtime_dir: runtime_dir.into(),
        switch: switch.vouch(),
        api,
        state: state.vouch(),
        counters: counters.vouch(),
        frozen,
    })
}

/// State of the switch that control adopts.
pub(super) struct AdoptedState {
    pub(super) epoch: u64,
    pub(super) region: Region,
    pub(super) ports: Vec<PortConfig>,
    pub(super) limits: Vec<(PortId, Limits)>,
    pub(super) mirrors: Vec<Mirror>,
    pub(super) peers: Vec<(PortId, u32)>,
    pub(super) without_listener: Vec<PortId>,
    pub(super) stations: Vec<StationUse>,
}

/// Adopts the state of the switch.
pub(super) fn adopt(
    switch: &mut SwitchLink,
) -> impl Future<Output = io::Result<AdoptedState>> + use<> {
    let reply = switch.request(SwitchCommand::Adopt, Vec::new());
    async move {
        let (mut adopted, mut stations) = (None, Vec::new());
        for (event, fds) in reply.await? {
            match event {
                SwitchEvent::Stations(part) => stations.extend(part),
                event => adopted = Some((event, fds)),
            }
        }
        let no_rings = || io::Error::other("the switch sent no rings");
        let Some((
            SwitchEvent::Adopted {
                epoch,
                ports,
                limits,
                mirrors,
                peers,
                without_listener,
            },
            fds,
        )) = adopted
        else {
            return Err(no_rings());
        };
        let fds = <[ForeignFd; 3]>::try_from(fds).map_err(|_| no_rings())?;
        let [memory, upcall_bell, answer_bell] = fds.map(ForeignFd::vouch);
        Ok(AdoptedState {
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
            without_listener,
            stations,
        })
    }
}
