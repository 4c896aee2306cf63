//! One driver: its interface, its process, and the dial of the switch that waits for it.

mod passing;
mod renewal;

use std::cell::OnceCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use api::v1::Event;
use channel::driving::{DeviceSpec, DriverSpec, DriverStart, DriverState, Refused};
use channel::supervision::{Ask, Tell};
use driver::device::{Device, NotReady, OpenError};
use port::PortId;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::supervisor::binaries::Binaries;
use crate::supervisor::child::{Child, Kind};
use crate::supervisor::events;
use crate::supervisor::groups::{Groups, Limits};
use crate::supervisor::heartbeat::Seen;
use renewal::Renewal;
pub(in crate::supervisor) use renewal::Renewed;

/// Messages of one driver in a row; an honest one has two to say.
const MESSAGES: usize = 16;
/// Characters of a driver's last words.
const REASON_MAX: usize = 300;

/// The answer to a dial of the switch.
pub(in crate::supervisor) struct Dialed {
    pub(in crate::supervisor) tell: Tell,
    pub(in crate::supervisor) socket: Option<OwnedFd>,
}

/// A dial that waits for its answer.
pub(super) struct Dial {
    pub(super) port: PortId,
    pub(super) path: String,
}

impl Dial {
    fn answered(self, connected: Result<OwnedFd, String>) -> Dialed {
        let (socket, error) = match connected {
            Ok(socket) => (Some(socket), None),
            Err(error) => (None, Some(error)),
        };
        let Self { port, path } = self;
        let tell = Tell::Dialed { port, path, error };
        Dialed { tell, socket }
    }
}

/// See the module.
pub(super) struct Driver {
    pub(super) spec: DriverSpec,
    /// None while the interface is waited for.
    device: Option<Device>,
    /// The process found the interface unusable: one that is not our own is opened anew.
    suspect: bool,
    pub(super) child: Option<Child>,
    /// The process was killed: what it says is of no interest any more.
    doomed: bool,
    /// It is being replaced by one of another version.
    renewal: Option<Renewal>,
    pub(super) dial: Option<Dial>,
    /// Of the processes before this one.
    refused_before: Refused,
    refused: Refused,
    /// What the process said last before its end, or why there is none.
    reason: Option<String>,
    /// What was not told yet.
    pub(super) happened: Vec<Event>,
}

impl Driver {
    /// With its interface open. One that is not our own may be missing: then the port waits for it.
    ///
    /// # Errors
    /// Why the interface cannot be had.
    pub(super) fn open(spec: DriverSpec) -> Result<Self, String> {
        match open(&spec.device) {
            Ok(device) => Ok(Self::new(spec, Ok(device))),
            Err(error) if error.is_missing() && !spec.device.own => {
                tracing::warn!("{error}: the port waits for it");
                Ok(Self::new(spec, Err(error.to_string())))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// One that was there before: whatever is wrong with its interface now, the port waits for it.
    pub(super) fn reopen(spec: DriverSpec) -> Self {
        let device = open(&spec.device).map_err(|e| e.to_string());
        Self::new(spec, device)
    }

    fn new(spec: DriverSpec, device: Result<Device, String>) -> Self {
        Self {
            spec,
            reason: device.as_ref().err().cloned(),
            device: device.ok(),
            suspect: false,
            child: None,
            doomed: false,
            renewal: None,
            dial: None,
            refused_before: Refused::default(),
            refused: Refused::default(),
            happened: Vec::new(),
        }
    }

    /// Whether it is what is wanted, but for what can be changed.
    pub(super) fn is_for(&self, spec: &DriverSpec) -> bool {
        let fixed = |device: &DeviceSpec| DeviceSpec {
            mtu: None,
            mac: None,
            ..device.clone()
        };
        self.spec.name == spec.name && fixed(&self.spec.device) == fixed(&spec.device)
    }

    /// Whether it has the interface that another would need.
    pub(super) fn has_interface_of(&self, spec: &DriverSpec) -> bool {
        let place = |device: &DeviceSpec| (device.interface.clone(), device.netns.clone());
        place(&self.spec.device) == place(&spec.device)
    }

    /// It is wanted still, perhaps with another MTU or MAC address. A MAC address that nobody asks for any more stays.
    ///
    /// # Errors
    /// The system does not take one of them. What was done before that stays done, and is in `spec`.
    pub(super) fn change(&mut self, spec: DriverSpec) -> Result<(), String> {
        let (mtu, mac) = (spec.device.mtu, spec.device.mac);
        if mtu != self.spec.device.mtu {
            self.set(|device| device.set_mtu(mtu))?;
            self.spec.device.mtu = mtu;
        }
        if let Some(wanted) = mac.filter(|_| mac != self.spec.device.mac) {
            self.set(|device| device.set_mac(wanted))?;
        }
        self.spec = spec;
        Ok(())
    }

    /// Changes the interface; one that is not there gets what it should have when it is made again.
    fn set(&self, change: impl Fn(&Device) -> Result<(), OpenError>) -> Result<(), String> {
        match self.device.as_ref().map_or(Ok(()), change) {
            Err(error) if !error.is_missing() => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    fn is_alive(&self) -> bool {
        self.child.as_ref().is_some_and(Child::is_alive)
    }

    /// Looks after it; the answer to a dial, if there is one now.
    pub(super) fn turn(
        &mut self,
        binaries: &Binaries,
        groups: &OnceCell<Option<Groups>>,
    ) -> Option<Dialed> {
        self.hear();
        self.reap();
        self.ping();
        self.look_for_others();
        if !self.follow_renewal() {
            return None;
        }
        self.dial.as_ref()?;
        let connected = self.connect(binaries, groups).transpose()?;
        self.reason = connected.as_ref().err().cloned();
        Some(self.dial.take()?.answered(connected))
    }

    /// Gives its place up: its processes, which are killed, and the answer to a dial.
    pub(super) fn part(mut self) -> (Vec<Child>, Option<Dialed>) {
        self.kill();
        let gone = || Err("its driver was replaced".to_owned());
        let answer = self.dial.take().map(|dial| dial.answered(gone()));
        (self.into_children(), answer)
    }

    /// All its processes.
    pub(super) fn into_children(self) -> Vec<Child> {
        let next = self.renewal.and_then(Renewal::into_child);
        self.child.into_iter().chain(next).collect()
    }

    /// What the process says. It is not trusted: more than it has to say, or anything else, is its end.
    fn hear(&mut self) {
        for _ in 0..MESSAGES {
            let heard = self.child.as_mut().filter(|_| !self.doomed);
            let Some((ask, _)) = heard.and_then(Child::hear) else {
                return;
            };
            match ask {
                Ask::Pong(refused) if self.has_answered() => self.refused = refused,
                Ask::DriverEnds {
                    reason,
                    device_lost,
                } => {
                    let reason = last_words(&reason);
                    tracing::warn!("the driver gives up: {reason}");
                    self.reason = Some(reason);
                    self.suspect |= device_lost;
                    self.kill();
                }
                _ => self.kill_because("it said what it was not asked for"),
            }
        }
        if !self.doomed {
            self.kill_because("it did not stop talking");
        }
    }

    /// What says that there is something to look after. Who is doomed is not heard any more.
    pub(super) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let child = self.child.as_ref();
        let link = child.filter(|_| !self.doomed).and_then(Child::link);
        link.into_iter().chain(child.and_then(Child::pidfd))
    }

    fn kill_because(&mut self, reason: &str) {
        tracing::error!("the driver is killed: {reason}");
        self.reason = Some(format!("{reason} and was killed"));
        self.kill();
    }

    fn kill(&mut self) {
        self.doomed = true;
        if let Some(child) = &self.child {
            child.kill();
        }
    }

    fn reap(&mut self) {
        if self.is_leaving() {
            if !self.has_left() {
                return;
            }
        } else if let Some(status) = self.child.as_mut().and_then(Child::reap) {
            let process = format!("driver {}", self.spec.name);
            let restarts = self.child.as_ref().map_or(0, |child| child.info().restarts);
            let what = events::ended(process, &status, restarts);
            self.happened.push(control::events::told(what, 0));
            self.reason.get_or_insert(status.to_string());
        } else {
            return;
        }
        let refused = std::mem::take(&mut self.refused);
        self.refused_before = sum(self.refused_before, refused);
    }

    /// Asks for a sign of life when it is time, and ends a process that gives none.
    fn ping(&mut self) {
        if self.doomed || !self.is_alive() || self.is_leaving() {
            return;
        }
        let Some(child) = &mut self.child else { return };
        if child.look() == Seen::Hangs {
            self.kill_because("it hung");
        } else if child.does_not_listen() {
            self.kill_because("it did not listen");
        } else if self.device.as_ref().is_some_and(Device::has_changed) {
            tracing::info!("the interface has another MTU: the driver is started anew");
            self.reason = Some("the interface has another MTU".to_owned());
            self.kill();
        }
    }

    /// Who else has the interface may have gone.
    fn look_for_others(&mut self) {
        if self.device.as_mut().is_some_and(Device::look_for_others) {
            tracing::info!(
                interface = self.spec.device.interface,
                "the interface is no other port's any more"
            );
        }
    }

    /// It has answered; `false` when it was not asked.
    fn has_answered(&mut self) -> bool {
        self.child.as_mut().is_some_and(Child::answered)
    }

    /// Says something without waiting: who does not listen is not to hold us up.
    fn tell(&self, tell: &Tell, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let child = self.child.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        child.tell_at_once(tell, fds)
    }

    /// A connection to a new process; nothing while its time has not come.
    fn connect(
        &mut self,
        binaries: &Binaries,
        groups: &OnceCell<Option<Groups>>,
    ) -> Result<Option<OwnedFd>, String> {
        if self.is_alive() {
            // Its connection is not the switch's any more, and it may have what a new interface is to be called.
            self.kill();
            return Ok(None);
        }
        self.ready_device()?;
        if let Some(next) = self.renewal.as_mut().and_then(Renewal::take_child) {
            self.install(next);
        } else if let Some(child) = &mut self.child {
            if !child.restart_if_due(binaries) {
                return Ok(None);
            }
        } else {
            let started = Child::start(Kind::Driver, binaries);
            self.child = Some(started.map_err(|e| e.to_string())?);
        }
        self.doomed = false;
        let groups = groups.get_or_init(Groups::take).as_ref();
        self.introduce(groups).map(Some).map_err(|error| {
            self.kill();
            format!("the driver cannot be started: {error}")
        })
    }

    /// Puts a new process into its control group, before it has any memory of note.
    fn enter(&self, groups: &Groups, queues: u16) {
        let Some(child) = &self.child else { return };
        let limits = Limits {
            memory: driver::most_memory(queues),
            threads: driver::threads(queues),
        };
        if let Err(error) = groups.enter(&self.spec.name, child.info().pid, limits) {
            tracing::warn!("the driver has no control group: {error}");
        }
    }

    /// Makes sure that there is an interface to work with. One that is only switched off stays open.
    fn ready_device(&mut self) -> Result<(), String> {
        match self.device.as_ref().map(Device::check) {
            Some(Err(down @ NotReady::Down(_))) => return Err(down.to_string()),
            // Our own goes with its last descriptor: that a process calls it lost is no reason to make it anew.
            Some(Ok(())) if self.spec.device.own || !self.suspect => return Ok(()),
            _ => self.device = None,
        }
        let device = open(&self.spec.device).map_err(|e| e.to_string())?;
        tracing::info!(interface = self.spec.device.interface, "opened again");
        self.suspect = false;
        let device = self.device.insert(device);
        device.check().map_err(|e| e.to_string())
    }

    /// Gives a new process all it needs; the switch's end of the connection.
    fn introduce(&mut self, groups: Option<&Groups>) -> io::Result<OwnedFd> {
        let device = self.device.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let given = match device.hand_over() {
            Ok(given) => given,
            Err(error) => {
                // What was opened is not what is there now.
                self.device = None;
                return Err(io::Error::other(error));
            }
        };
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let (memory, xdp) = given.xdp.unzip();
        let queues = given.queues.len() as u16;
        if let Some(groups) = groups {
            self.enter(groups, queues);
        }
        let start = DriverStart {
            port: self.spec.port,
            name: self.spec.name.clone(),
            back_end: given.back_end,
            uso: given.uso,
            queues,
            xdp,
        };
        let fds = [Some(&theirs), memory.as_ref()].into_iter().flatten();
        let fds: Vec<BorrowedFd<'_>> = fds.map(AsFd::as_fd).collect();
        self.tell(&Tell::StartDriver(start), &fds)?;
        for queue in &given.queues {
            self.tell(&Tell::DriverQueue, &[queue.as_fd()])?;
        }
        Ok(ours)
    }

    /// The interface's MAC address, while it is there.
    pub(super) fn mac(&self) -> Option<[u8; 6]> {
        self.device.as_ref().and_then(Device::mac)
    }

    pub(super) fn state(&self) -> DriverState {
        let info = self.child.as_ref().map(Child::info);
        DriverState {
            name: self.spec.name.clone(),
            back_end: self.device.as_ref().map(Device::back_end),
            // It is asked for apart.
            mac: None,
            pid: info.as_ref().map(|i| i.pid).filter(|pid| *pid != 0),
            restarts: info.map_or(0, |i| i.restarts),
            refused: sum(self.refused_before, self.refused),
            reason: self.why_not().or_else(|| self.device.as_ref()?.shared()),
        }
    }

    /// Why there is no process.
    fn why_not(&self) -> Option<String> {
        self.reason.clone().filter(|_| !self.is_alive())
    }

    /// When it is to be looked after.
    pub(super) fn due(&self) -> Option<Instant> {
        let child = self.child.as_ref()?;
        let renewal = self.renewal.as_ref().map(Renewal::due);
        renewal.into_iter().chain(self.process_due(child)).min()
    }

    fn process_due(&self, child: &Child) -> Option<Instant> {
        if self.is_leaving() {
            return None;
        }
        if child.is_alive() {
            return child.look_at().filter(|_| !self.doomed);
        }
        child.restart_at().filter(|_| self.dial.is_some())
    }
}

/// Opens an interface, with a warning if it is another port's, too.
fn open(spec: &DeviceSpec) -> Result<Device, OpenError> {
    let opened = Device::open(spec)?;
    if let Some(shared) = opened.shared() {
        tracing::warn!("{shared}");
    }
    Ok(opened)
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
