//! What a port offers to its front end.

use channel::switching::PortConfig;
use virtio::features::Features;
use virtio::vhost_user::Offer;

/// What is offered to every guest; MTU and multi-queue are added where they are configured.
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

/// The offer to a front end that was made one before: nothing else than then, and nothing that is not served any more.
pub(super) fn offer_again(config: &PortConfig, before: u64) -> Offer {
    let mut offer = offer(config);
    let served = offer.features | Features::NET_MTU;
    offer.features = Features::from_bits_retain(before) & served;
    offer
}

pub(super) fn offer(config: &PortConfig) -> Offer {
    let mut offer = Offer::new(offered(config), config.queues);
    offer.mtu = config.mtu.unwrap_or(offer.mtu);
    offer.mac = config.mac.unwrap_or_default();
    offer
}
