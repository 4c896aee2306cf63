//! Fluid model of a tree with frames at all leaves at all times: the rates that a scheduler of
//! infinitely small portions would give them. Guarantees are those of ports, as far as they are
//! modelled. Beside it, senders that always have frames, for the tree itself.

use crate::Nanos;
use crate::config::{MAX_CLASSES, OutputConfig};
use crate::tree::{Grant, Leaf, Need, Tree};

/// Time between two allotments of [`run`].
pub const TICK: Nanos = 100_000;

/// One node with its rate so far.
#[derive(Clone, Copy, Debug)]
struct Node {
    weight: f64,
    max: f64,
    rate: f64,
}

impl Node {
    fn is_full(&self) -> bool {
        self.rate >= self.max * (1.0 - 1e-9)
    }
}

#[derive(Clone, Debug)]
struct Path {
    leaf: Leaf,
    nodes: Vec<usize>,
    priority: u8,
}

/// Returns the bits a second of each leaf of `leaves`. All of them always have frames. Only ports
/// without a group may have a guarantee.
#[must_use]
pub fn rates(config: &OutputConfig, leaves: &[Leaf]) -> Vec<(Leaf, f64)> {
    let (mut nodes, paths) = tree(config, leaves);
    let mut left = config.rate.map_or(f64::INFINITY, |rate| rate as f64);
    for sender in 0..config.senders.len() {
        let members: Vec<Path> = of_sender(&paths, sender);
        let min = config.senders[sender].rates.min as f64;
        left -= fill(&mut nodes, &members, min.min(left));
    }
    let mut priorities: Vec<u8> = paths.iter().map(|path| path.priority).collect();
    priorities.sort_unstable_by(|a, b| b.cmp(a));
    priorities.dedup();
    for priority in priorities {
        let same = paths.iter().filter(|path| path.priority == priority);
        let same: Vec<Path> = same.cloned().collect();
        left -= fill(&mut nodes, &same, left);
    }
    let rate = |path: &Path| (path.leaf, nodes[path.nodes[path.nodes.len() - 1]].rate);
    paths.iter().map(rate).collect()
}

fn of_sender(paths: &[Path], sender: usize) -> Vec<Path> {
    let own = paths.iter().filter(|path| path.leaf.sender() == sender);
    own.cloned().collect()
}

fn tree(config: &OutputConfig, leaves: &[Leaf]) -> (Vec<Node>, Vec<Path>) {
    let (groups, senders) = (config.groups.len(), config.senders.len());
    let node = |rates: &crate::Rates| Node {
        weight: f64::from(rates.weight),
        max: rates.max.map_or(f64::INFINITY, |max| max as f64),
        rate: 0.0,
    };
    let mut nodes: Vec<Node> = config
        .groups
        .iter()
        .map(|group| node(&group.rates))
        .collect();
    nodes.extend(config.senders.iter().map(|sender| node(&sender.rates)));
    for sender in &config.senders {
        for class in 0..MAX_CLASSES as u8 {
            let own = sender.classes.iter().find(|(number, _)| *number == class);
            nodes.push(node(
                &own.map_or(crate::Rates::usual(), |(_, rates)| *rates),
            ));
        }
    }
    let path = |leaf: &Leaf| {
        let sender = &config.senders[leaf.sender()];
        let group = sender.group.map(usize::from);
        let own = [
            groups + leaf.sender(),
            groups + senders + usize::from(leaf.0),
        ];
        Path {
            leaf: *leaf,
            nodes: group.into_iter().chain(own).collect(),
            priority: sender
                .priority
                .max(config.priorities[usize::from(leaf.class())]),
        }
    };
    (nodes, leaves.iter().map(path).collect())
}

/// Shares up to `capacity` between the leaves of these paths by weight. Returns the sum.
fn fill(nodes: &mut [Node], paths: &[Path], capacity: f64) -> f64 {
    let mut left = capacity;
    // Each round fills a node or shares the rest.
    for _ in 0..nodes.len() + 1 {
        let open = |path: &&Path| path.nodes.iter().all(|node| !nodes[*node].is_full());
        let open: Vec<&Path> = paths.iter().filter(open).collect();
        if open.is_empty() || left <= capacity.max(1.0) * 1e-12 {
            break;
        }
        let parts: Vec<f64> = open.iter().map(|path| part(nodes, &open, path)).collect();
        let mut step = left;
        for (at, node) in nodes.iter().enumerate() {
            let flow: f64 = through(&open, &parts, at);
            if flow > 0.0 {
                step = step.min((node.max - node.rate) / flow);
            }
        }
        for (at, node) in nodes.iter_mut().enumerate() {
            node.rate += through(&open, &parts, at) * step;
        }
        left -= step;
    }
    capacity - left
}

/// Returns the part of the capacity that goes through a node.
fn through(open: &[&Path], parts: &[f64], node: usize) -> f64 {
    let flows = open.iter().zip(parts);
    flows
        .filter(|(path, _)| path.nodes.contains(&node))
        .map(|(_, part)| part)
        .sum()
}

/// Returns the part of a path: the product of its nodes' parts among their siblings.
fn part(nodes: &[Node], open: &[&Path], path: &Path) -> f64 {
    let mut part = 1.0;
    for (depth, own) in path.nodes.iter().enumerate() {
        let above = &path.nodes[..depth];
        let siblings = open.iter().filter(|other| other.nodes.starts_with(above));
        let mut siblings: Vec<usize> = siblings.map(|other| other.nodes[depth]).collect();
        siblings.sort_unstable();
        siblings.dedup();
        let sum: f64 = siblings.iter().map(|node| nodes[*node].weight).sum();
        part *= nodes[*own].weight / sum;
    }
    part
}

/// A leaf that always has frames: as a worker does it, it sends what it has credit for, and asks
/// for the rest of its batch.
#[derive(Clone, Debug)]
pub struct BackloggedLeaf {
    /// The leaf.
    pub leaf: Leaf,
    frames: Vec<u64>,
    next: usize,
    /// Bits that it may send.
    pub credit: i64,
    /// Bits that it has sent.
    pub sent: u64,
}

impl BackloggedLeaf {
    /// Returns a leaf with frames of these lengths in turn, bits.
    #[must_use]
    pub fn new(leaf: Leaf, frames: &[u64]) -> Self {
        Self {
            leaf,
            frames: frames.to_vec(),
            next: usize::from(leaf.0),
            credit: 0,
            sent: 0,
        }
    }

    fn frame(&self, ahead: usize) -> u64 {
        self.frames[(self.next + ahead) % self.frames.len()]
    }

    /// Sends what it may. Returns the need of the rest of its batch.
    pub fn send(&mut self) -> Need {
        while self.credit >= self.frame(0) as i64 {
            self.credit -= self.frame(0) as i64;
            self.sent += self.frame(0);
            self.next += 1;
        }
        let batch: u64 = (0..32).map(|ahead| self.frame(ahead)).sum();
        let missing = |bits: u64| (bits as i64 - self.credit).max(0) as u64;
        Need {
            leaf: self.leaf,
            first: missing(self.frame(0)),
            all: missing(batch),
        }
    }
}

/// Runs a tree for a while. Returns the grants with their times.
pub fn run(
    tree: &mut Tree,
    leaves: &mut [BackloggedLeaf],
    from: Nanos,
    to: Nanos,
) -> Vec<(Nanos, Grant)> {
    let mut log = Vec::new();
    for now in (from..to).step_by(TICK as usize) {
        // A worker asks again when it has sent.
        let mut before = usize::MAX;
        while before != log.len() {
            before = log.len();
            let mut needs: Vec<Need> = leaves.iter_mut().map(BackloggedLeaf::send).collect();
            tree.allot(now, None, &mut needs, |grant| {
                let own = leaves.iter_mut().filter(|one| one.leaf == grant.leaf);
                own.for_each(|one| one.credit += grant.bits as i64);
                log.push((now, grant));
            });
        }
    }
    log
}
