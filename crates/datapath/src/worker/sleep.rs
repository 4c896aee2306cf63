//! When a worker looks no more, and what wakes it: kicks, bells, and times at which guests are to hear or to be heard.

use std::time::Duration;

use channel::shared;
use port::{Port, PortId};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::thread::sched_getaffinity;

use super::{SLEEPS_PER_MEASUREMENT, TICK, TOKEN_ANSWERS, TOKEN_BELLS, TOKEN_INBOX, Worker, nanos};
use crate::poll::thread_time;

impl Worker {
    /// A guest has kicked.
    pub(super) fn kicked(&mut self, port: PortId, pair: u16) {
        let quiet = self.switch.port_mut(port).map(|guest| {
            guest.note_kick(pair);
            guest.rules().quiet_until(nanos(self.started.elapsed()))
        });
        self.held.remove((port, pair));
        if self.activate(port, pair) {
            self.active.keep_quiet(quiet.unwrap_or(0));
        }
    }

    /// Pairs that nobody looked at, and whose guests were not asked to kick, are looked at when it is time: with frames they are active
    /// again, without they are asked for kicks.
    pub(super) fn look_at_held(&mut self) {
        if self.held.next().is_none() {
            return;
        }
        let now = nanos(self.started.elapsed());
        loop {
            let switch = &mut self.switch;
            let runs = |(port, pair)| switch.port_mut(port).is_some_and(|guest| guest.runs(pair));
            let Some(due) = self.held.take_due(now, runs) else {
                return;
            };
            let (port, pair) = due.pair;
            let frames = self.keep_awake(port, pair);
            self.held.learn(due, frames);
            if frames {
                self.active.add(port, pair);
            }
        }
    }

    /// Before a sleep: pairs for which no frames came meanwhile are active no more.
    pub(super) fn ask_for_kicks(&mut self, now: Duration) {
        let now = nanos(now);
        let mut at = 0;
        while let Some((port, pair)) = self.active.get(at) {
            let until = self.active.quiet_until(at);
            if now < until && self.holds(port, pair) {
                self.active.remove_at(at);
                self.held.add((port, pair), now, until);
            } else if self.keep_awake(port, pair) {
                at += 1;
            } else {
                self.active.remove_at(at);
            }
        }
    }

    /// Whether the guest that sends by a pair need not kick: it runs, where this worker may run, too; a bell will be rung before it
    /// does not; and that paid lately.
    fn holds(&mut self, port: PortId, pair: u16) -> bool {
        let cores = &self.cores;
        let guest = self.switch.port_mut(port);
        guest.is_some_and(|guest| {
            guest.is_on(pair, cores)
                && self.held.wants((port, pair))
                && guest.listen(pair)
                && guest.runs(pair)
        })
    }

    /// Asks the guest for kicks; `true` when frames came meanwhile, so that polling goes on.
    pub(super) fn keep_awake(&mut self, port: PortId, pair: u16) -> bool {
        let Some(guest) = self.switch.port_mut(port) else {
            return false;
        };
        if guest.arm(pair, true) {
            guest.arm(pair, false);
            return true;
        }
        false
    }

    /// Notifies guests that were to be notified later, as far as it is time; how long the rest can wait.
    pub(super) fn notify_late(&mut self, now: Duration) -> Option<Duration> {
        let now = nanos(now);
        self.switch.set_clock(now);
        let next = self.switch.notify_late()?;
        Some(Duration::from_nanos(next.saturating_sub(now)))
    }

    /// Looks for kicks and messages; sleeps for them when nothing is active, for `late` at most.
    pub(super) fn wait(&mut self, late: Option<Duration>, now: Duration) {
        if !self.active.is_empty() || self.switch.has_to_do() {
            return self.follow_events(Some(Duration::ZERO));
        }
        self.sleeps = self.sleeps.wrapping_add(1);
        let measured = self.sleeps.is_multiple_of(SLEEPS_PER_MEASUREMENT);
        if measured && let Ok(cores) = sched_getaffinity(None) {
            self.cores = cores;
        }
        let before = measured.then(thread_time);
        if self.switch.listen_late() {
            return;
        }
        let answers = self.control.answers.as_mut();
        if !answers.is_none_or(shared::Receiver::prepare_sleep) {
            return;
        }
        self.tick(now);
        let parked = self.switch.has_parked().then_some(TICK);
        let held = self.held.next();
        let held = held.map(|until| Duration::from_nanos(until.saturating_sub(nanos(now))));
        self.follow_events(parked.into_iter().chain(late).chain(held).min());
        if let Some(answers) = &mut self.control.answers {
            answers.woke();
        }
        if let Some(before) = before {
            self.patience.slept(thread_time() - before);
        }
    }

    /// Waits for events at most so long, for ever without a limit, and does what they ask for.
    pub(super) fn follow_events(&mut self, limit: Option<Duration>) {
        let timeout = limit.map(|t| Timespec {
            tv_sec: t.as_secs() as i64,
            tv_nsec: i64::from(t.subsec_nanos()),
        });
        let mut events = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; 64];
        let Ok(count) = epoll::wait(&self.epoll, &mut events[..], timeout.as_ref()) else {
            return; // interrupted
        };
        for event in &events[..count] {
            match event.data.u64() {
                TOKEN_INBOX => {
                    let _ = rustix::io::read(&*self.inbox_bell, &mut [0u8; 8]);
                }
                TOKEN_BELLS => {
                    // Whose it is does not matter: all that is held or late is looked at.
                    if let Some(bells) = self.guests.bells() {
                        bells.heard();
                    }
                }
                TOKEN_ANSWERS => {
                    // Rung in the moment before polling went on: forget it.
                    if let Some(answers) = &mut self.control.answers {
                        answers.woke();
                    }
                }
                token => {
                    let (port, pair) = (PortId((token >> 32) as u32), token as u16);
                    self.kicked(port, pair);
                }
            }
        }
    }
}
