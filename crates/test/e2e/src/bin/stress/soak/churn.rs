//! Ports that come and go. In each cycle two are added, a client sends a number of frames and waits
//! for them, a second one leaves at full load, and a third one loses its ports under full load.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use load::lean::{Lean, LeanConfig, Until};

use super::account::{Account, Tally};
use super::{CHURN_SEGMENT, client};
use crate::Plan;
use e2e::lasthop::{Lasthop, add_port};
use e2e::stop;

/// Frames of each port that are waited for.
const FRAMES: u64 = 20_000;
/// How long an abrupt client sends.
const LOAD: Duration = Duration::from_millis(30);
/// How long a port may take to be ready for the next client, and counters to stand still.
const READY: Duration = Duration::from_secs(10);

pub(super) struct Churn<'a> {
    plan: &'a Plan,
    lasthop: &'a Lasthop,
    pub(super) tally: Tally,
}

impl<'a> Churn<'a> {
    pub(super) fn new(plan: &'a Plan, lasthop: &'a Lasthop) -> Self {
        Self {
            plan,
            lasthop,
            tally: Tally::default(),
        }
    }

    /// Cycles until `over`.
    pub(super) fn run(&mut self, over: &AtomicBool) -> Result<()> {
        while !over.load(Ordering::Relaxed) {
            stop::check()?;
            self.cycle()
                .with_context(|| format!("after {} ports", self.tally.ports))?;
        }
        Ok(())
    }

    fn cycle(&mut self) -> Result<()> {
        let number = self.tally.ports / 2;
        let names = [format!("c{number}a"), format!("c{number}b")];
        for name in &names {
            let socket = format!("{name}.sock");
            self.lasthop.ask(&add_port(name, &socket, CHURN_SEGMENT))?;
        }
        let clean = self.clean(&names)?;
        self.cut(&names, &clean)?;
        self.tally.clean.absorb(clean);
        let last = self.abrupt(&names)?;
        for name in &names {
            self.lasthop.ask(&["port", "remove", name])?;
        }
        drop(last);
        self.tally.ports += 2;
        Ok(())
    }

    /// A client that waits for its last frames.
    fn clean(&mut self, names: &[String; 2]) -> Result<Account> {
        let mut client = self.connect(names, client(self.plan).patience)?;
        let mut account = Account::default();
        account.add(&client.run(Until::Sent(FRAMES))?);
        self.compare(&mut account, names, Account::missing)?;
        self.tally.missing += account.missing();
        Ok(account)
    }

    /// A client that does not, on ports whose counters stand at `before`.
    fn cut(&mut self, names: &[String; 2], before: &Account) -> Result<()> {
        drop(self.abrupt(names)?);
        let mut account = Account::default();
        self.compare(&mut account, names, Account::uncounted)?;
        self.tally.uncounted += account.uncounted();
        let cut = &mut self.tally.cut;
        cut.taken += account.taken - before.taken;
        cut.given += account.given - before.given;
        for (reason, frames) in account.drops {
            let earlier = before.drops.get(&reason).copied().unwrap_or_default();
            *cut.drops.entry(reason).or_default() += frames - earlier;
        }
        Ok(())
    }

    /// A client with frames on their way, of which it will take no more.
    fn abrupt(&mut self, names: &[String; 2]) -> Result<Lean> {
        let mut client = self.connect(names, Duration::ZERO)?;
        let report = client.run(Until::Elapsed(LOAD))?;
        let cut = &mut self.tally.cut;
        cut.sent += report.sent;
        cut.received += report.received;
        cut.astray += report.ports.iter().map(|port| port.strange).sum::<u64>();
        self.tally.abrupt += 1;
        Ok(client)
    }

    fn connect(&self, names: &[String; 2], patience: Duration) -> Result<Lean> {
        let config = LeanConfig {
            sockets: names
                .iter()
                .map(|name| self.lasthop.socket_of(name))
                .collect(),
            macs: vec![[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]],
            patience,
            ..client(self.plan)
        };
        // The port may not have noticed yet that the client before has left.
        stop::try_wait("a client is attached", READY, || {
            Ok(Lean::connect(config.clone()).ok())
        })
    }

    /// Reads Lasthop's counters until `open` is nothing, or it stays.
    fn compare(
        &self,
        account: &mut Account,
        names: &[String; 2],
        open: fn(&Account) -> u64,
    ) -> Result<()> {
        let names = [names[0].as_str(), names[1].as_str()];
        for _ in 0..50 {
            account.compare(&self.lasthop.try_stats()?, &names);
            if open(account) == 0 {
                break;
            }
            stop::sleep(Duration::from_millis(50))?;
        }
        Ok(())
    }
}
