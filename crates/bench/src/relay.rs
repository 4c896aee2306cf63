//! What the machine does without a switch: a token is handed on by threads that sleep, as a frame without a flow is.
//!
//! The client, which polls, wakes a thread on the switch's core; that one wakes another, as control is woken by an upcall; which wakes
//! the first again, as its answer does. Nothing is decided and nothing copied: three wake-ups, six system calls and a cache line. No
//! switch that sleeps and asks a process beside it can be faster, and whatever else the machine does to threads is in it.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::event::{EventfdFlags, eventfd};
use testkit::lean::Histogram;

use crate::placement::pin;

/// Who runs where.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cores {
    pub(crate) client: usize,
    pub(crate) switch: usize,
    pub(crate) control: usize,
}

/// What is written to a bell instead of a ring.
const END: u64 = 1 << 32;
/// After the end nobody waits longer for a token.
const LOST: Duration = Duration::from_secs(1);

/// Hands a token on so many times a second, for `time`: how long each time took, in nanoseconds.
///
/// # Errors
/// There are no such cores, or no bells.
pub(crate) fn relay(cores: Cores, rate: u32, time: Duration) -> Result<Histogram> {
    let bell = || eventfd(0, EventfdFlags::empty()).context("no eventfd");
    let [kick, upcall, answer] = [bell()?, bell()?, bell()?];
    let arrived = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let switch = scope.spawn(|| -> Result<()> {
            pin(cores.switch)?;
            while wait(&kick)? {
                ring(&upcall, 1)?;
                wait(&answer)?;
                arrived.fetch_add(1, Ordering::Release);
            }
            Ok(())
        });
        let control = scope.spawn(|| -> Result<()> {
            pin(cores.control)?;
            while wait(&upcall)? {
                ring(&answer, 1)?;
            }
            Ok(())
        });
        let client = scope.spawn(|| {
            let seen = pin(cores.client).and_then(|()| tokens(&kick, &arrived, rate, time));
            [&kick, &upcall, &answer]
                .map(|bell| ring(bell, END))
                .into_iter()
                .collect::<Result<()>>()?;
            seen
        });
        for thread in [switch, control] {
            thread.join().ok().context("a thread panicked")??;
        }
        client.join().ok().context("a thread panicked")?
    })
}

/// The client: sends tokens, and polls for each until it is there.
fn tokens(kick: &OwnedFd, arrived: &AtomicU64, rate: u32, time: Duration) -> Result<Histogram> {
    let mut seen = Histogram::default();
    let (begin, gap) = (Instant::now(), Duration::from_secs(1) / rate);
    let mut due = Duration::ZERO;
    for number in 1.. {
        due = (due + gap).max(begin.elapsed());
        if due >= time {
            break;
        }
        while begin.elapsed() < due {
            std::hint::spin_loop();
        }
        let sent = Instant::now();
        ring(kick, 1)?;
        while arrived.load(Ordering::Acquire) < number {
            std::hint::spin_loop();
            ensure!(begin.elapsed() < time + LOST, "a token was lost");
        }
        seen.record(u64::try_from(sent.elapsed().as_nanos())?);
    }
    Ok(seen)
}

fn ring(bell: &OwnedFd, value: u64) -> Result<()> {
    rustix::io::write(bell, &value.to_ne_bytes()).context("a bell cannot be rung")?;
    Ok(())
}

/// Sleeps until a bell is rung; `false` at the end.
fn wait(bell: &OwnedFd) -> Result<bool> {
    let mut value = [0; 8];
    rustix::io::read(bell, &mut value).context("a bell cannot be heard")?;
    Ok(u64::from_ne_bytes(value) < END)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_and_threads_end() {
        let cores = Cores {
            client: 0,
            switch: 0,
            control: 0,
        };
        let seen = relay(cores, 1000, Duration::from_millis(20)).expect("there is a core");
        assert!((1..=20).contains(&seen.count()), "{}", seen.count());
    }

    #[test]
    fn whoever_cannot_begin_the_others_end() {
        let nowhere = 1000;
        for odd in 0..3 {
            let core = |place| if place == odd { nowhere } else { 0 };
            let cores = Cores {
                client: core(0),
                switch: core(1),
                control: core(2),
            };
            assert!(
                relay(cores, 1000, Duration::from_millis(5)).is_err(),
                "{cores:?}"
            );
        }
    }
}
