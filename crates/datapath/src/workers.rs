//! All workers, as the session thread sees them.
//!
//! Each worker has its own switch (tables, batch, parked frames) with every port in it; what they share is the
//! ports' queues, one at a time (see `lane`). The pair of queues that a guest sends by and is kicked for has one
//! worker as its *home*, which alone serves it. Homes are given to the worker with the fewest pairs, and
//! [`Workers::balance`] moves them when the load is uneven.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use channel::keeping::Marks;
use channel::supervision::Poll;
use memory::engine::{Copier, Engines};
use port::PortId;
use port::counters::Counters;
use sched::{Bells, Slot, View};
use virtio::features::Features;

use crate::guest::{GuestPort, GuestQueue};
use crate::guests::States;
use crate::idle::helper::Helpers;
use crate::lane::Lane;
use crate::switch::Switch;
use crate::worker::{self, Help, Notices, Worker, WorkerHandle};

/// Most workers that are started when nobody says how many: forwarding is rarely worth more cores.
const AUTO_MAX: u16 = 8;
/// Load of a worker, in frames between two looks, below which nothing is moved: it has time to spare.
const BUSY: u64 = 100_000;

/// A queue pair of a port.
pub type Pair = (PortId, u16);

/// See the module.
#[derive(Debug)]
pub struct Workers {
    /// Those that are home to pairs, then helpers.
    handles: Vec<WorkerHandle>,
    homes_among: usize,
    helpers: Arc<Helpers>,
    homes: RefCell<BTreeMap<Pair, usize>>,
    /// Nobody serves any pair now.
    resting: Cell<bool>,
}

/// How many workers there are when nobody says how many: one for each core that this process may use, at most eight. A quota of
/// its control group is seen only where paths can be opened.
#[must_use]
pub fn automatic() -> u16 {
    let cores = std::thread::available_parallelism().ok();
    let cores = cores.and_then(|cores| u16::try_from(cores.get()).ok());
    cores.unwrap_or(1).min(AUTO_MAX)
}

impl Workers {
    /// Starts so many workers; `None`: as [`automatic`] says.
    ///
    /// # Errors
    /// The system's refusal of a descriptor or a thread.
    pub fn start(
        count: Option<u16>,
        poll: Poll,
        counters: &Counters,
        seed: u64,
    ) -> io::Result<(Self, Notices)> {
        Self::start_with(count, poll, counters, seed, Help::none())
    }

    /// The same with helpers on idle cores.
    ///
    /// # Errors
    /// As [`Workers::start`]. A helper that cannot be had is logged.
    pub fn start_with(
        count: Option<u16>,
        poll: Poll,
        counters: &Counters,
        seed: u64,
        help: Help,
    ) -> io::Result<(Self, Notices)> {
        let count = usize::from(count.unwrap_or_else(automatic));
        let switch = |n: usize| Switch::numbered(counters.clone(), seed, n as u8);
        let spawned = worker::spawn_all((0..count).map(switch).collect(), poll, help, switch)?;
        let (handles, helpers, notices) = spawned;
        let workers = Self {
            handles,
            homes_among: count,
            helpers,
            homes: RefCell::default(),
            resting: Cell::new(false),
        };
        Ok((workers, notices))
    }

    /// Has long frames to and from all ports that are added from now on copied by an engine, once.
    pub fn copy_by(&self, engines: &Arc<Engines>) {
        for (number, worker) in self.handles.iter().enumerate() {
            let copier = Copier::new(engines, number);
            worker.call(move |w| w.switch.fabric.copier = Some(copier));
        }
    }

    /// Has each worker mark whom it serves. The session thread has the first mark.
    pub fn set_marks(&self, marks: &Marks) {
        for (number, worker) in self.handles.iter().enumerate() {
            worker.set_mark(marks.of(number + 1));
        }
    }

    /// Has each worker say [`Notice::Alive`](crate::worker::Notice::Alive), without waiting for it.
    pub fn ask_for_life(&self) {
        for worker in &self.handles {
            worker.post(Worker::say_alive);
        }
    }

    /// How many there are that are home to pairs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.homes_among
    }

    /// How many there are with helpers.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.handles.len()
    }

    /// How many helpers there are, and the frames that they have served.
    #[must_use]
    pub fn help(&self) -> (u16, u64) {
        (self.helpers.list.len() as u16, self.helpers.frames())
    }

    /// Runs a job on one worker between two passes.
    pub fn first<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Worker) -> R + Send + 'static,
    ) -> R {
        self.on(0, job)
    }

    /// Runs a job on the worker of this number between two passes.
    ///
    /// # Panics
    /// When there is no such worker.
    pub fn on<R: Send + 'static>(
        &self,
        number: usize,
        job: impl FnOnce(&mut Worker) -> R + Send + 'static,
    ) -> R {
        self.handles[number].call(job)
    }

    /// Runs a job on each worker between two passes, one after the other; the results in their order.
    pub fn each<R: Send + 'static>(
        &self,
        job: impl Fn(&mut Worker) -> R + Clone + Send + 'static,
    ) -> Vec<R> {
        let calls = self.handles.iter();
        calls.map(|worker| worker.call(job.clone())).collect()
    }

    /// Has a job run on each worker between two passes, without waiting for it.
    pub fn post_each(&self, job: impl Fn(&mut Worker) + Clone + Send + 'static) {
        for worker in &self.handles {
            worker.post(job.clone());
        }
    }

    /// The states of guests' processors are in this memory from now on, and behind it the ring of their bells, if there is one;
    /// see [`Guests`](crate::guests::Guests).
    pub fn watch(&self, fds: Vec<OwnedFd>) {
        match states(fds) {
            Ok(states) => {
                let states = Arc::new(states);
                self.post_each(move |w| w.watch_guests(Arc::clone(&states)));
            }
            Err(error) => tracing::warn!("guests' processors are not watched: {error}"),
        }
    }

    /// Which of them are those of a port's guest.
    pub fn set_guest_threads(&self, port: PortId, slots: &[u16]) {
        let slots: Arc<[Slot]> = slots.iter().map(|slot| Slot(*slot)).collect();
        self.post_each(move |w| {
            w.guests.set_slots(port, Arc::clone(&slots));
            w.watch_guest(port);
        });
    }

    /// Changes a port's queues, on one worker; the others look at them again.
    pub fn on_port(&self, port: PortId, job: impl FnOnce(&mut GuestPort) + Send + 'static) {
        self.first(move |w| w.switch.port_mut(port).map(job));
        self.each(move |w| w.switch.port_mut(port).map(GuestPort::count_pairs));
    }

    /// Puts a port's queue into service.
    ///
    /// # Errors
    /// There is no such port, or its kicks cannot be waited for.
    pub fn start_queue(
        &self,
        port: PortId,
        index: u16,
        queue: GuestQueue,
        features: Features,
    ) -> Result<(), String> {
        let to_guest = index.is_multiple_of(2);
        let lane = Lane::new(queue);
        let mut first = lane.share();
        self.first(move |_| first.with(|queue| queue.begin(to_guest)));
        for worker in &self.handles {
            let lane = lane.share();
            let added = worker.call(move |w| {
                let guest = w.switch.port_mut(port)?;
                guest.start(index, lane, features);
                Some(())
            });
            added.ok_or("the port is gone")?;
        }
        if to_guest {
            return Ok(());
        }
        let home = self.emptiest();
        let pair = index / 2;
        let served = self.have_served((port, pair), home);
        if served.is_err() {
            self.stop_queue(port, index);
        } else {
            self.homes.borrow_mut().insert((port, pair), home);
        }
        served
    }

    /// Takes a port's queue out of service; its position.
    pub fn stop_queue(&self, port: PortId, index: u16) -> Option<u32> {
        let pair = index / 2;
        if !index.is_multiple_of(2)
            && let Some(home) = self.homes.borrow_mut().remove(&(port, pair))
        {
            self.handles[home].call(move |w| w.leave_pair(port, pair));
        }
        let lanes = self.each(move |w| w.switch.port_mut(port)?.stop(index));
        let last = lanes.into_iter().flatten().next_back();
        last.map(|mut lane| lane.with(GuestQueue::end))
    }

    /// The worker that is home to the fewest pairs.
    fn emptiest(&self) -> usize {
        let homes = self.homes.borrow();
        let pairs_of = |worker: &usize| homes.values().filter(|home| *home == worker).count();
        (0..self.count()).min_by_key(pairs_of).unwrap_or(0)
    }

    /// Moves a pair from the worker with the most to do to the one with the least, if that makes them more
    /// equal. To be called at equal intervals.
    pub fn balance(&self) {
        let loads = self.each(Worker::take_loads);
        let loads = &loads[..self.count()];
        if let Some(Move { pair, from, to }) = plan(loads)
            // It may have been stopped and started since its load was counted.
            && self.homes.borrow().get(&pair) == Some(&from)
        {
            self.move_pair(pair, to);
        }
    }

    /// Gives a pair another home. Between the two nobody serves it, and what its guest sends waits. `false`: it stays, because frames of
    /// it wait for control at its home, and later ones would overtake them by flows that the other worker knows already.
    ///
    /// # Panics
    /// When there is no such worker.
    pub fn move_pair(&self, pair: Pair, to: usize) -> bool {
        let (port, number) = pair;
        let Some(from) = self.homes.borrow().get(&pair).copied() else {
            return false;
        };
        let left = self.on(from, move |w| {
            let may_leave = !w.switch.has_parked_of(port, number);
            if may_leave {
                w.leave_pair(port, number);
            }
            may_leave
        });
        if !left {
            return false;
        }
        self.homes.borrow_mut().insert(pair, to);
        if let Err(error) = self.have_served(pair, to) {
            tracing::error!("a queue pair of port {} is not served: {error}", port.0);
        }
        true
    }

    fn have_served(&self, (port, pair): Pair, home: usize) -> Result<(), String> {
        match self.resting.get() {
            true => Ok(()),
            false => self.on(home, move |w| w.serve_pair(port, pair)),
        }
    }

    /// From now on until [`Workers::unrest`], no pair is served, and pairs that are started wait. What a batch was
    /// about is done when this returns; what waits for control can still be answered.
    pub fn rest(&self) {
        if !self.resting.replace(true) {
            self.at_homes(Worker::leave_pair);
        }
    }

    /// Serves all pairs, whether their guests kick or not.
    pub fn unrest(&self) {
        if self.resting.replace(false) {
            self.at_homes(|worker, port, pair| {
                if let Err(error) = worker.serve_pair(port, pair) {
                    tracing::error!("a queue pair of port {} is not served: {error}", port.0);
                }
            });
        }
    }

    /// Does something with each pair, on its home.
    fn at_homes(&self, job: impl Fn(&mut Worker, PortId, u16) + Copy + Send + 'static) {
        let mut pairs = vec![Vec::new(); self.count()];
        for (pair, home) in &*self.homes.borrow() {
            pairs[*home].push(*pair);
        }
        for (home, pairs) in pairs.into_iter().enumerate() {
            self.on(home, move |worker| {
                let all = pairs.into_iter();
                all.for_each(|(port, pair)| job(worker, port, pair));
            });
        }
    }
}

fn states(fds: Vec<OwnedFd>) -> io::Result<States> {
    let mut fds = fds.into_iter();
    let memory = fds.next().ok_or(io::ErrorKind::InvalidData)?;
    let bells = fds.next().map(|ring| Bells::map(memory.as_fd(), ring));
    Ok(States {
        view: View::map(memory.as_fd())?,
        bells: bells.transpose()?,
    })
}

/// A pair that gets another home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Move {
    pair: Pair,
    from: usize,
    to: usize,
}

/// What to move, by what each worker has done for which pair since the last look.
fn plan(loads: &[Vec<(Pair, u64)>]) -> Option<Move> {
    let total = |worker: &usize| loads[*worker].iter().map(|(_, load)| load).sum::<u64>();
    let from = (0..loads.len()).max_by_key(total)?;
    let to = (0..loads.len()).min_by_key(total)?;
    let gap = total(&from) - total(&to);
    if total(&from) < BUSY || gap < total(&from) / 4 {
        return None;
    }
    let left = |load: u64| gap.abs_diff(2 * load);
    let (pair, load) = loads[from].iter().min_by_key(|(_, load)| left(*load))?;
    // A pair that is nearly all of the gap would only carry it over.
    (left(*load) < gap / 4 * 3).then_some(Move {
        pair: *pair,
        from,
        to,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(of: &[&[u64]]) -> Vec<Vec<(Pair, u64)>> {
        let mut next = 0..;
        let pair = |load: &u64| ((PortId(next.next().unwrap()), 0), *load);
        let mut pair = pair;
        of.iter()
            .map(|w| w.iter().map(&mut pair).collect())
            .collect()
    }

    #[test]
    fn the_pair_that_fits_the_gap_best_moves() {
        let planned = plan(&loads(&[
            &[900_000, 400_000, 50_000],
            &[100_000],
            &[500_000],
        ]));
        let pair = (PortId(1), 0);
        let (from, to) = (0, 1);
        assert_eq!(planned, Some(Move { pair, from, to }));
    }

    #[test]
    fn nothing_moves_where_it_would_help_nobody() {
        for still in [
            loads(&[&[1_000_000], &[]]),
            loads(&[&[600_000], &[500_000]]),
            loads(&[&[40_000, 40_000], &[]]),
            loads(&[&[], &[]]),
            loads(&[&[500_000, 500_000]]),
            loads(&[&[1_000_000, 10_000], &[]]),
        ] {
            assert_eq!(plan(&still), None, "{still:?}");
        }
    }

    #[test]
    fn moving_ends() {
        let mut now = loads(&[&[300_000; 7], &[], &[]]);
        let mut moves = 0;
        while let Some(Move { pair, from, to }) = plan(&now) {
            let at = now[from].iter().position(|(p, _)| *p == pair).unwrap();
            let moved = now[from].remove(at);
            now[to].push(moved);
            moves += 1;
            assert!(moves < 10);
        }
        let counts: Vec<usize> = now.iter().map(Vec::len).collect();
        assert_eq!(counts.iter().max(), Some(&3), "{counts:?}");
    }
}
