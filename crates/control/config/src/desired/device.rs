//! Ports with an interface of the host: their checks, and the drivers that they need.

use std::net::IpAddr;

use api::v1::{PortEnd, PortKind, PortSpec, PrefilterMode, Role, UplinkDriver};
use ipc::driving::{Choice, DeviceSpec, DriverKind, DriverSpec, PrefilterBackEnd, PrefilterChoice};
use ipc::names::{InterfaceName, Namespace};
use port::PortId;

use super::at::{At, quoted};
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
    let kind = match port.kind.end() {
        PortEnd::Guest | PortEnd::Program => return None,
        PortEnd::Interface => DriverKind::Interface(interface_spec(port)?),
        PortEnd::Sockets => DriverKind::User {
            netns: namespace_of(port),
            queues: port.queues,
        },
    };
    Some(DriverSpec {
        port: id,
        name: port.name.parse().ok()?,
        kind,
        process: has_process(port),
        prefilter: prefilter_choice(port),
        cpu_weight: port.cpu_weight,
    })
}

/// Returns whether a prefilter of a port is desired, where that is possible.
#[must_use]
pub fn has_prefilter(port: &PortSpec) -> bool {
    port.kind == PortKind::Uplink && prefilter_of(port) != PrefilterMode::Off
}

fn prefilter_choice(port: &PortSpec) -> PrefilterChoice {
    match prefilter_of(port) {
        _ if !has_prefilter(port) => PrefilterChoice::Off,
        PrefilterMode::Off => PrefilterChoice::Off,
        PrefilterMode::Auto => PrefilterChoice::Auto,
        PrefilterMode::Socket => PrefilterChoice::Only(PrefilterBackEnd::Socket),
        PrefilterMode::Xdp => PrefilterChoice::Only(PrefilterBackEnd::Xdp),
    }
}

/// Returns the mode of an uplink's prefilter.
fn prefilter_of(port: &PortSpec) -> PrefilterMode {
    port.prefilter.unwrap_or_default()
}

/// Returns the maximum number of entries of an uplink's prefilter.
#[must_use]
pub fn prefilter_entries(port: &PortSpec) -> usize {
    port.prefilter_entries.unwrap_or(1024).into()
}

/// Returns the driver of a port that always has a process, if it has one.
fn driver_with_process(port: &PortSpec) -> Option<UplinkDriver> {
    let always = [UplinkDriver::Xdp, UplinkDriver::VhostNet];
    port.driver.filter(|driver| always.contains(driver))
}

/// Returns whether a port with an interface has a driver process whatever the interface is.
fn has_process(port: &PortSpec) -> bool {
    driver_with_process(port).is_some() || port.driver_process == Some(true)
}

/// Returns the interface of an uplink or a TAP port.
fn interface_spec(port: &PortSpec) -> Option<DeviceSpec> {
    let own = port.kind == PortKind::Tap;
    let choice = match port.driver.unwrap_or_default() {
        UplinkDriver::Auto => Choice::Auto,
        UplinkDriver::Tap => Choice::Tap,
        UplinkDriver::Packet => Choice::Packet,
        UplinkDriver::Xdp => Choice::Xdp,
        UplinkDriver::VhostNet => Choice::VhostNet,
    };
    Some(DeviceSpec {
        choice,
        own,
        interface: interface_of(port).parse().ok()?,
        netns: namespace_of(port),
        address: port.address.as_deref().and_then(parse_address),
        mac: port.mac.as_deref().and_then(api::v1::parse_mac),
        // Lasthop does not configure an uplink's interface.
        mtu: port.mtu.filter(|_| own),
        queues: port.queues,
    })
}

/// Returns the network namespace of a checked port, if it has one of its own.
pub(super) fn namespace_of(port: &PortSpec) -> Option<Namespace> {
    port.netns.as_deref()?.parse().ok()
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

/// Brings a port with an interface into its normal form.
pub(super) fn normalise(port: &mut PortSpec) {
    port.driver_process = port.driver_process.filter(|own| *own);
    port.prefilter = port.prefilter.filter(|mode| *mode != PrefilterMode::Auto);
}

/// Checks the keys about interfaces.
pub(super) fn device(place: Place, port: &PortSpec) -> Result<(), Invalid> {
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
    process(place, port)?;
    prefilter(place, port)?;
    if let Some(address) = &port.address
        && parse_address(address).is_none()
    {
        return Err(At(place, "address").wrong(expect::ADDRESS, quoted(address)));
    }
    netns(place, port)
}

/// Checks that keys about a driver process have an effect.
fn process(place: Place, port: &PortSpec) -> Result<(), Invalid> {
    if let (Some(driver), Some(own)) = (driver_with_process(port), port.driver_process) {
        let driver = driver.as_str();
        let expected = format!("no driver_process with driver \"{driver}\", which always has one");
        return Err(At(place, "driver_process").wrong(expected, own.to_string()));
    }
    match port.cpu_weight {
        Some(weight) if !has_process(port) => {
            let expected = "no cpu_weight without driver_process = true, because the switch itself \
                            serves the port";
            Err(At(place, "cpu_weight").wrong(expected, weight.to_string()))
        }
        _ => Ok(()),
    }
}

/// Checks that the requested prefilter is possible with the driver.
fn prefilter(place: Place, port: &PortSpec) -> Result<(), Invalid> {
    let (driver, mode) = (port.driver.unwrap_or_default(), prefilter_of(port));
    let (possible, words) = match (mode, driver) {
        (PrefilterMode::Auto | PrefilterMode::Off, _) | (_, UplinkDriver::Auto) => return Ok(()),
        (PrefilterMode::Socket, _) => (&[UplinkDriver::Packet][..], r#""auto" or "packet""#),
        (PrefilterMode::Xdp, _) => (
            &[UplinkDriver::Packet, UplinkDriver::Xdp][..],
            r#""auto", "packet" or "xdp""#,
        ),
    };
    if possible.contains(&driver) {
        return Ok(());
    }
    let driver = driver.as_str();
    let expected = format!("driver {words} in place of \"{driver}\"");
    Err(At(place, "prefilter").wrong(expected, quoted(mode.as_str())))
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

/// Checks that an uplink has an interface, and that the name is valid for Linux.
fn interface(place: Place, port: &PortSpec) -> Result<(), Invalid> {
    let at = At(place, "interface");
    if port.kind == PortKind::Uplink && port.interface.is_none() {
        return Err(at.wrong(expect::INTERFACE, "no such key"));
    }
    let name = interface_of(port);
    if InterfaceName::is_valid(name) {
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
