use wire::{FlowKey, FlowMask};

use crate::masks::{best, choose, rounded};

fn source(bits: u32) -> FlowMask {
    let source = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
    FlowMask::NONE
        .with_ethertype()
        .with_src_ip_bits(source.into())
}

#[test]
fn masks_grow_in_steps_of_four_bits() {
    for (bits, rounded_to) in [(0, 0), (1, 4), (4, 4), (5, 8), (31, 32), (32, 32)] {
        assert_eq!(rounded(&source(bits)), source(rounded_to), "{bits}");
    }
    let v6 = FlowMask::NONE.with_dst_ip_bits(u128::MAX << 71);
    assert_eq!(
        rounded(&v6),
        FlowMask::NONE.with_dst_ip_bits(u128::MAX << 68)
    );
    let port = FlowMask::NONE.with_l4_dst_bits(0xff80);
    assert_eq!(rounded(&port), FlowMask::NONE.with_l4_dst_bits(0xfff0));
    assert_eq!(rounded(&FlowMask::EXACT), FlowMask::EXACT);
}

/// A rule that denies, behind one that allows 10.9.0.0/16: as many first bits of a source count as
/// it shares with that network, and one.
fn outside_one_network() -> Vec<(FlowKey, FlowMask)> {
    let allowed: u32 = 0x0a09_0000;
    let mut random = wire::hash::SplitMix64(1);
    let mut sources = std::iter::repeat_with(move || random.number() as u32);
    std::iter::from_fn(|| sources.next())
        .filter(|source| source >> 16 != allowed >> 16)
        .map(|random| {
            let bits = (random ^ allowed).leading_zeros() + 1;
            (FlowKey::default().with_src_ip(random.into()), source(bits))
        })
        .take(256)
        .collect()
}

#[test]
fn random_sources_need_few_entries() {
    let samples = outside_one_network();
    let masks = choose(&samples, [], 8);
    assert_eq!(
        masks[0],
        source(4),
        "most sources differ in the first four bits"
    );
    let mut entries = std::collections::BTreeSet::new();
    for (key, exact) in &samples {
        let mask = best(&masks, exact).unwrap();
        assert!(mask.covers(exact));
        entries.insert((*mask.words(), *key.masked(mask).words()));
    }
    assert!(entries.len() <= 30, "{}", entries.len());
}

#[test]
fn masks_in_use_are_not_chosen_again() {
    let samples = outside_one_network();
    let first = choose(&samples, [], 1);
    let second = choose(&samples, first.iter().copied(), 8);
    assert!(!second.contains(&first[0]));
    assert!(second.iter().all(|mask| !first[0].covers(mask)));
    assert_eq!(choose(&samples, [FlowMask::EXACT], 8), []);
    assert_eq!(best(&[source(4)], &source(5)), None);
}
