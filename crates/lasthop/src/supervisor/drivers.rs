//! The drivers: interfaces that the supervisor keeps open, and a process for each while the switch is connected to it.
//!
//! ```text
//! switch dials            the interface is looked at, a process started, a socket pair made: one end goes to the
//!                         process, the other to the switch, as if it came from a VMM
//! process dies, hangs     the switch loses the connection and dials again; a process that does not answer pings is
//!                         killed first
//! interface goes          the process ends and says so; the interface is opened anew when the switch dials
//! interface is not there  of an uplink: its port waits, and it is looked for whenever the switch dials
//! ```
//!
//! Nothing here waits for a driver's words, and for its death only so long.

mod driver;
#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use api::v1::Event;
use channel::driving::{self, DriverSpec, DriverState};
use channel::supervision::{ProcessInfo, Tell};
use port::PortId;

use super::binaries::Binaries;
use super::child::Child;
use super::groups::Groups;
use super::replace::{Giving, PassedDriver, Taking};
pub(super) use driver::Renewed;
use driver::{Dial, Dialed, Driver};

/// How long the end of processes is waited for that were told to end, or killed.
const END: Duration = Duration::from_secs(1);

/// The name of a port, and why its interface cannot be had.
type Refusal = (String, String);

/// See the module.
#[derive(Default)]
pub(super) struct Drivers {
    all: Vec<Driver>,
    /// Answers to dials for drivers that are not there any more.
    answers: Vec<Dialed>,
    /// Killed processes of such drivers that take their time to die.
    dying: Vec<Child>,
    /// What limits them from outside; known once there is a driver, `None` where there is nothing.
    groups: OnceCell<Option<Groups>>,
}

impl Drivers {
    /// Has these and no others. Those that are wanted as they are stay as they are, and so do those with another
    /// MTU or MAC address.
    ///
    /// # Errors
    /// An interface that cannot be had, as port and reason. Then everything is as it was before.
    pub(super) fn want(&mut self, specs: Vec<DriverSpec>) -> Result<(), Refusal> {
        let is_there = |spec: &DriverSpec| self.all.iter().any(|d| d.is_for(spec));
        let (kept, new): (Vec<_>, Vec<_>) = specs.iter().cloned().partition(is_there);
        let old = |driver: &&Driver| !kept.iter().any(|spec| driver.is_for(spec));
        let taken = |spec: &DriverSpec| {
            let mut old = self.all.iter().filter(old);
            old.any(|d| d.has_interface_of(spec))
        };
        let (replacing, adding): (Vec<_>, Vec<_>) = new.into_iter().partition(taken);
        // First what touches nothing that is there.
        let added = adding
            .into_iter()
            .map(open)
            .collect::<Result<Vec<_>, _>>()?;
        let mut before = Vec::new();
        if let Err(refusal) = self.exchange(kept, replacing, &mut before) {
            for spec in before.into_iter().rev() {
                self.restore(spec);
            }
            return Err(refusal);
        }
        self.part(|driver| !specs.iter().any(|spec| driver.is_for(spec)));
        self.all.extend(added);
        Ok(())
    }

    /// Changes what is there; what there was before goes to `before`.
    fn exchange(
        &mut self,
        kept: Vec<DriverSpec>,
        replacing: Vec<DriverSpec>,
        before: &mut Vec<DriverSpec>,
    ) -> Result<(), Refusal> {
        for spec in kept {
            let Some(driver) = self.all.iter_mut().find(|d| d.is_for(&spec)) else {
                continue;
            };
            before.push(driver.spec.clone());
            let name = spec.name.clone();
            driver.change(spec).map_err(|reason| (name, reason))?;
        }
        for spec in replacing {
            let old = self.all.iter().filter(|d| d.has_interface_of(&spec));
            before.extend(old.map(|d| d.spec.clone()));
            self.part(|driver| driver.has_interface_of(&spec));
            self.all.push(open(spec)?);
        }
        Ok(())
    }

    /// Has again what there was before a change that was refused.
    fn restore(&mut self, spec: DriverSpec) {
        let _port = tracing::info_span!("driver", port = spec.name).entered();
        let Some(driver) = self.all.iter_mut().find(|d| d.is_for(&spec)) else {
            self.part(|driver| driver.has_interface_of(&spec));
            return self.all.push(Driver::reopen(spec));
        };
        if let Err(error) = driver.change(spec) {
            tracing::error!("a change could not be taken back: {error}");
        }
    }

    /// For the supervisor that takes the place of this one.
    pub(super) fn pass<'a>(&'a self, giving: &mut Giving<'a>) -> Vec<PassedDriver> {
        let all = self.all.iter();
        all.map(|driver| driver.pass(giving)).collect()
    }

    /// Those of the supervisor before this one.
    ///
    /// # Errors
    /// Something of one is not there.
    pub(super) fn take(from: Vec<PassedDriver>, fds: &mut Taking) -> Result<Self, String> {
        let all = from.into_iter().map(|driver| Driver::take(driver, fds));
        let drivers = Self {
            all: all.collect::<Result<_, _>>()?,
            ..Self::default()
        };
        if drivers.all.iter().any(|driver| driver.child.is_some()) {
            // They are there already, and are removed with their drivers.
            drivers.groups.get_or_init(Groups::take);
        }
        Ok(drivers)
    }

    /// Parts with drivers. Their interfaces are free for others when this returns, unless a process does not die.
    fn part(&mut self, which: impl FnMut(&mut Driver) -> bool) {
        let (mut children, mut names) = (Vec::new(), Vec::new());
        for driver in self.all.extract_if(.., which) {
            names.push(driver.spec.name.clone());
            let (child, answer) = driver.part();
            children.extend(child);
            self.answers.extend(answer);
        }
        self.bury(children, Instant::now() + END);
        self.remove_groups(&names);
    }

    /// Waits for the end of processes, but not for ever.
    fn bury(&mut self, children: Vec<Child>, deadline: Instant) {
        for mut child in children {
            if !child.wait(deadline) {
                tracing::error!("a driver was killed and does not die");
                self.dying.push(child);
            }
        }
    }

    /// The switch dials. `false` when that is for no driver.
    pub(super) fn dial(&mut self, port: PortId) -> bool {
        let mut all = self.all.iter_mut();
        let Some(driver) = all.find(|d| d.spec.port == port) else {
            return false;
        };
        let path = driving::address(&driver.spec.name);
        driver.dial = Some(Dial { port, path });
        true
    }

    /// What a port's driver is called instead of a path.
    pub(super) fn address(&self, port: PortId) -> Option<String> {
        let found = self.all.iter().find(|d| d.spec.port == port);
        found.map(|driver| driving::address(&driver.spec.name))
    }

    /// Looks after all; answers for the switch.
    pub(super) fn turn(&mut self, binaries: &Binaries) -> Vec<Dialed> {
        self.dying.retain_mut(|child| child.has_died().is_none());
        let groups = &self.groups;
        let turn = |driver: &mut Driver| {
            let _port = tracing::info_span!("driver", port = driver.spec.name).entered();
            driver.turn(binaries, groups)
        };
        let mut answers = std::mem::take(&mut self.answers);
        answers.extend(self.all.iter_mut().filter_map(turn));
        answers
    }

    /// What has happened since this was asked last.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        let all = self.all.iter_mut();
        all.flat_map(|driver| std::mem::take(&mut driver.happened))
            .collect()
    }

    /// What says that there is something to look after.
    pub(super) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let living = self.all.iter().flat_map(Driver::sources);
        living.chain(self.dying.iter().filter_map(Child::pidfd))
    }

    /// When there is, at the latest.
    pub(super) fn due(&self) -> Option<Instant> {
        let at_once = self.answers.first().map(|_| Instant::now());
        self.all.iter().filter_map(Driver::due).chain(at_once).min()
    }

    /// Names of ports whose driver serves.
    pub(super) fn serving(&self) -> impl Iterator<Item = &str> {
        let serving = self.all.iter().filter(|driver| driver.serves());
        serving.map(|driver| driver.spec.name.as_str())
    }

    /// Begins to replace the process of a port by one of other binaries. `false` when there is none.
    ///
    /// # Errors
    /// It cannot be started; the old one goes on.
    pub(super) fn renew(&mut self, port: &str, binaries: &Binaries) -> io::Result<bool> {
        let mut serving = self.all.iter_mut().filter(|driver| driver.serves());
        match serving.find(|driver| driver.spec.name == port) {
            Some(driver) => driver.renew(binaries).map(|()| true),
            None => Ok(false),
        }
    }

    /// What has come of that; nothing while it goes on.
    pub(super) fn renewed(&mut self, port: &str) -> Option<Renewed> {
        match self.all.iter_mut().find(|d| d.spec.name == port) {
            Some(driver) => driver.renewed(),
            None => Some(Renewed::Gone),
        }
    }

    /// For control.
    pub(super) fn states(&self) -> Vec<DriverState> {
        self.all.iter().map(Driver::state).collect()
    }

    /// The MAC addresses of interfaces that are there, by their ports' names.
    pub(super) fn addresses(&self) -> Vec<(String, [u8; 6])> {
        let addresses = self
            .all
            .iter()
            .map(|driver| (driver.spec.name.clone(), driver.mac()));
        addresses
            .filter_map(|(name, mac)| Some((name, mac?)))
            .collect()
    }

    /// For `lasthop status`.
    pub(super) fn processes(&self) -> impl Iterator<Item = ProcessInfo> {
        self.all.iter().filter_map(|driver| {
            let mut info = driver.child.as_ref()?.info();
            info.name = format!("driver {}", driver.spec.name);
            Some(info)
        })
    }

    /// Ends all and waits for them.
    pub(super) fn stop(&mut self) {
        let drivers = std::mem::take(&mut self.all);
        let names: Vec<_> = drivers.iter().map(|d| d.spec.name.clone()).collect();
        let children = drivers.into_iter().flat_map(Driver::into_children);
        let children: Vec<_> = children.collect();
        for child in &children {
            // One that is gone need not be told.
            let _ = child.tell_at_once(&Tell::Stop, &[]);
        }
        self.bury(children, Instant::now() + END);
        self.remove_groups(&names);
    }

    fn remove_groups(&self, names: &[String]) {
        if let Some(Some(groups)) = self.groups.get() {
            names.iter().for_each(|name| groups.remove(name));
        }
    }
}

fn open(spec: DriverSpec) -> Result<Driver, Refusal> {
    let _port = tracing::info_span!("driver", port = spec.name).entered();
    let name = spec.name.clone();
    Driver::open(spec).map_err(|reason| (name, reason))
}
