//! Environments of tricks: a Lasthop with honest guests, and another one after harm.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::attack::{AttackJob, Played};
use super::burner;
use super::honest::{Counts, Honest, Samples};
use super::lasthop::Lasthop;
use super::newcomer::{Arrival, newcomer, newcomers};
use super::row::Row;
use super::tricks::Trick;
use super::watch::Snapshot;
use super::{ATTACKERS, Options};

/// How long what an attacker had may take to be given back.
const SETTLE: Duration = Duration::from_secs(15);

/// The environments of a run, one at a time: harm of a trick must not be attributed to those that
/// follow.
pub(super) struct Stages<'a> {
    options: &'a Options,
    stop: &'a AtomicBool,
    stage: Option<Stage<'a>>,
    counts: Counts,
}

impl<'a> Stages<'a> {
    pub(super) fn new(options: &'a Options, stop: &'a AtomicBool) -> Self {
        Self {
            options,
            stop,
            stage: None,
            counts: Counts::default(),
        }
    }

    /// A stage without harm.
    pub(super) fn sound(&mut self) -> io::Result<&mut Stage<'a>> {
        if let Some(stage) = &mut self.stage
            && stage.is_spoilt()
        {
            self.close();
        }
        let stage = match self.stage.take() {
            Some(stage) => stage,
            None => Stage::new(self.options, self.stop)?,
        };
        Ok(self.stage.insert(stage))
    }

    /// No stage could be had.
    pub(super) fn fault(&mut self, text: String) {
        self.counts.faults.push(text);
    }

    /// Ends everything and gives what came of all honest traffic.
    pub(super) fn end(mut self) -> Counts {
        self.close();
        self.counts
    }

    fn close(&mut self) {
        if let Some(mut stage) = self.stage.take() {
            self.counts.add(stage.honest.end());
        }
    }
}

/// Lasthop with its honest guests.
pub(super) struct Stage<'a> {
    // Guests leave before Lasthop ends: fields are dropped in this order.
    honest: Honest,
    lasthop: Lasthop,
    options: &'a Options,
    stop: &'a AtomicBool,
    /// Resources of Lasthop before the first trick.
    first: Snapshot,
    /// A trick did harm.
    spoilt: bool,
}

impl<'a> Stage<'a> {
    fn new(options: &'a Options, stop: &'a AtomicBool) -> io::Result<Self> {
        let lasthop = Lasthop::start(&options.bin, ATTACKERS)?;
        let honest = Honest::start(&lasthop)?;
        // Buffers that a port keeps are there before anything is counted.
        for path in lasthop.attackers() {
            newcomer(path).map_err(io::Error::other)?;
        }
        newcomer(&lasthop.socket("newcomer")).map_err(io::Error::other)?;
        std::thread::sleep(Duration::from_millis(700));
        let first = lasthop.seen();
        if let Some(name) = first.unreadable().first() {
            let text = format!("what {name} holds cannot be read from /proc");
            return Err(io::Error::other(text));
        }
        Ok(Self {
            honest,
            lasthop,
            options,
            stop,
            first,
            spoilt: false,
        })
    }

    fn is_spoilt(&mut self) -> bool {
        let now = self.lasthop.seen();
        if !self.spoilt && now.has_replaced(&self.first) {
            let text = now.harm(&self.first).join("; ");
            self.honest.fault(format!("between two tricks: {text}"));
            self.spoilt = true;
        }
        self.spoilt
    }

    /// One trick: attack with newcomers beside it, another newcomer, burner, and what is left of it
    /// all.
    pub(super) fn play(&mut self, trick: &'static Trick, slot: Duration, seed: u64) -> Row {
        let before = self.lasthop.seen();
        self.honest.take();
        let wrong = self.honest.wrong();
        let share = if self.options.times { 0.5 } else { 0.65 };
        let attack = self.attack(&AttackJob {
            trick,
            time: slot.mul_f64(share),
            seed,
            ports: self.lasthop.attackers().to_vec(),
        });
        let newcomer = newcomer(&self.lasthop.socket("newcomer"));
        let after = self.settle();
        let wrong = self.honest.wrong().saturating_sub(wrong);
        let burnt = self.options.times.then(|| self.burn(&attack));
        let (burner_cpu, burner) = burnt.unwrap_or_default();
        let row = Row {
            trick,
            played: attack.played,
            attacked: attack.lasted,
            burner_cpu,
            beside: attack.honest,
            wrong,
            burner,
            newcomers: attack.newcomers,
            newcomer,
            first: self.first,
            before,
            after,
        };
        self.spoilt = !row.missed().is_empty() || self.honest.has_faults();
        row
    }

    /// The trick alone, with newcomers beside it.
    fn attack(&self, job: &AttackJob) -> Attack {
        let path = self.lasthop.socket("newcomer");
        let attacking = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let coming = scope.spawn(|| newcomers(&path, job.time, &attacking));
            let began = Instant::now();
            let played = self.options.attackers.play(job, self.stop);
            let lasted = began.elapsed();
            attacking.store(false, Ordering::Relaxed);
            let honest = self.honest.take();
            let panicked = |_| vec![Err("its thread panicked".to_owned())];
            let name = job.trick.name;
            let failed = |error| self.honest.fault(format!("{name} was not played: {error}"));
            Attack {
                played: played.map_err(failed).unwrap_or_default(),
                lasted,
                honest,
                newcomers: coming.join().unwrap_or_else(panicked),
            }
        })
    }

    fn burn(&self, attack: &Attack) -> (Duration, Samples) {
        self.honest.take();
        let cpu = burner::burn(attack.played.cpu, attack.lasted, self.stop);
        (cpu, self.honest.take())
    }

    /// Returns Lasthop's resources once they are no more than at first, or after a while.
    fn settle(&self) -> Snapshot {
        let end = Instant::now() + SETTLE;
        loop {
            let now = self.lasthop.seen();
            let settled = now.holds_no_more_than(&self.first);
            let over = Instant::now() >= end || self.stop.load(Ordering::Relaxed);
            if settled || over || now.has_replaced(&self.first) {
                return now;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// An attack, and what came of it for honest VMMs.
struct Attack {
    played: Played,
    lasted: Duration,
    honest: Samples,
    newcomers: Vec<Arrival>,
}
