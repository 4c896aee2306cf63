//! The memory file of a dead switch, with any words changed: another process's view of it stays in
//! its bounds and shows sound connections only; a successor comes up, finds the connection of each
//! tuple or none, and its accounts add up; it opens and forgets connections as an empty table
//! does.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arbitrary::{Result, Unstructured};
use conntrack::judgement::Ingress;
use conntrack::packet::{Message, Packet, Reading};
use conntrack::table::{
    Account, Connection, Kind, Layout, MAX_PORTS, MIN_CAPACITY, Reader, Rule, Table, Walk,
};
use conntrack::tracker::{CommitResult, Tracker};
use conntrack::{Settings, Tuple};
use mapping::Mapping;

const LAYOUT: Layout = Layout::new(MIN_CAPACITY);
/// Connections that the dead switch had.
const CONNECTIONS: u16 = 60;
/// Changed words of a run.
const CHANGES: usize = 200;
/// Words of the header.
const HEADER: usize = 8;

fn frame(number: u16) -> Reading {
    let end = |last: u8| IpAddr::from([10, 0, 0, last]);
    let tuple = Tuple::new(number % 2, 17, (end(1), number), (end(2), 53));
    Reading::Packet(Packet {
        tuple,
        message: Message::Udp,
        piece: None,
    })
}

/// The words of the memory.
fn words(memory: &Mapping) -> &[AtomicU64] {
    // SAFETY: the heap memory is page-aligned, its words are used as atomics alone, and it lives
    // as long as the reference.
    unsafe { std::slice::from_raw_parts(memory.as_ptr().cast(), memory.len() / 8) }
}

/// Opens the connection of a number.
fn open(tracker: &mut Tracker, settings: &Settings, number: u16, now: u32) -> CommitResult {
    let from = Ingress {
        port: number % 5,
        is_home: false,
        ..Ingress::default()
    };
    let read = frame(number);
    let mut tracking = tracker.begin(settings, now);
    let probe = tracking.probe(&read);
    tracking.commit(&read, probe, (from, None), Rule::default())
}

/// Returns whether a connection has a tuple of a number, in any direction.
fn is_of(connection: &Connection, number: u16) -> bool {
    let Reading::Packet(packet) = frame(number) else {
        return false;
    };
    [packet.tuple, packet.tuple.reversed()].contains(&connection.tuple)
}

/// Changes words: most of those in use, by one bit, to another word or to any.
fn change(memory: &Mapping, u: &mut Unstructured<'_>) -> Result<()> {
    let all = words(memory);
    let used: Vec<usize> = (0..all.len())
        .filter(|at| all[*at].load(Relaxed) != 0)
        .collect();
    for _ in 0..CHANGES {
        if u.is_empty() {
            break;
        }
        let kind: u8 = u.arbitrary()?;
        let at = match kind & 7 {
            0 => u.choose_index(all.len())?,
            1 => u.choose_index(HEADER)?,
            _ => used[u.choose_index(used.len())?],
        };
        let value = match kind >> 3 & 3 {
            0 => u.arbitrary()?,
            1 => all[used[u.choose_index(used.len())?]].load(Relaxed),
            2 => 0,
            _ => all[at].load(Relaxed) ^ 1 << u.int_in_range(0..=63)?,
        };
        all[at].store(value, Relaxed);
    }
    Ok(())
}

/// Checks that accounts are those of the connections.
fn check(table: &Table, connections: &[Connection]) {
    let mut ports: HashMap<u16, u32> = HashMap::new();
    for connection in connections {
        // No port is a guest's, so openers pay, but for what a dead switch has charged.
        *ports.entry(connection.charged().port).or_default() += 1;
    }
    for port in 0..MAX_PORTS as u16 {
        let of = |kind| table.counts(Account { port, kind }).all;
        let expected = ports.get(&port).copied().unwrap_or(0);
        assert_eq!(of(Kind::Opened) + of(Kind::OpenedTo), expected);
    }
}

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let settings = Settings::default();
    let memory = Arc::new(Mapping::heap(LAYOUT.bytes()));
    let then = 1000;
    let (table, adopted) = Table::adopt(memory.clone(), LAYOUT, 5, then).expect("its length");
    assert!(adopted.is_new);
    let mut tracker = Tracker::new(&table).expect("a slot");
    for number in 0..CONNECTIONS {
        open(&mut tracker, &settings, number, then);
    }
    drop((tracker, table));
    let now = u
        .arbitrary()
        .map_or(then, |wait: u16| then + u32::from(wait) % 40_000);
    let _ = change(&memory, &mut u);

    let time = (&settings, now);
    if let Ok(reader) = Reader::over(memory.clone(), LAYOUT) {
        let (mut walk, mut seen) = (Walk::default(), 0);
        while !reader.read(&mut walk, 100, time, |_, _| seen += 1).finished {}
        assert!(seen <= LAYOUT.capacity());
    }
    let (table, adopted) = Table::adopt(memory, LAYOUT, 6, now).expect("its length");
    let mut walker = table.walker().expect("a slot");
    let mut all = Vec::new();
    walker.walk(&mut Walk::default(), usize::MAX, time, |connection| {
        all.push(*connection);
        true
    });
    assert!(all.len() <= adopted.connections as usize);
    check(&table, &all);
    let mut tracker = Tracker::new(&table).expect("a slot");
    for number in 0..2 * CONNECTIONS {
        match open(&mut tracker, &settings, number, now) {
            CommitResult::Opened(_) | CommitResult::Renewed(_) => {}
            // One whose words were changed has the frame come from the side that answers.
            CommitResult::Passed(_) if all.iter().any(|one| is_of(one, number)) => {}
            other => panic!("{other:?}"),
        }
    }
    drop(tracker);
    walker.walk(&mut Walk::default(), usize::MAX, time, |_| false);
    assert!(table.is_empty());
}
