//! Ports that several sockets have (`SO_REUSEADDR`, `SO_REUSEPORT`; socket(7)): who may have one.

use smoltcp::wire::{IpAddress, IpListenEndpoint};

use super::Slot;
use super::options::{Family, Options};

/// Whether one frame could be for both of two places.
fn overlap(
    (one, only): (IpListenEndpoint, Option<Family>),
    (other, other_only): (IpListenEndpoint, Option<Family>),
) -> bool {
    let family = |address: Option<IpAddress>, only| address.map(|own| own.version()).or(only);
    let families = (family(one.addr, only), family(other.addr, other_only));
    let is_one_family = !matches!(families, (Some(one), Some(other)) if one != other);
    let is_one_address = one.addr.is_none() || other.addr.is_none() || one.addr == other.addr;
    one.port == other.port && is_one_family && is_one_address
}

impl Slot {
    /// Whether it is bound where another one of its kind would be.
    pub(super) fn is_at(&self, is_stream: bool, place: (IpListenEndpoint, Option<Family>)) -> bool {
        let bound = self.bound.map(|bound| (bound, self.options.only));
        self.body.is_stream() == is_stream && bound.is_some_and(|bound| overlap(bound, place))
    }

    /// Whether another socket may be bound where this one is.
    pub(super) fn shares(&self, options: &Options) -> bool {
        let by_port = self.options.reuse_port && options.reuse_port;
        let by_address = self.options.reuse_address && options.reuse_address;
        by_port || by_address && !self.listens()
    }
}
