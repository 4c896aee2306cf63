//! One sender above a limit: the part of the limit that arrives, by rate, size and kind of limit.

use std::time::Duration;

use anyhow::Result;

use super::outputs::{Output, Sender};
use super::parts::{Part, Run};
use crate::clients::streams::{Guests, Size, Stream};
use crate::peers::{Kind, Peer, lasthop, ovs};
use crate::plan::{Plan, progress};
use crate::report::Report;
use crate::sample::wait_quiet;

/// The limit is exact over a second, and the burst must be over before.
const WINDOW: Duration = Duration::from_secs(1);
const SETTLE: Duration = Duration::from_millis(300);
const PUBLISHED: &str = "no figure: interfaces of the paper have no limits";
const ARRIVED: [&str; 2] = ["Mbit/s of the limit", "% of the limit that arrives"];

static SMALL: Part = Part {
    name: "64-bytes",
    axes: ARRIVED,
    published: PUBLISHED,
};
static LARGE: Part = Part {
    name: "1514-bytes",
    axes: ARRIVED,
    published: PUBLISHED,
};
static SUPER: Part = Part {
    name: "super-frames",
    axes: ARRIVED,
    published: PUBLISHED,
};
static MIXED: Part = Part {
    name: "mixed",
    axes: ARRIVED,
    published: PUBLISHED,
};
static LOST: Part = Part {
    name: "lost",
    axes: ["Mbit/s of the limit", "% of the frames sent, 1514 bytes"],
    published: PUBLISHED,
};

const PEERS: [Kind; 3] = [Kind::Lasthop, Kind::Ovs, Kind::Bridge];
const NOTES: [&str; 3] = [
    "one thread plays both guests; it carries less than 1 Gbit/s of 64 bytes and less than 10 \
     Gbit/s of 1514 bytes, so these rows are missing",
    "bits are those of Ethernet frames without preamble and checksum; the policer at OVS-DPDK's \
     egress counts from the IP header on, and its cir is set so that it comes to the same; bursts \
     of policers are 10 ms",
    "mixed: 64 bytes, 1514 bytes and super-frames of 64 KiB in turn, which the others do not take \
     here; qos.max at an output of twice the rate",
];

/// A kind of limit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Limit {
    FromGuest,
    Max,
    ToGuest,
    IngressPolicing,
    EgressPolicer,
    Htb,
}

impl Limit {
    const ALL: [Self; 6] = [
        Self::FromGuest,
        Self::Max,
        Self::ToGuest,
        Self::IngressPolicing,
        Self::EgressPolicer,
        Self::Htb,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::FromGuest => "Lasthop, from_guest",
            Self::Max => "Lasthop, qos.max",
            Self::ToGuest => "Lasthop, to_guest (drops)",
            Self::IngressPolicing => "OVS-DPDK, ingress_policing_rate",
            Self::EgressPolicer => "OVS-DPDK, egress-policer",
            Self::Htb => "Linux bridge, tc htb",
        }
    }

    fn takes_super_frames(self) -> bool {
        matches!(self, Self::FromGuest | Self::Max | Self::ToGuest)
    }

    /// Starts a peer whose port 1 may send `rate` bits a second to port 0, of frames that have
    /// `header` in `whole` bytes that the limit may not count.
    fn start(self, plan: &Plan, rate: u64, [header, whole]: [u64; 2]) -> Result<Peer> {
        let limit = |key: &str| format!("[port.limits]\n{key} = {{ bits_per_second = {rate} }}\n");
        let sender = Sender {
            max: Some(rate),
            ..Sender::default()
        };
        let output = |rate| Output {
            rate,
            senders: vec![sender.clone()],
            others: 0,
            pairs: 1,
        };
        let burst = (rate / 800).max(100_000);
        match self {
            Self::FromGuest => lasthop::with_tables(plan, &[String::new(), limit("from_guest")]),
            Self::ToGuest => lasthop::with_tables(plan, &[limit("to_guest"), String::new()]),
            Self::Max => output(2 * rate).start(Kind::Lasthop, plan),
            Self::Htb => output(rate).start(Kind::Bridge, plan),
            Self::IngressPolicing => {
                let (rate, burst) = (rate / 1000, burst * 8 / 1000);
                let command = format!(
                    "set interface v1 ingress_policing_rate={rate} ingress_policing_burst={burst}"
                );
                ovs::with_commands(plan, 2, &[command], &[])
            }
            Self::EgressPolicer => {
                let bytes = rate / 8 * (whole - header) / whole;
                let command = format!(
                    "set port v0 qos=@q -- --id=@q create qos type=egress-policer \
                     other-config:cir={bytes} other-config:cbs={burst}"
                );
                ovs::with_commands(plan, 2, &[command], &[])
            }
        }
    }
}

/// The rates that the thread of the guests carries, by sizes.
const CASES: [(&Part, &[Size], &[u64]); 4] = [
    (&SMALL, &[Size::Bytes(64)], &[10_000_000, 100_000_000]),
    (
        &LARGE,
        &[Size::Bytes(1514)],
        &[10_000_000, 100_000_000, 1_000_000_000],
    ),
    (
        &SUPER,
        &[Size::Super],
        &[10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000],
    ),
    (
        &MIXED,
        &[Size::Bytes(64), Size::Bytes(1514), Size::Super],
        &[10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000],
    ),
];

/// See the module.
pub(crate) fn shaping(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "shaping", &NOTES, &PEERS);
    for limit in Limit::ALL {
        for (part, sizes, rates) in CASES {
            if sizes.contains(&Size::Super) && !limit.takes_super_frames() {
                continue;
            }
            for &rate in rates {
                progress(&format!("shaping: {}, {rate} bit/s", limit.name()));
                wait_quiet(plan.patience / 100)?;
                let what = format!("{}, {}, {rate} bit/s", part.name, limit.name());
                run.attempt(&what, |run| shaped(run, limit, part, sizes, rate))?;
            }
        }
    }
    Ok(run.report("One sender above a limit"))
}

fn shaped(
    run: &mut Run<'_>,
    limit: Limit,
    part: &'static Part,
    sizes: &[Size],
    rate: u64,
) -> Result<()> {
    let plan = run.plan;
    let whole = match sizes {
        [Size::Bytes(whole)] => *whole as u64,
        _ => 1514,
    };
    let peer = limit.start(plan, rate, [14, whole])?;
    let mut guests = Guests::attach(&peer, 1, plan.cores[1])?;
    let streams = [Stream::flood(1, 0, sizes)];
    let x = rate as f64 / 1e6;
    for _ in 0..plan.rounds {
        let mut measure = || {
            guests.run(&streams, plan.settle.max(SETTLE))?;
            let carried = guests
                .run(&streams, plan.window.max(WINDOW))?
                .swap_remove(0);
            let lost = carried.sent.saturating_sub(carried.received) as f64;
            Ok([
                100.0 * carried.rate() / rate as f64,
                100.0 * lost / carried.sent.max(1) as f64,
            ])
        };
        if part == &LARGE {
            run.take_all([part, &LOST], limit.name(), x, measure)?;
        } else {
            run.take(part, limit.name(), x, || Ok(measure()?[0]))?;
        }
    }
    Ok(())
}
