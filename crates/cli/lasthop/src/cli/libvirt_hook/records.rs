//! What domains have set at ports: a file in the runtime directory, which lives as long as the
//! values in control do. What a domain set is taken back by it, whatever the domain's XML says
//! then.
//!
//! Several hooks may run at once: a lock on the directory lets one after the other read, act and
//! write. It ends with the process.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of the file.
const FILE: &str = "libvirt-hook.json";
/// Version of its format.
const VERSION: u32 = 1;

/// One value that a domain has set at a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ValueChange {
    /// The value.
    pub(super) set: Value,
    /// The one before it, which comes back.
    pub(super) before: Value,
}

/// All that a domain has set at a port, by what it is (`limits.to_guest`).
pub(super) type ValueChanges = BTreeMap<String, ValueChange>;

/// A port with values of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The UUID of the domain.
    pub(super) domain: String,
    /// Values that it has set.
    pub(super) given: ValueChanges,
}

/// The file.
#[derive(Debug, Serialize, Deserialize)]
struct Document {
    version: u32,
    ports: BTreeMap<String, Record>,
}

/// The records of all ports.
#[derive(Debug, Default)]
pub(super) struct Records {
    ports: BTreeMap<String, Record>,
    path: PathBuf,
    /// Held while they are used.
    _lock: Option<File>,
}

impl Records {
    /// Waits for other hooks, and reads the records. Without a directory there are none.
    ///
    /// # Errors
    /// A sentence: the directory cannot be locked, or the file is not understood.
    pub(super) fn read(runtime_dir: &Path) -> Result<Self, String> {
        let at =
            |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let path = runtime_dir.join(FILE);
        let lock = match File::open(runtime_dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            opened => opened.map_err(|error| at(runtime_dir, &error))?,
        };
        let locked = rustix::fs::flock(&lock, FlockOperation::LockExclusive);
        locked.map_err(|error| at(runtime_dir, &error))?;
        let ports = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(at(&path, &error)),
            Ok(bytes) => {
                let read: Document =
                    serde_json::from_slice(&bytes).map_err(|error| at(&path, &error))?;
                if read.version != VERSION {
                    return Err(at(&path, &format!("version {} is another", read.version)));
                }
                read.ports
            }
        };
        Ok(Self {
            ports,
            path,
            _lock: Some(lock),
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// Returns the record of a port.
    pub(super) fn of(&self, port: &str) -> Option<&Record> {
        self.ports.get(port)
    }

    /// Returns the ports at which a domain that is chosen so has set something.
    pub(super) fn ports_of(&self, chosen: impl Fn(&str) -> bool) -> Vec<String> {
        let ports = self.ports.iter();
        let ports = ports.filter(|(_, record)| chosen(&record.domain));
        ports.map(|(port, _)| port.clone()).collect()
    }

    /// Notes what a domain has set at a port now, and writes the file if that is another than
    /// before.
    ///
    /// # Errors
    /// A sentence: the file cannot be written.
    pub(super) fn note(
        &mut self,
        port: &str,
        domain: &str,
        given: ValueChanges,
    ) -> Result<(), String> {
        let record = (!given.is_empty()).then(|| Record {
            domain: domain.to_owned(),
            given,
        });
        if self.ports.get(port) == record.as_ref() {
            return Ok(());
        }
        match record {
            Some(record) => drop(self.ports.insert(port.to_owned(), record)),
            None => drop(self.ports.remove(port)),
        }
        let written = self.write();
        written.map_err(|error| {
            format!(
                "{}: {error}: what is set now is not taken back",
                self.path.display()
            )
        })
    }

    fn write(&self) -> io::Result<()> {
        let document = Document {
            version: VERSION,
            ports: self.ports.clone(),
        };
        let new = self.path.with_extension("new");
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&new)?;
        file.write_all(&serde_json::to_vec(&document)?)?;
        fs::rename(new, &self.path)
    }
}
