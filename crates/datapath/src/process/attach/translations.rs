//! Translations of a guest with an IOMMU: the questions of its queues to the front end.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use port::PortId;
use rustix::event::epoll::{self, EventFlags};
use virtio::vhost_user::Wakes;

use super::Attachment;
use super::backend::WorkerBackend;
use super::open::{Context, Open};
use crate::process::Token;
use crate::worker::workers::Workers;

/// A descriptor in the epoll set, as long as this lives.
///
/// The set knows a file together with the number of the descriptor, and keeps it while any process
/// has the file open; the supervisor has that of the channel, and queues hold the table. So this
/// has a descriptor of its own, and removes it before it closes it.
#[derive(Debug)]
struct Watched {
    epoll: Rc<OwnedFd>,
    fd: OwnedFd,
    token: Token,
    flags: EventFlags,
    /// The number of the descriptor in the session.
    number: u64,
}

impl Watched {
    fn add(
        epoll: &Rc<OwnedFd>,
        fd: BorrowedFd<'_>,
        token: Token,
        number: u64,
    ) -> std::io::Result<Self> {
        let fd = fd.try_clone_to_owned()?;
        epoll::add(epoll, &fd, token.encode(), EventFlags::IN)?;
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
            let _ = epoll::modify(&self.epoll, &self.fd, self.token.encode(), flags);
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = epoll::delete(&self.epoll, &self.fd);
    }
}

/// The descriptors of a connection with translations in the epoll set, beside its socket.
#[derive(Debug, Default)]
pub(super) struct Watches {
    misses: Option<Watched>,
    channel: Option<Watched>,
}

impl Watches {
    pub(super) fn update(&mut self, epoll: &Rc<OwnedFd>, id: PortId, wakes: &Wakes<'_>) {
        if self.misses.is_none() {
            let added = Watched::add(epoll, wakes.misses, Token::Misses(id), 0);
            self.misses = logged(added);
        }
        let Some(channel) = wakes.channel else {
            self.channel = None;
            return;
        };
        if self.channel.as_ref().map(|watched| watched.number) != Some(channel.number) {
            let token = Token::Channel(id);
            self.channel = logged(Watched::add(epoll, channel.socket, token, channel.number));
        }
        if let Some(watched) = &mut self.channel {
            let mut flags = EventFlags::IN;
            flags.set(EventFlags::OUT, channel.wants_write);
            watched.set(flags);
        }
    }
}

/// Logs why a descriptor is not watched.
fn logged(added: std::io::Result<Watched>) -> Option<Watched> {
    added
        .inspect_err(|error| tracing::error!("watching translations failed: {error}"))
        .ok()
}

impl Open {
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

impl Attachment {
    /// Watches the descriptors of the open connection, beside its socket.
    pub fn watch_translations(&mut self, epoll: &Rc<OwnedFd>) {
        let id = self.context.config.id;
        if let Some(open) = &mut self.open {
            match open.client.wakes() {
                Some(wakes) => open.watches.update(epoll, id, &wakes),
                None => open.watches = Watches::default(),
            }
        }
    }

    /// Returns the time at which a question to the front end ends without an answer.
    #[must_use]
    pub fn next_question(&self) -> Option<Instant> {
        self.open.as_ref()?.client.next_deadline()
    }

    /// Asks the front end for translations that queues lack, and ends questions that are overdue.
    pub fn ask(&mut self, workers: &Workers) {
        if let Some(open) = &mut self.open {
            if let Some(wakes) = open.client.wakes() {
                sys::event::clear(wakes.misses);
            }
            open.ask(&mut self.context, workers);
            self.note_refusal();
        }
    }

    /// Reads the front end's answers to questions. Its messages are to be served before.
    pub fn read_answers(&mut self, workers: &Workers) {
        if let Some(open) = &mut self.open {
            open.read_answers(&mut self.context, workers);
            self.note_refusal();
        }
    }
}
