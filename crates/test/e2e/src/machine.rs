//! Description of the machine.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;

/// The machine and the moment, as they stand in every result.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Model of its processors.
    pub cpu: String,
    /// Number of processors.
    pub cores: usize,
    /// Size of its memory.
    pub memory_gib: u64,
    /// Version of Linux.
    pub kernel: String,
    /// Version of DPDK; empty without.
    pub dpdk: String,
    /// Version of Open vSwitch; empty without.
    pub ovs: String,
    /// Of the working tree, with `+` when it has changes.
    pub commit: String,
    /// UTC.
    pub date: String,
    /// The command of the run.
    pub command: String,
}

impl Machine {
    /// Describes this machine and this moment.
    pub fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib: u64 = value(&meminfo, "MemTotal")
            .and_then(|text| text.split(' ').next()?.parse().ok())
            .unwrap_or(0);
        let changed = !printed("git", &["status", "--porcelain"]).is_empty();
        let commit = printed("git", &["rev-parse", "--short", "HEAD"]);
        let mut words = std::env::args();
        let program = words.next().unwrap_or_default();
        let program = Path::new(&program).file_name().unwrap_or_default();
        let arguments: Vec<String> = words.collect();
        Self {
            cpu: value(&cpuinfo, "model name").unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: kib >> 20,
            kernel: printed("uname", &["-r"]),
            dpdk: package("dpdk"),
            ovs: package("openvswitch-switch-dpdk"),
            commit: format!("{commit}{}", if changed { "+" } else { "" }),
            date: printed("date", &["-u", "+%Y-%m-%d %H:%M"]),
            command: format!("{} {}", program.display(), arguments.join(" "))
                .trim()
                .to_owned(),
        }
    }

    /// Prints the machine, before anything is measured, with the cores of switch and client.
    pub fn print_heading(&self, cores: [usize; 2]) {
        println!(
            "# {} ({}, {} UTC)\n\n{}, {} cores, {} GiB, Linux {}; DPDK {}, OVS {}.\n\
             Switch on core {}, client on core {}; medians of kept samples; \
             Mpps of both directions added.",
            self.command,
            self.commit,
            self.date,
            self.cpu,
            self.cores,
            self.memory_gib,
            self.kernel,
            or_none(&self.dpdk),
            or_none(&self.ovs),
            cores[0],
            cores[1],
        );
    }

    /// For names of files.
    pub fn stamp(&self) -> String {
        self.date
            .replace('-', "")
            .replace(' ', "-")
            .replace(':', "")
    }
}

/// The value of a `key : value` line.
fn value(text: &str, key: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(line.trim_start().strip_prefix(':')?.trim().to_owned())
}

/// Returns the output of a program; empty when it fails.
fn printed(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_owned()
}

fn package(name: &str) -> String {
    printed("dpkg-query", &["-W", "-f=${Version}", name])
}

/// Guests by the hundred need descriptors by the thousand.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // Without it the experiments with many ports say what they lack.
    let _ = setrlimit(Resource::Nofile, raised);
}

fn or_none(version: &str) -> &str {
    if version.is_empty() {
        "not installed"
    } else {
        version
    }
}

/// Keeps the calling thread on one core.
///
/// # Errors
/// When there is no such core for this process.
pub fn pin(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("there is no core {core} for us"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nMemTotal:  100 kB\n";
        assert_eq!(
            value(text, "model name").as_deref(),
            Some("Some CPU @ 2 GHz")
        );
        assert_eq!(value(text, "MemTotal").as_deref(), Some("100 kB"));
        assert_eq!(value(text, "flags"), None);
    }
}
