//! Control and switch give way to a new pair, which runs before the old one stops.
//!
//! ```text
//!              old control     old switch      new control     new switch
//! start                                        runs            runs, with its workers
//! Freezing     Freeze; Frozen
//! Preparing                                    StartControl    ControlLink
//!                                              (frozen)        adds ports, gets the program
//!                                              Ready
//! Resting                      Rest; Rested                                            the gap
//! Giving                                                       Kept...                 the gap
//! GoingOn                                                      GoOn; GoesOn            the gap
//! done         ends            ends            Thaw
//! ```
//!
//! Each control speaks with the switch of its own version only. Until [`Tell::GoOn`] was said, the old pair can go on as if
//! nothing had been. After that the new switch may have moved positions in queues which the old one would not know of:
//! if it fails then, all four end, and a pair of the old version starts as after a death.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use channel::supervision::{Ask, SwitchSettings, Tell, monotonic_ns};

use super::binaries::Binaries;
use super::child::{Child, Kind};
use super::{LAST_MESSAGES, Supervisor, Who};

/// How long the new pair may take to be where nothing but its connections is missing.
const PREPARATION: Duration = Duration::from_secs(10);
/// How long the old switch may take to leave its queues.
const REST: Duration = Duration::from_millis(500);
/// How long the new one may take to read what was kept.
const GIVING: Duration = Duration::from_secs(2);
/// How long it may take to go on with that.
const GOING_ON: Duration = Duration::from_secs(2);
/// How long the end of a process that was killed is waited for.
const END: Duration = Duration::from_secs(1);

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
enum Stage {
    Freezing,
    Preparing,
    Resting,
    Giving,
    GoingOn,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Freezing => "the old control did not finish what it was doing",
            Stage::Preparing => "the new processes were not ready",
            Stage::Resting => "the old switch did not leave its queues",
            Stage::Giving => "the new switch did not read what was kept",
            Stage::GoingOn => "the new switch did not go on",
        })
    }
}

/// See the module.
pub(super) struct HandOver {
    control: Child,
    switch: Child,
    stage: Stage,
    deadline: Instant,
    /// When the old switch left its first queue, on the machine's monotonic clock.
    left_at_ns: u64,
}

/// How it ended.
pub(super) enum Handed {
    /// The new pair serves.
    Done {
        /// How long queues were left alone, milliseconds.
        gap_ms: f64,
        /// Connections that went on.
        connections: u32,
    },
    /// The old version serves.
    Failed(String),
}

impl HandOver {
    /// Control or the switch of the new pair.
    pub(super) fn child(&mut self, kind: Kind) -> &mut Child {
        match kind {
            Kind::Control => &mut self.control,
            _ => &mut self.switch,
        }
    }

    /// Both.
    pub(super) fn children(&self) -> [(Who, &Child); 2] {
        [&self.control, &self.switch].map(|child| {
            let kind = child.kind();
            (Who { kind, next: true }, child)
        })
    }

    /// The switch of the new pair.
    pub(super) fn switch(&self) -> &Child {
        &self.switch
    }

    /// Whether it is the new switch that gets what was kept.
    pub(super) fn gets_deposits(&self) -> bool {
        self.stage == Stage::Giving
    }

    /// When it has failed.
    pub(super) fn due(&self) -> Instant {
        self.deadline
    }

    /// Whether what the new switch deposits is of connections that are its own.
    pub(super) fn is_serving(&self) -> bool {
        self.stage == Stage::GoingOn
    }

    fn enter(&mut self, stage: Stage, patience: Duration) {
        self.stage = stage;
        self.deadline = Instant::now() + patience;
    }

    /// Ends both. Control comes first: it would complain of a switch that is gone.
    fn end(&mut self) {
        end(&mut self.control);
        end(&mut self.switch);
    }

    /// If one of the new processes has ended: which, and how.
    fn lost(&mut self) -> Option<String> {
        for child in [&mut self.control, &mut self.switch] {
            if let Some(status) = child.has_died() {
                return Some(format!("the new {} ended ({status})", child.kind()));
            }
        }
        None
    }
}

impl Supervisor {
    /// Starts a new pair from other binaries. How that ends is in `handed`, once it has.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn begin_hand_over(&mut self, binaries: &Binaries) -> io::Result<()> {
        let mut switch = Child::start(Kind::Switch, binaries)?;
        let control = Child::start(Kind::Control, binaries).inspect_err(|_| end(&mut switch))?;
        let next = HandOver {
            control,
            switch,
            stage: Stage::Freezing,
            deadline: Instant::now() + PREPARATION,
            left_at_ns: 0,
        };
        // A process that does not hear it has ended, which is seen in time, with how it did.
        noted(self.start_next_switch(&next.switch));
        noted(self.control.tell(&Tell::Freeze, &[]));
        self.next = Some(next);
        Ok(())
    }

    fn start_next_switch(&self, switch: &Child) -> io::Result<()> {
        let settings = SwitchSettings {
            successor: true,
            waits: true,
            ..self.settings.clone()
        };
        let fds = [self.counters.as_fd(), self.marks.as_fd()];
        switch.tell(&Tell::StartSwitch(settings), &fds)
    }

    /// Follows what the processes of both pairs have done, and the time.
    pub(super) fn turn_hand_over(&mut self) -> io::Result<()> {
        let Some(next) = &mut self.next else {
            return Ok(());
        };
        if let Some(reason) = next.lost() {
            return self.give_up(reason);
        }
        if Instant::now() >= next.deadline {
            let reason = format!("{} in time", next.stage);
            return self.give_up(reason);
        }
        match next.stage {
            // The old pair is of no use any more.
            Stage::GoingOn => Ok(()),
            Stage::Giving => {
                let went = self.give();
                self.unless_gone(went)
            }
            // Nothing but its connections is missing from the new pair: it may have them now.
            Stage::Resting if self.switch.has_died().is_some() => {
                if let Some(next) = &mut self.next {
                    next.left_at_ns = monotonic_ns();
                }
                self.reap_switch()?;
                let went = self.let_go_on();
                self.unless_gone(went)
            }
            _ => match self.old_pair_lost() {
                Some(reason) => self.give_up(reason),
                None => Ok(()),
            },
        }
    }

    fn old_pair_lost(&mut self) -> Option<String> {
        for child in [&mut self.control, &mut self.switch] {
            if let Some(status) = child.has_died() {
                return Some(format!(
                    "the old {} ended ({status}) meanwhile",
                    child.kind()
                ));
            }
        }
        None
    }

    fn unless_gone(&mut self, told: io::Result<()>) -> io::Result<()> {
        match told {
            Ok(()) => Ok(()),
            Err(error) => self.give_up(format!("a process does not listen: {error}")),
        }
    }

    /// Something that only the hand-over is about was said. What comes at the wrong time is ignored: its sender is either
    /// late, or not what it should be, and then has the same effect as one that is silent.
    pub(super) fn hear_of_hand_over(&mut self, who: Who, ask: &Ask) -> io::Result<()> {
        let Some(next) = &mut self.next else {
            return Ok(());
        };
        let went = match (who.next, next.stage, ask) {
            (false, Stage::Freezing, Ask::Frozen) => {
                noted(self.introduce_pair());
                Ok(())
            }
            (true, Stage::Preparing, Ask::Ready) => {
                next.enter(Stage::Resting, REST);
                self.switch.tell(&Tell::Rest, &[])
            }
            (false, Stage::Resting, Ask::Rested { at_ns }) => {
                next.left_at_ns = *at_ns;
                self.let_go_on()
            }
            (true, Stage::GoingOn, Ask::GoesOn { at_ns, connections }) => {
                let gap = at_ns.saturating_sub(next.left_at_ns);
                self.handed = Some(Handed::Done {
                    gap_ms: gap as f64 / 1e6,
                    connections: *connections,
                });
                self.install_next();
                Ok(())
            }
            _ => Ok(()),
        };
        self.unless_gone(went)
    }

    /// The old control changes nothing any more: the new one gets to know what it knew, and the new switch.
    fn introduce_pair(&mut self) -> io::Result<()> {
        if let Some(next) = &mut self.next {
            next.stage = Stage::Preparing;
        }
        match &self.next {
            Some(next) => self.introduce(&next.control, &next.switch, true),
            None => Ok(()),
        }
    }

    /// The old switch serves nobody: the new one gets everything.
    fn let_go_on(&mut self) -> io::Result<()> {
        if let Some(next) = &mut self.next {
            next.enter(Stage::Giving, GIVING);
            self.deposits.pack();
        }
        self.give()
    }

    /// Gives the new switch what there is room for; once it has everything, it may go on.
    fn give(&mut self) -> io::Result<()> {
        let Some(next) = &mut self.next else {
            return Ok(());
        };
        let switch = &next.switch;
        self.deposits
            .hand_over(|tell, fds| switch.tell_at_once(tell, fds))?;
        if self.deposits.is_handing_over() {
            return Ok(());
        }
        // From here on there is no way back to the old one.
        next.enter(Stage::GoingOn, GOING_ON);
        next.switch.tell(&Tell::GoOn, &[])
    }

    /// Which of two switches has the connections.
    pub(super) fn is_serving(&self, who: Who) -> bool {
        let next_serves = self.next.as_ref().is_some_and(HandOver::is_serving);
        who.next == next_serves
    }

    /// Whether control and the switch run, and the switch has all that it is to have.
    pub(super) fn pair_is_whole(&self) -> bool {
        self.switch_is_whole() && self.control.is_alive()
    }

    /// Whether it is the new switch that gets what was kept, and not the one that serves.
    pub(super) fn next_gets_deposits(&self) -> bool {
        self.next.as_ref().is_some_and(HandOver::gets_deposits)
    }

    /// The new pair serves: it is the pair now.
    fn install_next(&mut self) {
        let Some(mut next) = self.next.take() else {
            return;
        };
        next.switch.take_place_of(&self.switch);
        next.control.take_place_of(&self.control);
        std::mem::swap(&mut self.switch, &mut next.switch);
        std::mem::swap(&mut self.control, &mut next.control);
        self.settings.successor = true;
        let thawed = self.control.tell(&Tell::Thaw, &[]);
        self.control.kill_unless(thawed);
        // The old switch rests, and does not know where its queues are by now.
        next.end();
    }

    /// The old version goes on.
    fn give_up(&mut self, reason: String) -> io::Result<()> {
        let serving = self.next.as_ref().is_some_and(HandOver::is_serving);
        if serving {
            self.end_both_pairs()?;
        } else if let Some(mut next) = self.next.take() {
            if next.gets_deposits() {
                self.deposits.unpack();
            }
            // Those that are dead are started again as ever.
            let _ = self.switch.tell(&Tell::Unrest, &[]);
            let thawed = self.control.tell(&Tell::Thaw, &[]);
            self.control.kill_unless(thawed);
            next.end();
            // It may have said that it dies of somebody. Who serves marks whom anew with its next batch.
            if let Err(error) = channel::keeping::wipe(&self.marks) {
                tracing::error!("marks cannot be wiped: {error}");
            }
        }
        self.handed = Some(Handed::Failed(reason));
        Ok(())
    }

    /// The new switch has failed when it had queues already: a pair of the old version starts with what it has left.
    fn end_both_pairs(&mut self) -> io::Result<()> {
        let Some(next) = &mut self.next else {
            return Ok(());
        };
        next.control.kill();
        next.switch.kill();
        next.switch.dies_by(Instant::now() + END);
        // What it said last is what its successor goes by.
        let who = Who {
            kind: Kind::Switch,
            next: true,
        };
        self.hear(who, LAST_MESSAGES)?;
        self.next = None;
        self.settings.successor = true;
        // The old one rests; its successor is started when its death is seen.
        self.switch.kill();
        self.control.kill();
        Ok(())
    }

    /// Ends the new pair, with everything else.
    pub(super) fn drop_next(&mut self) {
        if let Some(mut next) = self.next.take() {
            next.end();
        }
    }
}

/// Of a process that does not listen, only its end counts.
fn noted(told: io::Result<()>) {
    if let Err(error) = told {
        tracing::debug!("a process of an upgrade does not listen: {error}");
    }
}

/// Ends a process that serves nobody.
fn end(child: &mut Child) {
    child.kill();
    child.wait(Instant::now() + END);
}
