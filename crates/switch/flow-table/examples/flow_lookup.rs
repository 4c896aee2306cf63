//! Benchmark of flow cache lookups, by number of flows: nanoseconds per lookup, in batches and one
//! by one.
//!
//! ```sh
//! cargo run --release -p lasthop-flow-table --example flow_lookup
//! ```
//!
//! `in turn` looks the flows up in the order of their installation, `random` in random order. With
//! four masks, each flow has one of them, and all four have flows even if only one is looked up.

use std::hint::black_box;
use std::time::{Duration, Instant};

use flow_table::{FlowTable, Origin};
use policy::{Action, PortId};
use wire::MacAddr;
use wire::flow::{FlowKey, FlowMask};

/// Keys that are looked up together, as in the switch.
const BATCH: usize = 64;
const FLOWS: [usize; 5] = [1, 1024, 65_536, 262_144, 1_000_000];
/// Lookups in a round.
const LOOKUPS: usize = 1 << 16;
/// Time for one figure.
const WINDOW: Duration = Duration::from_millis(300);

fn mix(n: u64) -> u64 {
    let n = (n ^ n >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (n ^ n >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ n >> 32
}

/// Returns the key of flow `n`: each port has a sixteenth of them.
fn key(n: u64) -> FlowKey {
    FlowKey::default()
        .with_in_port(n as u32 % 16)
        .with_smac(MacAddr::from_u64(0x0200_0000_0000 | n))
        .with_dmac(MacAddr::from_u64(0x0200_0100_0000))
}

/// Returns the masks of a table; the first is the one that control uses.
fn masks(count: usize) -> Vec<FlowMask> {
    let ethernet = FlowMask::NONE
        .with_in_port()
        .with_vlan()
        .with_smac()
        .with_dmac();
    let all = [
        ethernet,
        ethernet.with_ethertype(),
        ethernet.with_ip_proto(),
        ethernet.with_src_ip().with_dst_ip().with_l4_dst(),
    ];
    all[..count].to_vec()
}

fn table(flows: usize, masks: &[FlowMask]) -> FlowTable {
    let mut table = FlowTable::new(1 << 20, 0x5eed_5eed_5eed_5eed);
    for n in 0..flows.max(masks.len()) {
        let action = Action::Unicast {
            port: PortId(n as u32),
            tag: None,
        };
        table.install(
            &key(n as u64),
            &masks[n % masks.len()],
            action,
            Origin::default(),
            1,
        );
    }
    table
}

fn batched(table: &mut FlowTable, asked: &[u32], now: u64) {
    let mut keys = [FlowKey::default(); BATCH];
    let mut probes = [table.prepare(&keys[0]); BATCH];
    for flows in asked.as_chunks::<BATCH>().0 {
        for (n, flow) in flows.iter().enumerate() {
            keys[n] = key((*flow).into());
            probes[n] = table.prepare(&keys[n]);
        }
        for (key, probe) in keys.iter().zip(&mut probes) {
            *probe = table.approach(key, *probe);
        }
        for (key, probe) in keys.iter().zip(&probes) {
            black_box(table.lookup_prepared(key, *probe, 1, now));
        }
    }
}

fn one_by_one(table: &mut FlowTable, asked: &[u32], now: u64) {
    for n in asked {
        let key = key((*n).into());
        let probe = table.prepare(&key);
        let probe = table.approach(&key, probe);
        black_box(table.lookup_prepared(&key, probe, 1, now));
    }
}

/// Returns the median of the rounds of a window, in nanoseconds per key.
fn nanoseconds(mut round: impl FnMut(usize, u64)) -> f64 {
    let mut rounds = Vec::new();
    let start = Instant::now();
    while start.elapsed() < WINDOW || rounds.len() < 5 {
        let begun = Instant::now();
        round(rounds.len(), 2 + rounds.len() as u64);
        rounds.push(begun.elapsed().as_nanos() as f64 / LOOKUPS as f64);
    }
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

/// Returns the flow numbers of several rounds.
fn flows_of_rounds(flows: usize, random: bool) -> Vec<u32> {
    let nth = |n: u64| if random { mix(n) } else { n } % flows as u64;
    let all = (0..16 * LOOKUPS as u64).map(|n| nth(n) as u32);
    all.collect()
}

fn row(flows: usize, masks: &[FlowMask]) -> [f64; 4] {
    let mut table = table(flows, masks);
    let mut figures = [0.0; 4];
    for (at, random) in [false, true].into_iter().enumerate() {
        let all = flows_of_rounds(flows, random);
        let round = |n: usize| &all[n % 16 * LOOKUPS..][..LOOKUPS];
        figures[2 * at] = nanoseconds(|n, now| batched(&mut table, round(n), now));
        figures[2 * at + 1] = nanoseconds(|n, now| one_by_one(&mut table, round(n), now));
    }
    figures
}

fn main() {
    println!(
        "| flows | masks | in turn, batch | in turn, single | random, batch | random, single |"
    );
    println!("|---|---|---|---|---|---|");
    // Profiles one row: `flow_lookup FLOWS MASKS`.
    let desired: Vec<usize> = std::env::args().skip(1).flat_map(|a| a.parse()).collect();
    for count in [1, 3, 4] {
        for flows in FLOWS {
            if desired.len() == 2 && desired != [flows, count] {
                continue;
            }
            let figures = row(flows, &masks(count)).map(|ns| format!("{ns:.1}"));
            println!("| {flows} | {count} | {} |", figures.join(" | "));
        }
    }
}
