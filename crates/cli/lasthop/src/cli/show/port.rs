//! `lasthop port show`: one port in detail.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::v1::{
    AccountStatus, AdminState, AllowedAddresses, ClientStatus, ConnectionLimit, DriverStatus,
    FrontEndStatus, Notifications, PortConnections, PortKind, PortSecurityStatus, PortStatus,
    PrefilterStatus, TranslationStatus, USER_BUFFERS_MIB, USER_FLOWS_MAX, USER_GUEST_BUFFERS_MIB,
    USER_KEPT_MAX, USER_NETWORK, USER_SEARCH, UserPortStatus, UserResolverStatus, UserResolverWay,
    UserSpec, VcpuSource, Work,
};

use super::super::tables::facts;
use super::super::{limits, qos};
use super::{NONE, membership, or_none, reason};
use client::units::{bytes, count};

/// `lasthop port show`.
pub(in crate::cli) fn port(port: &PortStatus) -> String {
    let faults = port.queue_faults.iter();
    let faults: Vec<String> = faults
        .map(|fault| format!("queue {}: {}", fault.queue, fault.reason))
        .collect();
    let mut lines = identity(port);
    lines.extend(match &port.driver_status {
        None => socket(port),
        Some(driver) => interface(port, driver),
    });
    lines.extend([
        ("segment", membership(port)),
        ("mac", or_none(mac(port))),
        ("mtu", or_none(port.mtu)),
        ("weight", port.weight.to_string()),
    ]);
    lines.extend(iommu(port).map(|iommu| ("iommu", iommu)));
    lines.extend(
        limits::lines(&port.limits)
            .into_iter()
            .map(|l| ("limit", l)),
    );
    let qos_lines = qos::qos_lines(&port.qos).into_iter();
    lines.extend(qos_lines.map(|line| ("qos", line)));
    lines.extend(
        port.egress
            .iter()
            .map(|of| ("egress", qos::egress_line(of))),
    );
    lines.extend([
        ("cpu time", cpu_time(&port.work)),
        (
            "queue pairs",
            format!("{} of {}", port.queue_pairs, port.queues),
        ),
        ("ring", ring(port)),
        ("memory", bytes(port.memory_bytes)),
        ("features", joined(&port.features, " ")),
    ]);
    lines.extend(port.client.iter().map(|of| ("client", client_process(of))));
    lines.extend(port.connections.iter().flat_map(tracked));
    lines.extend(port.prefilter.iter().flat_map(prefilter));
    lines.extend(port_security(&port.port_security));
    lines.extend(vcpus(port).map(|vcpus| ("vcpus", vcpus)));
    if port.notifications != Notifications::default() {
        lines.push(("interrupts", notifications(&port.notifications)));
    }
    if port.misaligned_frames > 0 {
        let frames = count(port.misaligned_frames);
        lines.push(("misaligned", format!("{frames} frames to the guest")));
    }
    lines.extend(port.translation.iter().flat_map(translation));
    lines.extend(faults.into_iter().map(|fault| ("fault", fault)));
    lines.push(("connections", connections(&port.front_ends)));
    facts(&lines)
}

/// Returns the lines that say which port it is, and how it is.
fn identity(port: &PortStatus) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("port", port.name.clone()),
        ("state", port.admin_state.shown(port.state).to_owned()),
        ("reason", or_none(reason(port))),
        ("kind", port.kind.as_str().to_owned()),
    ];
    if port.admin_state == AdminState::Down {
        let states = [
            ("admin state", port.admin_state.as_str()),
            ("connection", port.state.as_str()),
        ];
        let states = states.map(|(key, state)| (key, state.to_owned()));
        lines.splice(2..2, states);
    }
    if !port.description.is_empty() {
        lines.insert(1, ("description", port.description.clone()));
    }
    lines
}

/// Formats the socket of a port without an interface, and what its clients have to know.
fn socket(port: &PortStatus) -> Vec<(&'static str, String)> {
    let mut lines = vec![("socket", port.socket.clone())];
    lines.extend(port.role.map(|role| ("role", role.as_str().to_owned())));
    lines.push(("owner", owner(port)));
    lines.extend(port.slots.map(|slots| ("slots", slots.to_string())));
    if port.pipes {
        lines.push(("pipes", format!("at {}.pipes", port.name)));
    }
    lines.extend(port.id.map(|id| ("memif id", id.to_string())));
    if port.has_secret {
        lines.push(("secret", "required".to_owned()));
    }
    lines
}

/// Formats what a guest is offered about an IOMMU; `None` if the port has no guest.
fn iommu(port: &PortStatus) -> Option<String> {
    let next = port.iommu?.as_str();
    Some(match port.iommu_of_connection {
        Some(now) => format!("{next} from its next connection ({} now)", now.as_str()),
        None => next.to_owned(),
    })
}

/// Formats the connected process of a port for processes.
fn client_process(of: &ClientStatus) -> String {
    let program = of.program.as_deref().unwrap_or("unknown program");
    match of.pid {
        Some(pid) => format!("{program}, pid {pid}"),
        None => format!("{program}, in another PID namespace"),
    }
}

/// Formats the number of vCPUs and the evidence for them; `None` if none were searched.
fn vcpus(port: &PortStatus) -> Option<String> {
    let search = &port.vcpu_search;
    match (search.by, &search.reason) {
        (VcpuSource::Unknown, None) => None,
        (VcpuSource::Unknown, Some(reason)) => Some(format!("unknown ({reason})")),
        (by, _) => Some(format!("{}, found by {}", port.vcpus, by.as_str())),
    }
}

/// Formats the counters of notifications, and how many of each kind were put off.
fn notifications(of: &Notifications) -> String {
    format!(
        "{} to the guest, {} deferred, {} of them slept through; {} kicks, suppressed {} times, coalesced {} times",
        count(of.to_guest),
        count(of.deferred),
        count(of.slept_through),
        count(of.kicks),
        count(of.suppressed_kicks),
        count(of.coalesced_kicks)
    )
}

/// Formats the translations of a guest with an IOMMU.
fn translation(of: &TranslationStatus) -> Vec<(&'static str, String)> {
    let table = format!(
        "{} entries, {} granted, {} revoked, {} evicted, {} refused",
        count(of.entries),
        count(of.updates),
        count(of.invalidations),
        count(of.evictions),
        count(of.refused)
    );
    let misses = format!(
        "{} asked for, {} denied, {} of them unanswered",
        count(of.misses),
        count(of.denied),
        count(of.unanswered)
    );
    let mut lines = vec![("translations", table), ("misses", misses)];
    if let Some(us) = of.p99_wait_us {
        let mean = of.mean_wait_us;
        lines.push((
            "revocation",
            format!("waits {mean} us on average, 99 % within {us} us"),
        ));
    }
    lines
}

/// Formats the prefilter of an uplink.
fn prefilter(of: &PrefilterStatus) -> Vec<(&'static str, String)> {
    let ended = format!("{} frames ended at the wire", count(of.frames));
    let text = match (&of.back_end, &of.reason) {
        (Some(back_end), None) => {
            format!("{back_end}, {} entries, {ended}", count(of.entries))
        }
        (_, reason) => format!("off: {}", reason.as_deref().unwrap_or("not known")),
    };
    vec![("prefilter", text)]
}
/// Formats the tracked connections of a port with their limits.
fn tracked(of: &PortConnections) -> Vec<(&'static str, String)> {
    let account = |of: &AccountStatus| {
        let limit = match of.bound {
            ConnectionLimit::Limit => "its limit",
            _ => "its share of the table",
        };
        let mut text = format!("{} of {}, {limit}", count(of.connections.into()), of.limit);
        if of.unreplied > 0 {
            text += &format!("; {} unanswered", count(of.unreplied.into()));
        }
        match of.reached() {
            Some((ConnectionLimit::Unreplied, limit)) => {
                text + &format!(" of {limit}: full of them")
            }
            Some(_) => text + ": full",
            None => text,
        }
    };
    let counters = [
        (of.evicted_unreplied, "unanswered ones evicted"),
        (of.evicted, "others evicted"),
        (of.refused, "refused"),
        (of.invalid, "invalid frames"),
    ];
    let mut total = format!("{} so far", count(of.opened_total));
    for (times, name) in counters.into_iter().filter(|(times, _)| *times > 0) {
        total += &format!(", {} {name}", count(times));
    }
    vec![
        ("tracked", total),
        ("opened", account(&of.opened)),
        ("opened to", account(&of.opened_to)),
    ]
}

/// Returns the texts in one, or [`NONE`].
fn joined(texts: &[String], separator: &str) -> String {
    or_none((!texts.is_empty()).then(|| texts.join(separator)))
}

/// Returns the configured MAC address, or the one in use: the interface's, or the gateway's of a
/// user port.
fn mac(port: &PortStatus) -> Option<String> {
    let driver = port.driver_status.as_ref();
    let own = driver.and_then(|driver| driver.mac.as_ref());
    let whose = match port.kind {
        PortKind::User => "of the gateway",
        _ => "of the interface",
    };
    let own = own.map(|mac| format!("{mac} ({whose})"));
    port.mac.clone().or(own)
}

/// Formats the configured owner, mode and peer of a port's socket.
fn owner(port: &PortStatus) -> String {
    let fields = [
        ("user", &port.user),
        ("group", &port.group),
        ("mode", &port.mode),
        ("peer user", &port.peer_user),
    ];
    let set: Vec<String> = fields
        .iter()
        .filter_map(|(key, value)| Some(format!("{key} {}", value.as_ref()?)))
        .collect();
    joined(&set, ", ")
}

/// Formats the counters of connections; all but the first only if they are not 0.
fn connections(of: &FrontEndStatus) -> String {
    let counters = [
        (of.rejected_connections, "rejected"),
        (of.refused_messages, "messages refused"),
        (of.pauses, "pauses"),
        (of.suppressed_log_lines, "log lines suppressed"),
    ];
    let mut text = count(of.connections);
    for (times, name) in counters.into_iter().filter(|(times, _)| *times > 0) {
        text += &format!(", {} {name}", count(times));
    }
    if let Some(ms) = of.last_rejected_ms_ago {
        text += &format!(", last rejected {} s ago", ms / 1000);
    }
    if let Some(user) = of.last_rejected_uid {
        text += &format!(", last rejected uid {user}");
    }
    text
}

/// Formats the ring layout, and whether the guest's driver is a legacy one (without `VERSION_1`).
fn ring(port: &PortStatus) -> String {
    let Some(ring) = port.ring else {
        return NONE.to_owned();
    };
    if port.features.iter().any(|name| name == "F_VERSION_1") {
        return ring.as_str().to_owned();
    }
    format!("{}, legacy driver", ring.as_str())
}

/// Formats the port security of a port with its current bindings.
fn port_security(status: &PortSecurityStatus) -> [(&'static str, String); 4] {
    let is_ip = |text: &&String| text.parse::<IpAddr>().is_ok();
    let (addresses, macs): (Vec<_>, Vec<_>) = status.bound.iter().cloned().partition(|b| is_ip(&b));
    let bound = |bound: &[String]| match bound {
        [] => String::new(),
        bound => format!(" (bound: {})", bound.join(", ")),
    };
    let may = |yes: bool| if yes { "allowed" } else { "not allowed" };
    [
        ("macs", allowed(&status.macs) + &bound(&macs)),
        ("addresses", allowed(&status.addresses) + &bound(&addresses)),
        ("dhcp server", may(status.dhcp_server).to_owned()),
        ("router", may(status.router).to_owned()),
    ]
}

fn allowed(allowed: &AllowedAddresses) -> String {
    match allowed {
        AllowedAddresses::Word(word) => word.as_str().to_owned(),
        AllowedAddresses::List(all) => all.join(", "),
    }
}

/// Formats the CPU time of the switch for a port.
fn cpu_time(work: &Work) -> String {
    let skipped = match work.skipped_batches {
        0 => String::new(),
        batches => format!(", skipped in {} batches", count(batches)),
    };
    format!(
        "{:.1} s; {} ns per frame from the guest, {} ns per frame to it{skipped}",
        work.cpu_us as f64 / 1e6,
        work.switching_ns_per_frame,
        work.copying_ns_per_frame
    )
}

/// Formats the interface and driver of an uplink, TAP or user port.
fn interface(port: &PortStatus, driver: &DriverStatus) -> Vec<(&'static str, String)> {
    let configured = port.driver.map(|driver| driver.as_str());
    let process = match driver.pid {
        Some(pid) => format!("pid {pid}, {} restarts", driver.restarts),
        None => format!("none, {} restarts", driver.restarts),
    };
    let back_end = driver.back_end.as_ref();
    let back_end = back_end.map(|back_end| match driver.in_switch {
        true => format!("{back_end}, in the switch"),
        false => back_end.clone(),
    });
    let mut rejected = format!(
        "{} by the interface, {} oversized",
        count(driver.rejected_by_interface),
        count(driver.oversized_frames)
    );
    if let Some(dropped) = driver.dropped_by_kernel {
        rejected += &format!(", {} dropped by the kernel", count(dropped));
    }
    let calls = format!(
        "{} frames a call from the interface, {} to it",
        ratio(driver.received_frames, driver.receive_calls),
        ratio(driver.sent_frames, driver.send_calls)
    );
    let mut lines = match &port.user_network {
        Some(network) => user_network(network, driver.user.as_ref()),
        None => vec![
            ("interface", or_none(port.interface.as_ref())),
            ("address", or_none(port.address.as_ref())),
        ],
    };
    lines.extend([
        ("netns", or_none(port.netns.as_ref())),
        ("driver", or_none(configured.or(driver.back_end.as_deref()))),
        ("back end", or_none(back_end)),
        ("process", process),
        ("rejected", rejected),
        ("calls", calls),
    ]);
    lines.extend(driver.user.iter().flat_map(user_flows));
    lines.extend(port.cpu_weight.map(|weight| {
        let error = driver.cpu_weight_error.iter();
        let error = error.map(|reason| format!(" (no effect: {reason})"));
        (
            "cpu weight",
            format!("{weight}{}", error.collect::<String>()),
        )
    }));
    lines
}

/// Formats the flows of a user port.
fn user_flows(of: &UserPortStatus) -> [(&'static str, String); 7] {
    let states = of.states.iter().filter(|state| state.flows > 0);
    let states: Vec<String> = states
        .map(|of| format!("{} {} {}", of.flows, of.protocol, of.state))
        .collect();
    let bound = match of.flows_max {
        USER_FLOWS_MAX => "",
        _ => " (limit of descriptors)",
    };
    let listed = |counts: &BTreeMap<String, u64>| {
        let counts = counts.iter().filter(|(_, n)| **n > 0);
        let counts: Vec<String> = counts
            .map(|(name, n)| format!("{} {name}", count(*n)))
            .collect();
        joined(&counts, ", ")
    };
    let kept_bound = match of.kept_max {
        USER_KEPT_MAX => "",
        _ => " (limit of descriptors)",
    };
    let beyond = of.flows.saturating_sub(of.kept);
    let payload = format!(
        "{} from guests, {} to them",
        bytes(of.from_guests_bytes),
        bytes(of.to_guests_bytes)
    );
    [
        (
            "flows",
            format!("{}, at most {}{bound}", of.flows, of.flows_max),
        ),
        ("flow states", joined(&states, ", ")),
        (
            "outlive driver",
            format!(
                "{}, at most {}{kept_bound}; {beyond} end with it",
                of.kept, of.kept_max
            ),
        ),
        ("new flows", listed(&of.results)),
        ("refused", listed(&of.refused)),
        (
            "payload",
            format!("{payload}; {} DNS questions", count(of.dns_questions)),
        ),
        (
            "echo requests",
            match of.echo_denied {
                true => "off, net.ipv4.ping_group_range".to_owned(),
                false => "on".to_owned(),
            },
        ),
    ]
}

/// Formats the network of a user port.
fn user_network(of: &UserSpec, status: Option<&UserPortStatus>) -> Vec<(&'static str, String)> {
    let list = |list: &Option<Vec<String>>, usual: &str| match list.as_deref() {
        None => usual.to_owned(),
        Some([]) => NONE.to_owned(),
        Some(all) => all.join(", "),
    };
    let forwards = of.forward.iter();
    let forwards = forwards.map(|of| format!("{} to {}", of.listen, of.to));
    let forwards = forwards.collect::<Vec<_>>().join(", ");
    let forwards = (!forwards.is_empty()).then_some(forwards);
    let word = |word: &Option<String>, usual: &str| word.as_deref().unwrap_or(usual).to_owned();
    let search = match of.dns.as_deref() {
        Some("off") => "off",
        _ => USER_SEARCH,
    };
    vec![
        ("network", word(&of.network, USER_NETWORK)),
        ("network6", word(&of.network6, "auto")),
        ("dns", resolvers(&word(&of.dns, "auto"), status)),
        ("search", word(&of.search, search)),
        ("host", list(&of.host, NONE)),
        ("deny", list(&of.deny, NONE)),
        ("allow", list(&of.allow, "all")),
        ("forward", or_none(forwards)),
        (
            "buffers",
            format!(
                "{} MiB, {} MiB of a guest",
                of.buffers_mib.unwrap_or(USER_BUFFERS_MIB),
                of.guest_buffers_mib.unwrap_or(USER_GUEST_BUFFERS_MIB)
            ),
        ),
        ("times", list(&of.times, "default")),
    ]
}

/// Formats the resolvers of a user port: `auto (192.0.2.1 silent, asked last; 192.0.2.2)`. Those
/// that answer, or were not asked, have no word.
fn resolvers(configured: &str, status: Option<&UserPortStatus>) -> String {
    let Some(status) = status.filter(|_| configured != "off") else {
        return configured.to_owned();
    };
    let way = |protocol: &str, of: &UserResolverWay| {
        let is_usual = matches!(&*of.state, "answers" | "not-asked");
        let state = (!is_usual).then(|| format!("{protocol}{}", of.state));
        let last = of.asked_last.then(|| format!("{protocol}asked last"));
        state.into_iter().chain(last)
    };
    let one = |of: &UserResolverStatus| {
        let address = of.address.trim_end_matches(":53");
        let address = address.trim_start_matches('[').trim_end_matches(']');
        let address = match of.address.ends_with(":53") {
            true => address,
            false => &of.address,
        };
        let words = way("", &of.udp).chain(way("TCP ", &of.tcp));
        let words: Vec<String> = words.collect();
        match words.is_empty() {
            true => address.to_owned(),
            false => format!("{address} {}", words.join(", ")),
        }
    };
    let all: Vec<String> = status.resolvers.iter().map(one).collect();
    match configured {
        "auto" if all.is_empty() => "auto (no resolvers)".to_owned(),
        "auto" => format!("auto ({})", all.join("; ")),
        configured if all.is_empty() => configured.to_owned(),
        _ => all.join("; "),
    }
}

/// Formats how many there were of one for each of the other, `-` without any.
fn ratio(of: u64, each: u64) -> String {
    match each {
        0 => "-".to_owned(),
        each => format!("{:.1}", of as f64 / each as f64),
    }
}

#[cfg(test)]
mod tests {
    use api::v1::{AllowedWord, PortSpec, PortState};

    use super::*;

    #[test]
    fn a_cpu_weight_without_effect_says_why() {
        let spec = PortSpec {
            cpu_weight: Some(200),
            ..PortSpec::new("up", PortKind::Uplink)
        };
        let port = PortStatus::new(&spec, PortState::Up);
        let line = |error: Option<&str>| {
            let driver = DriverStatus {
                cpu_weight_error: error.map(str::to_owned),
                ..DriverStatus::default()
            };
            interface(&port, &driver).pop().unwrap().1
        };
        assert_eq!(line(None), "200");
        assert_eq!(
            line(Some("not delegated")),
            "200 (no effect: not delegated)"
        );
    }

    #[test]
    fn an_interface_in_the_switch_has_no_process() {
        let spec = PortSpec::new("up", PortKind::Uplink);
        let port = PortStatus::new(&spec, PortState::Up);
        let lines = |in_switch, pid| {
            let driver = DriverStatus {
                back_end: Some("tap".to_owned()),
                in_switch,
                pid,
                ..DriverStatus::default()
            };
            let lines = interface(&port, &driver).into_iter();
            let shown = lines.filter(|(name, _)| ["back end", "process"].contains(name));
            shown.map(|(_, text)| text).collect::<Vec<_>>()
        };
        assert_eq!(
            lines(true, None),
            ["tap, in the switch", "none, 0 restarts"]
        );
        assert_eq!(lines(false, Some(7)), ["tap", "pid 7, 0 restarts"]);
    }

    #[test]
    fn resolvers_show_what_is_wrong_with_them() {
        let way = |state: &str, asked_last| UserResolverWay {
            state: state.to_owned(),
            asked_last,
        };
        let resolver = |address: &str, udp, tcp| UserResolverStatus {
            address: address.to_owned(),
            udp,
            tcp,
        };
        let good = || way("answers", false);
        let status = UserPortStatus {
            resolvers: vec![
                resolver("10.255.255.53:53", good(), way("not-asked", false)),
                resolver("192.0.2.1:5353", way("silent", true), good()),
                resolver("[2001:db8::1]:53", good(), way("closed", false)),
            ],
            ..UserPortStatus::default()
        };
        let all = "10.255.255.53; 192.0.2.1:5353 silent, asked last; 2001:db8::1 TCP closed";
        let one = |configured: &str| resolvers(configured, Some(&status));
        assert_eq!(one("auto"), format!("auto ({all})"));
        assert_eq!(one("10.255.255.53 192.0.2.1:5353 2001:db8::1"), all);
        assert_eq!(one("off"), "off");
        assert_eq!(resolvers("auto", None), "auto");
        let none = UserPortStatus::default();
        assert_eq!(resolvers("auto", Some(&none)), "auto (no resolvers)");
    }

    #[test]
    fn bindings_follow_the_setting_of_their_kind() {
        let bound = ["52:54:00:00:00:01", "10.0.0.1", "fe80::1"];
        let status = PortSecurityStatus {
            macs: AllowedAddresses::Word(AllowedWord::Sticky),
            addresses: AllowedAddresses::List(vec!["10.0.0.1".to_owned()]),
            dhcp_server: false,
            router: false,
            bound: bound.map(str::to_owned).to_vec(),
        };
        let [(_, macs), (_, addresses), ..] = port_security(&status);
        assert_eq!(macs, "sticky (bound: 52:54:00:00:00:01)");
        assert_eq!(addresses, "10.0.0.1 (bound: 10.0.0.1, fe80::1)");
    }
}
