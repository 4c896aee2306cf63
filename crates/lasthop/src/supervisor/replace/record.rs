//! All that a supervisor knows, as bytes.
//!
//! ```text
//! 0   version (u32, little-endian)
//! 4   the record (postcard)
//!     from version 2 on: what version 1 does not know (postcard)
//!     from version 3 on: what version 2 does not know (postcard)
//! ```

use std::collections::{BTreeMap, VecDeque};

use channel::driving::{BackEnd, DriverSpec, Refused};
use channel::supervision::{Batching, CopyEngine, Offload, Poll, SocketDir, SwitchSettings};
use datapath::idle::topology;
use port::PortId;
use serde::{Deserialize, Serialize};

use super::fds::Place;
use crate::supervisor::deposits::Parcel;

/// The versions; also those of the format "supervisor" in `channel::formats`.
const VERSIONS: [u32; 3] = channel::formats::SUPERVISOR_VERSIONS;
/// The one that every build reads.
const OLDEST: u32 = VERSIONS[0];
/// The first that knows [`PassedReach`].
const WITH_REACH: u32 = VERSIONS[2];

/// See the module.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct Record {
    /// Descriptors by their places.
    pub(super) fds: Vec<i32>,
    pub(super) runtime_dir: String,
    /// Listening sockets by the paths that they were asked for with.
    pub(super) sockets: BTreeMap<String, Place>,
    pub(super) lock: Place,
    pub(super) state: Place,
    pub(super) counters: Place,
    pub(super) marks: Place,
    pub(super) settings: PassedSettings,
    pub(super) control: PassedChild,
    pub(super) switch: PassedChild,
    pub(super) deposits: PassedDeposits,
    pub(super) drivers: Vec<PassedDriver>,
    pub(super) uptime_ms: u64,
    /// What runs.
    pub(super) binaries: PassedBinaries,
    pub(super) upgrade: Option<PassedUpgrade>,
    /// Where sockets may be, and where front ends are; none where the version that wrote it does not know.
    #[serde(skip)]
    pub(super) reach: Option<PassedReach>,
    /// The version in which it came, and in which whoever wrote it understands an answer.
    #[serde(skip)]
    pub(super) version: u32,
}

/// What version 1 does not know.
#[derive(Default, Serialize, Deserialize)]
struct Newer {
    blame: PassedBlame,
    batching: Option<Batching>,
    copy_engine: CopyEngine,
    offload: Offload,
    /// By the driver's place in the list.
    xdp: BTreeMap<u32, PassedXdp>,
}

/// What version 2 does not know.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedReach {
    pub(in crate::supervisor) dirs: Vec<SocketDir>,
    pub(in crate::supervisor) dials: BTreeMap<PortId, String>,
}

/// What a switch is told of the configuration.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedSettings {
    poll: Poll,
    workers: Option<u16>,
    successor: bool,
    waits: bool,
    /// Of [`Newer`].
    #[serde(skip)]
    batching: Option<Batching>,
    /// Of [`Newer`].
    #[serde(skip)]
    copy_engine: CopyEngine,
    #[serde(skip)]
    offload: Offload,
}

impl From<SwitchSettings> for PassedSettings {
    fn from(settings: SwitchSettings) -> Self {
        Self {
            poll: settings.poll,
            workers: settings.workers,
            successor: settings.successor,
            waits: settings.waits,
            batching: settings.batching,
            copy_engine: settings.copy_engine,
            offload: settings.offload,
        }
    }
}

impl From<PassedSettings> for SwitchSettings {
    fn from(passed: PassedSettings) -> Self {
        Self {
            poll: passed.poll,
            workers: passed.workers,
            batching: passed.batching,
            copy_engine: passed.copy_engine,
            offload: passed.offload,
            // Read anew: they may have changed since.
            cores: topology::read(topology::SYSTEM.as_ref(), &topology::allowed()),
            successor: passed.successor,
            waits: passed.waits,
        }
    }
}

/// Control, the switch or a driver.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedChild {
    pub(in crate::supervisor) restarts: u32,
    /// None: it is to be started again.
    pub(in crate::supervisor) alive: Option<PassedProcess>,
}

/// A process that runs, or has ended and was not noticed yet.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedProcess {
    pub(in crate::supervisor) pid: u32,
    pub(in crate::supervisor) link: Place,
    pub(in crate::supervisor) uptime_ms: u64,
    pub(in crate::supervisor) proved: bool,
    /// Whether it owes an answer to a ping, and whether it has ever given one.
    pub(in crate::supervisor) beat: (bool, bool),
}

/// What the switch has deposited.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedDeposits {
    pub(in crate::supervisor) ports: Vec<PassedDeposit>,
    /// What a new switch has not got yet.
    pub(in crate::supervisor) leaving: VecDeque<Parcel>,
    /// Of [`Newer`].
    #[serde(skip)]
    pub(in crate::supervisor) blame: PassedBlame,
}

/// Who is to blame for deaths of the switch.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedBlame {
    /// Each with its deaths, and how long ago the last of them was, in milliseconds.
    pub(in crate::supervisor) ports: Vec<(PortId, u32, u64)>,
    /// Ports whose connections are not to go on.
    pub(in crate::supervisor) condemned: Vec<PortId>,
}

/// What the switch has deposited for a port.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedDeposit {
    pub(in crate::supervisor) port: PortId,
    pub(in crate::supervisor) fds: Vec<(u64, Place)>,
    pub(in crate::supervisor) record: Option<Vec<u8>>,
}

/// A driver with its interface.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedDriver {
    pub(in crate::supervisor) spec: DriverSpec,
    pub(in crate::supervisor) device: Option<PassedDevice>,
    pub(in crate::supervisor) suspect: bool,
    pub(in crate::supervisor) child: Option<PassedChild>,
    pub(in crate::supervisor) doomed: bool,
    /// The path of a dial without an answer.
    pub(in crate::supervisor) dial: Option<String>,
    /// As `beat` of its process, where the first builds that wrote this did not keep it.
    pub(in crate::supervisor) heart: (bool, bool),
    pub(in crate::supervisor) refused_before: Refused,
    pub(in crate::supervisor) refused: Refused,
    pub(in crate::supervisor) reason: Option<String>,
}

/// An open interface.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedDevice {
    pub(in crate::supervisor) interface: String,
    pub(in crate::supervisor) back_end: BackEnd,
    pub(in crate::supervisor) uso: bool,
    pub(in crate::supervisor) provisional: bool,
    pub(in crate::supervisor) queues: Vec<Place>,
    pub(in crate::supervisor) control: Place,
    /// Of [`Newer`].
    #[serde(skip)]
    pub(in crate::supervisor) xdp: Option<PassedXdp>,
}

/// What an interface has besides with `AF_XDP` sockets; see `driver::device::XdpParts`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedXdp {
    pub(in crate::supervisor) namespace: Place,
    pub(in crate::supervisor) index: u32,
    pub(in crate::supervisor) pairs: u16,
    pub(in crate::supervisor) zero_copy: bool,
    pub(in crate::supervisor) unfinished: bool,
    pub(in crate::supervisor) map: Place,
    pub(in crate::supervisor) link: Place,
    pub(in crate::supervisor) promiscuous: Place,
    pub(in crate::supervisor) tags: Place,
    pub(in crate::supervisor) took_tags_off: bool,
}

/// Executable files of one installation, in the order of `binaries::Binaries`.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedBinaries {
    pub(in crate::supervisor) dir: String,
    pub(in crate::supervisor) files: [Place; 4],
}

/// The upgrade that is under way.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedUpgrade {
    /// Who asked for it.
    pub(in crate::supervisor) client: Place,
    pub(in crate::supervisor) new: PassedBinaries,
    pub(in crate::supervisor) report: PassedReport,
    /// Why everything is to be as it was.
    pub(in crate::supervisor) failed: Option<String>,
}

/// What the upgrade has to report by then. The rest is there because version 1 has it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(in crate::supervisor) struct PassedReport {
    pub(in crate::supervisor) from: String,
    pub(in crate::supervisor) to: String,
    pub(in crate::supervisor) gap_ms: f64,
    pub(in crate::supervisor) connections: u32,
    pub(in crate::supervisor) drivers: Vec<(String, f64)>,
}

impl Record {
    /// As bytes of a version.
    ///
    /// # Errors
    /// What cannot be written.
    pub(super) fn to_bytes(&self, version: u32) -> Result<Vec<u8>, String> {
        let xdp = |driver: &&PassedDriver| driver.device.as_ref().is_some_and(|d| d.xdp.is_some());
        match self.drivers.iter().find(xdp) {
            Some(driver) if version == OLDEST => Err(format!(
                "port {} has AF_XDP sockets, which the other version cannot take over: that takes a restart",
                driver.spec.name
            )),
            _ => self.to_bytes_of(version),
        }
    }

    fn to_bytes_of(&self, version: u32) -> Result<Vec<u8>, String> {
        let head = version.to_le_bytes().to_vec();
        let bytes = postcard::to_extend(self, head);
        let with_newer = bytes.and_then(|bytes| match version {
            OLDEST => Ok(bytes),
            _ => postcard::to_extend(&self.newer(), bytes),
        });
        let whole = with_newer.and_then(|bytes| match version {
            ..WITH_REACH => Ok(bytes),
            _ => postcard::to_extend(&self.reach.clone().unwrap_or_default(), bytes),
        });
        whole.map_err(|e| e.to_string())
    }

    /// As bytes for one that is only to look whether it understands them, and of whom nothing is known.
    ///
    /// # Errors
    /// What cannot be written.
    pub(super) fn to_trial_bytes(&self) -> Result<Vec<u8>, String> {
        self.to_bytes_of(OLDEST)
    }

    /// Out of bytes.
    ///
    /// # Errors
    /// Another version, or bytes that are no record.
    pub(in crate::supervisor) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let Some((version, rest)) = bytes.split_first_chunk() else {
            return Err("an empty record".into());
        };
        let version = u32::from_le_bytes(*version);
        if !VERSIONS.contains(&version) {
            return Err(format!("a record of version {version}"));
        }
        let senseless = |error| format!("a record that makes no sense: {error}");
        let (mut record, rest): (Self, _) = postcard::take_from_bytes(rest).map_err(senseless)?;
        let (newer, rest) = match version {
            OLDEST => (Newer::default(), rest),
            _ => postcard::take_from_bytes(rest).map_err(senseless)?,
        };
        let (reach, rest) = match version {
            ..WITH_REACH => (None, rest),
            _ => postcard::take_from_bytes(rest)
                .map(|(reach, rest)| (Some(reach), rest))
                .map_err(senseless)?,
        };
        if !rest.is_empty() {
            return Err("a record with something behind it".into());
        }
        record.version = version;
        record.reach = reach;
        record.deposits.blame = newer.blame;
        record.settings.batching = newer.batching;
        record.settings.copy_engine = newer.copy_engine;
        record.settings.offload = newer.offload;
        for (place, xdp) in newer.xdp {
            let driver = record.drivers.get_mut(place as usize);
            let device = driver.and_then(|driver| driver.device.as_mut());
            device.ok_or("AF_XDP sockets of nobody")?.xdp = Some(xdp);
        }
        Ok(record)
    }

    fn newer(&self) -> Newer {
        let devices = self.drivers.iter().map(|driver| driver.device.as_ref());
        let xdp = (0..)
            .zip(devices)
            .filter_map(|(at, device)| Some((at, device?.xdp.clone()?)));
        Newer {
            blame: self.deposits.blame.clone(),
            batching: self.settings.batching,
            copy_engine: self.settings.copy_engine,
            offload: self.settings.offload.clone(),
            xdp: xdp.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use channel::driving::{Choice, DeviceSpec};

    use super::*;

    fn place() -> Place {
        serde_json::from_str("0").unwrap()
    }

    fn reach() -> PassedReach {
        let dir = SocketDir {
            path: "/run/vm".to_owned(),
            below: true,
        };
        PassedReach {
            dirs: vec![dir],
            dials: BTreeMap::from([(PortId(3), "/run/vm/a".to_owned())]),
        }
    }

    fn settings() -> SwitchSettings {
        SwitchSettings {
            workers: Some(3),
            batching: Some(Batching {
                period_us: 200,
                threshold: 32,
            }),
            copy_engine: CopyEngine::Thread,
            offload: Offload {
                enabled: true,
                mark: 7,
                hysteresis_us: 20,
                cores: vec![1, 3],
            },
            ..SwitchSettings::default()
        }
    }

    fn record() -> Record {
        let child = || PassedChild {
            restarts: 0,
            alive: None,
        };
        Record {
            fds: vec![3],
            runtime_dir: "/run".to_owned(),
            sockets: BTreeMap::new(),
            lock: place(),
            state: place(),
            counters: place(),
            marks: place(),
            settings: settings().into(),
            control: child(),
            switch: child(),
            deposits: PassedDeposits {
                ports: Vec::new(),
                leaving: VecDeque::new(),
                blame: PassedBlame {
                    ports: vec![(PortId(3), 2, 50)],
                    condemned: vec![PortId(4)],
                },
            },
            drivers: Vec::new(),
            uptime_ms: 5,
            binaries: PassedBinaries {
                dir: "/bin".to_owned(),
                files: [place(), place(), place(), place()],
            },
            upgrade: None,
            reach: Some(reach()),
            version: 0,
        }
    }

    #[test]
    fn each_version_is_read_for_what_it_is() {
        let record = record();
        for version in VERSIONS {
            let bytes = record.to_bytes(version).unwrap();
            let read = Record::from_bytes(&bytes).unwrap();
            assert_eq!((read.version, read.uptime_ms), (version, 5));
            let blame = match version {
                OLDEST => PassedBlame::default(),
                _ => record.deposits.blame.clone(),
            };
            assert_eq!(read.deposits.blame, blame);
            let known = (version >= WITH_REACH).then(reach);
            assert_eq!(read.reach, known);
            let mut known = settings();
            if version == OLDEST {
                (known.batching, known.offload) = (None, Offload::default());
                known.copy_engine = CopyEngine::Cpu;
            }
            let read = SwitchSettings::from(read.settings);
            // As this machine has them.
            known.cores.clone_from(&read.cores);
            assert_eq!(read, known);
            for len in 0..bytes.len() {
                assert!(Record::from_bytes(&bytes[..len]).is_err(), "{len}");
            }
            let more = [&bytes[..], &[0]].concat();
            assert!(Record::from_bytes(&more).is_err());
        }
    }

    #[test]
    fn interfaces_with_xdp_sockets_need_the_second_version() {
        let mut record = record();
        let xdp = PassedXdp {
            namespace: place(),
            index: 7,
            pairs: 2,
            zero_copy: true,
            unfinished: false,
            map: place(),
            link: place(),
            promiscuous: place(),
            tags: place(),
            took_tags_off: true,
        };
        let device = PassedDevice {
            interface: "up0".to_owned(),
            back_end: BackEnd::Xdp { zero_copy: true },
            uso: false,
            provisional: false,
            queues: Vec::new(),
            control: place(),
            xdp: Some(xdp.clone()),
        };
        let driver = PassedDriver {
            spec: spec(),
            device: Some(device),
            suspect: false,
            child: None,
            doomed: false,
            dial: None,
            heart: (false, false),
            refused_before: Refused::default(),
            refused: Refused::default(),
            reason: None,
        };
        record.drivers = vec![driver];
        let refused = record.to_bytes(OLDEST).unwrap_err();
        assert!(refused.starts_with("port up has AF_XDP sockets"));
        assert!(Record::from_bytes(&record.to_trial_bytes().unwrap()).is_ok());
        let read = Record::from_bytes(&record.to_bytes(2).unwrap()).unwrap();
        assert_eq!(read.drivers[0].device.as_ref().unwrap().xdp, Some(xdp));
    }

    fn spec() -> DriverSpec {
        DriverSpec {
            port: PortId(3),
            name: "up".to_owned(),
            device: DeviceSpec {
                choice: Choice::Xdp,
                own: false,
                interface: "up0".to_owned(),
                netns: None,
                address: None,
                mac: None,
                mtu: None,
                queues: 2,
            },
        }
    }

    #[test]
    fn other_versions_are_refused() {
        let mut bytes = record().to_trial_bytes().unwrap();
        assert!(Record::from_bytes(&bytes).is_ok());
        bytes[0] = 4;
        let error = Record::from_bytes(&bytes).unwrap_err();
        assert_eq!(error, "a record of version 4");
    }
}
