//! Descriptors that come from other processes.
//!
//! `close(2)` of such a descriptor may take as long as its author likes: the last one of a TCP
//! socket with `SO_LINGER` waits for its peer, also where the socket lies in the queue of a Unix
//! socket; each one of a file on FUSE waits for the file system's daemon; the last one of a memory
//! file frees its pages. So what comes from a socket is a [`ForeignFd`], whose drop hands it to the
//! [`closer`].

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::{Shutdown, shutdown};

use crate::closer::{self, Job};
use crate::peer;

/// The account of descriptors: one connection, with the user at its other end. Descriptors of one
/// author are closed one after the other, and wait for those of no other author.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Author {
    pub(crate) id: u64,
    pub(crate) user: Option<u32>,
    pub(crate) label: Option<u32>,
    is_ours: bool,
}

impl Author {
    /// Returns a new author: a connection of this user. All whose user is not known count as one.
    #[must_use]
    pub fn new(user: Option<u32>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            user,
            label: None,
            is_ours: false,
        }
    }

    /// Returns a new author: a connection to a process of ours. What it passes on is charged to
    /// those from whom it has it, so nothing bounds what is received from it.
    #[must_use]
    pub fn ours() -> Self {
        let is_ours = true;
        let new = Self::new(None);
        Self { is_ours, ..new }
    }

    /// Returns a new author: the connection of this Unix socket.
    #[must_use]
    pub fn of(socket: impl AsFd) -> Self {
        Self::new(peer::credentials(socket).ok().map(|peer| peer.uid))
    }

    /// Returns the author with a label for the watcher of [`closer::start`].
    #[must_use]
    pub fn labelled(self, label: u32) -> Self {
        let label = Some(label);
        Self { label, ..self }
    }

    /// Returns whether its user may have this connection beside the others: what these have sent is
    /// closed, or does not exceed the user's share of what may wait.
    #[must_use]
    pub fn may_connect(self) -> bool {
        closer::admits_connection(self)
    }

    /// Returns whether more may be received from it: what it has sent before is closed, or does not
    /// exceed its share of what may wait.
    #[must_use]
    pub fn may_send(self) -> bool {
        self.is_ours || closer::admits(self)
    }
}

/// A descriptor that another process sent, or one whose close also releases what others have sent:
/// a Unix socket. It is closed by the [`closer`], never by the thread that drops it.
///
/// It can be used as an [`OwnedFd`], and is not to be duplicated as one: see
/// [`ForeignFd::try_clone`].
pub struct ForeignFd {
    fd: ManuallyDrop<OwnedFd>,
    author: Author,
}

impl ForeignFd {
    /// Takes a descriptor of this author.
    #[must_use]
    pub fn new(fd: impl Into<OwnedFd>, author: Author) -> Self {
        Self {
            fd: ManuallyDrop::new(fd.into()),
            author,
        }
    }

    /// Takes a connected Unix socket; its connection is the author.
    #[must_use]
    pub fn connection(socket: impl Into<OwnedFd>) -> Self {
        let socket = socket.into();
        let author = Author::of(&socket);
        Self::new(socket, author)
    }

    /// Returns its author.
    #[must_use]
    pub fn author(&self) -> Author {
        self.author
    }

    /// Returns it as a descriptor of another author: the one from whom a process of ours has it.
    #[must_use]
    pub fn of(self, author: Author) -> Self {
        Self::new(self.vouch(), author)
    }

    /// Returns a descriptor that a process of ours has made, as its receiver knows: its close
    /// cannot wait.
    #[must_use]
    pub fn vouch(self) -> OwnedFd {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, and not used again.
        unsafe { ManuallyDrop::take(&mut this.fd) }
    }

    /// Returns a second descriptor of the same file, which is foreign as well.
    ///
    /// # Errors
    /// The process can have no more.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self::new(self.fd.try_clone()?, self.author))
    }

    /// Ends the connection of a Unix socket for its peer, even if other processes have it open.
    /// Nothing more can be sent to it. What lies in it is released by the closer before the close:
    /// a socket that is closed with unread bytes resets the connection, and its peer gets that
    /// error before the replies that it has not read.
    pub fn hang_up(self) {
        // The connection may have ended already.
        let _ = shutdown(&*self, Shutdown::Both);
        let author = self.author;
        closer::hand_over(author, Job::HangUp(self.vouch()));
    }
}

impl Drop for ForeignFd {
    fn drop(&mut self) {
        // SAFETY: the field is not used again: this is its drop.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        closer::hand_over(self.author, Job::Close(fd));
    }
}

/// A connected socket, whose connection is the author.
impl From<UnixStream> for ForeignFd {
    fn from(socket: UnixStream) -> Self {
        Self::connection(socket)
    }
}

/// A listening socket, whose close releases what lies in connections that were not accepted.
impl From<UnixListener> for ForeignFd {
    fn from(socket: UnixListener) -> Self {
        Self::new(socket, Author::new(None))
    }
}

/// The author is unknown.
impl From<OwnedFd> for ForeignFd {
    fn from(fd: OwnedFd) -> Self {
        Self::new(fd, Author::new(None))
    }
}

impl Deref for ForeignFd {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.fd
    }
}

impl AsFd for ForeignFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for ForeignFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl fmt::Debug for ForeignFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fd, author } = self;
        f.debug_struct("ForeignFd")
            .field("fd", &fd.as_raw_fd())
            .field("author", author)
            .finish()
    }
}
