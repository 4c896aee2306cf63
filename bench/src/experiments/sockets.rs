//! Sockets over ports: one program as client and as server, with the library's sockets over two
//! ports of Lasthop, and with the kernel's over two TAP ports and over a veth pair. Figure 2 and
//! the latencies of paper 004, whose library is Open Onload.

pub(crate) mod ends;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use testkit::lasthop::port;
use testkit::process::on_cores;

use self::ends::{READY, Role};
use super::external::{FAR, Namespace, Way, World};
use super::parts::{Bound, Part, Run};
use crate::folders;
use crate::peers::lasthop::{Lasthop, start_with};
use crate::plan::Plan;
use crate::process::Process;
use crate::report::Report;
use crate::sample::wait_quiet;
use crate::stop;

static BANDWIDTH: Part = Part {
    name: "bandwidth",
    axes: ["bytes of a message", "Gbit/s"],
    published: "figure 2 (MTU 1500): Open Onload reaches saturation of a link of 10 Gbit/s",
};
static LATENCY: Part = Part {
    name: "half-round-trip",
    axes: [
        "bytes of a message",
        "microseconds of half a round trip, median",
    ],
    published: "section 4: 10.1 us for the kernel, 5.3 for Open Onload",
};
static SOFTWARE: Part = Part {
    name: "software",
    axes: [
        "bytes of a message",
        "microseconds of half a round trip that are software's",
    ],
    published: "section 4: 5.8 us for the kernel, 1.0 for Open Onload; 4.3 are of hardware and \
                link",
};

/// Bytes of messages: of streams, and of round trips.
const STREAMS: [u32; 6] = [64, 256, 1024, 4096, 16_384, 65_536];
const TRIPS: [u32; 2] = [1, 1024];
const PORT: u16 = 7006;
/// The server's address in the library, behind the client's.
const SERVER: &str = "10.1.0.9";
const CLIENT: &str = "10.1.0.1";
/// How long a library that spins looks on before it sleeps at most, in microseconds: the default.
const SPIN_US: u32 = 100;
const START: Duration = Duration::from_secs(10);
/// Ways, as tables have them.
pub(crate) const SPINNING: &str = "library, spinning";
pub(crate) const SLEEPING: &str = "library, sleeping";
pub(crate) const TAP: &str = "kernel, TAP ports";
const VETH: &str = "kernel, veth";
const NOTES: [&str; 3] = [
    "one program has both ends, under 'lasthop net run' with the library's sockets, which looks on \
     for 100 us at most before it sleeps, or sleeps at once; client and server that spin have a \
     core each, which they share with the switch where there are two, and all else runs where the \
     kernel places it",
    "software's part is half a round trip less the time of a cache line from core to core and \
     back, which stands for the paper's hardware and link: a message crosses from client to switch \
     and from switch to server",
    "streams are of one connection, with TCP_NODELAY",
];

/// One way from client to server.
enum Place {
    Library { lasthop: Box<Lasthop>, spin_us: u32 },
    Kernel(Box<World>),
}

pub(crate) fn sockets(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "sockets", &NOTES, &[]);
    for _ in 0..plan.rounds {
        wait_quiet(plan.patience / 50)?;
        for way in [SPINNING, SLEEPING, TAP, VETH] {
            run.attempt(way, |run| one_way(run, way))?;
        }
    }
    aims(&mut run);
    Ok(run.report("Sockets over ports: two processes"))
}

/// Cores of the switch that the ends do not have, where there are such.
fn switch_cores(plan: &Plan) -> Vec<usize> {
    let mut cores: Vec<usize> = plan.spares().take(plan.cores.len()).collect();
    if cores.is_empty() {
        cores.extend(plan.cores);
    }
    cores
}

fn aims(run: &mut Run<'_>) {
    let half = run.ratio(&LATENCY, 1.0, [SPINNING, TAP]);
    let what = "half a round trip, library that spins to kernel over TAP ports";
    run.aim(what, half, Bound::AtMost(0.25), "x");
    let bandwidth = run.ratio(&BANDWIDTH, 65_536.0, [SPINNING, TAP]);
    let what = "messages of 64 KiB, library that spins to kernel over TAP ports";
    run.aim(what, bandwidth, Bound::AtLeast(1.5), "x");
}

fn one_way(run: &mut Run<'_>, way: &'static str) -> Result<()> {
    let plan = run.plan;
    let place = Place::start(plan, way)?;
    let folder = folders::new("sockets")?;
    let server = place.server(plan, folder.path())?;
    stop::try_wait("the server listens", START, || {
        Ok(server.output().contains(READY).then_some(()))
    })?;
    if plan.asks(BANDWIDTH.name) {
        for size in STREAMS {
            run.take(&BANDWIDTH, way, size.into(), || {
                place.client(plan, Role::Stream, size)
            })?;
        }
    }
    if plan.asks(LATENCY.name) || plan.asks(SOFTWARE.name) {
        for size in TRIPS {
            run.take(&LATENCY, way, size.into(), || {
                Ok(place.client(plan, Role::PingPong, size)? / 1e3)
            })?;
            if let Some(last) = run.last() {
                let [before, after] = last.trips_ns;
                let software = last.value - f64::midpoint(before, after) / 1e3;
                run.add(&SOFTWARE, software);
            }
        }
    }
    Ok(())
}

impl Place {
    fn start(plan: &Plan, way: &str) -> Result<Self> {
        Ok(match way {
            TAP => Self::Kernel(Box::new(World::start(plan, Way::LasthopTap)?)),
            VETH => Self::Kernel(Box::new(World::start(plan, Way::Native)?)),
            _ => {
                let ports: String = ["client", "server"]
                    .iter()
                    .map(|name| port(name, ""))
                    .collect();
                let text = format!("[switch]\nname = \"bench\"\n{ports}");
                let lasthop = Box::new(start_with(plan, &switch_cores(plan), &text)?);
                let spin_us = if way == SPINNING { SPIN_US } else { 0 };
                Self::Library { lasthop, spin_us }
            }
        })
    }

    /// The words of a program at one end.
    fn words(&self, plan: &Plan, (name, own): (&str, &str), end: &[String]) -> Result<Command> {
        let program = std::env::current_exe()?;
        let mut command = match self {
            Self::Library { lasthop, spin_us } => {
                let mut command = Command::new(plan.bin.join("lasthop"));
                command.args(["net", "run", "--socket"]);
                command.arg(lasthop.socket_of(name));
                command.args(["--address", &format!("{own}/24")]);
                command.args(["--spin-us", &spin_us.to_string(), "--"]);
                command
            }
            Self::Kernel(world) => {
                let namespace: &Namespace = match name {
                    "client" => &world.near,
                    _ => &world.far,
                };
                let mut command = Command::new("nsenter");
                command.arg(format!("--net={}", namespace.path()));
                command
            }
        };
        command.arg(program).arg("socket-end").args(end);
        // The kernel has two that spin share a core for a long time.
        if matches!(self, Self::Library { spin_us, .. } if *spin_us > 0) {
            let core = plan.cores[usize::from(name == "client")];
            on_cores(&mut command, &[core]);
        }
        Ok(command)
    }

    fn address(&self) -> String {
        match self {
            Self::Library { .. } => format!("{SERVER}:{PORT}"),
            Self::Kernel(_) => format!("{FAR}:{PORT}"),
        }
    }

    fn server(&self, plan: &Plan, log: &Path) -> Result<Process> {
        let end = [Role::Serve.name().to_owned(), self.address()];
        let command = self.words(plan, ("server", SERVER), &end)?;
        Ok(Process::spawn(
            "the server",
            command,
            &log.join("server.log"),
        )?)
    }

    /// Runs a client to its end, and reads its number.
    fn client(&self, plan: &Plan, role: Role, size: u32) -> Result<f64> {
        let end = [
            role.name().to_owned(),
            self.address(),
            format!("--size={size}"),
            format!("--settle={}", plan.settle.as_millis()),
            format!("--window={}", plan.window.as_millis()),
        ];
        let mut command = self.words(plan, ("client", CLIENT), &end)?;
        command.stdin(Stdio::null());
        let output = command.output()?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "the client: {}", complaint.trim());
        let printed = String::from_utf8_lossy(&output.stdout);
        let number = printed.trim().parse();
        number.with_context(|| format!("the client printed '{}'", printed.trim()))
    }
}
