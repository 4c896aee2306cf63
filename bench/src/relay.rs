//! The machine without a switch: a token is passed on by threads that sleep, as a frame without a
//! flow is.
//!
//! The client, which polls, wakes a thread on the switch's core; that one wakes another, as an
//! upcall wakes control; which wakes the first again, as its reply does. Nothing is decided and
//! nothing copied: three wake-ups, six system calls and a cache line. No switch that sleeps and has
//! a second process for decisions can be faster, and all other delays of the machine are included.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use load::lean::Histogram;
use rustix::event::{EventfdFlags, eventfd};

use e2e::machine::pin;

/// Cores of the threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cores {
    pub(crate) client: usize,
    pub(crate) switch: usize,
    pub(crate) control: usize,
}

/// Value of an event descriptor that ends a thread.
const END: u64 = 1 << 32;
/// Limit of the wait for a token at the end.
const LOST: Duration = Duration::from_secs(1);

/// Hands a token on so many times a second, for `time`: how long each time took, in nanoseconds.
///
/// # Errors
/// There are no such cores, or no events.
pub(crate) fn relay(cores: Cores, rate: u32, time: Duration) -> Result<Histogram> {
    let event = || eventfd(0, EventfdFlags::empty()).context("no eventfd");
    let [kick, upcall, answer] = [event()?, event()?, event()?];
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
                .map(|event| ring(event, END))
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

fn ring(event: &OwnedFd, value: u64) -> Result<()> {
    rustix::io::write(event, &value.to_ne_bytes()).context("a event cannot be rung")?;
    Ok(())
}

/// Sleeps until a event is rung; `false` at the end.
fn wait(event: &OwnedFd) -> Result<bool> {
    let mut value = [0; 8];
    rustix::io::read(event, &mut value).context("an event descriptor cannot be read")?;
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
    fn a_thread_that_cannot_start_ends_the_others() {
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
