//! testpmd as a memif client: over Lasthop, and over a testpmd that forwards between two memif
//! servers. And two testpmds that share a memif, beside a pipe.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::lasthop::Lasthop;
use testkit::process::Process;

use super::MEMIF;
use crate::experiments::parts::Run;
use crate::folders;
use crate::peers::{PROGRAM_DPDK, lasthop as peer};
use crate::plan::Plan;
use crate::process::{self, words};
use crate::stop;

const ANSWER: Duration = Duration::from_secs(20);
/// Bursts of 32 frames that bounce between the ports, from each side: no queue of 1024 overflows.
const BURSTS: u32 = 14;
const SIZES: [u32; 2] = [64, 1500];

/// Frames that bounce between the two memif ports of a testpmd, through each switch in turn; and
/// frames from one testpmd to another.
pub(super) fn compare(run: &mut Run<'_>) -> Result<()> {
    let plan = run.plan;
    for size in SIZES {
        for zero_copy in [false, true] {
            through_lasthop(run, size, zero_copy)?;
            through_forwarder(run, size, zero_copy)?;
        }
        let folder = folders::new("memif")?;
        let socket = folder.path().join("pair");
        let mut receiver = Pmd::end(plan, &socket, "server", 0, "rxonly", size)?;
        let sender = Pmd::end(plan, &socket, "client", 1, "txonly", size)?;
        let way = "two testpmds, one memif";
        run.take(&MEMIF, way, size.into(), || receiver.mpps(plan.window))?;
        drop((sender, receiver));
    }
    Ok(())
}

fn way(through: &str, zero_copy: bool) -> String {
    let client = if zero_copy { ", zero-copy client" } else { "" };
    format!("through {through}{client}")
}

fn through_lasthop(run: &mut Run<'_>, size: u32, zero_copy: bool) -> Result<()> {
    let plan = run.plan;
    let lasthop = memif_ports(plan)?;
    let sockets = ["p0", "p1"].map(|name| lasthop.folder().join(format!("{name}.memif")));
    let mut client = Pmd::client(plan, &sockets, size, zero_copy)?;
    let way = way("Lasthop", zero_copy);
    run.take(&MEMIF, &way, size.into(), || client.mpps(plan.window))
}

fn through_forwarder(run: &mut Run<'_>, size: u32, zero_copy: bool) -> Result<()> {
    let plan = run.plan;
    let folder = folders::new("memif")?;
    let sockets = ["p0", "p1"].map(|name| folder.path().join(name));
    let forwarder = Pmd::forwarder(plan, &sockets)?;
    let mut client = Pmd::client(plan, &sockets, size, zero_copy)?;
    let way = way("a testpmd that forwards", zero_copy);
    run.take(&MEMIF, &way, size.into(), || client.mpps(plan.window))?;
    drop((client, forwarder));
    Ok(())
}

fn memif_ports(plan: &Plan) -> Result<Lasthop> {
    let mut text = "[switch]\nname = \"bench\"\n".to_owned();
    for port in ["p0", "p1"] {
        text += &format!(
            "[[port]]\nname = \"{port}\"\nkind = \"memif\"\nport_security = {{ macs = \"any\" }}\n"
        );
    }
    peer::start_with(plan, &plan.cores[..1], &text)
}

/// A running testpmd.
struct Pmd {
    process: Process,
    /// Ports whose received frames count.
    ports: u32,
    _folder: tempfile::TempDir,
}

impl Pmd {
    fn start(core: usize, main: usize, name: &str, devices: &str, more: &str) -> Result<Self> {
        let folder = folders::new("pmd")?;
        let line = format!(
            "stdbuf -oL {PROGRAM_DPDK} --no-pci --no-huge --single-file-segments -m 256 -l {main},{core} \
             --main-lcore={main} --no-telemetry --file-prefix=lasthop-{name} {devices} -- -i \
             --nb-cores=1 --txd=1024 --rxd=1024 --total-num-mbufs=16384 {more}"
        );
        let log = folder.path().join("log");
        let process = process::start(name, &[], &words(&line), &log)?;
        let mut this = Self {
            process,
            ports: devices.matches("--vdev").count() as u32,
            _folder: folder,
        };
        this.process.wait_output("it starts", ANSWER, |output| {
            output.contains("testpmd>").then_some(())
        })?;
        Ok(this)
    }

    fn device(number: usize, role: &str, socket: &Path, zero_copy: bool) -> String {
        let zero_copy = if zero_copy { "yes" } else { "no" };
        format!(
            "--vdev=net_memif{number},role={role},id=0,socket={},socket-abstract=no,rsize=10,\
             bsize=2048,zero-copy={zero_copy},mac=02:00:00:00:00:0{} ",
            socket.display(),
            number + 1
        )
    }

    /// A client that bounces frames between two ports, on the second core.
    fn client(
        plan: &Plan,
        sockets: &[std::path::PathBuf; 2],
        size: u32,
        zero_copy: bool,
    ) -> Result<Self> {
        let [switch, core] = plan.cores;
        let devices: String = sockets
            .iter()
            .enumerate()
            .map(|(n, socket)| Self::device(n, "client", socket, zero_copy))
            .collect();
        let macs = "--eth-peer=0,02:00:00:00:00:02 --eth-peer=1,02:00:00:00:00:01";
        let more = format!("--txpkts={size} {macs}");
        let mut this = Self::start(core, switch, "memif-client", &devices, &more)?;
        this.wait_links()?;
        this.process.tell("set fwd mac")?;
        this.process.tell(&format!("start tx_first {BURSTS}"))?;
        stop::sleep(plan.settle)?;
        Ok(this)
    }

    /// Two memif servers, and what comes at one goes out at the other, on the first core.
    fn forwarder(plan: &Plan, sockets: &[std::path::PathBuf; 2]) -> Result<Self> {
        let [switch, core] = plan.cores;
        let devices: String = sockets
            .iter()
            .enumerate()
            .map(|(n, socket)| Self::device(n, "server", socket, false))
            .collect();
        let mut this = Self::start(switch, core, "memif-forwarder", &devices, "")?;
        this.process.tell("set fwd io")?;
        this.process.tell("start")?;
        Ok(this)
    }

    /// One end of a memif, on core number `at`.
    fn end(
        plan: &Plan,
        socket: &Path,
        role: &str,
        at: usize,
        forward: &str,
        size: u32,
    ) -> Result<Self> {
        let (core, main) = (plan.cores[at], plan.cores[1 - at]);
        let device = Self::device(at, role, socket, false);
        let more = format!("--txpkts={size}");
        let mut this = Self::start(core, main, &format!("memif-{role}"), &device, &more)?;
        if role == "client" {
            this.wait_links()?;
        }
        this.process.tell(&format!("set fwd {forward}"))?;
        this.process.tell("start")?;
        stop::sleep(plan.settle)?;
        Ok(this)
    }

    fn wait_links(&mut self) -> Result<()> {
        let ports = self.ports;
        stop::try_wait("its links are up", ANSWER, || {
            let seen = self.process.output().matches("Link status: up").count();
            for port in 0..ports {
                self.process.tell(&format!("show port info {port}"))?;
            }
            stop::sleep(Duration::from_millis(100))?;
            let now = self.process.output().matches("Link status: up").count();
            Ok((now >= seen + ports as usize).then_some(()))
        })
    }

    /// Frames that all ports have received.
    fn received(&mut self) -> Result<u64> {
        const LINE: &str = "RX-packets: ";
        let before = self.process.output().matches(LINE).count();
        let ports = self.ports as usize;
        for port in 0..ports {
            self.process.tell(&format!("show port stats {port}"))?;
        }
        let shown = self
            .process
            .wait_output("its statistics", ANSWER, |output| {
                // The last lines of each port's.
                (output.matches("Tx-bps:").count() >= before + ports).then(|| output.to_owned())
            })?;
        let numbers = shown.split(LINE).skip(1 + before);
        let number = |rest: &str| rest.split_whitespace().next()?.parse::<u64>().ok();
        let numbers: Option<Vec<_>> = numbers.map(number).collect();
        Ok(numbers.context("numbers of frames")?.into_iter().sum())
    }

    /// Millions of frames that its ports receive a second.
    fn mpps(&mut self, time: Duration) -> Result<f64> {
        let (start, before) = (std::time::Instant::now(), self.received()?);
        stop::sleep(time)?;
        let (seconds, after) = (start.elapsed().as_secs_f64(), self.received()?);
        Ok((after - before) as f64 / seconds / 1e6)
    }
}
