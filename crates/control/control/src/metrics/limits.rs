//! Metrics of the limits of ports.

use api::v1::{LimitsSpec, RateLimit};

use super::Facts;
use super::families::{families, labels};
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
    let all = || {
        let ports = facts.status.ports.iter();
        ports.flat_map(|port| rates(&port.limits).map(move |rates| (&port.name, rates)))
    };
    let frames = all().filter_map(|(port, (limit, frames, _))| Some((port, limit, frames?)));
    families! { page, Gauge, (port, limit, rate) in frames, ["port" = port, "limit" = limit],
        "lasthop_port_limit_frames_per_second"
            "Configured limit in frames a second, by direction (from-guest, to-guest) or kind of \
             flooded frames."
            rate;
    }
    let bytes = all().filter_map(|(port, (limit, _, bytes))| Some((port, limit, bytes?)));
    families! { page, Gauge, (port, limit, rate) in bytes, ["port" = port, "limit" = limit],
        "lasthop_port_limit_bytes_per_second"
            "Configured limit in bytes a second of Ethernet frames, by direction."
            rate;
    }
}
