//! All workers, as the session thread uses them.
//!
//! Each worker has its own switch (tables, batch, pending frames) with every port in it; workers
//! share the ports' queues, one at a time (see `queue_lock`). The queue pair by which a guest sends
//! has one worker as its *home*, the only one that serves it. A new pair gets the worker with the
//! fewest pairs as its home, and [`Workers::balance`] moves pairs when the load is uneven.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ipc::driving::DriverCounters;
use ipc::keeping::ThreadSlots;
use ipc::supervision::Poll;
use port::counters::Counters;
use port::{DropReason, PortId};
use vcpus::{BlockEvents, Slot, View};
use wire::virtio::features::Features;

use crate::forward::switch::Switch;
use crate::ports::calls::PendingCalls;
use crate::ports::crash_record;
use crate::ports::guest::{GuestPort, GuestQueue};
use crate::ports::interface::InterfaceQueues;
use crate::ports::port::Settlement;
use crate::ports::queue_lock::{Hold, QueueLock, Watch};
use crate::worker::guests::States;
use crate::worker::{self, Notices, Worker, WorkerHandle};

/// Load of a worker, microseconds of the second between two checks, below which no pair is moved:
/// the worker has time to spare.
const MIN_LOAD: u64 = 100_000;

/// Jobs that wake a worker together while no pair is served. It takes others from its inbox as long
/// as it is awake.
const JOBS_PER_WAKE_UP: u32 = 61;
/// Idle pairs that a worker puts into service before it serves the others again.
const RESUMED_PAIRS: usize = 64;

/// A queue pair of a port.
pub type Pair = (PortId, u16);

/// The handles of all workers, and the home of each pair.
#[derive(Debug)]
pub struct Workers {
    handles: Vec<WorkerHandle>,
    homes: RefCell<BTreeMap<Pair, usize>>,
    /// By port and queue index: whether a worker uses the queue. Of all started queues.
    watches: RefCell<BTreeMap<(PortId, u16), Watch<GuestQueue>>>,
    /// By port and home: whether a worker has been asked to look at the port's pairs again, and has
    /// not begun to.
    retries: RefCell<BTreeMap<(PortId, usize), Arc<AtomicBool>>>,
    /// No pair is served now.
    quiesced: Cell<bool>,
    /// Number of jobs that were queued without a wait.
    queued: Cell<u32>,
}

impl Workers {
    /// Starts so many workers.
    ///
    /// # Errors
    /// A system error of a descriptor or a thread.
    pub fn start(
        count: u16,
        poll: Poll,
        counters: &Counters,
        seed: u64,
    ) -> io::Result<(Self, Notices)> {
        let switch = |n: u16| Switch::numbered(counters.clone(), seed, n as u8);
        let (handles, notices) = worker::spawn_all((0..count).map(switch).collect(), poll)?;
        let workers = Self {
            handles,
            homes: RefCell::default(),
            watches: RefCell::default(),
            retries: RefCell::default(),
            quiesced: Cell::new(false),
            queued: Cell::new(0),
        };
        Ok((workers, notices))
    }

    /// Limits the looks of all workers before they sleep; zero: they sleep at once.
    pub fn limit_looks(&self, longest: Duration) {
        for worker in &self.handles {
            worker.call(move |w| w.limit_looks(longest));
        }
    }

    /// Gives each worker its slot for crash attribution. The session thread has the first slot.
    pub fn set_thread_slots(&self, slots: &ThreadSlots) {
        for (number, worker) in self.handles.iter().enumerate() {
            let slot = slots.of(number + 1);
            worker.call(move |worker| {
                worker.active.set_thread_slot(slot.clone());
                crash_record::set_thread_slot(slot);
            });
        }
    }

    /// Requests a [`Notice::ProbeAck`](crate::worker::Notice::ProbeAck) of each worker, and returns
    /// at once.
    pub fn probe(&self) {
        self.post_each(Worker::ack_probe);
    }

    /// Returns the number of workers.
    #[must_use]
    pub fn count(&self) -> usize {
        self.handles.len()
    }

    /// Runs a job on the first worker between two passes.
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

    /// Runs a job on each worker between two passes, one after the other; returns the results in
    /// order.
    pub fn each<R: Send + 'static>(
        &self,
        job: impl Fn(&mut Worker) -> R + Clone + Send + 'static,
    ) -> Vec<R> {
        let calls = self.handles.iter();
        calls.map(|worker| worker.call(job.clone())).collect()
    }

    /// Queues a job for each worker and returns at once.
    pub fn post_each(&self, job: impl Fn(&mut Worker) + Clone + Send + 'static) {
        for worker in &self.handles {
            match self.quiesced.get() {
                true => self.queue(worker, job.clone()),
                false => worker.post(job.clone()),
            }
        }
    }

    /// Sets the memory with the vCPU states of guests, and the ring of block events, if there is
    /// one; see [`Guests`](crate::worker::guests::Guests).
    pub fn watch(&self, fds: Vec<OwnedFd>) {
        match states(fds) {
            Ok(states) => {
                let states = Arc::new(states);
                self.post_each(move |w| w.watch_guests(Arc::clone(&states)));
            }
            Err(error) => tracing::warn!("no vCPU states: {error}"),
        }
    }

    /// Sets the vCPUs of a port's guest.
    pub fn set_guest_threads(&self, port: PortId, slots: &[u16]) {
        let slots: Arc<[Slot]> = slots.iter().map(|slot| Slot(*slot)).collect();
        self.post_each(move |w| {
            w.guests.set_slots(port, Arc::clone(&slots));
            w.watch_guest(port);
        });
    }

    /// Changes a port's queues on the first worker; the others count its pairs again.
    pub fn on_port(&self, port: PortId, job: impl FnOnce(&mut GuestPort) + Send + 'static) {
        self.change_first(move |w| {
            w.switch.guest_mut(port).map(job);
        });
        self.change_each(move |w| {
            w.switch.guest_mut(port).map(GuestPort::count_pairs);
        });
    }

    /// Runs a job on the first worker, as [`Workers::change_each`].
    fn change_first(&self, job: impl FnOnce(&mut Worker) + Send + 'static) {
        if self.quiesced.get() {
            self.queue(&self.handles[0], job);
        } else {
            self.first(job);
        }
    }

    /// Runs a job on each worker. While no pair is served it is queued, and done before any pair is
    /// served again: a successor restores all connections without a wait for each.
    fn change_each(&self, job: impl Fn(&mut Worker) + Clone + Send + 'static) {
        if self.quiesced.get() {
            for worker in &self.handles {
                self.queue(worker, job.clone());
            }
        } else {
            self.each(job);
        }
    }

    /// Queues a job for a worker while no pair is served. The worker wakes up for many together.
    fn queue(&self, worker: &WorkerHandle, job: impl FnOnce(&mut Worker) + Send + 'static) {
        let queued = self.queued.get().wrapping_add(1);
        self.queued.set(queued);
        if queued.is_multiple_of(JOBS_PER_WAKE_UP) {
            worker.post(job);
        } else {
            worker.queue(job);
        }
    }

    /// Sets the MTU of a port.
    pub fn set_mtu(&self, port: PortId, mtu: Option<u16>) {
        self.each(move |w| w.switch.port_mut(port).map(|port| port.set_mtu(mtu)));
    }

    /// Attaches an interface to a port without a guest, and puts its queues into service.
    ///
    /// # Errors
    /// There is no such port, or watching a descriptor failed.
    pub fn attach_interface(
        &self,
        port: PortId,
        queues: &InterfaceQueues,
        mtu: Option<u16>,
    ) -> Result<(), String> {
        for worker in &self.handles {
            let interface = queues.port(mtu);
            let attached = worker.call(move |w| {
                let port = w.switch.port_mut(port)?;
                port.set_interface(Some(interface));
                Some(())
            });
            attached.ok_or("the port is gone")?;
        }
        for pair in 0..queues.pairs() {
            let home = self.with_fewest_pairs();
            self.homes.borrow_mut().insert((port, pair), home);
            if let Err(error) = self.serve_at((port, pair), home) {
                self.detach_interface(port);
                self.remove_interface(port);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes the queues of a port's interface out of service: no frame is read any more.
    pub fn detach_interface(&self, port: PortId) {
        let mut homes = self.homes.borrow_mut();
        let of_port = homes.range((port, 0)..=(port, u16::MAX));
        let pairs: Vec<_> = of_port.map(|(pair, home)| (*pair, *home)).collect();
        for ((_, pair), home) in &pairs {
            let pair = *pair;
            self.handles[*home].call(move |w| {
                w.finish_pair(port, pair);
                w.leave_pair(port, pair);
            });
        }
        homes.retain(|(of, _), _| *of != port);
    }

    /// Removes the interface of a port when its queues are out of service. Frames that wait for it
    /// are written once more, and else dropped. Returns its last counters, if there was one.
    pub fn remove_interface(&self, port: PortId) -> Option<DriverCounters> {
        let removed = self.each(move |w| w.switch.port_mut(port)?.set_interface(None));
        let mut last = removed.into_iter().flatten().next_back()?;
        Some(self.first(move |w| {
            let settled = last.end();
            w.switch.count_settled(port, settled);
            last.interface_counters()
        }))
    }

    /// Puts a port's queue into service.
    ///
    /// # Errors
    /// There is no such port, or watching its kick descriptor failed.
    pub fn start_queue(
        &self,
        port: PortId,
        index: u16,
        queue: GuestQueue,
        features: Features,
    ) -> Result<(), String> {
        let to_guest = index.is_multiple_of(2);
        let queue = QueueLock::new(queue);
        let mut first = queue.share();
        self.change_first(move |_| {
            let mut calls = PendingCalls::default();
            first.with(|queue| queue.begin(to_guest, &mut calls));
        });
        // Before any worker has it: who revokes waits for each that may use it.
        self.watches
            .borrow_mut()
            .insert((port, index), queue.watch());
        if !self.add_queue(port, index, &queue, features) {
            self.watches.borrow_mut().remove(&(port, index));
            return Err("the port is gone".into());
        }
        let pair = index / 2;
        if to_guest {
            // While no pair is served, that is done with the others.
            let home = self.homes.borrow().get(&(port, pair)).copied();
            if let Some(home) = home.filter(|_| !self.quiesced.get()) {
                self.on(home, move |w| w.watch_buffers(port, pair, true));
            }
            return Ok(());
        }
        let home = self.with_fewest_pairs();
        let served = self.serve_at((port, pair), home);
        if served.is_err() {
            self.stop_queue(port, index);
        } else {
            self.homes.borrow_mut().insert((port, pair), home);
        }
        served
    }

    /// Adds a queue to a port of all workers. Returns `false` if one is known not to have the port.
    fn add_queue(
        &self,
        port: PortId,
        index: u16,
        queue: &QueueLock<GuestQueue>,
        features: Features,
    ) -> bool {
        self.handles.iter().all(|worker| {
            let queue = queue.share();
            let add = move |w: &mut Worker| {
                let guest = w.switch.guest_mut(port)?;
                guest.start(index, queue, features);
                Some(())
            };
            if self.quiesced.get() {
                self.queue(worker, move |w| {
                    add(w);
                });
                return true;
            }
            worker.call(add).is_some()
        })
    }

    /// Takes a port's queue out of service; returns its position.
    pub fn stop_queue(&self, port: PortId, index: u16) -> Option<u32> {
        let pair = index / 2;
        if !index.is_multiple_of(2)
            && let Some(home) = self.homes.borrow_mut().remove(&(port, pair))
        {
            self.handles[home].call(move |w| w.leave_pair(port, pair));
        }
        let queues = self.each(move |w| {
            if index.is_multiple_of(2) {
                w.watch_buffers(port, pair, false);
            }
            w.switch.guest_mut(port)?.stop(index)
        });
        self.watches.borrow_mut().remove(&(port, index));
        let mut last = queues.into_iter().flatten().next_back()?;
        let mut calls = PendingCalls::default();
        let (position, waiting) = last.with(|queue| queue.end(&mut calls));
        if waiting > 0 {
            let settled = Settlement {
                dropped: vec![(DropReason::ReceiverDown, waiting)],
                ..Settlement::default()
            };
            self.first(move |w| w.switch.count_settled(port, settled));
        }
        if !calls.is_empty() {
            // A worker sends it, because it has a watchdog.
            self.first(move |_| calls.send());
        }
        Some(position)
    }

    /// Waits until no worker uses anything of a port that it has looked up before this call: each
    /// queue that is in use now has been unlocked once. Returns for how long it waited.
    ///
    /// What was removed in front of a `fence(SeqCst)` before this call is not used any more when it
    /// returns, if who holds a queue looks it up behind such a fence, too (see `queue_lock::turn`).
    /// It takes no lock and calls no worker. It waits for the batches that are under way, and not
    /// for other guests or their VMMs. An idle port costs a load a queue.
    pub fn pass(&self, port: PortId) -> Duration {
        let watches = self.watches.borrow();
        let of_port = watches.range((port, 0)..=(port, u16::MAX));
        // All are found before the first is waited for: then they end side by side.
        let busy: Vec<_> = of_port.filter_map(|(_, watch)| watch.holder()).collect();
        if busy.is_empty() {
            return Duration::ZERO;
        }
        let since = Instant::now();
        busy.into_iter().for_each(Hold::wait);
        since.elapsed()
    }

    /// Has the workers look at a port's pairs again, as after kicks, and returns at once.
    pub fn retry(&self, port: PortId) {
        let homes = self.homes.borrow();
        let of_port = homes.range((port, 0)..=(port, u16::MAX));
        let homes: BTreeSet<_> = of_port.map(|(_, home)| *home).collect();
        for home in homes {
            let mut pending = self.retries.borrow_mut();
            let pending = pending.entry((port, home)).or_default();
            // One job at a time: a front end's messages must not fill a worker's inbox.
            if !pending.swap(true, Ordering::AcqRel) {
                let pending = Arc::clone(pending);
                self.handles[home].post(move |w| {
                    pending.swap(false, Ordering::AcqRel);
                    w.retry(port);
                });
            }
        }
    }

    /// Returns the worker that is home to the fewest pairs.
    fn with_fewest_pairs(&self) -> usize {
        if self.count() == 1 {
            return 0;
        }
        let homes = self.homes.borrow();
        let pairs_of = |worker: &usize| homes.values().filter(|home| *home == worker).count();
        (0..self.count()).min_by_key(pairs_of).unwrap_or(0)
    }

    /// Moves a pair from the worker with the most to do to the one with the least, if that makes
    /// them more equal. To be called at equal intervals.
    pub fn balance(&self) {
        let loads = self.each(Worker::take_loads);
        if let Some(Move { pair, from, to }) = plan(&loads)
            // It may have been stopped and started since its load was counted.
            && self.homes.borrow().get(&pair) == Some(&from)
        {
            self.move_pair(pair, to);
        }
    }

    /// Moves a pair to another home. Meanwhile no worker serves it, and the guest's frames wait in
    /// its rings. Returns `false` if the pair stays, because frames of it are pending at its home:
    /// later frames would overtake them by flows that the other worker has cached.
    ///
    /// # Panics
    /// When there is no such worker.
    pub fn move_pair(&self, pair: Pair, to: usize) -> bool {
        let (port, number) = pair;
        let Some(from) = self.homes.borrow().get(&pair).copied() else {
            return false;
        };
        let left = self.on(from, move |w| {
            let may_leave = !w.switch.has_pending_of(port, number);
            if may_leave {
                w.leave_pair(port, number);
            }
            may_leave
        });
        if !left {
            return false;
        }
        self.homes.borrow_mut().insert(pair, to);
        if let Err(error) = self.serve_at(pair, to) {
            tracing::error!("a queue pair of port {} is not served: {error}", port.0);
        }
        true
    }

    fn serve_at(&self, (port, pair): Pair, home: usize) -> Result<(), String> {
        if self.quiesced.get() {
            Ok(())
        } else {
            self.on(home, move |w| w.serve_pair(port, pair))
        }
    }

    /// Stops serving all pairs until [`Workers::resume`]; pairs that are started meanwhile wait.
    /// All batches are complete when this returns; pending frames can still be decided.
    pub fn quiesce(&self) {
        if !self.quiesced.replace(true) {
            self.at_homes(|worker, port, pair| {
                worker.finish_pair(port, pair);
                worker.leave_pair(port, pair);
            });
        }
    }

    /// Serves all pairs again, whether their guests kick or not: first those whose guests have sent
    /// meanwhile. The others follow in parts, and the worker serves in between.
    pub fn resume(&self) {
        if !self.quiesced.replace(false) {
            return;
        }
        for (home, pairs) in self.pairs_by_home().into_iter().enumerate() {
            let has_frames = |worker: &mut Worker, (port, pair): Pair| {
                let port = worker.switch.port_mut(port);
                port.is_some_and(|port| port.has_frames(pair))
            };
            let idle = self.on(home, move |worker| {
                let (busy, idle): (Vec<Pair>, Vec<Pair>) = pairs
                    .into_iter()
                    .partition(|pair| has_frames(worker, *pair));
                busy.into_iter().for_each(|pair| serve(worker, pair));
                idle
            });
            for part in idle.chunks(RESUMED_PAIRS) {
                let part = part.to_vec();
                self.on(home, move |worker| {
                    part.into_iter().for_each(|pair| serve(worker, pair));
                });
            }
        }
    }

    /// Runs a job for each pair on its home.
    fn at_homes(&self, job: impl Fn(&mut Worker, PortId, u16) + Copy + Send + 'static) {
        for (home, pairs) in self.pairs_by_home().into_iter().enumerate() {
            self.on(home, move |worker| {
                let all = pairs.into_iter();
                all.for_each(|(port, pair)| job(worker, port, pair));
            });
        }
    }

    /// Returns the pairs of each worker.
    fn pairs_by_home(&self) -> Vec<Vec<Pair>> {
        let mut pairs = vec![Vec::new(); self.count()];
        for (pair, home) in &*self.homes.borrow() {
            pairs[*home].push(*pair);
        }
        pairs
    }
}

/// Puts a pair into service on its home.
fn serve(worker: &mut Worker, (port, pair): Pair) {
    if let Err(error) = worker.serve_pair(port, pair) {
        tracing::error!("a queue pair of port {} is not served: {error}", port.0);
    }
}

fn states(fds: Vec<OwnedFd>) -> io::Result<States> {
    let mut fds = fds.into_iter();
    let memory = fds.next().ok_or(io::ErrorKind::InvalidData)?;
    let block_events = fds
        .next()
        .map(|ring| BlockEvents::map(memory.as_fd(), ring));
    Ok(States {
        view: View::map(memory.as_fd())?,
        block_events: block_events.transpose()?,
    })
}

/// A pair and its new home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Move {
    pair: Pair,
    from: usize,
    to: usize,
}

/// Chooses the pair to move, by the load of each pair since the last check.
fn plan(loads: &[Vec<(Pair, u64)>]) -> Option<Move> {
    let total = |worker: &usize| loads[*worker].iter().map(|(_, load)| load).sum::<u64>();
    let to = (0..loads.len()).min_by_key(total)?;
    let mut all: Vec<usize> = (0..loads.len()).collect();
    all.sort_by_key(|worker| Reverse(total(worker)));
    // One whose load is that of a single pair has none to give away, but others may have.
    all.into_iter()
        .find_map(|from| plan_between(loads, from, to))
}

/// Chooses the pair to move between two workers.
fn plan_between(loads: &[Vec<(Pair, u64)>], from: usize, to: usize) -> Option<Move> {
    let total = |worker: usize| loads[worker].iter().map(|(_, load)| load).sum::<u64>();
    let gap = total(from) - total(to);
    if total(from) < MIN_LOAD || gap < total(from) / 4 {
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
    fn a_worker_with_a_single_pair_does_not_keep_others_from_moving() {
        let planned = plan(&loads(&[&[1_000_000], &[500_000, 100_000, 300_000], &[]]));
        let pair = (PortId(1), 0);
        let (from, to) = (1, 2);
        assert_eq!(planned, Some(Move { pair, from, to }));
    }

    #[test]
    fn nothing_moves_without_a_gain() {
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
