//! One port, fact by fact.

use std::net::IpAddr;

use api::v1::{AdminState, Allowed, DriverStatus, FrontEndStatus, GuardStatus, PortStatus, Work};

use super::super::limits;
use super::super::tables::facts;
use super::super::units::{bytes, count, several};
use super::{NONE, membership, or_none, reason};

/// `lasthop port show`.
pub(in crate::cli) fn port(port: &PortStatus) -> String {
    let faults = port.queue_faults.iter();
    let faults: Vec<String> = faults
        .map(|fault| format!("queue {}: {}", fault.queue, fault.reason))
        .collect();
    let features = match port.features.is_empty() {
        true => NONE.to_owned(),
        false => port.features.join(" "),
    };
    let mut lines = vec![
        ("port", port.name.clone()),
        ("state", port.state.as_str().to_owned()),
        ("reason", or_none(reason(port))),
        ("kind", port.kind.as_str().to_owned()),
    ];
    if port.admin_state == AdminState::Down {
        lines.insert(2, ("admin state", port.admin_state.as_str().to_owned()));
    }
    lines.extend(match &port.driver_process {
        None => vec![
            ("socket", port.socket.clone()),
            ("role", port.role.as_str().to_owned()),
            ("owner", owner(port)),
        ],
        Some(driver) => interface(port, driver),
    });
    lines.extend([
        ("segment", membership(port)),
        ("mac", or_none(mac(port))),
        ("mtu", or_none(port.mtu.map(|mtu| mtu.to_string()))),
        ("weight", port.weight.to_string()),
    ]);
    lines.extend(
        limits::lines(&port.limits)
            .into_iter()
            .map(|l| ("limit", l)),
    );
    lines.extend([
        ("work", work(&port.work)),
        (
            "queue pairs",
            format!("{} of {}", port.queue_pairs, port.queues),
        ),
        ("ring", ring(port)),
        ("memory", bytes(port.memory_bytes)),
        ("features", features),
    ]);
    lines.extend(guard(&port.guard));
    if port.vcpu_threads > 0 {
        lines.push(("processors", several(port.vcpu_threads.into(), "thread")));
    }
    lines.extend(faults.into_iter().map(|fault| ("fault", fault)));
    lines.push(("connections", connections(&port.front_ends)));
    facts(&lines)
}

/// The configured address, or else the one that the interface has.
fn mac(port: &PortStatus) -> Option<String> {
    let driver = port.driver_process.as_ref();
    let own = driver.and_then(|driver| driver.mac.as_ref());
    let own = own.map(|mac| format!("{mac} (the interface's)"));
    port.mac.clone().or(own)
}

/// Whose a port's socket is, and who may connect; what is not said is left out.
fn owner(port: &PortStatus) -> String {
    let said = [
        ("user", &port.user),
        ("group", &port.group),
        ("mode", &port.mode),
        ("only of user", &port.peer_user),
    ];
    let said = said.iter().filter_map(|(key, value)| {
        let value = value.as_ref()?;
        Some(format!("{key} {value}"))
    });
    let said: Vec<String> = said.collect();
    match said.is_empty() {
        true => NONE.to_owned(),
        false => said.join(", "),
    }
}

/// What became of connections to a port; what never happened is left out.
fn connections(of: &FrontEndStatus) -> String {
    let happened = [
        (of.turned_away, "turned away"),
        (of.refusals, "messages refused"),
        (of.pauses, "pauses"),
        (of.lines_left_out, "log lines left out"),
    ];
    let happened = happened.into_iter().filter(|(times, _)| *times > 0);
    let mut text = count(of.connections);
    for (times, name) in happened {
        text += &format!(", {} {name}", count(times));
    }
    if let Some(ms) = of.turned_away_ms_ago {
        text += &format!(", the last turned away {} s ago", ms / 1000);
    }
    if let Some(user) = of.last_stranger {
        text += &format!(", the last other user {user}");
    }
    text
}

/// The layout of a port's queues, and whether their driver is a legacy one: without `VERSION_1`.
fn ring(port: &PortStatus) -> String {
    let Some(ring) = port.ring else {
        return NONE.to_owned();
    };
    match port.features.iter().any(|name| name == "F_VERSION_1") {
        true => ring.as_str().to_owned(),
        false => format!("{}, legacy driver", ring.as_str()),
    }
}

/// What a port's guest may send.
fn guard(guard: &GuardStatus) -> [(&'static str, String); 4] {
    let is_ip = |text: &&String| text.parse::<IpAddr>().is_ok();
    let (addresses, macs): (Vec<_>, Vec<_>) = guard.bound.iter().cloned().partition(|b| is_ip(&b));
    let bound = |bound: &[String]| match bound.is_empty() {
        true => String::new(),
        false => format!(" (bound: {})", bound.join(", ")),
    };
    let may = |yes: bool| if yes { "allowed" } else { "not allowed" };
    [
        ("macs", allowed(&guard.macs) + &bound(&macs)),
        ("addresses", allowed(&guard.addresses) + &bound(&addresses)),
        ("dhcp server", may(guard.dhcp_server).to_owned()),
        ("router", may(guard.router).to_owned()),
    ]
}

fn allowed(allowed: &Allowed) -> String {
    match allowed {
        Allowed::Word(word) => word.as_str().to_owned(),
        Allowed::List(all) => all.join(", "),
    }
}

/// What a port has cost the switch.
fn work(work: &Work) -> String {
    let masked = match work.masked_batches {
        0 => String::new(),
        batches => format!(", masked in {}", format_args!("{} batches", count(batches))),
    };
    format!(
        "{:.1} s of a processor; {} ns a frame from the guest, {} ns a frame to it{masked}",
        work.cpu_us as f64 / 1e6,
        work.switching_ns_per_frame,
        work.copying_ns_per_frame
    )
}

/// What is behind a port with a driver, and how that is.
fn interface(port: &PortStatus, driver: &DriverStatus) -> Vec<(&'static str, String)> {
    let asked = port.driver.map(|d| d.as_str().to_owned());
    let process = match driver.pid {
        Some(pid) => format!("pid {pid}, {} restarts", driver.restarts),
        None => format!("none, {} restarts", driver.restarts),
    };
    let refused = format!(
        "{} by the interface, {} too long",
        count(driver.refused_by_interface),
        count(driver.too_long)
    );
    vec![
        ("interface", or_none(port.interface.clone())),
        ("netns", or_none(port.netns.clone())),
        ("address", or_none(port.address.clone())),
        ("driver", or_none(asked.or(driver.back_end.clone()))),
        ("back end", or_none(driver.back_end.clone())),
        ("process", process),
        ("refused", refused),
    ]
}

#[cfg(test)]
mod tests {
    use api::v1::AllowedWord;

    use super::*;

    #[test]
    fn what_is_bound_stands_with_its_kind() {
        let bound = ["52:54:00:00:00:01", "10.0.0.1", "fe80::1"];
        let status = GuardStatus {
            macs: Allowed::Word(AllowedWord::LearnedOnce),
            addresses: Allowed::List(vec!["10.0.0.1".to_owned()]),
            dhcp_server: false,
            router: false,
            bound: bound.map(str::to_owned).to_vec(),
        };
        let [(_, macs), (_, addresses), ..] = guard(&status);
        assert_eq!(macs, "learned-once (bound: 52:54:00:00:00:01)");
        assert_eq!(addresses, "10.0.0.1 (bound: 10.0.0.1, fe80::1)");
    }
}
