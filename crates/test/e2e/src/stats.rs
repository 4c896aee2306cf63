//! `lasthop stats --json`, flattened so that a test can name every counter that moved.

use std::collections::BTreeMap;

use serde_json::Value;

/// Counters by name: `vm1.from_guest.packets`, `vm1.drops.runt`, `drops.runt`. Counters at zero are
/// left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats(BTreeMap<String, u64>);

impl Stats {
    /// Reads the document.
    pub fn read(document: &Value) -> Stats {
        let mut stats = Stats::default();
        for port in document["ports"].as_array().expect("stats lists ports") {
            let name = port["name"].as_str().expect("a port has a name");
            for direction in ["from_guest", "to_guest"] {
                for unit in ["packets", "bytes"] {
                    stats.add(format!("{name}.{direction}.{unit}"), &port[direction][unit]);
                }
            }
            if let Some(replies) = port.get("neighbour_replies") {
                stats.add(format!("{name}.neighbour_replies"), replies);
            }
            stats.add_drops(&format!("{name}.drops"), &port["drops"]);
        }
        stats.add_drops("drops", &document["drops"]);
        stats
    }

    fn add_drops(&mut self, prefix: &str, drops: &Value) {
        for (reason, count) in drops.as_object().expect("drops are an object") {
            self.add(format!("{prefix}.{reason}"), count);
        }
    }

    fn add(&mut self, name: String, count: &Value) {
        let count = count
            .as_u64()
            .unwrap_or_else(|| panic!("{name} is no number: {count}"));
        if count > 0 {
            self.0.insert(name, count);
        }
    }

    /// One counter.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Frames that came from a port's guest.
    pub fn sent(&self, port: &str) -> u64 {
        self.get(&format!("{port}.from_guest.packets"))
    }

    /// Frames that a port's guest was given.
    pub fn received(&self, port: &str) -> u64 {
        self.get(&format!("{port}.to_guest.packets"))
    }

    /// The drops at a port, by reason.
    pub fn drops_of(&self, port: &str) -> BTreeMap<&str, u64> {
        let prefix = format!("{port}.drops.");
        let own = self
            .0
            .iter()
            .filter_map(|(name, count)| Some((name.strip_prefix(&prefix)?, *count)));
        own.collect()
    }

    /// The sum of one counter over all ports.
    pub fn sum(&self, counter: &str) -> u64 {
        let of_ports = self
            .0
            .iter()
            .filter(|(name, _)| name.ends_with(&format!(".{counter}")));
        of_ports.map(|(_, count)| count).sum()
    }

    /// The counters that moved since an earlier reading.
    pub fn since(&self, before: &Stats) -> Stats {
        let moved = self
            .0
            .iter()
            .map(|(name, count)| (name.clone(), count.saturating_sub(before.get(name))));
        Stats(moved.filter(|(_, count)| *count > 0).collect())
    }

    /// The drops in total, by reason.
    pub fn drops(&self) -> BTreeMap<&str, u64> {
        let total = self
            .0
            .iter()
            .filter_map(|(name, count)| Some((name.strip_prefix("drops.")?, *count)));
        total.collect()
    }

    /// Names of all counters that are not zero.
    pub fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document(packets: u64, runts: u64) -> Value {
        json!({
            "ports": [{
                "name": "vm1", "state": "up",
                "from_guest": {"packets": packets, "bytes": 64 * packets},
                "to_guest": {"packets": 0, "bytes": 0},
                "drops": {"runt": runts},
            }],
            "drops": {"runt": runts},
        })
    }

    #[test]
    fn what_moved_is_named() {
        let before = Stats::read(&document(3, 1));
        let moved = Stats::read(&document(5, 1)).since(&before);
        assert_eq!(
            moved.names(),
            ["vm1.from_guest.bytes", "vm1.from_guest.packets"]
        );
        assert_eq!(moved.sent("vm1"), 2);
        assert!(moved.drops().is_empty());
        assert_eq!(before.drops(), BTreeMap::from([("runt", 1)]));
    }
}
