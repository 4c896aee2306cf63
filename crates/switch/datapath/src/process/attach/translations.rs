//! Translations of a guest with an IOMMU: the questions of its queues to the front end.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use rustix::event::epoll::{self, EventData, EventFlags};
use sys::foreign::ForeignFd;
use virtio::vhost_user::Wakes;

use super::backend::WorkerBackend;
use super::open::{Context, OpenConnection};
use crate::worker::workers::Workers;

/// A descriptor in the epoll set, as long as this lives.
///
/// The set knows a file together with the number of the descriptor, and keeps it while any process
/// has the file open; the supervisor has that of the channel, and queues hold the table. So this
/// has a descriptor of its own, and removes it before it closes it.
#[derive(Debug)]
struct WatchedDescriptor {
    epoll: Rc<OwnedFd>,
    fd: ForeignFd,
    token: u64,
    flags: EventFlags,
    /// The number of the descriptor in the session.
    number: u64,
}

impl WatchedDescriptor {
    fn add(
        epoll: &Rc<OwnedFd>,
        fd: BorrowedFd<'_>,
        token: u64,
        number: u64,
    ) -> std::io::Result<Self> {
        let fd = ForeignFd::from(fd.try_clone_to_owned()?);
        epoll::add(epoll, &fd, EventData::new_u64(token), EventFlags::IN)?;
        Ok(Self {
            epoll: Rc::clone(epoll),
            fd,
            token,
            flags: EventFlags::IN,
            number,
        })
    }

    fn set(&mut self, flags: EventFlags) {
        if self.flags != flags {
            self.flags = flags;
            // It is in the set.
            let _ = epoll::modify(&self.epoll, &self.fd, EventData::new_u64(self.token), flags);
        }
    }
}

impl Drop for WatchedDescriptor {
    fn drop(&mut self) {
        let _ = epoll::delete(&self.epoll, &self.fd);
    }
}

/// The descriptors of a connection with translations in the epoll set, beside its socket.
#[derive(Debug, Default)]
pub(super) struct Watches {
    misses: Option<WatchedDescriptor>,
    channel: Option<WatchedDescriptor>,
}

impl Watches {
    /// Watches the descriptors to wait for; `tokens` are those of the misses and of the channel.
    ///
    /// # Errors
    /// One cannot be watched. The next call tries again.
    fn update(
        &mut self,
        epoll: &Rc<OwnedFd>,
        tokens: [u64; 2],
        wakes: &Wakes<'_>,
    ) -> std::io::Result<()> {
        let [misses, of_channel] = tokens;
        if self.misses.is_none() {
            self.misses = Some(WatchedDescriptor::add(epoll, wakes.misses, misses, 0)?);
        }
        let number = wakes.channel.map(|channel| channel.number);
        if self.channel.as_ref().map(|watched| watched.number) != number {
            self.channel = None;
        }
        let Some(channel) = wakes.channel else {
            return Ok(());
        };
        let watched = match &mut self.channel {
            Some(watched) => watched,
            none => {
                let (socket, number) = (channel.socket, channel.number);
                none.insert(WatchedDescriptor::add(epoll, socket, of_channel, number)?)
            }
        };
        let mut flags = EventFlags::IN;
        flags.set(EventFlags::OUT, channel.wants_write);
        watched.set(flags);
        Ok(())
    }
}

impl OpenConnection {
    /// Watches the descriptors of the session, beside its socket; `tokens` are those of the misses
    /// and of the channel.
    pub(super) fn watch(&mut self, epoll: &Rc<OwnedFd>, tokens: [u64; 2], context: &mut Context) {
        let Some(wakes) = self.client.wakes() else {
            self.watches = Watches::default();
            return;
        };
        if let Err(error) = self.watches.update(epoll, tokens, &wakes)
            && let Some(suppressed) = context.event_limits.log_line()
        {
            let port = &context.config.name;
            tracing::error!(port, suppressed, "watching translations failed: {error}");
        }
    }

    /// Asks the front end for the translations that are missing.
    pub(super) fn ask(&mut self, context: &mut Context, workers: &Workers) {
        if !self.client.has_iotlb() {
            return;
        }
        let mut backend = WorkerBackend {
            workers,
            context,
            positions: &mut self.positions,
            doorbells: &self.doorbells,
        };
        self.client.ask(Instant::now(), &mut backend);
        self.record_unrecorded(context);
    }

    /// Reads the front end's answers, unless messages wait that it has sent before.
    pub(super) fn read_answers(&mut self, context: &mut Context, workers: &Workers) {
        if self.has_more {
            return;
        }
        let mut backend = WorkerBackend {
            workers,
            context,
            positions: &mut self.positions,
            doorbells: &self.doorbells,
        };
        self.client.read_answers(Instant::now(), &mut backend);
        self.record_unrecorded(context);
    }
}
