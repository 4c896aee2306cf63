//! Metrics of the limits of ports.

use api::v1::{LimitsSpec, RateLimit};

use super::Facts;
use super::text::{Kind, Page};

/// Returns the configured limits of a port: name, frames and bytes a second.
fn rates(limits: &LimitsSpec) -> impl Iterator<Item = (&'static str, Option<u64>, Option<f64>)> {
    let ways = [
        ("from-guest", limits.from_guest),
        ("to-guest", limits.to_guest),
    ];
    let ways = ways.into_iter().filter_map(|(which, rate)| {
        let RateLimit {
            packets_per_second,
            bits_per_second,
            ..
        } = rate?;
        Some((
            which,
            packets_per_second,
            bits_per_second.map(|bits| bits as f64 / 8.0),
        ))
    });
    let floods = [
        ("broadcast", limits.broadcast),
        ("multicast", limits.multicast),
        ("unknown-unicast", limits.unknown_unicast),
    ];
    let floods = floods.into_iter();
    ways.chain(
        floods.filter_map(|(which, rate)| Some((which, Some(rate?.packets_per_second), None))),
    )
}

/// Writes the families of limits.
pub(super) fn write(facts: &Facts, page: &mut Page) {
    let help = "Configured limit in frames a second, by direction (from-guest, to-guest) or kind \
                of flooded frames.";
    let mut family = page.family(Kind::Gauge, "lasthop_port_limit_frames_per_second", help);
    for port in &facts.status.ports {
        for (which, frames, _) in rates(&port.limits) {
            let labels = [("port", &*port.name), ("limit", which)];
            frames
                .into_iter()
                .for_each(|rate| family.sample(&labels, rate));
        }
    }
    let help = "Configured limit in bytes a second of Ethernet frames, by direction.";
    let mut family = page.family(Kind::Gauge, "lasthop_port_limit_bytes_per_second", help);
    for port in &facts.status.ports {
        for (which, _, bytes) in rates(&port.limits) {
            let labels = [("port", &*port.name), ("limit", which)];
            bytes
                .into_iter()
                .for_each(|rate| family.sample(&labels, rate));
        }
    }
}
