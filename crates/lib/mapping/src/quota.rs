//! Quotas of mapped memory per port, and sharing of the process's address space among ports.
//!
//! A front end can share terabytes that it does not have (sparse files, the same file again and
//! again). Two resources can then run out: address space (a process has 128 TiB), and places in the
//! table of mappings, which is kept well below the system's limit of 65530 mappings per process
//! (`vm.max_map_count`). Both are shared as switches share the memory of their packet buffers
//! (Choudhury and Hahne, "Dynamic queue length thresholds", 1998): each port has a part of its own,
//! and beyond that an eighth of the unused common part. So a usual guest always fits, a large one
//! fits on a usual host, and however many ports take all they can, something is left for the next.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sys::foreign::Author;

use crate::{Extent, Mapping, MappingError};

/// Number of ports that have a part of their own.
pub const PORTS: u64 = 1024;
/// Most bytes that one port may keep mapped: guest memory, dirty log and in-flight areas.
pub const MAX_BYTES: u64 = 4 << 40;

/// Most mappings for one port: all regions, a dirty log, and in-flight areas that running queues
/// keep.
const MAX_MAPPINGS: u64 = 640;
/// Mappings of all ports together.
pub(crate) const MAPPINGS: u64 = 32 << 10;

/// 112 TiB of 128: a change of one port's memory needs some for a moment, and the rest of the
/// process needs room, too.
const BYTES_RULE: Rule = Rule {
    most: MAX_BYTES,
    total: 112 << 40,
    own: 32 << 30,
};
const MAPPINGS_RULE: Rule = Rule {
    most: MAX_MAPPINGS,
    total: MAPPINGS,
    own: 16,
};

/// Fraction of the unused common part that one port may have.
const PART: u64 = 8;

/// Address space and mappings: held or requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Bytes of address space.
    pub bytes: u64,
    /// Mappings.
    pub mappings: u64,
}

impl Amount {
    fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            mappings: self.mappings.saturating_add(other.mappings),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            mappings: self.mappings.saturating_sub(other.mappings),
        }
    }
}

impl std::iter::Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Self::plus)
    }
}

/// Rule for sharing one resource.
#[derive(Clone, Copy, Debug)]
struct Rule {
    /// Most for one port.
    most: u64,
    /// Total of all ports.
    total: u64,
    /// Own part of each port.
    own: u64,
}

impl Rule {
    fn beyond(self, held: u64) -> u64 {
        held.saturating_sub(self.own)
    }

    /// Returns whether a port may hold `desired` when other ports hold `others` beyond their own
    /// parts.
    fn allows(self, desired: u64, others: u64) -> bool {
        let common = self.total - PORTS * self.own;
        self.beyond(desired) <= common.saturating_sub(others) / PART
    }
}

/// Amount that is held beyond the ports' own parts.
#[derive(Debug)]
struct Common {
    bytes: AtomicU64,
    mappings: AtomicU64,
}

static COMMON: Common = Common::new();

impl Common {
    const fn new() -> Self {
        Self {
            bytes: AtomicU64::new(0),
            mappings: AtomicU64::new(0),
        }
    }

    /// Changes the amount that a port holds. The sums wrap on their way down.
    fn change(&self, from: Amount, to: Amount) {
        let change = |sum: &AtomicU64, rule: Rule, from, to| {
            let more = rule.beyond(to).wrapping_sub(rule.beyond(from));
            sum.fetch_add(more, Ordering::Relaxed);
        };
        change(&self.bytes, BYTES_RULE, from.bytes, to.bytes);
        change(&self.mappings, MAPPINGS_RULE, from.mappings, to.mappings);
    }
}

/// Amounts of one connection.
#[derive(Clone, Copy, Debug, Default)]
struct ConnectionAmounts {
    /// Amount that it uses.
    used: Amount,
    /// Amount that it has given back and the [closer](sys::closer) has not unmapped yet. It counts
    /// for the process, and for the connection only where there is as much of it as it may use.
    leaving: Amount,
}

impl ConnectionAmounts {
    fn all(self) -> Amount {
        self.used.plus(self.leaving)
    }
}

/// Amount that one connection of a port holds. Mappings that are made within it count until they
/// are unmapped, even if they outlive the connection.
#[derive(Debug)]
pub struct Quota {
    common: &'static Common,
    amounts: Mutex<ConnectionAmounts>,
    stuck: AtomicBool,
    /// Its mappings are unmapped in turn.
    author: Author,
}

impl Quota {
    /// Creates a quota of the whole process's.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::of(&COMMON)
    }

    fn of(common: &'static Common) -> Arc<Self> {
        Arc::new(Self {
            common,
            amounts: Mutex::default(),
            stuck: AtomicBool::new(false),
            author: Author::new(None),
        })
    }

    pub(crate) fn author(&self) -> Author {
        self.author
    }

    /// Maps `size` bytes of `fd` from `offset` in place of `less`, which is held until then.
    ///
    /// # Errors
    /// Those of [`Extent::check`], [`Quota::admit`] and [`Extent::map`].
    pub fn map(
        self: &Arc<Self>,
        fd: &OwnedFd,
        size: u64,
        offset: u64,
        less: Amount,
    ) -> Result<Mapping, MappingError> {
        let extent = Extent::check(fd, size, offset)?;
        self.admit(extent.amount(), less)?;
        extent.map(fd, Some(self))
    }

    /// Returns whether `more` may be mapped in place of `less`, which is held until then. To be
    /// called before anything is mapped.
    ///
    /// # Errors
    /// [`MappingError::TooMuch`], [`MappingError::NoShare`].
    pub fn admit(&self, more: Amount, less: Amount) -> Result<(), MappingError> {
        let ConnectionAmounts { used, leaving } = *self.amounts();
        let (desired, held) = (used.plus(more).minus(less), used.plus(leaving));
        let too_much =
            |amount: Amount| amount.bytes > BYTES_RULE.most || amount.mappings > MAPPINGS_RULE.most;
        if too_much(desired) || too_much(leaving) {
            return Err(MappingError::TooMuch);
        }
        let fits = |rule: Rule, desired, held, all: &AtomicU64| {
            let others = all.load(Ordering::Relaxed).wrapping_sub(rule.beyond(held));
            rule.allows(desired, others)
        };
        let Common { bytes, mappings } = self.common;
        let both = fits(BYTES_RULE, desired.bytes, held.bytes, bytes)
            && fits(MAPPINGS_RULE, desired.mappings, held.mappings, mappings);
        if both {
            Ok(())
        } else {
            Err(MappingError::NoShare)
        }
    }

    /// Returns the amount that is mapped within this quota and in use.
    #[must_use]
    pub fn in_use(&self) -> Amount {
        self.amounts().used
    }

    /// Returns whether an unmap failed: the memory stays mapped and counts permanently. The owner
    /// should not map more.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self, amount: Amount) {
        self.change(|amounts| amounts.used = amounts.used.plus(amount));
    }

    /// Notes that a mapping is not used any more, and will be unmapped.
    pub(crate) fn leave(&self, amount: Amount) {
        self.change(|amounts| {
            amounts.used = amounts.used.minus(amount);
            amounts.leaving = amounts.leaving.plus(amount);
        });
    }

    /// Notes that it is unmapped.
    pub(crate) fn give_back(&self, amount: Amount) {
        self.change(|amounts| amounts.leaving = amounts.leaving.minus(amount));
    }

    /// Notes that it cannot be unmapped.
    pub(crate) fn set_stuck(&self, amount: Amount) {
        self.change(|amounts| {
            amounts.leaving = amounts.leaving.minus(amount);
            amounts.used = amounts.used.plus(amount);
        });
        self.stuck.store(true, Ordering::Release);
    }

    fn change(&self, change: impl FnOnce(&mut ConnectionAmounts)) {
        let mut amounts = self.amounts();
        let before = amounts.all();
        change(&mut amounts);
        self.common.change(before, amounts.all());
    }

    fn amounts(&self) -> MutexGuard<'_, ConnectionAmounts> {
        self.amounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const NOTHING: Amount = Amount {
        bytes: 0,
        mappings: 0,
    };

    fn bytes(bytes: u64) -> Amount {
        Amount { bytes, mappings: 0 }
    }

    /// Creates quotas for the most ports.
    fn ports() -> Vec<Arc<Quota>> {
        // Reachable until the end, so that Miri does not take it for a leak.
        static ALL: Mutex<Vec<&Common>> = Mutex::new(Vec::new());
        let common: &'static Common = Box::leak(Box::new(Common::new()));
        ALL.lock().expect("no test panics with it").push(common);
        (0..PORTS).map(|_| Quota::of(common)).collect()
    }

    /// Takes pieces of this size until the quota refuses.
    fn take_all(quota: &Quota, piece: Amount) {
        while quota.admit(piece, NOTHING).is_ok() {
            quota.take(piece);
        }
    }

    #[test]
    fn one_port_has_at_most_4_tib() {
        let quota = &ports()[0];
        assert!(quota.admit(bytes(MAX_BYTES), NOTHING).is_ok());
        let refused = quota.admit(bytes(MAX_BYTES + 1), NOTHING);
        assert!(matches!(refused, Err(MappingError::TooMuch)));
        quota.take(bytes(3 << 40));
        assert!(quota.admit(bytes(3 << 40), NOTHING).is_err());
        // In place of the present one, which goes when the new one is mapped.
        assert!(quota.admit(bytes(3 << 40), bytes(3 << 40)).is_ok());
        quota.leave(bytes(3 << 40));
        assert_eq!(quota.in_use(), NOTHING);
        assert!(quota.admit(bytes(MAX_BYTES), NOTHING).is_ok());
        quota.take(bytes(3 << 40));
        quota.leave(bytes(3 << 40));
        let too_much = quota.admit(bytes(1), NOTHING);
        assert!(matches!(too_much, Err(MappingError::TooMuch)), "6 TiB wait");
        quota.give_back(bytes(6 << 40));
        assert!(quota.admit(bytes(MAX_BYTES), NOTHING).is_ok());
    }

    #[test]
    fn places_are_left_for_the_next_port_whatever_others_take() {
        let ports = ports();
        let one = Amount {
            bytes: 4096,
            mappings: 1,
        };
        let taken = ports.iter().map(|quota| {
            take_all(quota, one);
            quota.in_use().mappings
        });
        let taken: Vec<_> = taken.collect();
        assert!(taken[0] >= 512, "all regions of a port that is alone");
        assert!(taken[33] >= 64, "{} after 33 ports", taken[33]);
        assert_eq!(taken[1023], MAPPINGS_RULE.own, "the last one's own part");
        assert!(taken.iter().sum::<u64>() <= MAPPINGS);
    }

    #[test]
    fn address_space_is_left_for_the_next_port_whatever_others_take() {
        let ports = ports();
        let gib = bytes(1 << 30);
        let taken = ports.iter().map(|quota| {
            take_all(quota, bytes(MAX_BYTES / 64));
            take_all(quota, gib);
            quota.in_use().bytes
        });
        let taken: Vec<_> = taken.collect();
        assert!(taken[..8].iter().all(|taken| *taken == MAX_BYTES));
        assert!(taken[33] >= 256 << 30, "{} after 33 ports", taken[33]);
        assert!(taken[1023] >= BYTES_RULE.own - gib.bytes, "its own part");
        assert!(taken.iter().sum::<u64>() <= BYTES_RULE.total);
    }

    #[test]
    fn returned_amounts_are_available_to_all_ports() {
        let ports = ports();
        for _ in 0..3 {
            ports
                .iter()
                .for_each(|quota| take_all(quota, bytes(64 << 30)));
            assert!(ports[0].admit(bytes(64 << 30), NOTHING).is_err());
            for quota in &ports {
                let all = quota.in_use();
                quota.leave(all);
                quota.give_back(all);
            }
        }
        assert!(ports[0].admit(bytes(MAX_BYTES), NOTHING).is_ok());
    }
}
