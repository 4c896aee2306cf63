//! Tables of API documents.

mod acl;
mod port;
mod reasons;

use std::collections::BTreeMap;
use std::time::Duration;

use api::v1::{
    AdminState, FdbDocument, GuestStateStatus, GuestStates, MirrorDirection, MirrorStatus,
    PortStats, PortStatus, ProcessStatus, SegmentStatus, StatsDocument, StatusDocument,
    SwitchStatus, Traffic,
};

pub(super) use acl::{list as access_list, lists as access_lists};
pub(super) use port::port;
pub(super) use reasons::reasons;

use super::tables::Column::{Number, Text};
use super::tables::table;
use super::units::{bytes, count, duration, plural, rate};

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
    let ports = ports(&status.ports);
    format!("{head}\n{switch}\n\n{processes}\n{ports}")
}

fn processes(processes: &[ProcessStatus]) -> String {
    let columns = [
        Text("PROCESS"),
        Text("STATE"),
        Number("PID"),
        Number("UP"),
        Number("RESTARTS"),
    ];
    let row = |process: &ProcessStatus| {
        vec![
            process.name.clone(),
            process.state.as_str().to_owned(),
            or_none(process.pid.map(|pid| pid.to_string())),
            duration(process.uptime_seconds),
            process.restarts.to_string(),
        ]
    };
    let rows: Vec<_> = processes.iter().map(row).collect();
    table(&columns, &rows, "no processes")
}

fn switch(switch: &SwitchStatus) -> String {
    let connected = if switch.connected {
        "connected to control"
    } else {
        "not connected to control"
    };
    let helpers = match switch.helpers {
        0 => String::new(),
        some => format!(
            ", {} with {}",
            plural(some.into(), "helper"),
            plural(switch.helper_frames, "frame")
        ),
    };
    format!(
        "switch {connected}: {}, {} to control ({} dropped), policy epoch {}, {}{helpers}, \
         {} polling\n{}",
        plural(switch.flows, "cached flow"),
        plural(switch.upcalls, "upcall"),
        count(switch.upcalls_dropped),
        switch.epoch,
        plural(switch.workers.into(), "worker"),
        switch.poll.as_str(),
        guest_state(&switch.guest_state)
    )
}

/// Formats the source of vCPU states.
fn guest_state(status: &GuestStateStatus) -> String {
    let source = match status.by {
        GuestStates::Bpf => "BPF programs",
        GuestStates::Proc => "samples of /proc",
        GuestStates::Off | GuestStates::Auto => "off",
    };
    let reason = status.reason.as_ref();
    let reason = reason.map(|reason| format!(" ({reason})"));
    format!("vCPU states: {source}{}", reason.unwrap_or_default())
}

/// `lasthop port list`.
pub(super) fn ports(ports: &[PortStatus]) -> String {
    let columns = [
        Text("PORT"),
        Text("STATE"),
        Text("SEGMENT"),
        Text("KIND"),
        Text("ROLE"),
        Number("QUEUES"),
        Text("RING"),
        Number("MEMORY"),
        Text("SOCKET OR INTERFACE"),
        Text("REASON"),
    ];
    let row = |port: &PortStatus| {
        vec![
            port.name.clone(),
            state(port).to_owned(),
            membership(port),
            port.kind.as_str().to_owned(),
            role(port),
            format!("{}/{}", port.queue_pairs, port.queues),
            or_none(port.ring.map(|ring| ring.as_str().to_owned())),
            bytes(port.memory_bytes),
            far_end(port),
            reason(port).unwrap_or_default(),
        ]
    };
    let rows: Vec<_> = ports.iter().map(row).collect();
    table(&columns, &rows, "no ports")
}

/// Returns the state of a port, or `admin-down`.
fn state(port: &PortStatus) -> &'static str {
    match port.admin_state {
        AdminState::Up => port.state.as_str(),
        AdminState::Down => "admin-down",
    }
}

/// Returns the role of a vhost-user port, or the back end of a driver's port.
fn role(port: &PortStatus) -> String {
    match &port.driver_process {
        None => port.role.as_str().to_owned(),
        Some(driver) => or_none(driver.back_end.clone()),
    }
}

fn far_end(port: &PortStatus) -> String {
    port.interface.clone().unwrap_or(port.socket.clone())
}

/// Returns the reason for a port's state: the port's, or that of its driver process. The driver's
/// own reason comes first if the driver has ended.
fn reason(port: &PortStatus) -> Option<String> {
    let driver = port.driver_process.as_ref();
    let drivers = driver.and_then(|driver| driver.reason.clone());
    let reason = if driver.is_some_and(|driver| driver.pid.is_some()) {
        port.reason.clone().or(drivers)
    } else {
        drivers.or(port.reason.clone())
    };
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
    format!("port {} {done}, {}\n", port.name, state(port))
}

/// `lasthop segment list`.
pub(super) fn segments(segments: &[SegmentStatus]) -> String {
    let columns = [
        Text("SEGMENT"),
        Number("VLAN"),
        Text("NEIGHBOUR SUPPRESSION"),
        Text("PORTS"),
    ];
    let row = |segment: &SegmentStatus| {
        vec![
            segment.name.clone(),
            or_none(segment.vlan.map(|vlan| vlan.to_string())),
            if segment.neighbour_suppression {
                "on".to_owned()
            } else {
                "off".to_owned()
            },
            segment.ports.join(","),
        ]
    };
    let rows: Vec<_> = segments.iter().map(row).collect();
    table(&columns, &rows, "no segments")
}

/// `lasthop mirror list`.
pub(super) fn mirrors(mirrors: &[MirrorStatus]) -> String {
    let columns = [
        Text("MIRROR"),
        Text("COPIES"),
        Text("FILTER"),
        Text("TO"),
        Text("STATE"),
        Number("COPIED"),
        Number("BYTES"),
        Number("LOST"),
    ];
    let row = |mirror: &MirrorStatus| {
        vec![
            mirror.name.clone(),
            copied(mirror),
            or_none(mirror.filter.clone()),
            mirror.to.clone(),
            mirror.state.as_str().to_owned(),
            count(mirror.copied.packets),
            bytes(mirror.copied.bytes),
            count(total(&mirror.lost)),
        ]
    };
    let rows: Vec<_> = mirrors.iter().map(row).collect();
    let text = table(&columns, &rows, "no mirrors");
    let columns = [Text("LOST BY"), Text("REASON"), Number("FRAMES")];
    let losses = mirrors.iter().flat_map(|mirror| {
        let lost = mirror.lost.iter().filter(|(_, lost)| **lost > 0);
        lost.map(|(reason, lost)| vec![mirror.name.clone(), reason.clone(), count(*lost)])
    });
    let losses: Vec<_> = losses.collect();
    if losses.is_empty() {
        return text;
    }
    format!("{text}\n{}", table(&columns, &losses, ""))
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
    let columns = [Text("SEGMENT"), Text("MAC"), Text("PORT"), Number("AGE")];
    let rows: Vec<_> = fdb
        .entries
        .iter()
        .map(|entry| {
            let age = if entry.is_static {
                "static".to_owned()
            } else {
                duration(entry.age_seconds)
            };
            vec![
                entry.segment.clone(),
                entry.mac.clone(),
                entry.port.clone(),
                age,
            ]
        })
        .collect();
    table(&columns, &rows, "no entries")
}

/// `lasthop stats`.
pub(super) fn stats(stats: &StatsDocument) -> String {
    let columns = [
        Text("PORT"),
        Text("STATE"),
        Number("FROM-GUEST PACKETS"),
        Number("BYTES"),
        Number("TO-GUEST PACKETS"),
        Number("BYTES"),
        Number("DROPS"),
        Number("CPU"),
    ];
    let row = |port: &PortStats| {
        vec![
            port.name.clone(),
            port.state.as_str().to_owned(),
            count(port.from_guest.packets),
            bytes(port.from_guest.bytes),
            count(port.to_guest.packets),
            bytes(port.to_guest.bytes),
            count(total(&port.drops)),
            format!("{:.1} s", port.work.cpu_us as f64 / 1e6),
        ]
    };
    let rows: Vec<_> = stats.ports.iter().map(row).collect();
    let traffic = table(&columns, &rows, "no ports");
    let others = [drops(stats), neighbour_replies(stats)];
    let all: Vec<String> = [traffic]
        .into_iter()
        .chain(others.into_iter().flatten())
        .collect();
    all.join("\n")
}

/// Formats the drops by port and reason, then of all ports; `None` without drops.
fn drops(stats: &StatsDocument) -> Option<String> {
    let columns = [Text("DROPPED BY"), Text("REASON"), Number("FRAMES")];
    let ports = stats.ports.iter();
    let ports = ports.map(|port| (port.name.as_str(), &port.drops));
    let rows: Vec<_> = ports
        .chain([("(all)", &stats.drops)])
        .flat_map(|(port, drops)| {
            let some = drops.iter().filter(|(_, frames)| **frames > 0);
            some.map(move |(reason, frames)| vec![port.to_owned(), reason.clone(), count(*frames)])
        })
        .collect();
    (!rows.is_empty()).then(|| table(&columns, &rows, ""))
}

/// Formats the neighbour replies by port; `None` without replies.
fn neighbour_replies(stats: &StatsDocument) -> Option<String> {
    let columns = [Text("PORT"), Number("NEIGHBOUR REPLIES")];
    let replied = stats.ports.iter().filter(|port| port.neighbour_replies > 0);
    let row = |port: &PortStats| vec![port.name.clone(), count(port.neighbour_replies)];
    let rows: Vec<_> = replied.map(row).collect();
    (!rows.is_empty()).then(|| table(&columns, &rows, ""))
}

/// `lasthop stats --watch`: rates between two samples.
pub(super) fn rates(last: &StatsDocument, now: &StatsDocument, time: Duration) -> String {
    let columns = [
        Text("PORT"),
        Text("STATE"),
        Number("FROM-GUEST PACKETS"),
        Number("BITS"),
        Number("TO-GUEST PACKETS"),
        Number("BITS"),
        Number("DROPS"),
        Number("CPU"),
    ];
    let seconds = time.as_secs_f64().max(f64::MIN_POSITIVE);
    let zero = PortStats::default();
    let row = |port: &PortStats| {
        let was = last.ports.iter().find(|was| was.name == port.name);
        let was = was.unwrap_or(&zero);
        let drops = total(&port.drops).saturating_sub(total(&was.drops));
        let mut row = vec![port.name.clone(), port.state.as_str().to_owned()];
        row.extend(traffic(was.from_guest, port.from_guest, seconds));
        row.extend(traffic(was.to_guest, port.to_guest, seconds));
        row.push(rate(drops as f64 / seconds, ""));
        let used = port.work.cpu_us.saturating_sub(was.work.cpu_us);
        row.push(format!("{:.0}%", used as f64 / 1e4 / seconds));
        row
    };
    let rows: Vec<_> = now.ports.iter().map(row).collect();
    table(&columns, &rows, "no ports")
}

/// Formats packets and bits per second in one direction.
fn traffic(was: Traffic, is: Traffic, seconds: f64) -> [String; 2] {
    // The counters of a port that was removed and added again start at 0.
    let packets = is.packets.saturating_sub(was.packets) as f64;
    let bits = is.bytes.saturating_sub(was.bytes) as f64 * 8.0;
    [rate(packets / seconds, ""), rate(bits / seconds, "bit")]
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

/// Returns the value, or [`NONE`].
fn or_none(value: Option<String>) -> String {
    value.unwrap_or_else(|| NONE.to_owned())
}
