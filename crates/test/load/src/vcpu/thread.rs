//! The thread of such a guest.

use std::io;
use std::num::NonZeroU64;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};

use super::{Nic, Task, Vcpu, VcpuReport};
use testkit::guest::GuestError;

/// Work of the thread: a task, a run, its time.
type Job = (Task, u32, Duration);

/// A guest in a named thread of its own; it sleeps without work, and ends when this is dropped.
#[derive(Debug)]
pub struct VcpuThread {
    jobs: Option<Sender<Job>>,
    reports: Receiver<Result<VcpuReport, GuestError>>,
    thread: Option<JoinHandle<()>>,
}

impl VcpuThread {
    /// Starts a thread called `name` on core `cpu`, if one is given, and makes its guest there: a
    /// search for threads when the guest connects finds it.
    ///
    /// # Errors
    /// Those of `make`, and the system's.
    pub fn start<N: Nic>(
        name: &str,
        cpu: Option<usize>,
        make: impl FnOnce() -> Result<Vcpu<N>, GuestError> + Send + 'static,
    ) -> Result<Self, GuestError> {
        let (jobs, queue) = channel::<Job>();
        let (tell, reports) = channel();
        let (ready, is_ready) = channel();
        let body = move || match prepare(cpu).map_err(GuestError::from).and_then(|()| make()) {
            Err(error) => drop(ready.send(Err(error))),
            Ok(mut vcpu) => {
                drop(ready.send(Ok(())));
                while let Ok((task, run, time)) = queue.recv() {
                    if tell.send(vcpu.run(&task, run, time)).is_err() {
                        break;
                    }
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)?;
        match is_ready.recv() {
            Ok(Ok(())) => Ok(Self {
                jobs: Some(jobs),
                reports,
                thread: Some(thread),
            }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(GuestError::Disconnected),
        }
    }

    /// Starts `task`; [`VcpuThread::report`] waits for its end.
    pub fn begin(&self, task: Task, run: u32, time: Duration) {
        if let Some(jobs) = &self.jobs {
            // A thread that has ended is found out by who waits for its report.
            let _ = jobs.send((task, run, time));
        }
    }

    /// Waits for the end of the run.
    ///
    /// # Errors
    /// What ended it before its time.
    pub fn report(&self) -> Result<VcpuReport, GuestError> {
        self.reports.recv().unwrap_or(Err(GuestError::Disconnected))
    }
}

impl Drop for VcpuThread {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // What it panicked of was printed.
            let _ = thread.join();
        }
    }
}

/// On its core, and woken when it asked to be, as a guest's timer does.
fn prepare(cpu: Option<usize>) -> io::Result<()> {
    set_current_timer_slack(NonZeroU64::new(1))?;
    let Some(cpu) = cpu else { return Ok(()) };
    let mut one = CpuSet::new();
    one.set(cpu);
    Ok(sched_setaffinity(None, &one)?)
}
