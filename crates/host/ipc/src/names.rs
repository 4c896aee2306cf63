//! Names in requests of control. The supervisor makes paths of them with its rights, and control
//! may be compromised, so each is checked when the message is decoded: there is no value of these
//! types that is not a name.

use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::str::FromStr;

use model::valid_name;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::sockets::climbs;
use crate::supervision::tcp_address;

/// Longest name of an interface in bytes: `IFNAMSIZ` (netdevice(7)) without the NUL.
const INTERFACE_MAX: usize = 15;
/// Longest path in bytes: `PATH_MAX` (path_resolution(7)) without the NUL.
const PATH_MAX: usize = 4095;

/// Text that is no such name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoName {
    kind: &'static str,
    text: String,
}

impl fmt::Display for NoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not {}", self.text, self.kind)
    }
}

impl std::error::Error for NoName {}

/// Defines types of text that has been checked.
macro_rules! names {
    ($($(#[$doc:meta])* $name:ident, $kind:literal, $is_valid:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
        pub struct $name(String);

        impl $name {
            /// Returns whether a text is one.
            #[must_use]
            pub fn is_valid(text: &str) -> bool {
                $is_valid(text)
            }
        }

        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NoName;

            fn try_from(text: String) -> Result<Self, NoName> {
                match Self::is_valid(&text) {
                    true => Ok(Self(text)),
                    false => Err(NoName { kind: $kind, text }),
                }
            }
        }

        impl FromStr for $name {
            type Err = NoName;

            fn from_str(text: &str) -> Result<Self, NoName> {
                text.to_owned().try_into()
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.try_into().map_err(|error: NoName| {
                    // The errors of postcard have no text.
                    tracing::error!("{error}");
                    D::Error::custom(error)
                })
            }
        }
    )*};
}

names! {
    /// Name of a port ([`model::valid_name`]), from which that of a control group is made, too.
    PortName, "the name of a port", valid_name;

    /// Name of an interface.
    InterfaceName, "the name of an interface", is_interface;

    /// Network namespace: a name under `/run/netns`, or a path.
    Namespace, "the name or the path of a network namespace", is_namespace;

    /// Path of a socket, or [`tcp_path`](crate::supervision::tcp_path). Answers repeat it, so its
    /// length bounds theirs.
    SocketPath, "the path of a socket", is_socket_path;
}

fn is_interface(text: &str) -> bool {
    let good = |b: u8| b.is_ascii_graphic() && !matches!(b, b'/' | b':' | b'%');
    let is_name = (1..=INTERFACE_MAX).contains(&text.len()) && !matches!(text, "." | "..");
    is_name && text.bytes().all(good)
}

fn is_namespace(text: &str) -> bool {
    let path = Path::new(text);
    let is_path = text.len() <= PATH_MAX && path.file_name().is_some();
    is_path && !text.contains(char::is_control) && !climbs(path)
}

fn is_socket_path(text: &str) -> bool {
    (1..=PATH_MAX).contains(&text.len()) && (tcp_address(text).is_some() || !text.contains('\0'))
}

#[cfg(test)]
mod tests {
    use port::PortId;

    use super::*;
    use crate::driving::{Choice, DeviceSpec, DriverKind, DriverSpec, PrefilterChoice};
    use crate::supervision::{ControlRequest, PortDriverRequest, SocketRequest, UserPortRequest};
    use crate::user_reports::{UserQuestion, UserTable};

    /// Replaces the only occurrence of a text in a message by one of the same length.
    fn forged(request: &ControlRequest, from: &str, to: &str) -> bool {
        assert_eq!(from.len(), to.len());
        let mut bytes = postcard::to_allocvec(request).unwrap();
        let decodes = |bytes: &[u8]| postcard::from_bytes::<ControlRequest>(bytes).is_ok();
        assert!(decodes(&bytes), "{request:?}");
        let mut windows = bytes.windows(from.len());
        let at = windows.position(|w| w == from.as_bytes()).unwrap();
        bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
        decodes(&bytes)
    }

    #[test]
    fn a_message_with_a_name_that_is_none_is_not_decoded() {
        let name = || "port-name".parse::<PortName>().unwrap();
        let path = || "vm1.sock".parse::<SocketPath>().unwrap();
        let device = DeviceSpec {
            choice: Choice::Packet,
            own: false,
            interface: "inter-face".parse().unwrap(),
            netns: Some("name-space".parse().unwrap()),
            address: None,
            mac: None,
            mtu: None,
            queues: 1,
        };
        let drivers = ControlRequest::Drivers(PortDriverRequest::Set(vec![DriverSpec {
            port: PortId(1),
            name: name(),
            kind: DriverKind::Interface(device),
            process: false,
            prefilter: PrefilterChoice::Off,
            cpu_weight: None,
        }]));
        let named = [
            drivers.clone(),
            ControlRequest::Drivers(PortDriverRequest::Rooms(vec![(name(), 1)])),
            ControlRequest::Users(UserPortRequest::Table {
                port: name(),
                question: UserQuestion {
                    table: UserTable::Flows,
                    from: 0,
                },
            }),
        ];
        for request in &named {
            for other in [
                "../../../",
                "........./",
                "a/../b/..",
                "a b c d e",
                "\0\0\0\0\0\0\0\0\0",
            ] {
                let other = &other[..9];
                assert!(!forged(request, "port-name", other), "{request:?}: {other}");
            }
            assert!(forged(request, "port-name", "vm-1.lan0"), "{request:?}");
        }
        for request in [
            SocketRequest::Listen { path: path() },
            SocketRequest::Unlisten { path: path() },
            SocketRequest::Dials(vec![(PortId(1), path())]),
        ] {
            let request = ControlRequest::from(request);
            assert!(!forged(&request, "vm1.sock", "vm1.soc\0"), "{request:?}");
            assert!(forged(&request, "vm1.sock", "vm2.sock"), "{request:?}");
        }
        for other in ["/etc/hosts", "../../eth0", "inter:face", "inter face"] {
            assert!(!forged(&drivers, "inter-face", other), "{other}");
        }
        for other in ["../../self", "a/../b/c/d", "name\nspace"] {
            assert!(!forged(&drivers, "name-space", other), "{other}");
        }
        assert!(forged(&drivers, "name-space", "/proc/1/ns"));
    }

    #[test]
    fn what_is_no_name_is_named() {
        let error = "..".parse::<PortName>().unwrap_err().to_string();
        assert_eq!(error, "\"..\" is not the name of a port");
        for bad in [
            "user:out",
            "user:..",
            "user:",
            "user:a/b",
            "a:b",
            "",
            ".",
            "sixteen-letters-",
        ] {
            assert!(!InterfaceName::is_valid(bad), "{bad}");
        }
        for bad in ["", ".", "..", "/", "a/..", "../a", "/run/../a"] {
            assert!(!Namespace::is_valid(bad), "{bad}");
        }
        for bad in ["", "a\0b", "\0tcp:nowhere", &"x".repeat(4096)] {
            assert!(!SocketPath::is_valid(bad), "{bad}");
        }
        let tcp = crate::supervision::tcp_path(([127, 0, 0, 1], 9464).into());
        assert!(SocketPath::is_valid(&tcp) && SocketPath::is_valid("vm.sock"));
    }
}
