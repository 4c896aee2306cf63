//! Families of user ports.

use api::v1::UserPortStatus;

use super::Facts;
use super::families::{families, labels};
use super::text::{Kind, Page};

/// Writes the families.
pub(super) fn write(facts: &Facts, page: &mut Page) {
    let ports = || facts.status.ports.iter();
    let users = || {
        ports().filter_map(|port| {
            let user = port.driver_status.as_ref()?.user.as_ref()?;
            Some((&port.name, user))
        })
    };
    let states = users().flat_map(|(name, user)| user.states.iter().map(move |of| (name, of)));
    families! { page, Gauge, (name, of) in states,
        ["port" = name, "protocol" = of.protocol, "state" = of.state],
        "lasthop_user_flows" "Connections and UDP mappings of a user port." of.flows;
    }
    families! { page, Gauge, (name, user) in users(), ["port" = name],
        "lasthop_user_kept_flows"
            "Connections and UDP mappings of a user port that outlive its driver process."
            user.kept;
    }
    families! { page, Counter, (name, result, flows) in users().flat_map(results),
        ["port" = name, "result" = result],
        "lasthop_user_new_flows"
            "New flows by result: established (connections, and mappings that were opened), \
             refused (by the other end), failed."
            flows;
    }
    families! { page, Counter, (name, direction, bytes) in users().flat_map(bytes),
        ["port" = name, "direction" = direction],
        "lasthop_user_bytes"
            "Bytes of payload that sockets took of guests (from-guest), and guests of sockets \
             (to-guest)."
            bytes;
    }
    families! { page, Counter, (name, reason, count) in users().flat_map(refused),
        ["port" = name, "reason" = reason],
        "lasthop_user_refused"
            "Frames and connections of guests of a user port that were refused, by drop reason."
            count;
    }
    families! { page, Counter, (name, user) in users(), ["port" = name],
        "lasthop_user_dns_questions"
            "Questions of guests to the DNS server of a user port."
            user.dns_questions;
    }
}

type Row<'a> = (&'a String, &'a str, u64);

fn results<'a>((name, user): (&'a String, &'a UserPortStatus)) -> impl Iterator<Item = Row<'a>> {
    let results = user.results.iter();
    results.map(move |(result, flows)| (name, &**result, *flows))
}

fn refused<'a>((name, user): (&'a String, &'a UserPortStatus)) -> impl Iterator<Item = Row<'a>> {
    let refused = user.refused.iter();
    refused.map(move |(reason, count)| (name, &**reason, *count))
}

fn bytes<'a>((name, user): (&'a String, &'a UserPortStatus)) -> [Row<'a>; 2] {
    [
        (name, "from-guest", user.from_guests_bytes),
        (name, "to-guest", user.to_guests_bytes),
    ]
}
