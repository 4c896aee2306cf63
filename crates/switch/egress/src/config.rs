//! The settings of an output: from control, which promises guarantees, to the switch, which keeps
//! them. Rates are bits a second and bursts bits, as on the wire.

use serde::{Deserialize, Serialize};

use crate::LONGEST;

/// Most classes of a host, the default class included.
pub const MAX_CLASSES: usize = 8;
/// Most priority.
pub const MAX_PRIORITY: u8 = 7;
/// The weight of a node that has none of its own.
pub const WEIGHT: u16 = 100;

/// Rates of a node of the tree: a group, a sending port, or one of its classes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Rates {
    /// Guarantee, bits a second (`tx_share` of devlink-rate); 0: none.
    pub min: u64,
    /// Ceiling, bits a second (`tx_max`).
    pub max: Option<u64>,
    /// Bits at once after a pause, of the guarantee and of the ceiling.
    pub burst: u64,
    /// Share of the rest, relative to siblings of the same priority; at least 1.
    pub weight: u16,
}

impl Rates {
    /// Returns the rates of a node without settings: no guarantee, no ceiling, the usual weight.
    #[must_use]
    pub const fn usual() -> Self {
        Self {
            min: 0,
            max: None,
            burst: 2 * LONGEST,
            weight: WEIGHT,
        }
    }
}

/// Fate of a sender's frame that may not go yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Beyond {
    /// It stays in its sender's queue, with all after it.
    #[default]
    Hold,
    /// It is dropped.
    Drop,
}

/// Treatment of frames while the interface of a port is full: it takes no more.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum FullAction {
    /// Senders wait.
    Hold,
    /// Frames are dropped.
    Drop,
}

/// A group of senders.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Group {
    /// Its name: a group of the same name keeps its state when settings change.
    pub name: String,
    /// Its rates, of all members together.
    pub rates: Rates,
}

/// A port that sends to an output.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sender {
    /// The number of the port.
    pub port: u32,
    /// Its rates.
    pub rates: Rates,
    /// Its priority, 0 to [`MAX_PRIORITY`]: that of a frame is the larger one of its port's and its
    /// class's.
    pub priority: u8,
    /// Its group, an index into [`OutputConfig::groups`].
    pub group: Option<u16>,
    /// Fate of its frames that may not go yet.
    pub beyond: Beyond,
    /// Its classes with rates of their own, by number.
    pub classes: Vec<(u8, Rates)>,
}

/// Settings of an output: a port that schedules the frames that leave by it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OutputConfig {
    /// Bits a second; `None`: as many as the interface takes.
    pub rate: Option<u64>,
    /// Bytes of each frame on the wire beside its own: preamble, checksum, gap.
    pub overhead: u32,
    /// Treatment of frames while the interface takes no more.
    pub full: FullAction,
    /// Bytes that may wait in the queue to the interface with [`FullAction::Hold`]; 0: any number.
    pub room: u64,
    /// Groups of senders.
    pub groups: Vec<Group>,
    /// Priorities of the classes, by number.
    pub priorities: [u8; MAX_CLASSES],
    /// All senders.
    pub senders: Vec<Sender>,
}

impl OutputConfig {
    /// Returns the name of a sender's group.
    pub(crate) fn group_of(&self, sender: &Sender) -> Option<&str> {
        let group = self.groups.get(usize::from(sender.group?))?;
        Some(&group.name)
    }

    /// Returns the sum of all guarantees at the root: of groups, and of ports without one.
    #[must_use]
    pub fn promised(&self) -> u64 {
        let groups = self.groups.iter().map(|group| group.rates.min);
        let alone = self.senders.iter().filter(|sender| sender.group.is_none());
        let all = groups.chain(alone.map(|sender| sender.rates.min));
        all.fold(0, u64::saturating_add)
    }

    /// Scales all guarantees down to a link that is slower than their sum. Returns whether it is.
    pub fn scale_to(&mut self, link: u64) -> bool {
        let promised = self.promised();
        if promised <= link {
            return false;
        }
        let scale = |rates: &mut Rates| {
            rates.min = (u128::from(rates.min) * u128::from(link) / u128::from(promised)) as u64;
        };
        let groups = self.groups.iter_mut();
        groups.map(|group| &mut group.rates).for_each(scale);
        for sender in &mut self.senders {
            scale(&mut sender.rates);
            sender
                .classes
                .iter_mut()
                .for_each(|(_, rates)| scale(rates));
        }
        true
    }
}
