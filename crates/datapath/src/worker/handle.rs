//! What others hold of the worker: jobs go in, notices come out, each with a doorbell.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver as Inbox, Sender as Outbox};

use channel::keeping::Mark;
use port::PortId;
use rustix::event::EventfdFlags;

use super::Worker;
use crate::culprit;
use crate::errand::Finished;
use crate::guest::GuestFault;
use crate::idle::helper::Helper;

pub(super) type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// Tells the worker what to do.
#[derive(Clone, Debug)]
pub struct WorkerHandle {
    jobs: Outbox<Job>,
    bell: Arc<OwnedFd>,
    /// It runs when its core idles, unless somebody wants something.
    helper: Option<Arc<Helper>>,
}

impl WorkerHandle {
    pub(super) fn new(jobs: Outbox<Job>, bell: Arc<OwnedFd>) -> Self {
        Self {
            jobs,
            bell,
            helper: None,
        }
    }

    /// The same, of a helper.
    pub(super) fn of_helper(self, helper: Arc<Helper>) -> Self {
        Self {
            helper: Some(helper),
            ..self
        }
    }

    /// Runs `job` on the worker between two passes; returns its result.
    ///
    /// # Panics
    /// When the worker has ended, which it does only with the process.
    pub fn call<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Worker) -> R + Send + 'static,
    ) -> R {
        let (reply, result) = mpsc::sync_channel(1);
        self.post(move |worker| {
            let _ = reply.send(job(worker));
        });
        result.recv().expect("the worker runs")
    }

    /// Has the worker mark whom it serves, in case this process dies of it.
    pub fn set_mark(&self, mark: Mark) {
        self.call(move |worker| {
            worker.active.set_mark(mark.clone());
            culprit::set_own(mark);
        });
    }

    /// Has `job` run on the worker between two passes, without waiting for it. Whom the calling thread serves is
    /// served by the job.
    ///
    /// # Panics
    /// When the worker has ended, which it does only with the process.
    pub fn post(&self, job: impl FnOnce(&mut Worker) + Send + 'static) {
        let port = culprit::served();
        let job = move |worker: &mut Worker| {
            let _served = culprit::serve(port);
            job(worker);
        };
        self.jobs.send(Box::new(job)).expect("the worker runs");
        if let Some(helper) = &self.helper {
            helper.boost.raise(None);
        }
        ring(&self.bell);
    }
}

pub(super) fn ring(bell: &OwnedFd) {
    // A full counter rings already.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// What the worker tells the session thread.
#[derive(Debug)]
pub enum Notice {
    /// A guest broke a rule; its queue is stopped.
    QueueFault(PortId, u16, GuestFault),
    /// A VMM took its guest's memory away; dummy pages are in its place.
    MemoryLost(PortId),
    /// The worker has done its part of an errand.
    Finished(Finished),
    /// This worker gets on: it has done what it was asked for before.
    Alive,
}

/// The receiving end of the worker's notices, with a descriptor to wait on.
#[derive(Debug)]
pub struct Notices {
    notices: Inbox<Notice>,
    bell: Arc<OwnedFd>,
}

impl Notices {
    pub(super) fn new(notices: Inbox<Notice>, bell: Arc<OwnedFd>) -> Self {
        Self { notices, bell }
    }

    /// The next notice, if there is one.
    pub fn next(&self) -> Option<Notice> {
        self.notices.try_recv().ok()
    }

    /// Forgets an old ring of the bell; before draining.
    pub fn woke(&self) {
        let _ = rustix::io::read(&*self.bell, &mut [0u8; 8]);
    }
}

impl AsFd for Notices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (*self.bell).as_fd()
    }
}

pub(super) fn bell() -> io::Result<Arc<OwnedFd>> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    Ok(Arc::new(rustix::event::eventfd(0, flags)?))
}
