use proptest::prelude::*;

use super::*;
use crate::model::{ModelChain, ModelDevice};

fn pair(options: QueueOptions) -> (GuestRam, DriverQueue, ModelDevice) {
    let ram = GuestRam::small(4 << 20);
    let driver = DriverQueue::new(&ram, options);
    let device = ModelDevice::new(ram.clone(), options, driver.addrs());
    (ram, driver, device)
}

fn all(size: u16) -> Vec<QueueOptions> {
    let mut every = Vec::new();
    for layout in [Layout::Split, Layout::Packed] {
        for bits in 0..4 {
            every.push(QueueOptions {
                layout,
                size,
                event_idx: bits & 1 != 0,
                in_order: bits & 2 != 0,
            });
        }
    }
    every
}

fn pieces(ram: &GuestRam, lens: &[u32]) -> Vec<Piece> {
    lens.iter()
        .map(|len| Piece::new(ram.alloc(u64::from(*len), 1), *len))
        .collect()
}

#[test]
fn a_buffer_goes_there_and_back_in_every_shape() {
    for options in all(8) {
        for shape in [
            Shape::Direct,
            Shape::Indirect,
            Shape::Mixed(1),
            Shape::Mixed(2),
        ] {
            let (ram, mut driver, mut device) = pair(options);
            let (readable, writable) = (pieces(&ram, &[12, 3]), pieces(&ram, &[7, 100]));
            ram.write(readable[0].gpa, b"hello, devic");
            ram.write(readable[1].gpa, b"e!!");
            let id = driver.add(&readable, &writable, shape, 77).expect("room");
            assert!(device.pop().is_none(), "staged is not visible");
            assert_eq!(driver.publish(), 1);
            let chain = device.pop().expect("a buffer");
            assert_eq!(chain.read(&ram), b"hello, device!!");
            assert_eq!((chain.id, chain.writable.clone()), (id, writable));
            assert_eq!(chain.write(&ram, &[5; 20]), 20);
            assert_eq!(driver.poll(), Ok(None));
            device.push(&chain, 20);
            assert_eq!(driver.used_waiting(), 1);
            let used = driver.poll().expect("no fault").expect("used");
            assert_eq!(
                used,
                Used {
                    id,
                    token: 77,
                    len: 20,
                    implied: false
                }
            );
            assert_eq!((driver.free(), driver.outstanding()), (8, 0));
            assert_eq!(driver.drained_base(), device.base());
        }
    }
}

#[test]
fn a_full_ring_refuses() {
    for options in all(4) {
        let (ram, mut driver, mut device) = pair(options);
        let three = pieces(&ram, &[1, 1, 1]);
        assert!(driver.add(&three, &[], Shape::Direct, 0).is_some());
        assert!(driver.add(&three[..2], &[], Shape::Direct, 1).is_none());
        assert!(driver.add(&three, &[], Shape::Indirect, 2).is_some());
        assert_eq!(driver.publish(), 2);
        assert_eq!(driver.free(), 0);
        let first = device.pop().expect("first");
        device.push(&first, 0);
        assert_eq!(driver.poll().expect("fine").map(|u| u.token), Some(0));
        assert_eq!(driver.free(), 3);
    }
}

#[test]
fn one_element_ends_an_in_order_batch() {
    for options in all(8).into_iter().filter(|o| o.in_order) {
        let (ram, mut driver, mut device) = pair(options);
        for lap in 0..10 {
            let buffer = pieces(&ram, &[10, 20]);
            for token in 0..3 {
                driver
                    .add(&[], &buffer, Shape::Direct, token + lap)
                    .expect("room");
            }
            driver.publish();
            let chains: Vec<ModelChain> = std::iter::from_fn(|| device.pop()).collect();
            device.push_batch(&chains, 4);
            assert_eq!(driver.used_waiting(), 3);
            let used: Vec<Used> = std::iter::from_fn(|| driver.poll().expect("fine")).collect();
            let lens: Vec<(u64, u32, bool)> = used
                .iter()
                .map(|u| (u.token - lap, u.len, u.implied))
                .collect();
            assert_eq!(lens, [(0, 30, true), (1, 30, true), (2, 4, false)]);
            assert_eq!(driver.free(), 8);
        }
    }
}

#[test]
fn device_faults_have_names() {
    for options in all(8).into_iter().filter(|o| !o.in_order) {
        let (ram, mut driver, mut device) = pair(options);
        let one = pieces(&ram, &[10]);
        driver.add(&[], &one, Shape::Direct, 0);
        driver.add(&one, &[], Shape::Direct, 0);
        driver.publish();
        let (first, second) = (device.pop().expect("1"), device.pop().expect("2"));
        device.push(&first, 11);
        assert_eq!(
            driver.poll(),
            Err(UsedFault::TooLong {
                len: 11,
                writable: 10
            })
        );
        let _ = second;
    }
    let (ram, mut driver, mut device) = pair(QueueOptions::new(Layout::Split, 8));
    driver.add(&pieces(&ram, &[10]), &[], Shape::Direct, 0);
    driver.publish();
    let chain = device.pop().expect("a buffer");
    device.push(&chain, 1);
    assert_eq!(driver.poll(), Err(UsedFault::WroteReadOnly(1)));
    driver.poke_used_ring(0, 6, 0);
    assert_eq!(driver.poll(), Err(UsedFault::UnknownId(6)));
    driver.poke_used_idx(2);
    assert_eq!(
        driver.poll(),
        Err(UsedFault::Ahead {
            ahead: 2,
            outstanding: 1
        })
    );
}

#[test]
fn raw_chains_keep_their_flags() {
    let (_, mut driver, _) = pair(QueueOptions::new(Layout::Packed, 8));
    let raw = |flags| RawDesc {
        gpa: 0x1234,
        len: 0,
        flags,
    };
    driver
        .add_raw(
            &[raw(DESC_NEXT | DESC_WRITE), raw(DESC_NEXT | DESC_INDIRECT)],
            0,
        )
        .expect("room");
    driver.publish();
    assert_eq!(
        driver.peek_packed(0).flags,
        DESC_NEXT | DESC_WRITE | DESC_AVAIL
    );
    assert_eq!(
        driver.peek_packed(1).flags,
        DESC_NEXT | DESC_INDIRECT | DESC_AVAIL
    );
    let (_, mut driver, _) = pair(QueueOptions::new(Layout::Split, 8));
    let head = driver
        .add_raw(&[raw(DESC_NEXT), raw(DESC_NEXT)], 0)
        .expect("room");
    let first = driver.peek_desc(head);
    assert_eq!((first.gpa, first.flags), (0x1234, DESC_NEXT));
    driver.poke_desc(
        first.next,
        SplitDesc {
            next: head,
            ..driver.peek_desc(first.next)
        },
    );
    assert_eq!(driver.peek_desc(first.next).next, head);
}

/// One step of a random run.
#[derive(Clone, Copy, Debug)]
enum Step {
    Add { pieces: usize, shape: Shape },
    Publish,
    Take,
    Use(usize),
    Poll,
    Kicks(bool),
    Calls(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let shape = prop_oneof![
        Just(Shape::Direct),
        Just(Shape::Indirect),
        Just(Shape::Mixed(1))
    ];
    prop_oneof![
        4 => (1usize..4, shape).prop_map(|(pieces, shape)| Step::Add { pieces, shape }),
        2 => Just(Step::Publish),
        4 => Just(Step::Take),
        4 => any::<usize>().prop_map(Step::Use),
        4 => Just(Step::Poll),
        1 => any::<bool>().prop_map(Step::Kicks),
        1 => any::<bool>().prop_map(Step::Calls),
    ]
}

/// No side sleeps while there is work: each added buffer comes back exactly once, and each side is
/// notified whenever it requested so.
fn run(options: QueueOptions, steps: &[Step]) {
    let (ram, mut driver, mut device) = pair(options);
    let buffer = pieces(&ram, &[5, 6, 7]);
    let (mut taken, mut expected, mut back) = (Vec::<ModelChain>::new(), 0u64, Vec::new());
    let (mut kicks, mut calls) = (true, true);
    let mut armed = false;
    device.want_kicks(true);
    driver.set_notifications(true);
    for step in steps {
        match *step {
            Step::Add { pieces, shape } => {
                if driver
                    .add(&[], &buffer[..pieces], shape, expected)
                    .is_some()
                {
                    expected += 1;
                }
            }
            Step::Publish => {
                let count = driver.publish();
                let kick = driver.needs_kick();
                assert!(kicks || !kick, "kicked although declined");
                assert!(
                    !armed || count == 0 || kick,
                    "asked for a kick and got none"
                );
                armed &= !kick;
            }
            Step::Take => taken.extend(device.pop()),
            Step::Use(which) if !taken.is_empty() => {
                let at = if options.in_order {
                    0
                } else {
                    which % taken.len()
                };
                let chain = taken.remove(at);
                device.push(&chain, 5);
                let call = device.needs_notify();
                assert!(calls || !call, "called although declined");
            }
            Step::Use(_) => {}
            Step::Poll => back.extend(driver.poll().expect("a correct device")),
            Step::Kicks(on) => {
                device.want_kicks(on);
                kicks = on;
                armed = on && device.pop().map(|c| taken.push(c)).is_none();
            }
            Step::Calls(on) => {
                driver.set_notifications(on);
                calls = on;
            }
        }
    }
    driver.publish();
    taken.extend(std::iter::from_fn(|| device.pop()));
    taken.iter().for_each(|chain| device.push(chain, 5));
    assert_eq!(
        usize::from(driver.used_waiting()),
        taken.len() + usize::from(driver.outstanding()) - taken.len()
    );
    back.extend(std::iter::from_fn(|| {
        driver.poll().expect("a correct device")
    }));
    let mut tokens: Vec<u64> = back.iter().map(|u| u.token).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (0..expected).collect::<Vec<_>>());
    assert_eq!((driver.free(), driver.outstanding()), (options.size, 0));
    assert_eq!(driver.drained_base(), device.base());
}

proptest! {
    #[test]
    fn nothing_is_lost_and_no_wakeup_is_missed(
        steps in proptest::collection::vec(step(), 0..400),
        which in 0usize..8,
    ) {
        run(all(8)[which], &steps);
    }

    #[test]
    fn a_packed_ring_need_not_be_a_power_of_two(
        steps in proptest::collection::vec(step(), 0..400),
        which in 4usize..8,
        size in 3u16..13,
    ) {
        run(all(size)[which], &steps);
    }
}
