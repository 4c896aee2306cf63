//! The socket on which an administrator speaks to the supervisor itself; see [`crate::admin`].
//!
//! Nobody on it can hold the supervisor up: it reads what is there, and what it cannot write at once is lost.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use channel::peer::Peer;
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::admin::{Answer, REQUEST_MAX, Request};

/// Clients whose request has not come yet.
const CLIENTS: usize = 8;
/// How long one may take to send it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Somebody who waits for an answer.
#[derive(Debug)]
pub(super) struct Client(UnixStream);

impl Client {
    /// One that the supervisor before this one has heard.
    pub(super) fn of(socket: OwnedFd) -> Self {
        Self(socket.into())
    }

    /// Says something to it. One that does not listen hears nothing.
    pub(super) fn say(&self, answer: &Answer) {
        let Ok(mut line) = serde_json::to_vec(answer) else {
            return;
        };
        line.push(b'\n');
        let _ = (&self.0).write_all(&line);
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A client whose request has not come yet.
struct Asking {
    client: Client,
    line: Vec<u8>,
    since: Instant,
}

impl Asking {
    /// The request, when it is whole; an error ends it.
    fn read(&mut self) -> Result<Option<Request>, String> {
        let mut buffer = [0; 1024];
        loop {
            match self.client.0.read(&mut buffer) {
                Ok(0) => return Err("an unfinished request".into()),
                Ok(n) => self.line.extend(&buffer[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e.to_string()),
            }
            if let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                let request = serde_json::from_slice(&self.line[..end]);
                return request.map(Some).map_err(|e| e.to_string());
            }
            if self.line.len() > REQUEST_MAX {
                return Err("the request is too long".into());
            }
        }
    }
}

/// See the module.
pub(super) struct Admin {
    listener: UnixListener,
    asking: Vec<Asking>,
    /// This process. It does not ask itself: a connection that has its name was made for somebody who could not.
    own: Pid,
}

impl Admin {
    /// Over a listening socket.
    ///
    /// # Errors
    /// The system's refusal.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        let listener = UnixListener::from(socket);
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            asking: Vec::new(),
            own: rustix::process::getpid(),
        })
    }

    /// What says that there is something to hear.
    pub(super) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let asking = self.asking.iter().map(|asking| asking.client.0.as_fd());
        std::iter::once(self.listener.as_fd()).chain(asking)
    }

    /// When a client has waited long enough.
    pub(super) fn due(&self) -> Option<Instant> {
        self.asking
            .iter()
            .map(|asking| asking.since + PATIENCE)
            .min()
    }

    /// Requests that have come.
    pub(super) fn hear(&mut self) -> Vec<(Client, Request)> {
        self.accept();
        let mut heard = Vec::new();
        for mut asking in std::mem::take(&mut self.asking) {
            match asking.read() {
                Ok(Some(request)) => heard.push((asking.client, request)),
                Ok(None) if asking.since.elapsed() < PATIENCE => self.asking.push(asking),
                Ok(None) => {}
                Err(reason) => asking.client.say(&Answer::Refused(reason)),
            }
        }
        heard
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            let allowed = may_ask(&stream, self.own);
            let client = Client(stream);
            match allowed {
                Err(reason) => client.say(&Answer::Refused(reason)),
                Ok(()) if self.asking.len() >= CLIENTS => {
                    client.say(&Answer::Refused("too many others ask".into()));
                }
                Ok(()) => self.asking.push(Asking {
                    client,
                    line: Vec::new(),
                    since: Instant::now(),
                }),
            }
        }
    }
}

/// Whether the peer is root, or of the user that runs this, and neither this process nor one that it has started: who takes
/// one of those over must not get at what is not theirs. The socket's mode says the same of users; this does not depend on it.
fn may_ask(stream: &UnixStream, supervisor: Pid) -> Result<(), String> {
    let peer = Peer::of(stream).map_err(|e| e.to_string())?;
    let own = rustix::process::geteuid();
    if !peer.user.is_root() && peer.user != own {
        return Err("only root, or the user that runs this, may ask for that".into());
    }
    // Our children are in a PID namespace that we see.
    let ours = |process| process == supervisor || is_our_child(process);
    if peer.process.is_some_and(ours) {
        return Err("no process of Lasthop may ask for that".into());
    }
    Ok(())
}

/// Whether this process has started that one. None of those can start others (`lasthop-control`, `lasthop-switch`,
/// `lasthop-driver`: their lists of system calls), and the system tells even where `/proc` shows nothing of others.
fn is_our_child(process: Pid) -> bool {
    // Nothing is waited for, and who has ended stays to be waited for.
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::Pid(process), look), Err(Errno::CHILD))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    fn admin() -> (tempfile::TempDir, Admin) {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let mut admin = Admin::new(listener.into()).unwrap();
        // As if the tests asked from another process.
        admin.own = Pid::INIT;
        (dir, admin)
    }

    fn ask(dir: &tempfile::TempDir, bytes: &[u8]) -> UnixStream {
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
        let mut stream = ask(&dir, b"{\"upgrade\":{\"to\":\"/a\"");
        assert!(admin.hear().is_empty());
        stream.write_all(b"}}\n").unwrap();
        let [(client, request)] = <[_; 1]>::try_from(admin.hear()).unwrap();
        let to = Some("/a".into());
        assert_eq!(request, Request::Upgrade { to });
        client.say(&Answer::Refused("no".into()));
        drop(client);
        assert_eq!(answer(stream), Answer::Refused("no".into()));
    }

    #[test]
    fn a_later_version_may_say_more() {
        let (dir, mut admin) = admin();
        let _stream = ask(&dir, b"{\"upgrade\":{\"more\":1}}\n");
        let [(_, request)] = <[_; 1]>::try_from(admin.hear()).unwrap();
        assert_eq!(request, Request::Upgrade { to: None });
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let (dir, mut admin) = admin();
        let long = vec![b' '; REQUEST_MAX + 2000];
        for wrong in [&b"{}\n"[..], b"\n", b"{\"upgrade\":{\"to\":5}}\n", &long] {
            let stream = ask(&dir, wrong);
            assert!(admin.hear().is_empty());
            assert!(matches!(answer(stream), Answer::Refused(_)), "{wrong:?}");
        }
        assert!(admin.asking.is_empty());
    }

    #[test]
    fn our_own_processes_are_told_from_others() {
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
    fn this_process_does_not_ask_itself() {
        let (dir, mut admin) = admin();
        admin.own = rustix::process::getpid();
        let stream = ask(&dir, b"{\"upgrade\":{}}\n");
        assert!(admin.hear().is_empty());
        assert!(matches!(answer(stream), Answer::Refused(_)));
    }

    #[test]
    fn crowds_are_refused() {
        let (dir, mut admin) = admin();
        let many: Vec<_> = (0..=CLIENTS).map(|_| ask(&dir, b"{")).collect();
        assert!(admin.hear().is_empty());
        assert_eq!(admin.asking.len(), CLIENTS);
        let last = many.into_iter().next_back().unwrap();
        assert!(matches!(answer(last), Answer::Refused(_)));
    }
}
