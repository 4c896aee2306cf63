//! An operator at the command line: ports come and go, with guests that plug memory, reboot and
//! leave, and settings change, upgrades; at any time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use testkit::frontend::FrontError;
use testkit::guest::GuestError;
use testkit::guest_ram::RegionSpec;
use testkit::packets::{Flow, Numbered, SequenceChecker, numbered_payload, payload_of, udp};
use testkit::{FakeGuest, GuestConfig};

use e2e::lasthop::{Lasthop, add_port};
use e2e::stop;

/// The segment of its ports.
pub(super) const SEGMENT: &str = "churn";
/// Limit for commands to fail because a process has just died, and for frames to arrive.
const TIMEOUT: Duration = Duration::from_secs(20);
const GUEST_BYTES: u64 = 16 << 20;
/// Address of plugged memory.
const PLUGGED_AT: u64 = 1 << 32;
/// Numbers of the guests.
const GUESTS: [u8; 2] = [21, 22];
/// Cycles from one upgrade, to the same version, to the next.
const UPGRADE: u64 = 16;
/// Frames that must arrive after each thing that is done.
const FRAMES: u64 = 50;

/// Counts of operations.
#[derive(Debug, Default, Clone, Serialize)]
pub(super) struct Tally {
    pub(super) ports: u64,
    pub(super) plugged: u64,
    pub(super) settings: u64,
    pub(super) upgrades: u64,
    pub(super) received: u64,
    pub(super) damaged: u64,
    /// Commands that had to be repeated, because control was not there.
    pub(super) repeated: u64,
    /// Connections that ended while they were set up: the switch that had just accepted them was
    /// killed.
    pub(super) refused: u64,
}

/// See the module.
pub(super) struct Operator<'a> {
    lasthop: &'a Lasthop,
    stop: AtomicBool,
    failed: AtomicBool,
    /// Held while a pair of ports is there.
    tally: Mutex<Tally>,
}

impl<'a> Operator<'a> {
    pub(super) fn new(lasthop: &'a Lasthop) -> Self {
        Self {
            lasthop,
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            tally: Mutex::default(),
        }
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, SeqCst);
    }

    /// # Errors
    /// When the operator has given up; [`Operator::work`] says why.
    pub(super) fn check(&self) -> Result<()> {
        if self.failed.load(SeqCst) {
            bail!("the operator has given up")
        } else {
            Ok(())
        }
    }

    /// Waits until the operator's ports are gone, and does something before the next ones come.
    ///
    /// # Errors
    /// When the operator has given up.
    pub(super) fn while_nothing_is_plugged<T>(&self, job: impl FnOnce() -> T) -> Result<T> {
        let held = self.tally.lock().ok().context("the operator has died")?;
        let done = job();
        drop(held);
        Ok(done)
    }

    pub(super) fn tally(&self) -> Tally {
        self.tally
            .lock()
            .map(|tally| tally.clone())
            .unwrap_or_default()
    }

    /// Works until it is stopped.
    ///
    /// # Errors
    /// When something that must work does not.
    pub(super) fn work(&self) -> Result<()> {
        while !self.stop.load(SeqCst) {
            let worked = self.cycle();
            self.failed.store(worked.is_err(), SeqCst);
            worked?;
            // Others want the lock too.
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn cycle(&self) -> Result<()> {
        let mut tally = self
            .tally
            .lock()
            .ok()
            .context("the other thread has died")?;
        let number = tally.ports / 2;
        let names = ["x", "y"].map(|letter| format!("{letter}{number}"));
        for name in &names {
            let socket = format!("{name}.sock");
            self.order(&mut tally, &add_port(name, &socket, SEGMENT))?;
        }
        let mut pair = Pair::attach(self.lasthop, &names, &mut tally)?;
        pair.talk(&mut tally)?;
        pair.guests[0].plug(RegionSpec::at(PLUGGED_AT, GUEST_BYTES))?;
        tally.plugged += 1;
        pair.talk(&mut tally)?;
        pair.guests[1].reset()?;
        pair.talk(&mut tally)?;
        pair.guests[0].crash();
        let socket = self.lasthop.socket_of(&names[0]);
        set_up(&mut tally, || pair.guests[0].reconnect(&socket))?;
        pair.talk(&mut tally)?;
        for setting in [&["--mtu", "9000"][..], &["--no-mtu"]] {
            self.order(&mut tally, &[&["port", "set", "p0"], setting].concat())?;
            tally.settings += 1;
        }
        if number.is_multiple_of(UPGRADE) {
            self.order(&mut tally, &["upgrade"])?;
            tally.upgrades += 1;
            pair.talk(&mut tally)?;
        }
        for name in &names {
            self.order(&mut tally, &["port", "remove", name])?;
            tally.ports += 1;
        }
        Ok(())
    }

    /// Runs a command, again while there is no server. One that was received by a process that died
    /// before it replied finds its work done.
    fn order(&self, tally: &mut Tally, words: &[&str]) -> Result<()> {
        let end = Instant::now() + TIMEOUT;
        loop {
            stop::check()?;
            let Err(error) = self.lasthop.ask(words) else {
                return Ok(());
            };
            let text = format!("{error:#}");
            let is_done = match words {
                [_, "add", ..] => text.contains("a second time"),
                [_, "remove", ..] => text.contains("there is no port"),
                _ => false,
            };
            if is_done {
                return Ok(());
            }
            if Instant::now() >= end {
                return Err(error.into());
            }
            tally.repeated += 1;
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Sets a connection up, again if it ends meanwhile: a switch that is killed in the moment between
/// accepting a connection and having it kept takes it along, and front ends dial again then.
fn set_up<T>(tally: &mut Tally, mut attempt: impl FnMut() -> Result<T, GuestError>) -> Result<T> {
    let end = Instant::now() + TIMEOUT;
    loop {
        stop::check()?;
        match attempt() {
            Err(GuestError::Front(FrontError::Closed)) if Instant::now() < end => {
                tally.refused += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result.context("a connection is set up"),
        }
    }
}

/// Two guests that talk with each other.
struct Pair {
    guests: [FakeGuest; 2],
    sent: [u64; 2],
    checkers: [SequenceChecker; 2],
}

impl Pair {
    fn attach(lasthop: &Lasthop, names: &[String; 2], tally: &mut Tally) -> Result<Self> {
        let mut attach = |n: usize| {
            let config = GuestConfig {
                regions: Some(vec![RegionSpec::at(0, GUEST_BYTES)]),
                ..GuestConfig::default()
            };
            let config = config.guest(GUESTS[n]);
            let socket = lasthop.socket_of(&names[n]);
            set_up(tally, || FakeGuest::connect(&socket, config.clone()))
                .with_context(|| format!("guest on {}", names[n]))
        };
        Ok(Self {
            guests: [attach(0)?, attach(1)?],
            sent: [0; 2],
            checkers: <[SequenceChecker; 2]>::default(),
        })
    }

    /// Sends until each has seen so many frames more. Some may be lost, none damaged.
    fn talk(&mut self, tally: &mut Tally) -> Result<()> {
        let before = [0, 1].map(|n| self.checkers[n].received);
        let end = Instant::now() + TIMEOUT;
        let is_heard =
            |pair: &Self| (0..2).all(|n| pair.checkers[n].received >= before[n] + FRAMES);
        while !is_heard(self) {
            stop::check()?;
            if Instant::now() >= end {
                bail!("guests that came and went do not receive each other's frames");
            }
            for n in 0..2 {
                self.turn(n)?;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        tally.received += (0..2)
            .map(|n| self.checkers[n].received - before[n])
            .sum::<u64>();
        tally.damaged += self
            .checkers
            .iter_mut()
            .map(|c| std::mem::take(&mut c.damaged))
            .sum::<u64>();
        Ok(())
    }

    /// A few frames from one guest to the other, and what has come.
    fn turn(&mut self, n: usize) -> Result<()> {
        let flow = Flow::v4(GUESTS[n], GUESTS[1 - n]);
        for _ in 0..4 {
            let key = Numbered {
                stream: n as u16,
                seq: self.sent[n],
            };
            let frame = udp(&flow, &numbered_payload(key, 200));
            self.sent[n] += u64::from(self.guests[n].pairs[0].stage(&frame, &Default::default())?);
        }
        self.guests[n].pairs[0].flush();
        for got in self.guests[n].recv_all()? {
            // What is no frame of ours is counted as damaged.
            self.checkers[n].see(payload_of(&got.frame).unwrap_or_default());
        }
        Ok(())
    }
}
