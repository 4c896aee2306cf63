//! Attackers: threads of this process, or a process of their own.

use std::io::{self, Read as _};
use std::iter::Sum;
use std::ops::Add;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use super::arena::Arena;
use super::tricks::{TRICKS, Trick};
use testkit::process::send;

/// How long attackers may take to notice that their time is over.
const GRACE: Duration = Duration::from_secs(20);
/// It is not worth a process to attack for less.
const SHORTEST: Duration = Duration::from_millis(100);
/// The exit status of a process that a panic ended.
const PANICKED: i32 = 3;

/// Kind of attackers.
#[derive(Clone, Debug)]
pub enum Attackers {
    /// Threads of this process, which share its locks and its allocator with honest guests.
    Threads,
    /// Processes that run this program, which calls [`attack`] when its first argument is
    /// `--attack`.
    Processes(PathBuf),
}

impl Attackers {
    pub(super) fn play(&self, job: &AttackJob, stop: &AtomicBool) -> io::Result<Played> {
        match self {
            Self::Threads => {
                let tally = Tally::new();
                job.play(&tally, stop);
                Ok(tally.played())
            }
            Self::Processes(program) => in_processes(program, job, stop),
        }
    }
}

/// Counts of attackers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Played {
    /// How often they did what the trick does.
    pub steps: u64,
    /// Connections without a reply: ports pause after faults.
    pub unanswered: u64,
    /// Attackers whose driver was confused by what they did themselves.
    pub panics: u64,
    /// Their CPU time.
    pub cpu: Duration,
}

impl Add for Played {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            steps: self.steps + more.steps,
            unanswered: self.unanswered + more.unanswered,
            panics: self.panics + more.panics,
            cpu: self.cpu + more.cpu,
        }
    }
}

impl Sum for Played {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

impl Played {
    /// As the last line of a process.
    fn line(&self) -> String {
        let cpu = self.cpu.as_nanos();
        let Self {
            steps,
            unanswered,
            panics,
            ..
        } = self;
        format!("played {steps} {unanswered} {panics} {cpu}")
    }

    fn read(line: &str) -> Option<Self> {
        let numbers = line.strip_prefix("played ")?.split(' ');
        let numbers: Vec<u64> = numbers.map_while(|number| number.parse().ok()).collect();
        let [steps, unanswered, panics, cpu] = numbers[..] else {
            return None;
        };
        Some(Self {
            steps,
            unanswered,
            panics,
            cpu: Duration::from_nanos(cpu),
        })
    }
}

/// Counters of attackers.
pub(super) struct Tally {
    pub(super) steps: AtomicU64,
    pub(super) unanswered: AtomicU64,
    pub(super) panics: AtomicU64,
    pub(super) cpu_ns: AtomicU64,
}

impl Tally {
    const fn new() -> Self {
        Self {
            steps: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            cpu_ns: AtomicU64::new(0),
        }
    }

    fn played(&self) -> Played {
        Played {
            steps: self.steps.load(Ordering::Relaxed),
            unanswered: self.unanswered.load(Ordering::Relaxed),
            panics: self.panics.load(Ordering::Relaxed),
            cpu: Duration::from_nanos(self.cpu_ns.load(Ordering::Relaxed)),
        }
    }
}

/// A trick to play.
#[derive(Clone, Debug)]
pub(super) struct AttackJob {
    pub(super) trick: &'static Trick,
    pub(super) time: Duration,
    pub(super) seed: u64,
    pub(super) ports: Vec<PathBuf>,
}

impl AttackJob {
    fn play(&self, tally: &Tally, stop: &AtomicBool) {
        let end = Instant::now() + self.time;
        Arena::new(&self.ports, end, stop, self.seed, tally).attack(self.trick.run);
    }

    fn command(&self, program: &Path) -> Command {
        // Should this process be killed, so are its attackers.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command.args(["--attack", self.trick.name]);
        command.args(["--seconds", &self.time.as_secs_f64().to_string()]);
        command.args(["--seed", &self.seed.to_string(), "--ports"]);
        command.args(&self.ports);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    /// Parses the arguments of [`AttackJob::command`], without the program.
    fn read(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let mut value = |name| (args.next()? == name).then(|| args.next())?;
        let name = value("--attack")?;
        let seconds = value("--seconds")?.parse().ok()?;
        let seed = value("--seed")?.parse().ok()?;
        Some(Self {
            trick: TRICKS.iter().find(|trick| trick.name == name)?,
            time: Duration::try_from_secs_f64(seconds).ok()?,
            seed,
            ports: (args.next()? == "--ports").then(|| args.map(PathBuf::from).collect())?,
        })
    }
}

/// A process of attackers: plays the trick that these arguments name and prints what it did as one
/// line.
///
/// # Errors
/// When they are not what [`run`](super::run) passes on, or the system refuses a signal handler.
pub fn attack(args: impl Iterator<Item = String>, stop: &AtomicBool) -> io::Result<()> {
    static TALLY: Tally = Tally::new();
    let job = AttackJob::read(args);
    let job = job.ok_or_else(|| io::Error::other("--attack: not called by this program"))?;
    mapping::survive_truncation()?;
    // A release build ends at a panic, wherever it is caught: the counts so far must be reported
    // before.
    std::panic::set_hook(Box::new(|_| {
        TALLY.panics.fetch_add(1, Ordering::Relaxed);
        println!("{}", of_this_process(&TALLY).line());
        std::process::exit(PANICKED);
    }));
    job.play(&TALLY, stop);
    println!("{}", of_this_process(&TALLY).line());
    Ok(())
}

/// With the CPU time of all threads, those included that have not ended yet.
fn of_this_process(tally: &Tally) -> Played {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Played {
        cpu: Duration::new(time.tv_sec as u64, time.tv_nsec as u32),
        ..tally.played()
    }
}

/// One process after another, where a panic ends one before its time.
fn in_processes(program: &Path, job: &AttackJob, stop: &AtomicBool) -> io::Result<Played> {
    let end = Instant::now() + job.time;
    let mut all = Vec::new();
    loop {
        let time = end.saturating_duration_since(Instant::now());
        let seed = job.seed.wrapping_add(all.len() as u64);
        let job = AttackJob {
            time,
            seed,
            ..job.clone()
        };
        let (status, played) = in_process(job.command(program), time, stop)?;
        all.push(played);
        let left = end.saturating_duration_since(Instant::now());
        let again = status.code() == Some(PANICKED) && left >= SHORTEST;
        if !again || stop.load(Ordering::Relaxed) {
            return Ok(all.into_iter().sum());
        }
    }
}

fn in_process(
    mut command: Command,
    time: Duration,
    stop: &AtomicBool,
) -> io::Result<(ExitStatus, Played)> {
    let mut child = command.spawn()?;
    let status = wait(&mut child, Instant::now() + time + GRACE, stop)?;
    let mut text = String::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_string(&mut text)?;
    }
    let played = text.lines().find_map(Played::read);
    let played = played.ok_or_else(|| {
        let text = format!("the attackers' process reported nothing: {status}");
        io::Error::other(text)
    })?;
    Ok((status, played))
}

/// Waits for the end of attackers; requests it, and ends them if they do not stop by `end`.
fn wait(child: &mut Child, end: Instant, stop: &AtomicBool) -> io::Result<ExitStatus> {
    let mut told = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if !told && stop.load(Ordering::Relaxed) {
            told = true;
            send(child.id(), Signal::TERM);
        }
        if Instant::now() >= end {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_played_is_read_from_its_line() {
        let played = Played {
            steps: 7,
            unanswered: 1,
            panics: 2,
            cpu: Duration::from_nanos(1_000_000_003),
        };
        assert_eq!(Played::read(&played.line()), Some(played));
        assert_eq!(Played::read("played 7 1 2"), None);
        assert_eq!(Played::read("thread panicked"), None);
    }

    #[test]
    fn a_process_reads_the_trick_that_it_is_to_play() {
        let job = AttackJob {
            trick: &TRICKS[3],
            time: Duration::from_millis(1250),
            seed: u64::MAX,
            ports: vec!["/run/red0.sock".into(), "/run/red1.sock".into()],
        };
        let command = job.command("/bin/hostile".as_ref());
        let args = command
            .get_args()
            .map(|arg| arg.to_string_lossy().into_owned());
        let args: Vec<String> = args.skip_while(|arg| arg != "--attack").collect();
        let read = AttackJob::read(args.iter().cloned()).expect("an job");
        assert_eq!(read.trick.name, job.trick.name);
        assert_eq!((read.time, read.seed), (job.time, job.seed));
        assert_eq!(read.ports, job.ports);
        assert!(AttackJob::read(args.into_iter().take(5)).is_none());
    }
}
