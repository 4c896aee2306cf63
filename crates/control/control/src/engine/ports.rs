//! The ports as switch and supervisor have them: what a change compares the desired state with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipc::driving::UserNetwork;
use ipc::egress::{OutputConfig, SenderQos};
use ipc::limits::Limits;
use ipc::mirrors::Mirror;
use ipc::owners::SocketOwner;
use ipc::sockets::SocketType;
use ipc::switching::{PortConfig, Role};
use port::PortId;
use sys::foreign::ForeignFd;

use super::links::supervisor::Dials;

/// A listening socket for metrics.
#[derive(Clone, Debug)]
pub(super) struct MetricsSocket {
    /// Path or address by which the supervisor knows it.
    pub(super) path: String,
    pub(super) socket: Arc<ForeignFd>,
}

/// Scheduling as the switch has it.
#[derive(Debug, Default)]
pub(super) struct Qos {
    /// Priority code points by class.
    pub(super) code_points: Vec<Option<u8>>,
    /// They are not known.
    pub(super) unknown_classes: bool,
    /// Settings of senders that have any.
    pub(super) senders: BTreeMap<PortId, SenderQos>,
    /// Outputs of scheduled ports.
    pub(super) outputs: BTreeMap<PortId, OutputConfig>,
    /// Ports of which neither is known.
    pub(super) unknown: BTreeSet<PortId>,
    /// Outputs of which a sender was removed: the switch has others than control sent.
    pub(super) changed: BTreeSet<PortId>,
}

impl Qos {
    /// Returns whether nothing is scheduled.
    pub(super) fn is_nothing(&self) -> bool {
        let no_class = self.code_points.is_empty() && !self.unknown_classes;
        let usual = SenderQos::default();
        let no_sender = self.senders.values().all(|qos| *qos == usual);
        let all_known = self.unknown.is_empty() && self.changed.is_empty();
        no_class && no_sender && self.outputs.is_empty() && all_known
    }

    /// Adopts the scheduling of a switch with these ports: it is sent anew, since a change may have
    /// been interrupted.
    pub(super) fn adopt(&mut self, ports: impl Iterator<Item = PortId>) {
        self.unknown_classes = true;
        self.unknown = ports.collect();
    }

    /// Forgets a removed port.
    fn remove(&mut self, id: PortId) {
        self.senders.remove(&id);
        self.outputs.remove(&id);
        self.unknown.remove(&id);
        self.changed.remove(&id);
        let is_sender = |output: &OutputConfig| output.senders.iter().any(|s| s.port == id.0);
        let changed = self.outputs.iter().filter(|(_, output)| is_sender(output));
        self.changed.extend(changed.map(|(output, _)| *output));
    }
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Ports {
    /// Ports of the switch.
    pub(super) configs: BTreeMap<PortId, PortConfig>,
    /// Users that alone may connect, by port; a port without an entry has no such restriction.
    pub(super) peers: BTreeMap<PortId, u32>,
    /// Listening sockets of the supervisor by path: the owner, and the user that alone may connect.
    pub(super) sockets: BTreeMap<String, (SocketOwner, Option<u32>)>,
    /// Rate limits of the ports that have any.
    pub(super) limits: BTreeMap<PortId, Limits>,
    /// Scheduling of the ports.
    pub(super) qos: Qos,
    /// The networks of user ports that the supervisor has.
    pub(super) user_networks: Vec<(String, UserNetwork)>,
    /// The bytes that may wait in some interface are bounded.
    pub(super) has_rooms: bool,
    /// Mirrors of the switch.
    pub(super) mirrors: Vec<Mirror>,
    /// The sockets to connect to that were sent last, if they are known to be accepted.
    pub(super) dials: Option<Dials>,
    /// Socket on which metrics are served.
    pub(super) metrics: Option<MetricsSocket>,
}

impl Ports {
    /// Returns the name of a port.
    pub(super) fn name(&self, id: PortId) -> &str {
        self.configs.get(&id).map_or("?", |p| p.name.as_str())
    }

    /// Returns whether a port of the switch listens at this path.
    pub(super) fn listens(&self, path: &str) -> bool {
        let server = |p: &PortConfig| p.role == Role::Server;
        self.configs.values().any(|p| server(p) && p.socket == path)
    }

    /// Returns whether a port of the switch listens at this path with a socket of this type.
    pub(super) fn has_type(&self, path: &str, of: SocketType) -> bool {
        let mut configs = self.configs.values();
        configs.any(|port| port.socket == path && port.clients.socket_type() == of)
    }

    /// Returns whether the supervisor listens at this path with this owner.
    pub(super) fn is_owned(&self, path: &str, owner: &SocketOwner) -> bool {
        self.sockets.get(path).is_some_and(|(of, _)| of == owner)
    }

    /// Removes a port, also from the mirrors, as the switch does. Returns its configuration.
    pub(super) fn remove(&mut self, id: PortId) -> Option<PortConfig> {
        self.limits.remove(&id);
        self.peers.remove(&id);
        self.qos.remove(id);
        let mirrors = std::mem::take(&mut self.mirrors).into_iter();
        self.mirrors = mirrors.filter_map(|mirror| mirror.without(id)).collect();
        self.configs.remove(&id)
    }
}
