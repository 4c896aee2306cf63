//! Messages in any order, with any content: no panic, no memory without bound, and session and back
//! end agree.

use proptest::prelude::*;

use super::*;
use crate::MAX_REGIONS;

/// One message of a random client.
#[derive(Clone, Debug)]
enum Act {
    Init { id: u32, secret: bool },
    Region { index: u16, size: u64, file: u64 },
    Ring(AddRing),
    Connect,
    Sent,
    Settled,
    Fault(u16),
    Any(u32, Vec<u8>, usize),
}

fn add_ring() -> impl Strategy<Value = AddRing> {
    let offsets = prop_oneof![Just(0), Just(0x800), any::<u32>()];
    (0..4_u16, 0..3_u16, 0..2_u16, offsets, 0..14_u8, 0..20_u16).prop_map(
        |(flags, index, region, offset, log2_size, private)| AddRing {
            flags,
            index,
            region,
            offset,
            log2_size,
            private_header: private.saturating_sub(18),
        },
    )
}

fn act() -> impl Strategy<Value = Act> {
    let sizes = prop_oneof![Just(SIZE), Just(4096), any::<u64>()];
    prop_oneof![
        2 => (6..8_u32, any::<bool>()).prop_map(|(id, secret)| Act::Init { id, secret }),
        2 => (0..20_u16, sizes, 0..SIZE * 2)
            .prop_map(|(index, size, file)| Act::Region { index, size, file }),
        2 => Just(Act::Region { index: 0, size: SIZE, file: SIZE }),
        4 => add_ring().prop_map(Act::Ring),
        2 => any::<bool>().prop_map(|from| Act::Ring(ring(from))),
        2 => Just(Act::Connect),
        2 => Just(Act::Sent),
        1 => Just(Act::Settled),
        1 => (0..6_u16).prop_map(Act::Fault),
        1 => (0..12_u32, proptest::collection::vec(any::<u8>(), 0..200), 0..3_usize)
            .prop_map(|(code, payload, fds)| Act::Any(code, payload, fds)),
    ]
}

fn perform(rig: &mut Rig, act: Act) {
    let answer = match act {
        Act::Init { id, secret } => {
            let secret = if secret { SECRET.into() } else { Vec::new() };
            let init = testkit::memif::Spec {
                id,
                secret,
                ..spec()
            };
            rig.send(code::INIT, init.init(), None)
        }
        Act::Region { index, size, file } => {
            let file = if file == SIZE {
                rig.file.try_clone().expect("a descriptor")
            } else {
                memfd(file)
            };
            rig.send(code::ADD_REGION, add_region(index, size), Some(file))
        }
        Act::Ring(add) => rig.send(code::ADD_RING, add.payload(), Some(event())),
        Act::Connect => rig.send(code::CONNECT, name("any"), None),
        Act::Sent => {
            rig.session.sent(&mut rig.backend);
            return;
        }
        Act::Settled => return rig.session.settled(),
        Act::Fault(index) => {
            return rig.session.queue_failed(index, "a fault", &mut rig.backend);
        }
        Act::Any(code, payload, fds) => {
            let message = Message {
                code,
                need_reply: false,
                payload,
            };
            let fds = (0..fds).map(|_| event()).collect();
            rig.session.handle(message, fds, &mut rig.backend)
        }
    };
    match answer {
        Ok(reply) => assert!(reply.is_some(), "every message is answered"),
        Err(fault) => assert!(!fault.to_string().is_empty()),
    }
}

fn check(rig: &Rig) {
    let info = rig.session.info();
    assert!(info.regions <= usize::from(MAX_REGIONS));
    assert_eq!(info.queues.len(), 4);
    let running = info.queues.iter().filter(|q| q.running).map(|q| q.index);
    assert!(running.eq(rig.backend.running.keys().copied()));
    assert!(rig.backend.running.is_empty() || rig.session.is_connected());
    assert!(files(rig) <= 16 + 4);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn messages_in_any_order(acts in proptest::collection::vec(act(), 0..40), restored: bool) {
        let mut rig = Rig::fresh();
        rig.session.again = restored;
        for act in acts {
            perform(&mut rig, act);
            check(&rig);
        }
        // Whatever was said, its record is one that a successor accepts.
        let (record, _) = rig.session.record();
        let mut backend = Recorder::default();
        let kept = std::mem::take(&mut rig.backend.kept);
        let session = Session::restore(offer(), &record, kept, &mut backend);
        prop_assert_eq!(session.expect("a record").record().0, record);
        rig.session.close(&mut rig.backend);
        prop_assert!(rig.backend.running.is_empty() && rig.backend.memory.is_none());
    }
}

#[test]
fn a_closed_session_holds_no_descriptor() {
    let mut rig = Rig::connected();
    rig.session.close(&mut rig.backend);
    assert_eq!(files(&rig), 0);
    assert_eq!(rig.session.info().memory_bytes, 0);
}
