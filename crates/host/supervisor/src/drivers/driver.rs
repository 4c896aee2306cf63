//! Driver of one port: interface, process, pending dial of the switch.

mod dial;
mod flows;
mod forwards;
mod in_switch;
mod passing;
mod questions;
mod renewal;
mod settings;
#[cfg(test)]
mod tests;
mod user_port;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use interfaces::device::{Device, NotReadyError, OpenError};
use interfaces::limits;
use ipc::driving::{
    BackEnd, Choice, DeviceSpec, DriverCounters, DriverKind, DriverSpec, DriverStart, DriverState,
    REASON_CHARS_MAX, UserNetwork, address,
};
use ipc::forwards::ForwardReach;
use ipc::supervision::{DriverRequest, EventToDriver, UserDriverRequest};
use ipc::user_reports::UserQuestion;
use model::Event;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use sys::foreign::ForeignFd;

use super::resolvers;
use crate::binaries::Binaries;
use crate::child::{Child, DriverChild};
use crate::events as process_events;
use crate::groups::{DriverGroups, Limits};
use crate::heartbeat::{Heartbeat, HeartbeatStatus};
use crate::reply::Reply;
use dial::{Connection, Dial, DriverError};
pub(super) use forwards::Share;
use in_switch::InSwitch;
use questions::Answer;
pub(super) use questions::NoAnswer;
use renewal::Renewal;
pub(crate) use renewal::RenewalResult;
pub(super) use settings::{NoPrefilterError, Settings};
use user_port::UserPort;

/// Maximum number of messages of one driver in a row; a correct one has three.
const MAX_MESSAGES: usize = 16;
/// Reason of a driver's end after a message that no driver sends then.
const UNEXPECTED: &str = "unexpected message";

/// Counters of a driver that outlive it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct History {
    pub(super) counters: DriverCounters,
    pub(super) restarts: u32,
}

/// Resources and settings of a new process.
pub(super) struct ProcessStart<'a> {
    pub(super) binaries: &'a Binaries,
    pub(super) groups: &'a mut DriverGroups,
    /// See [`DriverStart::poll_us`].
    pub(super) poll_us: Option<u16>,
}

/// State of one driver.
pub(super) struct Driver {
    pub(super) spec: DriverSpec,
    /// `None` while the interface is missing.
    device: Option<Device>,
    in_switch: InSwitch,
    /// Set when the process or the switch reported its interface as lost. An interface that is not
    /// Lasthop's own is reopened then.
    suspect: bool,
    pub(super) child: Option<DriverChild>,
    /// Set when the process was killed: its messages are ignored.
    killed: bool,
    /// Replacement by a process of another version.
    renewal: Option<Renewal>,
    user: UserPort,
    pub(super) dial: Option<Dial>,
    settings: Settings,
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
    pub(super) fn open(spec: DriverSpec) -> Result<Self, OpenError> {
        match open(&spec.kind) {
            Ok(device) => Ok(Self::new(spec, Some(device), None)),
            Err(error) if error.is_missing() && !spec.kind.is_own() => {
                tracing::warn!("{error}: port waits for the interface");
                Ok(Self::new(spec, None, Some(error.to_string())))
            }
            Err(error) => Err(error),
        }
    }

    /// Opens the interface again. The port waits for an interface that cannot be used.
    pub(super) fn reopen(spec: DriverSpec) -> Self {
        match open(&spec.kind) {
            Ok(device) => Self::new(spec, Some(device), None),
            Err(error) => Self::new(spec, None, Some(error.to_string())),
        }
    }

    fn new(spec: DriverSpec, device: Option<Device>, reason: Option<String>) -> Self {
        Self {
            spec,
            reason,
            device,
            in_switch: InSwitch::default(),
            suspect: false,
            child: None,
            killed: false,
            renewal: None,
            user: UserPort::default(),
            dial: None,
            settings: Settings::default(),
            counters_before: DriverCounters::default(),
            counters: DriverCounters::default(),
            restarts_before: 0,
            events: Vec::new(),
        }
    }

    /// Returns whether the driver is for this specification, except for the settings that can
    /// change. An own interface is a TAP device by any choice, so it stays with another.
    pub(super) fn is_for(&self, spec: &DriverSpec) -> bool {
        let fixed = |kind: &DriverKind| match kind {
            DriverKind::Interface(device) => DriverKind::Interface(DeviceSpec {
                mtu: None,
                mac: None,
                choice: if device.own {
                    Choice::Tap
                } else {
                    device.choice
                },
                ..device.clone()
            }),
            sockets => sockets.clone(),
        };
        self.spec.name == spec.name && fixed(&self.spec.kind) == fixed(&spec.kind)
    }

    /// Returns whether another specification has the same interface.
    pub(super) fn has_interface_of(&self, spec: &DriverSpec) -> bool {
        let is_same = match (self.spec.kind.interface(), spec.kind.interface()) {
            (Some(own), Some(other)) => own.interface == other.interface,
            // The sockets of a user port are no other port's.
            (None, None) => self.spec.name == spec.name,
            _ => false,
        };
        is_same && self.spec.kind.netns() == spec.kind.netns()
    }

    /// Changes MTU, MAC address and back end. A MAC address stays when it is removed from the
    /// configuration. Returns the processes that do not fit any longer: the next dial starts
    /// another, or the switch gets the interface.
    ///
    /// # Errors
    /// The system refuses one of them. Changes made before stay, and are noted in `spec`.
    pub(super) fn change(&mut self, spec: DriverSpec) -> Result<Vec<DriverChild>, OpenError> {
        let is_same_process = spec.process == self.spec.process;
        let is_same = match (self.spec.kind.clone(), &spec.kind) {
            (DriverKind::Interface(mut old), DriverKind::Interface(new)) => {
                if new.mtu != old.mtu {
                    self.set(|device| device.set_mtu(new.mtu))?;
                    old.mtu = new.mtu;
                    self.spec.kind = DriverKind::Interface(old.clone());
                }
                if let Some(desired) = new.mac.filter(|_| new.mac != old.mac) {
                    self.set(|device| device.set_mac(desired))?;
                }
                new.choice == old.choice
            }
            _ => true,
        };
        self.spec = spec;
        if is_same && is_same_process {
            return Ok(Vec::new());
        }
        self.in_switch.close("its driver was changed");
        Ok(self.take_children())
    }

    /// Returns the name of the interface, for the log; of sockets none.
    fn interface(&self) -> Option<&str> {
        let device = self.spec.kind.interface();
        device.map(|device| &*device.interface)
    }

    /// Returns the operator's choice of a back end. Of sockets there is none.
    fn choice(&self) -> Choice {
        let device = self.spec.kind.interface();
        device.map_or(Choice::Auto, |device| device.choice)
    }

    /// Takes its processes; their counters stay. Those of the switch may still change.
    pub(super) fn take_children(&mut self) -> Vec<DriverChild> {
        let History { counters, restarts } = self.history();
        if !self.in_switch.has_interface() {
            self.counters_before = counters;
            self.counters = DriverCounters::default();
        }
        self.restarts_before = restarts;
        self.killed = false;
        let next = self.renewal.take().and_then(Renewal::into_child);
        self.child.take().into_iter().chain(next).collect()
    }

    /// Returns the settings of the interface, and the interface while it is open.
    pub(super) fn settings(&mut self) -> (&mut Settings, Option<&mut Device>) {
        (&mut self.settings, self.device.as_mut())
    }

    /// Changes the interface; a missing one gets its settings when it is opened.
    fn set(&self, change: impl Fn(&Device) -> Result<(), OpenError>) -> Result<(), OpenError> {
        match self.device.as_ref().map_or(Ok(()), change) {
            Err(error) if !error.is_missing() => Err(error),
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

    /// Polls the driver. Returns the answer to a dial, or another message to the switch, if there
    /// is one. `kept_most`: maximum number of flows of a user port that may outlive its process.
    pub(super) fn poll(&mut self, start: &mut ProcessStart<'_>, kept_most: u64) -> Option<Reply> {
        self.receive(kept_most);
        self.reap(kept_most);
        self.ping();
        self.check_shared();
        self.check_offloads();
        self.poll_questions();
        if let Some(close) = self.in_switch.take_close(self.spec.port) {
            return Some(close);
        }
        if !self.follow_renewal() {
            return None;
        }
        let is_quarantined = self.dial.as_ref()?.is_quarantined;
        let connected = self.connect(start, is_quarantined);
        let connected = connected.transpose()?;
        self.reason = connected.as_ref().err().map(ToString::to_string);
        Some(self.dial.take()?.answered(connected))
    }

    /// Registers a dial. The switch has no interface of this port when it dials.
    pub(super) fn on_dial(&mut self, is_quarantined: bool) {
        self.forget_copies();
        self.dial = Some(Dial {
            port: self.spec.port,
            path: address(&self.spec.name),
            is_quarantined,
        });
    }

    /// Notes that the switch has closed its copies of the interface for a reason of its own.
    pub(super) fn lose_interface(&mut self, reason: &str, device_lost: bool) {
        if !self.in_switch.has_interface() {
            return;
        }
        let _port = tracing::info_span!("driver", port = &*self.spec.name).entered();
        let (interface, reason) = (self.interface(), printable(reason));
        tracing::warn!(interface, "interface lost: {reason}");
        self.reason = Some(reason);
        self.suspect |= device_lost;
        self.forget_copies();
    }

    /// Notes the counters since the switch has its copies.
    pub(super) fn count_interface(&mut self, counters: DriverCounters) {
        if self.in_switch.has_interface() {
            self.counters = counters;
        }
    }

    fn forget_copies(&mut self) {
        if self.in_switch.lose() {
            let counters = std::mem::take(&mut self.counters);
            self.counters_before = self.counters_before.plus(&counters);
        }
    }

    /// Returns the counters of all its processes.
    fn history(&self) -> History {
        let child = self.child.as_ref().map(Child::info);
        History {
            counters: self.counters_before.plus(&self.counters),
            restarts: child.map_or(self.restarts_before, |child| child.restarts),
        }
    }

    /// Continues the counters of a driver that this one replaces.
    pub(super) fn inherit(&mut self, history: History) {
        self.counters_before = self.counters_before.plus(&history.counters);
        self.restarts_before += history.restarts;
    }

    /// Removes the driver, which has no processes any more. Returns the counters for a driver that
    /// replaces it, and the last message to the switch: the answer to a dial, or to close the
    /// interface.
    pub(super) fn remove(mut self) -> (History, Option<Reply>) {
        let gone = || Err("its driver was replaced".to_owned());
        let answer = self.dial.take().map(|dial| dial.answered(gone()));
        self.in_switch.close("its driver was removed or replaced");
        let answer = answer.or_else(|| self.in_switch.take_close(self.spec.port));
        let discarded = DriverCounters {
            dropped_by_kernel: self.device.as_ref().and_then(Device::discard),
            ..DriverCounters::default()
        };
        let History { counters, restarts } = self.history();
        let counters = counters.plus(&discarded);
        if self.in_switch.has_interface()
            && self.spec.kind.is_own()
            && let Some(device) = self.device
        {
            device.set_aside();
        }
        (History { counters, restarts }, answer)
    }

    /// Receives messages of the process, which is not trusted: too many messages or an unexpected
    /// one kill it.
    fn receive(&mut self, kept_most: u64) {
        for _ in 0..MAX_MESSAGES {
            let ready = self.child.as_mut().filter(|_| !self.killed);
            let Some((request, fds)) = ready.and_then(Child::receive) else {
                return;
            };
            match request {
                DriverRequest::Pong(counters) => self.on_pong(counters),
                DriverRequest::Ends {
                    reason,
                    device_lost,
                } => self.on_end_report(&reason, device_lost),
                DriverRequest::User(request) => {
                    self.on_user_request(request, fds, kept_most);
                    // One in a turn: others have theirs between. One that has died sends no more.
                    if !self.has_died() {
                        return;
                    }
                }
            }
        }
        if !self.killed {
            self.kill_because("too many messages");
        }
    }

    fn on_pong(&mut self, counters: DriverCounters) {
        if self.on_heartbeat_reply() {
            self.counters = counters;
        } else {
            self.kill_because(UNEXPECTED);
        }
    }

    fn on_end_report(&mut self, reason: &str, device_lost: bool) {
        let reason = printable(reason);
        tracing::warn!("driver reported its end: {reason}");
        self.reason = Some(reason);
        self.suspect |= device_lost;
        if device_lost {
            self.excuse_end();
        }
        self.kill();
    }

    fn on_user_request(&mut self, request: UserDriverRequest, fds: Vec<ForeignFd>, kept_most: u64) {
        let Some(process) = &self.child else { return };
        if !self.user.handle(request, fds, (process, kept_most)) {
            self.kill_because(UNEXPECTED);
        }
    }

    /// Returns whether the port is one of kind `user` and has a known network.
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
    pub(super) fn set_network(&mut self, network: Option<UserNetwork>) -> Vec<DriverChild> {
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

    /// Returns the forwards and the kept flows of a user port, which have a descriptor each.
    pub(super) fn descriptors(&self) -> (u64, u64) {
        let flows = self.user.flows.as_ref();
        let flows = flows.map_or(0, |flows| flows.sockets().len());
        (self.user.forwards.sockets().len() as u64, flows as u64)
    }

    /// Has the process of a user port follow its network, the host's resolvers, the number of user
    /// ports with the same namespace, and its share of descriptors for forwards. In another
    /// namespace there are other links.
    pub(super) fn follow_network(
        &mut self,
        (resolvers, sharers, share): (&[SocketAddr], u32, Share),
        reach: &ForwardReach,
    ) {
        let runs = self.is_alive() && !self.is_stopping() && !self.killed;
        let process = self.child.as_ref().filter(|_| runs);
        let netns = self.spec.kind.netns();
        let permit = |listen| reach.permit(listen, netns);
        let is_there = |of: &&SocketAddr| netns.is_none() || !resolvers::is_of_link(of);
        let resolvers: Vec<_> = resolvers.iter().filter(is_there).copied().collect();
        let host = (&resolvers[..], sharers, share);
        self.user
            .follow(host, self.device.as_ref(), process, permit);
    }

    /// Returns the descriptors to poll. Messages of a killed process are ignored.
    pub(super) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let child = self.child.as_ref();
        let link = child.filter(|_| !self.killed).and_then(Child::link);
        link.into_iter()
            .chain(child.into_iter().flat_map(Child::ends))
    }

    fn kill_because(&mut self, reason: &str) {
        tracing::error!("driver killed: {reason}");
        self.reason = Some(format!("{reason}: killed"));
        self.kill();
    }

    /// Notes that the end of the process is not its own failure. It counts as no restart.
    fn excuse_end(&mut self) {
        if let Some(child) = &mut self.child {
            child.excuse_end();
        }
    }

    fn kill(&mut self) {
        self.killed = true;
        if let Some(child) = &self.child {
            child.kill();
        }
    }

    fn reap(&mut self, kept_most: u64) {
        if self.has_died() {
            // Flows that it has handed over last are its successor's.
            self.receive(kept_most);
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
            let what = process_events::ended(process, &status);
            self.events.push(ipc::audit::logged(what, 0));
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
        } else if self.device.as_ref().is_some_and(Device::awaits_prefilter) {
            tracing::info!("driver restarts with a prefilter");
            self.excuse_end();
            self.kill();
        } else if self.device.as_ref().is_some_and(Device::has_changed) {
            tracing::info!("MTU of the interface changed: driver restarts");
            self.reason = Some("MTU of the interface changed".to_owned());
            self.excuse_end();
            self.kill();
        }
    }

    /// Checks whether another port that used the interface is gone.
    fn check_shared(&mut self) {
        if self.device.as_mut().is_some_and(Device::check_sharing) {
            tracing::info!(
                interface = self.interface(),
                "interface no longer shared with another port"
            );
        }
    }

    /// Logs the offloads of the interface that were switched.
    fn check_offloads(&mut self) {
        for line in self.switched_offloads(Instant::now()) {
            tracing::warn!("{line}");
        }
    }

    /// Returns a line for each offload of the interface that was switched while it is served. A
    /// driver and the switch cannot ask the interface from their sandboxes.
    fn switched_offloads(&mut self, now: Instant) -> Vec<String> {
        let is_served = self.is_alive() || self.in_switch.has_interface();
        let Some(device) = self.device.as_mut().filter(|_| is_served) else {
            return Vec::new();
        };
        let Some(DeviceSpec { interface, .. }) = self.spec.kind.interface() else {
            return Vec::new();
        };
        let switched = device.switched_offloads(now).into_iter();
        switched
            .map(|(offload, is_on)| offload.notice(interface, is_on))
            .collect()
    }

    /// Records a heartbeat reply. Returns `false` if no ping was sent.
    fn on_heartbeat_reply(&mut self) -> bool {
        self.child.as_mut().is_some_and(Child::on_heartbeat_reply)
    }

    /// Sends a message without waiting.
    fn send(&self, event: &EventToDriver, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let child = self.child.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        child.try_send(event, fds)
    }

    /// Connects the switch to a new process, or gives it the interface; `None` before the start of
    /// a process is due.
    fn connect(
        &mut self,
        start: &mut ProcessStart<'_>,
        is_quarantined: bool,
    ) -> Result<Option<Connection>, DriverError> {
        if self.is_alive() {
            // The switch has lost its connection, and it may hold the name of a new interface. One
            // that ends already has lost it by its own death.
            if !self.child.as_ref().is_some_and(Child::cannot_return) {
                self.excuse_end();
            }
            self.kill();
            return Ok(None);
        }
        self.ready_device()?;
        let choice = self.choice();
        if let Some(device) = &mut self.device
            && in_switch::is_for_switch(&self.spec, device)
        {
            if !is_quarantined {
                let copies = in_switch::copies(device, choice)?;
                self.in_switch.note_given();
                return Ok(Some(copies));
            }
            let reason = DriverError::Quarantined.to_string();
            if self.reason.as_ref() != Some(&reason) {
                let event = in_switch::refusal(&self.spec, reason);
                self.events.push(event);
            }
            return Err(DriverError::Quarantined);
        }
        let back_end = self.device.as_ref().map(Device::back_end);
        if back_end == Some(BackEnd::User) && !self.user.is_known() {
            return Err(DriverError::NoNetwork);
        }
        if let Some(next) = self.renewal.as_mut().and_then(Renewal::take_child) {
            self.install(next);
        } else if let Some(child) = &mut self.child {
            if !child.restart_if_due(start.binaries) {
                return Ok(None);
            }
        } else {
            let started = DriverChild::start(start.binaries);
            let started = started.map_err(DriverError::NoProcess)?;
            self.child = Some(started.restarted(self.restarts_before));
        }
        self.killed = false;
        self.start_process(start, choice)
            .map(|socket| Some(Connection::Process(socket)))
            .map_err(|error| {
                self.kill();
                DriverError::SetUp(error)
            })
    }

    /// Puts a new process into its control group, before it allocates memory.
    fn enter(&self, groups: &mut DriverGroups, queues: u16, back_end: BackEnd) {
        let Some(child) = &self.child else { return };
        let limits = Limits {
            memory: limits::memory(queues, back_end),
            threads: limits::threads(queues),
        };
        groups.enter(&self.spec.name, child.info().pid, limits);
    }

    /// Opens the interface if necessary. One that is only down stays open.
    fn ready_device(&mut self) -> Result<(), DriverError> {
        match self.device.as_ref().map(Device::check) {
            Some(Err(down @ NotReadyError::Down(_))) => return Err(down.into()),
            // Lasthop's own interface exists as long as its descriptor: a driver that reports it as
            // lost is no reason to make it again.
            Some(Ok(())) if self.spec.kind.is_own() || !self.suspect => return Ok(()),
            _ => self.device = None,
        }
        let device = open(&self.spec.kind)?;
        tracing::info!(interface = self.interface(), "interface opened again");
        self.suspect = false;
        let device = self.device.insert(device);
        self.settings.apply(device);
        Ok(device.check()?)
    }

    /// Starts a new process. Returns the switch's end of the connection.
    fn start_process(
        &mut self,
        process: &mut ProcessStart<'_>,
        choice: Choice,
    ) -> io::Result<OwnedFd> {
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
        self.enter(process.groups, queues, given.back_end);
        let start = DriverStart {
            port: self.spec.port,
            name: self.spec.name.to_string(),
            back_end: given.back_end,
            uso: given.uso,
            queues,
            xdp,
            poll_us: process.poll_us,
        };
        let fds = [Some(&theirs), memory.as_ref()].into_iter().flatten();
        let fds: Vec<BorrowedFd<'_>> = fds.map(AsFd::as_fd).collect();
        self.send(&EventToDriver::Start(start), &fds)?;
        let mut devices = given.vhost.iter();
        for queue in &given.queues {
            let fds = [Some(queue), devices.next()].into_iter().flatten();
            let fds: Vec<_> = fds.map(AsFd::as_fd).collect();
            self.send(&EventToDriver::Queue, &fds)?;
        }
        if given.back_end == BackEnd::User {
            let child = self.child.as_ref().ok_or(io::ErrorKind::NotConnected)?;
            self.user.start(child)?;
        }
        Ok(ours)
    }

    /// Returns the MAC address of the interface, if it exists, or that of a user port's gateway.
    fn mac(&self) -> Option<[u8; 6]> {
        let own = self.device.as_ref().and_then(Device::mac);
        own.or_else(|| self.user.mac())
    }

    /// Returns the speed of the interface in bits a second, if it is known.
    pub(super) fn speed(&self) -> Option<u64> {
        self.device.as_ref().and_then(Device::speed)
    }

    /// Returns its state, without an error of its CPU weight.
    pub(super) fn state(&self) -> DriverState {
        let pid = self.child.as_ref().map(|child| child.info().pid);
        let History { counters, restarts } = self.history();
        DriverState {
            name: self.spec.name.to_string(),
            back_end: self.device.as_ref().map(Device::back_end),
            mac: self.mac(),
            user: self.user.figures(),
            cpu_weight_error: None,
            in_switch: self.in_switch.has_interface(),
            pid: pid.filter(|pid| *pid != 0),
            restarts,
            counters,
            reason: self
                .exit_reason()
                .or_else(|| self.device.as_ref()?.shared())
                .or_else(|| self.user.problem()),
            refused: self.user.refused(),
            prefilter: self
                .settings
                .prefilter(self.device.as_ref())
                .map(|of| of.map_err(ToString::to_string)),
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

    fn process_due(&self, child: &DriverChild) -> Option<Instant> {
        if self.is_stopping() {
            return None;
        }
        if child.is_alive() {
            return child.heartbeat_due().filter(|_| !self.killed);
        }
        child.restart_at().filter(|_| self.dial.is_some())
    }
}

/// Opens a device, with a warning if another port shares the interface.
fn open(kind: &DriverKind) -> Result<Device, OpenError> {
    let opened = match kind {
        DriverKind::Interface(spec) => Device::open(spec)?,
        DriverKind::User { netns, .. } => Device::open_sockets(netns.as_ref())?,
    };
    if let Some(shared) = opened.shared() {
        tracing::warn!("{shared}");
    }
    Ok(opened)
}

/// Returns a driver's reason without control characters and in bounded length.
fn printable(reason: &str) -> String {
    let visible = reason.chars().filter(|c| !c.is_control());
    visible.take(REASON_CHARS_MAX).collect()
}
