//! Unix sockets of clients who may send descriptors, although the API has none: a plain read would
//! close them in the thread that serves all clients.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::net::RecvFlags;
use sys::descriptors;
use sys::foreign::{Author, ForeignFd};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{UnixListener, UnixStream};

/// A listening socket, which the [closer](sys::closer) closes with the connections in its backlog.
#[derive(Debug)]
pub struct UnixServer(Option<UnixListener>);

impl UnixServer {
    /// Takes a bound and listening socket.
    ///
    /// # Errors
    /// It is no such socket, or the runtime cannot wait for it.
    pub(super) fn new(socket: ForeignFd) -> io::Result<Self> {
        let listener = std::os::unix::net::UnixListener::from(socket.vouch());
        listener.set_nonblocking(true)?;
        Ok(Self(Some(UnixListener::from_std(listener)?)))
    }

    /// Accepts a connection.
    ///
    /// # Errors
    /// That of the system. [`io::ErrorKind::QuotaExceeded`] while too many descriptors of others
    /// wait to be closed.
    pub(super) async fn accept(&self) -> io::Result<UnixClient> {
        let Some(listener) = &self.0 else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        if sys::closer::is_full() {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let (stream, _) = listener.accept().await?;
        Ok(UnixClient {
            author: Author::of(&stream),
            stream: Some(stream),
        })
    }
}

impl Drop for UnixServer {
    fn drop(&mut self) {
        let listener = self.0.take().and_then(|one| one.into_std().ok());
        drop(listener.map(ForeignFd::from));
    }
}

/// A connection whose descriptors go to the [closer](sys::closer), and in the end the socket.
#[derive(Debug)]
pub(super) struct UnixClient {
    stream: Option<UnixStream>,
    author: Author,
}

impl UnixClient {
    /// Returns the connection; there is none only while it is dropped.
    pub(super) fn stream(&self) -> io::Result<&UnixStream> {
        self.stream
            .as_ref()
            .ok_or(io::ErrorKind::NotConnected.into())
    }

    fn pinned(&mut self) -> io::Result<Pin<&mut UnixStream>> {
        let stream = self.stream.as_mut();
        stream
            .map(Pin::new)
            .ok_or(io::ErrorKind::NotConnected.into())
    }
}

impl AsyncRead for UnixClient {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (stream, author) = (self.stream()?, self.author);
        loop {
            ready!(stream.poll_read_ready(context))?;
            let received = stream.try_io(Interest::READABLE, || {
                let (room, mut unwanted) = (into.initialize_unfilled(), Vec::new());
                let fds = (&mut unwanted, author);
                let received = descriptors::receive(stream, room, fds, RecvFlags::DONTWAIT)?;
                received.ok_or(io::ErrorKind::WouldBlock.into())
            });
            match received {
                Ok(received) => {
                    into.advance(received.bytes);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for UnixClient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.pinned()?.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.pinned()?.poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream
            .as_ref()
            .is_some_and(AsyncWrite::is_write_vectored)
    }

    /// Fails when the client is gone. The server does not read behind a request whose response is
    /// a stream, and sees no end there if the client has sent more; a capture flushes often.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let now = Some(Instant::now());
        let ends = sys::wait::ready(self.stream()?, PollFlags::empty(), now)?;
        if ends.contains(PollFlags::HUP) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.pinned()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pinned()?.poll_shutdown(context)
    }
}

impl Drop for UnixClient {
    fn drop(&mut self) {
        let stream = self.stream.take().and_then(|one| one.into_std().ok());
        drop(stream.map(|one| ForeignFd::new(one, self.author)));
    }
}
