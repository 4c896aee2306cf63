//! Control groups (Linux, `Documentation/admin-guide/cgroup-v2.rst`): a driver's share of the machine, where the service manager has
//! given our group to us (systemd: `Delegate=yes`).
//!
//! ```text
//!   our group             has groups below it, and so no process of its own
//!     supervisor          we, control and the switch
//!     driver-uplink       the driver of port "uplink", however many threads it has: one share of the processors, as much
//!                         memory and as many threads as it needs
//! ```
//!
//! Elsewhere drivers have the limits that they give themselves before they hear anybody but us
//! (`crates/driver/src/closing.rs`), which leave them the processors.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where control groups are.
const ROOT: &str = "/sys/fs/cgroup";
/// The kind of file system that has groups of version 2 (`CGROUP2_SUPER_MAGIC` of `linux/magic.h`).
const CGROUP2: u64 = 0x6367_7270;
/// By this attribute of the folder a service manager says that a group is ours to divide
/// (<https://systemd.io/CGROUP_DELEGATION/>).
const DELEGATED: &str = "user.delegate";

/// The group of all but drivers.
const SUPERVISOR: &str = "supervisor";
/// The processes of a group.
const PROCESSES: &str = "cgroup.procs";
/// Looks for processes that have been started while others were moved.
const MOVES: usize = 8;
/// What is to be shared out. Processors are shared by group and equally, as long as nobody says otherwise.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// What a driver may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes, in the system too.
    pub(super) memory: u64,
    /// Threads.
    pub(super) threads: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Groups {
    /// Our group.
    dir: PathBuf,
}

impl Groups {
    /// Divides our group, if there is one that is ours to divide; the log says how that went.
    pub(super) fn take() -> Option<Self> {
        match delegated().and_then(Self::divide) {
            Ok((groups, controllers)) => {
                let controllers = controllers.join(", ");
                tracing::info!("each driver has a control group for: {controllers}");
                Some(groups)
            }
            Err(why) => {
                tracing::info!(
                    "drivers have no control groups, and share processors as they like: {why}"
                );
                None
            }
        }
    }

    /// With everybody who is in the group moved out of the way; and the controllers that it has.
    fn divide(dir: PathBuf) -> io::Result<(Self, Vec<&'static str>)> {
        let everybody = dir.join(SUPERVISOR);
        make(&everybody)?;
        for _ in 0..MOVES {
            let left = fs::read_to_string(dir.join(PROCESSES))?;
            for process in left.lines() {
                match fs::write(everybody.join(PROCESSES), process) {
                    // It has ended meanwhile.
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
        match controllers.is_empty() {
            true => Err(io::Error::other("our group has no controllers")),
            false => Ok((Self { dir }, controllers)),
        }
    }

    fn of(&self, driver: &str) -> PathBuf {
        self.dir.join(format!("driver-{driver}"))
    }

    /// Puts the process of a driver into its group, which is made if it is not there.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn enter(&self, driver: &str, process: u32, limits: Limits) -> io::Result<()> {
        let group = self.of(driver);
        make(&group)?;
        for (limit, value) in [("memory.max", limits.memory), ("pids.max", limits.threads)] {
            let file = group.join(limit);
            // Without the controller there is no such file.
            if file.exists() {
                fs::write(file, value.to_string())?;
            }
        }
        fs::write(group.join(PROCESSES), process.to_string())
    }

    /// Removes the group of a driver that has ended.
    pub(super) fn remove(&self, driver: &str) {
        // One that does not die keeps its group.
        let _ = fs::remove_dir(self.of(driver));
    }
}

fn make(group: &Path) -> io::Result<()> {
    match fs::create_dir(group) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// The folder of our group, if a service manager has given it to us.
fn delegated() -> io::Result<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let none = || io::Error::other("there are no control groups of version 2");
    let dir = folder(Path::new(ROOT), &own).ok_or_else(none)?;
    if rustix::fs::statfs(&dir)?.f_type as u64 != CGROUP2 {
        return Err(none());
    }
    match rustix::fs::getxattr(&dir, DELEGATED, &mut [0u8; 1][..]) {
        Ok(1) => Ok(dir),
        _ => Err(io::Error::other(
            "the service manager has not delegated ours",
        )),
    }
}

/// The folder of our group by `/proc/self/cgroup` (cgroups(7)). Who was started by a supervisor that had divided it is further
/// down already.
fn folder(root: &Path, own: &str) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let path = Path::new(path);
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
        let folder = |own| folder(Path::new("/g"), own);
        let service = Some(PathBuf::from("/g/system.slice/lasthop.service"));
        assert_eq!(folder("0::/system.slice/lasthop.service\n"), service);
        let again = "1:cpu:/\n0::/system.slice/lasthop.service/supervisor\n";
        assert_eq!(folder(again), service);
        assert_eq!(folder("0::/\n"), Some(PathBuf::from("/g/")));
        assert_eq!(folder("1:cpu:/\n"), None);
    }

    #[test]
    fn everybody_moves_and_drivers_get_their_limits() {
        let folder = tempfile::tempdir().unwrap();
        let group = |name: &str| folder.path().join(name);
        let read = |name: &str| fs::read_to_string(group(name)).unwrap();
        fs::write(group(PROCESSES), "17\n").unwrap();
        fs::write(group("cgroup.controllers"), "cpuset cpu pids\n").unwrap();
        let (groups, controllers) = Groups::divide(folder.path().to_owned()).unwrap();
        assert_eq!(controllers, ["cpu", "pids"]);
        assert_eq!(read("supervisor/cgroup.procs"), "17");
        // The system makes these with the group.
        fs::create_dir(group("driver-up")).unwrap();
        fs::write(group("driver-up/pids.max"), "max\n").unwrap();
        let limits = Limits {
            memory: 1 << 20,
            threads: 3,
        };
        groups.enter("up", 18, limits).unwrap();
        assert_eq!(read("driver-up/pids.max"), "3");
        assert_eq!(read("driver-up/cgroup.procs"), "18");
        assert!(!group("driver-up/memory.max").exists());
        fs::write(group("cgroup.controllers"), "\n").unwrap();
        assert!(Groups::divide(folder.path().to_owned()).is_err());
    }
}
