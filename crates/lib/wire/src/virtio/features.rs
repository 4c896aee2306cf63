//! Feature bits of a virtio-net device (virtio 1.3, sections 5.1.3 and 6) and the two that vhost
//! keeps in the same 64-bit word.

use bitflags::bitflags;

bitflags! {
    /// A set of negotiated or offered feature bits. Bits without a name are kept, not dropped.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Features: u64 {
        /// The device accepts frames whose checksum is only half done (`VIRTIO_NET_F_CSUM`).
        const NET_CSUM = 1 << 0;
        /// The driver accepts frames whose checksum is only half done.
        const NET_GUEST_CSUM = 1 << 1;
        /// The driver may switch its receive offloads over the control queue.
        const NET_CTRL_GUEST_OFFLOADS = 1 << 2;
        /// The device states its maximum MTU.
        const NET_MTU = 1 << 3;
        /// The device has a MAC address of its own.
        const NET_MAC = 1 << 5;
        /// The driver receives TCP segmentation over IPv4.
        const NET_GUEST_TSO4 = 1 << 7;
        /// The driver receives TCP segmentation over IPv6.
        const NET_GUEST_TSO6 = 1 << 8;
        /// The driver receives TCP segmentation with ECN.
        const NET_GUEST_ECN = 1 << 9;
        /// The driver receives UDP fragmentation offload.
        const NET_GUEST_UFO = 1 << 10;
        /// The device segments TCP over IPv4.
        const NET_HOST_TSO4 = 1 << 11;
        /// The device segments TCP over IPv6.
        const NET_HOST_TSO6 = 1 << 12;
        /// The device segments TCP with ECN.
        const NET_HOST_ECN = 1 << 13;
        /// The device fragments UDP.
        const NET_HOST_UFO = 1 << 14;
        /// The driver takes frames spread over several receive buffers.
        const NET_MRG_RXBUF = 1 << 15;
        /// The configuration has a link status field.
        const NET_STATUS = 1 << 16;
        /// There is a control queue.
        const NET_CTRL_VQ = 1 << 17;
        /// Receive modes are set over the control queue.
        const NET_CTRL_RX = 1 << 18;
        /// VLAN filters are set over the control queue.
        const NET_CTRL_VLAN = 1 << 19;
        /// More receive modes over the control queue.
        const NET_CTRL_RX_EXTRA = 1 << 20;
        /// The driver can announce itself after a migration.
        const NET_GUEST_ANNOUNCE = 1 << 21;
        /// There are several queue pairs.
        const NET_MQ = 1 << 22;
        /// The MAC address is set over the control queue.
        const NET_CTRL_MAC_ADDR = 1 << 23;
        /// The device gives statistics over the control queue.
        const NET_DEVICE_STATS = 1 << 50;
        /// The receive hash covers inner headers of tunnels.
        const NET_HASH_TUNNEL = 1 << 51;
        /// Notification coalescing can be set for each queue.
        const NET_VQ_NOTF_COAL = 1 << 52;
        /// Notification coalescing can be set.
        const NET_NOTF_COAL = 1 << 53;
        /// The driver receives UDP segmentation over IPv4.
        const NET_GUEST_USO4 = 1 << 54;
        /// The driver receives UDP segmentation over IPv6.
        const NET_GUEST_USO6 = 1 << 55;
        /// The device segments UDP.
        const NET_HOST_USO = 1 << 56;
        /// The device reports a hash with each received frame.
        const NET_HASH_REPORT = 1 << 57;
        /// The driver states exact header lengths.
        const NET_GUEST_HDRLEN = 1 << 59;
        /// Receive-side scaling.
        const NET_RSS = 1 << 60;
        /// The device reports coalesced segments and duplicate acknowledgements.
        const NET_RSC_EXT = 1 << 61;
        /// The device is the standby of another with the same MAC address.
        const NET_STANDBY = 1 << 62;
        /// The device states speed and duplex.
        const NET_SPEED_DUPLEX = 1 << 63;

        /// Legacy: the device notifies when a queue runs empty, even if suppressed.
        const NOTIFY_ON_EMPTY = 1 << 24;
        /// vhost: all writes to guest memory are logged (`VHOST_F_LOG_ALL`).
        const VHOST_LOG_ALL = 1 << 26;
        /// Legacy: descriptors may be laid out in any way.
        const ANY_LAYOUT = 1 << 27;
        /// Descriptors may refer to tables of descriptors (sections 2.7.5.3, 2.8.7).
        const RING_INDIRECT_DESC = 1 << 28;
        /// Each side states at which index it wants a notification (sections 2.7.7, 2.7.10,
        /// 2.8.10).
        const RING_EVENT_IDX = 1 << 29;
        /// vhost-user: protocol features can be negotiated (`VHOST_USER_F_PROTOCOL_FEATURES`).
        const VHOST_PROTOCOL_FEATURES = 1 << 30;
        /// Virtio 1.0 or later, not a legacy device.
        const VERSION_1 = 1 << 32;
        /// The device's access to memory goes through the platform's IOMMU.
        const ACCESS_PLATFORM = 1 << 33;
        /// The packed virtqueue layout (section 2.8).
        const RING_PACKED = 1 << 34;
        /// The device uses buffers in the order in which they were made available (section 2.9).
        const IN_ORDER = 1 << 35;
        /// Memory ordering follows the platform's rules for devices.
        const ORDER_PLATFORM = 1 << 36;
        /// Single-root I/O virtualisation.
        const SR_IOV = 1 << 37;
        /// The driver passes extra data in its notifications.
        const NOTIFICATION_DATA = 1 << 38;
        /// The data in notifications comes from the device's configuration.
        const NOTIF_CONFIG_DATA = 1 << 39;
        /// Single queues can be reset.
        const RING_RESET = 1 << 40;
        /// The device has administration queues.
        const ADMIN_VQ = 1 << 41;

        // Bits that this list does not name are legal and kept.
        const _ = !0;
    }
}

impl Features {
    /// Returns the set without the features that leave checksums or segmentation to the other side.
    #[must_use]
    pub fn without_offloads(self) -> Self {
        self - (Self::NET_CSUM
            | Self::NET_GUEST_CSUM
            | Self::NET_HOST_TSO4
            | Self::NET_HOST_TSO6
            | Self::NET_HOST_ECN
            | Self::NET_HOST_UFO
            | Self::NET_HOST_USO
            | Self::NET_GUEST_TSO4
            | Self::NET_GUEST_TSO6
            | Self::NET_GUEST_ECN
            | Self::NET_GUEST_UFO
            | Self::NET_GUEST_USO4
            | Self::NET_GUEST_USO6)
    }

    /// Returns whether a legacy driver chose these features: `VERSION_1` is missing.
    #[inline]
    #[must_use]
    pub const fn are_legacy(self) -> bool {
        !self.contains(Self::VERSION_1)
    }

    /// Returns the features that no legacy driver can choose: its registers hold 32 bits (4.1.4.8),
    /// so packed rings and `IN_ORDER` are out of its reach.
    #[inline]
    #[must_use]
    pub const fn beyond_legacy(self) -> Self {
        if self.are_legacy() {
            Self::from_bits_retain(self.bits() >> 32 << 32)
        } else {
            Self::empty()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Features;

    #[test]
    fn the_bits_that_decide_a_layout_are_where_the_standard_puts_them() {
        assert_eq!(Features::RING_INDIRECT_DESC.bits(), 0x1000_0000);
        assert_eq!(Features::RING_EVENT_IDX.bits(), 0x2000_0000);
        assert_eq!(Features::VERSION_1.bits(), 0x1_0000_0000);
        assert_eq!(Features::RING_PACKED.bits(), 0x4_0000_0000);
        assert_eq!(Features::IN_ORDER.bits(), 0x8_0000_0000);
        assert_eq!(Features::NET_HOST_USO.bits(), 1 << 56);
    }

    #[test]
    fn a_legacy_driver_takes_the_first_32_bits() {
        let short = Features::from_bits_retain(0xffff_ffff);
        assert!(short.are_legacy());
        assert_eq!(short.beyond_legacy(), Features::empty());
        let modern = Features::RING_PACKED | Features::IN_ORDER;
        assert_eq!((short | modern).beyond_legacy(), modern);
        assert_eq!(Features::all().beyond_legacy(), Features::empty());
    }

    #[test]
    fn unknown_bits_survive() {
        assert_eq!(Features::from_bits_retain(1 << 49).bits(), 1 << 49);
        assert_eq!(Features::from_bits_truncate(1 << 49).bits(), 1 << 49);
    }
}
