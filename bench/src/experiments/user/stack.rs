//! A guest with a network stack, the library's over a queue pair, and the servers in a network
//! namespace that a switch leads to: by a TAP interface, or by a packet socket on a veth pair.
//!
//! ```text
//!   the client  <queues>  the switch            <TAP>        out0   servers, in outside
//!                         the switch, in host   up0  <veth>  out0
//! ```

use std::time::Instant;

use anyhow::Result;
use tempfile::TempDir;
use testkit::lasthop::port;

use super::super::external::Namespace;
use super::super::parts::{Bound, Part, Run};
use super::guest::Guest;
use super::loads::{Load, Traffic};
use super::servers::Servers;
use super::wires::{AnyWire, Queues};
use super::world::{GATEWAY, MTU, START};
use crate::peers::lasthop::{Lasthop, port_shown, start_with};
use crate::plan::{BEFORE, OURS, Plan};
use crate::report::Report;
use crate::sample::wait_quiet;
use crate::{folders, stop};

const PLACES: &str = "1: by TAP, 2: by packet socket on a veth pair";

const fn part(name: &'static str, unit: &'static str) -> Part {
    Part {
        name,
        axes: [PLACES, unit],
        published: "no figure",
    }
}

static REQUESTS: [Part; 4] = [
    part(
        "requests",
        "1000 requests of 64 bytes with their answers a second",
    ),
    part("requests, p50", "us"),
    part("requests, p99", "us"),
    part("requests, wake-ups", "wake-ups a request, all threads"),
];
static OUT: Part = part("tcp-out", "Gbit/s from the guest, super-frames");
static IN: Part = part("tcp-in", "Gbit/s to the guest, super-frames");

/// Bytes of each buffer of a connection: some super-frames.
const BUFFER: usize = 256 << 10;
const NOTES: [&str; 2] = [
    "the client is the stack of the library in one thread, over a queue pair with super-frames; it \
     has one connection, with buffers of 256 KiB",
    "the servers are plain sockets in the namespace; client, servers and switch share the \
     machine's cores",
];

/// An interface of the host, in the order of [`PLACES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Tap,
    Packet,
}

/// See the module.
pub(crate) fn stack(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "stack", &NOTES, &[]);
    for _ in 0..plan.rounds {
        wait_quiet(plan.patience / 50)?;
        for way in [Way::Tap, Way::Packet] {
            for (name, build) in plan.builds() {
                run.attempt(&format!("{name}, {way:?}"), |run| {
                    measure(run, (name, way), &World::start(&build, way)?)
                })?;
            }
        }
    }
    if plan.before.is_some() {
        aims(&mut run);
    }
    Ok(run.report("A guest's network stack and a namespace: requests, TCP each way"))
}

/// Namespaces, servers and a switch. What is dropped first is first.
struct World {
    lasthop: Lasthop,
    servers: Servers,
    _namespaces: [Namespace; 2],
    _folder: TempDir,
}

impl World {
    /// The servers have an address of their own; the guest takes the interface for a gateway.
    fn start(plan: &Plan, way: Way) -> Result<Self> {
        let folder = folders::new("stack")?;
        let host = Namespace::new("host", folder.path())?;
        let outside = Namespace::new("outside", folder.path())?;
        outside.run("ip address add 10.1.0.9/32 dev lo")?;
        let servers = Servers::start(&outside)?;
        let interface = match way {
            Way::Tap => format!(
                "kind = \"tap\"\nmtu = {MTU}\nnetns = \"{}\"\naddress = \"{GATEWAY}/24\"\n",
                outside.path()
            ),
            Way::Packet => {
                let pid = outside.pid();
                host.run(&format!(
                    "ip link add up0 type veth peer name out0 netns {pid}"
                ))?;
                host.run("ip link set up0 up")?;
                outside.address("out0", &GATEWAY.to_string())?;
                format!(
                    "kind = \"uplink\"\ninterface = \"up0\"\ndriver = \"packet\"\nnetns = \"{}\"\n",
                    host.path()
                )
            }
        };
        let vm1 = port("vm1", "port_security = { macs = \"any\" }");
        let text =
            format!("[switch]\nname = \"bench\"\n{vm1}\n[[port]]\nname = \"out0\"\n{interface}");
        let lasthop = start_with(plan, plan.shared_cores(), &text)?;
        stop::try_wait("the port is up", START, || {
            Ok((port_shown(&lasthop, "out0")?["state"] == "up").then_some(()))
        })?;
        Ok(Self {
            lasthop,
            servers,
            _namespaces: [host, outside],
            _folder: folder,
        })
    }

    /// Connects the client.
    fn guest(&self) -> Result<Guest> {
        let queues = Queues::open(self.lasthop.socket_of("vm1"), true)?;
        let mut guest = Guest::new(AnyWire::Queues(Box::new(queues)), MTU);
        guest.stack.set_buffer(BUFFER);
        Ok(guest)
    }
}

/// All traffic over one switch.
fn measure(run: &mut Run<'_>, (name, way): (&str, Way), world: &World) -> Result<()> {
    let plan = run.plan;
    let x = f64::from(way as u32 + 1);
    let mut guest = world.guest()?;
    let mut traffic = Traffic::open(&mut guest, Load::Requests, 1)?;
    run.take_all(REQUESTS.each_ref(), name, x, || {
        let asked = traffic.asked(&mut guest, &world.servers, plan)?;
        let thousands = asked.a_second / 1e3;
        Ok([thousands, asked.p50_us, asked.p99_us, asked.wake_ups])
    })?;
    traffic.end(&mut guest)?;
    for (part, load) in [(&OUT, Load::TcpOut), (&IN, Load::TcpIn)] {
        let mut traffic = Traffic::open(&mut guest, load, 1)?;
        run.take(part, name, x, || {
            traffic.run(&mut guest, &world.servers, plan.settle)?;
            let began = Instant::now();
            let tally = traffic.run(&mut guest, &world.servers, plan.window)?;
            Ok(load.per_second(tally.count, began.elapsed().as_secs_f64()))
        })?;
        traffic.end(&mut guest)?;
    }
    Ok(())
}

/// The two builds beside each other.
fn aims(run: &mut Run<'_>) {
    for (part, least) in [(&REQUESTS[0], 1.5), (&OUT, 1.25), (&IN, 1.25)] {
        for x in [1_u32, 2] {
            let ratio = run.ratio(part, x.into(), [OURS, BEFORE]);
            let what = format!("{}, row {x}: {OURS} to {BEFORE}", part.name);
            run.aim(&what, ratio, Bound::AtLeast(least), "x");
        }
    }
}
