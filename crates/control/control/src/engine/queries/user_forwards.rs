//! Forwards of user ports: whether connections reach the guest, and else why not. The supervisor
//! has the refusals, the driver process knows the guests' addresses, and the switch the states of
//! their ports.

use std::collections::BTreeMap;

use api::v1::{
    AdminState, ForwardSpec, ForwardState, PortState, Problem, UserForwardEntry,
    UserForwardsDocument,
};
use config::desired;
use ipc::driving::{DriverState, Listen, UserForward, UserGuest};
use ipc::user_reports::{UserForwardRow, UserRows, UserTable};

use super::{status, user};
use crate::engine::{Engine, SharedEngine, unavailable};

/// Returns the states of the forwards of a user port.
///
/// # Errors
/// There is no such port, or a peer does not reply. A driver that does not is a state.
pub(in crate::engine) async fn forwards(
    engine: &SharedEngine<'_>,
    port: &str,
) -> Result<UserForwardsDocument, Problem> {
    engine.with(|e| user::check_user_port(e, port))?;
    let states = status::states_by_name(engine).await?;
    let drivers = engine.with(|e| e.links.supervisor.driver_states());
    let drivers = drivers.await.map_err(unavailable)?;
    let mut rows = BTreeMap::new();
    let all = |part| match part {
        UserRows::Forwards(part) => {
            rows.extend(part.into_iter().map(|row| (row.listen, row)));
            false
        }
        UserRows::Flows(_) | UserRows::Leases(_) => true,
    };
    let asked = user::table(engine, port, UserTable::Forwards, all).await;
    Ok(engine.with(|e| {
        let scene = Scene {
            states,
            driver: drivers.into_iter().find(|driver| driver.name == port),
            silent: asked.err().map(|problem| problem.detail),
            rows,
            guests: guests(e, port),
        };
        let forwards = e.store.saved.desired.port(port);
        let forwards = forwards.map_or(&[][..], |port| &port.forward);
        UserForwardsDocument {
            forwards: forwards.iter().map(|spec| scene.entry(spec)).collect(),
        }
    }))
}

/// Returns the guests of a user port.
fn guests(engine: &Engine, port: &str) -> Vec<UserGuest> {
    let mut networks = engine.ports.user_networks.iter();
    let own = networks.find(|(name, _)| name == port);
    own.map_or_else(Vec::new, |(_, network)| network.guests.clone())
}

/// The state of all that a forward depends on.
struct Scene {
    /// Ports by name.
    states: BTreeMap<String, (AdminState, PortState)>,
    driver: Option<DriverState>,
    /// The driver does not answer, and why.
    silent: Option<String>,
    /// The forwards that the driver has.
    rows: BTreeMap<Listen, UserForwardRow>,
    guests: Vec<UserGuest>,
}

impl Scene {
    fn entry(&self, spec: &ForwardSpec) -> UserForwardEntry {
        let all = desired::forwards_of(spec);
        let refused = self.refused(&all);
        let (state, reason) = if refused.0 > 0 {
            (ForwardState::Refused, Some(refused.1))
        } else {
            match all.first().and_then(|first| self.obstacle(first)) {
                Some((state, reason)) => (state, Some(reason)),
                None => (ForwardState::Ready, None),
            }
        };
        UserForwardEntry {
            listen: spec.listen.clone(),
            to: spec.to.clone(),
            state,
            reason,
            ports: all.len() as u32,
            refused: refused.0,
        }
    }

    /// Returns how many forwards of a range are refused, and why.
    fn refused(&self, all: &[UserForward]) -> (u32, String) {
        let ranges = self.driver.iter().flat_map(|driver| &driver.refused);
        let concerned = |listen| ranges.clone().any(|range| range.has(listen));
        let count = all.iter().filter(|of| concerned(of.listen)).count();
        let own = ranges
            .clone()
            .filter(|range| all.iter().any(|of| range.has(of.listen)));
        let reasons: Vec<String> = match all.len() {
            1 => own.map(|range| range.reason.clone()).collect(),
            _ => own.map(ToString::to_string).collect(),
        };
        let reasons = reasons.join("; ");
        let text = match all.len() {
            1 => reasons,
            all => format!("{count} of {all}: {reasons}"),
        };
        (count as u32, text)
    }

    /// Returns the state of a forward that is not refused and whose connections do not reach the
    /// guest, with the reason.
    fn obstacle(&self, of: &UserForward) -> Option<(ForwardState, String)> {
        // Beside a process that runs, the reason may be other forwards that are refused.
        let driver = self.driver.as_ref().filter(|of| of.refused.is_empty());
        let reason = driver.and_then(|driver| driver.reason.as_ref());
        if let Some(reason) = reason.or(self.silent.as_ref()) {
            return Some((ForwardState::Waiting, reason.clone()));
        }
        let Some(row) = self.rows.get(&of.listen) else {
            let reason = "the driver process does not have it yet".to_owned();
            return Some((ForwardState::Opening, reason));
        };
        let reason = self.absent(&of.to, row)?;
        Some((ForwardState::Waiting, reason))
    }

    /// Returns why a guest is not there.
    fn absent(&self, name: &str, row: &UserForwardRow) -> Option<String> {
        let guest = self.guests.iter().find(|guest| guest.name == name);
        if let Some(guest) = guest {
            let state = self.states.get(name).copied().unwrap_or_default();
            if let Some(text) = not_up(state) {
                return Some(format!("{name} {text}"));
            }
            if row.address.is_none() && guest.mac.is_none() {
                return Some(format!(
                    "{name} has no address yet: its MAC address is not known"
                ));
            }
        }
        match row.address {
            None => Some(format!("{name} has no address yet")),
            Some(_) if row.has_station => None,
            Some(ip) => Some(format!(
                "nothing was seen at {ip} yet: it is asked for with the next connection"
            )),
        }
    }
}

/// Returns why a guest behind a port is not there.
fn not_up((admin, state): (AdminState, PortState)) -> Option<&'static str> {
    if admin == AdminState::Down {
        return Some("is administratively down");
    }
    match state {
        PortState::Up | PortState::Faulted => None,
        PortState::Connected => Some("is connected, but its guest's driver does not run yet"),
        PortState::Waiting | PortState::Dialing => Some("is not connected"),
        PortState::Starting | PortState::Unknown => Some("is not in the switch yet"),
    }
}

#[cfg(test)]
mod tests {
    use ipc::driving::{DriverCounters, RefusedForwards};

    use super::*;

    fn spec(listen: &str, to: &str) -> ForwardSpec {
        ForwardSpec {
            listen: listen.to_owned(),
            to: to.to_owned(),
        }
    }

    fn row(spec: &ForwardSpec, address: Option<&str>, has_station: bool) -> UserForwardRow {
        UserForwardRow {
            listen: desired::forwards_of(spec)[0].listen,
            address: address.map(|ip| ip.parse().unwrap()),
            has_station,
        }
    }

    fn scene() -> Scene {
        let guest = |name: &str, mac| UserGuest {
            name: name.to_owned(),
            mac,
            addresses: Vec::new(),
        };
        let up = (AdminState::Up, PortState::Up);
        let states = [
            ("vm1", up),
            ("vm2", up),
            ("vm3", (AdminState::Up, PortState::Waiting)),
            ("vm4", (AdminState::Down, PortState::Up)),
            ("vm5", (AdminState::Up, PortState::Connected)),
        ];
        Scene {
            states: states
                .map(|(name, state)| (name.to_owned(), state))
                .into_iter()
                .collect(),
            driver: Some(DriverState {
                prefilter: None,
                name: "out".to_owned(),
                back_end: None,
                mac: None,
                user: None,
                cpu_weight_error: None,
                in_switch: false,
                pid: Some(7),
                restarts: 0,
                counters: DriverCounters::default(),
                reason: None,
                refused: Vec::new(),
            }),
            silent: None,
            rows: BTreeMap::new(),
            guests: ["vm1", "vm2", "vm3", "vm4", "vm5"]
                .map(|name| guest(name, (name != "vm2").then_some([2, 0, 0, 0, 0, 1])))
                .into(),
        }
    }

    #[test]
    fn a_forward_that_is_not_ready_says_why() {
        let listen = "tcp 127.0.0.1:2222";
        for (to, address, has_station, expected) in [
            ("vm1:22", Some("10.0.2.15"), true, None),
            ("10.0.2.30:22", Some("10.0.2.30"), true, None),
            ("vm1:22", None, false, Some("vm1 has no address yet")),
            (
                "vm2:22",
                None,
                false,
                Some("vm2 has no address yet: its MAC address is not known"),
            ),
            (
                "vm3:22",
                Some("10.0.2.15"),
                true,
                Some("vm3 is not connected"),
            ),
            (
                "vm4:22",
                Some("10.0.2.15"),
                true,
                Some("vm4 is administratively down"),
            ),
            (
                "vm5:22",
                None,
                false,
                Some("vm5 is connected, but its guest's driver does not run yet"),
            ),
            (
                "10.0.2.30:22",
                Some("10.0.2.30"),
                false,
                Some("nothing was seen at 10.0.2.30 yet: it is asked for with the next connection"),
            ),
        ] {
            let (mut scene, spec) = (scene(), spec(listen, to));
            let row = row(&spec, address, has_station);
            scene.rows.insert(row.listen, row);
            let entry = scene.entry(&spec);
            assert_eq!(entry.reason.as_deref(), expected, "{to}");
            assert_eq!(entry.state == ForwardState::Ready, expected.is_none());
        }
        let (mut scene, spec) = (scene(), spec(listen, "vm1:22"));
        let reason = |scene: &Scene| scene.entry(&spec).reason.unwrap();
        assert_eq!(reason(&scene), "the driver process does not have it yet");
        scene.silent = Some("port out: its driver does not run".to_owned());
        assert_eq!(reason(&scene), "port out: its driver does not run");
        scene.driver.as_mut().unwrap().reason = Some("killed".to_owned());
        assert_eq!(reason(&scene), "killed");
    }

    #[test]
    fn refusals_of_a_range_are_counted_and_explained() {
        let range = spec("tcp 127.0.0.1:2000-2999", "vm1:2000");
        let (one, other) = (
            spec("tcp 127.0.0.1:2990", "vm1:22"),
            spec("udp 127.0.0.1:2990", "vm1:22"),
        );
        let mut scene = scene();
        let refused = RefusedForwards {
            first: desired::forwards_of(&range)[32].listen,
            last: 2999,
            reason: "no descriptors left".to_owned(),
        };
        scene.driver.as_mut().unwrap().refused = vec![refused];
        let entry = scene.entry(&range);
        assert_eq!(entry.state, ForwardState::Refused);
        assert_eq!((entry.ports, entry.refused), (1000, 968));
        let text = "968 of 1000: tcp 127.0.0.1:2032-2999: no descriptors left";
        assert_eq!(entry.reason.as_deref(), Some(text));
        let entry = scene.entry(&one);
        assert_eq!((entry.ports, entry.refused), (1, 1));
        assert_eq!(entry.reason.as_deref(), Some("no descriptors left"));
        assert_eq!(scene.entry(&other).state, ForwardState::Opening);
    }
}
