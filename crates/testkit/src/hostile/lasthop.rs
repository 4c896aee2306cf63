//! A Lasthop of our own, in a temporary folder.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::watch::{Snapshot, descendants};

/// How long Lasthop may take to be ready, or to end.
const START: Duration = Duration::from_secs(15);

pub(super) struct Lasthop {
    child: Child,
    folder: PathBuf,
    attackers: Vec<PathBuf>,
}

impl Lasthop {
    /// Starts it with the honest ports and so many for attackers.
    pub(super) fn start(bin: &Path, attackers: usize) -> io::Result<Self> {
        let folder = new_folder()?;
        let names: Vec<String> = (0..attackers).map(|n| format!("red{n}")).collect();
        fs::write(folder.join("lasthop.toml"), configuration(&names))?;
        let log = File::create(folder.join("log"))?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(bin.join("lasthop"))
            .args(["run", "--config"])
            .arg(folder.join("lasthop.toml"))
            .arg("--runtime-dir")
            .arg(folder.join("run"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()?;
        let socket = |name: &String| folder.join("run").join(format!("{name}.sock"));
        let mut lasthop = Self {
            child,
            attackers: names.iter().map(socket).collect(),
            folder,
        };
        lasthop.wait_ready()?;
        Ok(lasthop)
    }

    fn wait_ready(&mut self) -> io::Result<()> {
        let end = Instant::now() + START;
        while !self.log().lines().any(|line| line == "lasthop: ready") {
            if Instant::now() >= end || self.child.try_wait()?.is_some() {
                let log = self.log();
                return Err(io::Error::other(format!("Lasthop does not start: {log}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn log(&self) -> String {
        let bytes = fs::read(self.folder.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The socket of a port.
    pub(super) fn socket(&self, port: &str) -> PathBuf {
        self.folder.join("run").join(format!("{port}.sock"))
    }

    /// The sockets of the attackers' ports.
    pub(super) fn attackers(&self) -> &[PathBuf] {
        &self.attackers
    }

    /// Returns the resources of its processes.
    pub(super) fn seen(&self) -> Snapshot {
        Snapshot::of(self.child.id(), self.log().lines().count())
    }
}

impl Drop for Lasthop {
    fn drop(&mut self) {
        let all = descendants(self.child.id());
        send(self.child.id(), Signal::TERM);
        let end = Instant::now() + START;
        while Instant::now() < end && !matches!(self.child.try_wait(), Ok(Some(_))) {
            std::thread::sleep(Duration::from_millis(10));
        }
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            all.iter().for_each(|(pid, _)| send(*pid, Signal::KILL));
            send(self.child.id(), Signal::KILL);
            let _ = self.child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

pub(super) fn send(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // It may have ended a moment ago.
    let _ = pid.map(|pid| kill_process(pid, signal));
}

/// Creates a private folder, with an empty runtime directory.
fn new_folder() -> io::Result<PathBuf> {
    let mut number = 0;
    loop {
        let name = format!("lasthop-hostile-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        match fs::DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => {
                fs::create_dir(folder.join("run"))?;
                return Ok(folder);
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && number < 1000 => number += 1,
            Err(e) => return Err(e),
        }
    }
}

fn configuration(attackers: &[String]) -> String {
    let mut text = "[switch]\nname = \"hostile\"\n".to_owned();
    for (name, vlan) in [("blue", 10), ("green", 20), ("gray", 30), ("red", 40)] {
        text += &format!("\n[[segment]]\nname = \"{name}\"\nvlan = {vlan}\n");
    }
    let mut port = |name: &str, segment: &str| {
        text += &format!(
            "\n[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{name}.sock\"\n\
             segment = \"{segment}\"\n"
        );
    };
    for name in ["blue0", "blue1"] {
        port(name, "blue");
    }
    for name in ["green0", "green1"] {
        port(name, "green");
    }
    for name in ["talker", "newcomer"] {
        port(name, "gray");
    }
    attackers.iter().for_each(|name| port(name, "red"));
    text
}
