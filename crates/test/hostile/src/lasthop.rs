//! A Lasthop with ports for honest guests and for attackers.

use std::io;
use std::path::{Path, PathBuf};

use super::watch::Snapshot;
use testkit::lasthop::{Place, Running};

pub(super) struct Lasthop {
    running: Running,
    attackers: Vec<PathBuf>,
    _place: Place,
}

impl Lasthop {
    /// Starts it with the honest ports and so many for attackers.
    pub(super) fn start(bin: &Path, attackers: usize) -> io::Result<Self> {
        let names: Vec<String> = (0..attackers).map(|n| format!("red{n}")).collect();
        let place = Place::of(bin.join("lasthop"));
        let running = place.try_start(&configuration(&names))?;
        // Resources are compared with those of now.
        running.wait_for_spares();
        let socket = |name: &String| running.socket(&format!("{name}.sock"));
        Ok(Self {
            attackers: names.iter().map(socket).collect(),
            running,
            _place: place,
        })
    }

    /// The socket of a port.
    pub(super) fn socket(&self, port: &str) -> PathBuf {
        self.running.socket(&format!("{port}.sock"))
    }

    /// The sockets of the attackers' ports.
    pub(super) fn attackers(&self) -> &[PathBuf] {
        &self.attackers
    }

    /// Returns the resources of its processes.
    pub(super) fn seen(&self) -> Snapshot {
        Snapshot::of(
            self.running.supervisor(),
            self.running.log().lines().count(),
        )
    }
}

impl Drop for Lasthop {
    fn drop(&mut self) {
        self.running.terminate();
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
