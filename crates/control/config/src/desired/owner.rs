//! Owner and permissions of a port's socket.
//!
//! Control checks only the syntax. The command line and the supervisor, which may open files, look
//! users and groups up.

use api::v1::{DesiredState, PipeSpec, PortSpec};
use ipc::owners::{self, SocketOwner};

use super::at::{At, quoted};
use super::device::listens;
use super::invalid::{Invalid, Place, Why, expect};

/// Maximum length of a name in characters; `useradd` allows 32, directory services more.
const NAME_MAX: usize = 256;

/// Keys about the owner of a socket, as they are configured.
struct Keys<'a> {
    user: &'a Option<String>,
    group: &'a Option<String>,
    mode: &'a Option<String>,
    peer_user: &'a Option<String>,
}

impl<'a> Keys<'a> {
    fn of_port(port: &'a PortSpec) -> Self {
        Self {
            user: &port.user,
            group: &port.group,
            mode: &port.mode,
            peer_user: &port.peer_user,
        }
    }

    fn of_pipe(pipe: &'a PipeSpec) -> Self {
        Self {
            user: &pipe.user,
            group: &pipe.group,
            mode: &pipe.mode,
            peer_user: &pipe.peer_user,
        }
    }

    fn owner(&self) -> SocketOwner {
        SocketOwner {
            user: self.user.clone(),
            group: self.group.clone(),
            mode: self.mode.as_deref().and_then(mode_of),
            peer_user: self.peer_user.clone(),
        }
    }
}

/// Checks the keys of a port about its socket.
pub(super) fn check(place: Place, port: &PortSpec) -> Result<(), Invalid> {
    let keys = Keys::of_port(port);
    for (key, value) in [
        ("user", keys.user),
        ("group", keys.group),
        ("peer_user", keys.peer_user),
        ("mode", keys.mode),
    ] {
        if let (Some(value), false) = (value, listens(port)) {
            let expected = format!("no {key} where Lasthop does not listen");
            return Err(At(place, key).wrong(expected, quoted(value)));
        }
    }
    check_keys(place, &keys)
}

/// Checks the keys of a pipe about its socket.
pub(super) fn check_pipe(place: Place, pipe: &PipeSpec) -> Result<(), Invalid> {
    check_keys(place, &Keys::of_pipe(pipe))
}

fn check_keys(place: Place, keys: &Keys<'_>) -> Result<(), Invalid> {
    for (key, value, expected) in [
        ("user", keys.user, expect::USER),
        ("group", keys.group, expect::GROUP),
        ("peer_user", keys.peer_user, expect::USER),
    ] {
        if let Some(name) = value.as_deref().filter(|name| !may_be_name(name)) {
            return Err(At(place, key).wrong(expected, quoted(name)));
        }
    }
    match keys.mode.as_deref() {
        Some(text) if mode_of(text).is_none() => {
            Err(At(place, "mode").wrong(expect::MODE, quoted(text)))
        }
        _ => Ok(()),
    }
}

/// Looks up the owners of the sockets of all ports and pipes; this opens files.
///
/// # Errors
/// The first owner that cannot be used.
pub fn check_owners(desired: &DesiredState) -> Result<(), Invalid> {
    let ports = desired.ports.iter().enumerate();
    let ports = ports.map(|(at, port)| (Place::Port(at), owner_of(port)));
    let pipes = desired.pipes.iter().enumerate();
    let pipes = pipes.map(|(at, pipe)| (Place::Pipe(at), owner_of_pipe(pipe)));
    for (place, owner) in ports.chain(pipes) {
        if let Err(no) = owners::look_up(&owner) {
            return Err(Invalid {
                place,
                key: no.key.as_str(),
                item: None,
                expected: no.expected,
                found: no.found,
                why: Why::Wrong,
            });
        }
    }
    Ok(())
}

/// Returns owner and permissions of a checked port's socket.
#[must_use]
pub fn owner_of(port: &PortSpec) -> SocketOwner {
    Keys::of_port(port).owner()
}

/// Returns owner and permissions of a checked pipe's socket.
#[must_use]
pub fn owner_of_pipe(pipe: &PipeSpec) -> SocketOwner {
    Keys::of_pipe(pipe).owner()
}

/// Returns whether a text may be a name of passwd(5), or a number.
fn may_be_name(text: &str) -> bool {
    let is_bad = |c: char| c.is_control() || c.is_whitespace() || c == ':' || c == ',';
    (1..=NAME_MAX).contains(&text.len()) && !text.contains(is_bad)
}

/// Parses a mode of permission bits only.
fn mode_of(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    let mode = u16::from_str_radix(text, 8).ok();
    mode.filter(|mode| digits && (3..=4).contains(&text.len()) && *mode <= 0o777)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal_and_of_permissions_alone() {
        for (text, mode) in [
            ("0660", Some(0o660)),
            ("600", Some(0o600)),
            ("0777", Some(0o777)),
            ("000", Some(0)),
            ("1777", None),
            ("0888", None),
            ("+660", None),
            ("00660", None),
            ("0o660", None),
            ("60", None),
            ("", None),
        ] {
            assert_eq!(mode_of(text), mode, "{text:?}");
        }
    }

    #[test]
    fn what_is_asked_is_what_the_port_says() {
        let mut port = PortSpec::vhost_user("a", "a.sock");
        assert_eq!(owner_of(&port), SocketOwner::default());
        port.user = Some("vm1".to_owned());
        port.mode = Some("0600".to_owned());
        let owner = SocketOwner {
            user: Some("vm1".to_owned()),
            mode: Some(0o600),
            ..SocketOwner::default()
        };
        assert_eq!(owner_of(&port), owner);
    }
}
