//! Administration socket of the supervisor; see [`crate::admin`].
//!
//! A client cannot block the supervisor: reads and writes do not wait, and the rest of an answer
//! that does not fit is lost.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use ipc::peer::Peer;
use ipc::timeouts::ADMIN_REQUEST;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use sys::descriptors;
use sys::foreign::ForeignFd;

use ipc::admin::{Answer, REQUEST_MAX, Request};

/// Reason why a client or its request is refused.
#[derive(Debug, thiserror::Error)]
enum ClientError {
    #[error("incomplete request")]
    Incomplete,
    #[error("request too long")]
    TooLong,
    #[error("{0}")]
    Malformed(#[from] serde_json::Error),
    #[error("{0}")]
    Socket(#[from] io::Error),
    #[error("permission denied: only root and Lasthop's user")]
    OtherUser,
    #[error("permission denied for processes of Lasthop")]
    OwnProcess,
    #[error("too many clients")]
    TooMany,
}

/// Maximum number of clients without a complete request.
const MAX_PENDING: usize = 8;

/// Client that waits for an answer.
#[derive(Debug)]
pub(super) struct Client(ForeignFd);

impl Client {
    /// Returns a client whose request the previous supervisor has received.
    pub(super) fn of(socket: impl Into<ForeignFd>) -> Self {
        Self(socket.into())
    }

    /// Sends an answer, which is lost if the client does not read.
    pub(super) fn send(&self, answer: &Answer) {
        let Ok(mut line) = serde_json::to_vec(answer) else {
            return;
        };
        line.push(b'\n');
        let _ = descriptors::send(&self.0, &line, &[], SendFlags::DONTWAIT);
    }

    fn refuse(&self, error: &ClientError) {
        self.send(&Answer::Refused(error.to_string()));
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Client without a complete request.
struct PendingRequest {
    client: Client,
    line: Vec<u8>,
    since: Instant,
}

impl PendingRequest {
    /// Reads the request; `None` while it is incomplete.
    fn read(&mut self) -> Result<Option<Request>, ClientError> {
        let mut buffer = [0; 1024];
        loop {
            let (socket, mut unwanted) = (&self.client.0, Vec::new());
            let into = (&mut unwanted, socket.author());
            match descriptors::receive(socket, &mut buffer, into, RecvFlags::DONTWAIT) {
                Ok(None) => return Ok(None),
                Ok(Some(got)) if got.bytes == 0 => return Err(ClientError::Incomplete),
                Ok(Some(got)) => self.line.extend(&buffer[..got.bytes]),
                Err(error) => return Err(ClientError::Socket(error.into())),
            }
            if let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                return Ok(Some(serde_json::from_slice(&self.line[..end])?));
            }
            if self.line.len() > REQUEST_MAX {
                return Err(ClientError::TooLong);
            }
        }
    }
}

/// Listening socket and clients.
pub(super) struct Admin {
    listener: ForeignFd,
    pending: Vec<PendingRequest>,
    /// Process id of the supervisor. A connection with it as its peer was made for another process,
    /// because the supervisor does not connect to itself.
    own: Pid,
}

impl Admin {
    /// Returns the server of a listening socket.
    ///
    /// # Errors
    /// Failed system call.
    pub(super) fn new(socket: impl Into<ForeignFd>) -> io::Result<Self> {
        let listener = socket.into();
        rustix::io::ioctl_fionbio(&listener, true)?;
        Ok(Self {
            listener,
            pending: Vec::new(),
            own: rustix::process::getpid(),
        })
    }

    /// Returns the descriptors to poll.
    pub(super) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let pending = self.pending.iter().map(|pending| pending.client.0.as_fd());
        std::iter::once(self.listener.as_fd()).chain(pending)
    }

    /// Returns the next time at which a request times out.
    pub(super) fn due(&self) -> Option<Instant> {
        self.pending
            .iter()
            .map(|pending| pending.since + ADMIN_REQUEST)
            .min()
    }

    /// Returns the complete requests.
    pub(super) fn receive(&mut self) -> Vec<(Client, Request)> {
        self.accept();
        let mut requests = Vec::new();
        for mut pending in std::mem::take(&mut self.pending) {
            match pending.read() {
                Ok(Some(request)) => requests.push((pending.client, request)),
                Ok(None) if pending.since.elapsed() < ADMIN_REQUEST => self.pending.push(pending),
                Ok(None) => {}
                Err(error) => pending.client.refuse(&error),
            }
        }
        requests
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Ok(socket) = rustix::net::accept_with(&self.listener, flags) {
            let client = Client(ForeignFd::connection(socket));
            match check_peer(&client.0, self.own) {
                Err(error) => client.refuse(&error),
                Ok(()) if self.pending.len() >= MAX_PENDING => {
                    client.refuse(&ClientError::TooMany);
                }
                Ok(()) => self.pending.push(PendingRequest {
                    client,
                    line: Vec::new(),
                    since: Instant::now(),
                }),
            }
        }
    }
}

/// Checks that the peer is root or the supervisor's user, and neither the supervisor nor one of its
/// children: a compromised child must not administrate Lasthop. The mode of the socket has the same
/// effect for users, but this check does not depend on it.
fn check_peer(socket: &ForeignFd, supervisor: Pid) -> Result<(), ClientError> {
    let peer = Peer::of(socket)?;
    let own = rustix::process::geteuid();
    if !peer.user.is_root() && peer.user != own {
        return Err(ClientError::OtherUser);
    }
    // Children are in a PID namespace that the supervisor sees.
    let ours = |process| process == supervisor || is_our_child(process);
    if peer.process.is_some_and(ours) {
        return Err(ClientError::OwnProcess);
    }
    Ok(())
}

/// Returns whether a process is a child of this one. Children cannot start processes (system call
/// filters of `lasthop-control`, `lasthop-switch` and `lasthop-driver`), and waitid(2) works even
/// where `/proc` hides other processes.
fn is_our_child(process: Pid) -> bool {
    // The call neither waits nor reaps.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::Pid(process), options), Err(Errno::CHILD))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    fn admin() -> (tempfile::TempDir, Admin) {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let mut admin = Admin::new(OwnedFd::from(listener)).unwrap();
        // The tests connect as if from another process.
        admin.own = Pid::INIT;
        (dir, admin)
    }

    fn request(dir: &tempfile::TempDir, bytes: &[u8]) -> UnixStream {
        let mut stream = UnixStream::connect(dir.path().join("s")).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    }

    fn answer(stream: UnixStream) -> Answer {
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn a_request_may_come_in_pieces() {
        let (dir, mut admin) = admin();
        let mut stream = request(&dir, b"{\"upgrade\":{\"to\":\"/a\"");
        assert!(admin.receive().is_empty());
        stream.write_all(b"}}\n").unwrap();
        let [(client, request)] = <[_; 1]>::try_from(admin.receive()).unwrap();
        let to = Some("/a".into());
        assert_eq!(request, Request::Upgrade { to });
        client.send(&Answer::Refused("no".into()));
        drop(client);
        assert_eq!(answer(stream), Answer::Refused("no".into()));
    }

    #[test]
    fn a_later_version_may_say_more() {
        let (dir, mut admin) = admin();
        let _stream = request(&dir, b"{\"upgrade\":{\"more\":1}}\n");
        let [(_, request)] = <[_; 1]>::try_from(admin.receive()).unwrap();
        assert_eq!(request, Request::Upgrade { to: None });
    }

    #[test]
    fn malformed_requests_are_refused() {
        let (dir, mut admin) = admin();
        let long = vec![b' '; REQUEST_MAX + 2000];
        for wrong in [&b"{}\n"[..], b"\n", b"{\"upgrade\":{\"to\":5}}\n", &long] {
            let stream = request(&dir, wrong);
            assert!(admin.receive().is_empty());
            assert!(matches!(answer(stream), Answer::Refused(_)), "{wrong:?}");
        }
        assert!(admin.pending.is_empty());
    }

    #[test]
    fn children_are_recognized() {
        let pid = |id: u32| Pid::from_raw(id as i32).unwrap();
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        assert!(is_our_child(pid(child.id())));
        assert!(!is_our_child(pid(std::process::id())));
        assert!(!is_our_child(pid(std::os::unix::process::parent_id())));
        drop(child.stdin.take());
        while child.try_wait().unwrap().is_none() {
            assert!(is_our_child(pid(child.id())), "also when it has ended");
        }
        assert!(!is_our_child(pid(child.id())));
    }

    #[test]
    fn requests_of_this_process_are_refused() {
        let (dir, mut admin) = admin();
        admin.own = rustix::process::getpid();
        let stream = request(&dir, b"{\"upgrade\":{}}\n");
        assert!(admin.receive().is_empty());
        assert!(matches!(answer(stream), Answer::Refused(_)));
    }

    #[test]
    fn excess_clients_are_refused() {
        let (dir, mut admin) = admin();
        let many: Vec<_> = (0..=MAX_PENDING).map(|_| request(&dir, b"{")).collect();
        assert!(admin.receive().is_empty());
        assert_eq!(admin.pending.len(), MAX_PENDING);
        let last = many.into_iter().next_back().unwrap();
        assert!(matches!(answer(last), Answer::Refused(_)));
    }
}
