//! The front end as the listening side ("client" ports of a switch).

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{FrontEnd, FrontError};

/// A socket on which back ends call. The file goes away with it.
#[derive(Debug)]
pub struct FrontListener {
    socket: UnixListener,
    path: PathBuf,
}

impl FrontListener {
    /// Listens on `path`, replacing what is left of an earlier listener.
    ///
    /// # Errors
    /// When the path cannot be bound.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let _ = std::fs::remove_file(path);
        Ok(Self {
            socket: UnixListener::bind(path)?,
            path: path.to_owned(),
        })
    }

    /// Accepts the next connection; `timeout` is for the connection, and for each reply afterwards.
    ///
    /// # Errors
    /// [`FrontError::Timeout`] without a connection.
    pub fn accept(&self, timeout: Duration) -> Result<FrontEnd, FrontError> {
        let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)];
        let limit = Timespec::try_from(timeout).map_err(io::Error::other)?;
        if rustix::io::retry_on_intr(|| poll(&mut fds, Some(&limit))).map_err(io::Error::from)? == 0
        {
            return Err(FrontError::Timeout(0));
        }
        FrontEnd::over(self.socket.accept()?.0, timeout)
    }
}

impl Drop for FrontListener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
