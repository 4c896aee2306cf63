//! Results of experiments in a folder, so that an interrupted run can be resumed: they count as
//! long as the programs, the machine and the length of the samples are the same.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::plot::Chart;

/// Programs that results depend on, beside this one.
const PROGRAMS: [&str; 8] = [
    "lasthop",
    "lasthop-supervisor",
    "lasthop-control",
    "lasthop-switch",
    "lasthop-driver",
    "slotgen",
    "liblasthop_netmap.so",
    "liblasthop_net.so",
];

/// See `machine-id(5)`.
const MACHINE: &str = "/etc/machine-id";

/// All that results depend on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Key {
    /// A hash of each program; `None` of one that is missing.
    programs: BTreeMap<String, Option<u64>>,
    cpu: String,
    cores: usize,
    /// Of the switch.
    threads: usize,
    kernel: String,
    /// Random and kept by the operating system: processors of one model are many.
    machine: String,
    /// Samples in a row, and the milliseconds of each.
    samples: (u32, u128),
}

impl Key {
    /// Of this run.
    pub(super) fn of(plan: &Plan) -> Result<Self> {
        let mut paths: Vec<PathBuf> = PROGRAMS.iter().map(|name| plan.bin.join(name)).collect();
        paths.push(std::env::current_exe()?);
        let programs = paths.iter().map(|path| {
            let name = path.file_name().unwrap_or_default();
            (name.to_string_lossy().into_owned(), hash(path))
        });
        let machine = &plan.machine;
        Ok(Self {
            programs: programs.collect(),
            cpu: machine.cpu.clone(),
            cores: machine.cores,
            threads: plan.switch_cores().len(),
            kernel: machine.kernel.clone(),
            machine: fs::read_to_string(MACHINE).unwrap_or_default(),
            samples: (plan.rounds, plan.window.as_millis()),
        })
    }

    /// Why results with the other key do not count in a run with this one.
    fn differs(&self, other: &Self) -> Option<&'static str> {
        let machine = |key: &Self| {
            let names = [&key.cpu, &key.kernel, &key.machine].map(String::clone);
            (names, key.cores, key.threads)
        };
        if self.programs != other.programs {
            Some("of other programs")
        } else if machine(self) != machine(other) {
            Some("of another machine")
        } else if self.samples != other.samples {
            Some("with samples of another number or length")
        } else {
            None
        }
    }
}

fn hash(path: &Path) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    hasher.write(&fs::read(path).ok()?);
    Some(hasher.finish())
}

/// The charts of an experiment, by the part that a figure asks for.
pub(super) type Parts = BTreeMap<String, Chart>;

#[derive(Serialize, Deserialize)]
struct Stored {
    key: Key,
    parts: Parts,
}

fn path(folder: &Path, experiment: &str) -> PathBuf {
    folder.join(format!("paper-{experiment}.json"))
}

/// Writes the results of an experiment.
pub(super) fn store(folder: &Path, experiment: &str, key: &Key, parts: &Parts) -> Result<()> {
    let stored = Stored {
        key: key.clone(),
        parts: parts.clone(),
    };
    let path = path(folder, experiment);
    let text = serde_json::to_vec_pretty(&stored)?;
    fs::write(&path, text).with_context(|| path.display().to_string())
}

/// Returns results that count, none where there are none, or says why they do not.
pub(super) fn load(folder: &Path, experiment: &str, key: &Key) -> Result<Parts, &'static str> {
    let Ok(text) = fs::read(path(folder, experiment)) else {
        return Ok(Parts::new());
    };
    let stored: Stored = serde_json::from_slice(&text).map_err(|_| "that cannot be read")?;
    match key.differs(&stored.key) {
        Some(reason) => Err(reason),
        None => Ok(stored.parts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Point;

    fn key() -> Key {
        Key {
            programs: BTreeMap::from([("lasthop".to_owned(), Some(1))]),
            cpu: "a processor".to_owned(),
            cores: 2,
            threads: 1,
            kernel: "6.12".to_owned(),
            machine: "1234".to_owned(),
            samples: (3, 300),
        }
    }

    #[test]
    fn results_of_the_same_programs_and_machine_count() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let load = |key: &Key| load(folder, "vifs", key);
        assert_eq!(load(&key()), Ok(Parts::new()));
        let chart = Chart {
            axes: ["pairs", "Gbit/s"].map(str::to_owned),
            curves: vec![("a".to_owned(), vec![Point::from((1.0, 2.0))])],
            cores: "near".to_owned(),
            part: "streams".to_owned(),
        };
        let parts = Parts::from([("streams".to_owned(), chart)]);
        store(folder, "vifs", &key(), &parts).unwrap();
        assert_eq!(load(&key()), Ok(parts));
        let mut other = key();
        other.programs.insert("lasthop".to_owned(), Some(2));
        assert_eq!(load(&other), Err("of other programs"));
        let cores = Key { cores: 4, ..key() };
        assert_eq!(load(&cores), Err("of another machine"));
        let reinstalled = Key {
            machine: "5678".to_owned(),
            ..key()
        };
        assert_eq!(load(&reinstalled), Err("of another machine"));
        let full = Key {
            samples: (7, 1000),
            ..key()
        };
        let reason = "with samples of another number or length";
        assert_eq!(load(&full), Err(reason));
        fs::write(path(folder, "vifs"), "{").unwrap();
        assert_eq!(load(&key()), Err("that cannot be read"));
    }
}
