//! Warnings: valid settings that are perhaps not intended.

use std::collections::BTreeMap;

use api::v1::{AllowedAddresses, DesiredState, PortSpec, Warning};

use super::access::check_access;

/// Returns all warnings of a checked and normalised state.
#[must_use]
pub fn warnings(state: &DesiredState) -> Vec<Warning> {
    let access = check_access(state).unwrap_or_default();
    let lists = access.lines().map(|text| Warning {
        text,
        ports: Vec::new(),
    });
    lists.chain(shared_macs(state)).collect()
}

/// A port with a MAC address.
#[derive(Clone, Copy)]
struct Holder<'a> {
    port: &'a PortSpec,
    /// Whether it is the port's `mac`; else only port security lists it. Addresses that several
    /// ports only list are intended.
    own: bool,
}

/// Returns warnings about addresses that are the `mac` of a port, and the `mac` of another port of
/// its segments or in the lists of its port security. Each port is named once for each address,
/// with the first port that has it.
pub fn shared_macs(state: &DesiredState) -> impl Iterator<Item = Warning> {
    let holders = holders(&state.ports).into_iter();
    let shared = holders.filter(|(_, holders)| holders.len() > 1);
    shared.flat_map(|(mac, holders)| clashes(mac, &holders))
}

fn holders(ports: &[PortSpec]) -> BTreeMap<&str, Vec<Holder<'_>>> {
    let mut all: BTreeMap<&str, Vec<Holder<'_>>> = BTreeMap::new();
    for port in ports {
        let own = port.mac.as_deref();
        let listed = match &port.port_security.macs {
            Some(AllowedAddresses::List(macs)) => macs.as_slice(),
            _ => &[],
        };
        let listed = listed.iter().map(String::as_str);
        let listed = listed.filter(|mac| Some(*mac) != own);
        for mac in own.into_iter().chain(listed) {
            let own = Some(mac) == own;
            all.entry(mac).or_default().push(Holder { port, own });
        }
    }
    all
}

fn clashes(mac: &str, holders: &[Holder<'_>]) -> Vec<Warning> {
    // A port with the address as `mac` conflicts with all others.
    let mut first: BTreeMap<&str, Holder<'_>> = BTreeMap::new();
    let mut found = Vec::new();
    let (own, listing): (Vec<Holder<'_>>, Vec<_>) = holders.iter().partition(|one| one.own);
    for later in own.into_iter().chain(listing) {
        let mut segments = later.port.segments();
        let clash = segments.find_map(|segment| Some((segment, first.get(segment)?)));
        found.extend(clash.map(|(segment, earlier)| clash_of(mac, segment, *earlier, later)));
        for segment in later.port.segments().filter(|_| later.own) {
            first.entry(segment).or_insert(later);
        }
    }
    found
}

fn clash_of(mac: &str, segment: &str, one: Holder<'_>, other: Holder<'_>) -> Warning {
    let (a, b) = (&one.port.name, &other.port.name);
    let what = match other.own {
        true => {
            format!("ports \"{a}\" and \"{b}\" of segment \"{segment}\" have the same mac {mac}")
        }
        false => format!(
            "port \"{b}\" lists in its port_security the mac {mac} of port \"{a}\" of the same \
             segment \"{segment}\""
        ),
    };
    Warning {
        text: format!("{what}, which is valid only while a guest moves from one to the other"),
        ports: vec![a.clone(), b.clone()],
    }
}

#[cfg(test)]
mod tests {
    use api::v1::PortSecuritySpec;

    use super::*;

    const MAC: &str = "52:54:00:00:00:01";

    fn port(name: &str, segments: &[&str], mac: &str) -> PortSpec {
        PortSpec {
            trunk: Some(segments.iter().map(|&s| s.to_owned()).collect()),
            mac: Some(mac.to_owned()),
            ..PortSpec::vhost_user(name, format!("{name}.sock"))
        }
    }

    fn listing(name: &str, segments: &[&str], macs: &[&str]) -> PortSpec {
        let all = macs.iter().map(|&mac| mac.to_owned()).collect();
        PortSpec {
            mac: None,
            port_security: PortSecuritySpec {
                macs: Some(AllowedAddresses::List(all)),
                ..PortSecuritySpec::default()
            },
            ..port(name, segments, MAC)
        }
    }

    fn said(ports: Vec<PortSpec>) -> Vec<String> {
        let state = DesiredState {
            ports: ports.into(),
            ..DesiredState::default()
        };
        let of = |warning: &Warning| warning.ports.join(" ");
        warnings(&state).iter().map(of).collect()
    }

    #[test]
    fn one_mac_at_two_ports_of_a_segment_is_a_warning() {
        let state = DesiredState {
            ports: vec![port("a", &["red", "blue"], MAC), port("b", &["blue"], MAC)].into(),
            ..DesiredState::default()
        };
        let warning = Warning {
            text: format!(
                "ports \"a\" and \"b\" of segment \"blue\" have the same mac {MAC}, which is \
                 valid only while a guest \
                 moves from one to the other"
            ),
            ports: vec!["a".to_owned(), "b".to_owned()],
        };
        assert_eq!(warnings(&state), [warning]);
        let apart = vec![port("a", &["red"], MAC), port("b", &["blue"], MAC)];
        assert_eq!(said(apart), [""; 0]);
        let differ = vec![
            port("a", &["red"], MAC),
            port("b", &["red"], "52:54:00:00:00:02"),
        ];
        assert_eq!(said(differ), [""; 0]);
    }

    #[test]
    fn a_mac_in_the_list_of_another_port_is_a_warning_in_either_order() {
        let own = || port("own", &["blue"], MAC);
        let other = || listing("other", &["red", "blue"], &["52:54:00:00:00:02", MAC]);
        assert_eq!(said(vec![own(), other()]), ["own other"]);
        assert_eq!(said(vec![other(), own()]), ["own other"]);
        // As VRRP and bonds need it.
        let two = vec![other(), listing("third", &["blue"], &[MAC])];
        assert_eq!(said(two), [""; 0]);
        let both = PortSpec {
            port_security: other().port_security,
            ..own()
        };
        assert_eq!(said(vec![both]), [""; 0], "its own");
    }

    #[test]
    fn of_many_each_is_named_once() {
        let all = ["a", "b", "c", "d"].map(|name| port(name, &["red", "blue"], MAC));
        let mut all = all.to_vec();
        all.push(listing("e", &["red", "blue"], &[MAC]));
        assert_eq!(said(all), ["a b", "a c", "a d", "a e"]);
    }
}
