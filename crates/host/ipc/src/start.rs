//! Record by which `lasthop run` starts the supervisor: the contents of the configuration that the
//! supervisor needs. It reads no TOML, so it gets the text for errors of the resources, too.
//!
//! ```text
//! 0   version (u32, little-endian)
//! 4   the record (postcard)
//! ```
//!
//! The command line reads and checks the file, writes the record into a memory file, and executes
//! `lasthop-supervisor`, with the number of the file's descriptor in [`START_FD`].

use serde::{Deserialize, Serialize};

use crate::driving::DriverSpec;
use crate::forwards::ForwardReach;
use crate::owners::{SocketKey, SocketOwner};
use crate::sockets::SocketType;
use crate::supervision::{GuestStates, SocketDir, SwitchSettings};

/// Environment variable with the number of the record's descriptor.
pub const START_FD: &str = "LASTHOP_START_FD";
/// Version of the record. Both programs are of one installation, and one version.
pub const VERSION: u32 = 14;

/// The record.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Start {
    /// Runtime directory, as the operator named it.
    pub runtime_dir: String,
    /// Directories that may contain sockets, as named in the configuration.
    pub socket_dirs: Vec<SocketDir>,
    /// Where forwards may listen.
    pub forwards: ForwardReach,
    /// Listening sockets of ports and pipes.
    pub sockets: Vec<StartSocket>,
    /// Socket of the metrics.
    pub metrics: Option<StartSocket>,
    /// Interfaces, each with its [`StartSocket::keys`] text.
    pub drivers: Vec<(DriverSpec, String)>,
    /// Settings of the switch, without the host's cores.
    pub settings: SwitchSettings,
    /// Source of vCPU states: the supervisor needs rights for it that it gives up at its start.
    pub guest_states: GuestStates,
    /// The table of connections, if a rule needs one.
    pub connection_table: Option<StartTable>,
    /// First document of the state file: JSON with the desired state.
    pub state: Vec<u8>,
}

/// Table of connections.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StartTable {
    /// Length of its file.
    pub bytes: u64,
    /// Text of its error, before the reason.
    pub place: String,
}

/// Listening socket.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StartSocket {
    /// Path; a relative one starts at the runtime directory.
    pub path: String,
    /// Type.
    pub socket_type: SocketType,
    /// Requested owner.
    pub owner: SocketOwner,
    /// Keys with their places in the configuration file, as `FILE:LINE:COLUMN: port.socket`.
    pub keys: Vec<(SocketKey, String)>,
}

impl StartSocket {
    /// Returns the text of a key, with which an error begins.
    #[must_use]
    pub fn place(&self, key: SocketKey) -> &str {
        let place = self.keys.iter().find(|(own, _)| *own == key);
        place.map_or("", |(_, place)| place)
    }
}

impl Start {
    /// Encodes the record.
    ///
    /// # Errors
    /// The reason of the failure.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let head = VERSION.to_le_bytes().to_vec();
        postcard::to_extend(self, head).map_err(|error| error.to_string())
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// Another version, or malformed bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let Some((version, rest)) = bytes.split_first_chunk() else {
            return Err("empty start record".into());
        };
        let version = u32::from_le_bytes(*version);
        if version != VERSION {
            return Err(format!(
                "start record of version {version}, expected {VERSION}: \
                 lasthop and lasthop-supervisor are of different versions"
            ));
        }
        match postcard::take_from_bytes(rest) {
            Ok((record, [])) => Ok(record),
            Ok(_) => Err("trailing bytes after the start record".into()),
            Err(error) => Err(format!("malformed start record: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Start {
        Start {
            runtime_dir: "/run/lasthop".into(),
            socket_dirs: Vec::new(),
            forwards: ForwardReach::default(),
            sockets: vec![StartSocket {
                path: "vm1.sock".into(),
                socket_type: SocketType::default(),
                owner: SocketOwner::default(),
                keys: vec![(SocketKey::Socket, "a.toml:3:1: port.socket".into())],
            }],
            metrics: None,
            drivers: Vec::new(),
            settings: SwitchSettings::default(),
            guest_states: GuestStates::Bpf,
            connection_table: None,
            state: b"{}".to_vec(),
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = record();
        let bytes = record.to_bytes().unwrap();
        assert_eq!(Start::from_bytes(&bytes), Ok(record.clone()));
        let place = |key| record.sockets[0].place(key).to_owned();
        assert_eq!(place(SocketKey::Socket), "a.toml:3:1: port.socket");
        assert_eq!(place(SocketKey::Mode), "");
    }

    #[test]
    fn other_bytes_are_refused() {
        let bytes = record().to_bytes().unwrap();
        let refused = |bytes: &[u8]| Start::from_bytes(bytes).unwrap_err();
        assert!(refused(&[]).contains("empty"));
        assert!(refused(&bytes[..bytes.len() - 1]).contains("malformed"));
        assert!(refused(&[&bytes[..], b"x"].concat()).contains("trailing"));
        let other = [&10u32.to_le_bytes(), &bytes[4..]].concat();
        assert!(refused(&other).contains("different versions"));
    }
}
