//! The features that a port offers to its front end.

use ipc::keeping::ConnectionRecord;
use ipc::switching::{Clients, Iommu, PortConfig};
use virtio::vhost_user::Offer;
use wire::virtio::features::Features;

/// Returns the offered features; MTU, multi-queue and translated addresses are added where they are
/// configured.
fn offered(config: &PortConfig) -> Features {
    let mut features = Features::VERSION_1
        | Features::RING_PACKED
        | Features::RING_INDIRECT_DESC
        | Features::RING_EVENT_IDX
        | Features::IN_ORDER
        | Features::ANY_LAYOUT
        | Features::NET_CSUM
        | Features::NET_GUEST_CSUM
        | Features::NET_HOST_TSO4
        | Features::NET_HOST_TSO6
        | Features::NET_HOST_ECN
        | Features::NET_HOST_USO
        | Features::NET_GUEST_TSO4
        | Features::NET_GUEST_TSO6
        | Features::NET_GUEST_ECN
        | Features::NET_GUEST_USO4
        | Features::NET_GUEST_USO6
        | Features::NET_MRG_RXBUF
        | Features::NET_STATUS;
    features.set(Features::NET_MTU, config.mtu.is_some());
    features.set(Features::NET_MQ, config.queues > 1);
    features.set(Features::ACCESS_PLATFORM, config.iommu != Iommu::Off);
    features
}

/// Returns the offer for a restored connection: the earlier one, without features that are no
/// longer served. Changes of the port that hold for the next connection do not count.
pub(super) fn offer_after_restore(config: &PortConfig, record: &ConnectionRecord) -> Offer {
    let mut offer = offer(config);
    let served = offer.features | Features::NET_MTU | Features::ACCESS_PLATFORM;
    offer.features = Features::from_bits_retain(record.offered) & served;
    offer.iommu_required = record.iommu_required;
    offer
}

pub(super) fn offer(config: &PortConfig) -> Offer {
    let mut offer = Offer::new(offered(config), config.queues);
    offer.mtu = config.mtu.unwrap_or(offer.mtu);
    offer.mac = config.mac.unwrap_or_default();
    offer.iommu_required = config.iommu == Iommu::Required;
    match config.clients {
        Clients::Netmap { slots } => offer.of_slot_queues(slots),
        Clients::VhostUser | Clients::Memif { .. } => offer,
    }
}

/// Returns the offer of a port for memif clients; none of another port.
pub(super) fn memif_offer(config: &PortConfig) -> Option<memif::Offer> {
    let Clients::Memif { id, secret } = &config.clients else {
        return None;
    };
    Some(memif::Offer {
        program: concat!("Lasthop ", env!("CARGO_PKG_VERSION")).into(),
        port: config.name.clone(),
        id: *id,
        secret: secret.as_ref().map(|secret| secret.as_str().to_owned()),
        queue_pairs: config.queues,
    })
}

#[cfg(test)]
mod tests {
    use ipc::switching::Role;
    use port::PortId;

    use super::*;

    fn port(iommu: Iommu) -> PortConfig {
        PortConfig {
            id: PortId(1),
            name: "vm1".to_owned(),
            socket: "vm1.sock".to_owned(),
            role: Role::Server,
            queues: 1,
            mtu: None,
            weight: ipc::switching::WEIGHT,
            mac: None,
            clients: Clients::VhostUser,
            iommu,
        }
    }

    fn record(offered: Features, iommu_required: bool) -> ConnectionRecord {
        ConnectionRecord {
            port: port(Iommu::default()),
            offered: offered.bits(),
            session: Vec::new(),
            answered: None,
            torn: false,
            starts: Vec::new(),
            connections: 1,
            iommu_required,
        }
    }

    #[test]
    fn a_connection_that_was_not_offered_the_feature_goes_on_without() {
        for iommu in [Iommu::Off, Iommu::Offered, Iommu::Required] {
            let before = offered(&port(Iommu::Off));
            let bytes = record(before, false).to_bytes();
            let read = ConnectionRecord::from_bytes(&bytes).unwrap();
            let offer = offer_after_restore(&port(iommu), &read);
            assert_eq!((offer.features, offer.iommu_required), (before, false));
        }
    }

    #[test]
    fn a_connection_keeps_its_offer_when_the_setting_changes() {
        let with = offered(&port(Iommu::Offered));
        for (iommu, required) in [
            (Iommu::Off, false),
            (Iommu::Off, true),
            (Iommu::Required, false),
        ] {
            let offer = offer_after_restore(&port(iommu), &record(with, required));
            assert_eq!((offer.features, offer.iommu_required), (with, required));
        }
    }
}
