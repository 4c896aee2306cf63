//! The features that a port offers to its front end.

use channel::switching::{Clients, PortConfig};
use virtio::vhost_user::Offer;
use wire::virtio::features::Features;

/// Returns the offered features; MTU and multi-queue are added where they are configured.
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
    features
}

/// Returns the offer for a restored connection: the earlier features, without those that are no
/// longer served.
pub(super) fn offer_after_restore(config: &PortConfig, before: u64) -> Offer {
    let mut offer = offer(config);
    let served = offer.features | Features::NET_MTU;
    offer.features = Features::from_bits_retain(before) & served;
    offer
}

pub(super) fn offer(config: &PortConfig) -> Offer {
    let mut offer = Offer::new(offered(config), config.queues);
    offer.mtu = config.mtu.unwrap_or(offer.mtu);
    offer.mac = config.mac.unwrap_or_default();
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
