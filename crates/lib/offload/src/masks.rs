//! Few masks for many samples: those that cover most samples by the fewest entries.
//!
//! A sample is a frame's key with the bits that its decision depends on. Any mask with all of these
//! bits may serve it: a bad choice makes more entries than necessary, never wrong ones.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use wire::{FlowKey, FlowMask};

/// Step of masks in bits of addresses and ports.
const STEP: u8 = 4;

/// Returns a mask with the first bits of addresses and ports rounded up to whole steps.
#[must_use]
pub fn rounded(mask: &FlowMask) -> FlowMask {
    let wide = |bits: u128, width: u32| {
        let low = if bits == 0 {
            width
        } else {
            bits.trailing_zeros()
        };
        let low = low - low % u32::from(STEP);
        let all = u128::MAX >> (128 - width);
        all.checked_shl(low).unwrap_or(0) & all
    };
    let key = FlowKey::from_words(*mask.words());
    // IPv4 addresses are in the low 32 bits; a mask with more is one for IPv6.
    let address = |bits: u128| match bits >> 32 {
        0 => wide(bits, 32),
        _ => wide(bits, 128),
    };
    let port = |bits: u16| wide(bits.into(), 16) as u16;
    mask.with_src_ip_bits(address(key.src_ip()))
        .with_dst_ip_bits(address(key.dst_ip()))
        .with_l4_src_bits(port(key.l4_src()))
        .with_l4_dst_bits(port(key.l4_dst()))
}

/// Chooses at most `most` masks for samples, in addition to those in use.
#[must_use]
pub fn choose(
    samples: &[(FlowKey, FlowMask)],
    in_use: impl IntoIterator<Item = FlowMask>,
    most: usize,
) -> Vec<FlowMask> {
    let mut left: Vec<&(FlowKey, FlowMask)> = samples.iter().collect();
    for mask in in_use {
        left.retain(|(_, exact)| !mask.covers(exact));
    }
    let mut chosen = Vec::new();
    while chosen.len() < most && !left.is_empty() {
        let mut candidates: Vec<FlowMask> = left.iter().map(|(_, exact)| rounded(exact)).collect();
        candidates.sort_unstable_by_key(|mask| *mask.words());
        candidates.dedup();
        // Of equal ones that with the fewest bits: it will save most later.
        let value = |mask: &FlowMask| (saved(&left, mask), Reverse(bits(mask)));
        let best = candidates.into_iter().max_by_key(value);
        let Some(best) = best else { break };
        left.retain(|(_, exact)| !best.covers(exact));
        chosen.push(best);
    }
    chosen
}

/// Returns how many samples more than entries a mask has.
fn saved(samples: &[&(FlowKey, FlowMask)], mask: &FlowMask) -> usize {
    let covered = samples.iter().filter(|(_, exact)| mask.covers(exact));
    let keys: Vec<_> = covered.map(|(key, _)| *key.masked(mask).words()).collect();
    let entries: BTreeSet<_> = keys.iter().collect();
    keys.len() - entries.len()
}

fn bits(mask: &FlowMask) -> u32 {
    mask.words().iter().map(|word| word.count_ones()).sum()
}

/// Returns the mask that serves a sample with the fewest bits.
#[must_use]
pub fn best<'m>(
    masks: impl IntoIterator<Item = &'m FlowMask>,
    exact: &FlowMask,
) -> Option<&'m FlowMask> {
    let serving = masks.into_iter().filter(|mask| mask.covers(exact));
    serving.min_by_key(|mask| bits(mask))
}
