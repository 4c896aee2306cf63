//! Credentials of the process at the other end of a connection.

use std::io;
use std::os::fd::AsFd;

use rustix::process::{Pid, Uid};

/// Credentials of the process at the other end when it connected, or began to listen
/// (`SO_PEERCRED`, unix(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its process id; none where it is in a PID namespace that is not visible here.
    pub process: Option<Pid>,
    /// Its effective user.
    pub user: Uid,
}

impl Peer {
    /// Reads the credentials from the system.
    ///
    /// # Errors
    /// When the socket is not in the Unix domain.
    pub fn of(socket: &impl AsFd) -> io::Result<Self> {
        let peer = sys::peer::credentials(socket)?;
        Ok(Self {
            process: Pid::from_raw(peer.pid),
            user: Uid::from_raw(peer.uid),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let own = Peer {
            process: Some(rustix::process::getpid()),
            user: rustix::process::geteuid(),
        };
        assert_eq!(Peer::of(&one).unwrap(), own);
    }

    #[test]
    fn nobody_is_an_error_and_not_root() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(Peer::of(&socket).is_err());
    }
}
