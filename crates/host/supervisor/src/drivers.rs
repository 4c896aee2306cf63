//! Drivers: interfaces that the supervisor keeps open. The switch itself serves TAP devices and
//! packet sockets, and gets copies of their descriptors; another interface has a process while the
//! switch is connected to it, and so has one of these if its port asks for a process.
//!
//! ```text
//! switch dials         the interface is checked. Either the switch gets its queues, or a process
//!                      is started: it gets one end of a socket pair, and the switch the other,
//!                      like the connection of a VMM
//! process dies, hangs  the switch loses the connection and dials again; a process that does not
//!                      reply to pings is killed first
//! interface removed    the process reports that and ends, or the switch reports it and closes its
//!                      copies; the interface is opened again when the switch dials
//! another interface    it is opened; the process is stopped, completes its frames and ends, or the
//!                      switch closes its copies; the switch dials
//! switch dies          its successor gets the queues with the saved sessions, and dials for what a
//!                      process serves; frames that wait in the interfaces stay there
//! interface missing    the port of an uplink waits; each dial of the switch tries to open it
//! ```
//!
//! The supervisor never waits for messages of a driver, and only a bounded time for its death.

mod driver;
mod offers;
mod prefilters;
mod resolvers;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ipc::driving::{DriverCounters, DriverSpec, DriverState, UserNetwork};
use ipc::forwards::ForwardReach;
use ipc::names::PortName;
use ipc::supervision::{
    EventToDriver, EventToSwitch, PortDriverAnswer, PortDriverRequest, ProcessInfo, UserPortAnswer,
    UserPortRequest,
};
use ipc::user_reports::UserQuestion;
use model::Event;
use port::PortId;

use super::binaries::Binaries;
use super::child::{Child, DriverChild};
use super::groups::DriverGroups;
use super::record::{
    IncomingFds, OutgoingFds, PassedDriver, PassedFlows, PassedPrefilters, PassedUsers, RecordError,
};
use super::reply::Reply;
use super::shares::{self, Shares};
pub(super) use driver::RenewalResult;
use driver::{Driver, History, NoAnswer, ProcessStart, Settings, Share};
use offers::Offers;
use prefilters::Prefilters;
use resolvers::HostResolvers;

/// Time for processes to end when Lasthop stops: 1 second.
const END_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for a single process to end after a stop: 200 milliseconds.
const STOP_TIMEOUT: Duration = Duration::from_millis(200);

/// Name of a port, and the reason why its interface cannot be used.
type InterfaceError = (String, String);

/// All drivers.
#[derive(Default)]
pub(super) struct Drivers {
    all: Vec<Driver>,
    /// Answers to dials for removed drivers.
    answers: Vec<Reply>,
    offers: Offers,
    /// Killed processes of removed drivers that have not ended.
    dying: Vec<DriverChild>,
    /// Control groups.
    groups: DriverGroups,
    /// Counters of removed drivers by the names of their ports, for those that replace them.
    histories: Vec<(PortName, History)>,
    /// Networks of user ports by the names of their ports.
    networks: Vec<(PortName, UserNetwork)>,
    /// Where forwards may listen.
    reach: ForwardReach,
    resolvers: HostResolvers,
    prefilters: Prefilters,
    /// Answers about tables of user ports, for control.
    pages: Vec<UserPortAnswer>,
}

impl Drivers {
    /// Returns an empty set; its forwards may listen in these places.
    pub(super) fn within(reach: ForwardReach) -> Self {
        Self {
            reach,
            ..Self::default()
        }
    }

    /// Makes the prefilters of these drivers, which needs rights that are given up later.
    pub(super) fn prepare(&mut self, specs: &[DriverSpec]) {
        let count = specs.iter().filter(|spec| spec.has_prefilter()).count();
        self.prefilters = Prefilters::prepare(count);
    }

    /// Returns whether programs of prefilters are those of another version, which needs a restart.
    pub(super) fn has_other_prefilters(&self) -> bool {
        self.prefilters.has_others()
    }

    /// Returns the filter of connections that prefilters read, for the switch.
    pub(super) fn connection_filter(&self) -> Option<BorrowedFd<'_>> {
        self.prefilters.connections()
    }

    /// Handles a request of control about drivers; returns the answer, if there is one, with its
    /// descriptor.
    pub(super) fn answer(
        &mut self,
        request: PortDriverRequest,
    ) -> Option<(PortDriverAnswer, Option<OwnedFd>)> {
        let answer = match request {
            PortDriverRequest::Set(specs) => {
                let error = self.set(specs).err();
                PortDriverAnswer::Set { error }
            }
            PortDriverRequest::States => PortDriverAnswer::States(self.states()),
            PortDriverRequest::Speeds => PortDriverAnswer::Speeds(self.speeds()),
            PortDriverRequest::Rooms(rooms) => {
                self.set_rooms(&rooms);
                return None;
            }
            PortDriverRequest::Prefilter(port) => return Some(self.table_of(&port)),
        };
        Some((answer, None))
    }

    /// Returns the table of a port's prefilter.
    fn table_of(&mut self, port: &PortName) -> (PortDriverAnswer, Option<OwnedFd>) {
        let mut all = self.all.iter_mut();
        let driver = all.find(|driver| driver.spec.name == *port);
        let table = driver.map(|driver| driver.settings().0.table());
        let (table, fd) = match table {
            Some(Ok(fd)) => (Ok(()), Some(fd)),
            Some(Err(reason)) => (Err(reason.to_string()), None),
            None => (Err("there is no such driver".to_owned()), None),
        };
        let port = port.to_string();
        (PortDriverAnswer::Prefilter { port, table }, fd)
    }

    /// Gives each driver with a desired prefilter its own.
    fn follow_prefilters(&mut self) {
        let (with, without): (Vec<_>, Vec<_>) = self
            .all
            .iter_mut()
            .partition(|driver| driver.spec.has_prefilter());
        for driver in without {
            let (settings, device) = driver.settings();
            settings.drop_prefilter(device);
        }
        let is_gone = |port: &PortName| !with.iter().any(|driver| driver.spec.name == *port);
        self.prefilters.release(is_gone);
        for driver in with {
            let (name, choice) = (driver.spec.name.clone(), driver.spec.prefilter);
            let (settings, device) = driver.settings();
            let fits = Settings::fit_prefilter(device.as_deref(), choice);
            let prefilter = fits.and_then(|()| self.prefilters.assign(&name));
            settings.set_prefilter(device, prefilter, choice);
        }
    }

    /// Handles a request of control about user ports; returns the answer, if it is there already.
    pub(super) fn answer_about_users(
        &mut self,
        request: UserPortRequest,
    ) -> Option<UserPortAnswer> {
        match request {
            UserPortRequest::Networks(networks) => {
                self.set_networks(networks);
                None
            }
            UserPortRequest::Table { port, question } => {
                self.ask(&port, question);
                None
            }
            UserPortRequest::ForwardReach => Some(UserPortAnswer::ForwardReach(self.reach.clone())),
        }
    }

    /// Sets the drivers. Drivers that do not change, or only in MTU, MAC address or CPU weight,
    /// keep their processes, and those that change in the back end only their own interfaces. All
    /// keep their counters.
    ///
    /// # Errors
    /// Port and reason of an interface that cannot be used. The drivers are as before then.
    pub(super) fn set(&mut self, specs: Vec<DriverSpec>) -> Result<(), InterfaceError> {
        let weights = weights(&specs);
        let done = self.replace(specs);
        if done.is_ok() {
            self.groups.set_weights(weights);
        }
        for (name, history) in std::mem::take(&mut self.histories) {
            let mut all = self.all.iter_mut();
            if let Some(driver) = all.find(|driver| driver.spec.name == name) {
                driver.inherit(history);
            }
        }
        self.distribute_networks();
        self.follow_prefilters();
        done
    }

    /// Sets the networks of user ports, by the names of ports. Those of ports that are there take
    /// effect at once; a process is replaced if its addresses change.
    pub(super) fn set_networks(&mut self, networks: Vec<(PortName, UserNetwork)>) {
        self.networks = networks;
        self.distribute_networks();
        // What the system refuses is known when control asks for the state next.
        self.follow_networks();
    }

    fn follow_networks(&mut self) {
        if !self.networks.is_empty() {
            let resolvers = self.resolvers.get(Instant::now());
            let all: Vec<_> = self.all.iter().map(Driver::namespace).collect();
            let forwards = |driver: &Driver| driver.descriptors().0;
            let (shares, mut sum) = (Shares::now(), self.all.iter().map(forwards).sum::<u64>());
            for (driver, own) in self.all.iter_mut().zip(&all) {
                let sharers = all.iter().filter(|other| *other == own).count();
                let others = sum - forwards(driver);
                let share = Share {
                    all: shares,
                    others,
                };
                driver.follow_network((resolvers, sharers as u32, share), &self.reach);
                sum = others + forwards(driver);
            }
        }
    }

    fn distribute_networks(&mut self) {
        let mut stopped = Vec::new();
        for driver in &mut self.all {
            let mut networks = self.networks.iter();
            let network = networks.find(|(name, _)| *name == driver.spec.name);
            stopped.extend(driver.set_network(network.map(|(_, network)| network.clone())));
        }
        self.end(stopped, STOP_TIMEOUT);
    }

    fn replace(&mut self, specs: Vec<DriverSpec>) -> Result<(), InterfaceError> {
        let is_there = |spec: &DriverSpec| self.all.iter().any(|d| d.is_for(spec));
        let (unchanged, new): (Vec<_>, Vec<_>) = specs.iter().cloned().partition(is_there);
        let old = |driver: &&Driver| !unchanged.iter().any(|spec| driver.is_for(spec));
        let taken = |spec: &DriverSpec| {
            let mut old = self.all.iter().filter(old);
            old.any(|d| d.has_interface_of(spec))
        };
        let (replacing, adding): (Vec<_>, Vec<_>) = new.into_iter().partition(taken);
        // Additions come first, because they change no other driver.
        let added = adding
            .into_iter()
            .map(open)
            .collect::<Result<Vec<_>, _>>()?;
        let mut before = Vec::new();
        if let Err(refusal) = self.exchange(unchanged, replacing, &mut before) {
            for spec in before.into_iter().rev() {
                self.restore(spec);
            }
            return Err(refusal);
        }
        self.remove(|driver| !specs.iter().any(|spec| driver.is_for(spec)));
        self.all.extend(added);
        Ok(())
    }

    /// Changes existing drivers; the specifications of before are appended to `before`.
    fn exchange(
        &mut self,
        unchanged: Vec<DriverSpec>,
        replacing: Vec<DriverSpec>,
        before: &mut Vec<DriverSpec>,
    ) -> Result<(), InterfaceError> {
        for spec in unchanged {
            let Some(driver) = self.all.iter_mut().find(|d| d.is_for(&spec)) else {
                continue;
            };
            before.push(driver.spec.clone());
            let name = spec.name.clone();
            let stopped = driver
                .change(spec)
                .map_err(|error| (name.to_string(), error.to_string()))?;
            if !stopped.is_empty() {
                self.end(stopped, STOP_TIMEOUT);
                // The next process, if there is one, makes it again.
                self.groups.remove(&[name]);
            }
        }
        for spec in replacing {
            let old = self.all.iter().filter(|d| d.has_interface_of(&spec));
            before.extend(old.map(|d| d.spec.clone()));
            self.remove(|driver| driver.has_interface_of(&spec));
            self.all.push(open(spec)?);
        }
        Ok(())
    }

    /// Restores a driver after a change that was refused.
    fn restore(&mut self, spec: DriverSpec) {
        let _port = tracing::info_span!("driver", port = &*spec.name).entered();
        let Some(driver) = self.all.iter_mut().find(|d| d.is_for(&spec)) else {
            self.remove(|driver| driver.has_interface_of(&spec));
            return self.all.push(Driver::reopen(spec));
        };
        match driver.change(spec) {
            Ok(stopped) => self.end(stopped, STOP_TIMEOUT),
            Err(error) => tracing::error!("cannot revert a change: {error}"),
        }
    }

    /// Adds the drivers to the record for the next supervisor.
    pub(super) fn pass<'a>(&'a self, outgoing: &mut OutgoingFds<'a>) -> Vec<PassedDriver> {
        let all = self.all.iter();
        all.map(|driver| driver.pass(outgoing)).collect()
    }

    /// Takes the drivers from the previous supervisor's record.
    ///
    /// # Errors
    /// A descriptor or a process is missing.
    pub(super) fn take(
        from: Vec<PassedDriver>,
        reach: ForwardReach,
        fds: &mut IncomingFds,
    ) -> Result<Self, RecordError> {
        let all = from.into_iter().map(|driver| Driver::take(driver, fds));
        let mut drivers = Self {
            all: all.collect::<Result<_, _>>()?,
            ..Self::within(reach)
        };
        if drivers.all.iter().any(|driver| driver.child.is_some()) {
            // The groups exist already, and are removed with their drivers. Without groups there is
            // nothing to remove.
            let _ = drivers.groups.take();
        }
        let specs: Vec<_> = drivers.all.iter().map(|d| d.spec.clone()).collect();
        drivers.groups.set_weights(weights(&specs));
        Ok(drivers)
    }

    /// Returns the user ports for the next supervisor.
    pub(super) fn pass_users<'a>(&'a self, outgoing: &mut OutgoingFds<'a>) -> PassedUsers {
        let all = self.all.iter();
        let flows = all.filter_map(|driver| driver.pass_flows(outgoing));
        PassedUsers {
            flows: flows.collect(),
            networks: self.networks.clone(),
            reach: self.reach.clone(),
        }
    }

    /// Returns the prefilters for the next supervisor.
    pub(super) fn pass_prefilters<'a>(
        &'a self,
        outgoing: &mut OutgoingFds<'a>,
    ) -> PassedPrefilters {
        self.prefilters.pass(outgoing)
    }

    /// Takes the prefilters from the previous supervisor's record.
    ///
    /// # Errors
    /// A descriptor is missing.
    pub(super) fn take_prefilters(
        &mut self,
        from: PassedPrefilters,
        fds: &mut IncomingFds,
    ) -> Result<(), RecordError> {
        self.prefilters = Prefilters::take(from, fds)?;
        self.follow_prefilters();
        Ok(())
    }

    /// Takes kept flows from the previous supervisor's record.
    ///
    /// # Errors
    /// A descriptor is missing.
    pub(super) fn take_flows(
        &mut self,
        from: Vec<PassedFlows>,
        fds: &mut IncomingFds,
    ) -> Result<(), RecordError> {
        for flows in from {
            let mut all = self.all.iter_mut();
            if let Some(driver) = all.find(|driver| driver.spec.name == flows.port) {
                driver.take_flows(flows, fds)?;
            }
        }
        Ok(())
    }

    /// Removes drivers. Their interfaces are free when this returns, unless a process does not die.
    fn remove(&mut self, which: impl FnMut(&mut Driver) -> bool) {
        let mut removed: Vec<Driver> = self.all.extract_if(.., which).collect();
        let children = removed.iter_mut().flat_map(Driver::take_children);
        let children = children.collect();
        self.end(children, STOP_TIMEOUT);
        let mut names = Vec::new();
        for driver in removed {
            let name = driver.spec.name.clone();
            let (history, answer) = driver.remove();
            self.histories.push((name.clone(), history));
            self.answers.extend(answer);
            names.push(name);
        }
        self.groups.remove(&names);
    }

    /// Stops processes, which complete their frames, and waits for their ends. Those that are left
    /// at the end of the time are killed.
    fn end(&mut self, children: Vec<DriverChild>, time: Duration) {
        for child in &children {
            // A process that is gone needs no message.
            let _ = child.try_send(&EventToDriver::Stop, &[]);
        }
        let deadline = Instant::now() + time;
        for mut child in children {
            if !child.wait(deadline) {
                tracing::error!("killed driver does not end");
                self.dying.push(child);
            }
        }
    }

    /// Returns the driver of a port.
    fn of(&mut self, port: PortId) -> Option<&mut Driver> {
        self.all.iter_mut().find(|driver| driver.spec.port == port)
    }

    /// Registers a dial of the switch. Returns `false` if the port has no driver. The switch does
    /// not get the interface of a port that is quarantined.
    pub(super) fn dial(&mut self, port: PortId, is_quarantined: bool) -> bool {
        let Some(driver) = self.of(port) else {
            return false;
        };
        driver.on_dial(is_quarantined);
        true
    }

    /// Notes that the switch has closed the interface of a port. A message about a port has no
    /// effect if its driver was removed or replaced meanwhile.
    pub(super) fn lose_interface(&mut self, port: PortId, reason: &str, device_lost: bool) {
        if let Some(driver) = self.of(port) {
            driver.lose_interface(reason, device_lost);
        }
    }

    /// Notes the counters of an interface that the switch serves, as [`Self::lose_interface`] notes
    /// its end.
    pub(super) fn count_interface(&mut self, port: PortId, counters: DriverCounters) {
        if let Some(driver) = self.of(port) {
            driver.count_interface(counters);
        }
    }

    /// Notes that the switch is gone.
    pub(super) fn lose_switch(&mut self) {
        self.all.iter_mut().for_each(Driver::lose_switch);
    }

    /// Offers a new switch the interfaces that it may serve itself; [`Self::send_offers`] sends
    /// them. It dials for each other port without a connection that continues.
    pub(super) fn offer_interfaces(&mut self, is_quarantined: impl Fn(PortId) -> bool) {
        let offered = self.all.iter_mut().filter_map(|driver| {
            let port = driver.spec.port;
            driver.offer(is_quarantined(port)).then_some(port)
        });
        self.offers = Offers::of(offered);
    }

    /// Notes that the new switch is the serving one, which has what it was offered.
    pub(super) fn change_switch(&mut self) {
        self.all.iter_mut().for_each(Driver::change_switch);
    }

    /// Drops the offers that were not sent: there is no new switch.
    pub(super) fn withdraw_offers(&mut self) {
        self.offers = Offers::default();
    }

    /// Returns whether a new switch lacks interfaces that it was offered.
    pub(super) fn has_offers(&self) -> bool {
        !self.offers.is_empty()
    }

    /// Sends a new switch the interfaces that fit into its link, without waiting. `send` fails with
    /// [`io::ErrorKind::WouldBlock`] where a message does not fit.
    ///
    /// # Errors
    /// Other errors of `send`.
    pub(super) fn send_offers(
        &mut self,
        send: impl Fn(&EventToSwitch, &[BorrowedFd<'_>]) -> io::Result<()>,
    ) -> io::Result<()> {
        let all = &mut self.all;
        let copies = |port| {
            let driver = all.iter_mut().find(|driver| driver.spec.port == port)?;
            driver.offered()
        };
        self.offers.send(copies, send)
    }

    /// Polls all drivers and returns answers for the switch. `poll_us` holds for new processes: see
    /// [`DriverStart::poll_us`](ipc::driving::DriverStart::poll_us).
    pub(super) fn poll(&mut self, binaries: &Binaries, poll_us: Option<u16>) -> Vec<Reply> {
        self.dying.retain_mut(|child| child.has_died().is_none());
        self.follow_networks();
        let mut start = ProcessStart {
            binaries,
            groups: &mut self.groups,
            poll_us,
        };
        let flows = |driver: &Driver| driver.descriptors().1;
        let (most, mut sum) = (
            Shares::now().flows(),
            self.all.iter().map(flows).sum::<u64>(),
        );
        let turn = |driver: &mut Driver| {
            let _port = tracing::info_span!("driver", port = &*driver.spec.name).entered();
            let others = sum - flows(driver);
            let reply = driver.poll(&mut start, shares::of_one(most, others));
            sum = others + flows(driver);
            reply
        };
        let mut answers = std::mem::take(&mut self.answers);
        answers.extend(self.all.iter_mut().filter_map(turn));
        answers
    }

    /// Takes the events since the last call.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        let all = self.all.iter_mut();
        all.flat_map(|driver| std::mem::take(&mut driver.events))
            .collect()
    }

    /// Returns the descriptors to poll.
    pub(super) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let living = self.all.iter().flat_map(Driver::sources);
        living.chain(self.dying.iter().flat_map(Child::ends))
    }

    /// Returns the time of the next timer.
    pub(super) fn due(&self) -> Option<Instant> {
        let at_once = self.answers.first().map(|_| Instant::now());
        let dying = self.dying.iter().filter_map(Child::give_up_due);
        let living = self.all.iter().filter_map(Driver::due);
        living.chain(at_once).chain(dying).min()
    }

    /// Returns the names of ports with a driver that serves.
    pub(super) fn serving(&self) -> impl Iterator<Item = &str> {
        let serving = self.all.iter().filter(|driver| driver.serves());
        serving.map(|driver| &*driver.spec.name)
    }

    /// Starts the replacement of a port's process by one of other binaries. Returns `false` if
    /// there is none.
    ///
    /// # Errors
    /// It cannot be started; the old one continues.
    pub(super) fn renew(&mut self, port: &str, binaries: &Binaries) -> io::Result<bool> {
        let mut serving = self.all.iter_mut().filter(|driver| driver.serves());
        match serving.find(|driver| *driver.spec.name == *port) {
            Some(driver) => driver.renew(binaries).map(|()| true),
            None => Ok(false),
        }
    }

    /// Returns the result of a replacement; `None` while it is in progress.
    pub(super) fn renewed(&mut self, port: &str) -> Option<RenewalResult> {
        match self.all.iter_mut().find(|d| *d.spec.name == *port) {
            Some(driver) => driver.renewed(),
            None => Some(RenewalResult::Gone),
        }
    }

    /// Returns whether there are user ports: their forwards and flows have shares of descriptors.
    pub(super) fn has_user_ports(&self) -> bool {
        !self.networks.is_empty()
    }

    /// Returns the states for control.
    pub(super) fn states(&self) -> Vec<DriverState> {
        let state = |driver: &Driver| DriverState {
            cpu_weight_error: self.groups.weight_error(&driver.spec.name).cloned(),
            ..driver.state()
        };
        self.all.iter().map(state).collect()
    }

    /// Bounds the bytes that may wait in the interfaces of these ports, by name; those of other
    /// ports are not bounded.
    pub(super) fn set_rooms(&mut self, rooms: &[(PortName, u64)]) {
        for driver in &mut self.all {
            let mut of = rooms.iter();
            let room = of.find(|(name, _)| *name == driver.spec.name);
            let room = room.map(|(_, room)| *room);
            let (settings, device) = driver.settings();
            settings.set_room(device, room);
        }
    }

    /// Asks the driver of a user port for a part of a table; see [`Self::take_pages`].
    pub(super) fn ask(&mut self, port: &PortName, question: UserQuestion) {
        let mut all = self.all.iter_mut();
        match all.find(|driver| driver.spec.name == *port && driver.is_user()) {
            Some(driver) => driver.ask(question),
            None => self.pages.push(UserPortAnswer::Page {
                port: port.to_string(),
                question,
                page: Err(NoAnswer::NoDriver.to_string()),
            }),
        }
    }

    /// Takes the answers about tables of user ports.
    pub(super) fn take_pages(&mut self) -> Vec<UserPortAnswer> {
        let mut pages = std::mem::take(&mut self.pages);
        for driver in &mut self.all {
            let answers = driver.take_answers().into_iter();
            pages.extend(answers.map(|(question, page)| UserPortAnswer::Page {
                port: driver.spec.name.to_string(),
                question,
                page: page.map_err(|error| error.to_string()),
            }));
        }
        pages
    }

    /// Returns the speeds of existing interfaces, in bits a second, with the names of their ports,
    /// as far as they are known.
    pub(super) fn speeds(&self) -> Vec<(String, u64)> {
        let all = self.all.iter();
        let speeds = all.map(|driver| (driver.spec.name.to_string(), driver.speed()));
        speeds
            .filter_map(|(name, speed)| Some((name, speed?)))
            .collect()
    }

    /// Returns the process information of `lasthop status`.
    pub(super) fn processes(&self) -> impl Iterator<Item = ProcessInfo> {
        self.all.iter().filter_map(|driver| {
            let mut info = driver.child.as_ref()?.info();
            info.name = format!("driver {}", driver.spec.name);
            Some(info)
        })
    }

    /// Stops all drivers and waits for their ends.
    pub(super) fn stop(&mut self) {
        let mut drivers = std::mem::take(&mut self.all);
        let names: Vec<_> = drivers.iter().map(|d| d.spec.name.clone()).collect();
        let children = drivers.iter_mut().flat_map(Driver::take_children);
        self.end(children.collect(), END_TIMEOUT);
        self.groups.remove(&names);
    }
}

/// Returns the CPU weights of drivers, by the names of ports; the others have the default.
fn weights(specs: &[DriverSpec]) -> Vec<(PortName, u16)> {
    let weight = |spec: &DriverSpec| Some((spec.name.clone(), spec.cpu_weight?));
    specs.iter().filter_map(weight).collect()
}

fn open(spec: DriverSpec) -> Result<Driver, InterfaceError> {
    let _port = tracing::info_span!("driver", port = &*spec.name).entered();
    let name = spec.name.to_string();
    Driver::open(spec).map_err(|error| (name, error.to_string()))
}
