//! Configuration of a guest.

use std::time::Duration;

use crate::driver::Shape;
use crate::features::{
    ACCESS_PLATFORM, ALL_OFFLOADS, EVENT_IDX, GUEST_USO4, GUEST_USO6, HOST_USO, IN_ORDER,
    INDIRECT_DESC, MQ, MRG_RXBUF, PROTOCOL_FEATURES, RING_PACKED, VERSION_1, protocol,
};
use crate::guest_ram::{GuestRam, RegionSpec};
use crate::net::{Cuts, NetOptions, RxBuffers};
use crate::wait::LIMIT;

/// Configuration of a guest.
#[derive(Clone, Debug)]
pub struct GuestConfig {
    /// Desired features; those that the back end does not offer are left out.
    pub features: u64,
    /// Features without which `connect` fails.
    pub required: u64,
    /// Desired protocol features.
    pub protocol: u64,
    /// Entries of each queue.
    pub queue_size: u16,
    /// Queue pairs; more than one needs MQ.
    pub pairs: u16,
    /// The guest's address, which is up to the frames that the test sends.
    pub mac: [u8; 6],
    /// Receive buffers; by default those that fit the features.
    pub rx_buffers: Option<RxBuffers>,
    /// How receive buffers are cut.
    pub rx_cuts: Cuts,
    /// How transmitted packets are cut.
    pub tx_cuts: Cuts,
    /// How pieces become descriptors.
    pub shape: Shape,
    /// Guest memory; by default two regions with room for all buffers.
    pub regions: Option<Vec<RegionSpec>>,
    /// Share memory region by region (ADD_MEM_REG) when the back end can.
    pub memory_slots: bool,
    /// Enable queues before their start, as QEMU does when it connects again. Frames that are in a
    /// queue at its start are lost otherwise: a back end drops what a disabled queue sends.
    pub enables_first: bool,
    /// For load: poll instead of waiting for interrupts, which are suppressed. Kicks are sent only
    /// when the device requests them, as always.
    pub busy: bool,
    /// How long to wait for the back end, for each answer and for room in a full queue.
    pub timeout: Duration,
}

impl Default for GuestConfig {
    fn default() -> Self {
        Self {
            features: VERSION_1
                | PROTOCOL_FEATURES
                | MRG_RXBUF
                | MQ
                | INDIRECT_DESC
                | EVENT_IDX
                | ALL_OFFLOADS,
            required: VERSION_1 | PROTOCOL_FEATURES,
            protocol: protocol::MQ
                | protocol::REPLY_ACK
                | protocol::LOG_SHMFD
                | protocol::RARP
                | protocol::MTU
                | protocol::INFLIGHT_SHMFD
                | protocol::CONFIGURE_MEM_SLOTS,
            queue_size: 256,
            pairs: 1,
            mac: crate::packets::mac(1),
            rx_buffers: None,
            rx_cuts: Cuts::Together,
            tx_cuts: Cuts::Together,
            shape: Shape::Direct,
            regions: None,
            memory_slots: false,
            enables_first: false,
            busy: false,
            timeout: LIMIT,
        }
    }
}

impl GuestConfig {
    /// With packed rings, which the back end must then offer.
    #[must_use]
    pub fn packed(self) -> Self {
        self.with(RING_PACKED).requiring(RING_PACKED)
    }

    /// With in-order use, which the back end must then offer.
    #[must_use]
    pub fn in_order(self) -> Self {
        self.with(IN_ORDER).requiring(IN_ORDER)
    }

    /// As a legacy driver: none of the features beyond the first 32.
    #[must_use]
    pub fn legacy(self) -> Self {
        let uso = HOST_USO | GUEST_USO4 | GUEST_USO6;
        self.without(VERSION_1 | RING_PACKED | IN_ORDER | uso)
    }

    /// Returns the configuration with more desired features.
    #[must_use]
    pub fn with(self, features: u64) -> Self {
        Self {
            features: self.features | features,
            ..self
        }
    }

    /// With what a guest with an IOMMU needs, which the back end must then offer.
    pub(super) fn translated(self) -> Self {
        Self {
            protocol: self.protocol | protocol::BACKEND_REQ,
            ..self.with(ACCESS_PLATFORM).requiring(ACCESS_PLATFORM)
        }
    }

    /// Without these features.
    #[must_use]
    pub fn without(self, features: u64) -> Self {
        Self {
            features: self.features & !features,
            required: self.required & !features,
            ..self
        }
    }

    /// With more required features.
    #[must_use]
    pub fn requiring(self, features: u64) -> Self {
        Self {
            required: self.required | features,
            ..self
        }
    }

    /// With this many queue pairs.
    #[must_use]
    pub fn pairs(self, pairs: u16) -> Self {
        Self { pairs, ..self }
    }

    /// With the address of test guest `n`.
    #[must_use]
    pub fn guest(self, n: u8) -> Self {
        Self {
            mac: crate::packets::mac(n),
            ..self
        }
    }

    pub(super) fn net(&self, features: u64) -> NetOptions {
        let mut net = NetOptions::new(features, self.queue_size);
        net.rx_buffers = self.rx_buffers.unwrap_or(net.rx_buffers);
        net.rx_cuts = self.rx_cuts.clone();
        net.tx_cuts = self.tx_cuts.clone();
        net.shape = self.shape;
        net
    }

    pub(super) fn ram(&self) -> std::io::Result<GuestRam> {
        const MIB: u64 = 1 << 20;
        let buffers = u64::from(self.queue_size) * u64::from(self.pairs) * (512 << 10);
        let default = || {
            vec![
                RegionSpec::at(0, 16 * MIB),
                RegionSpec::at(4096 * MIB, 64 * MIB + buffers),
            ]
        };
        GuestRam::memfd(&self.regions.clone().unwrap_or_else(default))
    }
}
