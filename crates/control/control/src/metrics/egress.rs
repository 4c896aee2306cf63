//! Metrics of scheduled ports.

use api::v1::{EgressDocument, EgressShare};

use super::Facts;
use super::families::{families, labels};
use super::text::{Kind, Page};

/// Returns the shares of all scheduled ports.
fn shares(facts: &Facts) -> impl Iterator<Item = (&EgressDocument, &EgressShare)> {
    let all = facts.egress.iter();
    all.flat_map(|of| of.shares.iter().map(move |share| (of, share)))
}

/// Writes the families of scheduled ports.
pub(super) fn write(facts: &Facts, page: &mut Page) {
    let used = || shares(facts).filter(|(_, share)| !share.class.is_empty());
    families! { page, Counter, (of, share) in used(),
        ["port" = of.port, "sender" = share.sender, "class" = share.class],
        "lasthop_egress_bits"
            "Bits as on the wire that a scheduled port has sent, by sender and class."
            share.bits;
        "lasthop_egress_held_seconds"
            "Time for which frames waited for their turn at a scheduled port, by sender and class."
            share.held_us as f64 / 1e6;
        "lasthop_egress_dropped_frames"
            "Frames that a scheduled port has dropped as rate-limited, by sender and class."
            share.dropped_frames;
    }
    families! { page, Gauge, (of, share) in shares(facts),
        ["port" = of.port, "sender" = share.sender, "class" = share.class],
        "lasthop_egress_guaranteed_bits"
            "Guaranteed bits a second at a scheduled port, as scaled to a slower link; of the \
             sender as a whole where the class is empty."
            share.min;
    }
    families! { page, Gauge, of in &facts.egress, ["port" = of.port],
        "lasthop_egress_scaled"
            "1 if the guarantees of a scheduled port are scaled down, because its interface is \
             slower than their sum, else 0."
            u8::from(of.output.scaled);
    }
}
