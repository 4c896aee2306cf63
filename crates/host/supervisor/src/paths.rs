//! Permitted paths of sockets, and their resolution in the file system. The requesting process may
//! be compromised, or another one may have made a link there, and sockets are bound and dialled
//! with the supervisor's rights.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use ipc::sockets::{RESERVED, Reach};
use ipc::supervision::SocketDir;
use rustix::fs::{Mode, OFlags};

/// Permitted directories.
pub(super) struct Paths {
    /// Runtime directory, absolute and without links.
    dir: PathBuf,
    reach: Reach,
}

impl Paths {
    /// Returns the paths of a Lasthop that starts: directories as the configuration names them, and
    /// as they are without links.
    pub(super) fn of(dir: &Path, mut dirs: Vec<SocketDir>) -> Self {
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

    /// Returns the paths in these directories.
    pub(super) fn in_dirs(dir: &Path, dirs: Vec<SocketDir>) -> Self {
        Self {
            reach: Reach::new(dir, dirs),
            dir: dir.to_owned(),
        }
    }

    /// Returns the directories, by their names and with links resolved.
    pub(super) fn dirs(&self) -> &[SocketDir] {
        self.reach.dirs()
    }

    /// Returns the path of one of Lasthop's own sockets.
    pub(super) fn own(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Checks a path by its name.
    ///
    /// # Errors
    /// The path is not permitted for a port's socket.
    pub(super) fn check(&self, path: &str) -> io::Result<()> {
        let full = self.dir.join(path);
        if RESERVED.iter().any(|own| full == self.dir.join(own)) {
            return Err(refused(path, "is Lasthop's own"));
        }
        if self.reach.has(path) {
            Ok(())
        } else {
            Err(beyond(path))
        }
    }

    /// Returns the path to bind, without links.
    ///
    /// # Errors
    /// The path is not permitted, or its directory cannot be used.
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
        if dir == self.dir && RESERVED.iter().any(|own| name == *own) {
            Err(refused(path, "is Lasthop's own"))
        } else {
            Ok(dir.join(name))
        }
    }

    /// Opens the file at a path, without access to its contents (`O_PATH`).
    ///
    /// # Errors
    /// The path is not permitted, or there is no file.
    pub(super) fn to_dial(&self, path: &str) -> io::Result<OwnedFd> {
        self.check(path)?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file = rustix::fs::open(self.dir.join(path), flags, Mode::empty())?;
        let real = std::fs::read_link(by_descriptor(&file))?;
        if real.parent().is_some_and(|dir| self.has(dir)) {
            Ok(file)
        } else {
            Err(beyond(path))
        }
    }

    /// Returns whether sockets are permitted in a directory, whose path is without links.
    fn has(&self, dir: &Path) -> bool {
        self.dirs().iter().any(|own| own.has(dir))
    }
}

/// Returns a path of an open file, for system calls that accept only paths.
pub(super) fn by_descriptor(file: &OwnedFd) -> PathBuf {
    sys::file::path_of(file).into()
}

fn refused(path: &str, why: &str) -> io::Error {
    let text = format!("{path:?} {why}");
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

fn beyond(path: &str) -> io::Error {
    refused(
        path,
        "is neither in the runtime directory nor in one of socket_dirs of [switch], \
         nor in the directory of a socket of the start",
    )
}
