//! User ports: networks whose outside are sockets of the host. Their checks, and what their drivers
//! get.

use std::net::{IpAddr, SocketAddr};

use api::v1::{
    AllowedAddresses, DesiredState, ForwardSpec, PortKind, PortSpec, USER_BUFFERS_MIB,
    USER_GUEST_BUFFERS_MIB, USER_NETWORK, USER_SEARCH, parse_mac,
};
use ipc::driving::{ForwardProtocol, Listen, UserBuffers, UserForward, UserGuest, UserNetwork};
use policy::port_security::Macs;
use usernet::Time;
use usernet::network::{HostRule, LEAST_MTU, Network, Ports, Prefix, Protocol, Rule};
use usernet::services::Search;
use usernet::services::dns::{PORT as DNS_PORT, RESOLVERS_MAX};
use wire::MacAddr;

use super::at::{At, quoted};
use super::invalid::{Invalid, Place};
use super::port_security::port_security_of;

/// Most elements of `host`, `deny` and `allow`.
const LISTED_MAX: usize = 256;
/// Most ports of the host that lead to guests, each port of a range counted.
const FORWARDED_MAX: usize = 1024;
/// An MTU without `mtu` in bytes.
const MTU: u16 = 1500;
/// The first bytes of the MAC address of a gateway, as of QEMU's; its IPv4 address follows.
const GATEWAY_MAC: [u8; 2] = [0x52, 0x55];
/// Networks that guests reach without `allow`.
const ALL: [&str; 2] = ["0.0.0.0/0", "::/0"];

const NETWORK: &str = "an IPv4 network of 8 to 29 bits like \"10.0.2.0/24\"";
const NETWORK6: &str = "\"auto\", \"off\", or an IPv6 network of 64 bits like \"fd00:1::/64\"";
const DNS: &str = "\"auto\", \"off\", or 1 to 8 resolvers like \"192.0.2.53\", \"127.0.0.1:5353\" \
                   or \"[::1]:53\" with blanks between them";
const SEARCH: &str = "\"off\", or 1 to 6 domains like \"internal\" of 128 bytes in all with blanks \
                      between them";
const HOST: &str = "a protocol and ports like \"tcp 5432\"";
const TIME: &str = "a state once, and 10 to 604800 seconds like \"half-closed 300\"";
const RULE: &str = "a network, or one with protocol and ports like \"10.0.0.0/8 tcp 1-1023\"";

pub(crate) const LISTEN: &str =
    "a protocol, an address and a port or a range like \"tcp 127.0.0.1:2222\"";
pub(crate) const TO: &str =
    "a port by name or an address of the network, and a port like \"vm1:22\"";

/// Checks the user ports of a state.
///
/// # Errors
/// The first error.
pub(super) fn check(state: &DesiredState) -> Result<(), Invalid> {
    let mut before: Vec<(&PortSpec, Prefix)> = Vec::new();
    let users = state.ports.iter().enumerate();
    for (i, port) in users.filter(|(_, port)| port.kind == PortKind::User) {
        let place = Place::Port(i);
        if port.trunk.is_some() {
            return Err(At(place, "trunk").wrong("no trunk with kind \"user\"", "a trunk"));
        }
        if port.queues != 1 {
            let expected = "1 with kind \"user\"";
            return Err(At(place, "queues").wrong(expected, port.queues.to_string()));
        }
        let network = network(place, state, port)?;
        for (other, prefix) in &before {
            alone(place, (port, network.prefix()), (other, *prefix))?;
        }
        before.push((port, network.prefix()));
        guards(place, state, port, &network)?;
        lists(place, port)?;
        times(place, port)?;
        forwards(i, state, port, &network)?;
    }
    Ok(())
}

/// Returns the networks of the user ports of a checked state, by the names of ports. `bound` has
/// the MAC address that port security has bound to a port.
#[must_use]
pub fn user_networks(
    state: &DesiredState,
    bound: impl Fn(&str) -> Option<[u8; 6]>,
) -> Vec<(String, UserNetwork)> {
    let users = state.ports.iter();
    let users = users.filter(|port| port.kind == PortKind::User);
    let network = |port: &PortSpec| Some((port.name.clone(), user_network(state, port, &bound)?));
    users.filter_map(network).collect()
}

/// Returns the network of a checked user port.
fn user_network(
    state: &DesiredState,
    port: &PortSpec,
    bound: impl Fn(&str) -> Option<[u8; 6]>,
) -> Option<UserNetwork> {
    let network = network(Place::Port(0), state, port).ok()?;
    let dns = port.dns.as_deref().unwrap_or("auto");
    let resolvers = dns.split_ascii_whitespace();
    let list = |all: &Option<Vec<String>>| all.clone().unwrap_or_default();
    let bytes = |mib: u32| u64::from(mib) << 20;
    Some(UserNetwork {
        network: network.prefix().to_string(),
        network6: network.prefix6().map(|prefix6| prefix6.to_string()),
        mac: mac_of(port, &network),
        mtu: network.mtu(),
        dns: dns != "off",
        resolvers: resolvers.filter_map(resolver).collect(),
        search: search_of(port).to_owned(),
        allow: match &port.allow {
            Some(allow) => allow.clone(),
            None => ALL.map(str::to_owned).into(),
        },
        deny: list(&port.deny),
        host: list(&port.host),
        guests: guests_of(state, port)
            .map(|port| guest(port, &bound))
            .collect(),
        forwards: port
            .forward
            .iter()
            .filter_map(forward_of)
            .flatten()
            .collect(),
        buffers: UserBuffers {
            guest: bytes(port.guest_buffers_mib.unwrap_or(USER_GUEST_BUFFERS_MIB)),
            port: bytes(port.buffers_mib.unwrap_or(USER_BUFFERS_MIB)),
        },
        times: list(&port.times),
        sharers: 1,
    })
}

/// Returns the MAC address to which guests send packets for an address: that of the gateway of a
/// checked user port, if it is the gateway, the DNS server, or outside of the port's network.
#[must_use]
pub fn gateway_for(state: &DesiredState, port: &PortSpec, to: IpAddr) -> Option<[u8; 6]> {
    let network = network(Place::Port(0), state, port).ok()?;
    let own = match to {
        IpAddr::V4(_) => network.prefix(),
        IpAddr::V6(_) => network.prefix6()?,
    };
    let is_local = match to {
        IpAddr::V4(to) => to.is_multicast() || to.is_broadcast(),
        IpAddr::V6(to) => to.is_multicast() || to.is_unicast_link_local(),
    };
    let is_outside = !own.contains(to) && !is_local;
    let leads = is_outside || network.is_gateway(to) || network.is_dns(to);
    leads.then(|| mac_of(port, &network))
}

/// Returns the other ports of a user port's segment.
fn guests_of<'a>(
    state: &'a DesiredState,
    port: &'a PortSpec,
) -> impl Iterator<Item = &'a PortSpec> {
    state.ports.iter().filter(|other| {
        let mut own = port.segments();
        other.name != port.name && own.any(|own| other.segments().any(|s| s == own))
    })
}

fn guest(port: &PortSpec, bound: impl Fn(&str) -> Option<[u8; 6]>) -> UserGuest {
    let listed = match &port.port_security.addresses {
        Some(AllowedAddresses::List(all)) => all.as_slice(),
        _ => &[],
    };
    let own = port.mac.as_deref().and_then(parse_mac);
    let mac = own.or_else(|| match port_security_of(port).macs {
        Macs::Only(all) if all.len() == 1 => all.first().copied(),
        Macs::Learned => bound(&port.name),
        Macs::Only(_) | Macs::Any => None,
    });
    UserGuest {
        name: port.name.clone(),
        mac,
        addresses: hosts(listed).collect(),
    }
}

/// Returns the single addresses of a list of addresses and prefixes.
fn hosts(listed: &[String]) -> impl Iterator<Item = IpAddr> {
    let prefixes = listed.iter().filter_map(|text| text.parse::<Prefix>().ok());
    let hosts = prefixes.filter(|p| p.len() == if p.address().is_ipv4() { 32 } else { 128 });
    hosts.map(Prefix::address)
}

/// Returns whether a user port gets another network: its driver process ends, and all flows.
pub(super) fn has_other_network(old: &PortSpec, new: &PortSpec) -> bool {
    let own = |port: &PortSpec| {
        let network = network4(Place::Port(0), port).ok()?;
        let (mac, network6) = (mac_of(port, &network), network6_of(port).to_owned());
        Some((network.prefix(), network.mtu(), network6, mac))
    };
    new.kind == PortKind::User && own(old) != own(new)
}

/// Returns the IPv6 network that a user port has by its name and that of its switch.
pub(super) fn automatic_network6(state: &DesiredState, port: &PortSpec) -> Option<Prefix> {
    let is_automatic = port.kind == PortKind::User && network6_of(port) == "auto";
    is_automatic.then(|| Prefix::unique_local(&state.switch.name, &port.name))
}

/// Returns the MAC address of gateway and DNS server.
fn mac_of(port: &PortSpec, network: &Network) -> [u8; 6] {
    let [a, b, c, d] = network.gateway().octets();
    let [first, second] = GATEWAY_MAC;
    let own = port.mac.as_deref().and_then(parse_mac);
    own.unwrap_or([first, second, a, b, c, d])
}

/// Returns the addresses of a user port. That of the station plays no part in the checks.
fn network(place: Place, state: &DesiredState, port: &PortSpec) -> Result<Network, Invalid> {
    let network = network4(place, port)?;
    let text = network6_of(port);
    let prefix6 = match automatic_network6(state, port) {
        None if text == "off" => return Ok(network),
        None => text.parse().ok(),
        automatic => automatic,
    };
    let of = |prefix6| Network::new(network.prefix(), prefix6, MacAddr::ZERO, network.mtu()).ok();
    let network = prefix6.and_then(|prefix6| of(Some(prefix6)));
    network.ok_or_else(|| At(place, "network6").wrong(NETWORK6, quoted(text)))
}

fn network6_of(port: &PortSpec) -> &str {
    port.network6.as_deref().unwrap_or("auto")
}

/// Returns the IPv4 addresses of a user port.
fn network4(place: Place, port: &PortSpec) -> Result<Network, Invalid> {
    let mtu = port.mtu.unwrap_or(MTU);
    if mtu < LEAST_MTU {
        let expected = format!("an integer from {LEAST_MTU} with kind \"user\"");
        return Err(At(place, "mtu").wrong(expected, mtu.to_string()));
    }
    let text = port.network.as_deref().unwrap_or(USER_NETWORK);
    let prefix = text.parse::<Prefix>().ok();
    let network = prefix.and_then(|prefix| Network::new(prefix, None, MacAddr::ZERO, mtu).ok());
    network.ok_or_else(|| At(place, "network").wrong(NETWORK, quoted(text)))
}

/// Checks that two user ports have neither a segment nor addresses in common.
fn alone(
    place: Place,
    (port, prefix): (&PortSpec, Prefix),
    (other, taken): (&PortSpec, Prefix),
) -> Result<(), Invalid> {
    let name = quoted(&other.name);
    if let Some(segment) = port
        .segments()
        .find(|own| other.segments().any(|s| s == *own))
    {
        let found = format!("{}, the segment of user port {name}", quoted(segment));
        return Err(At(place, "segment").taken("a segment without another user port", found));
    }
    if prefix.overlaps(taken) {
        let found = format!("\"{prefix}\", which overlaps that of user port {name}");
        let expected = "a network that no other user port has";
        return Err(At(place, "network").taken(expected, found));
    }
    Ok(())
}

/// Checks that no port of the segment has an address of the network that guests cannot have.
fn guards(
    place: Place,
    state: &DesiredState,
    port: &PortSpec,
    network: &Network,
) -> Result<(), Invalid> {
    for other in guests_of(state, port) {
        let Some(AllowedAddresses::List(all)) = &other.port_security.addresses else {
            continue;
        };
        for address in hosts(all) {
            if network.contains(address) && !network.may_be_guest(address) {
                let expected = "a network whose own addresses no port has";
                let whose = quoted(&other.name);
                let found = format!("\"{}\": port {whose} has {address}", network.prefix());
                return Err(At(place, "network").taken(expected, found));
            }
        }
    }
    Ok(())
}

/// Checks the resolvers and the lists of services and networks.
fn lists(place: Place, port: &PortSpec) -> Result<(), Invalid> {
    if let Some(text) = port.dns.as_deref()
        && !matches!(text, "auto" | "off")
    {
        let mut words = text.split_ascii_whitespace();
        let good = words.all(|word| resolver(word).is_some());
        let count = text.split_ascii_whitespace().count();
        if !good || !(1..=RESOLVERS_MAX).contains(&count) {
            return Err(At(place, "dns").wrong(DNS, quoted(text)));
        }
    }
    let search = search_of(port);
    if !search.is_empty() && search.parse::<Search>().is_err() || port.search.as_deref() == Some("")
    {
        return Err(At(place, "search").wrong(SEARCH, quoted(search)));
    }
    let host = |text: &String| {
        let rule = text.parse::<HostRule>();
        rule.is_ok_and(|rule| rule.protocol != Protocol::Icmp)
    };
    let rule = |text: &String| text.parse::<Rule>().is_ok();

    list(At(place, "host"), given(&port.host), HOST, host)?;
    list(At(place, "deny"), given(&port.deny), RULE, rule)?;
    list(At(place, "allow"), given(&port.allow), RULE, rule)
}

/// Checks how long flows may be silent.
fn times(place: Place, port: &PortSpec) -> Result<(), Invalid> {
    let mut before = Vec::new();
    let is_new = |text: &String| {
        let time = text.parse::<Time>().ok();
        let word = time.map(Time::word).filter(|word| !before.contains(word));
        before.extend(word);
        word.is_some()
    };
    list(At(place, "times"), given(&port.times), TIME, is_new)
}

/// Returns the domains that guests are offered; an empty text without any.
fn search_of(port: &PortSpec) -> &str {
    match (port.search.as_deref(), port.dns.as_deref()) {
        (Some("off"), _) | (None, Some("off")) => "",
        (Some(search), _) => search,
        (None, _) => USER_SEARCH,
    }
}

/// Returns the resolver that a word names: an address, or one with a port.
fn resolver(word: &str) -> Option<SocketAddr> {
    let address = word.parse::<IpAddr>().ok();
    let address = address.map(|address| SocketAddr::new(address, DNS_PORT));
    let resolver = address.or_else(|| word.parse().ok())?;
    let is_scoped = matches!(resolver, SocketAddr::V6(v6) if v6.scope_id() != 0);
    let is_none = resolver.ip().is_unspecified() || resolver.ip().is_multicast();
    (!is_none && !is_scoped && resolver.port() != 0).then_some(resolver)
}

fn given(list: &Option<Vec<String>>) -> &[String] {
    list.as_deref().unwrap_or_default()
}

fn list(
    at: At,
    all: &[String],
    expected: &str,
    mut good: impl FnMut(&String) -> bool,
) -> Result<(), Invalid> {
    if all.len() > LISTED_MAX {
        let expected = format!("at most {LISTED_MAX}");
        return Err(at.wrong(expected, all.len().to_string()));
    }
    match all.iter().position(|text| !good(text)) {
        Some(item) => Err(at.item(item, expected, quoted(&all[item]))),
        None => Ok(()),
    }
}

/// Checks the forwards of the port with this index.
fn forwards(
    index: usize,
    state: &DesiredState,
    port: &PortSpec,
    network: &Network,
) -> Result<(), Invalid> {
    let mut before: Vec<Listen> = Vec::new();
    for (i, spec) in port.forward.iter().enumerate() {
        let at = |key| At(Place::Forward(index, i), key);
        let (ip, protocol, ports) =
            listens(spec).ok_or_else(|| at("listen").wrong(LISTEN, quoted(&spec.listen)))?;
        let (to, first) = target(spec).ok_or_else(|| at("to").wrong(TO, quoted(&spec.to)))?;
        let last = u32::from(first) + u32::from(ports.last() - ports.first());
        if last > u32::from(u16::MAX) {
            return Err(at("to").wrong("ports up to 65535", format!("ports up to {last}")));
        }
        leads_to_guest(state, port, network, (&to, ip))
            .map_err(|expected| at("to").wrong(expected, quoted(&spec.to)))?;
        for number in ports.first()..=ports.last() {
            let address = SocketAddr::new(ip, number);
            let listen = Listen { protocol, address };
            if before.contains(&listen) {
                let found = format!("{} a second time", quoted(&spec.listen));
                return Err(at("listen").taken("a port that no other forward has", found));
            }
            before.push(listen);
            if before.len() > FORWARDED_MAX {
                let expected = format!("at most {FORWARDED_MAX} ports in all forwards");
                return Err(at("listen").wrong(expected, quoted(&spec.listen)));
            }
        }
    }
    Ok(())
}

/// Checks where a forward leads: to a guest with an address of the IP version of `listen`.
///
/// # Errors
/// The words for all that is expected.
fn leads_to_guest(
    state: &DesiredState,
    port: &PortSpec,
    network: &Network,
    (to, listen): (&str, IpAddr),
) -> Result<(), &'static str> {
    const GUEST: &str = "a port of the same segment, or an address of the network for guests";
    const VERSION: &str = "an address of the IP version of `listen`";
    const KNOWN: &str = "a port with `mac` or another port_security.macs than \"any\", or with an \
                         IPv4 address in port_security.addresses, or an address of the network";
    const KNOWN6: &str = "with an IPv6 `listen` a port with an IPv6 address in \
                          port_security.addresses, or an IPv6 address of the network";
    let is_same = |address: &IpAddr| address.is_ipv4() == listen.is_ipv4();
    if let Ok(address) = to.parse::<IpAddr>() {
        network.may_be_guest(address).then_some(()).ok_or(GUEST)?;
        return is_same(&address).then_some(()).ok_or(VERSION);
    }
    let mut guests = guests_of(state, port);
    let named = guests.find(|guest| guest.name == to).ok_or(GUEST)?;
    let known = guest(named, |_| Some([0; 6]));
    let is_listed = known.addresses.iter().any(is_same);
    // Leases are of IPv4.
    if listen.is_ipv4() {
        let is_known = is_listed || known.mac.is_some();
        is_known.then_some(()).ok_or(KNOWN)
    } else {
        is_listed.then_some(()).ok_or(KNOWN6)
    }
}

/// Returns the forwards of a checked specification, one for each port.
#[must_use]
pub fn forwards_of(spec: &ForwardSpec) -> Vec<UserForward> {
    forward_of(spec).unwrap_or_default()
}

/// Returns the forwards of a specification; none for one that is malformed.
pub(super) fn forward_of(spec: &ForwardSpec) -> Option<Vec<UserForward>> {
    let (to, first) = target(spec)?;
    let (ip, protocol, ports) = listens(spec)?;
    let forward = |(number, port)| UserForward {
        listen: Listen {
            protocol,
            address: SocketAddr::new(ip, number),
        },
        to: to.clone(),
        port,
    };
    let all = (ports.first()..=ports.last()).zip(first..);
    Some(all.map(forward).collect())
}

/// Reads `listen`.
fn listens(spec: &ForwardSpec) -> Option<(IpAddr, ForwardProtocol, Ports)> {
    let (protocol, rest) = spec.listen.split_once(' ')?;
    let (address, ports) = rest.rsplit_once(':')?;
    // A port behind the address makes its brackets those of IPv6, and none those of IPv4.
    let address: SocketAddr = format!("{address}:0").parse().ok()?;
    let protocol = match protocol.parse().ok()? {
        Protocol::Tcp => ForwardProtocol::Tcp,
        Protocol::Udp => ForwardProtocol::Udp,
        Protocol::Icmp => return None,
    };
    Some((address.ip(), protocol, ports.parse().ok()?))
}

/// Reads `to`: a name, or an address without brackets.
fn target(spec: &ForwardSpec) -> Option<(String, u16)> {
    let (to, port) = spec.to.rsplit_once(':')?;
    let port: Ports = port.parse().ok()?;
    let inner = to.strip_prefix('[').and_then(|to| to.strip_suffix(']'));
    let to = inner.unwrap_or(to);
    let one = port.first() == port.last() && !to.is_empty();
    one.then(|| (to.to_owned(), port.first()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A state with two guests, the second in another segment, and a user port in each.
    fn state(user: &Value) -> DesiredState {
        let mut out = json!({"name": "out", "kind": "user", "segment": "lan"});
        for (key, value) in user.as_object().unwrap() {
            out[key] = value.clone();
        }
        let state = json!({
            "switch": {"name": "s"},
            "segments": [{"name": "lan"}, {"name": "far"}],
            "ports": [
                {"name": "vm1", "kind": "vhost-user", "socket": "a", "segment": "lan",
                 "mac": "52:54:00:00:00:01",
                 "port_security": {"addresses": ["10.0.2.15", "10.9.0.2", "10.2.0.0/16"]}},
                {"name": "vm2", "kind": "vhost-user", "socket": "b", "segment": "far"},
                out,
                {"name": "far", "kind": "user", "segment": "far", "network": "10.3.0.0/24"},
            ],
        });
        serde_json::from_value(state).unwrap()
    }

    #[test]
    fn good_keys_are_accepted() {
        let user = json!({
            "network": "10.1.0.0/16", "network6": "fd00:1::/64", "dns": "127.0.0.53 2001:db8::53 127.0.0.1:5353 [::1]:54",
            "buffers_mib": 64, "times": ["udp 60", "half-closed 300"],
            "host": ["tcp 5432"], "deny": ["10.0.0.0/8 tcp 1-1023"], "allow": ["0.0.0.0/0"],
            "forward": [
                {"listen": "tcp 127.0.0.1:2222", "to": "vm1:22"},
                {"listen": "tcp 127.0.0.1:5000-5001", "to": "10.1.0.15:5000"},
                {"listen": "tcp [::1]:2223", "to": "[fd00:1::9]:22"},
                {"listen": "udp 127.0.0.1:2222", "to": "vm1:53"},
            ],
        });
        let state = state(&user);
        assert_eq!(check(&state), Ok(()));
        let networks = user_networks(&state, |_| None);
        let (name, network) = &networks[0];
        assert_eq!(
            (name.as_str(), &network.network[..]),
            ("out", "10.1.0.0/16")
        );
        assert_eq!(network.network6.as_deref(), Some("fd00:1::/64"));
        assert_eq!(network.mac, [0x52, 0x55, 10, 1, 0, 2]);
        let (port, guest) = (64 << 20, 256 << 20);
        assert_eq!(network.buffers, UserBuffers { guest, port });
        assert_eq!(network.times, ["udp 60", "half-closed 300"]);
        let resolvers = [
            "127.0.0.53:53",
            "[2001:db8::53]:53",
            "127.0.0.1:5353",
            "[::1]:54",
        ];
        let resolvers = resolvers.map(|text| text.parse::<SocketAddr>().unwrap());
        assert_eq!(network.resolvers, resolvers);
        assert_eq!((network.allow.len(), network.mtu), (1, 1500));
        let forward = |listen: &str, to: &str, port| UserForward {
            listen: Listen {
                protocol: ForwardProtocol::Tcp,
                address: listen.parse().unwrap(),
            },
            to: to.to_owned(),
            port,
        };
        let expected = [
            forward("127.0.0.1:2222", "vm1", 22),
            forward("127.0.0.1:5000", "10.1.0.15", 5000),
            forward("127.0.0.1:5001", "10.1.0.15", 5001),
            forward("[::1]:2223", "fd00:1::9", 22),
        ];
        let [tcp @ .., udp] = &network.forwards[..] else {
            panic!("{network:?}");
        };
        assert_eq!(tcp, expected);
        assert_eq!(udp.listen.to_string(), "udp 127.0.0.1:2222");
        assert_eq!((udp.to.as_str(), udp.port), ("vm1", 53));
    }

    #[test]
    fn guests_of_the_segment_are_known() {
        let [(_, network), (_, far)] = &user_networks(&state(&json!({})), |_| None)[..] else {
            panic!("two user ports");
        };
        assert!(network.dns && network.resolvers.is_empty());
        assert!(
            network
                .network6
                .as_ref()
                .is_some_and(|own| own.starts_with("fd"))
        );
        assert_ne!(network.network6, far.network6);
        assert_eq!(network.allow, ALL);
        let [guest] = &network.guests[..] else {
            panic!("{network:?}");
        };
        assert_eq!(
            (guest.name.as_str(), guest.mac),
            ("vm1", Some([0x52, 0x54, 0, 0, 0, 1]))
        );
        let addresses = ["10.0.2.15", "10.9.0.2"].map(|text| text.parse::<IpAddr>().unwrap());
        assert_eq!(guest.addresses, addresses);
        assert_eq!(far.guests.len(), 1);
    }

    #[test]
    fn the_station_of_a_guest_is_configured_or_bound() {
        let mut state = state(&json!({}));
        let mac_of = |state: &DesiredState| {
            let bound = |name: &str| (name == "vm2").then_some([2; 6]);
            user_networks(state, bound)[1].1.guests[0].mac
        };
        assert_eq!(mac_of(&state), Some([2; 6]));
        let macs = |value: Value| serde_json::from_value(value).unwrap();
        state.ports[1].port_security.macs = macs(json!("any"));
        assert_eq!(mac_of(&state), None);
        state.ports[1].port_security.macs = macs(json!(["52:54:00:00:00:02"]));
        assert_eq!(mac_of(&state), Some([0x52, 0x54, 0, 0, 0, 2]));
    }

    #[test]
    fn a_forward_leads_to_a_port_whose_guest_can_be_known() {
        for (listen, security, is_good) in [
            ("127.0.0.1", json!({}), true),
            ("127.0.0.1", json!({"macs": "any"}), false),
            (
                "127.0.0.1",
                json!({"macs": "any", "addresses": ["10.0.2.15"]}),
                true,
            ),
            (
                "127.0.0.1",
                json!({"macs": "any", "addresses": ["fd00::9"]}),
                false,
            ),
            ("[::1]", json!({}), false),
            ("[::1]", json!({"addresses": ["10.0.2.15"]}), false),
            (
                "[::1]",
                json!({"addresses": ["10.0.2.15", "fd00::9"]}),
                true,
            ),
        ] {
            let listen = format!("tcp {listen}:1");
            let user = json!({"forward": [{"listen": listen, "to": "vm1:2"}]});
            let mut state = state(&user);
            state.ports[0].mac = None;
            state.ports[0].port_security = serde_json::from_value(security).unwrap();
            assert_eq!(check(&state).is_ok(), is_good, "{:?}", check(&state));
        }
    }

    #[test]
    fn both_ends_of_a_forward_have_one_version_of_ip() {
        for (listen, to) in [
            ("tcp [::1]:22", "10.0.2.15:22"),
            ("tcp 127.0.0.1:22", "[fd00:1::9]:22"),
        ] {
            let user = json!({
                "network6": "fd00:1::/64",
                "forward": [{"listen": listen, "to": to}],
            });
            let invalid = check(&state(&user)).unwrap_err();
            let path = invalid.place.path(invalid.key, invalid.item);
            assert_eq!(path, "ports[2].forward[0].to", "{listen} {to}");
        }
    }

    #[test]
    fn each_wrong_forward_has_its_place() {
        let listen = "tcp 127.0.0.1:2222";
        for (listen, to, key) in [
            ("tcp 2222", "vm1:22", "listen"),
            ("tcp ::1:22", "vm1:22", "listen"),
            ("icmp 1.1.1.1:1", "vm1:22", "listen"),
            ("tcp 127.0.0.1:1-2000", "vm1:22", "listen"),
            (listen, "vm1", "to"),
            (listen, "vm9:22", "to"),
            (listen, "vm2:22", "to"),
            (listen, "out:22", "to"),
            (listen, "10.0.2.2:22", "to"),
            ("tcp 127.0.0.1:1-9", "vm1:65530", "to"),
        ] {
            let user = json!({"forward": [{"listen": listen, "to": to}]});
            let invalid = check(&state(&user)).unwrap_err();
            let found = invalid.place.path(invalid.key, invalid.item);
            assert_eq!(found, format!("ports[2].forward[0].{key}"), "{listen} {to}");
        }
        let twice = json!({"forward": [
            {"listen": "tcp 127.0.0.1:20-29", "to": "vm1:20"},
            {"listen": "tcp 127.0.0.1:29", "to": "vm1:22"},
        ]});
        let invalid = check(&state(&twice)).unwrap_err();
        assert_eq!(
            invalid.place.path(invalid.key, None),
            "ports[2].forward[1].listen"
        );
    }

    #[test]
    fn each_wrong_key_has_its_place() {
        for (user, path) in [
            (json!({"network": "10.0.0.0/7"}), "ports[2].network"),
            (json!({"network": "10.0.2.0/30"}), "ports[2].network"),
            (json!({"network": "10.0.2.1/24"}), "ports[2].network"),
            (json!({"network": "127.0.0.0/8"}), "ports[2].network"),
            (json!({"network": "fd00::/64"}), "ports[2].network"),
            (json!({"network": "10.9.0.0/24"}), "ports[2].network"),
            (json!({"network": "10.3.0.0/16"}), "ports[3].network"),
            (json!({"network6": "fd00::/48"}), "ports[2].network6"),
            (json!({"network6": "fe80::/64"}), "ports[2].network6"),
            (json!({"times": ["udp 60", "tcp 60"]}), "ports[2].times[1]"),
            (json!({"times": ["udp 9"]}), "ports[2].times[0]"),
            (json!({"times": ["udp 60", "udp 70"]}), "ports[2].times[1]"),
            (json!({"dns": ""}), "ports[2].dns"),
            (json!({"dns": "1.1.1.1,8.8.8.8"}), "ports[2].dns"),
            (json!({"host": ["tcp 1", "icmp"]}), "ports[2].host[1]"),
            (json!({"deny": ["10.0.0.0/8 tcp 9-1"]}), "ports[2].deny[0]"),
            (json!({"allow": ["everything"]}), "ports[2].allow[0]"),
            (json!({"mtu": 1279}), "ports[2].mtu"),
            (json!({"queues": 2}), "ports[2].queues"),
            (json!({"segment": null, "trunk": ["lan"]}), "ports[2].trunk"),
            (json!({"segment": "far"}), "ports[3].segment"),
        ] {
            let invalid = check(&state(&user)).unwrap_err();
            let found = invalid.place.path(invalid.key, invalid.item);
            assert_eq!(found, path, "{user}");
        }
    }
}
