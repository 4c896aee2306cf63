//! Lasthop, with any number of ports, all in one segment.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Deserialize;
use tempfile::TempDir;
use testkit::guest_ram::RegionSpec;
use testkit::{FakeGuest, GuestConfig};

use super::{Kind, Peer, Ports, START};
use crate::clients::guests;
use crate::experiments::Plan;
use crate::folders;
use crate::process::{Process, run};
use crate::rules::RuleSet;
use crate::stop;

/// Memory of a guest that never sends.
const GUEST_BYTES: u64 = 32 << 20;
/// Name of the file in the folder.
const CONFIGURATION: &str = "lasthop.toml";

pub(super) fn start(plan: &Plan) -> Result<Peer> {
    with_idle(plan, 0)
}

/// Name of the file beside the runtime folder into which it logs.
pub(crate) const LOG: &str = "log";

/// So many ports, all for clients.
pub(super) fn with_ports(plan: &Plan, ports: u32) -> Result<Peer> {
    Ok(Lasthop::start(plan, ports)?.into_peer(ports, Vec::new()))
}

/// With these access lists, on these cores.
pub(super) fn with_rules(plan: &Plan, cores: &[usize], rules: &RuleSet) -> Result<Peer> {
    let text = configuration("", 2) + &rules.configuration();
    let running = Lasthop::with(plan, cores, &text)?;
    Ok(running.into_peer(2, Vec::new()))
}

/// Two pairs of ports, and access lists to come.
pub(crate) fn with_four_ports(plan: &Plan) -> Result<Lasthop> {
    Lasthop::start(plan, 4)
}

/// How many frames control has decided about.
pub(super) fn misses(plan: &Plan, peer: &Peer) -> Result<u64> {
    let states: serde_json::Value = serde_json::from_str(&ask(plan, peer, &["status", "--json"])?)?;
    let upcalls = states["switch"]["upcalls"].as_u64();
    upcalls.context("'lasthop status --json' is not what it was")
}

/// Runs a command of the command line, and gives what it printed.
fn ask(plan: &Plan, peer: &Peer, what: &[&str]) -> Result<String> {
    let socket = peer.sockets().first().context("a peer with ports")?;
    let runtime = socket.parent().context("a socket in a folder")?;
    let program = plan.bin.join("lasthop").to_string_lossy().into_owned();
    let words = std::iter::once(program).chain(what.iter().map(|&word| word.to_owned()));
    let words: Vec<String> = words.collect();
    run(&words, &[("LASTHOP_RUNTIME_DIR", runtime)])
}

/// One pair of ports for a client, and more with a silent guest each.
pub(crate) fn with_idle(plan: &Plan, idle: u32) -> Result<Peer> {
    let running = Lasthop::start(plan, 2 + idle)?;
    let guests = running.attach(2..2 + idle)?;
    Ok(running.into_peer(2, guests))
}

/// Two pairs of ports, and forwarding threads that may use both cores.
pub(crate) fn with_workers(plan: &Plan, workers: u32) -> Result<Peer> {
    let text = configuration(&format!("workers = {workers}\n"), 4);
    let running = Lasthop::with(plan, &plan.cores, &text)?;
    Ok(running.into_peer(4, Vec::new()))
}

/// Two pairs of ports, a worker, and a helper on a core if one is named.
pub(crate) fn with_helpers(plan: &Plan, core: Option<usize>) -> Result<Peer> {
    let offload = match core {
        Some(core) => format!("enabled = true\ncores = [{core}]\n"),
        None => "enabled = false\n".to_owned(),
    };
    let text = configuration(&format!("\n[switch.helpers]\n{offload}"), 4);
    let running = Lasthop::with(plan, &plan.cores, &text)?;
    Ok(running.into_peer(4, Vec::new()))
}

/// So many ports for a group of guests whose processors are threads of this process, with `keys` in
/// the tables of the switch; on these cores, or wherever the kernel likes if none is named.
pub(crate) fn with_guests(
    plan: &Plan,
    cores: &[usize],
    (group, ports): (usize, usize),
    keys: &str,
) -> Result<Peer> {
    let mut text = format!("[switch]\nname = \"bench\"\n{keys}");
    for number in 1..=ports {
        text += &port_table(&format!("p{}", number - 1), "default");
        text += &format!(
            "vcpu_threads = \"{}\"\n",
            guests::thread_name(group, number)
        );
    }
    let running = Lasthop::with(plan, cores, &text)?;
    Ok(running.into_peer(u32::try_from(ports)?, Vec::new()))
}

/// Returns whether it knows the thread of each guest of [`with_guests`], or is to know none.
pub(crate) fn follows(plan: &Plan, peer: &Peer) -> Result<Option<()>> {
    #[derive(Deserialize)]
    struct Port {
        vcpu_threads: u32,
    }
    #[derive(Deserialize)]
    struct Ports {
        ports: Vec<Port>,
    }
    let ports: Ports = serde_json::from_str(&ask(plan, peer, &["port", "list", "--json"])?)?;
    let states: serde_json::Value = serde_json::from_str(&ask(plan, peer, &["status", "--json"])?)?;
    let off = states["switch"]["guest_state"]["by"] == "off";
    let all = off || ports.ports.iter().all(|port| port.vcpu_threads > 0);
    Ok(all.then_some(()))
}

/// The part of `lasthop stats --json` that counts here.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Stats {
    pub(crate) ports: Vec<PortStats>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct PortStats {
    pub(crate) name: String,
    pub(crate) from_guest: Traffic,
    pub(crate) to_guest: Traffic,
    pub(crate) drops: BTreeMap<String, u64>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Traffic {
    pub(crate) packets: u64,
}

impl Stats {
    pub(crate) fn of(lasthop: &Lasthop) -> Result<Self> {
        let text = lasthop.ask(&["stats", "--json"])?;
        serde_json::from_str(&text).context("'lasthop stats --json' is not what it was")
    }
}

/// A running Lasthop; ended when dropped.
pub(crate) struct Lasthop {
    program: PathBuf,
    process: Process,
    cores: Vec<usize>,
    /// From the start of the program to "ready".
    pub(crate) start_up: Duration,
    folder: TempDir,
}

impl Lasthop {
    /// Starts Lasthop on the switch's core with `ports` listening ports and waits until it is
    /// ready. With super-frames it polls as its peers do: a wake-up a burst would be measured as
    /// copying.
    pub(crate) fn start(plan: &Plan, ports: u32) -> Result<Self> {
        let poll = if plan.super_frames {
            "poll = \"always\"\n"
        } else {
            ""
        };
        Self::with(plan, &plan.cores[..1], &configuration(poll, ports))
    }

    /// Starts it on these cores, with this configuration.
    pub(crate) fn with(plan: &Plan, cores: &[usize], configuration: &str) -> Result<Self> {
        let folder = folders::new("lasthop")?;
        fs::write(folder.path().join(CONFIGURATION), configuration)?;
        fs::create_dir(runtime(folder.path()))?;
        let program = plan.bin.join("lasthop");
        let begin = Instant::now();
        let process = spawn(&program, cores, folder.path())?;
        let mut lasthop = Self {
            program,
            process,
            cores: cores.to_vec(),
            start_up: Duration::ZERO,
            folder,
        };
        let ready = |output: &str| output.lines().any(|line| line == "lasthop: ready");
        let process = &mut lasthop.process;
        process.wait_output("being ready", START, |output| ready(output).then_some(()))?;
        lasthop.start_up = begin.elapsed();
        Ok(lasthop)
    }

    /// Starts the program again, whose process has died, and waits for nothing.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        self.process = spawn(&self.program, &self.cores, self.folder.path())?;
        Ok(())
    }

    /// Returns its log so far.
    pub(crate) fn log(&self) -> String {
        self.process.output()
    }

    /// The process that all others are below.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The socket of a port, counted from 0.
    pub(crate) fn socket(&self, port: u32) -> PathBuf {
        self.socket_of(&format!("p{port}"))
    }

    /// The socket of the port with this name.
    pub(crate) fn socket_of(&self, port: &str) -> PathBuf {
        runtime(self.folder.path()).join(format!("{port}.sock"))
    }

    /// Runs a command of the command line, and gives what it printed.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Result<String> {
        let mut words = vec![self.program.to_string_lossy().into_owned()];
        words.extend(arguments.iter().map(|&word| word.to_owned()));
        let runtime = runtime(self.folder.path());
        run(&words, &[("LASTHOP_RUNTIME_DIR", &runtime)])
    }

    /// Starts a command of the command line, whose end is for the caller to see to.
    pub(crate) fn begin(&self, arguments: &[&str]) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command
            .env("LASTHOP_RUNTIME_DIR", runtime(self.folder.path()))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Ok(command.spawn()?)
    }

    /// One silent guest on each of these ports, with its link up.
    pub(crate) fn attach(&self, ports: Range<u32>) -> Result<Vec<FakeGuest>> {
        let one = |port: u32| {
            stop::check()?;
            let config = GuestConfig {
                regions: Some(vec![RegionSpec::at(0, GUEST_BYTES)]),
                ..GuestConfig::default()
            };
            let number = u8::try_from(port % 250).unwrap_or_default() + 1;
            let mut guest = FakeGuest::connect(&self.socket(port), config.guest(number))
                .with_context(|| format!("guest {port} is not attached"))?;
            guest
                .wait_link()
                .with_context(|| format!("guest {port} has no link"))?;
            Ok(guest)
        };
        ports.map(one).collect()
    }

    /// A peer whose first `ports` ports are for the client.
    fn into_peer(self, ports: u32, guests: Vec<FakeGuest>) -> Peer {
        Peer {
            kind: Kind::Lasthop,
            ports: Ports::Sockets {
                paths: (0..ports).map(|port| self.socket(port)).collect(),
                client_listens: false,
            },
            processes: vec![self.process],
            _guests: guests,
            folder: Some(self.folder),
        }
    }

    /// Ends it in order.
    pub(crate) fn end(mut self) {
        self.process.end(START);
    }
}

fn spawn(program: &Path, cores: &[usize], folder: &Path) -> Result<Process> {
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let words = [
        path(program),
        "run".to_owned(),
        "--config".to_owned(),
        path(&folder.join(CONFIGURATION)),
        "--runtime-dir".to_owned(),
        path(&runtime(folder)),
    ];
    Process::start("lasthop", cores, &words, &folder.join(LOG))
}

fn runtime(folder: &Path) -> PathBuf {
    folder.join("run")
}

/// With `keys` in the table of the switch.
fn configuration(keys: &str, ports: u32) -> String {
    let mut text = format!("[switch]\nname = \"bench\"\n{keys}");
    for port in 0..ports {
        text += &port_table(&format!("p{port}"), "default");
    }
    text
}

/// Words of the command that adds a port at run time.
pub(crate) fn add_port<'a>(name: &'a str, socket: &'a str, segment: &'a str) -> [&'a str; 11] {
    [
        "port",
        "add",
        name,
        "--kind",
        "vhost-user",
        "--socket",
        socket,
        "--segment",
        segment,
        // Our generators are many stations.
        "--macs",
        "any",
    ]
}

/// One port of a configuration.
pub(crate) fn port_table(name: &str, segment: &str) -> String {
    let keys = [
        ("name", name),
        ("kind", "vhost-user"),
        ("socket", &format!("{name}.sock")),
        ("segment", segment),
    ];
    let lines = keys.map(|(key, value)| format!("{key} = \"{value}\"\n"));
    format!(
        "\n[[port]]\nport_security = {{ macs = \"any\", dhcp_server = true }}\n{}",
        lines.concat()
    )
}
