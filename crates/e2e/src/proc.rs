//! Children, open descriptors and memory of processes, from `/proc`.

use std::collections::BTreeMap;
use std::fs;

/// The processes below `pid`, at any depth, as (process id, name).
pub fn descendants(pid: u32) -> Vec<(u32, String)> {
    let mut children: BTreeMap<u32, Vec<(u32, String)>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").expect("/proc is mounted").flatten() {
        let Some(child) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        if let Some(parent) = parent(child) {
            children
                .entry(parent)
                .or_default()
                .push((child, name(child)));
        }
    }
    let mut found = children.remove(&pid).unwrap_or_default();
    let mut next = 0;
    while next < found.len() {
        found.extend(children.remove(&found[next].0).unwrap_or_default());
        next += 1;
    }
    found
}

/// The parent of a process that lives; None for one that is gone or dead and not yet collected.
fn parent(pid: u32) -> Option<u32> {
    let state = status(pid, "State")?;
    if state.starts_with('Z') {
        None
    } else {
        status(pid, "PPid")?.parse().ok()
    }
}

/// The name of a process's program, without its folder.
fn name(pid: u32) -> String {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let program = command.split(|&byte| byte == 0).next().unwrap_or_default();
    let program = String::from_utf8_lossy(program);
    program.rsplit('/').next().unwrap_or_default().to_owned()
}

/// The processes of a user, by the effective one.
pub fn of_user(user: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let effective = |pid| status(pid, "Uid")?.split_whitespace().nth(1)?.parse().ok();
    ids.filter(|&pid| effective(pid) == Some(user)).collect()
}

/// How many descriptors a process has open.
pub fn open_fds(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// How many threads a process has.
pub fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// A process's own resident memory in KiB: what it shares with guests is not counted.
pub fn private_kib(pid: u32) -> u64 {
    let value = status(pid, "RssAnon").unwrap_or_default();
    value
        .split(' ')
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

/// How many pieces of memory a process has mapped.
pub fn mappings(pid: u32) -> usize {
    fs::read_to_string(format!("/proc/{pid}/maps")).map_or(0, |maps| maps.lines().count())
}

fn status(pid: u32, key: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}
