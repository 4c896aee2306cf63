//! The directories in which the sockets of a configuration may be; see [`channel::sockets`].

use std::path::Path;

use api::v1::DesiredState;
use channel::sockets::Reach;
use channel::supervision::SocketDir;

use super::check::{At, quoted};
use super::invalid::{Invalid, Place};
use super::metrics::MetricsSocket;

/// Returns the directories for a checked state at the start.
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
    Reach::new(runtime_dir, dirs)
}

/// Checks that every socket of a state is in these directories.
///
/// # Errors
/// The first socket that is not.
pub fn check_reach(reach: &Reach, state: &DesiredState) -> Result<(), Invalid> {
    let mut beyond = sockets(state).filter(|(_, socket)| !reach.has(socket));
    match beyond.next() {
        Some((at, socket)) => Err(at.wrong(
            "a path in the runtime directory, or in one that Lasthop was started with; \
             further ones are for \
             socket_dirs of [switch], and take a restart",
            quoted(socket),
        )),
        None => Ok(()),
    }
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
    use api::v1::{PortKind, PortSpec};

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
}
