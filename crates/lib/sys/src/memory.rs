//! Memory that this process can still take, by its control groups and by the host.
//!
//! A charge beyond the limit of a control group has a process of it killed, so a process that takes
//! much asks before. Page cache that the kernel gives up first counts as available.

use std::io;
use std::path::{Component, Path, PathBuf};

use crate::file::text;

/// Memory, and its bound in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Room {
    /// Bytes.
    pub bytes: u64,
    /// The bound, for messages.
    pub by: String,
}

/// Which memory is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// Memory that is available now.
    Available,
    /// All that this process could have if nothing else were in use.
    Total,
}

/// Returns the memory that this process can take; `None` where nothing says so.
#[must_use]
pub fn room(which: Which) -> Option<Room> {
    room_in(Path::new("/"), which)
}

/// As [`room`], with `/proc` and `/sys` in another folder.
fn room_in(root: &Path, which: Which) -> Option<Room> {
    let groups = [Hierarchy::V2, Hierarchy::V1].map(|hierarchy| hierarchy.room(root, which));
    let host = of_meminfo(root, which).or_else(|| of_nodes(root, which));
    let all = groups.into_iter().flatten().chain(host);
    all.min_by_key(|room| room.bytes)
}

/// A hierarchy of control groups: cgroups(7).
#[derive(Clone, Copy)]
enum Hierarchy {
    V1,
    V2,
}

impl Hierarchy {
    /// Folders where it may be mounted.
    const fn mounts(self) -> &'static [&'static str] {
        match self {
            Self::V1 => &["sys/fs/cgroup/memory"],
            Self::V2 => &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
        }
    }

    /// Files with limits, that with the use, and rows of `memory.stat` that can be given up.
    const fn files(
        self,
    ) -> (
        &'static [&'static str],
        &'static str,
        &'static [&'static str],
    ) {
        match self {
            Self::V1 => (
                &["memory.limit_in_bytes"],
                "memory.usage_in_bytes",
                &["total_inactive_file"],
            ),
            Self::V2 => (
                &["memory.max", "memory.high"],
                "memory.current",
                &["inactive_file", "slab_reclaimable"],
            ),
        }
    }

    /// Returns whether a line of `/proc/self/cgroup` is of it; the rest of it is the path.
    fn path(self, line: &str) -> Option<&Path> {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let ours = match self {
            Self::V1 => controllers.split(',').any(|name| name == "memory"),
            Self::V2 => controllers.is_empty(),
        };
        ours.then(|| Path::new(path))
    }

    /// Returns the smallest room of our group and those that it is in.
    fn room(self, root: &Path, which: Which) -> Option<Room> {
        let own = text(root.join("proc/self/cgroup")).ok()?;
        let path = own.lines().find_map(|line| self.path(line))?;
        let parts = path.components().filter_map(|part| match part {
            Component::RootDir | Component::CurDir => None,
            part => Some(part),
        });
        let path: PathBuf = parts.collect();
        // A group outside of our namespace has no folder here.
        let is_hidden = path.components().any(|part| part == Component::ParentDir);
        let path = if is_hidden { Path::new("") } else { &*path };
        let of = |mount: &&str| {
            let groups = path.ancestors();
            let rooms =
                groups.filter_map(|group| self.room_of(root, &Path::new(mount).join(group), which));
            rooms.min_by_key(|room| room.bytes)
        };
        self.mounts().iter().find_map(of)
    }

    /// Returns the room of a group; `None` if it has no limit.
    fn room_of(self, root: &Path, group: &Path, which: Which) -> Option<Room> {
        let dir = root.join(group);
        let number = |file: &str| text(dir.join(file)).ok()?.trim().parse::<u64>().ok();
        let (limits, current, reclaimable) = self.files();
        let limits = limits.iter().filter_map(|file| Some((number(file)?, file)));
        let (limit, file) = limits.min()?;
        let bytes = match which {
            Which::Total => limit,
            Which::Available => {
                let stat = text(dir.join("memory.stat")).unwrap_or_default();
                let free = reclaimable.iter().filter_map(|row| field(&stat, row));
                let used = number(current)?.saturating_sub(free.sum());
                limit.saturating_sub(used)
            }
        };
        let by = format!("{file} of the control group /{}", group.display());
        Some(Room { bytes, by })
    }
}

/// Returns the number after a word at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok())?
    })
}

/// Reads `/proc/meminfo` (proc_meminfo(5)), which is hidden where `/proc` has processes only.
fn of_meminfo(root: &Path, which: Which) -> Option<Room> {
    let text = text(root.join("proc/meminfo")).ok()?;
    let name = match which {
        Which::Available => "MemAvailable:",
        Which::Total => "MemTotal:",
    };
    let bytes = field(&text, name)?.checked_mul(1024)?;
    let by = format!("{} of the host", name.trim_end_matches(':'));
    Some(Room { bytes, by })
}

/// Estimates the same from the files of the nodes: half of what can be given up is available.
fn of_nodes(root: &Path, which: Which) -> Option<Room> {
    let folder = root.join("sys/devices/system/node");
    let mut total = None;
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let Some(node) = of_node(&entry.path(), which) else {
            continue;
        };
        *total.get_or_insert(0_u64) += node;
    }
    let by = "the memory of the host's nodes".to_owned();
    total.map(|bytes| Room { bytes, by })
}

fn of_node(folder: &Path, which: Which) -> Option<u64> {
    let rows = text(folder.join("meminfo")).ok()?;
    // `Node 0 MemFree:   1 kB`
    let rows: Vec<_> = rows
        .lines()
        .filter_map(|row| row.splitn(3, ' ').nth(2))
        .collect();
    let rows = rows.join("\n");
    let number = |name| field(&rows, name).map(|kib| kib.saturating_mul(1024));
    match which {
        Which::Total => number("MemTotal:"),
        Which::Available => {
            let rest = ["Active(file):", "Inactive(file):", "SReclaimable:"];
            let rest: u64 = rest.into_iter().filter_map(number).sum();
            Some(number("MemFree:")? + rest / 2)
        }
    }
}

/// Reason why memory is not taken.
#[derive(Debug)]
pub enum NoMemory {
    /// There is less.
    Less {
        /// Bytes that are needed.
        needed: u64,
        /// Those that there are.
        room: Room,
    },
    /// The system refuses this number of bytes, with this error.
    Refused(u64, io::Error),
}

impl std::fmt::Display for NoMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Less { needed, room } => {
                let Room { bytes, by } = room;
                write!(
                    f,
                    "it needs {needed} bytes of memory, and there are {bytes} ({by})"
                )
            }
            Self::Refused(needed, error) => {
                write!(f, "it needs {needed} bytes of memory: {error}")
            }
        }
    }
}

impl std::error::Error for NoMemory {}

/// Checks that this process can take this number of bytes.
///
/// # Errors
/// There are fewer.
pub fn check(needed: u64, which: Which) -> Result<(), NoMemory> {
    within(needed, room(which))
}

fn within(needed: u64, room: Option<Room>) -> Result<(), NoMemory> {
    match room {
        Some(room) if room.bytes < needed => Err(NoMemory::Less { needed, room }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A folder with these files; removed with the value.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let name = format!("lasthop-memory-{name}-{}", std::process::id());
            let root = std::env::temp_dir().join(name);
            for (file, content) in files {
                let file = root.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, content).unwrap();
            }
            Self(root)
        }

        fn room(&self, which: Which) -> Option<(u64, String)> {
            room_in(&self.0, which).map(|room| (room.bytes, room.by))
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const MEMINFO: (&str, &str) = (
        "proc/meminfo",
        "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:    500 kB\n",
    );

    #[test]
    fn the_smallest_limit_up_the_chain_counts_and_cache_is_available() {
        let root = Root::new(
            "v2",
            &[
                ("proc/self/cgroup", "0::/a.slice/b.service\n"),
                ("sys/fs/cgroup/a.slice/b.service/memory.max", "max\n"),
                ("sys/fs/cgroup/a.slice/b.service/memory.current", "9000\n"),
                ("sys/fs/cgroup/a.slice/memory.max", "20000\n"),
                ("sys/fs/cgroup/a.slice/memory.high", "12000\n"),
                ("sys/fs/cgroup/a.slice/memory.current", "10000\n"),
                (
                    "sys/fs/cgroup/a.slice/memory.stat",
                    "anon 5\ninactive_file 1000\nslab_reclaimable 500\n",
                ),
                MEMINFO,
            ],
        );
        let by = "memory.high of the control group /sys/fs/cgroup/a.slice".to_owned();
        assert_eq!(root.room(Which::Available), Some((3500, by.clone())));
        assert_eq!(root.room(Which::Total), Some((12000, by)));
    }

    #[test]
    fn groups_of_version_1_have_limits_too() {
        let root = Root::new(
            "v1",
            &[
                ("proc/self/cgroup", "4:cpu,memory:/x\n0::/\n"),
                ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "8000\n"),
                ("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "3000\n"),
                (
                    "sys/fs/cgroup/memory/x/memory.stat",
                    "total_inactive_file 10\n",
                ),
            ],
        );
        let by = "memory.limit_in_bytes of the control group /sys/fs/cgroup/memory/x";
        assert_eq!(root.room(Which::Available), Some((5010, by.to_owned())));
    }

    #[test]
    fn the_host_s_memory_counts_where_no_group_has_a_limit() {
        let root = Root::new("host", &[("proc/self/cgroup", "0::/../else\n"), MEMINFO]);
        let of_host = |name: &str| format!("{name} of the host");
        let expected = (500 << 10, of_host("MemAvailable"));
        assert_eq!(root.room(Which::Available), Some(expected));
        let expected = (1000 << 10, of_host("MemTotal"));
        assert_eq!(root.room(Which::Total), Some(expected));
        let node = "Node 0 MemTotal:       90 kB\nNode 0 MemFree:        10 kB\n\
                    Node 0 Active(file):    4 kB\nNode 0 Inactive(file): 2 kB\n";
        let nodes = [0, 1].map(|n| format!("sys/devices/system/node/node{n}/meminfo"));
        let hidden = Root::new("nodes", &[(&nodes[0], node), (&nodes[1], node)]);
        assert_eq!(hidden.room(Which::Available).unwrap().0, 26 << 10);
        assert_eq!(hidden.room(Which::Total).unwrap().0, 180 << 10);
        assert_eq!(Root::new("nothing", &[]).room(Which::Total), None);
    }

    #[test]
    fn a_refusal_says_both_numbers() {
        let room = |bytes| Room {
            bytes,
            by: "memory.max of the control group /a".to_owned(),
        };
        assert!(within(7, Some(room(7))).is_ok() && within(7, None).is_ok());
        assert_eq!(
            within(8, Some(room(7))).unwrap_err().to_string(),
            "it needs 8 bytes of memory, and there are 7 (memory.max of the control group /a)"
        );
        assert!(check(1, Which::Available).is_ok());
        assert!(check(u64::MAX, Which::Total).is_err());
    }
}
