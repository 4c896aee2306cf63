//! Guests that compute, are interrupted and sleep: threads in place of vCPUs, each at
//! a port.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use load::lean::Histogram;
use load::vcpu::{Costs, Nic, Task, Vcpu, VcpuReport, VcpuThread};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testkit::features::MRG_RXBUF;
use testkit::frontend::{FrontEnd, FrontListener};
use testkit::guest::GuestError;
use testkit::net::NetHeader;
use testkit::{FakeGuest, GuestConfig};

use super::{Client, Exchange};
use crate::peers::Peer;
use crate::peers::lasthop::thread_name;
use crate::stop;

/// A back end that dials does so again after some seconds.
const DIALLED: Duration = Duration::from_secs(30);
/// Entries of a queue: room for some super-frames.
const QUEUE: u16 = 1024;
/// Longer than any frame through a TAP device.
const FRAME: usize = 10_000;

/// All guests of a peer.
pub(crate) struct Guests {
    guests: Vec<VcpuThread>,
    tasks: Vec<Task>,
    run: u32,
    last: Option<Exchange>,
}

/// How guests behind sockets differ from others.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shape {
    /// Of their own work.
    pub(crate) costs: Costs,
    /// Every second guest, which serves, has virtio headers of 10 bytes in place of 12, so that
    /// frames lie at another place of their cache lines than at the others.
    pub(crate) short_headers: bool,
}

impl Shape {
    fn config(self, number: u8) -> GuestConfig {
        let config = GuestConfig {
            queue_size: QUEUE,
            timeout: DIALLED,
            ..GuestConfig::default().guest(number)
        };
        if self.short_headers && number.is_multiple_of(2) {
            config.legacy().without(MRG_RXBUF)
        } else {
            config
        }
    }
}

impl Guests {
    /// One guest at each port of a peer, on these cores in turn; their threads are called after
    /// their group.
    pub(crate) fn attach(peer: &Peer, group: usize, cores: &[usize]) -> Result<Self> {
        Self::shaped(peer, group, cores, Shape::default())
    }

    /// The same, with guests that differ. Those of TAP devices have no shape.
    pub(crate) fn shaped(peer: &Peer, group: usize, cores: &[usize], shape: Shape) -> Result<Self> {
        let Some(taps) = peer.taps() else {
            let sockets = (peer.sockets(), peer.client_listens());
            return Self::at_sockets(sockets, group, cores, shape);
        };
        let guests = (1..)
            .zip(taps)
            .zip(cores.iter().cycle())
            .map(|((number, tap), core)| at_tap((group, number), tap, *core));
        Ok(Self::of(guests.collect::<Result<_>>()?))
    }

    /// One guest at each of these sockets, on which the guests listen or the back end does.
    pub(crate) fn at_sockets(
        (paths, listen): (&[PathBuf], bool),
        group: usize,
        cores: &[usize],
        shape: Shape,
    ) -> Result<Self> {
        // All listen before the first is waited for: back ends call in any order.
        let listeners = paths.iter().map(|path| listener(path, listen));
        let listeners: Vec<Option<FrontListener>> = listeners.collect::<Result<_>>()?;
        let guests = (1..)
            .zip(paths.iter().zip(listeners))
            .zip(cores.iter().cycle())
            .map(|((number, (path, listener)), core)| {
                at_socket((group, number), (path, listener), *core, shape)
            });
        Ok(Self::of(guests.collect::<Result<_>>()?))
    }

    fn of(guests: Vec<VcpuThread>) -> Self {
        Self {
            guests,
            tasks: Vec::new(),
            run: 0,
            last: None,
        }
    }

    /// Sets their tasks, in their order; the rest serve.
    pub(crate) fn set(&mut self, tasks: Vec<Task>) {
        self.tasks = tasks;
    }

    /// Returns whether anything was answered or acknowledged in the last run.
    pub(crate) fn heard(&self) -> bool {
        let last = self.last.as_ref();
        last.is_some_and(|exchange| exchange.answers + exchange.gbit > 0.0)
    }

    fn run(&mut self, time: Duration) -> Result<Vec<VcpuReport>> {
        stop::check()?;
        self.run += 1;
        let tasks = self.tasks.iter().cloned();
        let tasks = tasks.chain(std::iter::repeat(Task::Serve));
        // Who serves begins first.
        let mut order: Vec<_> = self.guests.iter().zip(tasks).collect();
        order.sort_by_key(|(_, task)| *task != Task::Serve);
        for (guest, task) in order {
            guest.begin(task, self.run, time);
        }
        let reports = self.guests.iter().map(VcpuThread::report);
        Ok(reports.collect::<Result<_, GuestError>>()?)
    }
}

fn listener(path: &Path, listen: bool) -> Result<Option<FrontListener>> {
    let bound = listen.then(|| FrontListener::bind(path)).transpose();
    bound.with_context(|| path.display().to_string())
}

fn at_socket(
    (group, number): (usize, u8),
    (path, listener): (&Path, Option<FrontListener>),
    core: usize,
    shape: Shape,
) -> Result<VcpuThread> {
    let path = path.to_owned();
    let config = shape.config(number);
    let make = move || {
        let front = match listener {
            Some(listener) => listener.accept(DIALLED)?,
            None => FrontEnd::connect(&path, DIALLED)?,
        };
        let guest = FakeGuest::over(front, config)?;
        Ok(Vcpu::new(guest, number, shape.costs))
    };
    let name = thread_name(group, number.into());
    VcpuThread::start(&name, Some(core), make).with_context(|| name.clone())
}

fn at_tap((group, number): (usize, u8), tap: &File, core: usize) -> Result<VcpuThread> {
    let tap = Tap(tap.try_clone()?);
    let name = thread_name(group, number.into());
    let make = move || Ok(Vcpu::new(tap, number, Costs::default()));
    Ok(VcpuThread::start(&name, Some(core), make)?)
}

/// A TAP device as a guest's NIC: a frame is a system call, and kicks there are none.
struct Tap(File);

impl Nic for Tap {
    fn interrupted(&mut self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    fn mask(&mut self) {}

    fn unmask(&mut self) -> bool {
        false
    }

    fn receive(&mut self, frame: &mut Vec<u8>) -> Result<bool, GuestError> {
        frame.resize(FRAME, 0);
        match self.0.read(frame) {
            Ok(len) => {
                frame.truncate(len);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn send(&mut self, frame: &[u8], _: &NetHeader) -> Result<bool, GuestError> {
        match self.0.write(frame) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn kicks(&self) -> u64 {
        0
    }

    fn sleep(&mut self, time: Duration) {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let time = Timespec::try_from(time).ok();
        // Whether there is a frame is asked for next.
        let _ = poll(&mut fds, time.as_ref());
    }
}

impl Exchange {
    fn of(reports: &[VcpuReport]) -> Self {
        let sum = |of: fn(&VcpuReport) -> u64| reports.iter().map(of).sum::<u64>();
        let seconds = reports.iter().map(|report| report.elapsed.as_secs_f64());
        let seconds = seconds.fold(1e-9, f64::max);
        let mut round_trips = Histogram::default();
        for report in reports {
            round_trips.merge(&report.round_trips);
        }
        let frames = sum(|report| report.received);
        let each = |count: u64| count as f64 / frames.max(1) as f64;
        Self {
            answers: sum(|report| report.answers) as f64 / seconds,
            gbit: 8e-9 * sum(|report| report.bytes) as f64 / seconds,
            p50_us: round_trips.quantile(0.5) as f64 / 1e3,
            p99_us: round_trips.quantile(0.99) as f64 / 1e3,
            quartiles_us: [0.25, 0.75].map(|share| round_trips.quantile(share) as f64 / 1e3),
            frames: frames as f64 / seconds,
            kicks: each(sum(|report| report.kicks)),
            interrupts: each(sum(|report| report.interrupts)),
            sleeps: each(sum(|report| report.sleeps)),
            stalls: sum(|report| report.stalls),
        }
    }
}

impl Client for Guests {
    fn name(&self) -> &'static str {
        "guests"
    }

    fn set_size(&mut self, _size: u32) -> Result<()> {
        bail!("what guests send is a matter of their tasks")
    }

    fn warm_up(&mut self, time: Duration) -> Result<()> {
        self.mpps(time).map(drop)
    }

    fn mpps(&mut self, window: Duration) -> Result<f64> {
        let exchange = Exchange::of(&self.run(window)?);
        let mpps = exchange.frames / 1e6;
        self.last = Some(exchange);
        Ok(mpps)
    }

    fn exchange(&self) -> Option<&Exchange> {
        self.last.as_ref()
    }
}
