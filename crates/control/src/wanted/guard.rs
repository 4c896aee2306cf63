//! Guards: what is right for them, and what is meant where nothing is said.

use api::v1::{
    Allowed, AllowedWord, GuardSpec, GuardStatus, PortKind, PortSpec, SegmentSpec, parse_mac,
};
use policy::guard::{Addresses, Guard, Macs, Network};

use wire::MacAddr;

use super::check::{At, not_a_station, quoted};
use super::invalid::{Invalid, Place, expect};

/// Addresses in one list at most: each frame without a flow is compared with all.
const LISTED_MAX: usize = 64;

/// Checks the guard of the port with this index.
pub(super) fn check(port: usize, guard: &GuardSpec) -> Result<(), Invalid> {
    let at = |key| At(Place::Guard(port), key);
    list(
        at("macs"),
        guard.macs.as_ref(),
        expect::GUARD_MACS,
        not_a_station,
    )?;
    list(
        at("addresses"),
        guard.addresses.as_ref(),
        expect::GUARD_ADDRESSES,
        |text| text.parse::<Network>().is_err().then(|| quoted(text)),
    )
}

/// A list has one element or more, and `wrong` finds nothing wrong with any.
fn list(
    at: At,
    allowed: Option<&Allowed>,
    expected: &str,
    wrong: impl Fn(&str) -> Option<String>,
) -> Result<(), Invalid> {
    let Some(Allowed::List(all)) = allowed else {
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

/// Brings a checked guard into one spelling.
pub(super) fn normalise(guard: &mut GuardSpec) {
    if let Some(Allowed::List(macs)) = &mut guard.macs {
        macs.iter_mut().for_each(|mac| mac.make_ascii_lowercase());
    }
}

/// What is meant by a checked port's guard.
#[must_use]
pub fn guard_of(port: &PortSpec) -> Guard {
    let guest = port.kind == PortKind::VhostUser;
    let spec = &port.guard;
    let own = port.mac.as_deref().and_then(parse_mac);
    Guard {
        macs: match (&spec.macs, own) {
            (Some(Allowed::Word(AllowedWord::Any)), _) => Macs::Any,
            (Some(Allowed::Word(AllowedWord::LearnedOnce)), _) => Macs::Learned,
            (Some(Allowed::List(all)), _) => {
                Macs::Only(all.iter().filter_map(|mac| parse_mac(mac)).collect())
            }
            (None, Some(own)) if guest => Macs::Only(vec![own]),
            (None, None) if guest => Macs::Learned,
            (None, _) => Macs::Any,
        },
        addresses: match &spec.addresses {
            None | Some(Allowed::Word(AllowedWord::Any)) => Addresses::Any,
            Some(Allowed::Word(AllowedWord::LearnedOnce)) => Addresses::Learned,
            Some(Allowed::List(all)) => {
                Addresses::Only(all.iter().filter_map(|text| text.parse().ok()).collect())
            }
        },
        no_dhcp_server: !spec.dhcp_server.unwrap_or(!guest),
        no_router: !spec.router.unwrap_or(!guest),
        answers: false,
    }
}

/// Whether one of these segments, in which a port is, answers its guest's questions.
#[must_use]
pub fn answers_for(segments: &[SegmentSpec], port: &PortSpec) -> bool {
    let mut answering = segments
        .iter()
        .filter(|segment| segment.neighbour_suppression);
    answering.any(|segment| port.segments().any(|name| name == segment.name))
}

/// The same for people.
#[must_use]
pub fn guard_status(port: &PortSpec) -> GuardStatus {
    let guard = guard_of(port);
    let any = || Allowed::Word(AllowedWord::Any);
    let learned = || Allowed::Word(AllowedWord::LearnedOnce);
    GuardStatus {
        macs: match guard.macs {
            Macs::Any => any(),
            Macs::Learned => learned(),
            Macs::Only(all) => Allowed::List(
                all.into_iter()
                    .map(|mac| MacAddr(mac).to_string())
                    .collect(),
            ),
        },
        addresses: match guard.addresses {
            Addresses::Any => any(),
            Addresses::Learned => learned(),
            Addresses::Only(all) => Allowed::List(all.iter().map(Network::to_string).collect()),
        },
        dhcp_server: !guard.no_dhcp_server,
        router: !guard.no_router,
        bound: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(guard: GuardSpec) -> PortSpec {
        PortSpec {
            guard,
            ..PortSpec::vhost_user("vm1", "vm1.sock")
        }
    }

    #[test]
    fn a_guest_is_one_host_if_nothing_is_said_and_an_uplink_anything() {
        let silent = guest(GuardSpec::default());
        let host = Guard {
            macs: Macs::Learned,
            no_dhcp_server: true,
            no_router: true,
            ..Guard::default()
        };
        assert_eq!(guard_of(&silent), host);
        let known = PortSpec {
            mac: Some("52:54:00:00:00:01".to_owned()),
            ..silent
        };
        let own = Macs::Only(vec![[0x52, 0x54, 0, 0, 0, 1]]);
        assert_eq!(guard_of(&known).macs, own);
        for kind in [PortKind::Uplink, PortKind::Tap] {
            let mut port = PortSpec::new("up", kind);
            assert!(guard_of(&port).is_open());
            port.guard.router = Some(false);
            let asked = Guard {
                no_router: true,
                ..Guard::default()
            };
            assert_eq!(guard_of(&port), asked);
        }
        assert!(guard_of(&guest(GuardSpec::open())).is_open());
    }

    #[test]
    fn lists_are_checked_element_by_element() {
        let list = |all: &[&str]| Some(Allowed::List(all.iter().map(|&s| s.to_owned()).collect()));
        let of = |macs, addresses| GuardSpec {
            macs,
            addresses,
            ..GuardSpec::default()
        };
        let good = of(list(&["52:54:00:00:00:0A"]), list(&["10.0.0.0/24", "::1"]));
        assert_eq!(check(0, &good), Ok(()));
        let wrong = |guard: &GuardSpec| {
            let invalid = check(3, guard).unwrap_err();
            (invalid.place.path(invalid.key, invalid.item), invalid.found)
        };
        let mac = of(list(&["52:54:00:00:00:01", "ff:ff:ff:ff:ff:ff"]), None);
        let (at, found) = wrong(&mac);
        assert_eq!(at, "ports[3].guard.macs[1]");
        assert_eq!(found, "the group address \"ff:ff:ff:ff:ff:ff\"");
        let address = of(None, list(&["10.0.0.1/24"]));
        assert_eq!(wrong(&address).0, "ports[3].guard.addresses[0]");
        assert_eq!(wrong(&of(list(&[]), None)).1, "an array of 0");
    }
}
