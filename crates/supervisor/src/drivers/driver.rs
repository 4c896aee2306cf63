//! Driver of one port: interface, process, pending dial of the switch.

mod flows;
mod forwards;
mod passing;
mod questions;
mod renewal;
mod user_port;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use api::v1::Event;
use channel::driving::{
    BackEnd, Choice, DeviceSpec, DriverCounters, DriverSpec, DriverStart, DriverState, UserNetwork,
};
use channel::forwards::ForwardReach;
use channel::supervision::{SupervisorEvent, SupervisorRequest};
use channel::user_reports::{UserFigures, UserQuestion};
use driver::device::{Device, NotReady, OpenError};
use port::PortId;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use sys::foreign::ForeignFd;

use crate::binaries::Binaries;
use crate::child::{Child, Kind};
use crate::events as process_events;
use crate::groups::{DriverGroups, Limits};
use crate::heartbeat::{Heartbeat, HeartbeatStatus};
use crate::{Reply, opened};
use questions::Answer;
use renewal::Renewal;
pub(crate) use renewal::Renewed;
use user_port::{Handled, UserPort};

/// Maximum number of messages of one driver in a row; a correct one has three.
const MAX_MESSAGES: usize = 16;
/// Maximum number of characters of a driver's reason.
const MAX_REASON_CHARS: usize = 300;

/// Dial without an answer.
pub(super) struct Dial {
    pub(super) port: PortId,
    pub(super) path: String,
}

impl Dial {
    fn answered(self, connected: Result<ForeignFd, String>) -> Reply {
        let (socket, error) = opened(connected);
        let Self { port, path } = self;
        let event = SupervisorEvent::Dialed { port, path, error };
        Reply { event, socket }
    }
}

/// Counters of a driver that outlive it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct History {
    pub(super) counters: DriverCounters,
    pub(super) restarts: u32,
}

/// State of one driver.
pub(super) struct Driver {
    pub(super) spec: DriverSpec,
    /// `None` while the interface is missing.
    device: Option<Device>,
    /// Set when the process reported its interface as lost. An interface that is not Lasthop's own
    /// is reopened then.
    suspect: bool,
    pub(super) child: Option<Child>,
    /// Set when the process was killed: its messages are ignored.
    killed: bool,
    /// Replacement by a process of another version.
    renewal: Option<Renewal>,
    user: UserPort,
    /// It is from the record of another supervisor, which does not have the operator's choice of an
    /// own interface.
    pub(super) is_passed: bool,
    pub(super) dial: Option<Dial>,
    /// Bytes that may wait in the interface, where they are bounded.
    room: Option<u64>,
    /// Counters of previous processes.
    counters_before: DriverCounters,
    counters: DriverCounters,
    /// Restarts of the processes of the driver before.
    restarts_before: u32,
    /// Last reason that the process has given for its end, or the reason why there is none.
    reason: Option<String>,
    /// Events that were not reported yet.
    pub(super) events: Vec<Event>,
}

impl Driver {
    /// Opens the interface. The port waits for a missing interface, unless it is Lasthop's own.
    ///
    /// # Errors
    /// The reason why the interface cannot be used.
    pub(super) fn open(spec: DriverSpec) -> Result<Self, String> {
        match open(&spec.device) {
            Ok(device) => Ok(Self::new(spec, Some(device), None)),
            Err(error) if error.is_missing() && !spec.device.own => {
                tracing::warn!("{error}: port waits for the interface");
                Ok(Self::new(spec, None, Some(error.to_string())))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Opens the interface again. The port waits for an interface that cannot be used.
    pub(super) fn reopen(spec: DriverSpec) -> Self {
        match open(&spec.device) {
            Ok(device) => Self::new(spec, Some(device), None),
            Err(error) => Self::new(spec, None, Some(error.to_string())),
        }
    }

    fn new(spec: DriverSpec, device: Option<Device>, reason: Option<String>) -> Self {
        Self {
            spec,
            reason,
            device,
            suspect: false,
            child: None,
            killed: false,
            renewal: None,
            user: UserPort::default(),
            is_passed: false,
            dial: None,
            room: None,
            counters_before: DriverCounters::default(),
            counters: DriverCounters::default(),
            restarts_before: 0,
            events: Vec::new(),
        }
    }

    /// Returns whether the driver is for this specification, except for the settings that can
    /// change. An own interface is a TAP device by any choice, so it stays with another.
    pub(super) fn is_for(&self, spec: &DriverSpec) -> bool {
        let fixed = |device: &DeviceSpec| DeviceSpec {
            mtu: None,
            mac: None,
            choice: if device.own {
                Choice::Tap
            } else {
                device.choice
            },
            ..device.clone()
        };
        self.spec.name == spec.name && fixed(&self.spec.device) == fixed(&spec.device)
    }

    /// Returns whether another specification has the same interface.
    pub(super) fn has_interface_of(&self, spec: &DriverSpec) -> bool {
        let place = |device: &DeviceSpec| (device.interface.clone(), device.netns.clone());
        place(&self.spec.device) == place(&spec.device)
    }

    /// Changes MTU, MAC address and back end. A MAC address stays when it is removed from the
    /// configuration. Returns the processes that do not fit any longer: the next dial starts
    /// another.
    ///
    /// # Errors
    /// The system refuses one of them. Changes made before stay, and are noted in `spec`.
    pub(super) fn change(&mut self, spec: DriverSpec) -> Result<Vec<Child>, String> {
        let (mtu, mac) = (spec.device.mtu, spec.device.mac);
        if mtu != self.spec.device.mtu {
            self.set(|device| device.set_mtu(mtu))?;
            self.spec.device.mtu = mtu;
        }
        if let Some(desired) = mac.filter(|_| mac != self.spec.device.mac) {
            self.set(|device| device.set_mac(desired))?;
        }
        let is_passed = std::mem::take(&mut self.is_passed);
        let fits = is_passed || spec.device.choice == self.spec.device.choice;
        self.spec = spec;
        Ok(if fits {
            Vec::new()
        } else {
            self.take_children()
        })
    }

    /// Takes its processes; their counters stay.
    pub(super) fn take_children(&mut self) -> Vec<Child> {
        let History { counters, restarts } = self.history();
        self.counters_before = counters;
        self.counters = DriverCounters::default();
        self.restarts_before = restarts;
        self.killed = false;
        let next = self.renewal.take().and_then(Renewal::into_child);
        self.child.take().into_iter().chain(next).collect()
    }

    /// Bounds the bytes that may wait in the interface, also after it is opened again.
    pub(super) fn set_room(&mut self, room: Option<u64>) {
        if self.room != room {
            self.room = room;
            self.apply_room();
        }
    }

    fn apply_room(&self) {
        let set = self
            .device
            .as_ref()
            .map(|device| device.set_room(self.room));
        if let Some(Err(error)) = set {
            tracing::warn!("{error}");
        }
    }

    /// Changes the interface; a missing one gets its settings when it is opened.
    fn set(&self, change: impl Fn(&Device) -> Result<(), OpenError>) -> Result<(), String> {
        match self.device.as_ref().map_or(Ok(()), change) {
            Err(error) if !error.is_missing() => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    fn is_alive(&self) -> bool {
        self.child.as_ref().is_some_and(Child::is_alive)
    }

    /// Returns whether it has died and was not reaped.
    fn has_died(&mut self) -> bool {
        let child = self.child.as_mut();
        child.is_some_and(|child| child.has_died().is_some())
    }

    /// Polls the driver. Returns the answer to a dial, if there is one.
    pub(super) fn poll(&mut self, binaries: &Binaries, groups: &mut DriverGroups) -> Option<Reply> {
        self.receive();
        self.reap();
        self.ping();
        self.check_shared();
        self.check_offloads();
        self.poll_questions();
        if !self.follow_renewal() {
            return None;
        }
        self.dial.as_ref()?;
        let connected = self.connect(binaries, groups).transpose()?;
        let connected = connected.map(ForeignFd::from);
        self.reason = connected.as_ref().err().cloned();
        Some(self.dial.take()?.answered(connected))
    }

    /// Returns the counters of all its processes.
    fn history(&self) -> History {
        let state = self.state();
        History {
            counters: state.counters,
            restarts: state.restarts,
        }
    }

    /// Continues the counters of a driver that this one replaces.
    pub(super) fn inherit(&mut self, history: History) {
        self.counters_before = self.counters_before.plus(&history.counters);
        self.restarts_before += history.restarts;
    }

    /// Removes the driver, which has no processes any more. Returns the counters for a driver that
    /// replaces it, and the answer to a dial.
    pub(super) fn remove(mut self) -> (History, Option<Reply>) {
        let gone = || Err("its driver was replaced".to_owned());
        let answer = self.dial.take().map(|dial| dial.answered(gone()));
        let discarded = DriverCounters {
            dropped_by_kernel: self.device.as_ref().and_then(Device::discard),
            ..DriverCounters::default()
        };
        let History { counters, restarts } = self.history();
        let counters = counters.plus(&discarded);
        (History { counters, restarts }, answer)
    }

    /// Receives messages of the process, which is not trusted: too many messages or an unexpected
    /// one kill it.
    fn receive(&mut self) {
        for _ in 0..MAX_MESSAGES {
            let ready = self.child.as_mut().filter(|_| !self.killed);
            let Some((request, fds)) = ready.and_then(Child::receive) else {
                return;
            };
            let Some(request) = self.handle_flows(request, fds) else {
                // One in a turn: others have theirs between. One that has died sends no more.
                match self.has_died() {
                    true => continue,
                    false => return,
                }
            };
            match request {
                SupervisorRequest::Pong(counters) if self.on_heartbeat_reply() => {
                    self.counters = counters
                }
                SupervisorRequest::DriverPong {
                    counters,
                    dropped_by_kernel,
                } if self.on_heartbeat_reply() => {
                    self.counters = DriverCounters {
                        dropped_by_kernel,
                        ..counters
                    }
                }
                SupervisorRequest::DriverEnds {
                    reason,
                    device_lost,
                } => {
                    let reason = printable(&reason);
                    tracing::warn!("driver reported its end: {reason}");
                    self.reason = Some(reason);
                    self.suspect |= device_lost;
                    self.kill();
                }
                SupervisorRequest::VhostRefused { reason } if self.does_without_vhost() => {
                    let (interface, reason) = (&*self.spec.device.interface, printable(&reason));
                    tracing::warn!(
                        interface,
                        "no driver \"vhost-net\": {reason}; \"tap\" is used"
                    );
                }
                _ => self.kill_because("unexpected message"),
            }
        }
        if !self.killed {
            self.kill_because("too many messages");
        }
    }

    /// Handles a message about flows; returns any other.
    fn handle_flows(
        &mut self,
        request: SupervisorRequest,
        fds: Vec<ForeignFd>,
    ) -> Option<SupervisorRequest> {
        match self.user.handle(request, fds, self.child.as_ref()?) {
            Handled::Done => None,
            Handled::Other(request) => Some(request),
            Handled::Unsound => {
                self.kill_because("unexpected message");
                None
            }
        }
    }

    /// Returns the figures of a user port whose process has reported them.
    pub(super) fn user_figures(&self) -> Option<UserFigures> {
        self.user.figures()
    }

    /// Returns whether the port is one of kind `user`, whose network is known.
    pub(super) fn is_user(&self) -> bool {
        self.user.is_known()
    }

    /// Asks the process of a user port for a part of a table.
    pub(super) fn ask(&mut self, question: UserQuestion) {
        self.user.questions.ask(question, Instant::now());
    }

    fn poll_questions(&mut self) {
        let runs = self.is_alive() && !self.is_stopping() && !self.killed;
        let process = self.child.as_ref().filter(|_| runs);
        self.user.questions.poll(process, Instant::now());
    }

    /// Takes answers about tables.
    pub(super) fn take_answers(&mut self) -> Vec<Answer> {
        self.user.questions.take_answers()
    }

    /// Sets the network of a user port. Returns the processes that have another one.
    pub(super) fn set_network(&mut self, network: Option<UserNetwork>) -> Vec<Child> {
        if self.user.set_network(network) {
            self.take_children()
        } else {
            Vec::new()
        }
    }

    /// Returns the identity of the network namespace of a user port's sockets.
    pub(super) fn namespace(&self) -> Option<(u64, u64)> {
        self.device.as_ref()?.namespace()
    }

    /// Has the process of a user port follow its network, the host's resolvers, and the number of
    /// user ports with the same namespace.
    pub(super) fn follow_network(&mut self, host: (&[IpAddr], u32), reach: &ForwardReach) {
        let runs = self.is_alive() && !self.is_stopping() && !self.killed;
        let process = self.child.as_ref().filter(|_| runs);
        let netns = self.spec.device.netns.as_ref();
        let permit = |listen| reach.permit(listen, netns);
        self.user
            .follow(host, self.device.as_ref(), process, permit);
    }

    /// Returns the descriptors to poll. Messages of a killed process are ignored.
    pub(super) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let child = self.child.as_ref();
        let link = child.filter(|_| !self.killed).and_then(Child::link);
        link.into_iter().chain(child.and_then(Child::pidfd))
    }

    fn kill_because(&mut self, reason: &str) {
        tracing::error!("driver killed: {reason}");
        self.reason = Some(format!("{reason}: killed"));
        self.kill();
    }

    fn kill(&mut self) {
        self.killed = true;
        if let Some(child) = &self.child {
            child.kill();
        }
    }

    fn reap(&mut self) {
        if self.has_died() {
            // Flows that it has handed over last are its successor's.
            self.receive();
        }
        if self.is_stopping() {
            if !self.has_stopped() {
                return;
            }
        } else if self.has_died() {
            let Some(status) = self.child.as_mut().and_then(Child::reap) else {
                return;
            };
            let process = format!("driver {}", self.spec.name);
            let restarts = self.child.as_ref().map_or(0, |child| child.info().restarts);
            let what = process_events::ended(process, &status, restarts);
            self.events.push(channel::audit::logged(what, 0));
            self.reason.get_or_insert(status.to_string());
        } else {
            return;
        }
        let counters = std::mem::take(&mut self.counters);
        self.counters_before = self.counters_before.plus(&counters);
    }

    /// Checks the heartbeat, and kills a process that does not reply.
    fn ping(&mut self) {
        if self.killed || !self.is_alive() || self.is_stopping() {
            return;
        }
        let Some(child) = &mut self.child else { return };
        if child.check_heartbeat() == HeartbeatStatus::Hung {
            self.kill_because("hung");
        } else if child.beat().is_some_and(Heartbeat::is_blocked) {
            self.kill_because("link full");
        } else if self.device.as_ref().is_some_and(Device::has_changed) {
            tracing::info!("MTU of the interface changed: driver restarts");
            self.reason = Some("MTU of the interface changed".to_owned());
            self.kill();
        }
    }

    /// Checks whether another port that used the interface is gone.
    fn check_shared(&mut self) {
        if self.device.as_mut().is_some_and(Device::check_sharing) {
            tracing::info!(
                interface = &*self.spec.device.interface,
                "interface no longer shared with another port"
            );
        }
    }

    /// Checks whether offloads of the interface were switched while its driver runs, whose sandbox
    /// cannot ask the interface.
    fn check_offloads(&mut self) {
        let is_alive = self.is_alive();
        let Some(device) = self.device.as_mut().filter(|_| is_alive) else {
            return;
        };
        let interface = &self.spec.device.interface;
        for (offload, is_on) in device.switched_offloads(Instant::now()) {
            let (name, effect) = (offload.name, offload.effect);
            if is_on {
                tracing::warn!("offload {name} of interface {interface} is on again");
            } else {
                tracing::warn!("offload {name} of interface {interface} is off: {effect}");
            }
        }
    }

    /// Records a heartbeat reply. Returns `false` if no ping was sent.
    fn on_heartbeat_reply(&mut self) -> bool {
        self.child.as_mut().is_some_and(Child::on_heartbeat_reply)
    }

    /// Notes that the process has no vhost devices any more. Returns `false` if it had none, or was
    /// not permitted to do without.
    fn does_without_vhost(&mut self) -> bool {
        let is_permitted = self.spec.device.choice == Choice::Auto;
        let device = self.device.as_mut().filter(|_| is_permitted);
        device.is_some_and(Device::take_vhost)
    }

    /// Sends a message without waiting.
    fn send(&self, event: &SupervisorEvent, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let child = self.child.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        child.try_send(event, fds)
    }

    /// Connects to a new process; `None` before its start is due.
    fn connect(
        &mut self,
        binaries: &Binaries,
        groups: &mut DriverGroups,
    ) -> Result<Option<OwnedFd>, String> {
        if self.is_alive() {
            // The switch has lost its connection, and it may hold the name of a new interface.
            self.kill();
            return Ok(None);
        }
        self.ready_device()?;
        let back_end = self.device.as_ref().map(Device::back_end);
        if back_end == Some(BackEnd::User) && !self.user.is_known() {
            return Err("its network is not known yet".to_owned());
        }
        if let Some(next) = self.renewal.as_mut().and_then(Renewal::take_child) {
            self.install(next);
        } else if let Some(child) = &mut self.child {
            if !child.restart_if_due(binaries) {
                return Ok(None);
            }
        } else {
            let started = Child::start(Kind::Driver, binaries).map_err(|e| e.to_string())?;
            self.child = Some(started.restarted(self.restarts_before));
        }
        self.killed = false;
        let choice = match self.spec.device.choice {
            Choice::Auto | Choice::VhostNet if binaries.has_earlier_driver() => Choice::Tap,
            choice => choice,
        };
        self.start_process(groups, choice)
            .map(Some)
            .map_err(|error| {
                self.kill();
                format!("cannot start the driver: {error}")
            })
    }

    /// Puts a new process into its control group, before it allocates memory.
    fn enter(&self, groups: &mut DriverGroups, queues: u16, back_end: BackEnd) {
        let Some(child) = &self.child else { return };
        let limits = Limits {
            memory: driver::most_memory(queues, back_end),
            threads: driver::threads(queues),
        };
        groups.enter(&self.spec.name, child.info().pid, limits);
    }

    /// Opens the interface if necessary. One that is only down stays open.
    fn ready_device(&mut self) -> Result<(), String> {
        match self.device.as_ref().map(Device::check) {
            Some(Err(down @ NotReady::Down(_))) => return Err(down.to_string()),
            // Lasthop's own interface exists as long as its descriptor: a driver that reports it as
            // lost is no reason to make it again.
            Some(Ok(())) if self.spec.device.own || !self.suspect => return Ok(()),
            _ => self.device = None,
        }
        let device = open(&self.spec.device).map_err(|e| e.to_string())?;
        tracing::info!(
            interface = &*self.spec.device.interface,
            "interface opened again"
        );
        self.suspect = false;
        let device = self.device.insert(device);
        let ready = device.check().map_err(|e| e.to_string());
        if self.room.is_some() {
            self.apply_room();
        }
        ready
    }

    /// Starts a new process. Returns the switch's end of the connection.
    fn start_process(&mut self, groups: &mut DriverGroups, choice: Choice) -> io::Result<OwnedFd> {
        let device = self.device.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let given = match device.hand_over(choice) {
            Ok(given) => given,
            Err(error) => {
                // The interface differs from the one that was opened.
                self.device = None;
                return Err(io::Error::other(error));
            }
        };
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let (memory, xdp) = given.xdp.unzip();
        let queues = given.queues.len() as u16;
        self.enter(groups, queues, given.back_end);
        let start = DriverStart {
            port: self.spec.port,
            name: self.spec.name.to_string(),
            back_end: given.back_end,
            uso: given.uso,
            queues,
            xdp,
        };
        let fds = [Some(&theirs), memory.as_ref()].into_iter().flatten();
        let fds: Vec<BorrowedFd<'_>> = fds.map(AsFd::as_fd).collect();
        self.send(&SupervisorEvent::StartDriver(start), &fds)?;
        let or_tap = choice == Choice::Auto;
        let mut devices = given.vhost.iter();
        for queue in &given.queues {
            match devices.next() {
                Some(device) => {
                    let fds = [queue.as_fd(), device.as_fd()];
                    self.send(&SupervisorEvent::VhostQueue { or_tap }, &fds)?;
                }
                None => self.send(&SupervisorEvent::DriverQueue, &[queue.as_fd()])?,
            }
        }
        if given.back_end == BackEnd::User {
            let child = self.child.as_ref().ok_or(io::ErrorKind::NotConnected)?;
            self.user.start(child)?;
        }
        Ok(ours)
    }

    /// Returns the MAC address of the interface, if it exists.
    pub(super) fn mac(&self) -> Option<[u8; 6]> {
        self.device.as_ref().and_then(Device::mac)
    }

    /// Returns the speed of the interface in bits a second, if it is known.
    pub(super) fn speed(&self) -> Option<u64> {
        self.device.as_ref().and_then(Device::speed)
    }

    pub(super) fn state(&self) -> DriverState {
        let info = self.child.as_ref().map(Child::info);
        DriverState {
            name: self.spec.name.to_string(),
            back_end: self.device.as_ref().map(Device::back_end),
            // Reported separately.
            mac: None,
            user: None,
            cpu_weight_error: None,
            pid: info.as_ref().map(|i| i.pid).filter(|pid| *pid != 0),
            restarts: info.map_or(self.restarts_before, |i| i.restarts),
            counters: self.counters_before.plus(&self.counters),
            reason: self
                .exit_reason()
                .or_else(|| self.device.as_ref()?.shared())
                .or_else(|| self.user.problem()),
        }
    }

    /// Returns the reason why there is no process.
    fn exit_reason(&self) -> Option<String> {
        self.reason.clone().filter(|_| !self.is_alive())
    }

    /// Returns the time of the next timer.
    pub(super) fn due(&self) -> Option<Instant> {
        let child = self.child.as_ref()?;
        let renewal = self.renewal.as_ref().map(Renewal::due);
        let others = self.process_due(child).into_iter();
        let others = others.chain(self.user.questions.due());
        let others = others.chain(child.give_up_due());
        renewal.into_iter().chain(others).min()
    }

    fn process_due(&self, child: &Child) -> Option<Instant> {
        if self.is_stopping() {
            return None;
        }
        if child.is_alive() {
            return child.heartbeat_due().filter(|_| !self.killed);
        }
        child.restart_at().filter(|_| self.dial.is_some())
    }
}

/// Opens an interface, with a warning if another port shares it.
fn open(spec: &DeviceSpec) -> Result<Device, OpenError> {
    let opened = Device::open(spec)?;
    if let Some(shared) = opened.shared() {
        tracing::warn!("{shared}");
    }
    Ok(opened)
}

/// Returns a driver's reason without control characters and in bounded length.
fn printable(reason: &str) -> String {
    let visible = reason.chars().filter(|c| !c.is_control());
    visible.take(MAX_REASON_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::spec;
    use super::flows::KeptFlows;
    use super::*;
    use testkit::wait::wait_until;

    #[test]
    fn all_flows_are_kept_that_a_process_has_handed_over_when_it_dies() {
        let mut driver = Driver::reopen(spec());
        let (child, link) = Child::idle(Kind::Driver);
        driver.child = Some(child);
        driver.user.flows = Some(KeptFlows::new().unwrap());
        let socket = sys::event::create().unwrap();
        for slot in 0..3 {
            let request = SupervisorRequest::KeepFlows(vec![slot]);
            link.send(&request, &[socket.as_fd()]).unwrap();
        }
        driver.child.as_ref().unwrap().kill();
        wait_until("it dies", || driver.has_died());
        driver.poll(&Binaries::of_nothing(), &mut DriverGroups::default());
        let kept = driver.user.flows.as_ref().unwrap();
        assert_eq!(kept.sockets().count(), 3);
        assert!(!driver.is_alive());
    }
}
