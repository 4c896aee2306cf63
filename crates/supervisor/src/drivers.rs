//! Drivers: interfaces that the supervisor keeps open, and one process for each while the switch is
//! connected to it.
//!
//! ```text
//! switch dials         the interface is checked, and a process started; it gets one end of a
//!                      socket pair, and the switch the other, like the connection of a VMM
//! process dies, hangs  the switch loses the connection and dials again; a process that does not
//!                      reply to pings is killed first
//! interface removed    the process reports that and ends; the interface is opened again when the
//!                      switch dials
//! another interface    it is opened; the process is stopped, completes its frames and ends; the
//!                      switch dials
//! interface missing    the port of an uplink waits; each dial of the switch tries to open it
//! ```
//!
//! The supervisor never waits for messages of a driver, and only a bounded time for its death.

mod driver;
mod resolvers;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use api::v1::Event;
use channel::driving::{self, Calls, DriverSpec, DriverState, UserNetwork};
use channel::forwards::ForwardReach;
use channel::names::PortName;
use channel::supervision::{ProcessInfo, SupervisorEvent};
use channel::user_reports::{UserFigures, UserQuestion};
use port::PortId;

use super::Reply;
use super::binaries::Binaries;
use super::child::Child;
use super::groups::DriverGroups;
use super::replace::{IncomingFds, OutgoingFds, PassedDriver, PassedFlows, PassedUsers};
pub(super) use driver::Renewed;
use driver::{Dial, Driver, History};
use resolvers::HostResolvers;

/// Time in which processes must end when Lasthop stops: 1 second.
const END_TIMEOUT: Duration = Duration::from_secs(1);
/// Time in which a single process that is stopped must end: 200 milliseconds.
const STOP_TIMEOUT: Duration = Duration::from_millis(200);

/// Name of a port, and the reason why its interface cannot be used.
type InterfaceError = (String, String);

/// All drivers.
#[derive(Default)]
pub(super) struct Drivers {
    all: Vec<Driver>,
    /// Answers to dials for removed drivers.
    answers: Vec<Reply>,
    /// Killed processes of removed drivers that have not ended.
    dying: Vec<Child>,
    /// Control groups.
    groups: DriverGroups,
    /// Counters of removed drivers by the names of their ports, for those that replace them.
    histories: Vec<(PortName, History)>,
    /// Networks of user ports by the names of their ports.
    networks: Vec<(PortName, UserNetwork)>,
    /// Where forwards may listen.
    reach: ForwardReach,
    resolvers: HostResolvers,
    /// Answers about tables of user ports, for control.
    pages: Vec<SupervisorEvent>,
}

impl Drivers {
    /// Returns an empty set; its forwards may listen in these places.
    pub(super) fn within(reach: ForwardReach) -> Self {
        Self {
            reach,
            ..Self::default()
        }
    }

    /// Returns where forwards may listen.
    pub(super) fn reach(&self) -> &ForwardReach {
        &self.reach
    }

    /// Sets the drivers. Drivers that do not change, or only in MTU or MAC address, keep their
    /// processes, and those that change in the back end only their own interfaces. All keep their
    /// counters.
    ///
    /// # Errors
    /// Port and reason of an interface that cannot be used. The drivers are as before then.
    pub(super) fn set(&mut self, specs: Vec<DriverSpec>) -> Result<(), InterfaceError> {
        let done = self.replace(specs);
        for (name, history) in std::mem::take(&mut self.histories) {
            let mut all = self.all.iter_mut();
            if let Some(driver) = all.find(|driver| driver.spec.name == name) {
                driver.inherit(history);
            }
        }
        self.distribute_networks();
        done
    }

    /// Sets the networks of user ports, by the names of ports. Those of ports that are there take
    /// effect at once; a process whose addresses change is replaced.
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
            for (driver, own) in self.all.iter_mut().zip(&all) {
                let sharers = all.iter().filter(|other| *other == own).count();
                driver.follow_network((resolvers, sharers as u32), &self.reach);
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
            let name = spec.name.to_string();
            let stopped = driver.change(spec).map_err(|reason| (name, reason))?;
            self.end(stopped, STOP_TIMEOUT);
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
    ) -> Result<Self, String> {
        let all = from.into_iter().map(|driver| Driver::take(driver, fds));
        let drivers = Self {
            all: all.collect::<Result<_, _>>()?,
            ..Self::within(reach)
        };
        if drivers.all.iter().any(|driver| driver.child.is_some()) {
            // The groups exist already, and are removed with their drivers. Without groups there is
            // nothing to remove.
            let _ = drivers.groups.take();
        }
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

    /// Takes kept flows from the previous supervisor's record.
    ///
    /// # Errors
    /// A descriptor is missing.
    pub(super) fn take_flows(
        &mut self,
        from: Vec<PassedFlows>,
        fds: &mut IncomingFds,
    ) -> Result<(), String> {
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
    fn end(&mut self, children: Vec<Child>, time: Duration) {
        for child in &children {
            // A process that is gone needs no message.
            let _ = child.try_send(&SupervisorEvent::Stop, &[]);
        }
        let deadline = Instant::now() + time;
        for mut child in children {
            if !child.wait(deadline) {
                tracing::error!("killed driver does not end");
                self.dying.push(child);
            }
        }
    }

    /// Registers a dial of the switch. Returns `false` if the port has no driver.
    pub(super) fn dial(&mut self, port: PortId) -> bool {
        let mut all = self.all.iter_mut();
        let Some(driver) = all.find(|d| d.spec.port == port) else {
            return false;
        };
        let path = driving::address(&driver.spec.name);
        driver.dial = Some(Dial { port, path });
        true
    }

    /// Polls all drivers and returns answers for the switch.
    pub(super) fn poll(&mut self, binaries: &Binaries) -> Vec<Reply> {
        self.dying.retain_mut(|child| child.has_died().is_none());
        self.follow_networks();
        let groups = &mut self.groups;
        let turn = |driver: &mut Driver| {
            let _port = tracing::info_span!("driver", port = &*driver.spec.name).entered();
            driver.poll(binaries, groups)
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
        living.chain(self.dying.iter().filter_map(Child::pidfd))
    }

    /// Returns the time of the next timer.
    pub(super) fn due(&self) -> Option<Instant> {
        let at_once = self.answers.first().map(|_| Instant::now());
        let dying = self.dying.iter().filter_map(Child::give_up_due);
        let living = self.all.iter().filter_map(Driver::due);
        living.chain(at_once).chain(dying).min()
    }

    /// Returns the names of ports whose driver serves.
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
    pub(super) fn renewed(&mut self, port: &str) -> Option<Renewed> {
        match self.all.iter_mut().find(|d| *d.spec.name == *port) {
            Some(driver) => driver.renewed(),
            None => Some(Renewed::Gone),
        }
    }

    /// Returns the states for control.
    pub(super) fn states(&self) -> Vec<DriverState> {
        self.all.iter().map(Driver::state).collect()
    }

    /// Returns the frames and calls of the drivers, by the names of ports.
    pub(super) fn calls(&self) -> Vec<(String, [Calls; 2])> {
        let states = self.all.iter().map(Driver::state);
        let calls =
            |state: DriverState| (state.name, [state.counters.received, state.counters.sent]);
        states.map(calls).collect()
    }

    /// Returns the frames that the kernel dropped in front of the drivers, by the names of ports,
    /// as far as they are known.
    pub(super) fn kernel_drops(&self) -> Vec<(String, u64)> {
        let states = self.all.iter().map(Driver::state);
        states
            .filter_map(|state| Some((state.name, state.counters.dropped_by_kernel?)))
            .collect()
    }

    /// Returns the MAC addresses of existing interfaces with the names of their ports.
    pub(super) fn addresses(&self) -> Vec<(String, [u8; 6])> {
        let addresses = self
            .all
            .iter()
            .map(|driver| (driver.spec.name.to_string(), driver.mac()));
        addresses
            .filter_map(|(name, mac)| Some((name, mac?)))
            .collect()
    }

    /// Bounds the bytes that may wait in the interfaces of these ports, by name; those of other
    /// ports are not bounded.
    pub(super) fn set_rooms(&mut self, rooms: &[(PortName, u64)]) {
        for driver in &mut self.all {
            let mut of = rooms.iter();
            let room = of.find(|(name, _)| *name == driver.spec.name);
            driver.set_room(room.map(|(_, room)| *room));
        }
    }

    /// Sets the CPU weights of these drivers, by the names of ports; the others have the system's
    /// default.
    pub(super) fn set_cpu_weights(&mut self, weights: Vec<(PortName, u16)>) {
        self.groups.set_weights(weights);
    }

    /// Returns the reasons why CPU weights have no effect, by the names of ports.
    pub(super) fn cpu_weight_errors(&self) -> Vec<(String, String)> {
        self.groups.weight_errors()
    }

    /// Returns the figures of user ports, by the names of ports.
    pub(super) fn user_figures(&self) -> Vec<(String, UserFigures)> {
        let all = self.all.iter();
        all.filter_map(|driver| Some((driver.spec.name.to_string(), driver.user_figures()?)))
            .collect()
    }

    /// Asks the driver of a user port for a part of a table; see [`Self::take_pages`].
    pub(super) fn ask(&mut self, port: &PortName, question: UserQuestion) {
        let mut all = self.all.iter_mut();
        match all.find(|driver| driver.spec.name == *port && driver.is_user()) {
            Some(driver) => driver.ask(question),
            None => self.pages.push(SupervisorEvent::UserPage {
                port: port.to_string(),
                question,
                page: Err("it has no driver".to_owned()),
            }),
        }
    }

    /// Takes the answers about tables of user ports.
    pub(super) fn take_pages(&mut self) -> Vec<SupervisorEvent> {
        let mut pages = std::mem::take(&mut self.pages);
        for driver in &mut self.all {
            let answers = driver.take_answers().into_iter();
            pages.extend(answers.map(|(question, page)| SupervisorEvent::UserPage {
                port: driver.spec.name.to_string(),
                question,
                page,
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

fn open(spec: DriverSpec) -> Result<Driver, InterfaceError> {
    let _port = tracing::info_span!("driver", port = &*spec.name).entered();
    let name = spec.name.to_string();
    Driver::open(spec).map_err(|reason| (name, reason))
}
