//! The reader of a command's output. A command whose reader is gone would only notice with its
//! next line, which may never come: a thread waits for the reader's end instead.
//!
//! | output | its reader is gone when |
//! |---|---|
//! | pipe, FIFO | no process has its other end open |
//! | terminal | its master is closed |
//! | unix socket | the peer is closed |
//! | TCP socket | the peer has sent its end (FIN): whether it still reads cannot be seen |
//! | file, device | never |

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;

use crate::Failure;

/// Ends this process as soon as `output` has no reader any more, with the exit status of `failure`,
/// whatever the process does or waits for then. Nothing is cleaned up: only for commands that
/// change nothing.
///
/// # Errors
/// There is neither a descriptor nor a thread left for it.
pub fn end_without_reader(output: impl AsFd, failure: Failure) -> Result<(), Failure> {
    let cannot = |error: io::Error| Failure::Failed(format!("cannot watch the output: {error}"));
    let output = output.as_fd().try_clone_to_owned().map_err(cannot)?;
    let wait = move || {
        // An error of poll(2) is one of memory: writing still reports that the reader is gone.
        if sys::wait::ready(&output, end_of(&output), None).is_ok() {
            failure.exit();
        }
    };
    let thread = std::thread::Builder::new().name("reader".into());
    sys::thread::start(thread, wait).map(drop).map_err(cannot)
}

/// Returns whether `output` has a reader. Without one a failure to write is none of the command:
/// a pipe reports `EPIPE`, a terminal `EIO`, a connection `ECONNRESET`.
#[must_use]
pub fn has_reader(output: impl AsFd) -> bool {
    let now = Some(Instant::now());
    sys::wait::ready(&output, end_of(&output), now).is_ok_and(|ends| ends.is_empty())
}

/// Returns the events of poll(2) beside `ERR` and `HUP` that are the reader's end.
fn end_of(output: impl AsFd) -> PollFlags {
    match socket_domain(output) {
        Ok(AddressFamily::INET | AddressFamily::INET6) => PollFlags::RDHUP,
        _ => PollFlags::empty(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    /// Returns whether the reader of an output is gone within a time.
    fn is_gone_within(limit: Duration, output: impl AsFd) -> bool {
        let until = Instant::now() + limit;
        let ready = sys::wait::ready(&output, end_of(&output), Some(until)).unwrap();
        !ready.is_empty()
    }

    fn is_gone(output: impl AsFd) -> bool {
        is_gone_within(Duration::from_secs(30), output)
    }

    fn is_there(output: impl AsFd) -> bool {
        !is_gone_within(Duration::from_millis(1), output)
    }

    #[test]
    fn a_reader_is_gone_when_its_end_is_closed() {
        let (read, write) = io::pipe().unwrap();
        assert!(is_there(&write));
        drop(read);
        assert!(is_gone(&write));
        let (one, other) = UnixStream::pair().unwrap();
        // A peer that writes no more may still read.
        other.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(is_there(&one));
        drop(other);
        assert!(is_gone(&one));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert!(is_there(&accepted));
        drop(peer);
        assert!(is_gone(&accepted));
    }

    #[test]
    fn files_and_devices_need_no_reader() {
        assert!(is_there(tempfile::tempfile().unwrap()));
        for device in ["/dev/null", "/dev/full"] {
            let device = File::options().write(true).open(device).unwrap();
            assert!(is_there(device));
        }
    }
}
