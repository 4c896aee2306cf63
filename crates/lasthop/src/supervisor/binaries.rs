//! The executable files of one installation.
//!
//! They are opened once. A package that is being upgraded puts new files under the old names, and a process that dies
//! meanwhile must not get a successor of another version than everything around it.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode, OFlags};

use super::child::Kind;
use super::replace::{Giving, PassedBinaries, Taking};

const SUPERVISOR: &str = "lasthop";

/// One of them.
struct Binary {
    path: PathBuf,
    file: OwnedFd,
}

/// See the module.
pub(super) struct Binaries {
    dir: PathBuf,
    supervisor: Binary,
    control: Binary,
    switch: Binary,
    driver: Binary,
}

impl Binaries {
    /// Those beside the file that this process was started from.
    ///
    /// # Errors
    /// One is missing.
    pub(super) fn own() -> io::Result<Self> {
        let own = std::env::current_exe()?;
        Self::open(own.parent().unwrap_or(Path::new("/")))
    }

    /// Those of a directory.
    ///
    /// # Errors
    /// One is missing.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let dir = dir.canonicalize().map_err(|e| about(dir, &e))?;
        Ok(Self {
            supervisor: Binary::open(&dir, SUPERVISOR)?,
            control: Binary::open(&dir, Kind::Control.binary())?,
            switch: Binary::open(&dir, Kind::Switch.binary())?,
            driver: Binary::open(&dir, Kind::Driver.binary())?,
            dir,
        })
    }

    /// For the supervisor that takes the place of this one.
    pub(super) fn pass<'a>(&'a self, giving: &mut Giving<'a>) -> PassedBinaries {
        PassedBinaries {
            dir: self.dir.display().to_string(),
            files: self.all().map(|binary| giving.give(binary.file.as_fd())),
        }
    }

    /// Those that the supervisor before this one has opened.
    ///
    /// # Errors
    /// One is not there.
    pub(super) fn take(from: PassedBinaries, fds: &mut Taking) -> Result<Self, String> {
        let dir = PathBuf::from(from.dir);
        let [supervisor, control, switch, driver] = from.files;
        let mut take = |place, name| {
            let path = dir.join(name);
            Ok::<_, String>(Binary {
                path,
                file: fds.take(place)?,
            })
        };
        Ok(Self {
            supervisor: take(supervisor, SUPERVISOR)?,
            control: take(control, Kind::Control.binary())?,
            switch: take(switch, Kind::Switch.binary())?,
            driver: take(driver, Kind::Driver.binary())?,
            dir,
        })
    }

    /// The file of the supervisor.
    pub(super) fn supervisor(&self) -> BorrowedFd<'_> {
        self.supervisor.file.as_fd()
    }

    fn all(&self) -> [&Binary; 4] {
        [&self.supervisor, &self.control, &self.switch, &self.driver]
    }

    /// Where they are, or were.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts a process of this kind.
    pub(super) fn command(&self, kind: Kind) -> Command {
        match kind {
            Kind::Control => &self.control,
            Kind::Switch => &self.switch,
            Kind::Driver => &self.driver,
        }
        .command()
    }

    /// Starts the command line.
    pub(super) fn command_line(&self) -> Command {
        self.supervisor.command()
    }

    /// Has the driver of other ones from now on.
    pub(super) fn take_driver_of(&mut self, others: Self) {
        self.driver = others.driver;
    }

    /// All of them with their names, the supervisor's first.
    pub(super) fn commands(&self) -> [(&'static str, Command); 4] {
        let files = [Kind::Control, Kind::Switch, Kind::Driver];
        let [control, switch, driver] = files.map(|kind| (kind.binary(), self.command(kind)));
        let supervisor = (SUPERVISOR, self.supervisor.command());
        [supervisor, control, switch, driver]
    }

    /// Whether only root, or who runs this, can have made them what they are.
    ///
    /// # Errors
    /// The first that somebody else could have made or changed.
    pub(super) fn are_trusted(&self) -> Result<(), String> {
        for binary in self.all() {
            let file = binary.file.try_clone().map(File::from);
            let metadata = file.and_then(|file| file.metadata());
            let metadata = metadata.map_err(|e| about(&binary.path, &e).to_string())?;
            if !is_trusted(&metadata) {
                let path = binary.path.display();
                return Err(format!(
                    "{path} belongs to another user, or others may write it"
                ));
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
    // Our own group is no better than any other: others are in it, as VMMs in that of the packaged unit.
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

    /// Executes the open file, whatever is at its path by now.
    fn command(&self) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        command.arg0(&self.path);
        command
    }
}

fn about(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
impl Binaries {
    /// Programs that end at once.
    pub(super) fn of_nothing() -> Self {
        let nothing = || Binary::open(Path::new("/bin"), "true").unwrap();
        Self {
            dir: PathBuf::from("/bin"),
            supervisor: nothing(),
            control: nothing(),
            switch: nothing(),
            driver: nothing(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn installation() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "lasthop",
            "lasthop-control",
            "lasthop-switch",
            "lasthop-driver",
        ] {
            std::fs::copy("/bin/true", dir.path().join(name)).unwrap();
        }
        dir
    }

    #[test]
    fn what_is_started_is_what_was_opened() {
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
    fn one_that_is_missing_is_named() {
        let dir = installation();
        std::fs::remove_file(dir.path().join("lasthop-driver")).unwrap();
        let error = Binaries::open(dir.path()).err().unwrap().to_string();
        assert!(error.contains("lasthop-driver: No such file"), "{error}");
    }

    #[test]
    fn what_everybody_may_write_is_not_trusted() {
        let dir = installation();
        assert_eq!(Binaries::open(dir.path()).unwrap().are_trusted(), Ok(()));
        let path = dir.path().join("lasthop-control");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
        let refused = Binaries::open(dir.path()).unwrap().are_trusted();
        assert!(refused.unwrap_err().contains("lasthop-control"));
    }

    #[test]
    fn what_a_group_may_write_is_trusted_if_it_is_roots() {
        let dir = installation();
        let path = dir.path().join("lasthop-control");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o775)).unwrap();
        let own = rustix::process::getegid();
        if !own.is_root() {
            assert!(Binaries::open(dir.path()).unwrap().are_trusted().is_err());
            return;
        }
        assert_eq!(Binaries::open(dir.path()).unwrap().are_trusted(), Ok(()));
        // As under the packaged unit: root, with the group of the VMMs.
        let group = rustix::process::Gid::from_raw(65534);
        std::os::unix::fs::chown(&path, None, Some(group.as_raw())).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Of this thread alone.
                rustix::thread::set_thread_res_gid(own, group, own).unwrap();
                assert!(Binaries::open(dir.path()).unwrap().are_trusted().is_err());
            });
        });
    }
}
