//! The handle of a worker: jobs go in, notices come out, each with a doorbell.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver as Inbox, Sender as Outbox};

use port::PortId;

use super::Worker;
use crate::forward::revalidator::SweepResult;
use crate::ports::attached::QueueFailure;
use crate::ports::crash_record;

pub(super) type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// Sends jobs to a worker.
#[derive(Clone, Debug)]
pub struct WorkerHandle {
    jobs: Outbox<Job>,
    bell: Arc<OwnedFd>,
}

impl WorkerHandle {
    pub(super) fn new(jobs: Outbox<Job>, bell: Arc<OwnedFd>) -> Self {
        Self { jobs, bell }
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

    /// Queues `job` for the worker and returns at once. The job runs on behalf of the port that the
    /// calling thread serves.
    ///
    /// # Panics
    /// When the worker has ended, which it does only with the process.
    pub fn post(&self, job: impl FnOnce(&mut Worker) + Send + 'static) {
        self.queue(job);
        // The worker has the bell for as long as the process runs.
        let _ = sys::event::ring(&self.bell);
    }

    /// As [`WorkerHandle::post`], without waking the worker: others follow.
    ///
    /// # Panics
    /// As [`WorkerHandle::post`].
    pub fn queue(&self, job: impl FnOnce(&mut Worker) + Send + 'static) {
        let port = crash_record::served();
        let job = move |worker: &mut Worker| {
            let _served = crash_record::serve(port);
            job(worker);
        };
        self.jobs.send(Box::new(job)).expect("the worker runs");
    }
}

/// Notices of a worker to the session thread.
#[derive(Debug)]
pub enum Notice {
    /// A guest broke a rule; its queue is stopped.
    QueueFault(PortId, u16, QueueFailure),
    /// A VMM took its guest's memory away; dummy pages are in its place.
    MemoryLost(PortId),
    /// The worker has done its part of a sweep.
    Finished(SweepResult),
    /// The worker acknowledges a liveness probe: its earlier jobs are done.
    ProbeAck,
}

/// The receiving end of the workers' notices, with a descriptor for epoll.
#[derive(Debug)]
pub struct Notices {
    notices: Inbox<Notice>,
    bell: Arc<OwnedFd>,
}

impl Notices {
    pub(super) fn new(notices: Inbox<Notice>, bell: Arc<OwnedFd>) -> Self {
        Self { notices, bell }
    }

    /// Returns the next notice, if there is one.
    pub fn next(&self) -> Option<Notice> {
        self.notices.try_recv().ok()
    }

    /// Resets the doorbell; to be called before the notices are read.
    pub fn woke(&self) {
        sys::event::clear(&*self.bell);
    }
}

impl AsFd for Notices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (*self.bell).as_fd()
    }
}
