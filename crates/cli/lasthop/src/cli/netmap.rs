//! `lasthop netmap`: becomes a program of the netmap API, with the library that takes its calls.

use std::path::Path;

use api::v1::{DesiredState, PortKind};
use client::{Failure, block_on};

use super::args::Netmap;
use super::preload;

/// The library, beside this program.
const LIBRARY: &str = "liblasthop_netmap.so";
/// Variables of the library.
const RUNTIME_DIR: &str = "LASTHOP_RUNTIME_DIR";
const SOCKETS: &str = "LASTHOP_NETMAP_SOCKETS";
const POLL: &str = "LASTHOP_NETMAP_POLL";

/// Becomes the program; returns only after an error.
pub(super) fn start(runtime_dir: &Path, arguments: &Netmap) -> Failure {
    let dir = std::path::absolute(runtime_dir).unwrap_or_else(|_| runtime_dir.to_owned());
    preload::start(LIBRARY, &arguments.command, |command| {
        if let Some(sockets) = sockets(&dir) {
            command.env(SOCKETS, sockets);
        }
        if let Some(poll) = &arguments.poll {
            command.env(POLL, poll);
        }
        command.env(RUNTIME_DIR, &dir);
        Ok(())
    })
}

/// Returns the names of ports and pipes with their sockets where these are not at their default
/// paths. `None` if there are none, or the API is not to be reached: for other users it is not.
fn sockets(dir: &Path) -> Option<String> {
    let mut state = DesiredState::default();
    let read = block_on(dir, async |client| {
        state = client.read("/v1/state").await?;
        Ok(())
    });
    read.ok()?;
    let all = elsewhere(&state, dir);
    (!all.is_empty()).then(|| all.join(":"))
}

/// Returns such names with their sockets. The pipes of a port come before the port: the library
/// takes the first path that does not end as the other kind's default. A path with a colon cannot
/// be passed on.
fn elsewhere(state: &DesiredState, dir: &Path) -> Vec<String> {
    let text = |name: &str, socket: &str| {
        let path = dir.join(socket);
        let text = path.to_str().filter(|text| !text.contains(':'))?;
        Some(format!("{name}={text}"))
    };
    let mut all = Vec::new();
    let ports = state.ports.iter();
    for port in ports.filter(|port| port.kind == PortKind::Netmap) {
        let name = &port.name;
        if port.socket == format!("{name}.netmap") {
            continue;
        }
        if port.pipes {
            all.extend(text(name, &format!("{name}.pipes")));
        }
        all.extend(text(name, &port.socket));
    }
    for pipe in &state.pipes {
        if pipe.socket != format!("{}.pipes", pipe.name) {
            all.extend(text(&pipe.name, &pipe.socket));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use api::v1::{PipeSpec, PortSpec};

    use super::*;

    #[test]
    fn only_sockets_elsewhere_are_named() {
        let port = |name: &str, socket: &str| PortSpec {
            socket: socket.to_owned(),
            ..PortSpec::new(name, PortKind::Netmap)
        };
        let pipe = |name: &str, socket: &str| PipeSpec {
            socket: socket.to_owned(),
            ..PipeSpec::new(name)
        };
        let state = DesiredState {
            ports: vec![
                port("a", "a.netmap"),
                port("b", "/srv/b.sock"),
                port("c", "c:d"),
                PortSpec {
                    pipes: true,
                    ..port("lb", "/srv/lb.sock")
                },
                PortSpec::vhost_user("vm", "/srv/vm.sock"),
            ]
            .into(),
            pipes: vec![pipe("p", "p.pipes"), pipe("q", "other.pipes")],
            ..DesiredState::default()
        };
        let all = elsewhere(&state, Path::new("/run/lasthop"));
        let expected = [
            "b=/srv/b.sock",
            "lb=/run/lasthop/lb.pipes",
            "lb=/srv/lb.sock",
            "q=/run/lasthop/other.pipes",
        ];
        assert_eq!(all, expected);
    }
}
