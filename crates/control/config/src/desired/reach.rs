//! The directories in which the sockets of a configuration may be, and the places where its
//! forwards may listen; see [`ipc::sockets`] and [`ipc::forwards`].

use std::path::Path;

use api::v1::{DesiredState, PortKind, PortSpec};
use ipc::driving::Listen;
use ipc::forwards::ForwardReach;
use ipc::sockets::Reach;
use ipc::supervision::SocketDir;

use super::at::{At, quoted};
use super::device::namespace_of;
use super::invalid::{Invalid, Place};
use super::metrics::MetricsSocket;
use super::user::forward_of;

/// Returns the directories and places for a checked state at the start.
#[must_use]
pub fn reach_of(state: &DesiredState, runtime_dir: &Path) -> Reach {
    let dir = |path: &Path, below| SocketDir {
        path: path.to_string_lossy().into_owned(),
        below,
    };
    let mut dirs = vec![dir(runtime_dir, true)];
    let more = state.switch.socket_dirs.iter();
    dirs.extend(more.map(|more| dir(Path::new(more), true)));
    for (_, socket) in sockets(state) {
        let parent = Path::new(socket).parent();
        if let Some(parent) = parent.filter(|parent| parent.is_absolute()) {
            let dir = dir(parent, false);
            if !dirs.contains(&dir) {
                dirs.push(dir);
            }
        }
    }
    let listens = forwards(state).flat_map(|(_, _, listens)| listens);
    let namespaces = state.ports.iter().filter_map(namespace_of);
    let more = state.switch.forward_addresses.iter();
    let more: Vec<_> = more.filter_map(|address| address.parse().ok()).collect();
    let forwards = ForwardReach::new(listens.collect(), &more, namespaces.collect());
    Reach::new(runtime_dir, dirs).with_forwards(forwards)
}

/// Checks that every socket of a state is in these directories, and every forward at these places.
///
/// # Errors
/// The first socket that is not, or the first forward.
pub fn check_reach(reach: &Reach, state: &DesiredState) -> Result<(), Invalid> {
    let mut beyond = sockets(state).filter(|(_, socket)| !reach.has(socket));
    match beyond.next() {
        Some((at, socket)) => Err(at.wrong(
            "a path in the runtime directory, or in one that Lasthop was started with; \
             further ones are for \
             socket_dirs of [switch], and take a restart",
            quoted(socket),
        )),
        None => check_forwards(reach.forwards(), state),
    }
}

fn check_forwards(reach: &ForwardReach, state: &DesiredState) -> Result<(), Invalid> {
    for (at, port, listens) in forwards(state) {
        let netns = namespace_of(port);
        let beyond = |listen: &Listen| reach.permit(*listen, netns.as_ref()).is_err();
        if let Some(listen) = listens.into_iter().find(beyond) {
            return Err(at.wrong(
                "a port from 1024 on of a loopback address or of one that Lasthop was started \
                 with, in a network namespace that it was started with; further addresses are for \
                 forward_addresses of [switch], and take a restart",
                format!("\"{listen}\""),
            ));
        }
    }
    Ok(())
}

/// Returns the forwards of a checked state with their ports.
fn forwards(state: &DesiredState) -> impl Iterator<Item = (At, &PortSpec, Vec<Listen>)> {
    let ports = state.ports.iter().enumerate();
    let users = ports.filter(|(_, port)| port.kind == PortKind::User);
    users.flat_map(|(i, port)| {
        let forwards = port.forward.iter().enumerate();
        forwards.map(move |(n, spec)| {
            let all = forward_of(spec).unwrap_or_default().into_iter();
            let listens = all.map(|forward| forward.listen).collect();
            (At(Place::Forward(i, n), "listen"), port, listens)
        })
    })
}

/// Returns the paths of all sockets of a state.
fn sockets(state: &DesiredState) -> impl Iterator<Item = (At, &str)> {
    let listen = state.metrics.listen.as_deref().and_then(MetricsSocket::of);
    let metrics = match listen {
        Some(MetricsSocket::Unix(path)) => Some((At(Place::Metrics, "listen"), path)),
        _ => None,
    };
    let ports = (state.ports.iter().enumerate())
        .filter(|(_, port)| !port.kind.has_driver())
        .map(|(i, port)| (At(Place::Port(i), "socket"), port.socket.as_str()));
    let pipes = state.pipes.iter().enumerate();
    let pipes = pipes.map(|(i, pipe)| (At(Place::Pipe(i), "socket"), pipe.socket.as_str()));
    metrics.into_iter().chain(ports).chain(pipes)
}

#[cfg(test)]
mod tests {
    use api::v1::ForwardSpec;

    use super::*;

    fn state(dirs: &[&str], sockets: &[&str]) -> DesiredState {
        let port = |socket: &&str| PortSpec {
            socket: (*socket).to_owned(),
            ..PortSpec::new("p".to_owned(), PortKind::VhostUser)
        };
        let mut state = DesiredState {
            ports: sockets.iter().map(port).collect(),
            ..DesiredState::default()
        };
        state.switch.socket_dirs = dirs.iter().map(|dir| (*dir).to_owned()).collect();
        state
    }

    #[test]
    fn sockets_stay_where_lasthop_was_started_with() {
        let start = state(&["/srv/vms"], &["a.sock", "/run/vm/b.sock"]);
        let reach = reach_of(&start, Path::new("/run/lasthop"));
        assert_eq!(check_reach(&reach, &start), Ok(()));
        for within in [
            "c.sock",
            "./c.sock",
            "sub/c.sock",
            "/run/lasthop/c.sock",
            "/run/vm/c.sock",
            "/run//vm/./c.sock",
            "/srv/vms/c.sock",
            "/srv/vms/one/c.sock",
        ] {
            assert!(reach.has(within), "{within}");
        }
        for beyond in [
            "../c.sock",
            "sub/../../c.sock",
            "/run/vm/sub/c.sock",
            "/run/vmx/c.sock",
            "/run/c.sock",
            "/srv/vms/../c.sock",
            "/srv/vms",
            "/",
            "",
        ] {
            assert!(!reach.has(beyond), "{beyond}");
        }
    }

    #[test]
    fn a_socket_elsewhere_is_an_error_of_its_key() {
        let reach = reach_of(&state(&[], &[]), Path::new("/run/lasthop"));
        let beyond = state(&[], &["a.sock", "/srv/a.sock"]);
        let invalid = check_reach(&reach, &beyond).unwrap_err();
        assert_eq!((invalid.place, invalid.key), (Place::Port(1), "socket"));
        assert!(invalid.expected.contains("socket_dirs"), "{invalid}");
        let mut metrics = state(&[], &[]);
        metrics.metrics.listen = Some("unix:/srv/m.sock".to_owned());
        let invalid = check_reach(&reach, &metrics).unwrap_err();
        assert_eq!((invalid.place, invalid.key), (Place::Metrics, "listen"));
    }

    /// A state with a forward at each of these places.
    fn forwarding(netns: Option<&str>, listens: &[&str]) -> DesiredState {
        let forward = |listen: &&str| ForwardSpec {
            listen: (*listen).to_owned(),
            to: "10.0.2.15:22".to_owned(),
        };
        let port = PortSpec {
            forward: listens.iter().map(forward).collect(),
            netns: netns.map(str::to_owned),
            ..PortSpec::new("out".to_owned(), PortKind::User)
        };
        DesiredState {
            ports: vec![port].into(),
            ..DesiredState::default()
        }
    }

    #[test]
    fn forwards_stay_at_addresses_that_lasthop_was_started_with() {
        let mut start = forwarding(Some("blue"), &["tcp 192.0.2.1:80", "udp [::]:5000-5001"]);
        start.switch.forward_addresses = vec!["192.0.2.9".to_owned()];
        let reach = reach_of(&start, Path::new("/run/lasthop"));
        assert_eq!(check_reach(&reach, &start), Ok(()));
        let check = |netns, listen| check_reach(&reach, &forwarding(netns, &[listen]));
        for within in [
            "tcp 127.0.0.1:2222",
            "tcp 192.0.2.1:80",
            "tcp 192.0.2.1:8000-9000",
            "tcp 192.0.2.9:1024",
            "udp [::]:5002",
        ] {
            assert_eq!(check(None, within), Ok(()), "{within}");
            assert_eq!(check(Some("blue"), within), Ok(()), "{within}");
            let elsewhere = check(Some("red"), within).unwrap_err();
            assert_eq!(elsewhere.place, Place::Forward(0, 0), "{within}");
        }
        for (beyond, found) in [
            ("tcp 0.0.0.0:8080", "\"tcp 0.0.0.0:8080\""),
            ("tcp 127.0.0.1:22", "\"tcp 127.0.0.1:22\""),
            ("tcp 192.0.2.9:1022-1030", "\"tcp 192.0.2.9:1022\""),
            ("udp 192.0.2.1:80", "\"udp 192.0.2.1:80\""),
        ] {
            let invalid = check(None, beyond).unwrap_err();
            assert_eq!(
                (invalid.place, invalid.key),
                (Place::Forward(0, 0), "listen")
            );
            assert!(invalid.expected.contains("forward_addresses"), "{invalid}");
            assert_eq!(invalid.found, found);
        }
    }
}
