//! Seeds of queues, and of the table of translations that some of them have.

use super::save;

/// Steps of a queue, as `queue.rs` reads them.
mod queue {
    pub(crate) fn add(count: u8, len: u16, indirect: bool) -> Vec<u8> {
        let [a, b] = len.to_le_bytes();
        vec![0, count, a, b, indirect.into()]
    }
    pub(crate) const TAKE: [u8; 1] = [2];
    pub(crate) const DRAIN: [u8; 1] = [4];
    pub(crate) const PUT: [u8; 2] = [5, 0];
    pub(crate) const PUT_LATER: [u8; 2] = [5, 1];
    pub(crate) const UNTAKE: [u8; 2] = [7, 0];
    pub(crate) const PUBLISH: [u8; 1] = [8];
    pub(crate) const KICKS: [u8; 2] = [9, 1];
    pub(crate) const RESTART: [u8; 2] = [10, 0];
    pub(crate) const FRESH: [u8; 2] = [10, 1];
    pub(crate) const MEMORY: [u8; 2] = [11, 0];
    pub(crate) const LESS_MEMORY: [u8; 2] = [11, 8];
    pub(crate) const REAP: [u8; 1] = [12];
    /// A descriptor of 64 bytes of data.
    pub(crate) fn desc(table: bool, at: u8, flags: u16, link: u8) -> Vec<u8> {
        let [a, b] = flags.to_le_bytes();
        vec![13, table.into(), at, 0, 0, 0, 1, 64, 0, a, b, link]
    }
    pub(crate) fn table(count: u16, len: u16, flags: u16) -> Vec<u8> {
        let words = [count.to_le_bytes(), len.to_le_bytes(), flags.to_le_bytes()].concat();
        vec![
            15, words[0], words[1], 0, 0, 0, 1, words[2], words[3], words[4], words[5],
        ]
    }
    pub(crate) fn word(at: u8, value: u8) -> Vec<u8> {
        vec![16, at, value]
    }
    pub(crate) fn inflight(at: u8, value: u8) -> Vec<u8> {
        vec![17, at, value]
    }
    pub(crate) const ANSWER: [u8; 2] = [20, 0];
    pub(crate) const DENY: [u8; 2] = [20, 0x55];
    /// Of four questions, one is answered as QEMU, one denied, one exactly, and one not.
    pub(crate) const MIXED: [u8; 2] = [20, 0xe4];
    pub(crate) fn unmap(page: u8) -> [u8; 2] {
        [22, page]
    }
    pub(crate) fn map(page: u8, moves: bool) -> [u8; 3] {
        [23, page, moves.into()]
    }
    pub(crate) fn invalidate(page: u8, size: u16) -> Vec<u8> {
        [&[25, page][..], &size.to_le_bytes()].concat()
    }
    pub(crate) const END_DENIALS: [u8; 1] = [27];
}

/// Messages for a table, as `iotlb.rs` reads them.
pub(super) fn iotlb() {
    // Kind and number of the page, kind and number of the size, region, distance and question,
    // permission.
    let update = |page: [u8; 3], size: [u8; 3], kind: u8, permission: u8| {
        [&[0][..], &page, &size, &[kind, permission]].concat()
    };
    let page = |n: u8| [0, n, 0];
    let revoke = |page: [u8; 3], size: [u8; 3]| [&[9, 3][..], &page, &size].concat();
    let keep = |page: [u8; 3]| [&[20, 3][..], &page, &[0]].concat();
    let ask = |page: [u8; 3]| [&[13][..], &page, &[0]].concat();
    let (take, resume, clear) = ([16], [22], [12]);
    let one = [0, 0, 0];
    let pages = [
        update(page(1), [0, 2, 0], 0, 2),
        update(page(2), one, 4 << 2, 2),
        keep(page(1)),
        revoke(page(1), one),
        keep(page(2)),
        update(page(1), one, 0, 0x8f),
        resume.to_vec(),
    ];
    save("iotlb", "pages", &pages.concat());
    let large = [
        update([3, 1, 0], [9, 0, 0], 0, 1),
        update([3, 1, 0], one, 5 << 2, 1),
        update([5, 1, 0], [12, 1, 0], 3, 2),
        keep([5, 1, 0]),
        revoke([5, 1, 0], [12, 0, 0]),
        revoke([6, 0, 0], [15, 0xff, 0xff]),
    ];
    save("iotlb", "large", &large.concat());
    let mut joined = Vec::new();
    for n in 0..512u16 {
        let [low, high] = n.to_le_bytes();
        joined.extend(update([0, low, high], one, 0, 2));
    }
    save("iotlb", "joined", &joined);
    let mut rivals = Vec::new();
    for n in 0..8u8 {
        rivals.extend(update([4, n, 0], one, 0, 2));
        rivals.extend(keep([4, n / 2, 0]));
    }
    rivals.extend(clear);
    // A page that was kept is displaced, and then leads elsewhere.
    let mut displaced = [update([4, 0, 0], one, 0, 2), keep([4, 0, 0])].concat();
    displaced.extend((1..5).flat_map(|n| update([4, n, 0], one, 0, 2)));
    displaced.extend(update([4, 0, 0], one, 4 << 2, 2));
    save("iotlb", "displaced", &displaced);
    save("iotlb", "rivals", &rivals);
    let deny = |page: [u8; 3]| [&[17][..], &page, &[0]].concat();
    let questions = [
        ask(page(1)),
        ask(page(2)),
        take.to_vec(),
        deny(page(1)),
        [&[18][..], &page(1), &[0]].concat(),
        deny(page(2)),
        ask(page(3)),
        revoke(page(3), one),
        vec![19],
        [update(page(3), one, 3 << 5, 2), vec![0]].concat(),
        take.to_vec(),
    ];
    save("iotlb", "questions", &questions.concat());
    let spoil =
        |word: u32, value: u64| [&[23][..], &word.to_le_bytes(), &value.to_le_bytes()].concat();
    for (name, word, value) in [
        ("version", 1, 2u64),
        ("head", 8, u64::MAX),
        ("slot", 512, 1 << 63 | 7),
        ("counters", 17, 9),
    ] {
        let steps = [pages.concat(), spoil(word, value), pages.concat()];
        save("iotlb", name, &steps.concat());
    }
}

pub(super) fn queues() {
    use queue::*;
    let turn = [
        &add(2, 100, false)[..],
        &add(1, 60, true),
        &TAKE,
        &TAKE,
        &PUT_LATER,
        &PUT,
        &PUBLISH,
        &REAP,
        &KICKS,
    ]
    .concat();
    let again = [
        &add(1, 60, false)[..],
        &DRAIN,
        &UNTAKE,
        &TAKE,
        &RESTART,
        &TAKE,
        &PUT,
        &PUBLISH,
        &REAP,
    ]
    .concat();
    for (target, size) in [("queue_split", 3), ("queue_packed", 7)] {
        for (options, name) in [
            (0, "plain"),
            (1, "event-index"),
            (4, "writable"),
            (12, "logged"),
            (16, "tracked"),
            (23, "all"),
        ] {
            let steps = [&turn[..], &turn, &again, &MEMORY, &turn, &FRESH, &again].concat();
            save(target, name, &[&[size, options], &steps[..]].concat());
        }
        let hostile = [
            (
                "loop",
                [
                    &desc(false, 0, 0x81, 1)[..],
                    &desc(false, 1, 0x81, 0),
                    &word(1, 1),
                    &TAKE,
                ]
                .concat(),
            ),
            (
                "indirect",
                [
                    &desc(false, 0, 0x84, 0)[..],
                    &table(1200, 64, 1),
                    &word(1, 1),
                    &TAKE,
                ]
                .concat(),
            ),
            (
                "index-jump",
                [&add(1, 60, false)[..], &word(1, 20), &TAKE].concat(),
            ),
            (
                "used-index",
                [
                    &add(1, 60, false)[..],
                    &TAKE,
                    &word(0x81, 5),
                    &RESTART,
                    &TAKE,
                ]
                .concat(),
            ),
            (
                "memory-gone",
                [&add(4, 2000, false)[..], &LESS_MEMORY, &TAKE].concat(),
            ),
            (
                "nested-table",
                [
                    &desc(false, 0, 0x84, 0)[..],
                    &desc(true, 0, 4, 0),
                    &word(1, 1),
                    &TAKE,
                ]
                .concat(),
            ),
        ];
        for (name, steps) in hostile {
            save(target, name, &[&[size, 0], &steps[..]].concat());
        }
        let spoilt = [
            &turn[..],
            &add(3, 60, false),
            &DRAIN,
            &inflight(8, 1),
            &inflight(9, 7),
            &RESTART,
            &DRAIN,
        ]
        .concat();
        save(target, "inflight", &[&[size, 16], &spoilt[..]].concat());
        translated_queue(target, size);
    }
}

/// A guest with an IOMMU: bit 5 of the options; all is granted at first: bit 6; its front end
/// answers after each step: bit 7.
fn translated_queue(target: &str, size: u8) {
    use queue::*;
    let turn = [
        &TAKE[..],
        &ANSWER,
        &DRAIN,
        &ANSWER,
        &DRAIN,
        &PUT,
        &PUT,
        &PUBLISH,
        &REAP,
    ]
    .concat();
    let offer = [
        &add(2, 1000, false)[..],
        &add(3, 1900, true),
        &add(1, 60, false),
    ]
    .concat();
    let small = add(1, 60, false).repeat(8);
    let grants: Vec<u8> = (0..4).flat_map(|page| [26, page, 0]).collect();
    // Pages 0 to 3 are those of rings, 4 and 5 of tables, the others of buffers.
    let scenes = [
        (
            "on-demand",
            32,
            [&ANSWER[..], &RESTART, &offer, &turn, &turn].concat(),
        ),
        (
            "revoked-buffers",
            96,
            [
                &offer[..],
                &turn,
                &invalidate(7, 4096),
                &offer,
                &turn,
                &unmap(8),
                &offer,
                &turn,
            ]
            .concat(),
        ),
        (
            "revoked-rings",
            96,
            [
                &offer[..],
                &unmap(0),
                &TAKE,
                &map(0, true),
                &turn,
                &invalidate(0, 0),
                &turn,
            ]
            .concat(),
        ),
        // The same buffers before and after.
        (
            "revoked-at-rest",
            96,
            [
                &small[..],
                &turn,
                &turn,
                &invalidate(0, 0),
                &small,
                &TAKE,
                &turn,
                &turn,
            ]
            .concat(),
        ),
        // What was asked for first is denied, and then the rings may only be read.
        (
            "ring-access",
            32,
            [
                &DENY[..],
                &grants,
                &RESTART,
                &offer,
                &TAKE,
                &ANSWER,
                &RESTART,
                &turn,
            ]
            .concat(),
        ),
        (
            "during-a-batch",
            96,
            [
                &offer[..],
                &TAKE,
                &invalidate(0, 0),
                &unmap(7),
                &map(8, true),
                &turn,
                &turn,
            ]
            .concat(),
        ),
        (
            "denied",
            96,
            [
                &unmap(7)[..],
                &offer,
                &TAKE,
                &DENY,
                &TAKE,
                &MIXED,
                &END_DENIALS,
                &turn,
                &turn,
            ]
            .concat(),
        ),
        (
            "given-back",
            96,
            [
                &offer[..],
                &unmap(9),
                &DRAIN,
                &UNTAKE,
                &ANSWER,
                &TAKE,
                &UNTAKE,
                &PUBLISH,
                &turn,
            ]
            .concat(),
        ),
        (
            "hostile",
            96,
            [
                &desc(false, 0, 0x84, 0)[..],
                &table(300, 64, 1),
                &word(1, 1),
                &TAKE,
                &turn,
            ]
            .concat(),
        ),
    ];
    for (name, options, steps) in scenes {
        for (kind, more) in [("", 0), ("-writable", 4), ("-all", 0x93)] {
            let name = format!("iommu-{name}{kind}");
            save(
                target,
                &name,
                &[&[size, options | more], &steps[..]].concat(),
            );
        }
        let flat = [&[size | 0x80, options | 12], &steps[..]].concat();
        save(target, &format!("iommu-{name}-flat"), &flat);
    }
}

/// A driver's queue: all buffers go and come; then what no switch may do.
pub(crate) fn driver() {
    let submit = |id: u8| [vec![0], vec![id, 0, 0, 99, 0, 1]].concat();
    let back = |id: u8, len: u8| [vec![3], vec![id, len, 0]].concat();
    let (take, arm) = (vec![1], vec![2]);
    let element = |id: u8| [vec![4], vec![0, id, 0, 0, 0, 9, 0, 0, 0]].concat();
    let index = |value: u8| [vec![5], vec![value, 0]].concat();
    let scribble = |at: u8| [vec![6], vec![at, 0, 0xff, 0xff]].concat();
    let all: Vec<u8> = (0..8).flat_map(submit).collect();
    let backs: Vec<u8> = (0..8).rev().flat_map(|id| back(id, 12)).collect();
    let turn = [all.clone(), arm.clone(), backs, take.clone()].concat();
    for (name, from_switch) in [("to", 0), ("from", 1)] {
        let parts: [(&str, Vec<u8>); 6] = [
            ("turns", turn.repeat(3)),
            (
                "twice",
                [submit(3), submit(4), back(3, 5), back(3, 5), take.clone()].concat(),
            ),
            ("long", [submit(3), back(3, 101), take.clone()].concat()),
            ("ahead", [submit(3), index(2), arm.clone()].concat()),
            (
                "garbage",
                [all.clone(), element(200), index(1), take.clone()].concat(),
            ),
            (
                "scribble",
                [turn.clone(), scribble(90), scribble(3), take.clone()].concat(),
            ),
        ];
        for (what, bytes) in parts {
            save(
                "driver_queue",
                &format!("{name}-{what}"),
                &[&[from_switch], &bytes[..]].concat(),
            );
        }
    }
}
