//! IOTLB messages (vhost-user, "IOMMU support"; `struct vhost_iotlb_msg`).
//!
//! ```text
//! | iova u64 | size u64 | user address u64 | permissions u8 | type u8 | padding, any 6 bytes |
//! ```

use super::{FrontEnd, FrontError, request};

/// Code of the back end's IOTLB messages on its own channel.
pub const BACKEND_IOTLB_MSG: u32 = 1;

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IotlbKind {
    /// The back end has no translation, and asks for one.
    Miss,
    /// A translation, from the front end.
    Update,
    /// The front end takes translations away.
    Invalidate,
    /// The back end was refused an access.
    AccessFail,
    /// Anything else, for hostile tests.
    Other(u8),
}

impl IotlbKind {
    fn code(self) -> u8 {
        match self {
            Self::Miss => 1,
            Self::Update => 2,
            Self::Invalidate => 3,
            Self::AccessFail => 4,
            Self::Other(code) => code,
        }
    }

    fn of(code: u8) -> Self {
        match code {
            1 => Self::Miss,
            2 => Self::Update,
            3 => Self::Invalidate,
            4 => Self::AccessFail,
            other => Self::Other(other),
        }
    }
}

/// An IOTLB message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IotlbMessage {
    /// First I/O virtual address.
    pub iova: u64,
    /// Bytes.
    pub size: u64,
    /// The front end's address of the first byte; UPDATE only.
    pub user: u64,
    /// Permissions: 1 to read, 2 to write.
    pub perm: u8,
    /// Its kind.
    pub kind: IotlbKind,
}

impl IotlbMessage {
    /// An INVALIDATE, whose other fields are garbage, as from QEMU 7.2.
    #[must_use]
    pub fn invalidate(iova: u64, size: u64) -> Self {
        Self {
            iova,
            size,
            user: 0xdead_beef_dead_beef,
            perm: 0xb2,
            kind: IotlbKind::Invalidate,
        }
    }

    /// The body of the message.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&self.iova.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.size.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.user.to_le_bytes());
        (bytes[24], bytes[25]) = (self.perm, self.kind.code());
        bytes[26..].fill(0xa6);
        bytes
    }

    /// Reads a body; none when it has another size.
    #[must_use]
    pub fn from_bytes(body: &[u8]) -> Option<Self> {
        let body: &[u8; 32] = body.try_into().ok()?;
        let field = |at: usize| {
            let bytes: [u8; 8] = body[at..at + 8].try_into().ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        Some(Self {
            iova: field(0)?,
            size: field(8)?,
            user: field(16)?,
            perm: body[24],
            kind: IotlbKind::of(body[25]),
        })
    }
}

impl FrontEnd {
    /// IOTLB_MSG, as it is.
    ///
    /// # Errors
    /// As all requests.
    pub fn iotlb(&mut self, message: &IotlbMessage) -> Result<(), FrontError> {
        self.tell(request::IOTLB_MSG, &message.to_bytes(), &[])
    }
}
