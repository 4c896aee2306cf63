//! Description of the machine.

use std::fs;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

/// The machine and the moment, as they stand in every result.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
    pub(crate) dpdk: String,
    pub(crate) ovs: String,
    /// Of the working tree, with `+` when it has changes.
    pub(crate) commit: String,
    /// UTC.
    pub(crate) date: String,
    pub(crate) command: String,
}

impl Machine {
    pub(crate) fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib: u64 = value(&meminfo, "MemTotal")
            .and_then(|text| text.split(' ').next()?.parse().ok())
            .unwrap_or(0);
        let changed = !printed("git", &["status", "--porcelain"]).is_empty();
        let commit = printed("git", &["rev-parse", "--short", "HEAD"]);
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        Self {
            cpu: value(&cpuinfo, "model name").unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: kib >> 20,
            kernel: printed("uname", &["-r"]),
            dpdk: package("dpdk"),
            ovs: package("openvswitch-switch-dpdk"),
            commit: format!("{commit}{}", if changed { "+" } else { "" }),
            date: printed("date", &["-u", "+%Y-%m-%d %H:%M"]),
            command: format!("lasthop-bench {}", arguments.join(" "))
                .trim()
                .to_owned(),
        }
    }

    /// For names of files.
    pub(crate) fn stamp(&self) -> String {
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
pub(crate) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // Without it the experiments with many ports say what they lack.
    let _ = setrlimit(Resource::Nofile, raised);
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
