//! Tables of traffic classes, groups of senders and scheduled ports.

use std::time::Duration;

use api::v1::{EgressDocument, EgressShare, QosClassSpec, QosGroupStatus};
use client::units::{bytes, count, rate};

use super::super::qos::egress_line;
use super::super::tables::Table;
use super::or_none;

/// `lasthop qos-class list`.
pub(in crate::cli) fn classes(classes: &[QosClassSpec]) -> String {
    let dscp = |class: &QosClassSpec| {
        let all: Vec<String> = class.dscp.iter().map(ToString::to_string).collect();
        or_none((!all.is_empty()).then(|| all.join(",")))
    };
    Table::of(classes)
        .text("CLASS", |class| class.name.clone())
        .number("PRIORITY", |class| class.priority.to_string())
        .text("DSCP", dscp)
        .number("PCP", |class| or_none(class.pcp))
        .format_or("no classes")
}

/// `lasthop qos-group list`.
pub(in crate::cli) fn groups(groups: &[QosGroupStatus]) -> String {
    Table::of(groups)
        .text("GROUP", |group| group.name.clone())
        .number("MIN", |group| bits(group.min))
        .number("MAX", |group| bits(group.max))
        .number("WEIGHT", |group| group.weight.to_string())
        .text("PORTS", |group| {
            or_none((!group.ports.is_empty()).then(|| group.ports.join(",")))
        })
        .format_or("no groups")
}

fn bits(value: Option<u64>) -> String {
    or_none(value.map(|value| rate(value as f64, "bit")))
}

/// A share between two samples.
struct ShareUse<'a> {
    now: &'a EgressShare,
    bits_per_second: f64,
    /// Part of the time in which frames waited.
    held: f64,
}

/// `lasthop egress show`, from two samples.
pub(in crate::cli) fn egress(
    last: &EgressDocument,
    now: &EgressDocument,
    time: Duration,
) -> String {
    let seconds = time.as_secs_f64().max(f64::MIN_POSITIVE);
    let zero = EgressShare::default();
    let used = now.shares.iter().map(|now| {
        let mut before = last.shares.iter();
        let before = before.find(|of| (&of.sender, &of.class) == (&now.sender, &now.class));
        let before = before.unwrap_or(&zero);
        ShareUse {
            now,
            bits_per_second: now.bits.saturating_sub(before.bits) as f64 / seconds,
            held: now.held_us.saturating_sub(before.held_us) as f64 / 1e6 / seconds,
        }
    });
    let used: Vec<ShareUse<'_>> = used.collect();
    let class = |of: &ShareUse<'_>| match of.now.class.as_str() {
        "" => "(all)".to_owned(),
        class => class.to_owned(),
    };
    let table = Table::of(&used)
        .text("SENDER", |of| of.now.sender.clone())
        .text("CLASS", class)
        .text("GROUP", |of| or_none(of.now.group.as_ref()))
        .number("PRIORITY", |of| of.now.priority.to_string())
        .number("MIN", |of| bits(Some(of.now.min).filter(|min| *min > 0)))
        .number("MAX", |of| bits(of.now.max))
        .number("WEIGHT", |of| of.now.weight.to_string())
        .number("GETS", |of| rate(of.bits_per_second, "bit"))
        .number("HELD", |of| format!("{:.0}%", 100.0 * of.held.min(1.0)))
        .number("WAITING", |of| bytes(of.now.waiting_bits / 8))
        .number("DROPPED", |of| count(of.now.dropped_frames))
        .format_or("no senders");
    format!("{}: {}\n\n{table}", now.port, egress_line(&now.output))
}

#[cfg(test)]
mod tests {
    use api::v1::{EgressStatus, FullAction};

    use super::*;

    #[test]
    fn rates_are_those_between_two_samples() {
        let document = |bits, held_us| EgressDocument {
            port: "up".to_owned(),
            output: EgressStatus {
                rate: Some(1_000_000_000),
                link: Some(1_000_000_000),
                overhead: 24,
                full: FullAction::Hold,
                promised: 2_000_000_000,
                scaled: true,
            },
            shares: vec![EgressShare {
                sender: "vm1".to_owned(),
                class: "storage".to_owned(),
                priority: 6,
                min: 500_000_000,
                weight: 100,
                bits,
                held_us,
                waiting_bits: 12_112,
                ..EgressShare::default()
            }],
        };
        let text = egress(
            &document(1000, 0),
            &document(1_001_000, 250_000),
            Duration::from_secs(1),
        );
        let mut lines = text.lines();
        assert_eq!(
            lines.next(),
            Some(
                "up: 1.0 Gbit/s, overhead 24 bytes, full hold, 2.0 Gbit/s guaranteed, scaled down \
                 to the link's 1.0 Gbit/s"
            )
        );
        let row: Vec<&str> = lines.next_back().unwrap().split_whitespace().collect();
        let expected = "vm1 storage - 6 500.0 Mbit/s - 100 1.0 Mbit/s 25% 1.5 KiB 0";
        assert_eq!(row.join(" "), expected);
    }
}
