//! The ports as switch and supervisor have them: what a change compares the desired state with.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Deref;
use std::sync::Arc;

use ipc::capture::Way;
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

impl Ports {
    /// Returns whether a mirror may copy frames that a port sends.
    pub(super) fn is_mirrored(&self, port: PortId) -> bool {
        self.mirrors.iter().any(|mirror| {
            mirror.everything || !mirror.segments.is_empty() || mirror.names(port, Way::In)
        })
    }
}

/// Ports of the switch by number, with those that listen by path.
#[derive(Debug, Default)]
pub(super) struct PortConfigs {
    all: BTreeMap<PortId, PortConfig>,
    listening: HashMap<String, PortId>,
}

impl PortConfigs {
    /// Adds a port, or changes its configuration. Returns the former one.
    pub(super) fn insert(&mut self, id: PortId, config: PortConfig) -> Option<PortConfig> {
        let before = self.remove(&id);
        if config.role == Role::Server {
            self.listening.insert(config.socket.clone(), id);
        }
        self.all.insert(id, config);
        before
    }

    /// Removes a port. Returns its configuration.
    pub(super) fn remove(&mut self, id: &PortId) -> Option<PortConfig> {
        let config = self.all.remove(id)?;
        if self.listening.get(&config.socket) == Some(id) {
            self.listening.remove(&config.socket);
        }
        Some(config)
    }

    /// Returns the port that listens at this path.
    fn listening_at(&self, path: &str) -> Option<&PortConfig> {
        self.all.get(self.listening.get(path)?)
    }
}

impl Deref for PortConfigs {
    type Target = BTreeMap<PortId, PortConfig>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl FromIterator<(PortId, PortConfig)> for PortConfigs {
    fn from_iter<T: IntoIterator<Item = (PortId, PortConfig)>>(all: T) -> Self {
        let mut configs = Self::default();
        for (id, config) in all {
            configs.insert(id, config);
        }
        configs
    }
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Ports {
    /// Ports of the switch.
    pub(super) configs: PortConfigs,
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
    /// Ports that the switch has with a connection of the switch before, and without the socket for
    /// the next one.
    pub(super) without_listener: BTreeSet<PortId>,
    /// They get their sockets once frames are forwarded.
    pub(super) postpones: bool,
}

impl Ports {
    /// Notes ports that lack their listening sockets, and get them later.
    pub(super) fn postpone(&mut self, without_listener: Vec<PortId>) {
        self.without_listener = without_listener.into_iter().collect();
        self.postpones = true;
    }

    /// Returns whether the port that listens at this path gets its socket later.
    pub(super) fn is_postponed(&self, path: &str) -> bool {
        let port = self.configs.listening_at(path);
        self.postpones && port.is_some_and(|port| self.without_listener.contains(&port.id))
    }

    /// Returns whether the port lacks its listening socket, and is to get it now.
    pub(super) fn lacks_listener(&self, id: PortId) -> bool {
        !self.postpones && self.without_listener.contains(&id)
    }

    /// Returns the name of a port.
    pub(super) fn name(&self, id: PortId) -> &str {
        self.configs.get(&id).map_or("?", |p| p.name.as_str())
    }

    /// Returns whether a port of the switch listens at this path.
    pub(super) fn listens(&self, path: &str) -> bool {
        self.configs.listening_at(path).is_some()
    }

    /// Returns whether a port of the switch listens at this path with a socket of this type.
    pub(super) fn has_type(&self, path: &str, of: SocketType) -> bool {
        let port = self.configs.listening_at(path);
        port.is_some_and(|port| port.clients.socket_type() == of)
    }

    /// Returns whether the supervisor listens at this path with this owner.
    pub(super) fn is_owned(&self, path: &str, owner: &SocketOwner) -> bool {
        self.sockets.get(path).is_some_and(|(of, _)| of == owner)
    }

    /// Removes a port, also from the mirrors, as the switch does. Returns its configuration.
    pub(super) fn remove(&mut self, id: PortId) -> Option<PortConfig> {
        self.limits.remove(&id);
        self.peers.remove(&id);
        self.without_listener.remove(&id);
        self.qos.remove(id);
        let mirrors = std::mem::take(&mut self.mirrors).into_iter();
        self.mirrors = mirrors.filter_map(|mirror| mirror.without(id)).collect();
        self.configs.remove(&id)
    }
}

#[cfg(test)]
mod tests {
    use ipc::switching::Clients;

    use super::*;

    fn server(id: u32, socket: &str) -> (PortId, PortConfig) {
        let id = PortId(id);
        let (name, socket, role) = ("p".to_owned(), socket.to_owned(), Role::Server);
        let config = PortConfig {
            id,
            name,
            socket,
            role,
            queues: 1,
            mtu: None,
            weight: 1,
            mac: None,
            clients: Clients::default(),
            iommu: Default::default(),
        };
        (id, config)
    }

    #[test]
    fn the_port_at_a_path_is_the_last_one_that_listens_there() {
        let mut ports = Ports {
            configs: [server(1, "a"), server(2, "b")].into_iter().collect(),
            ..Ports::default()
        };
        let (id, moved) = server(1, "c");
        ports.configs.insert(id, moved);
        let (id, other) = server(3, "a");
        ports.configs.insert(id, other);
        assert!(["a", "b", "c"].iter().all(|path| ports.listens(path)));
        assert!(ports.has_type("a", SocketType::Stream) && !ports.listens("d"));
        let (id, client) = server(2, "b");
        let role = Role::Client;
        ports.configs.insert(id, PortConfig { role, ..client });
        assert!(!ports.listens("b") && ports.configs.len() == 3);
        ports.remove(PortId(3));
        assert!(!ports.listens("a") && ports.listens("c"));
        // A path that moves to another port stays with it when the former owner goes.
        let (id, taker) = server(2, "c");
        ports.configs.insert(id, taker);
        ports.remove(PortId(1));
        assert!(ports.listens("c"));
    }
}
