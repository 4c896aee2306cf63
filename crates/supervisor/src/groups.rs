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
//! Without delegation, drivers have only the limits that they set themselves before they read other
//! input than the supervisor's (`crates/driver/src/closing.rs`), which do not limit CPU time.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

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
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// Limits of a driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Memory in bytes, kernel memory included.
    pub(super) memory: u64,
    /// Number of threads.
    pub(super) threads: u64,
}

/// Delegated control group.
#[derive(Debug)]
pub(super) struct Groups {
    /// Directory of the group.
    dir: PathBuf,
}

impl Groups {
    /// Divides the group if it is delegated, and logs the result.
    pub(super) fn take() -> Option<Self> {
        match delegated().and_then(Self::divide) {
            Ok((groups, controllers)) => {
                let controllers = controllers.join(", ");
                tracing::info!("control groups for drivers: {controllers}");
                Some(groups)
            }
            Err(why) => {
                tracing::info!("no control groups for drivers, CPU time is not limited: {why}");
                None
            }
        }
    }

    /// Moves all processes of the group into a subgroup. Returns the enabled controllers.
    fn divide(dir: PathBuf) -> io::Result<(Self, Vec<&'static str>)> {
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
            Ok((Self { dir }, controllers))
        }
    }

    fn of(&self, driver: &str) -> PathBuf {
        self.dir.join(format!("driver-{driver}"))
    }

    /// Puts the process of a driver into its group, which is created if necessary.
    ///
    /// # Errors
    /// Failed system call.
    pub(super) fn enter(&self, driver: &str, process: u32, limits: Limits) -> io::Result<()> {
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

    /// Removes the group of a driver that has ended.
    pub(super) fn remove(&self, driver: &str) {
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
    let own = fs::read_to_string("/proc/self/cgroup")?;
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
    fn processes_move_to_a_subgroup_and_drivers_get_limits() {
        let folder = tempfile::tempdir().unwrap();
        let group = |name: &str| folder.path().join(name);
        let read = |name: &str| fs::read_to_string(group(name)).unwrap();
        fs::write(group(PROCESSES), "17\n").unwrap();
        fs::write(group("cgroup.controllers"), "cpuset cpu pids\n").unwrap();
        let (groups, controllers) = Groups::divide(folder.path().to_owned()).unwrap();
        assert_eq!(controllers, ["cpu", "pids"]);
        assert_eq!(read("supervisor/cgroup.procs"), "17");
        // The kernel creates these with the group.
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
