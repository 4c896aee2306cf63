//! Settings that processes tell each other in the words of the configuration.

use crate::words;

words! {
    /// Offer of an IOMMU to a guest: `VIRTIO_F_ACCESS_PLATFORM` (virtio 1.3, 6).
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    #[derive(Default)]
    pub enum Iommu {
        /// The feature is not offered.
        Off = "off",
        /// The feature is offered. A guest takes it if its device is behind an IOMMU.
        #[default]
        Offered = "offered",
        /// Queues of a guest that does not take the feature do not start.
        Required = "required",
    }
}

impl Iommu {
    /// Returns whether it is the default.
    #[must_use]
    pub fn is_offered(&self) -> bool {
        *self == Self::Offered
    }
}

words! {
    /// Sources of the states of guests' vCPUs: running, waiting for a core, or sleeping.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    #[derive(Default)]
    pub enum GuestStates {
        /// `bpf`, or `off` if the kernel refuses that.
        #[default]
        Auto = "auto",
        /// BPF programs in the kernel record every change. They need `CAP_BPF` and `CAP_PERFMON`.
        Bpf = "bpf",
        /// No source beside the flags in the guests' queues.
        Off = "off",
    }
}

impl GuestStates {
    /// Returns whether it is the default.
    #[must_use]
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

words! {
    /// Behaviour of a worker without frames.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    #[derive(Default)]
    pub enum Poll {
        /// It sleeps, unless the next frame is likely to arrive before a sleep pays off.
        #[default]
        Adaptive = "adaptive",
        /// It polls without pause while a queue runs, and occupies a core.
        Always = "always",
    }
}

words! {
    /// Evidence by which the vCPU threads of a VMM were found.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    #[derive(Default)]
    pub enum VcpuSource {
        /// None: they are unknown, and their states are not used.
        #[default]
        Unknown = "unknown",
        /// The names of the threads.
        Names = "names",
        /// KVM's list in debugfs.
        Debugfs = "debugfs",
        /// The threads that have entered a guest of KVM, by its tracepoints.
        Tracepoints = "tracepoints",
        /// The threads that ran whenever the guest received frames.
        Activity = "activity",
    }
}

/// Time in which frames gather for one kick, unless it is configured, microseconds.
pub const KICK_US: u16 = 80;
