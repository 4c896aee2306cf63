//! The MAC address of an interface for which none is configured.

use std::fs;

use wire::hash::{BASIS, fnv1a};

/// Identity of the host: machine-id(5), or else its name.
const HOST: [&str; 2] = ["/etc/machine-id", "/proc/sys/kernel/hostname"];

/// Returns a MAC address that is the same at every start, so that neighbours' entries stay valid,
/// and different for each host, network namespace and interface, so that the same configuration can
/// be used on hosts that share a network.
pub(super) fn derived(interface: &str, netns: Option<&str>) -> [u8; 6] {
    let texts = HOST.iter().flat_map(fs::read);
    let mut texts = texts.map(|text| text.trim_ascii().to_owned());
    let host = texts.find(|text| !text.is_empty()).unwrap_or_default();
    let netns = netns.unwrap_or_default();
    of(&[&host, netns.as_bytes(), interface.as_bytes()])
}

/// A locally administered address of a single station (IEEE 802, section 8.4) made of these names.
fn of(names: &[&[u8]]) -> [u8; 6] {
    // A zero between names, which none of them has.
    let bytes = names
        .iter()
        .flat_map(|name| name.iter().copied().chain([0]));
    let hash = fnv1a(BASIS, bytes);
    // The upper half is mixed best.
    let [a, b, c, d, e, f, ..] = hash.to_be_bytes();
    [(a & !1) | 2, b, c, d, e, f]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_depends_on_all_names_and_on_nothing_else() {
        let of = |names: [&str; 3]| super::of(&names.map(str::as_bytes));
        let own = of(["host", "", "tap0"]);
        assert_eq!(own, of(["host", "", "tap0"]));
        assert_eq!(own[0] & 3, 2, "of one station, locally administered");
        for others in [
            ["host2", "", "tap0"],
            ["host", "blue", "tap0"],
            ["host", "", "tap1"],
            ["", "host", "tap0"],
        ] {
            assert_ne!(own, of(others), "{others:?}");
        }
        assert_eq!(derived("tap0", None), derived("tap0", None));
    }
}
