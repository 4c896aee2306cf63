//! Sockets with a configured owner, group and mode.
//!
//! A new socket has no permissions until it has its owner, and so has one that changes: at no
//! moment may other users connect than before or after. The file is that of the socket itself, even
//! if its path leads elsewhere meanwhile. This takes `CAP_CHOWN` only, because the file is ours
//! meanwhile.

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use ipc::owners::{NoSocket, SocketKey, SocketOwner};
use ipc::sockets::SocketType;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use sys::foreign::ForeignFd;
use sys::limit;

use super::{ANY_USER, Kind, Listener, Name, Sockets, by_descriptor};
use ipc::owners::{self, OwnerIds};

/// ioctl of `linux/un.h`: returns a descriptor (`O_PATH`) of the file that a socket is bound to. It
/// takes `CAP_NET_ADMIN`.
const SIOCUNIXFILE: libc::Ioctl = 0x89e0;

/// Owner of sockets without a configured one.
#[derive(Clone, Copy)]
pub(super) struct DefaultOwner {
    user: Uid,
    group: Gid,
    mode: Mode,
}

impl DefaultOwner {
    /// Returns the owner of files of this process.
    pub(super) fn now() -> Self {
        // The umask cannot be read without a change; the temporary one is stricter.
        let umask = rustix::process::umask(Mode::from_raw_mode(0o077));
        rustix::process::umask(umask);
        Self {
            user: rustix::process::geteuid(),
            group: rustix::process::getegid(),
            mode: ANY_USER - umask,
        }
    }
}

/// Desired owner of a socket's file.
struct DesiredOwner {
    user: Uid,
    group: Gid,
    mode: Mode,
}

fn no(key: SocketKey, what: impl Display) -> NoSocket {
    NoSocket {
        key,
        expected: String::new(),
        found: what.to_string(),
    }
}

fn no_socket(error: io::Error) -> NoSocket {
    no(SocketKey::Socket, limit::in_words(&error))
}

impl Sockets {
    /// Returns a listening socket as [`Sockets::listen`] does, of this type and with this owner,
    /// and the number of the only user that may connect, if any. An existing socket of this type is
    /// changed; its connections stay.
    ///
    /// # Errors
    /// The setting that cannot be applied. There is no new socket then; an existing one that could
    /// not be changed accepts no new users.
    pub(crate) fn listen_as(
        &mut self,
        path: &str,
        owner: &SocketOwner,
        of: SocketType,
    ) -> Result<(ForeignFd, Option<u32>), NoSocket> {
        if self
            .listening
            .get(path)
            .is_some_and(|listener| !listener.is(of))
        {
            self.unlisten(path).map_err(|e| no(SocketKey::Socket, e))?;
        }
        let known = self.listening.get(path);
        if let Some(listener) = known
            && let Some((_, peer)) = listener.requested.as_ref().filter(|(of, _)| of == owner)
        {
            // Names are not looked up again: they may have been removed. Nor is the path.
            let socket = listener.socket.try_clone().map_err(no_socket)?;
            return Ok((socket, *peer));
        }
        let named = owners::look_up(owner)?;
        let is_new = known.is_none();
        let mode = match *owner == SocketOwner::default() {
            true => ANY_USER,
            false => Mode::empty(),
        };
        let socket = match is_new {
            true => self.listen_with(path, mode, of),
            false => self.listen(path),
        };
        let socket = socket.map_err(no_socket)?;
        let done = match self.listening.get_mut(path) {
            Some(listener) => {
                listener.requested = None;
                listener.set_owner(owner, &named, self.default_owner)
            }
            None => Ok(()),
        };
        if let Err(error) = done {
            if is_new && let Some(listener) = self.listening.remove(path) {
                listener.remove();
            }
            return Err(error);
        }
        if let Some(listener) = self.listening.get_mut(path) {
            listener.requested = Some((owner.clone(), named.peer));
        }
        Ok((socket, named.peer))
    }

    fn listen_with(&mut self, path: &str, mode: Mode, of: SocketType) -> io::Result<ForeignFd> {
        let full = self.paths.to_bind(path)?;
        let kind = Kind {
            of,
            mode,
            rights: true,
        };
        self.listen_for(path, full, kind)
    }
}

impl Listener {
    /// Sets the owner of the socket's file.
    fn set_owner(
        &self,
        owner: &SocketOwner,
        named: &OwnerIds,
        default_owner: DefaultOwner,
    ) -> Result<(), NoSocket> {
        let Some(name) = &self.file else {
            return Ok(());
        };
        let about = no_socket;
        let file = match self.open_file(name) {
            // Without a file, no process can connect.
            Err(Errno::NOENT) => return Ok(()),
            file => file.map_err(|error| about(error.into()))?,
        };
        let desired = DesiredOwner {
            user: named.user.unwrap_or(default_owner.user),
            group: named
                .group
                .unwrap_or_else(|| default_group(name, default_owner)),
            mode: owner
                .mode
                .map_or(default_owner.mode, |mode| Mode::from_raw_mode(mode.into())),
        };
        set_file_owner(&file, default_owner.user, &desired).map_err(|(key, error)| {
            let path = name.path.display();
            no(key, format!("{path}: {}", io::Error::from(error)))
        })
    }

    /// Opens the socket's own file without access to its contents (`O_PATH`).
    fn open_file(&self, name: &Name) -> Result<OwnedFd, Errno> {
        // SAFETY: the call takes no memory of ours.
        let file = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCUNIXFILE, 0) };
        if file >= 0 {
            // SAFETY: it is a new descriptor without another owner.
            return Ok(unsafe { OwnedFd::from_raw_fd(file) });
        }
        // Without the right to the ioctl, the file is found by its path and inode.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&name.path, flags, Mode::empty())?;
        let is = rustix::fs::fstat(&file)?;
        let is_socket = FileType::from_raw_mode(is.st_mode) == FileType::Socket;
        if is_socket && name.id == Some((is.st_dev, is.st_ino)) {
            Ok(file)
        } else {
            Err(Errno::NOENT)
        }
    }
}

/// Returns the group that the system gives to a new file there (inode(7), set-group-ID).
fn default_group(name: &Name, default_owner: DefaultOwner) -> Gid {
    let dir = name
        .path
        .parent()
        .and_then(|dir| rustix::fs::stat(dir).ok());
    let passed_on = dir.filter(|dir| Mode::from_raw_mode(dir.st_mode).contains(Mode::SGID));
    passed_on.map_or(default_owner.group, |dir| Gid::from_raw(dir.st_gid))
}

/// Sets owner, group and mode of a file; `own` is our user. After a failure the file is ours and
/// without permissions.
fn set_file_owner(
    file: &OwnedFd,
    own: Uid,
    desired: &DesiredOwner,
) -> Result<(), (SocketKey, Errno)> {
    let user = |error| (SocketKey::User, error);
    let mode = |error| (SocketKey::Mode, error);
    let have: Stat = rustix::fs::fstat(file).map_err(mode)?;
    let bits = Mode::from_raw_mode(have.st_mode);
    let (has_user, has_group) = (Uid::from_raw(have.st_uid), Gid::from_raw(have.st_gid));
    if (has_user, has_group, bits) == (desired.user, desired.group, desired.mode) {
        return Ok(());
    }
    if has_user != own {
        chown(file, Some(own), None).map_err(user)?;
    }
    chmod(file, Mode::empty()).map_err(mode)?;
    if has_group != desired.group {
        chown(file, None, Some(desired.group)).map_err(|error| (SocketKey::Group, error))?;
    }
    chmod(file, desired.mode).map_err(mode)?;
    if desired.user != own {
        chown(file, Some(desired.user), None).map_err(user)?;
    }
    Ok(())
}

fn chown(file: &OwnedFd, user: Option<Uid>, group: Option<Gid>) -> Result<(), Errno> {
    rustix::fs::chownat(file.as_fd(), "", user, group, AtFlags::EMPTY_PATH)
}

fn chmod(file: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    rustix::fs::chmod(by_descriptor(file), mode)
}
