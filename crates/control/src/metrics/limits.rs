//! The limits of ports.

use api::v1::{LimitsSpec, RateLimit};

use super::Facts;
use super::text::{Kind, Page};

/// The bounds of a port that were asked for: which, frames and bytes a second.
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

/// Writes their families.
pub(super) fn write(facts: &Facts, page: &mut Page) {
    let help = "Frames a second that a port may send (from-guest), be sent (to-guest), or send to many, where that is bounded.";
    let mut family = page.family(Kind::Gauge, "lasthop_port_limit_frames_per_second", help);
    for port in &facts.status.ports {
        for (which, frames, _) in rates(&port.limits) {
            let labels = [("port", &*port.name), ("limit", which)];
            frames
                .into_iter()
                .for_each(|rate| family.sample(&labels, rate));
        }
    }
    let help =
        "Bytes a second of Ethernet frames that a port may send or be sent, where that is bounded.";
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
