//! CPU time of a received packet by who spends it: figure 2 of Santos, Turner, Janakiraman and
//! Pratt (USENIX ATC 2008). A namespace sends UDP packets at a steady rate to another one, which
//! stands for the guest, over an interface of the host and each switch, or without a switch.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use testkit::procfs::{cpu_seconds, named_seconds};

use super::load::{RECEIVER, SENDER, Traffic, paced};
use super::world::{Way, World};
use crate::experiments::parts::{Part, Run};
use crate::plan::{Plan, progress};
use crate::report::Report;
use crate::sample::wait_quiet;
use crate::stop;

static COST: Part = Part {
    name: "packet",
    axes: ["bytes of payload", "microseconds of CPU for a packet"],
    published: "section 3.2, packets of 1500 bytes: 18 200 cycles with Xen's driver domain, 4000 \
                with native Linux",
};
static CLASSES: Part = Part {
    name: "classes",
    axes: [
        "1: sender, 2: driver, 3: switch and TAP, 4: receiver, 5: kernel threads",
        "microseconds of CPU for a packet with a payload of 1472 bytes",
    ],
    published: "section 3.2, cycles a packet: copy to the user 1700, the guest's kernel 4300, its \
                hypervisor 900, grant copy 3000, the driver domain's kernel 5400 and its \
                hypervisor 2900",
};

/// Names of the ways.
pub(crate) const NATIVE: &str = "native Linux";
pub(crate) const PACKET: &str = "Lasthop, packet";
const WAYS: [(&str, Way); 4] = [
    (NATIVE, Way::Native),
    (PACKET, Way::LasthopPacket),
    ("Lasthop, xdp", Way::LasthopXdp),
    ("Linux bridge", Way::BridgeVeth),
];
/// Bytes of payload: the second fills a packet of 1500 bytes.
const PAYLOADS: [usize; 2] = [52, 1472];
/// Packets a second: so few that none is lost.
const RATE: u32 = 20_000;
/// Of the packets that were due, those that have to arrive.
const ARRIVED: f64 = 0.9;
const NOTES: [&str; 3] = [
    "20 000 packets a second, in bursts of 64; kernel threads are those that work on packets when \
     nothing else does (ksoftirqd)",
    "the work of a veth pair and of the bridge is that of the sender, in whose time the kernel \
     does it; that of the receiver's TAP device is the switch's",
    "native Linux is one veth pair between the two namespaces, and no network card",
];

/// See the module.
pub(crate) fn breakdown(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "breakdown", &NOTES, &[]);
    let mut worlds = Vec::new();
    for (name, way) in WAYS {
        progress(&format!("breakdown: {name}"));
        run.attempt(name, |_| {
            worlds.push((name, World::start(plan, way)?));
            Ok(())
        })?;
    }
    for _ in 0..plan.rounds {
        wait_quiet(plan.patience / 50)?;
        for (name, world) in &worlds {
            for payload in PAYLOADS {
                let what = format!("{name}, {payload} bytes");
                run.attempt(&what, |run| packets(run, world, name, payload))?;
            }
        }
    }
    Ok(run.report("CPU time of a received packet, by who spends it"))
}

fn packets(run: &mut Run<'_>, world: &World, name: &str, payload: usize) -> Result<()> {
    let plan = run.plan;
    let mut classes = [0.0; 5];
    run.take(&COST, name, payload as f64, || {
        let traffic = paced(world, payload, RATE)?;
        stop::sleep(plan.settle)?;
        let seen = Seen::during(&traffic, world, plan.window)?;
        traffic.end()?;
        let expected = f64::from(RATE) * seen.seconds;
        ensure!(seen.packets > ARRIVED * expected, "packets were lost");
        classes = seen.classes.map(|seconds| 1e6 * seconds / seen.packets);
        Ok(classes.iter().sum())
    })?;
    if payload == PAYLOADS[1] {
        for (number, class) in (1_u32..).zip(classes) {
            run.add_at(&CLASSES, number.into(), class);
        }
    }
    Ok(())
}

/// CPU time of the kernel's threads that work on frames for others, in seconds.
fn kernel_threads() -> f64 {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| {
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        let pid = entry.file_name().to_str()?.parse().ok()?;
        name.starts_with("ksoftirqd").then_some(pid)
    });
    pids.map(cpu_seconds).sum()
}

/// CPU time of an interval, in seconds.
struct Seen {
    packets: f64,
    seconds: f64,
    /// As the axis of [`CLASSES`] names them.
    classes: [f64; 5],
}

impl Seen {
    fn during(traffic: &Traffic, world: &World, time: Duration) -> Result<Self> {
        let us = std::process::id();
        let own = || [SENDER, RECEIVER].map(|name| named_seconds(us, name));
        let (start, count) = (Instant::now(), traffic.count());
        let (kernel, threads, used) = (kernel_threads(), own(), world.cpu_seconds());
        stop::sleep(time)?;
        let seconds = start.elapsed().as_secs_f64();
        let packets = (traffic.count() - count) as f64;
        let (threads_now, used_now) = (own(), world.cpu_seconds());
        let kernel = kernel_threads() - kernel;
        let [sender, receiver] = [0, 1].map(|index| threads_now[index] - threads[index]);
        let driver = used_now.driver.unwrap_or(0.0) - used.driver.unwrap_or(0.0);
        let switch = used_now.switch - used.switch - driver;
        let classes = [sender, driver, switch, receiver, kernel];
        Ok(Self {
            packets,
            seconds,
            classes,
        })
    }
}
