//! Results of experiments in a folder, so that an interrupted run can be resumed: they count as
//! long as the programs, the machine and the length of the samples are the same.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::plot::Curve;

/// Programs that results depend on, beside this one.
const PROGRAMS: [&str; 5] = [
    "lasthop",
    "lasthop-supervisor",
    "lasthop-control",
    "lasthop-switch",
    "lasthop-driver",
];

/// All that results depend on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Key {
    /// A hash of each program; `None` of one that is missing.
    programs: BTreeMap<String, Option<u64>>,
    cpu: String,
    cores: usize,
    kernel: String,
    quick: bool,
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
            kernel: machine.kernel.clone(),
            quick: plan.quick,
        })
    }

    /// Why results with the other key do not count in a run with this one.
    fn differs(&self, other: &Self) -> Option<&'static str> {
        let machine = |key: &Self| (key.cpu.clone(), key.cores, key.kernel.clone());
        if self.programs != other.programs {
            Some("of other programs")
        } else if machine(self) != machine(other) {
            Some("of another machine")
        } else if self.quick != other.quick {
            Some("with samples of another length")
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

/// The curves of an experiment, by the part that a figure asks for.
pub(super) type Parts = BTreeMap<String, Vec<Curve>>;

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

/// Returns results that count, or says why they do not; nothing where there are none.
pub(super) fn load(
    folder: &Path,
    experiment: &str,
    key: &Key,
) -> Result<Option<Parts>, &'static str> {
    let Ok(text) = fs::read(path(folder, experiment)) else {
        return Ok(None);
    };
    let stored: Stored = serde_json::from_slice(&text).map_err(|_| "that cannot be read")?;
    match key.differs(&stored.key) {
        Some(reason) => Err(reason),
        None => Ok(Some(stored.parts)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key {
            programs: BTreeMap::from([("lasthop".to_owned(), Some(1))]),
            cpu: "a processor".to_owned(),
            cores: 2,
            kernel: "6.12".to_owned(),
            quick: true,
        }
    }

    #[test]
    fn results_of_the_same_programs_and_machine_count() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let load = |key: &Key| load(folder, "vifs", key);
        assert_eq!(load(&key()), Ok(None));
        let curve = ("a".to_owned(), vec![(1.0, 2.0)]);
        let parts = Parts::from([("streams".to_owned(), vec![curve])]);
        store(folder, "vifs", &key(), &parts).unwrap();
        assert_eq!(load(&key()), Ok(Some(parts)));
        let mut other = key();
        other.programs.insert("lasthop".to_owned(), Some(2));
        assert_eq!(load(&other), Err("of other programs"));
        let cores = Key { cores: 4, ..key() };
        assert_eq!(load(&cores), Err("of another machine"));
        let full = Key {
            quick: false,
            ..key()
        };
        assert_eq!(load(&full), Err("with samples of another length"));
        fs::write(path(folder, "vifs"), "{").unwrap();
        assert_eq!(load(&key()), Err("that cannot be read"));
    }
}
