//! The drivers: interfaces that the supervisor keeps open, and a process for each while the switch is connected to it.
//!
//! ```text
//! switch dials            the interface is looked at, a process started, a socket pair made: one end goes to the
//!                         process, the other to the switch, as if it came from a VMM
//! process dies, hangs     the switch loses the connection and dials again; a process that does not answer pings is
//!                         killed first
//! interface goes          the process ends and says so; the interface is opened anew when the switch dials
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use channel::driving::{self, DeviceSpec, DriverSpec, DriverStart, DriverState, Refused};
use channel::supervision::{Ask, ProcessInfo, Tell};
use driver::device::{Device, NotReady};
use port::PortId;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::child::{Child, Kind};

/// Between two pings.
const PING: Duration = Duration::from_millis(500);
/// How long a driver may take to answer one: longer than a busy machine keeps it from its core.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the end of a process is waited for that was told to end, or killed.
const END: Duration = Duration::from_secs(1);

/// Messages of one driver in a row; an honest one has two to say.
const MESSAGES: usize = 16;
/// Characters of a driver's last words.
const REASON_MAX: usize = 300;

/// The answer to a dial of the switch.
pub(super) struct Dialed {
    pub(super) tell: Tell,
    pub(super) socket: Option<OwnedFd>,
}

/// A dial that waits for its answer.
struct Dial {
    port: PortId,
    path: String,
}

/// One driver.
struct Driver {
    spec: DriverSpec,
    device: Option<Device>,
    child: Option<Child>,
    dial: Option<Dial>,
    next_ping: Instant,
    /// A ping without an answer.
    pinged: Option<Instant>,
    /// Of the processes before this one.
    refused_before: Refused,
    refused: Refused,
    /// What the process said last before its end, or why there is none.
    reason: Option<String>,
}

impl Driver {
    fn open(spec: DriverSpec) -> Result<Self, String> {
        let device = Device::open(&spec.device).map_err(|e| e.to_string())?;
        Ok(Self {
            spec,
            device: Some(device),
            child: None,
            dial: None,
            next_ping: Instant::now(),
            pinged: None,
            refused_before: Refused::default(),
            refused: Refused::default(),
            reason: None,
        })
    }

    /// It is wanted still, perhaps with another MTU.
    fn change(&mut self, spec: DriverSpec) -> Result<(), String> {
        if let (Some(device), true) = (&self.device, spec.device.mtu != self.spec.device.mtu) {
            device.set_mtu(spec.device.mtu).map_err(|e| e.to_string())?;
        }
        self.spec = spec;
        Ok(())
    }

    fn is_alive(&self) -> bool {
        self.child.as_ref().is_some_and(Child::is_alive)
    }

    /// Looks after it; the answer to a dial, if there is one now.
    fn turn(&mut self) -> Option<Dialed> {
        self.hear();
        self.reap();
        self.ping();
        self.dial.as_ref()?;
        let connected = self.connect().transpose()?;
        self.answer(connected)
    }

    fn answer(&mut self, connected: Result<OwnedFd, String>) -> Option<Dialed> {
        let Dial { port, path } = self.dial.take()?;
        let (socket, error) = match connected {
            Ok(socket) => (Some(socket), None),
            Err(error) => (None, Some(error)),
        };
        self.reason.clone_from(&error);
        let tell = Tell::Dialed { port, path, error };
        Some(Dialed { tell, socket })
    }

    /// What the process says. It is not trusted: more than it has to say, or anything else, is its end.
    fn hear(&mut self) {
        let Some(child) = &mut self.child else { return };
        for _ in 0..MESSAGES {
            let Some((ask, _)) = child.hear() else { return };
            match ask {
                Ask::Pong(refused) => {
                    self.pinged = None;
                    self.refused = refused;
                }
                Ask::DriverEnds {
                    reason,
                    device_lost,
                } => {
                    let reason = last_words(&reason);
                    tracing::warn!("the driver gives up: {reason}");
                    self.reason = Some(reason);
                    if device_lost {
                        self.device = None;
                    }
                }
                _ => {
                    tracing::error!("the driver asks for what is not its business: it is killed");
                    return child.kill();
                }
            }
        }
        tracing::error!("the driver does not stop talking: it is killed");
        child.kill();
    }

    fn reap(&mut self) {
        let Some(status) = self.child.as_mut().and_then(Child::reap) else {
            return;
        };
        self.reason.get_or_insert(status);
        self.pinged = None;
        let refused = std::mem::take(&mut self.refused);
        self.refused_before = sum(self.refused_before, refused);
    }

    /// Asks for a sign of life when it is time, and ends a process that gives none.
    fn ping(&mut self) {
        let now = Instant::now();
        let Some(child) = self.child.as_mut().filter(|child| child.is_alive()) else {
            return;
        };
        match self.pinged {
            Some(since) if now >= since + PATIENCE => {
                tracing::error!("the driver hangs: it is killed");
                self.reason = Some("it hung and was killed".to_owned());
                self.pinged = None;
                child.kill();
            }
            None if now >= self.next_ping => {
                self.pinged = Some(now);
                self.next_ping = now + PING;
                // One that is gone need not be asked.
                let _ = child.tell(&Tell::Ping, &[]);
            }
            _ => {}
        }
    }

    /// A connection to a new process; nothing while its time has not come.
    fn connect(&mut self) -> Result<Option<OwnedFd>, String> {
        self.ready_device()?;
        if let Some(child) = &mut self.child {
            if child.is_alive() {
                // Its connection is not the switch's any more.
                child.kill();
                return Ok(None);
            }
            if !child.restart_if_due() {
                return Ok(None);
            }
        } else {
            self.child = Some(Child::start(Kind::Driver).map_err(|e| e.to_string())?);
        }
        self.pinged = None;
        self.next_ping = Instant::now() + PING;
        self.introduce().map(Some).map_err(|error| {
            let text = format!("the driver cannot be started: {error}");
            self.child.as_mut().map(Child::kill);
            text
        })
    }

    /// Makes sure that there is an interface to work with.
    fn ready_device(&mut self) -> Result<(), String> {
        match self.device.as_ref().map(Device::check) {
            Some(Ok(())) => return Ok(()),
            Some(Err(down @ NotReady::Down(_))) => return Err(down.to_string()),
            Some(Err(NotReady::Gone)) => self.device = None,
            None => {}
        }
        let device = Device::open(&self.spec.device).map_err(|e| e.to_string())?;
        device.check().map_err(|e| e.to_string())?;
        tracing::info!(interface = self.spec.device.interface, "opened again");
        self.device = Some(device);
        Ok(())
    }

    /// Gives a new process all it needs; the switch's end of the connection.
    fn introduce(&mut self) -> io::Result<OwnedFd> {
        let (Some(child), Some(device)) = (&self.child, &self.device) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let start = DriverStart {
            port: self.spec.port,
            name: self.spec.name.clone(),
            back_end: device.back_end(),
            uso: device.uso(),
            queues: self.spec.device.queues,
        };
        child.tell(&Tell::StartDriver(start), &[theirs.as_fd()])?;
        for queue in device.queues() {
            child.tell(&Tell::DriverQueue, &[queue])?;
        }
        Ok(ours)
    }

    fn state(&self) -> DriverState {
        let info = self.child.as_ref().map(Child::info);
        DriverState {
            name: self.spec.name.clone(),
            back_end: self.device.as_ref().map(Device::back_end),
            pid: info.as_ref().map(|i| i.pid).filter(|pid| *pid != 0),
            restarts: info.map_or(0, |i| i.restarts),
            refused: sum(self.refused_before, self.refused),
            reason: self.reason.clone().filter(|_| !self.is_alive()),
        }
    }

    /// When it is to be looked after.
    fn due(&self) -> Option<Instant> {
        let child = self.child.as_ref()?;
        if child.is_alive() {
            return Some(self.pinged.map_or(self.next_ping, |since| since + PATIENCE));
        }
        child.restart_at().filter(|_| self.dial.is_some())
    }
}

impl Drop for Driver {
    /// An interface is free for others when its process is gone too.
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            child.kill();
            child.wait(Instant::now() + END);
        }
    }
}

fn without_mtu(device: &DeviceSpec) -> DeviceSpec {
    DeviceSpec {
        mtu: None,
        ..device.clone()
    }
}

/// What a driver says of its end, fit for a log and for people.
fn last_words(reason: &str) -> String {
    let fit = reason.chars().filter(|c| !c.is_control());
    fit.take(REASON_MAX).collect()
}

fn sum(a: Refused, b: Refused) -> Refused {
    Refused {
        by_interface: a.by_interface.saturating_add(b.by_interface),
        too_long: a.too_long.saturating_add(b.too_long),
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Drivers(Vec<Driver>);

impl Drivers {
    /// Has these and no others. Those that are wanted as they are stay as they are, and so do those with another MTU.
    ///
    /// # Errors
    /// The first interface that cannot be had, as port and reason; those after it are not tried.
    pub(super) fn want(&mut self, specs: Vec<DriverSpec>) -> Result<(), (String, String)> {
        let same = |a: &DriverSpec, b: &DriverSpec| {
            a.name == b.name && without_mtu(&a.device) == without_mtu(&b.device)
        };
        self.0
            .retain(|d| specs.iter().any(|spec| same(spec, &d.spec)));
        for spec in specs {
            let _port = tracing::info_span!("driver", port = spec.name).entered();
            let name = spec.name.clone();
            let done = match self.0.iter_mut().find(|d| same(&d.spec, &spec)) {
                Some(driver) => driver.change(spec),
                None => Driver::open(spec).map(|driver| self.0.push(driver)),
            };
            done.map_err(|reason| (name, reason))?;
        }
        Ok(())
    }

    /// The switch dials. `false` when that is for no driver.
    pub(super) fn dial(&mut self, port: PortId, path: &str) -> bool {
        let found = self
            .0
            .iter_mut()
            .find(|d| driving::address(&d.spec.name) == path);
        let Some(driver) = found else { return false };
        let path = path.to_owned();
        driver.dial = Some(Dial { port, path });
        true
    }

    /// Looks after all; answers for the switch.
    pub(super) fn turn(&mut self) -> Vec<Dialed> {
        let turn = |driver: &mut Driver| {
            let _port = tracing::info_span!("driver", port = driver.spec.name).entered();
            driver.turn()
        };
        self.0.iter_mut().filter_map(turn).collect()
    }

    /// What says that there is something to look after.
    pub(super) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let children = self.0.iter().filter_map(|d| d.child.as_ref());
        children.flat_map(|child| child.link().into_iter().chain(child.pidfd()))
    }

    /// When there is, at the latest.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.iter().filter_map(Driver::due).min()
    }

    /// For control.
    pub(super) fn states(&self) -> Vec<DriverState> {
        self.0.iter().map(Driver::state).collect()
    }

    /// For `lasthop status`.
    pub(super) fn processes(&self) -> impl Iterator<Item = ProcessInfo> {
        self.0.iter().filter_map(|driver| {
            let mut info = driver.child.as_ref()?.info();
            info.name = format!("driver {}", driver.spec.name);
            Some(info)
        })
    }

    /// Ends all and waits for them.
    pub(super) fn stop(&mut self) {
        for child in self.0.iter().filter_map(|d| d.child.as_ref()) {
            // One that is gone need not be told.
            let _ = child.tell(&Tell::Stop, &[]);
        }
        let deadline = Instant::now() + END;
        for child in self.0.iter_mut().filter_map(|d| d.child.as_mut()) {
            child.wait(deadline);
        }
        self.0.clear();
    }
}
