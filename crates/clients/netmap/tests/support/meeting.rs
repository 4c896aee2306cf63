//! Control's part in the meeting of a pipe's ends: the state machine of crate `pipes`, and sockets.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use pipes::{Output, Server};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// Serves a socket until all connections are closed.
pub(crate) fn serve(path: &Path) -> JoinHandle<()> {
    let flags = SocketFlags::CLOEXEC;
    let kind = SocketType::SEQPACKET;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&listener, 8).unwrap();
    std::thread::spawn(move || run(&listener))
}

fn run(listener: &OwnedFd) {
    let mut server: Server<Arc<OwnedFd>> = Server::new(0);
    let mut open: BTreeMap<u64, OwnedFd> = BTreeMap::new();
    let mut next = 0;
    loop {
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
        fds.extend(open.values().map(|fd| PollFd::new(fd, PollFlags::IN)));
        sys::wait::poll(&mut fds, None).unwrap();
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let conns: Vec<u64> = open.keys().copied().collect();
        let mut out = Vec::new();
        if ready[0] {
            let socket = rustix::net::accept(listener).unwrap();
            open.insert(next, socket);
            server.connected(next, 1, 0, &mut out);
            next += 1;
        }
        for (conn, _) in conns.iter().zip(&ready[1..]).filter(|(_, ready)| **ready) {
            let (mut bytes, mut fds) = ([0; 256], Vec::new());
            let flags = RecvFlags::empty();
            let into = (&mut fds, sys::foreign::Author::new(None));
            let got = sys::descriptors::receive(&open[conn], &mut bytes, into, flags);
            match got.unwrap().unwrap().bytes {
                0 => {
                    open.remove(conn);
                    server.closed(*conn, 0, &mut out);
                }
                len => {
                    let fds = fds.into_iter().map(|fd| Arc::new(fd.vouch())).collect();
                    server.received(*conn, &bytes[..len], fds, 0, &mut out);
                }
            }
        }
        for output in out {
            match output {
                Output::Send(conn, answer, fds) => {
                    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
                    let bytes = answer.to_bytes();
                    let flags = SendFlags::empty();
                    sys::descriptors::send(&open[&conn], &bytes, &fds, flags).unwrap();
                }
                Output::Close(conn) => drop(open.remove(&conn)),
                Output::Log(_) => {}
            }
        }
        if open.is_empty() {
            return;
        }
    }
}
