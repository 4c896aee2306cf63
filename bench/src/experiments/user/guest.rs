//! The one client: the stack of the library, over the wire of a peer, in one thread.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use sockets::config::{Network, Route};
use sockets::{Config, Errno, Id, Kind, Options, Stack};

use super::wires::AnyWire;
use super::world::{GATEWAY, GUEST};
use crate::stop;

/// How long a connection may take.
const OPEN: Duration = Duration::from_secs(10);
/// The longest sleep: an interrupted run ends after it.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);

/// See the module.
pub(super) struct Guest {
    pub(super) stack: Stack<AnyWire>,
}

pub(super) fn now() -> Duration {
    sys::time::monotonic()
}

impl Guest {
    /// `mtu`: bytes of an IP packet.
    pub(super) fn new(wire: AnyWire, mtu: u16) -> Self {
        let mut config = Config::new("/nowhere");
        config.addresses = vec![Network {
            address: GUEST.into(),
            prefix: 24,
        }];
        config.routes = vec![Route {
            to: Network {
                address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                prefix: 0,
            },
            by: GATEWAY.into(),
        }];
        config.mac = Some([0x52, 0x54, 0, 0, 0, 1]);
        config.mtu = mtu;
        Self {
            stack: Stack::new(wire, &config, || now().as_nanos() as u64, now()),
        }
    }

    /// Handles frames.
    pub(super) fn poll(&mut self) -> bool {
        let has_changed = self.stack.poll(now());
        self.stack.wire_mut().flush();
        has_changed
    }

    /// Sleeps until there is a frame or a timer is due, until `limit` has passed at most.
    pub(super) fn sleep(&mut self, limit: Duration) -> Result<()> {
        stop::check()?;
        if self.stack.wire_mut().arm() {
            return Ok(());
        }
        let timer = self.stack.delay(now()).unwrap_or(LONGEST_SLEEP);
        let limit = limit.min(timer).min(LONGEST_SLEEP);
        let wire = self.stack.wire_mut();
        let (fd, events) = wire.waits();
        let mut fds = [libc::pollfd {
            fd: fd.as_raw_fd(),
            events,
            revents: 0,
        }];
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: limit.as_nanos() as libc::c_long,
        };
        // SAFETY: descriptors and time live until the call returns; there is no mask.
        unsafe { libc::ppoll(fds.as_mut_ptr(), 1, &raw const time, std::ptr::null()) };
        wire.woke();
        Ok(())
    }

    /// Handles frames and calls `step`, again and again until `until`, and sleeps while it has
    /// nothing to do, which it says with `false`.
    pub(super) fn run(
        &mut self,
        until: Duration,
        mut step: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let mut turns = 0_u32;
        loop {
            self.poll();
            let mut has_worked = step(self)?;
            // A connection that opens here is for the next step.
            has_worked |= self.poll();
            let left = until.saturating_sub(now());
            if left.is_zero() {
                return Ok(());
            }
            turns = turns.wrapping_add(1);
            if !has_worked {
                self.sleep(left)?;
            } else if turns.is_multiple_of(1 << 12) {
                stop::check()?;
            }
        }
    }

    /// A connection that is being opened.
    pub(super) fn connect(&mut self, to: SocketAddr) -> Result<Id> {
        let id = self.stack.open(Kind::Stream)?;
        let options = Options {
            no_delay: true,
            ..Options::default()
        };
        self.stack.set_options(id, options)?;
        match self.stack.connect(id, to) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(id),
            Err(error) => Err(error.into()),
        }
    }

    /// So many connections to a server, all of them open.
    pub(super) fn open(&mut self, to: SocketAddr, count: usize) -> Result<Vec<Id>> {
        let mut ids = Vec::new();
        // A few at once: peers bound what is half open, and the queue of a listening socket is
        // short.
        while ids.len() < count {
            let some = (count - ids.len()).min(16);
            let new: Result<Vec<Id>> = (0..some).map(|_| self.connect(to)).collect();
            let new = new?;
            self.wait("connections", |guest| {
                let mut all = true;
                for id in &new {
                    all &= guest.is_open(*id)?;
                }
                Ok(all)
            })?;
            ids.extend(new);
        }
        Ok(ids)
    }

    /// Whether a connection is established.
    ///
    /// # Errors
    /// It was refused or reset.
    pub(super) fn is_open(&mut self, id: Id) -> Result<bool> {
        if let Some(error) = self.stack.take_error(id) {
            bail!("a connection: {error}");
        }
        let events = self.stack.events(id);
        ensure!(events & libc::POLLHUP == 0, "a connection has ended");
        Ok(events & libc::POLLOUT != 0)
    }

    /// Handles frames until something is so.
    pub(super) fn wait(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let until = now() + OPEN;
        loop {
            self.poll();
            if is_so(self)? {
                return Ok(());
            }
            let left = until.saturating_sub(now());
            ensure!(!left.is_zero(), "no {what} in time");
            self.sleep(left)?;
        }
    }

    /// Lets frames pass for a time.
    pub(super) fn idle(&mut self, time: Duration) -> Result<()> {
        self.run(now() + time, |_| Ok(false))
    }

    /// Ends connections, without regard to what is on its way.
    pub(super) fn abort(&mut self, ids: &[Id]) -> Result<()> {
        for id in ids {
            let mut options = self.stack.options(*id)?;
            options.abort = true;
            self.stack.set_options(*id, options)?;
            self.stack.close(*id);
        }
        // The resets leave.
        self.idle(Duration::from_millis(20))
    }
}
