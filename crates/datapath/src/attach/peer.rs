//! Of which user a front end is.

use std::io;
use std::os::fd::AsFd;

use channel::peer::Peer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Those who were turned away because of it.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    last: Option<u32>,
}

impl Strangers {
    /// Why a connection is not taken, where only processes of one user may connect.
    pub(super) fn look(
        &mut self,
        socket: &impl AsFd,
        alone: Option<u32>,
    ) -> io::Result<Option<&'static str>> {
        let Some(alone) = alone else {
            return Ok(None);
        };
        let user = user_of(socket)?;
        if user == alone {
            return Ok(None);
        }
        self.last = Some(user);
        Ok(Some("a connection of another user than peer_user"))
    }

    /// The number of the last one's user.
    pub(super) fn last(&self) -> Option<u32> {
        self.last
    }

    /// The last one, for people.
    pub(super) fn words(&self) -> Option<String> {
        let user = self.last?;
        Some(format!(
            "a connection of user {user} was turned away, who is not its peer_user"
        ))
    }
}

/// The user that the process at the other end had when it connected.
pub(super) fn user_of(socket: &impl AsFd) -> io::Result<u32> {
    Ok(Peer::of(socket)?.user.as_raw())
}

/// Whether the other end is closed already.
pub(super) fn has_hung_up(socket: &impl AsFd) -> io::Result<bool> {
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec::default()))?;
    Ok(polled[0].revents().contains(PollFlags::HUP))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn only_the_one_user_is_no_stranger() {
        let (one, _other) = UnixStream::pair().unwrap();
        let own = rustix::process::geteuid().as_raw();
        let mut strangers = Strangers::default();
        assert_eq!(strangers.look(&one, None).unwrap(), None);
        assert_eq!(strangers.look(&one, Some(own)).unwrap(), None);
        assert_eq!((strangers.last(), strangers.words()), (None, None));
        assert!(strangers.look(&one, Some(own + 1)).unwrap().is_some());
        assert_eq!(strangers.last(), Some(own));
    }
}
