use std::path::PathBuf;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// A folder with a tree like `/sys/devices/system`.
struct Tree(TempDir);

impl Tree {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn root(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// Describes a core: siblings, then sharers of L1 data, L1 instructions, L2, L3 as far as there
    /// are any.
    fn core(&self, core: u16, siblings: &str, caches: &[(u16, &str)]) {
        let cpu = format!("cpu/cpu{core}");
        self.write(&format!("{cpu}/topology/thread_siblings_list"), siblings);
        for (index, (level, sharers)) in caches.iter().enumerate() {
            self.write(
                &format!("{cpu}/cache/index{index}/level"),
                &level.to_string(),
            );
            self.write(
                &format!("{cpu}/cache/index{index}/shared_cpu_list"),
                sharers,
            );
        }
    }

    fn nodes(&self, nodes: &[&str]) {
        self.write("node/online", &format!("0-{}", nodes.len() - 1));
        for (number, cores) in nodes.iter().enumerate() {
            self.write(&format!("node/node{number}/cpulist"), cores);
        }
    }

    fn read(&self, allowed: &[u16]) -> Topology {
        Topology::new(read(&self.root(), allowed))
    }
}

fn row(facts: &CoreFacts) -> [u16; 6] {
    let CoreFacts {
        core,
        smt,
        l1,
        l2,
        l3,
        node,
        ..
    } = *facts;
    [core, smt, l1, l2, l3, node]
}

fn rows(topology: &Topology) -> Vec<[u16; 6]> {
    topology.cores().iter().map(row).collect()
}

#[test]
fn a_desktop_with_two_threads_a_core() {
    let tree = Tree::new();
    tree.write("cpu/online", "0-7");
    tree.nodes(&["0-7"]);
    for core in 0..8 {
        let own = format!("{},{}", core % 4, core % 4 + 4);
        let caches = [(1, &*own), (1, &*own), (2, &*own), (3, "0-7")];
        tree.core(core, &own, &caches);
    }
    let all: Vec<u16> = (0..8).collect();
    let want: Vec<_> = all
        .iter()
        .map(|c| [*c, c % 4, c % 4, c % 4, 0, 0])
        .collect();
    assert_eq!(rows(&tree.read(&all)), want);
}

#[test]
fn a_server_with_two_sockets() {
    let tree = Tree::new();
    tree.write("cpu/online", "0-15");
    // Odd numbers are of the second socket, as many BIOSes count.
    let sockets = ["0,2,4,6,8,10,12,14", "1,3,5,7,9,11,13,15"];
    tree.nodes(&sockets);
    for core in 0..16u16 {
        let own = format!("{},{}", core % 8, core % 8 + 8);
        let l3 = sockets[usize::from(core % 2)];
        tree.core(core, &own, &[(1, &own), (1, &own), (2, &own), (3, l3)]);
    }
    let topology = tree.read(&[2, 3]);
    let own = |c: u16| [c, c % 8, c % 8, c % 8, c % 2, c % 2];
    assert_eq!(rows(&topology), (0..16).map(own).collect::<Vec<_>>());
    let allowed = topology.cores().iter().filter(|facts| facts.allowed);
    assert_eq!(allowed.map(|facts| facts.core).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn complexes_that_share_a_last_level_cache_within_one_node() {
    let tree = Tree::new();
    tree.write("cpu/online", "0-15");
    tree.nodes(&["0-15"]);
    for core in 0..16u16 {
        let first = core / 4 * 4;
        let own = core.to_string();
        let complex = format!("{first}-{}", first + 3);
        tree.core(
            core,
            &own,
            &[(1, &own), (1, &own), (2, &own), (3, &complex)],
        );
    }
    let topology = tree.read(&(0..16).collect::<Vec<_>>());
    let want = |c: u16| [c, c, c, c, c / 4 * 4, 0];
    assert_eq!(rows(&topology), (0..16).map(want).collect::<Vec<_>>());
}

#[test]
fn a_virtual_machine_with_two_cores() {
    let tree = Tree::new();
    tree.write("cpu/online", "0-1");
    tree.nodes(&["0-1"]);
    for core in 0..2u16 {
        let own = core.to_string();
        tree.core(core, &own, &[(1, &own), (1, &own), (2, &own), (3, "0-1")]);
    }
    let topology = tree.read(&[0, 1]);
    assert_eq!(rows(&topology), [[0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0]]);
    let [a, b] = [0, 1].map(|core| topology.get(core).unwrap());
    assert!(share_module(a, a) && !share_module(a, b) && topology.get(2).is_none());
}

#[test]
fn a_core_that_is_offline_shares_nothing() {
    let tree = Tree::new();
    tree.write("cpu/online", "1-3");
    tree.nodes(&["0-3"]);
    for core in 0..4 {
        tree.core(core, "0-3", &[(2, "0-3"), (3, "0-3")]);
    }
    let want: Vec<_> = (1..4).map(|c| [c, 1, c, 1, 1, 0]).collect();
    assert_eq!(rows(&tree.read(&[1])), want);
}

#[test]
fn without_a_last_level_the_node_is_the_cluster() {
    let tree = Tree::new();
    tree.write("cpu/online", "0-3");
    tree.nodes(&["0-1", "2-3"]);
    let want = [[0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0]];
    let topology = tree.read(&[]);
    assert_eq!(rows(&topology)[..2], want);
    assert_eq!(
        rows(&topology)[2..],
        [[2, 2, 2, 2, 2, 1], [3, 3, 3, 3, 2, 1]]
    );
}

#[test]
fn a_tree_that_is_missing_or_odd_is_taken_as_nothing_shared() {
    let tree = Tree::new();
    let alone = |c: u16| [c, c, c, c, c, 0];
    assert_eq!(rows(&tree.read(&[0, 5])), [alone(0), alone(5)]);
    assert!(rows(&tree.read(&[])).is_empty());
    tree.write("cpu/online", "0-1,x,9-3,7-99999,70000,,-");
    tree.write("node/online", "zero");
    // A core that is not among the sharers of its own cache; a level that is no number; a file for
    // a folder.
    tree.core(0, "1", &[(1, "1"), (2, ""), (3, "-")]);
    tree.write("cpu/cpu1/cache/index0/level", "L1");
    tree.write("cpu/cpu1/topology", "nothing");
    assert_eq!(rows(&tree.read(&[1])), [alone(0), alone(1)]);
}

#[test]
fn this_machine_has_the_core_that_we_run_on() {
    let allowed = allowed();
    assert!(!allowed.is_empty());
    let topology = Topology::new(read(Path::new(SYSTEM), &allowed));
    assert!(
        allowed
            .iter()
            .all(|core| topology.get(*core).is_some_and(|facts| facts.allowed))
    );
}

proptest! {
    #[test]
    fn no_list_is_too_odd(text in "[-0-9, x\n]{0,40}") {
        let tree = Tree::new();
        tree.write("list", &text);
        let read = list(&tree.root().join("list"));
        prop_assert!(read.is_sorted_by(|a, b| a < b) && read.iter().all(|core| *core < MAX_CORES));
    }
}
