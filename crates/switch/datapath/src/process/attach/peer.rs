//! The user of a front end.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use ipc::peer::Peer;
use rustix::event::PollFlags;

/// The check of `peer_user`, with the last user who was rejected.
#[derive(Debug, Default)]
pub(super) struct PeerCheck {
    pub(super) last_rejected: Option<u32>,
}

impl PeerCheck {
    /// Returns the reason to reject a connection, where only processes of one user may connect.
    pub(super) fn check(
        &mut self,
        socket: &impl AsFd,
        required: Option<u32>,
    ) -> io::Result<Option<&'static str>> {
        let Some(required) = required else {
            return Ok(None);
        };
        let user = user_of(socket)?;
        if user == required {
            return Ok(None);
        }
        self.last_rejected = Some(user);
        Ok(Some("its user is not peer_user"))
    }

    /// Returns the last rejection as a reason for operators.
    pub(super) fn reason(&self) -> Option<String> {
        let user = self.last_rejected?;
        Some(format!(
            "rejected a connection of user {user}, which is not peer_user"
        ))
    }
}

/// Returns the user that the peer process had when it connected.
pub(super) fn user_of(socket: &impl AsFd) -> io::Result<u32> {
    Ok(Peer::of(socket)?.user.as_raw())
}

/// Returns whether the peer has closed the connection already.
pub(super) fn has_hung_up(socket: &impl AsFd) -> io::Result<bool> {
    let state = sys::wait::ready(socket, PollFlags::empty(), Some(Instant::now()))?;
    Ok(state.contains(PollFlags::HUP))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn only_connections_of_the_required_user_are_accepted() {
        let (one, _other) = UnixStream::pair().unwrap();
        let own = rustix::process::geteuid().as_raw();
        let mut peer_check = PeerCheck::default();
        assert_eq!(peer_check.check(&one, None).unwrap(), None);
        assert_eq!(peer_check.check(&one, Some(own)).unwrap(), None);
        assert_eq!(
            (peer_check.last_rejected, peer_check.reason()),
            (None, None)
        );
        assert!(peer_check.check(&one, Some(own + 1)).unwrap().is_some());
        assert_eq!(peer_check.last_rejected, Some(own));
    }
}
