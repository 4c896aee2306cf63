//! Guests with an IOMMU. All their pages are granted before they are used.

use datapath::ports::calls::PendingCalls;
use datapath::ports::guest::GuestPort;
use datapath::ports::queue_lock::QueueLock;
use memory::iotlb::{IotlbWriter, Update};
use testkit::features::RING_PACKED;
use testkit::guest_ram::{GuestRam, RegionSpec};
use testkit::iommu::{Iommu, IommuConfig, Mode, PAGE, Placement};
use testkit::net::{NetOptions, NetPair};
use virtio::queue::QueueMemory;
use wire::virtio::features::Features;

use crate::common::queue_in;

/// Bytes of memory: huge pages have gaps between them.
const MEMORY: u64 = 64 << 20;

/// The IOMMU of a guest, and the table of its translations.
pub(crate) struct Translations {
    ram: GuestRam,
    region: RegionSpec,
    writer: IotlbWriter,
    /// Pages that were granted.
    granted: usize,
}

impl Translations {
    fn new(huge: bool) -> Self {
        let region = RegionSpec::at(0x10_0000, MEMORY);
        let ram = GuestRam::heap(&[region]);
        // Contiguous rings, and buffers that do not cross pages.
        let config = IommuConfig {
            placement: Placement::Lenient,
            huge,
            ..IommuConfig::new(Mode::Persistent)
        };
        let iommu = Iommu::new(&ram, config);
        Self {
            ram: ram.behind(&iommu),
            region,
            writer: IotlbWriter::heap(),
            granted: 0,
        }
    }

    /// Grants the pages that the guest has mapped since the last time.
    pub(crate) fn grant(&mut self) {
        let pages = self.ram.iommu().map(|iommu| iommu.granted());
        let pages = pages.unwrap_or_default();
        if pages.len() == self.granted {
            return;
        }
        self.granted = pages.len();
        for (iova, gpa, access) in pages {
            let update = Update {
                iova,
                size: PAGE,
                user_addr: self.region.uva + (gpa - self.region.gpa),
                permission: access as u8,
            };
            let entered = self.writer.update(&self.ram.memory(), &update, &[]);
            entered.expect("a page of the guest");
        }
    }

    fn memory(&self) -> QueueMemory {
        QueueMemory {
            memory: self.ram.memory(),
            iotlb: Some(self.writer.table().clone()),
        }
    }
}

/// Returns a guest with entries of 4 KiB, or of 2 MiB, its receive buffers offered.
pub(crate) fn translated(options: NetOptions, huge: bool) -> (Translations, NetPair, GuestPort) {
    let features = options.features;
    let mut translations = Translations::new(huge);
    let mut nic = NetPair::new(&translations.ram, options);
    nic.offer();
    translations.grant();
    let mut port = GuestPort::new(None);
    let start = if features & RING_PACKED != 0 {
        0x8000_8000
    } else {
        0
    };
    for (index, driver) in [(0u16, &nic.rx), (1, &nic.tx)] {
        let memory = translations.memory();
        let queue = queue_in(&translations.ram, memory, driver, features, start);
        let mut queue = QueueLock::new(queue);
        queue.with(|queue| {
            queue.begin(index.is_multiple_of(2), &mut PendingCalls::default());
        });
        port.start(index, queue, Features::from_bits_truncate(features));
    }
    (translations, nic, port)
}
