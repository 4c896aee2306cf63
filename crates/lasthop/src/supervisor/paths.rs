//! Where sockets are: the names that they may have, and what the file system makes of these. Whoever asks for a path may have been
//! taken over, or another may have put a link there, and what is bound and dialled is so with our rights.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use api::v1::WantedState;
use channel::supervision::SocketDir;
use control::wanted::{RESERVED, Reach};
use rustix::fs::{Mode, OFlags};

/// See the module.
pub(super) struct Paths {
    /// The runtime directory, absolute and without links.
    dir: PathBuf,
    reach: Reach,
}

impl Paths {
    /// Those of a Lasthop that starts with a checked state. `named` is the runtime directory `dir` as the operator named it.
    pub(super) fn of(dir: &Path, named: &Path, wanted: &WantedState) -> Self {
        let named = std::path::absolute(named).unwrap_or_else(|_| dir.to_owned());
        let mut dirs = Reach::of(wanted, &named).dirs().to_vec();
        let real = |named: &SocketDir| {
            let path = Path::new(&named.path).canonicalize().ok()?;
            Some(SocketDir {
                path: path.to_str()?.to_owned(),
                below: named.below,
            })
        };
        let real: Vec<_> = dirs.iter().filter_map(real).collect();
        for dir in real {
            if !dirs.contains(&dir) {
                dirs.push(dir);
            }
        }
        Self::in_dirs(dir, dirs)
    }

    /// Those in these directories.
    pub(super) fn in_dirs(dir: &Path, dirs: Vec<SocketDir>) -> Self {
        Self {
            reach: Reach::new(dir, dirs),
            dir: dir.to_owned(),
        }
    }

    /// The directories, by their names and by what these lead to.
    pub(super) fn dirs(&self) -> &[SocketDir] {
        self.reach.dirs()
    }

    /// The path of one that is our own.
    pub(super) fn own(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Checks a path as far as its name tells.
    ///
    /// # Errors
    /// No socket of others may be there.
    pub(super) fn check(&self, path: &str) -> io::Result<()> {
        let full = self.dir.join(path);
        if RESERVED.iter().any(|own| full == self.dir.join(own)) {
            return Err(refused(path, "is Lasthop's own"));
        }
        match self.reach.has(path) {
            true => Ok(()),
            false => Err(beyond(path)),
        }
    }

    /// Where one of this path is bound, without links.
    ///
    /// # Errors
    /// It may not be there, or nothing can.
    pub(super) fn to_bind(&self, path: &str) -> io::Result<PathBuf> {
        self.check(path)?;
        let full = self.dir.join(path);
        let (Some(dir), Some(name)) = (full.parent(), full.file_name()) else {
            return Err(beyond(path));
        };
        let dir = dir.canonicalize();
        let dir = dir.map_err(|e| io::Error::new(e.kind(), format!("{path}: {e}")))?;
        if !self.has(&dir) {
            return Err(beyond(path));
        }
        match dir == self.dir && RESERVED.iter().any(|own| name == *own) {
            true => Err(refused(path, "is Lasthop's own")),
            false => Ok(dir.join(name)),
        }
    }

    /// What this path leads to, by a descriptor that stands for it alone (`O_PATH`).
    ///
    /// # Errors
    /// It may not be dialled, or nothing is there.
    pub(super) fn to_dial(&self, path: &str) -> io::Result<OwnedFd> {
        self.check(path)?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file = rustix::fs::open(self.dir.join(path), flags, Mode::empty())?;
        let real = std::fs::read_link(by_descriptor(&file))?;
        match real.parent().is_some_and(|dir| self.has(dir)) {
            true => Ok(file),
            false => Err(beyond(path)),
        }
    }

    /// Whether sockets may be in a directory, whose path is without links.
    fn has(&self, dir: &Path) -> bool {
        self.dirs().iter().any(|own| own.has(dir))
    }
}

/// A path of what is open, for calls that take nothing else.
pub(super) fn by_descriptor(file: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

fn refused(path: &str, why: &str) -> io::Error {
    let text = format!("{path:?} {why}");
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

fn beyond(path: &str) -> io::Error {
    refused(
        path,
        "is neither in the runtime directory nor in one of socket_dirs of [switch], and no other was there at the start",
    )
}
