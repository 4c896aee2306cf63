//! Sockets whose owner, group and mode are asked for.
//!
//! A new one is for nobody until it is for whom it is to be, and so is one that changes: at no moment may more connect than before or
//! after. The file is that of the socket itself, whatever its path leads to by then. All this takes `CAP_CHOWN` and nothing else: what
//! is changed is ours meanwhile.

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use channel::owners::{NoSocket, SocketKey, SocketOwner};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use super::{Bound, EVERYBODY, Name, Sockets, by_descriptor};
use crate::supervisor::names::{self, Named};

/// `linux/un.h`: a descriptor (`O_PATH`) of the file that a socket is bound to. It takes `CAP_NET_ADMIN`.
const SIOCUNIXFILE: libc::Ioctl = 0x89e0;

/// What sockets are like of which nothing is asked.
#[derive(Clone, Copy)]
pub(super) struct Usual {
    user: Uid,
    group: Gid,
    mode: Mode,
}

impl Usual {
    /// What this process would make.
    pub(super) fn now() -> Self {
        // It cannot be read without being changed; for a moment, it takes away more.
        let umask = rustix::process::umask(Mode::from_raw_mode(0o077));
        rustix::process::umask(umask);
        Self {
            user: rustix::process::geteuid(),
            group: rustix::process::getegid(),
            mode: EVERYBODY - umask,
        }
    }
}

/// What a socket's file is to be like.
struct Wanted {
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

impl Sockets {
    /// A listening socket as [`Sockets::listen`] has it, which belongs to whom it is asked for, and the number of the only user who may
    /// connect, if there is one. One that is there is changed; who is connected stays so.
    ///
    /// # Errors
    /// What cannot be had. There is no new socket then; to one that was there, nobody new may connect if it could not be changed.
    pub(in crate::supervisor) fn listen_as(
        &mut self,
        path: &str,
        owner: &SocketOwner,
    ) -> Result<(OwnedFd, Option<u32>), NoSocket> {
        let known = self.listening.get(path);
        let asked = known.and_then(|bound| bound.asked.as_ref());
        if let Some((_, peer)) = asked.filter(|(asked, _)| asked == owner) {
            // Names are not looked up again: who they were may be gone.
            let peer = *peer;
            let socket = self.listen(path).map_err(|e| no(SocketKey::Socket, e))?;
            return Ok((socket, peer));
        }
        let named = names::look_up(owner)?;
        let is_new = known.is_none();
        let socket = match is_new && *owner != SocketOwner::default() {
            true => self.listen_for_nobody(path),
            false => self.listen(path),
        };
        let socket = socket.map_err(|e| no(SocketKey::Socket, e))?;
        let done = match self.listening.get_mut(path) {
            Some(bound) => {
                bound.asked = None;
                bound.give(owner, &named, self.usual)
            }
            None => Ok(()),
        };
        if let Err(error) = done {
            if is_new && let Some(bound) = self.listening.remove(path) {
                bound.remove();
            }
            return Err(error);
        }
        if let Some(bound) = self.listening.get_mut(path) {
            bound.asked = Some((owner.clone(), named.peer));
        }
        Ok((socket, named.peer))
    }

    fn listen_for_nobody(&mut self, path: &str) -> io::Result<OwnedFd> {
        let full = self.paths.to_bind(path)?;
        self.listen_for(path, full, Mode::empty())
    }
}

impl Bound {
    /// Has the socket's file belong to whom it is to.
    fn give(&self, owner: &SocketOwner, named: &Named, usual: Usual) -> Result<(), NoSocket> {
        let Some(name) = &self.file else {
            return Ok(());
        };
        let about = |error: io::Error| no(SocketKey::Socket, error);
        let file = match self.open_file(name) {
            // Nobody finds it: there is nobody to keep away.
            Err(Errno::NOENT) => return Ok(()),
            file => file.map_err(|error| about(error.into()))?,
        };
        let wanted = Wanted {
            user: named.user.unwrap_or(usual.user),
            group: named.group.unwrap_or_else(|| usual_group(name, usual)),
            mode: owner
                .mode
                .map_or(usual.mode, |mode| Mode::from_raw_mode(mode.into())),
        };
        hand(&file, usual.user, &wanted).map_err(|(key, error)| {
            let path = name.path.display();
            no(key, format!("{path}: {}", io::Error::from(error)))
        })
    }

    /// The socket's own file, by a descriptor that stands for it alone (`O_PATH`).
    fn open_file(&self, name: &Name) -> Result<OwnedFd, Errno> {
        // SAFETY: the call takes no memory of ours.
        let file = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCUNIXFILE, 0) };
        if file >= 0 {
            // SAFETY: it is a new descriptor, which nobody else has.
            return Ok(unsafe { OwnedFd::from_raw_fd(file) });
        }
        // Without the right to ask, it is what was made under that name.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&name.path, flags, Mode::empty())?;
        let is = rustix::fs::fstat(&file)?;
        let is_socket = FileType::from_raw_mode(is.st_mode) == FileType::Socket;
        match is_socket && name.id == Some((is.st_dev, is.st_ino)) {
            true => Ok(file),
            false => Err(Errno::NOENT),
        }
    }
}

/// The group that the system gives to a new file there (inode(7), set-group-ID).
fn usual_group(name: &Name, usual: Usual) -> Gid {
    let dir = name
        .path
        .parent()
        .and_then(|dir| rustix::fs::stat(dir).ok());
    let passed_on = dir.filter(|dir| Mode::from_raw_mode(dir.st_mode).contains(Mode::SGID));
    passed_on.map_or(usual.group, |dir| Gid::from_raw(dir.st_gid))
}

/// Gives a file away; `own` is our user. What fails, leaves it with us and for nobody.
fn hand(file: &OwnedFd, own: Uid, wanted: &Wanted) -> Result<(), (SocketKey, Errno)> {
    let user = |error| (SocketKey::User, error);
    let mode = |error| (SocketKey::Mode, error);
    let have: Stat = rustix::fs::fstat(file).map_err(mode)?;
    let bits = Mode::from_raw_mode(have.st_mode);
    let (has_user, has_group) = (Uid::from_raw(have.st_uid), Gid::from_raw(have.st_gid));
    if (has_user, has_group, bits) == (wanted.user, wanted.group, wanted.mode) {
        return Ok(());
    }
    if has_user != own {
        chown(file, Some(own), None).map_err(user)?;
    }
    chmod(file, Mode::empty()).map_err(mode)?;
    if has_group != wanted.group {
        chown(file, None, Some(wanted.group)).map_err(|error| (SocketKey::Group, error))?;
    }
    chmod(file, wanted.mode).map_err(mode)?;
    if wanted.user != own {
        chown(file, Some(wanted.user), None).map_err(user)?;
    }
    Ok(())
}

fn chown(file: &OwnedFd, user: Option<Uid>, group: Option<Gid>) -> Result<(), Errno> {
    rustix::fs::chownat(file.as_fd(), "", user, group, AtFlags::EMPTY_PATH)
}

fn chmod(file: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    rustix::fs::chmod(by_descriptor(file), mode)
}
