//! Lasthop with netmap ports and pipes, and `slotgen` on them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use e2e::lasthop::Lasthop;
use e2e::machine::pin;
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Signal, set_parent_process_death_signal};
use testkit::process::on_cores;

use crate::experiments::busy::RequestSample;
use crate::peers::lasthop as peer;
use crate::plan::Plan;
use crate::process::wake_ups;
use crate::procfs::family_seconds;
use crate::stop;

/// Most bridges of a chain.
pub(super) const BRIDGES: u32 = 4;
/// Ports and pipes without traffic.
const SILENT: (u32, u32) = (64, 16);
/// The bridges of figure 11 copy this many frames a wait.
const CHAIN_BATCH: u32 = 32;
const PINGS: u32 = 3000;
const OPEN: Duration = Duration::from_secs(10);

/// How a program waits: `LASTHOP_NETMAP_POLL`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Poll {
    Sleep,
    Adaptive,
    Spin,
}

impl Poll {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sleep => "sleep",
            Self::Adaptive => "adaptive",
            Self::Spin => "spin",
        }
    }
}

/// The names of both ends of a way, and the cores of their programs.
pub(super) struct Ends {
    names: [String; 2],
    cores: [usize; 2],
}

/// Fields of the line that a `slotgen` prints in the end.
struct Printed(BTreeMap<String, f64>);

impl Printed {
    fn parse(text: &str) -> Self {
        let field = |word: &str| {
            let (name, value) = word.split_once('=')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Self(text.split_whitespace().filter_map(field).collect())
    }

    fn get(&self, name: &str) -> Result<f64> {
        let found = self.0.get(name).copied();
        found.with_context(|| format!("slotgen printed no {name}"))
    }
}

/// A running Lasthop.
pub(super) struct World {
    plan: Plan,
    lasthop: Lasthop,
}

impl World {
    pub(super) fn start(plan: &Plan) -> Result<Self> {
        for program in ["slotgen", "liblasthop_netmap.so"] {
            let path = plan.bin.join(program);
            ensure!(
                path.exists(),
                "there is no {}: run 'make build'",
                path.display()
            );
        }
        let lasthop = peer::start_with(plan, &plan.cores[..1], &configuration())?;
        Ok(Self {
            plan: plan.clone(),
            lasthop,
        })
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(super) fn cores(&self) -> [usize; 2] {
        self.plan.cores
    }

    /// Two ports of a segment.
    pub(super) fn ports(&self) -> Ends {
        Ends {
            names: ["netmap:a", "netmap:b"].map(str::to_owned),
            cores: [self.plan.cores[1]; 2],
        }
    }

    /// A pipe with so many slots.
    pub(super) fn pipe(&self, slots: u32) -> Ends {
        Ends {
            names: [format!("netmap:q{slots}{{1"), format!("netmap:q{slots}}}1")],
            cores: self.plan.cores,
        }
    }

    /// Starts a `slotgen` on these cores, or anywhere.
    fn start_program(&self, cores: &[usize], poll: Poll, words: &[String]) -> Result<Program> {
        let mut command = Command::new(self.plan.bin.join("lasthop"));
        command
            .args(["netmap", "--poll", poll.name(), "--"])
            .arg(self.plan.bin.join("slotgen"))
            .args(words)
            .env("LASTHOP_RUNTIME_DIR", self.folder())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        on_cores(&mut command, cores);
        // SAFETY: between fork and exec the closure makes one system call and touches no memory.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        Ok(Program(Some(command.spawn()?)))
    }

    fn folder(&self) -> PathBuf {
        self.lasthop.folder()
    }

    /// Waits until a port has a client.
    fn wait_open(&self, name: &str) -> Result<()> {
        let Some(port) = name
            .strip_prefix("netmap:")
            .filter(|n| !n.contains(['{', '}']))
        else {
            // A pipe's end needs no other.
            return stop::sleep(Duration::from_millis(30));
        };
        stop::try_wait("a client is connected", OPEN, || {
            let port = peer::port_shown(&self.lasthop, port)?;
            Ok((port["state"] == "up").then_some(()))
        })
    }

    /// Millions of frames a second that arrive at the receiver, while the sender sends as fast as
    /// it can.
    pub(super) fn throughput(&self, ends: &Ends, batch: u32, poll: Poll) -> Result<f64> {
        let [from, to] = &ends.names;
        let time = self.plan.window + self.plan.settle;
        let batch = batch.to_string();
        let receiver = self.start_program(
            &ends.cores[1..],
            poll,
            &words(&["rx", "-i", to, "-q", "0.2", "-T", &seconds(time + OPEN)]),
        )?;
        self.wait_open(to)?;
        let time = seconds(time);
        let sender = ["tx", "-i", from, "-b", &batch, "-T", &time];
        let sender = self.start_program(&ends.cores[..1], poll, &words(&sender))?;
        sender.finish()?;
        Ok(receiver.finish()?.get("pps")? / 1e6)
    }

    /// The same over a chain of bridges that copy.
    pub(super) fn chain(&self, bridges: u32, over_pipes: bool) -> Result<f64> {
        let ends = |link: u32| {
            if over_pipes {
                [format!("netmap:k{link}{{1"), format!("netmap:k{link}}}1")]
            } else {
                [format!("netmap:c{link}a"), format!("netmap:c{link}b")]
            }
        };
        let batch = CHAIN_BATCH.to_string();
        let mut running = Vec::new();
        for bridge in 1..=bridges {
            let ([_, from], [to, _]) = (ends(bridge - 1), ends(bridge));
            let line = [
                "bridge", "-c", "-b", &batch, "-i", &from, "-i", &to, "-w", "0",
            ];
            running.push(self.start_program(&[], Poll::Adaptive, &words(&line))?);
            self.wait_open(&from)?;
        }
        let ([from, _], [_, to]) = (ends(0), ends(bridges));
        let whole = Ends {
            names: [from, to],
            cores: self.plan.cores,
        };
        let mpps = self.throughput(&whole, CHAIN_BATCH, Poll::Adaptive);
        drop(running);
        mpps
    }

    /// Round trips, some thousands.
    pub(super) fn round_trips(&self, ends: &Ends, poll: Poll) -> Result<RequestSample> {
        let [one, other] = &ends.names;
        let mut answers = vec!["pong", "-i", other];
        let count = PINGS.to_string();
        let mut asks = vec!["ping", "-i", one, "-n", &count];
        // Programs that spin need a core each; the switch of two cores has one of them.
        let cores = if ends.cores[0] == ends.cores[1] && poll == Poll::Spin {
            self.plan.cores
        } else {
            ends.cores
        };
        if poll == Poll::Spin {
            answers.push("-s");
            asks.push("-s");
        }
        let slept = wake_ups();
        let pong = self.start_program(&cores[1..], poll, &words(&answers))?;
        self.wait_open(other)?;
        let ping = self.start_program(&cores[..1], poll, &words(&asks))?;
        let printed = ping.finish()?;
        drop(pong);
        ensure!(printed.get("lost")? == 0.0, "frames were lost");
        Ok(RequestSample {
            a_second: 1e9 / printed.get("mean_ns")?,
            p50_us: printed.get("p50_ns")? / 1e3,
            p99_us: printed.get("p99_ns")? / 1e3,
            wake_ups: wake_ups().saturating_sub(slept) as f64 / f64::from(PINGS),
        })
    }

    /// CPU of all processes at this rate, percent of a core.
    pub(super) fn cpu_at(&self, ends: &Ends, rate: u32) -> Result<f64> {
        let [from, to] = &ends.names;
        let long = seconds(2 * self.plan.window + OPEN);
        // One frame a wait, up to as many as a timer can serve.
        let batch = (rate / 20_000).max(1).to_string();
        let rate = rate.to_string();
        let poll = Poll::Adaptive;
        let receiver = ["rx", "-i", to, "-T", &long, "-q", &long];
        let receiver = self.start_program(&ends.cores[1..], poll, &words(&receiver))?;
        self.wait_open(to)?;
        let sender = ["tx", "-i", from, "-R", &rate, "-b", &batch, "-T", &long];
        let sender = self.start_program(&ends.cores[..1], poll, &words(&sender))?;
        stop::sleep(self.plan.settle + Duration::from_millis(100))?;
        let all = [receiver.pid(), sender.pid(), self.lasthop.supervisor()];
        self.percent(&all, self.plan.window)
    }

    fn percent(&self, processes: &[u32], time: Duration) -> Result<f64> {
        let used = || processes.iter().copied().map(family_seconds).sum::<f64>();
        let (start, before) = (Instant::now(), used());
        stop::sleep(time)?;
        Ok(100.0 * (used() - before) / start.elapsed().as_secs_f64())
    }

    /// CPU of all processes of many clients without traffic, percent of a core.
    pub(super) fn silent_percent(&self) -> Result<f64> {
        let long = seconds(Duration::from_secs(600));
        let (ports, pipes) = SILENT;
        let mut names: Vec<_> = (0..ports).map(|n| format!("netmap:s{n}")).collect();
        for pipe in 0..pipes {
            names.extend([format!("netmap:t{pipe}{{1"), format!("netmap:t{pipe}}}1")]);
        }
        let mut running = Vec::new();
        for name in &names {
            let line = ["rx", "-i", name, "-T", &long, "-q", &long];
            running.push(self.start_program(&[], Poll::Adaptive, &words(&line))?);
        }
        for port in 0..ports {
            self.wait_open(&format!("netmap:s{port}"))?;
        }
        stop::sleep(Duration::from_secs(1))?;
        let mut all: Vec<_> = running.iter().map(Program::pid).collect();
        all.push(self.lasthop.supervisor());
        self.percent(&all, self.plan.idle)
    }
}

/// A `slotgen`, killed when it is dropped.
struct Program(Option<Child>);

impl Program {
    fn pid(&self) -> u32 {
        self.0.as_ref().map_or(0, Child::id)
    }

    /// Waits until it ends.
    fn finish(mut self) -> Result<Printed> {
        let child = self.0.take().context("it runs")?;
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            bail!("slotgen: {}: {}", output.status, complaint.trim());
        }
        Ok(Printed::parse(&String::from_utf8_lossy(&output.stdout)))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn words(line: &[&str]) -> Vec<String> {
    line.iter().copied().map(str::to_owned).collect()
}

fn seconds(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64())
}

fn configuration() -> String {
    let mut text = "[switch]\nname = \"bench\"\n".to_owned();
    let port = |text: &mut String, name: &str, segment: &str| {
        let _ = write!(
            text,
            "[[port]]\nname = \"{name}\"\nkind = \"netmap\"\nsegment = \"{segment}\"\n\
             port_security = {{ macs = \"any\" }}\n"
        );
    };
    for link in 0..=BRIDGES {
        let _ = write!(text, "[[segment]]\nname = \"c{link}\"\n");
    }
    // Frames to an unknown station go to all ports of a segment.
    let _ = write!(text, "[[segment]]\nname = \"pair\"\n");
    port(&mut text, "a", "pair");
    port(&mut text, "b", "pair");
    for link in 0..=BRIDGES {
        for end in ["a", "b"] {
            port(&mut text, &format!("c{link}{end}"), &format!("c{link}"));
        }
    }
    for number in 0..SILENT.0 {
        port(&mut text, &format!("s{number}"), "default");
    }
    let pipe = |text: &mut String, name: &str, slots: u32| {
        let _ = write!(text, "[[pipe]]\nname = \"{name}\"\nslots = {slots}\n");
    };
    for slots in [256, 1024, 2048, 4096] {
        pipe(&mut text, &format!("q{slots}"), slots);
    }
    for link in 0..=BRIDGES {
        pipe(&mut text, &format!("k{link}"), 2048);
    }
    for number in 0..SILENT.1 {
        pipe(&mut text, &format!("t{number}"), 2048);
    }
    text
}

/// The median round trip between two threads that sleep in an eventfd each, on these cores, in
/// microseconds: the machine's limit for programs that sleep.
pub(super) fn eventfd_round_trip(cores: [usize; 2]) -> Result<f64> {
    let event = || eventfd(0, EventfdFlags::CLOEXEC);
    let (there, back) = (event()?, event()?);
    let mut trips = Vec::new();
    std::thread::scope(|scope| -> Result<()> {
        let (there, back) = (&there, &back);
        let answers = scope.spawn(move || -> Result<()> {
            pin(cores[1])?;
            for _ in 0..PINGS {
                wait(there)?;
                ring(back)?;
            }
            Ok(())
        });
        let asks = scope.spawn(move || -> Result<Vec<u64>> {
            pin(cores[0])?;
            (0..PINGS)
                .map(|_| {
                    let sent = Instant::now();
                    ring(there)?;
                    wait(back)?;
                    Ok(sent.elapsed().as_nanos() as u64)
                })
                .collect()
        });
        trips = asks
            .join()
            .map_err(|_| anyhow::anyhow!("a thread died"))??;
        answers
            .join()
            .map_err(|_| anyhow::anyhow!("a thread died"))?
    })?;
    trips.sort_unstable();
    Ok(trips[trips.len() / 2] as f64 / 1e3)
}

fn ring(event: impl AsFd) -> Result<()> {
    rustix::io::write(event, &1u64.to_ne_bytes())?;
    Ok(())
}

fn wait(event: impl AsFd) -> Result<()> {
    rustix::io::read(event, &mut [0; 8])?;
    Ok(())
}
