//! `lasthop netmap`: becomes a program of the netmap API, with the library that takes its calls
//! (`LD_PRELOAD`, ld.so(8)). A program that the dynamic linker would start without the library is
//! refused: a static one, and one that runs with more rights than its caller.

mod program;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use api::v1::{DesiredState, PortKind};
use client::{Failure, block_on};

use super::args::Netmap;

/// The library, beside this program.
const LIBRARY: &str = "liblasthop_netmap.so";
/// Variables of the library.
const RUNTIME_DIR: &str = "LASTHOP_RUNTIME_DIR";
const SOCKETS: &str = "LASTHOP_NETMAP_SOCKETS";
const POLL: &str = "LASTHOP_NETMAP_POLL";
/// Variable of the dynamic linker: libraries to load first, separated by colons or blanks.
const PRELOAD: &str = "LD_PRELOAD";

/// Becomes the program; returns only after an error.
pub(super) fn start(runtime_dir: &Path, arguments: &Netmap) -> Failure {
    let Some((name, rest)) = arguments.command.split_first() else {
        return Failure::Invalid("no program".to_owned());
    };
    let prepared = program::find(name).and_then(|path| {
        program::check(&path)?;
        Ok((path, library()?))
    });
    let (path, library) = match prepared {
        Ok(prepared) => prepared,
        Err(failure) => return failure,
    };
    let dir = std::path::absolute(runtime_dir).unwrap_or_else(|_| runtime_dir.to_owned());
    let mut command = Command::new(&path);
    command.arg0(name).args(rest);
    command.env(PRELOAD, preload(&library, std::env::var_os(PRELOAD)));
    match sockets(&dir) {
        Some(sockets) => command.env(SOCKETS, sockets),
        None => &mut command,
    };
    if let Some(poll) = &arguments.poll {
        command.env(POLL, poll);
    }
    let error = command.env(RUNTIME_DIR, &dir).exec();
    Failure::Invalid(format!("cannot run {}: {error}", path.display()))
}

/// Returns the path of the library.
fn library() -> Result<PathBuf, Failure> {
    let failed = |text: String| Failure::Failed(format!("the library {LIBRARY}: {text}"));
    let own = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let path = own.with_file_name(LIBRARY);
    if !path.is_file() {
        return Err(failed(format!("there is no {}", path.display())));
    }
    // The linker splits the variable there.
    match path.to_str().is_some_and(|text| !text.contains([':', ' '])) {
        true => Ok(path),
        false => Err(failed(format!(
            "{PRELOAD} cannot name {}, which has a colon or a blank",
            path.display()
        ))),
    }
}

/// Returns the libraries to load first: ours, then those that were to be loaded already.
fn preload(library: &Path, others: Option<OsString>) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
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
    fn the_library_comes_first_and_others_stay() {
        let own = Path::new("/usr/lib/lasthop/liblasthop_netmap.so");
        assert_eq!(preload(own, None), own.as_os_str());
        assert_eq!(preload(own, Some("".into())), own.as_os_str());
        let both = preload(own, Some("libjemalloc.so.2".into()));
        assert_eq!(
            both,
            "/usr/lib/lasthop/liblasthop_netmap.so:libjemalloc.so.2"
        );
    }

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
            ],
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
