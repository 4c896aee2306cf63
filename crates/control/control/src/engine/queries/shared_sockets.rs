//! Warnings about sockets that processes of more than one user can connect to.

use std::collections::BTreeMap;

use api::v1::{DesiredState, Warning};
use config::desired;

/// Returns a warning for each port and pipe whose socket more than one user can connect to.
pub(super) fn warnings(
    desired: &DesiredState,
    shared: &BTreeMap<String, Vec<String>>,
) -> Vec<Warning> {
    let ports = desired.ports.iter().filter(|port| desired::listens(port));
    let ports = ports.map(|port| {
        (
            format!("port {}", port.name),
            &port.name,
            port.socket.clone(),
        )
    });
    let pipes: Vec<_> = desired::pipe_sockets(desired).collect();
    let pipes = pipes.into_iter().map(|pipe| (pipe.name, pipe.path));
    let ports = ports.map(|(what, name, path)| (what, vec![name.clone()], path));
    let pipes = pipes.map(|(name, path)| (format!("pipe {name}"), Vec::new(), path));
    let warned = ports.chain(pipes).filter_map(|(what, ports, path)| {
        let users = shared.get(&path)?;
        let text = format!("{what}: {}", shared_text(users));
        Some(Warning { text, ports })
    });
    warned.collect()
}

/// Names the users that can connect to a socket, and the key that leaves one.
fn shared_text(users: &[String]) -> String {
    /// Most users that are named.
    const NAMED: usize = 4;
    let (who, one) = match users {
        [] => ("all users of this host".to_owned(), "USER"),
        [first, ..] => {
            let named = users[..users.len().min(NAMED)].join(", ");
            let more = match users.len().saturating_sub(NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            (format!("users {named}{more}"), first.as_str())
        }
    };
    format!("{who} can connect to its socket; name the one of its program: peer_user = \"{one}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_named_and_so_is_the_key() {
        let users = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        for (names, expected) in [
            (&[][..], "all users of this host can connect to its socket"),
            (&["vm1", "vm2"], "users vm1, vm2 can connect to its socket"),
            (
                &["a", "b", "c", "d", "e", "f"],
                "users a, b, c, d and 2 more can connect to its socket",
            ),
        ] {
            let text = shared_text(&users(names));
            assert!(text.starts_with(expected), "{text}");
            let one = names.first().unwrap_or(&"USER");
            assert!(text.ends_with(&format!("peer_user = \"{one}\"")), "{text}");
        }
    }
}
