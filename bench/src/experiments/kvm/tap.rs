//! A guest asks a program in a network namespace, by a TAP port of Lasthop, or as without a switch
//! that has the guest's queues: a relay thread has them, and a TAP device that is a port of Open
//! vSwitch's userspace datapath.
//!
//! ```text
//!   guest  <queues>  Lasthop                                <TAP>  out0   answers, in outside
//!   guest  <queues>  relay thread  <TAP>  guest0 - OVS      <TAP>  out0
//! ```

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::load::relay::Relay;
use anyhow::{Context as _, Result, ensure};
use e2e::lasthop::port_table;
use tempfile::TempDir;
use testkit::kvm::{KvmGuest, KvmGuestConfig};
use testkit::packets::{Flow, mac, udp};
use testkit::procfs::{family_seconds, named_seconds};

use super::{LIMIT, micros, quantiles, rest, wait_known};
use crate::experiments::external::Namespace;
use crate::experiments::parts::{Bound, Part, Run};
use crate::peers::lasthop::{Lasthop, port_shown, start_with, thread_name};
use crate::peers::{bridge, ovs};
use crate::plan::{BEFORE, OURS, Plan};
use crate::process::{Process, wake_ups, words};
use crate::report::Report;
use crate::sample::wait_quiet;
use crate::{folders, stop};

const OVS: &str = "OVS, relay thread";
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Name of the interface of the namespace, and of the one that the relay has.
const OUT: &str = "out0";
const RELAYED: &str = "guest0";
const START: Duration = Duration::from_secs(20);
/// Microseconds between an answer and the next request, and how many requests there are.
const PAUSES: [(u64, usize); 3] = [(0, 2000), (200, 1000), (1000, 400)];
/// Requests before those that count.
const WARM_UP: usize = 200;
/// How often a thread that waits looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

const NOTES: [&str; 3] = [
    "the guest is that of the experiment 'kvm', with the host's polling, on the client's core; a \
     request is from an order, an interrupt, to the interrupt with the answer of a program in a \
     network namespace",
    "OVS is its userspace datapath, between its internal port and a TAP device; the other end of \
     that, and the guest's queues, belong to a relay thread, as in QEMU without vhost-net",
    "'before' is the build that --before names",
];

const fn part(name: &'static str, unit: &'static str) -> Part {
    Part {
        name,
        axes: ["us between answer and request", unit],
        published: "no figure",
    }
}

static PARTS: [Part; 4] = [
    part("p50", "us"),
    part("p99", "us"),
    part("CPU", "us of CPU a request, of switch and relay thread"),
    part("wake-ups", "wake-ups a request, all threads"),
];

/// See the module.
pub(crate) fn tap(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "kvm-tap", &NOTES, &[]);
    for _ in 0..plan.rounds {
        wait_quiet(plan.patience / 50)?;
        let builds = plan
            .builds()
            .into_iter()
            .map(|(name, build)| (name, Some(build)));
        for (name, build) in builds.chain([(OVS, None)]) {
            run.attempt(&format!("{name}, to a TAP port"), |run| {
                let scene = match build {
                    Some(build) => Scene::lasthop(&build)?,
                    None => Scene::ovs(plan)?,
                };
                scene.wait_found()?;
                scene.ask(WARM_UP, Duration::ZERO)?;
                PAUSES.into_iter().try_for_each(|(pause, times)| {
                    run.take_all(PARTS.each_ref(), name, pause as f64, || {
                        scene.measure(times, Duration::from_micros(pause))
                    })
                })
            })?;
        }
    }
    for (pause, _) in PAUSES.into_iter().filter(|_| plan.before.is_some()) {
        let ratio = run.ratio(&PARTS[0], pause as f64, [OURS, BEFORE]);
        let what = format!("p50, pause {pause} us: {OURS} to {BEFORE}");
        run.aim(&what, ratio, Bound::AtMost(1.0), "x");
    }
    Ok(run.report("A guest of KVM that asks a network namespace over a TAP port"))
}

/// The processes of a switch.
enum Switch {
    Lasthop(Box<Lasthop>),
    Ovs {
        running: [Process; 2],
        _relay: Relay,
    },
}

/// A guest, a switch, and a program that answers. What is dropped first is first.
struct Scene {
    guest: KvmGuest,
    _answers: Answers,
    switch: Switch,
    _namespaces: [Namespace; 2],
    _folder: TempDir,
}

/// The namespaces that a switch is started between.
struct Ground {
    host: Namespace,
    outside: Namespace,
    folder: TempDir,
}

impl Ground {
    fn new() -> Result<Self> {
        let folder = folders::new("kvm-tap")?;
        Ok(Self {
            host: Namespace::new("host", folder.path())?,
            outside: Namespace::new("outside", folder.path())?,
            folder,
        })
    }

    /// Adds the program that answers, and a guest at this socket.
    fn with(self, plan: &Plan, switch: Switch, socket: &Path) -> Result<Scene> {
        let outside = &self.outside;
        let neighbour = format!("{GUEST} lladdr {} nud permanent", wire::MacAddr(mac(1)));
        outside.run(&format!("ip neighbour replace {neighbour} dev {OUT}"))?;
        let mut flow = Flow::v4(1, 2);
        flow.dst_mac = address_of(outside)?;
        ensure!(flow.dst == IpAddr::V4(OUTSIDE), "another address");
        let answers = Answers::start(outside, flow.dst_port)?;
        let config = KvmGuestConfig {
            thread_name: thread_name(0, 1),
            frame: udp(&flow, &[7; 18]),
            // The relay does without.
            event_idx: matches!(switch, Switch::Lasthop(_)),
            ..KvmGuestConfig::default()
        };
        let guest = KvmGuest::start(socket, config)?;
        guest.set_affinity(0, plan.cores[1])?;
        Ok(Scene {
            guest,
            _answers: answers,
            switch,
            _namespaces: [self.host, self.outside],
            _folder: self.folder,
        })
    }
}

impl Scene {
    fn lasthop(plan: &Plan) -> Result<Self> {
        let ground = Ground::new()?;
        let text = format!(
            "[switch]\nname = \"bench\"\n{}vcpu_threads = \"{}\"\n[[port]]\nname = \"{OUT}\"\n\
             kind = \"tap\"\nmtu = 1500\nnetns = \"{}\"\naddress = \"{OUTSIDE}/24\"\n",
            port_table("p0", "default"),
            thread_name(0, 1),
            ground.outside.path(),
        );
        let lasthop = start_with(plan, plan.shared_cores(), &text)?;
        stop::try_wait("the port is up", START, || {
            Ok((port_shown(&lasthop, OUT)?["state"] == "up").then_some(()))
        })?;
        let socket = lasthop.socket_of("p0");
        ground.with(plan, Switch::Lasthop(Box::new(lasthop)), &socket)
    }

    fn ovs(plan: &Plan) -> Result<Self> {
        let ground = Ground::new()?;
        let folder = ground.folder.path();
        let database = ovs::start_database(folder)?;
        let vsctl = |command: &str| ovs::vsctl(folder, &words(command)).map(drop);
        vsctl("--no-wait init")?;
        let switch = ovs::start_switch(folder, &ground.host.command(ovs::PLAIN))?;
        vsctl("add-br br0 -- set bridge br0 datapath_type=netdev")?;
        let tap = ground
            .host
            .inside(|| bridge::open(RELAYED, bridge::PLAIN))?;
        ground.host.run(&format!("ip link set {RELAYED} up"))?;
        vsctl(&format!("add-port br0 {RELAYED}"))?;
        vsctl(&format!(
            "add-port br0 {OUT} -- set Interface {OUT} type=internal"
        ))?;
        let pid = ground.outside.pid();
        ground.host.run(&format!("ip link set {OUT} netns {pid}"))?;
        ground.outside.address(OUT, &OUTSIDE.to_string())?;
        let socket = folder.join("guest");
        let switch = Switch::Ovs {
            _relay: Relay::start(&socket, OwnedFd::from(tap))?,
            running: [switch, database],
        };
        ground.with(plan, switch, &socket)
    }

    /// Waits until Lasthop knows the vCPU.
    fn wait_found(&self) -> Result<()> {
        match &self.switch {
            Switch::Lasthop(lasthop) => wait_known(lasthop, &["p0"]),
            Switch::Ovs { .. } => Ok(()),
        }
    }

    /// Has the guest send requests, each after a pause, and waits for the answer to each. Returns
    /// the microseconds of each.
    fn ask(&self, times: usize, pause: Duration) -> Result<Vec<f64>> {
        stop::check()?;
        let mut all = Vec::with_capacity(times);
        for _ in 0..times {
            rest(pause);
            let begun = Instant::now();
            self.guest.order();
            ensure!(self.guest.answered().wait(LIMIT) > 0, "no answer came");
            all.push(micros(begun));
        }
        Ok(all)
    }

    /// The values of [`PARTS`].
    fn measure(&self, times: usize, pause: Duration) -> Result<[f64; 4]> {
        let (used, slept) = (self.cpu_seconds(), wake_ups());
        let [p50, p99] = quantiles(&self.ask(times, pause)?)?;
        let used = 1e6 * (self.cpu_seconds() - used);
        let slept = wake_ups().saturating_sub(slept) as f64;
        let each = |count: f64| count / times as f64;
        Ok([p50, p99, each(used), each(slept)])
    }

    /// CPU time of the switch, and of the relay thread.
    fn cpu_seconds(&self) -> f64 {
        match &self.switch {
            Switch::Lasthop(lasthop) => family_seconds(lasthop.supervisor()),
            Switch::Ovs { running, .. } => {
                let processes: f64 = running.iter().map(|one| family_seconds(one.pid())).sum();
                processes + named_seconds(std::process::id(), "relay")
            }
        }
    }
}

/// The Ethernet address of the interface in a namespace.
fn address_of(namespace: &Namespace) -> Result<[u8; 6]> {
    let shown = namespace.run(&format!("ip -o link show {OUT}"))?;
    let mut words = shown
        .split_whitespace()
        .skip_while(|word| *word != "link/ether");
    let address = words.nth(1).context("an Ethernet address")?;
    let bytes = address.split(':').map(|byte| u8::from_str_radix(byte, 16));
    let bytes = bytes.collect::<Result<Vec<u8>, _>>()?;
    bytes.try_into().ok().context("six bytes")
}

/// A thread that sends each datagram back.
struct Answers {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Answers {
    fn start(outside: &Namespace, port: u16) -> Result<Self> {
        let socket = outside.inside(|| Ok(UdpSocket::bind((OUTSIDE, port))?))?;
        socket.set_read_timeout(Some(LOOK))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut bytes = [0; 64];
            while !ended.load(Ordering::Relaxed) {
                if let Ok((len, from)) = socket.recv_from(&mut bytes) {
                    // A lost answer is one that does not come in time.
                    let _ = socket.send_to(&bytes[..len], from);
                }
            }
        });
        Ok(Self {
            is_over,
            thread: Some(thread),
        })
    }
}
