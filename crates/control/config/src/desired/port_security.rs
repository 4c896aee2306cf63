//! Port security: checks and defaults.

use api::v1::{
    AllowedAddresses, AllowedWord, PortSecuritySpec, PortSecurityStatus, PortSpec, SegmentSpec,
    parse_mac,
};
use policy::port_security::{Addresses, Macs, Network, PortSecurity};

use wire::MacAddr;

use super::at::{At, not_a_station, quoted};
use super::invalid::{Invalid, Place, expect};

/// Maximum number of addresses in a list: each frame without a flow is compared with all.
const LISTED_MAX: usize = 64;

/// Checks port security of the port with this index.
pub(super) fn check(port: usize, port_security: &PortSecuritySpec) -> Result<(), Invalid> {
    let at = |key| At(Place::PortSecurity(port), key);
    list(
        at("macs"),
        port_security.macs.as_ref(),
        expect::ALLOWED_MACS,
        not_a_station,
    )?;
    list(
        at("addresses"),
        port_security.addresses.as_ref(),
        expect::ALLOWED_ADDRESSES,
        |text| text.parse::<Network>().is_err().then(|| quoted(text)),
    )
}

/// Checks that a list is not empty and not too long, and that `wrong` accepts each element.
fn list(
    at: At,
    allowed: Option<&AllowedAddresses>,
    expected: &str,
    wrong: impl Fn(&str) -> Option<String>,
) -> Result<(), Invalid> {
    let Some(AllowedAddresses::List(all)) = allowed else {
        return Ok(());
    };
    if !(1..=LISTED_MAX).contains(&all.len()) {
        return Err(at.wrong(expected, format!("an array of {}", all.len())));
    }
    let found = all.iter().enumerate();
    let mut found = found.filter_map(|(item, text)| Some((item, wrong(text)?)));
    match found.next() {
        Some((item, found)) => Err(at.item(item, expected, found)),
        None => Ok(()),
    }
}

/// Normalises checked port security.
pub(super) fn normalise(port_security: &mut PortSecuritySpec) {
    if let Some(AllowedAddresses::List(macs)) = &mut port_security.macs {
        macs.iter_mut().for_each(|mac| mac.make_ascii_lowercase());
    }
}

/// Returns port security of a checked port, with defaults filled in.
#[must_use]
pub fn port_security_of(port: &PortSpec) -> PortSecurity {
    let guest = !port.kind.has_driver();
    let spec = &port.port_security;
    let own = port.mac.as_deref().and_then(parse_mac);
    PortSecurity {
        macs: match (&spec.macs, own) {
            (Some(AllowedAddresses::Word(AllowedWord::Any)), _) => Macs::Any,
            (Some(AllowedAddresses::Word(AllowedWord::Sticky)), _) => Macs::Learned,
            (Some(AllowedAddresses::List(all)), _) => {
                Macs::Only(all.iter().filter_map(|mac| parse_mac(mac)).collect())
            }
            (None, Some(own)) if guest => Macs::Only(vec![own]),
            (None, None) if guest => Macs::Learned,
            (None, _) => Macs::Any,
        },
        addresses: match &spec.addresses {
            None | Some(AllowedAddresses::Word(AllowedWord::Any)) => Addresses::Any,
            Some(AllowedAddresses::Word(AllowedWord::Sticky)) => Addresses::Learned,
            Some(AllowedAddresses::List(all)) => {
                Addresses::Only(all.iter().filter_map(|text| text.parse().ok()).collect())
            }
        },
        no_dhcp_server: !spec.dhcp_server.unwrap_or(!guest),
        no_router: !spec.router.unwrap_or(!guest),
        answers: false,
    }
}

/// Returns whether one of the port's segments has neighbour suppression.
#[must_use]
pub fn has_neighbour_suppression(segments: &[SegmentSpec], port: &PortSpec) -> bool {
    let mut answering = segments
        .iter()
        .filter(|segment| segment.neighbour_suppression);
    answering.any(|segment| port.segments().any(|name| name == segment.name))
}

/// Returns port security with defaults filled in, for answers.
#[must_use]
pub fn port_security_status(port: &PortSpec) -> PortSecurityStatus {
    let port_security = port_security_of(port);
    let any = || AllowedAddresses::Word(AllowedWord::Any);
    let learned = || AllowedAddresses::Word(AllowedWord::Sticky);
    PortSecurityStatus {
        macs: match port_security.macs {
            Macs::Any => any(),
            Macs::Learned => learned(),
            Macs::Only(all) => AllowedAddresses::List(
                all.into_iter()
                    .map(|mac| MacAddr(mac).to_string())
                    .collect(),
            ),
        },
        addresses: match port_security.addresses {
            Addresses::Any => any(),
            Addresses::Learned => learned(),
            Addresses::Only(all) => {
                AllowedAddresses::List(all.iter().map(Network::to_string).collect())
            }
        },
        dhcp_server: !port_security.no_dhcp_server,
        router: !port_security.no_router,
        bound: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use api::v1::PortKind;

    use super::*;

    fn guest(port_security: PortSecuritySpec) -> PortSpec {
        PortSpec {
            port_security,
            ..PortSpec::vhost_user("vm1", "vm1.sock")
        }
    }

    #[test]
    fn a_guest_is_one_host_if_nothing_is_said_and_an_uplink_anything() {
        let silent = guest(PortSecuritySpec::default());
        let host = PortSecurity {
            macs: Macs::Learned,
            no_dhcp_server: true,
            no_router: true,
            ..PortSecurity::default()
        };
        assert_eq!(port_security_of(&silent), host);
        let known = PortSpec {
            mac: Some("52:54:00:00:00:01".to_owned()),
            ..silent
        };
        let own = Macs::Only(vec![[0x52, 0x54, 0, 0, 0, 1]]);
        assert_eq!(port_security_of(&known).macs, own);
        for kind in [PortKind::Uplink, PortKind::Tap, PortKind::User] {
            let mut port = PortSpec::new("up", kind);
            assert!(port_security_of(&port).is_open());
            port.port_security.router = Some(false);
            let asked = PortSecurity {
                no_router: true,
                ..PortSecurity::default()
            };
            assert_eq!(port_security_of(&port), asked);
        }
        assert!(port_security_of(&guest(PortSecuritySpec::open())).is_open());
    }

    #[test]
    fn lists_are_checked_element_by_element() {
        let list = |all: &[&str]| {
            Some(AllowedAddresses::List(
                all.iter().map(|&s| s.to_owned()).collect(),
            ))
        };
        let of = |macs, addresses| PortSecuritySpec {
            macs,
            addresses,
            ..PortSecuritySpec::default()
        };
        let good = of(list(&["52:54:00:00:00:0A"]), list(&["10.0.0.0/24", "::1"]));
        assert_eq!(check(0, &good), Ok(()));
        let wrong = |port_security: &PortSecuritySpec| {
            let invalid = check(3, port_security).unwrap_err();
            (invalid.place.path(invalid.key, invalid.item), invalid.found)
        };
        let mac = of(list(&["52:54:00:00:00:01", "ff:ff:ff:ff:ff:ff"]), None);
        let (at, found) = wrong(&mac);
        assert_eq!(at, "ports[3].port_security.macs[1]");
        assert_eq!(found, "the group address \"ff:ff:ff:ff:ff:ff\"");
        let address = of(None, list(&["10.0.0.1/24"]));
        assert_eq!(wrong(&address).0, "ports[3].port_security.addresses[0]");
        assert_eq!(wrong(&of(list(&[]), None)).1, "an array of 0");
    }
}
