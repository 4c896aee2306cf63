//! The programs in the kernel, beside the oracle: they need the rights to load programs, and are
//! skipped without.

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bpf::{Attribute, Command};
use mapping::SharedWords;
use offload::layout::SIZE;
use offload::{Action, ConnectionFilter, Conversation, Page, Table, connections};
use testkit::packets::{self, Flow};
use wire::hash::SplitMix64;
use wire::packet::ParsedHeaders;
use wire::{FlowKey, FlowMask};

use super::{PrefilterError, TableMap, connection_filter, run};

/// Verdict of an XDP program that ends a frame.
const XDP_DROP: u32 = 1;

struct Programs {
    xdp: OwnedFd,
    socket: OwnedFd,
    memory: SharedWords<SIZE>,
    connections: SharedWords<{ connections::SIZE }>,
}

impl Programs {
    /// `None` without the rights.
    fn load() -> Option<Self> {
        let table = match TableMap::new() {
            Err(PrefilterError::Load(bpf::LoadError::Rights(_))) => {
                eprintln!("skipped: this needs CAP_BPF and CAP_PERFMON");
                return None;
            }
            table => table.unwrap(),
        };
        // `BPF_MAP_TYPE_XSKMAP`, bytes of a key and a value, entries.
        let sockets = Attribute::new(&[17, 4, 4, 1])
            .make(Command::MapCreate)
            .unwrap();
        let connections = connection_filter().unwrap();
        let of_sockets = table.socket_program(connections.as_fd());
        let xdp = table.xdp_program(connections.as_fd(), sockets.as_fd());
        Some(Self {
            xdp: xdp.unwrap(),
            socket: of_sockets.unwrap(),
            connections: SharedWords::map(connections.as_fd(), true).unwrap(),
            memory: SharedWords::map(table.as_fd(), true).unwrap(),
        })
    }

    fn table(&self) -> Table<&SharedWords<SIZE>, ()> {
        let table = Table::adopt(&self.memory, 0x5eed_5eed_5eed_5eed).unwrap();
        table.set_lease(u64::MAX);
        table
    }

    /// Returns whether both programs end a frame, which must be in agreement.
    fn end(&self, frame: &[u8]) -> bool {
        let by_xdp = run(self.xdp.as_fd(), frame).unwrap() == XDP_DROP;
        // Under test, its length is counted from the IP header on.
        let mut longer = frame.to_vec();
        longer.extend_from_slice(&[0; 14]);
        match run(self.socket.as_fd(), &longer) {
            Ok(verdict) => assert_eq!(by_xdp, verdict == 0, "{frame:02x?}"),
            // Some kernels test no program on a frame that ends within its IP header.
            Err(error) if error.kind() == ErrorKind::InvalidInput => assert!(!by_xdp),
            Err(error) => panic!("{error}: {frame:02x?}"),
        }
        by_xdp
    }
}

fn key_of(frame: &[u8]) -> FlowKey {
    FlowKey::new(0, &ParsedHeaders::parse(frame, frame.len()))
}

fn is_plain(frame: &[u8]) -> bool {
    offload::is_plain(&ParsedHeaders::parse(frame, frame.len()))
}

/// Pseudo-random frames with few different values: many agree in many fields.
struct Frames(SplitMix64);

impl Frames {
    fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// Returns a whole frame of any kind.
    fn whole(&mut self) -> Vec<u8> {
        let (a, b) = (self.below(4) as u8, self.below(4) as u8);
        let flow = match self.below(2) {
            0 => Flow::v4(a, b),
            _ => Flow::v6(a, b),
        };
        let flow = flow.ports(self.one_of(&[0, 53, 1000]), self.one_of(&[53, 80, 65535]));
        let payload = vec![0xa5; self.below(64) as usize];
        let frame = match self.below(6) {
            0..2 => packets::udp(&flow, &payload),
            2..4 => packets::tcp(&flow, 7, &payload),
            4 => packets::echo_request(&flow, 1, 2, &payload),
            _ => packets::arp_request(
                [2, 0, 0, 0, 0, a],
                [10, 0, 0, a].into(),
                [10, 0, 0, b].into(),
            ),
        };
        match self.below(4) {
            0 => packets::vlan_tagged(&frame, self.one_of(&[0, 5, 0xe005])),
            _ => frame,
        }
    }

    /// Returns a frame; most have some bytes changed, and some end too soon or too late.
    fn next(&mut self) -> Vec<u8> {
        let mut frame = self.whole();
        for _ in 0..self.below(3) {
            // The headers.
            let at = self.below(64.min(frame.len() as u64)) as usize;
            frame[at] = match self.below(3) {
                0 => self.0.number() as u8,
                1 => frame[at] ^ 1 << self.below(8),
                _ => self.one_of(&[0, 1, 5, 6, 17, 44, 58, 0x45, 0x46, 0x60, 0x81, 0x88, 0xff]),
            };
        }
        match self.below(8) {
            0 => frame.truncate(14 + self.below(frame.len() as u64 - 13) as usize),
            1 => frame.resize(frame.len() + self.below(32) as usize, 0),
            _ => {}
        }
        frame
    }

    /// Returns any mask of the kind that decisions have.
    fn mask(&mut self) -> FlowMask {
        let mut mask = FlowMask::NONE.with_ethertype();
        for step in 0..7 {
            if self.below(2) == 0 {
                continue;
            }
            let bits = self.0.number();
            mask = match step {
                0 => mask.with_vlan().with_dmac(),
                1 => mask.with_smac(),
                2 => mask.with_ip_proto(),
                3 => mask.with_src_ip_bits(u128::MAX << (bits % 128)),
                4 => mask.with_dst_ip(),
                5 => mask.with_l4_dst_bits(0xffff << (bits % 16)).with_state(),
                _ => mask.with_l4_flags_bits(bits as u16),
            };
        }
        mask
    }
}

/// A filter, and the conversations that are raised in it.
struct Known<'a> {
    memory: &'a SharedWords<{ connections::SIZE }>,
    filter: ConnectionFilter<&'a SharedWords<{ connections::SIZE }>>,
    raised: Vec<Conversation>,
}

impl<'a> Known<'a> {
    fn new(memory: &'a SharedWords<{ connections::SIZE }>) -> Self {
        Self {
            memory,
            filter: ConnectionFilter::new(memory),
            raised: Vec::new(),
        }
    }

    /// Opens a connection, ends one, or begins anew as another switch does.
    fn change(&mut self, frames: &mut Frames) {
        match frames.below(16) {
            0 => {
                self.filter = ConnectionFilter::begin(self.memory, frames.0.number()).unwrap();
                self.raised.iter().for_each(|of| self.filter.raise(of));
                if frames.below(8) != 0 {
                    self.filter.publish();
                }
            }
            1..9 => {
                let of = Conversation::of(&key_of(&frames.whole()));
                self.filter.raise(&of);
                self.raised.push(of);
            }
            _ if self.raised.is_empty() => {}
            _ => {
                let at = frames.below(self.raised.len() as u64) as usize;
                self.filter.lower(&self.raised.swap_remove(at));
            }
        }
    }

    /// Returns whether a frame may be of a known connection; a frame of one that was raised may.
    fn may_be(&self, key: &FlowKey) -> bool {
        let of = Conversation::of(key);
        let may_be = self.filter.may_know(&of);
        let hash = |of: &Conversation| of.hash(0);
        let is_raised = self.raised.iter().any(|raised| hash(raised) == hash(&of));
        assert!(may_be || !is_raised, "{key:?}");
        may_be
    }
}

/// A million in `make test-long`.
fn number_of_frames() -> usize {
    match testkit::is_complete_run() {
        true => 1_000_000,
        false => 100_000,
    }
}

#[test]
fn the_programs_end_the_frames_that_the_oracle_finds_and_no_others() {
    let Some(programs) = Programs::load() else {
        return;
    };
    let mut table = programs.table();
    let page = Page::new(&programs.memory);
    let mut frames = Frames(SplitMix64(1));
    let (mut ended, mut passed, mut now) = (0, 0, Duration::ZERO);
    let mut let_through = 0;
    let mut known = Known::new(&programs.connections);
    for n in 0..number_of_frames() {
        if n % 64 == 0 {
            now += offload::REST;
            table.retain(now, |entry| now - entry.added < 8 * offload::REST);
            let of = key_of(&frames.whole());
            // Refused if there is one already, or if there are too many masks.
            let action = frames.one_of(&[Action::Drop, Action::DropNew]);
            let _ = table.add_with(now, (&of, &frames.mask()), action, ());
        }
        if n % 256 == 0 {
            known.change(&mut frames);
        }
        let frame = frames.next();
        let key = key_of(&frame);
        let ends = |action| action == Action::Drop || !known.may_be(&key);
        let hit = page.look_up(&key, 0).filter(|_| is_plain(&frame));
        let expected = hit.is_some_and(|hit| ends(hit.action));
        let_through += u64::from(hit.is_some() && !expected);
        assert_eq!(programs.end(&frame), expected, "{frame:02x?}");
        *if expected { &mut ended } else { &mut passed } += 1;
    }
    assert!(
        ended > passed / 20 && passed > ended / 20,
        "{ended} and {passed}"
    );
    assert!(let_through > 200, "{let_through}");
    // Each was ended by both programs.
    assert_eq!(table.total().frames, 2 * ended);
}

#[test]
fn a_table_of_other_programs_is_left_alone() {
    let connections = match super::connection_filter() {
        Err(PrefilterError::Load(bpf::LoadError::Rights(_))) => {
            eprintln!("skipped: this needs CAP_BPF and CAP_PERFMON");
            return;
        }
        connections => connections.unwrap(),
    };
    let prefilter = super::Prefilter::load(connections.as_fd()).unwrap();
    assert!(prefilter.is_current());
    prefilter.clear().unwrap();
    let memory = SharedWords::<SIZE>::map(prefilter.table(), true).unwrap();
    let number = memory.word(offload::layout::LAYOUT_AT);
    let other = offload::layout::LAYOUT + 1;
    number.store(other, Relaxed);
    assert!(!prefilter.is_current() && prefilter.clear().is_err());
    assert_eq!(number.load(Relaxed), other);
}

#[test]
fn the_lease_ends_and_a_table_without_entries_passes_all() {
    let Some(programs) = Programs::load() else {
        return;
    };
    let mut table = programs.table();
    let frame = packets::udp(&Flow::v4(1, 2), &[0; 18]);
    let mask = FlowMask::NONE.with_ethertype();
    assert!(!programs.end(&frame));
    let slot = table
        .add_with(Duration::ZERO, (&key_of(&frame), &mask), Action::Drop, ())
        .unwrap();
    assert!(programs.end(&frame));
    table.set_lease(0);
    assert!(!programs.end(&frame));
    let now = sys::time::monotonic().as_nanos() as u64;
    table.set_lease(now);
    // The clock of programs may be a tick behind.
    std::thread::sleep(Duration::from_millis(20));
    assert!(!programs.end(&frame));
    table.set_lease(now + 60_000_000_000);
    assert!(programs.end(&frame));
    table.remove(slot, Duration::ZERO);
    assert!(!programs.end(&frame));
}

#[test]
fn keys_of_frames_without_an_entry_are_sampled() {
    let Some(programs) = Programs::load() else {
        return;
    };
    let mut table = programs.table();
    let frame = |n: u16| packets::udp(&Flow::v4(1, 2).ports(n, 53), &[0; 18]);
    let mask = FlowMask::NONE.with_l4_src();
    table
        .add_with(
            Duration::ZERO,
            (&key_of(&frame(0)), &mask),
            Action::Drop,
            (),
        )
        .unwrap();
    assert_eq!(table.take_samples(), (Vec::new(), 0));
    table.sample(2);
    for n in 0..=40 {
        // By both programs.
        assert_eq!(programs.end(&frame(n)), n == 0);
    }
    let (keys, frames) = table.take_samples();
    assert_eq!(frames, 80, "those that meet an entry are none");
    // One of four; the test may move to another CPU.
    assert!((16..=20).contains(&keys.len()), "{}", keys.len());
    let sent: Vec<_> = (1..=40).map(|n| key_of(&frame(n))).collect();
    assert!(keys.iter().all(|key| sent.contains(key)));
    programs.end(&frame(41));
    assert_eq!(table.take_samples(), (Vec::new(), 0), "it has ended");
    table.sample(0);
    for n in 0..500 {
        programs.end(&frame(1 + n % 100));
    }
    let (keys, frames) = table.take_samples();
    assert_eq!(frames, 1000);
    assert!((64..=1000).contains(&keys.len()), "the last ones of a CPU");
}

#[test]
fn no_contents_of_the_table_crash_a_program() {
    let Some(programs) = Programs::load() else {
        return;
    };
    let mut frames = Frames(SplitMix64(2));
    let page = Page::new(&programs.memory);
    for _ in 0..200 {
        for word in (0..4096).step_by(8) {
            let value = frames.0.number();
            programs.memory.word(word).store(value, Relaxed);
        }
        for word in (8..128).step_by(8) {
            let value = frames.0.number();
            programs.connections.word(word).store(value, Relaxed);
        }
        for _ in 0..64 {
            let at = 4096 + 8 * frames.below((SIZE as u64 - 4096) / 8) as usize;
            programs.memory.word(at).store(frames.0.number(), Relaxed);
        }
        for _ in 0..32 {
            let frame = frames.next();
            let found = page.look_up(&key_of(&frame), 0);
            assert!(found.is_none() || is_plain(&frame));
            programs.end(&frame);
        }
    }
}
