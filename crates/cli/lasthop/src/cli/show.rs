//! Tables of API documents.

mod acl;
mod pipe;
mod port;
mod prefilter;
mod qos;
mod reasons;
mod user;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use api::v1::{
    FdbDocument, FdbEntry, GuestStateStatus, GuestStates, MirrorDirection, MirrorStatus, PortKind,
    PortState, PortStats, PortStatus, ProcessStatus, ProcessUsage, SegmentStatus, StatsDocument,
    StatusDocument, SwitchStatus,
};

pub(super) use acl::{list as access_list, lists as access_lists};
pub(super) use pipe::pipes;
pub(super) use port::port;
pub(super) use prefilter::prefilters;
pub(super) use qos::{classes as qos_classes, egress, groups as qos_groups};
pub(super) use reasons::reasons;
pub(super) use user::{
    flows as user_flows, forwards, leases as user_leases, stalled as user_stalled,
};

use super::tables::Table;
use client::rates::PortRates;
use client::units::{bytes, count, duration, plural, rate};

/// The text of an absent value.
const NONE: &str = "-";

/// `lasthop status`.
pub(super) fn status(status: &StatusDocument) -> String {
    let head = format!(
        "{}: lasthop {}, up {}",
        status.name,
        status.version,
        duration(status.uptime_seconds)
    );
    let processes = processes(&status.processes);
    let switch = switch(&status.switch);
    let states = guest_state(&status.switch.guest_state, &status.ports);
    let ports = ports(&status.ports);
    let warnings = status.warnings.iter();
    let warnings = warnings.map(|warning| format!("warning: {}\n", warning.text));
    let warnings: String = warnings.collect();
    let gap = if warnings.is_empty() { "" } else { "\n" };
    format!("{head}\n{switch}\n{states}\n\n{processes}\n{ports}{gap}{warnings}")
}

fn processes(processes: &[ProcessStatus]) -> String {
    Table::of(processes)
        .text("PROCESS", |process| process.name.clone())
        .text("STATE", |process| process.state.as_str().to_owned())
        .number("PID", |process| or_none(process.pid))
        .number("UP", |process| duration(process.uptime_seconds))
        .number("RESTARTS", |process| process.restarts.to_string())
        .number("OWN", |process| {
            memory(process, |used| used.anonymous_bytes)
        })
        .number("TOUCHED", |process| {
            memory(process, |used| used.resident_bytes)
        })
        .number("MAPPED", |process| {
            memory(process, |used| used.mapped_bytes)
        })
        .format_or("no processes")
}

/// Formats an amount of a process's memory.
fn memory(process: &ProcessStatus, amount: fn(&ProcessUsage) -> u64) -> String {
    or_none(process.usage.as_ref().map(|used| bytes(amount(used))))
}

fn switch(switch: &SwitchStatus) -> String {
    let connected = if switch.connected {
        "connected to control"
    } else {
        "not connected to control"
    };
    format!(
        "switch {connected}: {}, {} to it ({} dropped), {}, {} polling",
        plural(switch.flows, "cached flow"),
        plural(switch.upcalls, "question"),
        count(switch.upcalls_dropped),
        plural(switch.workers.into(), "worker"),
        switch.poll.as_str()
    )
}

/// Formats the source of vCPU states, with the ports whose vCPUs are known, or the reason why there
/// is none.
fn guest_state(status: &GuestStateStatus, ports: &[PortStatus]) -> String {
    if status.by != GuestStates::Bpf {
        let reason = status.reason.as_ref();
        let reason = reason.map(|reason| format!(": {reason}"));
        return format!("vCPU states: off{}", reason.unwrap_or_default());
    }
    let guests = || ports.iter().filter(|port| port.kind == PortKind::VhostUser);
    let found = guests().filter(|port| port.vcpus > 0).count();
    let is_up = |port: &&PortStatus| port.state == PortState::Up;
    let missing = guests().filter(is_up).filter(|port| port.vcpus == 0);
    let missing = match missing.count() {
        0 => String::new(),
        some => format!(", not those of {some}"),
    };
    let ports = plural(found as u64, "port");
    let ways = status.missing.iter().map(|missing| format!("; {missing}"));
    let ways: String = ways.collect();
    let no_halts = status.no_halts.as_ref();
    let no_halts = no_halts.map(|reason| format!("; no interrupt is deferred: {reason}"));
    let no_halts = no_halts.unwrap_or_default();
    format!("vCPU states: BPF programs; vCPUs of {ports} found{missing}{no_halts}{ways}")
}

/// `lasthop port list`.
pub(super) fn ports(ports: &[PortStatus]) -> String {
    Table::of(ports)
        .text("PORT", |port| port.name.clone())
        .text("STATE", |port| {
            port.admin_state.shown(port.state).to_owned()
        })
        .text("SEGMENT", membership)
        .text("KIND", |port| port.kind.as_str().to_owned())
        .text("ROLE", role)
        .number("QUEUES", |port| {
            format!("{}/{}", port.queue_pairs, port.queues)
        })
        .text("RING", |port| or_none(port.ring.map(|ring| ring.as_str())))
        .number("MEMORY", |port| bytes(port.memory_bytes))
        .text("SOCKET OR INTERFACE", far_end)
        .text("REASON", |port| reason(port).unwrap_or_default())
        .format_or("no ports")
}

/// Returns the role of a vhost-user port, or the back end of a driver's port.
fn role(port: &PortStatus) -> String {
    match &port.driver_status {
        None => port.role.unwrap_or_default().as_str().to_owned(),
        Some(driver) => or_none(driver.back_end.as_ref()),
    }
}

fn far_end(port: &PortStatus) -> String {
    port.interface.clone().unwrap_or(port.socket.clone())
}

/// Returns the reason for a port's state: the port's, or that of its driver. The driver's own
/// reason comes first if it moves no frames.
fn reason(port: &PortStatus) -> Option<String> {
    let driver = port.driver_status.as_ref();
    let drivers = driver.and_then(|driver| driver.reason.clone());
    let reason = if driver.is_some_and(|driver| driver.pid.is_some() || driver.in_switch) {
        port.reason.clone().or(drivers)
    } else {
        drivers.or(port.reason.clone())
    };
    let is_scaled = port.egress.is_some_and(|output| output.scaled);
    let scaled = is_scaled.then(|| "link slower than its guarantees".to_owned());
    let reason = reason.or(scaled);
    let paused = Duration::from_millis(port.front_ends.pause_ms);
    if paused.is_zero() {
        return reason;
    }
    let reason = reason.unwrap_or_default();
    let seconds = paused.as_secs_f64();
    Some(format!(
        "{reason}; accepts no connection for {seconds:.1} s"
    ))
}

/// Formats the result of `lasthop port add` and `port set`.
pub(super) fn change(done: &str, port: &PortStatus) -> String {
    let waits = match (port.iommu, port.iommu_of_connection) {
        (Some(next), Some(_)) => format!("; iommu {} from its next connection", next.as_str()),
        _ => String::new(),
    };
    // An interface that is missing is waited for, which may also be a mistyped name.
    let waits_for_interface = port.driver_status.is_some() && port.state == PortState::Dialing;
    let reason = reason(port).filter(|_| waits_for_interface);
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    format!(
        "port {} {done}, {}{reason}{waits}\n",
        port.name,
        port.admin_state.shown(port.state)
    )
}

/// `lasthop segment list`.
pub(super) fn segments(segments: &[SegmentStatus]) -> String {
    let on_off = |on| if on { "on" } else { "off" }.to_owned();
    Table::of(segments)
        .text("SEGMENT", |segment| segment.name.clone())
        .number("VLAN", |segment| or_none(segment.vlan))
        .text("NEIGHBOUR SUPPRESSION", |segment| {
            on_off(segment.neighbour_suppression)
        })
        .text("PORTS", |segment| segment.ports.join(","))
        .format_or("no segments")
}

/// `lasthop mirror list`.
pub(super) fn mirrors(mirrors: &[MirrorStatus]) -> String {
    let text = Table::of(mirrors)
        .text("MIRROR", |mirror| mirror.name.clone())
        .text("COPIES", copied)
        .text("FILTER", |mirror| or_none(mirror.filter.as_ref()))
        .text("TO", |mirror| mirror.to.clone())
        .text("STATE", |mirror| {
            mirror.admin_state.shown(mirror.state).to_owned()
        })
        .number("COPIED", |mirror| count(mirror.copied.packets))
        .number("BYTES", |mirror| bytes(mirror.copied.bytes))
        .number("LOST", |mirror| count(total(&mirror.lost)))
        .format_or("no mirrors");
    let lost = mirrors.iter().map(|mirror| (&*mirror.name, &mirror.lost));
    match losses("LOST BY", lost) {
        Some(losses) => format!("{text}\n{losses}"),
        None => text,
    }
}

/// Formats the sources of a mirror.
fn copied(mirror: &MirrorStatus) -> String {
    let way = match mirror.direction {
        MirrorDirection::Both => "",
        MirrorDirection::In => " (in)",
        MirrorDirection::Out => " (out)",
    };
    let ports = format!("{}{way}", mirror.ports.join(","));
    let segments = format!("segment {}", mirror.segments.join(","));
    match (mirror.ports.is_empty(), mirror.segments.is_empty()) {
        (true, true) => "all".to_owned(),
        (false, true) => ports,
        (true, false) => segments,
        (false, false) => format!("{ports} and {segments}"),
    }
}

/// `lasthop fdb list`.
pub(super) fn fdb(fdb: &FdbDocument) -> String {
    let age = |entry: &FdbEntry| {
        if entry.is_static {
            "static".to_owned()
        } else {
            duration(entry.age_seconds)
        }
    };
    Table::of(&fdb.entries)
        .text("SEGMENT", |entry| entry.segment.clone())
        .text("MAC", |entry| entry.mac.clone())
        .text("PORT", |entry| entry.port.clone())
        .number("AGE", age)
        .format_or("no entries")
}

/// `lasthop stats`.
pub(super) fn stats(stats: &StatsDocument) -> String {
    let traffic = Table::of(&stats.ports)
        .text("PORT", |port| port.name.clone())
        .text("STATE", |port| {
            port.admin_state.shown(port.state).to_owned()
        })
        .number("FROM-GUEST PACKETS", |port| count(port.from_guest.packets))
        .number("BYTES", |port| bytes(port.from_guest.bytes))
        .number("TO-GUEST PACKETS", |port| count(port.to_guest.packets))
        .number("BYTES", |port| bytes(port.to_guest.bytes))
        .number("DROPS", |port| count(port.lost()))
        .number("CPU", |port| {
            format!("{:.1} s", port.work.cpu_us as f64 / 1e6)
        })
        .format_or("no ports");
    let ports = stats.ports.iter().map(|port| (&*port.name, &port.drops));
    let drops = losses("DROPPED BY", ports.chain([("(all)", &stats.drops)]));
    let tables = [Some(traffic), drops, neighbour_replies(stats)];
    tables.into_iter().flatten().collect::<Vec<_>>().join("\n")
}

/// Formats counts of lost frames by name and reason; `None` without any.
fn losses<'a>(
    heading: &'static str,
    all: impl Iterator<Item = (&'a str, &'a BTreeMap<String, u64>)>,
) -> Option<String> {
    let rows = all.flat_map(|(name, lost)| lost.iter().map(move |(reason, n)| (name, reason, *n)));
    let rows: Vec<_> = rows.filter(|(.., frames)| *frames > 0).collect();
    Table::of(&rows)
        .text(heading, |(name, ..)| (*name).to_owned())
        .text("REASON", |(_, reason, _)| (*reason).clone())
        .number("FRAMES", |(.., frames)| count(*frames))
        .format()
}

/// Formats the neighbour replies by port; `None` without replies.
fn neighbour_replies(stats: &StatsDocument) -> Option<String> {
    let replied = stats.ports.iter().filter(|port| port.neighbour_replies > 0);
    Table::of(replied)
        .text("PORT", |port| port.name.clone())
        .number("NEIGHBOUR REPLIES", |port| count(port.neighbour_replies))
        .format()
}

/// `lasthop stats --watch`: rates between two samples.
pub(super) fn rates(last: &StatsDocument, now: &StatsDocument, time: Duration) -> String {
    let seconds = time.as_secs_f64().max(f64::MIN_POSITIVE);
    let zero = PortStats::default();
    let rates = now.ports.iter().map(|port| {
        let was = last.ports.iter().find(|was| was.name == port.name);
        PortRates::between(was.unwrap_or(&zero), port, seconds)
    });
    let rates: Vec<_> = rates.collect();
    Table::of(&rates)
        .text("PORT", |port| port.name.clone())
        .text("STATE", |port| port.state.to_owned())
        .number("FROM-GUEST PACKETS", |port| rate(port.from_guest.0, ""))
        .number("BITS", |port| rate(port.from_guest.1, "bit"))
        .number("TO-GUEST PACKETS", |port| rate(port.to_guest.0, ""))
        .number("BITS", |port| rate(port.to_guest.1, "bit"))
        .number("DROPS", |port| rate(port.drops, ""))
        .number("CPU", |port| format!("{:.0}%", port.cpu))
        .format_or("no ports")
}

/// Returns the sum of all drops.
fn total(drops: &BTreeMap<String, u64>) -> u64 {
    drops.values().sum()
}

/// Formats the segment of an access port, or the segments of a trunk.
fn membership(port: &PortStatus) -> String {
    match (&port.segment, &port.trunk) {
        (_, Some(trunk)) => format!("trunk {}", trunk.join(",")),
        (Some(segment), None) => segment.clone(),
        (None, None) => NONE.to_owned(),
    }
}

/// Formats the value, or returns [`NONE`].
pub(super) fn or_none(value: Option<impl Display>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}
