//! Trees of scheduled ports with senders that always have frames: long-run rates are those of the
//! fluid model, and the output is never exceeded.

use arbitrary::{Result, Unstructured};
use egress::oracle::{BackloggedLeaf, rates, run};
use egress::{Beyond, FullAction, Group, Leaf, MAX_CLASSES, OutputConfig, Rates, Sender, Tree};

/// Bits a second of the output.
const RATE: u64 = 1_000_000_000;
/// Length of a run, nanoseconds.
const RUN: u64 = 200_000_000;
/// Bits by which a leaf may differ from the fluid model: bursts, and what is on its way.
const SLACK: f64 = 6e6;
/// Lengths of frames, bits.
const FRAMES: [u64; 3] = [88 * 8, 1538 * 8, 9038 * 8];

fn node(u: &mut Unstructured<'_>) -> Result<Rates> {
    let ceiling: Option<u16> = u.arbitrary()?;
    Ok(Rates {
        max: ceiling.map(|max| 50_000_000 + u64::from(max) * 10_000),
        weight: u.int_in_range(1..=400)?,
        ..Rates::usual()
    })
}

fn config(u: &mut Unstructured<'_>) -> Result<(OutputConfig, Vec<Leaf>)> {
    let group = |number: u8, u: &mut Unstructured<'_>| {
        let name = number.to_string();
        node(u).map(|rates| Group { name, rates })
    };
    let groups = (0..u.int_in_range(0..=2)?)
        .map(|number| group(number, u))
        .collect::<Result<Vec<_>>>()?;
    let (mut senders, mut leaves, mut promised) = (Vec::new(), Vec::new(), 0);
    for at in 0..u.int_in_range(1..=6)? {
        let mut rates = node(u)?;
        let group = u.arbitrary::<Option<u8>>()?.map(u16::from);
        let group = group.filter(|group| usize::from(*group) < groups.len());
        if group.is_none() && u.arbitrary()? {
            let min = u.int_in_range(0..=150_000_000)?;
            rates.min = rates
                .max
                .map_or(min, |max| min.min(max))
                .min(RATE - promised);
            promised += rates.min;
        }
        let classes: u8 = u.int_in_range(1..=3)?;
        leaves.extend(
            (0..2)
                .filter(|class| classes & (1 << class) != 0)
                .map(|c| Leaf::of(at, c)),
        );
        senders.push(Sender {
            port: at as u32,
            rates,
            priority: u.int_in_range(0..=2)?,
            group,
            beyond: Beyond::Hold,
            classes: Vec::new(),
        });
    }
    let mut priorities = [0; MAX_CLASSES];
    priorities[1] = u.int_in_range(0..=3)?;
    let config = OutputConfig {
        rate: Some(RATE),
        overhead: 0,
        full: FullAction::Drop,
        room: 0,
        groups,
        priorities,
        senders,
    };
    Ok((config, leaves))
}

/// Groups, ports and classes, each with its rates.
pub fn run_tree(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let Ok((config, leaves)) = config(&mut u) else {
        return;
    };
    let mut tree = Tree::new(&config, None);
    let mut senders: Vec<BackloggedLeaf> = leaves
        .iter()
        .map(|leaf| BackloggedLeaf::new(*leaf, &FRAMES))
        .collect();
    run(&mut tree, &mut senders, 0, RUN / 2);
    senders.iter_mut().for_each(|sender| sender.sent = 0);
    run(&mut tree, &mut senders, RUN / 2, RUN + RUN / 2);
    let seconds = RUN as f64 / 1e9;
    let all: u64 = senders.iter().map(|sender| sender.sent).sum();
    assert!(all as f64 <= RATE as f64 * seconds + SLACK, "{all} bits");
    for ((leaf, fluid), sender) in rates(&config, &leaves).into_iter().zip(&senders) {
        let (got, fluid) = (sender.sent as f64, fluid * seconds);
        let port = &config.senders[leaf.sender()];
        if config.senders.iter().all(|sender| sender.rates.min == 0) {
            let off = (got - fluid).abs();
            assert!(
                off <= 0.02 * fluid + SLACK,
                "{leaf:?}: {got} beside {fluid}"
            );
        }
        let own = senders
            .iter()
            .filter(|other| other.leaf.sender() == leaf.sender());
        let own: u64 = own.map(|other| other.sent).sum();
        let min = port.rates.min as f64 * seconds;
        assert!(own as f64 >= 0.99 * min - SLACK, "{leaf:?}: {own} of {min}");
    }
}
