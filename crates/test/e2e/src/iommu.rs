//! Guests with an IOMMU, as QEMU emulates it.
//!
//! * The IOMMU comes before the card on the command line. Interrupts are not remapped
//!   (`intremap=off`), because the card has no MSI-X vectors under emulation.
//! * The card is behind a root port. On the root bus itself it is no PCI Express device and has no
//!   ATS capability, so Linux does not invalidate its translations one by one, and QEMU 7.2 does
//!   not tell the back end about the invalidation of a whole domain: a lazy guest leaves old
//!   translations behind.
//! * QEMU invalidates everything by two messages, around the addresses of interrupts; the second
//!   range ends at 2^64. Only address and size of an INVALIDATE mean something.

use testkit::skip::skipped;

use crate::guest::Guest;
use crate::paths;

/// Slot of the card.
const ROOT_PORT: &str = "pcie-root-port,id=rp0,chassis=1,slot=1";

/// How a guest uses an IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Iommu {
    /// Its VMM asks for translated addresses (`iommu_platform=on`), but has no IOMMU: they are
    /// guest-physical ones.
    PlatformOnly,
    /// VT-d; a mapping is revoked before its page is used for something else.
    Strict,
    /// VT-d; mappings are revoked together, up to ten milliseconds later.
    Lazy,
    /// VT-d; all memory stays mapped.
    PassThrough,
    /// `virtio-iommu`, strict.
    Virtio,
}

impl Iommu {
    /// Returns the arguments of QEMU that stand before the card.
    pub(crate) fn devices(self) -> Vec<String> {
        let iommu = match self {
            Self::PlatformOnly => return Vec::new(),
            Self::Strict | Self::Lazy | Self::PassThrough => {
                "intel-iommu,device-iotlb=on,intremap=off"
            }
            Self::Virtio => "virtio-iommu-pci",
        };
        let devices = [iommu, ROOT_PORT].map(|device| ["-device".to_owned(), device.to_owned()]);
        devices.concat()
    }

    /// Returns the options of the card.
    pub(crate) fn card(self) -> &'static str {
        match self {
            Self::PlatformOnly => "iommu_platform=on,disable-legacy=on",
            _ => "bus=rp0,iommu_platform=on,ats=on,disable-legacy=on",
        }
    }

    /// Returns the words for the guest's kernel.
    pub(crate) fn kernel_arguments(self) -> &'static str {
        match self {
            Self::PlatformOnly => "",
            Self::Strict => "intel_iommu=on iommu.strict=1",
            Self::Lazy => "intel_iommu=on iommu.strict=0",
            Self::PassThrough => "intel_iommu=on iommu=pt",
            Self::Virtio => "iommu.strict=1",
        }
    }

    /// Returns the domain of the card, as the guest's kernel names its kind.
    fn domain(self) -> Option<&'static str> {
        match self {
            Self::PlatformOnly => None,
            Self::Strict | Self::Virtio => Some("DMA"),
            Self::Lazy => Some("DMA-FQ"),
            Self::PassThrough => Some("identity"),
        }
    }

    /// Returns whether the guest image is there, and notes a skipped test otherwise: the driver of
    /// `virtio-iommu` is in a newer kernel than Debian 12's own, which `make test-long` downloads.
    pub fn has_image(self) -> bool {
        let there = paths::has_guest_image(self.image());
        if !there {
            skipped("no kernel with virtio-iommu here: `make setup VIRTIO_IOMMU=1` gets it");
        }
        there
    }

    /// Returns the folder of the guest image below that of all images.
    pub(crate) fn image(self) -> &'static str {
        match self {
            Self::Virtio => paths::NEWER_KERNEL,
            _ => "",
        }
    }
}

impl Guest {
    /// Checks that the guest's kernel uses its IOMMU in this way, and that the driver of the card
    /// has taken `VIRTIO_F_ACCESS_PLATFORM`: the rest of a test says nothing without.
    pub fn check_iommu(&mut self, iommu: Iommu) {
        let domain = self.run("cat /sys/class/net/eth0/device/../iommu_group/type || true");
        match iommu.domain() {
            Some(expected) => assert_eq!(domain.trim(), expected),
            None => assert!(domain.contains("No such file"), "{domain}"),
        }
        let features = self.run("cat /sys/class/net/eth0/device/features");
        assert_eq!(features.as_bytes().get(33), Some(&b'1'), "{features}");
    }

    /// Takes the card from its driver and gives it back, with its address.
    pub fn rebind(&mut self) {
        self.run(
            "set -e
            address=$(ip -4 -o address show eth0 | awk '{print $4}')
            device=$(basename $(readlink -f /sys/class/net/eth0/device))
            cd /sys/bus/virtio/drivers/virtio_net
            echo $device >unbind
            [ ! -e /sys/class/net/eth0 ]
            echo $device >bind
            ip address add $address dev eth0
            ip link set eth0 up",
        );
    }
}
