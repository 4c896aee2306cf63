//! Control groups (Linux, `Documentation/admin-guide/cgroup-v2.rst`): limits of drivers where the
//! service manager has delegated our group to us (systemd: `Delegate=yes`).
//!
//! ```text
//!   delegated group       has subgroups, and so no process of its own
//!     supervisor          supervisor, control and switch
//!     driver-uplink       driver of port "uplink": one share of CPU time, however many threads it
//!                         has, and limits of memory and threads
//! ```
//!
//! The share is `cpu.weight` of the group, among all subgroups that want CPU time. It is written
//! only where the port has a `cpu_weight`.
//!
//! Without delegation, drivers have only the limits that they set themselves before they read other
//! input than the supervisor's (`crates/host/driver/src/restrictions.rs`). These do not limit CPU
//! time.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use ipc::names::PortName;

/// Mount point of the control groups.
const ROOT: &str = "/sys/fs/cgroup";
/// File system type of control groups of version 2 (`CGROUP2_SUPER_MAGIC` of `linux/magic.h`).
const CGROUP2: u64 = 0x6367_7270;
/// Attribute by which a service manager delegates a group
/// (<https://systemd.io/CGROUP_DELEGATION/>).
const DELEGATED: &str = "user.delegate";

/// Group of the supervisor, control and the switch.
const SUPERVISOR: &str = "supervisor";
/// File with the processes of a group.
const PROCESSES: &str = "cgroup.procs";
/// Maximum number of passes for processes that were started while others were moved.
const MOVES: usize = 8;
/// Controllers for drivers. CPU time is shared equally among groups by default.
const CONTROLLERS: [&str; 3] = [CPU, "memory", "pids"];
/// Controller of CPU time.
const CPU: &str = "cpu";
/// File with the weight of a group.
const WEIGHT: &str = "cpu.weight";
/// Weight of a new group (`CGROUP_WEIGHT_DFL` of `linux/cgroup.h`).
const DEFAULT_WEIGHT: u16 = 100;

/// Reason why there are no control groups.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct GroupError(#[from] io::Error);

/// Limits of a driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Memory in bytes, kernel memory included.
    pub(super) memory: u64,
    /// Number of threads.
    pub(super) threads: u64,
}

/// Control groups of all drivers, and their weights.
#[derive(Debug, Default)]
pub(super) struct DriverGroups {
    /// The delegated group, or the reason why there is none; not known before it is needed.
    taken: OnceCell<Result<Groups, GroupError>>,
    /// Desired weights by driver; others have the default.
    weights: BTreeMap<PortName, u16>,
    /// Reasons why desired weights have no effect, by driver.
    weight_errors: BTreeMap<PortName, String>,
}

impl DriverGroups {
    /// Returns the delegated group, which is divided by the first call.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(super) fn take(&self) -> Result<&Groups, &GroupError> {
        self.taken.get_or_init(Groups::take).as_ref()
    }

    /// Puts the process of a driver into its group, if there are groups.
    pub(super) fn enter(&mut self, driver: &PortName, process: u32, limits: Limits) {
        let entered = match self.take() {
            Ok(groups) => groups.enter(driver, process, limits),
            Err(_) => Ok(()),
        };
        if let Err(error) = entered {
            let error = format!("no control group for the driver: {error}");
            tracing::warn!("{error}");
            self.note_weight(driver, Some(error));
        } else if self.weights.contains_key(driver) {
            self.apply_weight(driver);
        }
    }

    /// Sets the weights of these drivers, and of all others to the default.
    pub(super) fn set_weights(&mut self, weights: Vec<(PortName, u16)>) {
        let new = weights.into_iter().collect();
        let old = std::mem::replace(&mut self.weights, new);
        let drivers: BTreeSet<_> = old.keys().chain(self.weights.keys()).cloned().collect();
        for driver in drivers {
            if old.get(&driver) != self.weights.get(&driver) {
                self.apply_weight(&driver);
            }
        }
    }

    /// Writes the weight of a driver's group.
    fn apply_weight(&mut self, driver: &PortName) {
        let weight = self.weights.get(driver).copied();
        let weight = weight.unwrap_or(DEFAULT_WEIGHT);
        let why_not = match self.take() {
            Ok(groups) => groups
                .set_weight(driver, weight)
                .err()
                .map(|e| e.to_string()),
            Err(error) => Some(error.to_string()),
        };
        self.note_weight(driver, why_not);
    }

    /// Notes whether the weight of a driver has an effect, if it has one. Logs a reason once.
    fn note_weight(&mut self, driver: &PortName, why_not: Option<String>) {
        match why_not {
            Some(reason) if self.weights.contains_key(driver) => {
                if self.weight_errors.get(driver) != Some(&reason) {
                    tracing::warn!(port = &**driver, "cpu_weight has no effect: {reason}");
                    self.weight_errors.insert(driver.clone(), reason);
                }
            }
            _ => drop(self.weight_errors.remove(driver)),
        }
    }

    /// Returns the reason why the desired weight of a driver has no effect.
    pub(super) fn weight_error(&self, driver: &PortName) -> Option<&String> {
        self.weight_errors.get(driver)
    }

    /// Removes the groups of drivers that have ended.
    pub(super) fn remove(&self, drivers: &[PortName]) {
        if let Some(Ok(groups)) = self.taken.get() {
            drivers.iter().for_each(|driver| groups.remove(driver));
        }
    }
}

/// Delegated control group.
#[derive(Debug)]
pub(super) struct Groups {
    /// Directory of the group.
    dir: PathBuf,
    /// Controllers of its subgroups.
    controllers: Vec<&'static str>,
}

impl Groups {
    /// Divides the group if it is delegated, and logs the result.
    ///
    /// # Errors
    /// The reason why there is none.
    fn take() -> Result<Self, GroupError> {
        match delegated().and_then(Self::divide) {
            Ok(groups) => {
                let controllers = groups.controllers.join(", ");
                tracing::info!("control groups for drivers: {controllers}");
                Ok(groups)
            }
            Err(why) => {
                tracing::info!("no control groups for drivers, CPU time is not limited: {why}");
                Err(why.into())
            }
        }
    }

    /// Moves all processes of the group into a subgroup, and enables the controllers.
    fn divide(dir: PathBuf) -> io::Result<Self> {
        let supervisor = dir.join(SUPERVISOR);
        make(&supervisor)?;
        for _ in 0..MOVES {
            let left = fs::read_to_string(dir.join(PROCESSES))?;
            for process in left.lines() {
                match fs::write(supervisor.join(PROCESSES), process) {
                    // The process has ended meanwhile.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    moved => moved?,
                }
            }
            if left.is_empty() {
                break;
            }
        }
        let offered = fs::read_to_string(dir.join("cgroup.controllers"))?;
        let given = |name: &&str| {
            let control = dir.join("cgroup.subtree_control");
            offered.split_whitespace().any(|o| o == *name)
                && fs::write(control, format!("+{name}")).is_ok()
        };
        let controllers: Vec<_> = CONTROLLERS.into_iter().filter(given).collect();
        if controllers.is_empty() {
            Err(io::Error::other("no controllers in the delegated group"))
        } else {
            Ok(Self { dir, controllers })
        }
    }

    /// Returns the directory of a driver's group. A name of a port leads nowhere else.
    fn of(&self, driver: &PortName) -> PathBuf {
        self.dir.join(format!("driver-{driver}"))
    }

    /// Puts the process of a driver into its group, which is created if necessary.
    ///
    /// # Errors
    /// Failed system call.
    fn enter(&self, driver: &PortName, process: u32, limits: Limits) -> io::Result<()> {
        let group = self.of(driver);
        make(&group)?;
        for (limit, value) in [("memory.max", limits.memory), ("pids.max", limits.threads)] {
            let file = group.join(limit);
            // Without the controller the file does not exist.
            if file.exists() {
                fs::write(file, value.to_string())?;
            }
        }
        fs::write(group.join(PROCESSES), process.to_string())
    }

    /// Sets the weight of a driver's group. A driver without a group gets its weight with it.
    ///
    /// # Errors
    /// There is no such controller, or a failed system call.
    fn set_weight(&self, driver: &PortName, weight: u16) -> io::Result<()> {
        if !self.controllers.contains(&CPU) {
            let text = "the service manager has not delegated the controller cpu";
            return Err(io::Error::other(text));
        }
        let group = self.of(driver);
        if group.exists() {
            fs::write(group.join(WEIGHT), weight.to_string())?;
        }
        Ok(())
    }

    /// Removes the group of a driver that has ended.
    fn remove(&self, driver: &PortName) {
        // A process that does not die keeps its group.
        let _ = fs::remove_dir(self.of(driver));
    }
}

fn make(group: &Path) -> io::Result<()> {
    match fs::create_dir(group) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Returns the directory of our group, if a service manager has delegated it.
fn delegated() -> io::Result<PathBuf> {
    let own = fs::read("/proc/self/cgroup")?;
    let none = || io::Error::other("no control groups of version 2");
    let dir = folder(Path::new(ROOT), &own).ok_or_else(none)?;
    if rustix::fs::statfs(&dir)?.f_type as u64 != CGROUP2 {
        return Err(none());
    }
    match rustix::fs::getxattr(&dir, DELEGATED, &mut [0u8; 1][..]) {
        Ok(1) => Ok(dir),
        _ => Err(io::Error::other("not delegated by the service manager")),
    }
}

/// Returns the directory of our group according to `/proc/self/cgroup` (cgroups(7)). A process that
/// was started in the supervisor's subgroup is one level further down.
fn folder(root: &Path, own: &[u8]) -> Option<PathBuf> {
    let mut lines = own.split(|byte| *byte == b'\n');
    let path = lines.find_map(|line| line.strip_prefix(b"0::/"))?;
    let path = Path::new(OsStr::from_bytes(path));
    let whole = match path.file_name() {
        Some(name) if name == SUPERVISOR => path.parent()?,
        _ => path,
    };
    Some(root.join(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_that_of_version_2_and_ours() {
        let folder = |own: &str| folder(Path::new("/g"), own.as_bytes());
        let service = Some(PathBuf::from("/g/system.slice/lasthop.service"));
        assert_eq!(folder("0::/system.slice/lasthop.service\n"), service);
        let again = "1:cpu:/\n0::/system.slice/lasthop.service/supervisor\n";
        assert_eq!(folder(again), service);
        assert_eq!(folder("0::/\n"), Some(PathBuf::from("/g/")));
        assert_eq!(folder("1:cpu:/\n"), None);
        let bytes = b"1:caf\xe9:/caf\xe9\n0::/caf\xe9.slice/lasthop.service\n";
        let expected = Path::new(OsStr::from_bytes(b"/g/caf\xe9.slice/lasthop.service"));
        assert_eq!(
            super::folder(Path::new("/g"), bytes).as_deref(),
            Some(expected)
        );
    }

    /// Returns groups in a folder with these controllers, and the folder.
    fn divided(controllers: &str) -> (DriverGroups, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(PROCESSES), "").unwrap();
        fs::write(folder.path().join("cgroup.controllers"), controllers).unwrap();
        let groups = Groups::divide(folder.path().to_owned()).map_err(GroupError);
        let groups = DriverGroups {
            taken: OnceCell::from(groups),
            ..DriverGroups::default()
        };
        (groups, folder)
    }

    const LIMITS: Limits = Limits {
        memory: 1 << 20,
        threads: 3,
    };

    fn name(text: &str) -> PortName {
        text.parse().unwrap()
    }

    fn weights(all: &[(&str, u16)]) -> Vec<(PortName, u16)> {
        let one = |(text, weight): &(&str, u16)| (name(text), *weight);
        all.iter().map(one).collect()
    }

    #[test]
    fn weights_are_written_when_they_change_and_when_a_process_enters() {
        let (mut groups, folder) = divided("cpu memory pids\n");
        let file = |driver: &str| folder.path().join(format!("driver-{driver}/cpu.weight"));
        let written = |driver: &str| fs::read_to_string(file(driver)).ok();
        groups.enter(&name("plain"), 16, LIMITS);
        assert_eq!(written("plain"), None, "the system's default");
        groups.set_weights(weights(&[("up", 200)]));
        assert_eq!(written("up"), None, "it has no group yet");
        groups.enter(&name("up"), 17, LIMITS);
        assert_eq!(written("up").as_deref(), Some("200"));
        groups.set_weights(weights(&[("up", 10_000), ("plain", 1)]));
        assert_eq!(written("up").as_deref(), Some("10000"));
        assert_eq!(written("plain").as_deref(), Some("1"));
        // Its next process has the same weight; that of another is not written again.
        fs::remove_file(file("plain")).unwrap();
        groups.enter(&name("up"), 18, LIMITS);
        groups.set_weights(weights(&[("plain", 1)]));
        assert_eq!(written("up").as_deref(), Some("100"), "the default again");
        assert_eq!(written("plain"), None);
        assert!(groups.weight_errors.is_empty());
    }

    #[test]
    fn weights_without_effect_have_a_reason() {
        let (mut groups, folder) = divided("memory pids\n");
        groups.set_weights(weights(&[("up", 200)]));
        groups.enter(&name("up"), 17, LIMITS);
        let reason = "the service manager has not delegated the controller cpu";
        let error = |groups: &DriverGroups| groups.weight_error(&name("up")).cloned();
        assert_eq!(error(&groups).as_deref(), Some(reason));
        assert!(!folder.path().join("driver-up/cpu.weight").exists());
        groups.set_weights(Vec::new());
        assert_eq!(error(&groups), None);
        let none = "not delegated by the service manager";
        let mut groups = DriverGroups {
            taken: OnceCell::from(Err(GroupError(io::Error::other(none)))),
            ..DriverGroups::default()
        };
        groups.set_weights(weights(&[("up", 200)]));
        assert_eq!(error(&groups).as_deref(), Some(none));
    }

    #[test]
    fn a_weight_that_the_system_refuses_has_its_reason() {
        let (mut groups, folder) = divided("cpu\n");
        // A folder cannot be written.
        fs::create_dir_all(folder.path().join("driver-up/cpu.weight")).unwrap();
        groups.set_weights(weights(&[("up", 200)]));
        let reason = groups.weight_error(&name("up")).unwrap();
        assert!(reason.contains("Is a directory"), "{reason}");
        fs::remove_dir(folder.path().join("driver-up/cpu.weight")).unwrap();
        groups.enter(&name("up"), 17, LIMITS);
        assert!(groups.weight_errors.is_empty());
    }

    #[test]
    fn processes_move_to_a_subgroup_and_drivers_get_limits() {
        let folder = tempfile::tempdir().unwrap();
        let group = |name: &str| folder.path().join(name);
        let read = |name: &str| fs::read_to_string(group(name)).unwrap();
        fs::write(group(PROCESSES), "17\n").unwrap();
        fs::write(group("cgroup.controllers"), "cpuset cpu pids\n").unwrap();
        let groups = Groups::divide(folder.path().to_owned()).unwrap();
        assert_eq!(groups.controllers, ["cpu", "pids"]);
        assert_eq!(read("supervisor/cgroup.procs"), "17");
        // The kernel creates these with the group.
        fs::create_dir(group("driver-up")).unwrap();
        fs::write(group("driver-up/pids.max"), "max\n").unwrap();
        groups.enter(&name("up"), 18, LIMITS).unwrap();
        assert_eq!(read("driver-up/pids.max"), "3");
        assert_eq!(read("driver-up/cgroup.procs"), "18");
        assert!(!group("driver-up/memory.max").exists());
        fs::write(group("cgroup.controllers"), "\n").unwrap();
        assert!(Groups::divide(folder.path().to_owned()).is_err());
    }
}
