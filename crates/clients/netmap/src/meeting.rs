//! The meeting of a pipe's ends at control's socket, from the side of an end.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use pipes::{Answer, MAX_MESSAGE, Offer, Register};
use rustix::event::PollFlags;
use rustix::net::{RecvFlags, SendFlags};
use sys::foreign::{Author, ForeignFd};

/// Memory to offer: its description, and the descriptors of file, master and slave.
pub(crate) type MemoryOffer<'a> = (Offer, [BorrowedFd<'a>; 3]);

/// Result of a registration.
#[derive(Debug)]
pub(crate) enum MeetResult {
    /// The end has this memory; with the descriptors of file, master and slave.
    Joined(Offer, [OwnedFd; 3]),
    /// The reason of a refusal.
    Refused(String),
}

fn bad(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

fn receive(socket: BorrowedFd<'_>, until: Instant) -> io::Result<(Answer, Vec<OwnedFd>)> {
    let (mut bytes, mut fds) = ([0; MAX_MESSAGE], Vec::new());
    loop {
        let ready = sys::wait::ready(socket, PollFlags::IN, Some(until))?;
        if ready.is_empty() {
            return Err(bad("control does not answer"));
        }
        let into = (&mut fds, Author::new(None));
        let got = sys::descriptors::receive(socket, &mut bytes, into, RecvFlags::DONTWAIT)?;
        let Some(got) = got else {
            continue;
        };
        if got.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let answer = Answer::from_bytes(&bytes[..got.bytes]);
        // Control has checked them.
        let fds = fds.into_iter().map(ForeignFd::vouch).collect();
        return Ok((answer.map_err(|malformed| bad(malformed.0))?, fds));
    }
}

/// Registers an end over a fresh connection, and makes memory with `make` if that is requested. The
/// argument of `make` is the configured number of slots, or 0.
///
/// # Errors
/// Those of the socket, and of `make`; an answer that is none.
pub(crate) fn meet<'a>(
    socket: BorrowedFd<'_>,
    register: &Register,
    until: Instant,
    make: impl FnOnce(u16) -> io::Result<MemoryOffer<'a>>,
) -> io::Result<MeetResult> {
    let send = |bytes: &[u8], fds: &[BorrowedFd<'_>]| {
        sys::descriptors::send(socket, bytes, fds, SendFlags::empty()).map(drop)
    };
    send(&register.to_bytes(), &[])?;
    let mut make = Some(make);
    loop {
        match receive(socket, until)? {
            (Answer::Create(create), _) => {
                let make = make
                    .take()
                    .ok_or_else(|| bad("a second request for memory"))?;
                let (offer, fds) = make(create.slots)?;
                send(&offer.to_bytes(), &fds)?;
            }
            (Answer::Join(offer), fds) => {
                let fds = fds
                    .try_into()
                    .map_err(|_| bad("an answer without descriptors"))?;
                return Ok(MeetResult::Joined(offer, fds));
            }
            (Answer::Refused(reason), _) => return Ok(MeetResult::Refused(reason)),
        }
    }
}
