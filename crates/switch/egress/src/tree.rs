//! The tree of an output, and the order in which its leaves are served.
//!
//! ```text
//! output      rate
//!   group       min, max, burst, weight     (a port without a group stands in its place)
//!     port        min, max, burst, weight, priority
//!       class       min, max, burst, weight, priority        <- leaf
//! ```
//!
//! A leaf that has frames needs bits. [`Tree::allot`] grants them:
//!
//! 1. *Guarantees*: leaves with tokens of a `min` left, at any level of their path; of these the
//!    highest priority first, in turn. They are charged to the level whose guarantee was used and
//!    to all above it, as `tc-htb(8)` does.
//! 2. *The rest*: of the others the highest priority first, then at each level the child that has
//!    had the least for its weight (start-time fair queueing, Goyal et al. 1996: deficit round
//!    robin with a queue for each child gives the same shares, and this has no rounds to keep).
//!
//! A leaf beyond a `max` of its path gets nothing until that has tokens again. Nothing is granted
//! that the output has no tokens for: the leaf whose turn it is waits for them, and none overtakes
//! it, so that short frames do not starve long ones.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::config::{Beyond, MAX_CLASSES, MAX_PRIORITY, OutputConfig, Rates, Sender, WEIGHT};
use crate::tokens::Tokens;
use crate::{LONGEST, Nanos};

/// Most bits that a leaf gets before its next competitor's turn, unless one frame needs more.
pub const QUANTUM: u64 = 16 << 13;
/// Bits below which the room of an interface is scarce: no sender is to get more of it than its
/// frames need.
pub const SCARCE: u64 = 2 * QUANTUM;
/// Bits that a leaf of the usual weight may be behind its competitors and still be served for.
const LAG: u64 = 4 * LONGEST;
/// Service of one bit at weight 1.
const SCALE: Tag = 1 << 10;
const PRIORITIES: usize = MAX_PRIORITY as usize + 1;
/// Wide enough for the service of ages.
type Tag = u128;
/// Depth of the output's own bucket, as a part of a second. A worker may oversleep for so long.
const DEPTH_PER_SECOND: u64 = 1000;

/// A leaf: a class of a sender, by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Leaf(pub u16);

impl Leaf {
    /// Returns the leaf of a class of the sender at this index of [`OutputConfig::senders`].
    #[must_use]
    pub fn of(sender: usize, class: u8) -> Self {
        Self((sender * MAX_CLASSES + usize::from(class) % MAX_CLASSES) as u16)
    }

    /// Returns the index of its sender.
    #[must_use]
    pub fn sender(self) -> usize {
        usize::from(self.0) / MAX_CLASSES
    }

    /// Returns its class.
    #[must_use]
    pub fn class(self) -> u8 {
        (usize::from(self.0) % MAX_CLASSES) as u8
    }
}

/// The need of a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    /// The leaf.
    pub leaf: Leaf,
    /// Bits without which its first frame cannot go.
    pub first: u64,
    /// Bits of all its frames that are ready, at least `first`.
    pub all: u64,
}

/// Bits for a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The leaf.
    pub leaf: Leaf,
    /// Its bits.
    pub bits: u64,
}

/// Buckets and service of a node.
#[derive(Clone, Debug)]
struct Node {
    min: Option<Tokens>,
    max: Option<Tokens>,
    weight: u64,
    /// Start tag for each priority: service so far, divided by weight.
    tags: [Tag; PRIORITIES],
    /// For each priority, the start tag of the child that was served last.
    clock: [Tag; PRIORITIES],
}

impl Node {
    fn new(rates: &Rates, old: Option<&Self>) -> Self {
        let bucket = |rate: Option<u64>, old: Option<&Tokens>| {
            let rate = rate.filter(|rate| *rate > 0)?;
            Some(match old {
                Some(old) => old.with(rate, rates.burst),
                None => Tokens::new(rate, rates.burst),
            })
        };
        Self {
            min: bucket(Some(rates.min), old.and_then(|old| old.min.as_ref())),
            max: bucket(rates.max, old.and_then(|old| old.max.as_ref())),
            weight: u64::from(rates.weight.max(1)),
            tags: old.map_or([0; PRIORITIES], |old| old.tags),
            clock: old.map_or([0; PRIORITIES], |old| old.clock),
        }
    }

    fn refill(&mut self, now: Nanos) {
        let buckets = [&mut self.min, &mut self.max];
        for tokens in buckets.into_iter().flatten() {
            tokens.refill(now);
        }
    }

    /// Returns the start tag among siblings whose clock is `clock`.
    fn tag(&self, priority: usize, clock: Tag) -> Tag {
        let lag = Tag::from(LAG) * SCALE / Tag::from(WEIGHT);
        self.tags[priority].max(clock.saturating_sub(lag))
    }

    /// Charges bits beyond the guarantees.
    fn serve(&mut self, priority: usize, tag: Tag, bits: u64) {
        self.tags[priority] = tag + Tag::from(bits) * SCALE / Tag::from(self.weight);
    }
}

/// Nodes from a leaf to its group.
#[derive(Clone, Copy, Debug)]
struct Path {
    class: usize,
    port: usize,
    group: Option<usize>,
    priority: usize,
    /// Its frames cannot wait.
    drops: bool,
}

/// Rank of a leaf among those that need bits; the least one is served first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Rank {
    /// Guaranteed leaves are first.
    is_rest: bool,
    priority: Reverse<usize>,
    /// At each level from the output down: start tag, and node for ties.
    tags: [(Tag, usize); 3],
}

/// The tree of an output; see the module.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The output's own tokens; `None`: as many as the interface takes.
    root: Option<Tokens>,
    /// Tokens of the output that were left over, for frames that cannot wait: those of a burst that
    /// comes after a pause.
    spare: u64,
    spare_depth: u64,
    /// For each priority, the start tag of the child of the root that was served last.
    clock: [Tag; PRIORITIES],
    nodes: Vec<Node>,
    paths: Vec<Path>,
    /// Turns of guaranteed leaves, by leaf.
    turns: Vec<u64>,
    turn: u64,
    /// Kept, so that nothing is allocated when bits are granted.
    heap: BinaryHeap<Reverse<(Rank, usize)>>,
}

impl Tree {
    /// Returns a tree with full buckets. Nodes that `old`, a tree of other settings, has too keep
    /// their state: groups are known by their names, senders by their ports.
    #[must_use]
    pub fn new(config: &OutputConfig, old: Option<(&OutputConfig, &Self)>) -> Self {
        let root = config.rate.map(|rate| {
            let depth = (rate / DEPTH_PER_SECOND).max(2 * LONGEST);
            match old.and_then(|(_, tree)| tree.root.as_ref()) {
                Some(old) => old.with(rate, depth),
                None => Tokens::new(rate, depth),
            }
        });
        let clock = old.map_or([0; PRIORITIES], |(_, tree)| tree.clock);
        let dropped = config.senders.iter().filter(|s| s.beyond == Beyond::Drop);
        let spare_depth = dropped.map(|s| s.rates.burst).max().unwrap_or(0);
        let mut tree = Self {
            root,
            spare: old.map_or(spare_depth, |(_, tree)| tree.spare.min(spare_depth)),
            spare_depth,
            clock,
            nodes: Vec::new(),
            paths: Vec::with_capacity(config.senders.len() * MAX_CLASSES),
            turns: vec![0; config.senders.len() * MAX_CLASSES],
            turn: old.map_or(0, |(_, tree)| tree.turn),
            heap: BinaryHeap::with_capacity(config.senders.len() * MAX_CLASSES),
        };
        for group in &config.groups {
            let former = old.and_then(|(config, tree)| {
                let groups = &mut config.groups.iter();
                tree.nodes
                    .get(groups.position(|old| old.name == group.name)?)
            });
            tree.nodes.push(Node::new(&group.rates, former));
        }
        let known = old.map_or_else(HashMap::new, |(config, _)| {
            let senders = config.senders.iter().enumerate();
            senders.map(|(at, sender)| (sender.port, at)).collect()
        });
        for (at, sender) in config.senders.iter().enumerate() {
            let old = old.and_then(|(config, tree)| {
                let at = *known.get(&sender.port)?;
                Some((tree, at, config.group_of(&config.senders[at])))
            });
            tree.add(config, at, sender, old);
        }
        tree
    }

    fn add(
        &mut self,
        config: &OutputConfig,
        index: usize,
        sender: &Sender,
        old: Option<(&Self, usize, Option<&str>)>,
    ) {
        let before = |class: u8| {
            let (tree, at, _) = old?;
            let leaf = Leaf::of(at, class);
            Some((tree, tree.paths.get(usize::from(leaf.0))?, leaf))
        };
        let old_port = before(0).map(|(tree, path, _)| &tree.nodes[path.port]);
        let port = self.nodes.len();
        self.nodes.push(Node::new(&sender.rates, old_port));
        if old.is_some_and(|(.., group)| group != config.group_of(sender)) {
            // Its service among other siblings says nothing here.
            self.nodes[port].tags = [0; PRIORITIES];
        }
        for (number, of_class) in config.priorities.iter().enumerate() {
            let own = sender
                .classes
                .iter()
                .find(|(class, _)| usize::from(*class) == number);
            let rates = own.map_or(Rates::usual(), |(_, rates)| *rates);
            let old_class = before(number as u8);
            let old_node = old_class.map(|(tree, path, _)| &tree.nodes[path.class]);
            if let Some((tree, _, leaf)) = old_class {
                self.turns[index * MAX_CLASSES + number] = tree.turns[usize::from(leaf.0)];
            }
            self.paths.push(Path {
                class: self.nodes.len(),
                port,
                group: sender
                    .group
                    .map(usize::from)
                    .filter(|group| *group < config.groups.len()),
                drops: sender.beyond == Beyond::Drop,
                priority: usize::from((*of_class).max(sender.priority).min(MAX_PRIORITY)),
            });
            self.nodes.push(Node::new(&rates, old_node));
        }
    }

    /// Grants bits to leaves in their order, at most what they need. Leaves whose need stays have
    /// to ask again. `room`: bits that the interface takes, where that is known. Returns the
    /// nanoseconds after which more can be granted, if a leaf got less than its first frame needs,
    /// or the output had less than all needed.
    pub fn allot(
        &mut self,
        now: Nanos,
        mut room: Option<u64>,
        needs: &mut [Need],
        mut grant: impl FnMut(Grant),
    ) -> Option<Nanos> {
        if let Some(root) = &mut self.root {
            let left_over = root.refill(now);
            self.spare = self.spare.saturating_add(left_over).min(self.spare_depth);
        }
        self.heap.clear();
        // With room for few frames, a sender that gets what it asked for asks for its next frames
        // before those with less priority have their turn.
        let is_scarce = room.is_some_and(|room| room < SCARCE);
        let mut served = Reverse(0);
        let mut wait: Option<Nanos> = None;
        for (at, need) in needs.iter().enumerate() {
            self.refill(need.leaf, now);
            self.enlist(need, at, &mut wait);
        }
        while let Some(Reverse((rank, at))) = self.heap.pop() {
            let need = &mut needs[at];
            if self.rank(need) != Some(rank) {
                self.enlist(need, at, &mut wait);
                continue;
            }
            if let Some(missing) = self.root_lacks(need, room) {
                wait = Some(wait.unwrap_or(missing).min(missing));
                break;
            }
            if is_scarce && rank.is_rest && rank.priority > served {
                wait = Some(0);
                break;
            }
            served = served.min(rank.priority);
            let bits = self.serve(need, &rank, room);
            room = room.map(|room| room.saturating_sub(bits));
            grant(Grant {
                leaf: need.leaf,
                bits,
            });
            need.first = need.first.saturating_sub(bits);
            need.all = need.all.saturating_sub(bits);
            self.enlist(need, at, &mut wait);
        }
        wait
    }

    fn path(&self, leaf: Leaf) -> Option<Path> {
        self.paths.get(usize::from(leaf.0)).copied()
    }

    fn refill(&mut self, leaf: Leaf, now: Nanos) {
        if let Some(path) = self.path(leaf) {
            for node in path.nodes() {
                self.nodes[node].refill(now);
            }
        }
    }

    /// Puts a leaf among those to serve, unless it needs nothing or is beyond a ceiling.
    fn enlist(&mut self, need: &Need, at: usize, wait: &mut Option<Nanos>) {
        if need.all == 0 {
            return;
        }
        if let Some(rank) = self.rank(need) {
            self.heap.push(Reverse((rank, at)));
        } else if need.first > 0
            && let Some(ready) = self.below_ceilings_in(need)
        {
            *wait = Some(wait.unwrap_or(ready).min(ready));
        }
    }

    /// Returns the rank of a leaf; `None` if it is beyond a ceiling.
    fn rank(&self, need: &Need) -> Option<Rank> {
        let path = self.path(need.leaf)?;
        let bits = need.smallest();
        let is_below = |node: usize| {
            let max = self.nodes[node].max.as_ref();
            max.is_none_or(|max| max.has(bits))
        };
        if !path.nodes().all(is_below) {
            return None;
        }
        let priority = path.priority;
        let rank = |is_rest, tags| Rank {
            is_rest,
            priority: Reverse(priority),
            tags,
        };
        if self.guarantor(&path, bits).is_some() {
            let turn = Tag::from(self.turns[usize::from(need.leaf.0)]);
            return Some(rank(
                false,
                [(turn, usize::from(need.leaf.0)), (0, 0), (0, 0)],
            ));
        }
        let tag = |node: usize, clock: &[Tag; PRIORITIES]| {
            (self.nodes[node].tag(priority, clock[priority]), node)
        };
        let port_and_class = |clock| {
            let class = tag(path.class, &self.nodes[path.port].clock);
            (tag(path.port, clock), class)
        };
        let tags = match path.group {
            Some(group) => {
                let (port, class) = port_and_class(&self.nodes[group].clock);
                [tag(group, &self.clock), port, class]
            }
            None => {
                let (port, class) = port_and_class(&self.clock);
                [port, class, (0, 0)]
            }
        };
        Some(rank(true, tags))
    }

    /// Returns the level of the path that guarantees so many bits now: 0 is the class.
    fn guarantor(&self, path: &Path, bits: u64) -> Option<usize> {
        path.nodes().position(|node| {
            let min = self.nodes[node].min.as_ref();
            min.is_some_and(|min| min.has(bits))
        })
    }

    /// Returns the spare bits for a leaf.
    fn spare_of(&self, leaf: Leaf) -> u64 {
        match self.path(leaf) {
            Some(path) if path.drops => self.spare,
            _ => 0,
        }
    }

    /// Returns the time until the output has tokens for a leaf, if it has not.
    fn root_lacks(&self, need: &Need, room: Option<u64>) -> Option<Nanos> {
        let bits = need.first.max(1);
        if let Some(root) = &self.root
            && !root.has(bits)
            && self.spare_of(need.leaf) < bits
        {
            return Some(root.ready_in(bits));
        }
        // When an interface takes more is not known.
        room.is_some_and(|room| room == 0).then_some(0)
    }

    /// Serves a leaf once: charges its nodes, and returns its bits.
    fn serve(&mut self, need: &Need, rank: &Rank, room: Option<u64>) -> u64 {
        let Some(path) = self.path(need.leaf) else {
            return 0;
        };
        let guarantor = self.guarantor(&path, need.smallest());
        let guarantor = guarantor.filter(|_| !rank.is_rest);
        // Without a competitor it gets all at once.
        let turn = match self.heap.is_empty() {
            true => u64::MAX,
            false => QUANTUM,
        };
        let most = turn.min(room.unwrap_or(u64::MAX));
        let bits = self.portion(&path, need, guarantor).min(most);
        let bits = bits.max(need.first).max(1);
        if let Some(root) = &mut self.root {
            let spare = bits.saturating_sub(root.available());
            let spare = if path.drops { spare.min(self.spare) } else { 0 };
            self.spare -= spare;
            root.take(bits - spare);
        }
        for node in path.nodes() {
            if let Some(max) = &mut self.nodes[node].max {
                max.take(bits);
            }
        }
        match guarantor {
            Some(level) => self.charge_guarantee(need.leaf, &path, level, bits),
            None => self.charge_rest(&path, rank, bits),
        }
        bits
    }

    /// Returns the bits that a leaf may have before its next competitor's turn, as far as the
    /// buckets of its path go.
    fn portion(&self, path: &Path, need: &Need, guarantor: Option<usize>) -> u64 {
        let ceilings = path
            .nodes()
            .filter_map(|node| self.nodes[node].max.as_ref());
        let guarantee = guarantor.and_then(|level| path.nodes().nth(level));
        let guarantee = guarantee.and_then(|node| self.nodes[node].min.as_ref());
        let buckets = ceilings.chain(guarantee).map(Tokens::available);
        let root = self.root.as_ref().map(Tokens::available);
        let root = root.map(|bits| bits.saturating_add(self.spare_of(need.leaf)));
        let least = buckets.chain(root).min();
        need.all.min(least.unwrap_or(u64::MAX))
    }

    /// Charges the level whose guarantee was used, and all above.
    fn charge_guarantee(&mut self, leaf: Leaf, path: &Path, level: usize, bits: u64) {
        self.turn += 1;
        self.turns[usize::from(leaf.0)] = self.turn;
        for node in path.nodes().skip(level) {
            if let Some(min) = &mut self.nodes[node].min {
                min.take(bits);
            }
        }
    }

    fn charge_rest(&mut self, path: &Path, rank: &Rank, bits: u64) {
        let priority = path.priority;
        let mut parent: Option<usize> = None;
        let levels = path.group.into_iter().chain([path.port, path.class]);
        for (node, (tag, _)) in levels.zip(rank.tags) {
            let clock = match parent {
                Some(parent) => &mut self.nodes[parent].clock,
                None => &mut self.clock,
            };
            clock[priority] = clock[priority].max(tag);
            self.nodes[node].serve(priority, tag, bits);
            parent = Some(node);
        }
    }

    /// Returns the time until no ceiling of the path forbids the first frame.
    fn below_ceilings_in(&self, need: &Need) -> Option<Nanos> {
        let path = self.path(need.leaf)?;
        let waits = path.nodes().filter_map(|node| {
            let max = self.nodes[node].max.as_ref()?;
            Some(max.ready_in(need.first))
        });
        waits.max()
    }
}

impl Path {
    /// Returns the nodes of the path, from the class to the group.
    fn nodes(&self) -> impl Iterator<Item = usize> + use<> {
        [self.class, self.port].into_iter().chain(self.group)
    }
}

impl Need {
    /// Returns the least number of bits that are worth a grant.
    fn smallest(&self) -> u64 {
        if self.first > 0 {
            self.first
        } else {
            self.all.min(QUANTUM)
        }
    }
}
