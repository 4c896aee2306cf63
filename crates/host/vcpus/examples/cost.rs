//! Cost of the BPF programs: nanoseconds per context switch with and without them, in turn.
//!
//! ```text
//! cargo run --release -p lasthop-vcpus --example cost [ROUNDS]
//! ```
//!
//! Two threads on one core pass it to each other: with `yield` by sched_yield(2), which is a
//! context switch and nothing else; with `pipe` by a byte in a pipe, which is a wake-up too.
//! *others*: the programs run, and the threads are not followed. *vCPUs*: both threads are
//! followed. A row is the median of all rounds.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::thread::{CpuSet, gettid, sched_setaffinity};
use vcpus::load::Programs;

const ROUNDS: usize = 25;
/// Context switches per round.
const SWITCHES: u32 = 100_000;

/// Method by which two threads pass a core to each other.
#[derive(Clone, Copy)]
enum Way {
    Yield,
    Pipe,
}

/// Programs that run meanwhile.
#[derive(Clone, Copy, PartialEq)]
enum With {
    Nothing,
    Others,
    Vcpus,
}

/// One of the two, from the middle of the other's turn on.
enum Turn {
    Yield,
    Pipe(PipeReader, PipeWriter),
}

impl Turn {
    fn take(&mut self) {
        match self {
            Self::Yield => std::thread::yield_now(),
            Self::Pipe(from, to) => {
                to.write_all(&[0]).expect("a pipe");
                from.read_exact(&mut [0]).expect("a pipe");
            }
        }
    }
}

fn turns(way: Way) -> [Turn; 2] {
    match way {
        Way::Yield => [Turn::Yield, Turn::Yield],
        Way::Pipe => {
            let (mine, yours) = (std::io::pipe(), std::io::pipe());
            let ((from_a, to_a), (from_b, to_b)) = (mine.expect("a pipe"), yours.expect("a pipe"));
            [Turn::Pipe(from_a, to_b), Turn::Pipe(from_b, to_a)]
        }
    }
}

/// Starts a thread that sends its id, waits for the start, and returns the time of its turns.
fn start(mut turn: Turn, core: usize) -> (u32, mpsc::Sender<()>, JoinHandle<f64>) {
    let (sender, ids) = mpsc::channel();
    let (go, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut only = CpuSet::new();
        only.set(core);
        sched_setaffinity(None, &only).expect("a core");
        sender
            .send(gettid().as_raw_nonzero().get().cast_unsigned())
            .expect("a receiver");
        wait.recv().expect("the start");
        let begun = Instant::now();
        for _ in 0..SWITCHES / 2 {
            turn.take();
        }
        begun.elapsed().as_nanos() as f64 / f64::from(SWITCHES)
    });
    (ids.recv().expect("an id"), go, thread)
}

/// Returns the nanoseconds per context switch.
fn measure(way: Way, with: With) -> f64 {
    let mut programs = match with {
        With::Nothing => None,
        _ => Some(Programs::load().unwrap_or_else(|error| panic!("{error}"))),
    };
    let both = turns(way).map(|turn| start(turn, 0));
    if let (Some(programs), With::Vcpus) = (&mut programs, with) {
        for (thread, ..) in &both {
            programs.table.follow(*thread).expect("a slot");
        }
    }
    both.iter()
        .for_each(|(_, go, _)| go.send(()).expect("a thread"));
    let both = both.map(|(_, _, thread)| thread.join().expect("its time"));
    both[0].max(both[1])
}

fn middle(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let rounds = rounds.unwrap_or(ROUNDS);
    println!("ns for each context switch      without    others     vCPUs");
    for (name, way) in [("yield", Way::Yield), ("pipe", Way::Pipe)] {
        let mut results = [const { Vec::new() }; 3];
        for _ in 0..rounds {
            for (with, all) in [With::Nothing, With::Others, With::Vcpus]
                .into_iter()
                .zip(&mut results)
            {
                all.push(measure(way, with));
            }
        }
        let [without, others, vcpus] = results.map(middle);
        let (more, most) = (others - without, vcpus - without);
        println!("{name:28} {without:10.1} {more:+9.1} {most:+9.1}");
    }
}
