//! When a worker looks no more, and what wakes it: kicks, bells, and times at which guests are to hear or to be heard.

use std::time::Duration;

use channel::shared;
use port::{Port, PortId};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::held::{After, Held};
use super::{SLEEPS_PER_MEASUREMENT, TICK, TOKEN_ANSWERS, TOKEN_BELLS, TOKEN_INBOX, Worker, nanos};
use crate::batching::Nanos;
use crate::poll::{Next, thread_time};

/// Passes without a sleep in between, each of some rounds, after which a worker has much to do.
const BUSY: u32 = 4;

impl Worker {
    /// A guest has kicked.
    pub(super) fn kicked(&mut self, port: PortId, pair: u16) {
        let quiet = self.switch.port_mut(port).map(|guest| {
            guest.note_kick(pair);
            guest.rules().quiet_until(nanos(self.started.elapsed()))
        });
        self.held.remove((port, pair));
        self.activate(port, pair);
        // Also where it was looked at before its kick was heard.
        self.active.keep_quiet(port, pair, quiet.unwrap_or(0));
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
            let processor = |(port, pair)| switch.port_mut(port)?.processor(pair);
            let Some(due) = self.held.take_due(now, processor) else {
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
            if now < until && self.hold((port, pair), After::Kick, (now, until)) {
                self.active.remove_at(at);
            } else if self.keep_awake(port, pair) {
                at += 1;
            } else {
                self.active.remove_at(at);
            }
        }
        while let Some((port, pair)) = self.switch.next_served() {
            self.await_answer(port, pair, now);
        }
    }

    /// A guest that was sent something need not kick for its answer, if it is held.
    fn await_answer(&mut self, port: PortId, pair: u16, now: Nanos) {
        let known = (port, pair);
        let ours = self.all.is_empty() || self.loads.contains_key(&known);
        if !ours || self.active.has(port, pair) || self.held.has(known) || self.lending.has(known) {
            return;
        }
        if self.paused.has(known) {
            return;
        }
        let Some(guest) = self.switch.port_mut(port) else {
            return;
        };
        let until = guest.rules().quiet_until(now);
        if now < until && self.hold(known, After::Delivery, (now, until)) {
            // What it has sent already, it has kicked for or not.
            if self.keep_awake(port, pair) {
                self.held.remove(known);
                self.active.add(port, pair);
            } else if let Some(guest) = self.switch.port_mut(port) {
                guest.arm(pair, false);
            }
        }
    }

    /// Holds a pair, if its guest is about to do something and a bell will be rung when it sleeps after that; if it is where this
    /// worker may run, too; and if that paid lately.
    fn hold(&mut self, pair: (PortId, u16), after: After, (since, until): (Nanos, Nanos)) -> bool {
        let Some(guest) = self.switch.port_mut(pair.0) else {
            return false;
        };
        // What it was before there is a bell: if it sleeps from then on, nobody may have heard.
        let Some(processor) = guest.processor(pair.1) else {
            return false;
        };
        let holds = self.seat.allows(processor.core)
            && (after == After::Delivery || processor.asleep.is_none())
            && self.held.wants(pair, after)
            && guest.listen(pair.1)
            && guest
                .processor(pair.1)
                .is_some_and(|now| now.asleep == processor.asleep);
        if holds {
            self.held.add(Held {
                pair,
                after,
                processor,
                since,
                until,
            });
        }
        holds
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
            // One that polls for ever never sleeps.
            self.awake = self.awake.saturating_add(1);
            if self.awake == BUSY {
                self.held.busy();
                self.seat.take(None);
            }
            return self.follow_events(Some(Duration::ZERO));
        }
        if self.switch.has_parked() && self.for_answers.found_nothing(now) == Next::Look {
            // Control may need this core.
            std::thread::yield_now();
            return self.follow_events(Some(Duration::ZERO));
        }
        self.awake = 0;
        self.sleeps = self.sleeps.wrapping_add(1);
        let measured = self.sleeps.is_multiple_of(SLEEPS_PER_MEASUREMENT);
        if measured {
            self.seat.look();
        }
        let before = measured.then(thread_time);
        self.seat.take(self.held.core());
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
        let first = held.into_iter().chain(self.paused.next()).min();
        let first = first.map(|until| Duration::from_nanos(until.saturating_sub(nanos(now))));
        self.follow_events(parked.into_iter().chain(late).chain(first).min());
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
