//! Kinds of access, and the question for a translation that gives one.

/// Bytes of the smallest page of an IOMMU.
pub(crate) const PAGE: u64 = 4096;

/// Access to guest memory: reads, writes or both. The bits are those of the message's permission
/// (vhost-user specification, "An IOTLB message").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access(u8);

impl Access {
    /// The device reads: buffers from the guest, descriptors (`VHOST_ACCESS_RO`).
    pub const READ: Self = Self(1);
    /// The device writes: buffers to the guest (`VHOST_ACCESS_WO`).
    pub const WRITE: Self = Self(2);
    /// Both: used rings (`VHOST_ACCESS_RW`).
    pub const READ_WRITE: Self = Self(3);

    /// Returns the access with these bits, if they are those of one.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Option<Self> {
        match bits {
            1..=3 => Some(Self(bits as u8)),
            _ => None,
        }
    }

    /// Returns the bits: 1 for reads, 2 for writes.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0 as u64
    }

    /// Returns whether `self` gives all that `other` gives.
    #[inline]
    #[must_use]
    pub const fn includes(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the access that either gives.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the access that both give, if there is any.
    #[must_use]
    pub const fn common(self, other: Self) -> Option<Self> {
        Self::from_bits(self.bits() & other.bits())
    }
}

/// Urgency of a question for a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A frame or a queue waits for it.
    Now,
    /// It will be used later. Questions of this kind leave room for others.
    Ahead,
}

/// A translation that a reader lacks: the content of a `VHOST_USER_BACKEND_IOTLB_MSG` of type MISS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Miss {
    /// The address, in pages.
    pub(super) page: u64,
    pub(super) access: Access,
}

impl Miss {
    /// Returns the miss of the page with this I/O virtual address.
    #[inline]
    #[must_use]
    pub const fn new(iova: u64, access: Access) -> Self {
        let page = iova / PAGE;
        Self { page, access }
    }

    /// Returns the I/O virtual address of the page.
    #[must_use]
    pub const fn iova(self) -> u64 {
        self.page * PAGE
    }

    /// Returns the access that is needed.
    #[must_use]
    pub const fn access(self) -> Access {
        self.access
    }

    /// Returns the miss as a word, which is not 0.
    pub(super) const fn encode(self) -> u64 {
        self.page << 2 | self.access.bits()
    }

    /// Returns the miss in a word, if there is one.
    pub(super) const fn decode(word: u64) -> Option<Self> {
        match Access::from_bits(word & 3) {
            Some(access) => Some(Self {
                page: word >> 2,
                access,
            }),
            None => None,
        }
    }
}
