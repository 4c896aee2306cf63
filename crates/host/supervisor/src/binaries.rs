//! Executable files of one installation.
//!
//! They are opened once. While a package is upgraded, new files appear under the old names, and a
//! process that dies then must be restarted in the version of the others.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode, OFlags};

use super::kind::Kind;
use super::record::{IncomingFds, OutgoingFds, PassedBinaries, RecordError};

/// Names of the programs.
const NAMES: [&str; 5] = [
    "lasthop-supervisor",
    Kind::Control.binary(),
    Kind::Switch.binary(),
    Kind::Driver.binary(),
    "lasthop",
];
const SUPERVISOR: usize = 0;
const COMMAND_LINE: usize = 4;

/// Reason why an executable file is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum BinaryError {
    #[error("{0}")]
    File(#[from] io::Error),
    #[error("{}: another user owns it or may write it", .0.display())]
    Untrusted(PathBuf),
}

/// Executable file.
struct Binary {
    path: PathBuf,
    file: OwnedFd,
}

/// Executable files of the five programs.
pub(super) struct Binaries {
    dir: PathBuf,
    /// In the order of [`NAMES`].
    files: [Binary; 5],
}

/// Returns the index of the program of a process.
fn index(kind: Kind) -> usize {
    match kind {
        Kind::Control => 1,
        Kind::Switch => 2,
        Kind::Driver => 3,
    }
}

/// Returns all values, or the first error.
fn all_of<T, E>([a, b, c, d, e]: [Result<T, E>; 5]) -> Result<[T; 5], E> {
    Ok([a?, b?, c?, d?, e?])
}

impl Binaries {
    /// Opens the files beside that of this process.
    ///
    /// # Errors
    /// A file is missing.
    pub(super) fn own() -> io::Result<Self> {
        let own = std::env::current_exe()?;
        Self::open(own.parent().unwrap_or(Path::new("/")))
    }

    /// Opens the files of a directory.
    ///
    /// # Errors
    /// A file is missing.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let dir = dir.canonicalize().map_err(|e| about(dir, &e))?;
        let files = all_of(NAMES.map(|name| Binary::open(&dir, name)))?;
        Ok(Self { dir, files })
    }

    /// Adds the files to the record for the next supervisor.
    pub(super) fn pass<'a>(&'a self, outgoing: &mut OutgoingFds<'a>) -> PassedBinaries {
        let files = self.files.each_ref();
        PassedBinaries {
            dir: self.dir.display().to_string(),
            files: files.map(|binary| outgoing.add(binary.file.as_fd())),
        }
    }

    /// Takes the files from the previous supervisor's record.
    ///
    /// # Errors
    /// A descriptor is missing.
    pub(super) fn take(from: PassedBinaries, fds: &mut IncomingFds) -> Result<Self, RecordError> {
        let dir = PathBuf::from(from.dir);
        let mut names = NAMES.into_iter();
        let files = all_of(from.files.map(|index| fds.take(index)))?.map(|file| {
            let path = dir.join(names.next().unwrap_or_default());
            Binary { path, file }
        });
        Ok(Self { dir, files })
    }

    /// Returns the file of the supervisor.
    pub(super) fn supervisor(&self) -> BorrowedFd<'_> {
        self.files[SUPERVISOR].file.as_fd()
    }

    /// Returns the directory; the files in it may have changed since.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns a command for a process of this kind.
    pub(super) fn command(&self, kind: Kind) -> Command {
        self.files[index(kind)].command()
    }

    /// Returns a command for the command line.
    pub(super) fn command_line(&self) -> Command {
        self.files[COMMAND_LINE].command()
    }

    /// Replaces the driver by that of another installation.
    pub(super) fn take_driver_of(&mut self, mut others: Self) {
        let driver = index(Kind::Driver);
        std::mem::swap(&mut self.files[driver], &mut others.files[driver]);
    }

    /// Returns commands for all programs with their names, the supervisor first.
    pub(super) fn commands(&self) -> [(&'static str, Command); 5] {
        std::array::from_fn(|at| (NAMES[at], self.files[at].command()))
    }

    /// Checks that only root or the user of this process can have written the files.
    ///
    /// # Errors
    /// The first file that another user could have written.
    pub(super) fn are_trusted(&self) -> Result<(), BinaryError> {
        for binary in &self.files {
            let file = binary.file.try_clone().map(File::from);
            let metadata = file.and_then(|file| file.metadata());
            let metadata = metadata.map_err(|e| about(&binary.path, &e))?;
            if !is_trusted(&metadata) {
                return Err(BinaryError::Untrusted(binary.path.clone()));
            }
        }
        Ok(())
    }
}

fn is_trusted(file: &Metadata) -> bool {
    const GROUP_WRITES: u32 = 0o020;
    const OTHERS_WRITE: u32 = 0o002;
    let own = rustix::process::geteuid().as_raw();
    let is_ours = [0, own].contains(&file.uid());
    // The group of this process is not trusted: it may have other members, for example VMMs with
    // the packaged unit.
    let others = match file.gid() {
        0 => OTHERS_WRITE,
        _ => OTHERS_WRITE | GROUP_WRITES,
    };
    is_ours && file.mode() & others == 0
}

impl Binary {
    fn open(dir: &Path, name: &str) -> io::Result<Self> {
        let path = dir.join(name);
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(file) => Ok(Self { path, file }),
            Err(error) => Err(about(&path, &error.into())),
        }
    }

    /// Returns a command that executes the open file, even if the path has another one now.
    fn command(&self) -> Command {
        let mut command = Command::new(sys::file::path_of(&self.file));
        command.arg0(&self.path);
        command
    }
}

fn about(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
impl Binaries {
    /// Returns programs that end immediately.
    pub(super) fn of_nothing() -> Self {
        let nothing = || Binary::open(Path::new("/bin"), "true").unwrap();
        Self {
            dir: PathBuf::from("/bin"),
            files: std::array::from_fn(|_| nothing()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn installation() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in NAMES {
            std::fs::copy("/bin/true", dir.path().join(name)).unwrap();
        }
        dir
    }

    #[test]
    fn the_opened_file_is_started() {
        let dir = installation();
        let binaries = Binaries::open(dir.path()).unwrap();
        for name in ["lasthop", "lasthop-switch"] {
            let path = dir.path().join(name);
            std::fs::remove_file(&path).unwrap();
            std::fs::copy("/bin/false", path).unwrap();
        }
        assert!(binaries.command(Kind::Switch).status().unwrap().success());
        let anew = Binaries::open(dir.path()).unwrap();
        assert!(!anew.command(Kind::Switch).status().unwrap().success());
    }

    #[test]
    fn a_missing_file_is_named() {
        let dir = installation();
        std::fs::remove_file(dir.path().join("lasthop-driver")).unwrap();
        let error = Binaries::open(dir.path()).err().unwrap().to_string();
        assert!(error.contains("lasthop-driver: No such file"), "{error}");
    }

    #[test]
    fn a_world_writable_file_is_not_trusted() {
        let dir = installation();
        assert!(Binaries::open(dir.path()).unwrap().are_trusted().is_ok());
        let path = dir.path().join("lasthop-control");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
        let refused = Binaries::open(dir.path()).unwrap().are_trusted();
        assert!(refused.unwrap_err().to_string().contains("lasthop-control"));
    }

    #[test]
    fn a_group_writable_file_is_trusted_if_the_group_is_root() {
        let dir = installation();
        let path = dir.path().join("lasthop-control");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o775)).unwrap();
        let own = rustix::process::getegid();
        if !own.is_root() {
            assert!(Binaries::open(dir.path()).unwrap().are_trusted().is_err());
            return;
        }
        assert!(Binaries::open(dir.path()).unwrap().are_trusted().is_ok());
        // As with the packaged unit: root, in the group of the VMMs.
        let group = rustix::process::Gid::from_raw(65534);
        std::os::unix::fs::chown(&path, None, Some(group.as_raw())).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The group is that of this thread only.
                rustix::thread::set_thread_res_gid(own, group, own).unwrap();
                assert!(Binaries::open(dir.path()).unwrap().are_trusted().is_err());
            });
        });
    }
}
