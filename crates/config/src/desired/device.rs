//! Ports with an interface of the host: their checks, and the drivers that they need.

use std::net::IpAddr;

use api::v1::{Iommu, PortKind, PortSpec, Role, Secret, UplinkDriver};
use channel::driving::{Choice, DeviceSpec, DriverSpec};
use channel::names::{InterfaceName, Namespace, of_user_port};
use port::PortId;

use super::check::{At, quoted};
use super::invalid::{Invalid, Place, expect};

/// Returns whether Lasthop listens on a socket for this port.
#[must_use]
pub fn listens(port: &PortSpec) -> bool {
    !port.kind.has_driver() && port.role == Role::Server
}

/// Returns whether Lasthop connects to a VMM's socket for this port.
#[must_use]
pub fn dials(port: &PortSpec) -> bool {
    port.kind == PortKind::VhostUser && port.role == Role::Client
}

/// Returns the driver that a checked port needs; `None` for a port without one.
#[must_use]
pub fn driver_of(port: &PortSpec, id: PortId) -> Option<DriverSpec> {
    let own = match port.kind {
        PortKind::VhostUser | PortKind::Netmap | PortKind::Memif => return None,
        PortKind::Uplink => false,
        PortKind::Tap => true,
        PortKind::User => return user_driver_of(port, id),
    };
    let choice = match port.driver.unwrap_or_default() {
        UplinkDriver::Auto => Choice::Auto,
        UplinkDriver::Tap => Choice::Tap,
        UplinkDriver::Packet => Choice::Packet,
        UplinkDriver::Xdp => Choice::Xdp,
        UplinkDriver::VhostNet => Choice::VhostNet,
    };
    let device = DeviceSpec {
        choice,
        own,
        interface: interface_of(port).parse().ok()?,
        netns: namespace_of(port),
        address: port.address.as_deref().and_then(parse_address),
        mac: port.mac.as_deref().and_then(api::v1::parse_mac),
        // Lasthop does not configure an uplink's interface.
        mtu: port.mtu.filter(|_| own),
        queues: port.queues,
    };
    Some(DriverSpec {
        port: id,
        name: port.name.parse().ok()?,
        device,
    })
}

/// Returns the network namespace of a checked port, if it has one of its own.
pub(super) fn namespace_of(port: &PortSpec) -> Option<Namespace> {
    port.netns.as_deref()?.parse().ok()
}

/// Returns the driver of a user port, which has no interface.
fn user_driver_of(port: &PortSpec, id: PortId) -> Option<DriverSpec> {
    let name = port.name.parse().ok()?;
    let device = DeviceSpec {
        choice: Choice::User,
        own: true,
        interface: of_user_port(&name),
        netns: namespace_of(port),
        address: None,
        // Those of its network, which is sent for itself.
        mac: None,
        mtu: None,
        queues: port.queues,
    };
    Some(DriverSpec {
        port: id,
        name,
        device,
    })
}

/// Returns the interface's name; the port's by default.
fn interface_of(port: &PortSpec) -> &str {
    port.interface.as_deref().unwrap_or(&port.name)
}

/// Reads an address with its prefix length, like `10.0.0.1/24`.
fn parse_address(text: &str) -> Option<(IpAddr, u8)> {
    let (address, prefix) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let digits = prefix.bytes().all(|b| b.is_ascii_digit());
    let prefix = prefix.parse().ok().filter(|p| digits && *p <= longest)?;
    Some((address, prefix))
}

/// Checks the keys about interfaces, and refuses keys that ports of this kind do not have.
pub(super) fn device(place: Place, port: &PortSpec) -> Result<(), Invalid> {
    foreign_keys(place, port)?;
    if port.kind == PortKind::User {
        return netns(place, port);
    }
    if !port.kind.has_interface() {
        return Ok(());
    }
    interface(place, port)?;
    if let (PortKind::Tap, Some(driver @ (UplinkDriver::Packet | UplinkDriver::Xdp))) =
        (port.kind, port.driver)
    {
        return Err(At(place, "driver").wrong(expect::TAP_DRIVER, quoted(driver.as_str())));
    }
    if let Some(address) = &port.address
        && parse_address(address).is_none()
    {
        return Err(At(place, "address").wrong(expect::ADDRESS, quoted(address)));
    }
    netns(place, port)
}

/// Checks the network namespace.
fn netns(place: Place, port: &PortSpec) -> Result<(), Invalid> {
    match port.netns.as_deref() {
        Some(netns) if !Namespace::is_valid(netns) => {
            Err(At(place, "netns").wrong(expect::NETNS, quoted(netns)))
        }
        _ => Ok(()),
    }
}

/// Returns whether ports of a kind may have a key.
pub(crate) fn may_have(kind: PortKind, key: &str) -> bool {
    match key {
        "socket" | "user" | "group" | "mode" | "peer_user" => !kind.has_driver(),
        "role" | "vcpu_threads" | "iommu" => kind == PortKind::VhostUser,
        "slots" | "pipes" => kind == PortKind::Netmap,
        "id" | "secret" => kind == PortKind::Memif,
        "address" => kind == PortKind::Tap,
        "interface" | "driver" => kind.has_interface(),
        "netns" | "cpu_weight" => kind.has_driver(),
        "network" | "network6" | "buffers_mib" | "guest_buffers_mib" | "dns" | "host" | "deny"
        | "allow" | "forward" => kind == PortKind::User,
        "mac" => kind != PortKind::Uplink,
        _ => true,
    }
}

/// Refuses the first key that ports of this kind do not have. Those about the owner of a socket
/// are refused with it.
fn foreign_keys(place: Place, port: &PortSpec) -> Result<(), Invalid> {
    let driver = port.driver.map(UplinkDriver::as_str);
    let role = Some(port.role.as_str()).filter(|_| port.role != Role::default());
    let iommu = Some(port.iommu.as_str()).filter(|_| port.iommu != Iommu::default());
    let socket = Some(port.socket.as_str()).filter(|s| !s.is_empty());
    let (slots, id) = (
        port.slots.map(|slots| slots.to_string()),
        port.id.map(|id| id.to_string()),
    );
    let cpu_weight = port.cpu_weight.map(|weight| weight.to_string());
    let buffers = port.buffers_mib.map(|mib| mib.to_string());
    let guest_buffers = port.guest_buffers_mib.map(|mib| mib.to_string());
    for (key, value) in [
        ("socket", socket),
        ("role", role),
        ("mac", port.mac.as_deref()),
        ("vcpu_threads", port.vcpu_threads.as_deref()),
        ("iommu", iommu),
        ("driver", driver),
        ("interface", port.interface.as_deref()),
        ("address", port.address.as_deref()),
        ("netns", port.netns.as_deref()),
        ("cpu_weight", cpu_weight.as_deref()),
        ("slots", slots.as_deref()),
        ("pipes", port.pipes.then_some("true")),
        ("id", id.as_deref()),
        ("secret", port.secret.as_ref().map(|_| Secret::HIDDEN)),
        ("network", port.network.as_deref()),
        ("network6", port.network6.as_deref()),
        ("buffers_mib", buffers.as_deref()),
        ("guest_buffers_mib", guest_buffers.as_deref()),
        ("dns", port.dns.as_deref()),
        ("host", listed(&port.host)),
        ("deny", listed(&port.deny)),
        ("allow", listed(&port.allow)),
        ("forward", port.forward.first().map(|of| of.listen.as_str())),
    ] {
        if let Some(value) = value.filter(|_| !may_have(port.kind, key)) {
            let expected = format!("no {key} with kind \"{}\"", port.kind.as_str());
            return Err(At(place, key).wrong(expected, quoted(value)));
        }
    }
    Ok(())
}

/// Returns an element of a list that is there, to be shown.
fn listed(list: &Option<Vec<String>>) -> Option<&str> {
    let list = list.as_ref()?;
    Some(list.first().map_or("[]", String::as_str))
}

/// Checks that an uplink has an interface, and that the name is valid for Linux.
fn interface(place: Place, port: &PortSpec) -> Result<(), Invalid> {
    let at = At(place, "interface");
    if port.kind == PortKind::Uplink && port.interface.is_none() {
        return Err(at.wrong(expect::INTERFACE, "no such key"));
    }
    let name = interface_of(port);
    // With a colon it would stand for a user port.
    if InterfaceName::is_valid(name) && !name.contains(':') {
        return Ok(());
    }
    let whose = match port.interface {
        Some(_) => "",
        None => ", the port's name",
    };
    Err(at.wrong(expect::INTERFACE, format!("{}{whose}", quoted(name))))
}

/// Returns the interface with its namespace, which only one port may have.
pub(super) fn place_of_interface(port: &PortSpec) -> Option<(&str, Option<&str>)> {
    port.kind
        .has_interface()
        .then(|| (interface_of(port), port.netns.as_deref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_prefix() {
        let v4 = |text| parse_address(text).map(|(a, p)| (a.to_string(), p));
        assert_eq!(v4("10.0.0.1/24"), Some(("10.0.0.1".to_owned(), 24)));
        assert_eq!(v4("fd00::1/64"), Some(("fd00::1".to_owned(), 64)));
        for wrong in [
            "10.0.0.1",
            "10.0.0.1/33",
            "fd00::1/129",
            "10.0.0/8",
            "/8",
            "10.0.0.1/+8",
            "a/b",
        ] {
            assert_eq!(v4(wrong), None, "{wrong}");
        }
    }
}
