//! Owners of listening sockets, and users that may connect to them.
//!
//! Control sends the operator's values. The supervisor, which may open files, looks up names; the
//! switch gets the number of the user whose processes may connect, and compares it with each
//! connection's.
//!
//! Names are those of `/etc/passwd` and `/etc/group`: other user databases need waiting, and run
//! their code in the process. For their users, numbers can be configured.

use std::path::Path;

use rustix::fs::{Gid, Uid};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// Longest name of a user or a group in bytes: `LOGIN_NAME_MAX` (limits.h(0P)).
const ACCOUNT_MAX: usize = 256;
const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";

/// Requested attributes of a socket; missing ones are the system's defaults.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SocketOwner {
    /// Owner, by name or number.
    #[serde(deserialize_with = "account")]
    pub user: Option<String>,
    /// Group, by name or number.
    #[serde(deserialize_with = "account")]
    pub group: Option<String>,
    /// Its permissions.
    pub mode: Option<u16>,
    /// The only user whose processes may connect, by name or number.
    #[serde(deserialize_with = "account")]
    pub peer_user: Option<String>,
}

/// Reads the name of a user or a group. The reason of a refusal repeats it, so it is bounded.
fn account<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let name = Option::<String>::deserialize(from)?;
    match name.as_ref().map_or(0, String::len) {
        ..=ACCOUNT_MAX => Ok(name),
        len => Err(D::Error::custom(format!("a name of {len} bytes"))),
    }
}

/// Attribute that is not possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SocketKey {
    /// The path.
    Socket,
    /// The owner.
    User,
    /// The group.
    Group,
    /// The mode.
    Mode,
    /// The only user that may connect.
    PeerUser,
}

impl SocketKey {
    /// Returns the key's name in the configuration and the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Socket => "socket",
            Self::User => "user",
            Self::Group => "group",
            Self::Mode => "mode",
            Self::PeerUser => "peer_user",
        }
    }
}

/// Reason why there is no such socket; then nothing has changed, or no process may connect.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NoSocket {
    /// Attribute that is not possible.
    pub key: SocketKey,
    /// The possible values.
    pub expected: String,
    /// The present value.
    pub found: String,
}

/// Requested owner of a socket as numbers.
#[derive(Debug)]
pub struct OwnerIds {
    /// Owner.
    pub user: Option<Uid>,
    /// Group.
    pub group: Option<Gid>,
    /// Only user that may connect.
    pub peer: Option<u32>,
}

/// Looks up the owner of a socket.
///
/// # Errors
/// There is no such user or group, or giving the socket away needs root.
pub fn look_up(owner: &SocketOwner) -> Result<OwnerIds, NoSocket> {
    let user = |key, name: &Option<String>| number(key, name.as_deref(), USERS, "user");
    let group = number(SocketKey::Group, owner.group.as_deref(), GROUPS, "group")?;
    let named = OwnerIds {
        user: user(SocketKey::User, &owner.user)?.map(Uid::from_raw),
        group: group.map(Gid::from_raw),
        peer: user(SocketKey::PeerUser, &owner.peer_user)?,
    };
    let own = rustix::process::geteuid();
    match named.user {
        Some(other) if other != own && !own.is_root() => Err(NoSocket {
            key: SocketKey::User,
            expected: format!(
                "user {}, Lasthop's own, because it does not run as root",
                own.as_raw()
            ),
            found: format!("{:?}", owner.user.as_deref().unwrap_or_default()),
        }),
        _ => Ok(named),
    }
}

/// Returns the number of a user or a group.
fn number(
    key: SocketKey,
    name: Option<&str>,
    file: &str,
    kind: &str,
) -> Result<Option<u32>, NoSocket> {
    let Some(name) = name else {
        return Ok(None);
    };
    let no = |found| NoSocket {
        key,
        expected: format!("a {kind} of {file}, or a number"),
        found,
    };
    if name.bytes().all(|b| b.is_ascii_digit()) {
        // The last number means "unchanged" to chown(2).
        let number = name.parse().ok().filter(|number| *number != u32::MAX);
        return number.map(Some).ok_or_else(|| no(format!("{name:?}")));
    }
    let text = std::fs::read(Path::new(file)).map_err(|error| no(error.to_string()))?;
    let found = number_in(&String::from_utf8_lossy(&text), name);
    found.map(Some).ok_or_else(|| no(format!("{name:?}")))
}

/// Returns the third field of the line that begins with a name (passwd(5), group(5)).
fn number_in(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_it = fields.next() == Some(name);
        fields.nth(1).filter(|_| is_it)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_line_with_the_name() {
        let text =
            "root:x:0:0::/root:/bin/sh\n# vm:x:7:7\nvm2:x:1002:5::/:\nvm:x:1001:5::/:\nbad:x:y:\n";
        assert_eq!(number_in(text, "vm"), Some(1001));
        assert_eq!(number_in(text, "root"), Some(0));
        for name in ["", "bad", "v", "x", "vm:x"] {
            assert_eq!(number_in(text, name), None, "{name:?}");
        }
    }

    #[test]
    fn a_name_that_is_too_long_is_not_read() {
        for (length, is_read) in [(ACCOUNT_MAX, true), (ACCOUNT_MAX + 1, false)] {
            for field in 0..3 {
                let name = |own| (own == field).then(|| "x".repeat(length));
                let owner = SocketOwner {
                    user: name(0),
                    group: name(1),
                    mode: None,
                    peer_user: name(2),
                };
                let bytes = postcard::to_allocvec(&owner).unwrap();
                let read = postcard::from_bytes::<SocketOwner>(&bytes);
                assert_eq!(read.is_ok(), is_read, "{length}");
            }
        }
    }

    #[test]
    fn an_unknown_name_is_reported_with_its_key() {
        let text = |name: &str| Some(name.to_owned());
        let owner_of = |user, group, peer_user| SocketOwner {
            user,
            group,
            peer_user,
            mode: None,
        };
        for (owner, key, expected) in [
            (
                owner_of(text("no-such"), None, None),
                SocketKey::User,
                USERS,
            ),
            (
                owner_of(None, text("no-such"), None),
                SocketKey::Group,
                GROUPS,
            ),
            (
                owner_of(None, None, text("no-such")),
                SocketKey::PeerUser,
                USERS,
            ),
            (
                owner_of(None, None, text("4294967295")),
                SocketKey::PeerUser,
                USERS,
            ),
            (
                owner_of(None, text("99999999999"), None),
                SocketKey::Group,
                GROUPS,
            ),
        ] {
            let no = look_up(&owner).unwrap_err();
            assert_eq!(no.key, key);
            assert!(no.expected.contains(expected), "{no:?}");
        }
        let named = look_up(&owner_of(None, text("17"), text("root"))).unwrap();
        assert_eq!(
            (named.group, named.peer),
            (Some(Gid::from_raw(17)), Some(0))
        );
    }
}
