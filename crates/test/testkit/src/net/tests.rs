use super::*;
use crate::features::{ALL_OFFLOADS, VERSION_1};
use crate::model::ModelDevice;
use crate::packets::{Flow, tcp_super, udp, verify_partial};

struct Rig {
    nic: NetPair,
    from_guest: ModelDevice,
    to_guest: ModelDevice,
}

impl Rig {
    fn new(options: NetOptions) -> Self {
        let ram = GuestRam::small(16 << 20);
        let nic = NetPair::new(&ram, options);
        let device =
            |queue: &DriverQueue| ModelDevice::new(ram.clone(), queue.options(), queue.addrs());
        Self {
            from_guest: device(&nic.tx),
            to_guest: device(&nic.rx),
            nic,
        }
    }

    /// Delivers a packet over as many buffers as it takes; `num_buffers` as given, or right.
    fn deliver(&mut self, frame: &[u8], header: NetHeader, claim: Option<u16>) {
        let ram = self.to_guest.ram.clone();
        let size = self.nic.options.rx_buffers.size() as usize;
        let header_len = self.nic.options.header();
        let needed = (frame.len() + header_len).div_ceil(size);
        let num_buffers = claim.unwrap_or(needed as u16);
        let bytes = [
            &NetHeader {
                num_buffers,
                ..header
            }
            .to_bytes()[..header_len],
            frame,
        ]
        .concat();
        for part in bytes.chunks(size) {
            let chain = self.to_guest.pop().expect("a receive buffer");
            assert_eq!(chain.write(&ram, part), part.len());
            self.to_guest.push(&chain, part.len() as u32);
        }
    }

    /// Sends everything back to the guest.
    fn echo(&mut self) {
        let ram = self.from_guest.ram.clone();
        while let Some(chain) = self.from_guest.pop() {
            let bytes = chain.read(&ram);
            self.from_guest.push(&chain, 0);
            let (head, frame) = bytes.split_at(self.nic.options.header());
            let mut header = [0; HEADER_LEN];
            header[..head.len()].copy_from_slice(head);
            self.deliver(frame, NetHeader::from_bytes(header), None);
        }
    }
}

fn all_options() -> Vec<NetOptions> {
    let cuts = [
        Cuts::Together,
        Cuts::HeaderApart,
        Cuts::Every(500),
        Cuts::At(vec![5, 9, 1]),
    ];
    let rings = [
        0,
        RING_PACKED,
        IN_ORDER,
        RING_PACKED | EVENT_IDX | INDIRECT_DESC,
        INDIRECT_DESC,
    ];
    let mut all = Vec::new();
    for (i, ring) in rings.into_iter().enumerate() {
        for (j, cut) in cuts.iter().enumerate() {
            let merge = if (i + j) % 2 == 0 { MRG_RXBUF } else { 0 };
            // A legacy driver has neither of the two.
            let modern = match ring & (RING_PACKED | IN_ORDER) {
                0 => [VERSION_1, 0][j / 2],
                _ => VERSION_1,
            };
            let mut options = NetOptions::new(modern | ALL_OFFLOADS | ring | merge, 128);
            options.shape = Shape::Indirect;
            options.tx_cuts = cut.clone();
            options.rx_cuts = if merge != 0 {
                cuts[(i + j) % 4].clone()
            } else {
                Cuts::HeaderApart
            };
            all.push(options);
        }
    }
    all
}

#[test]
fn frames_come_back_whatever_the_layout() {
    let flow = Flow::v4(1, 2);
    for options in all_options() {
        let mut rig = Rig::new(options.clone());
        rig.nic.offer();
        for round in 0..200usize {
            let small = (udp(&flow, &vec![round as u8; round]), NetHeader::default());
            let big = tcp_super(&flow, 1, &vec![7; 3000 + round], 1448);
            for (frame, header) in [small, big] {
                assert_eq!(rig.nic.send(&frame, &header), Ok(true), "{options:?}");
                rig.echo();
                let got = rig
                    .nic
                    .receive()
                    .expect("a correct device")
                    .expect("a packet");
                assert_eq!(got.frame, frame);
                assert_eq!(
                    NetHeader {
                        num_buffers: 0,
                        ..got.header
                    },
                    header
                );
                assert_eq!(verify_partial(&got.frame, &got.header), Ok(()));
                rig.nic.offer();
            }
        }
        assert_eq!(rig.nic.receive(), Ok(None));
    }
}

#[test]
fn broken_duties_have_names() {
    let options = NetOptions::new(VERSION_1 | MRG_RXBUF, 16);
    let fresh = || {
        let mut rig = Rig::new(options.clone());
        rig.nic.offer();
        rig
    };
    let frame = vec![0; 100];
    let mut rig = fresh();
    rig.deliver(&frame, NetHeader::default(), Some(0));
    assert_eq!(rig.nic.receive(), Err(NicFault::NumBuffers(0)));
    let mut rig = fresh();
    rig.deliver(&vec![0; 2048 - HEADER_LEN], NetHeader::default(), Some(2));
    assert_eq!(
        rig.nic.receive(),
        Err(NicFault::Torn {
            desired: 2,
            there: 1
        })
    );
    let mut rig = fresh();
    rig.deliver(&frame, NetHeader::default(), Some(2));
    assert_eq!(
        rig.nic.receive(),
        Err(NicFault::NotFull {
            index: 0,
            len: 112,
            size: 2048
        })
    );
    let mut rig = fresh();
    rig.deliver(
        &frame,
        NetHeader {
            flags: NEEDS_CSUM,
            ..NetHeader::default()
        },
        None,
    );
    assert!(matches!(rig.nic.receive(), Err(NicFault::Header { .. })));
    let mut rig = fresh();
    let chain = rig.to_guest.pop().expect("a buffer");
    rig.to_guest.push(&chain, 11);
    assert_eq!(rig.nic.receive(), Err(NicFault::NoHeader(11)));
}

#[test]
fn writes_between_pieces_are_noticed() {
    let mut options = NetOptions::new(VERSION_1 | MRG_RXBUF, 16);
    options.rx_cuts = Cuts::HeaderApart;
    let mut rig = Rig::new(options);
    rig.nic.offer();
    let chain = rig.to_guest.pop().expect("a buffer");
    let first = chain.writable[0];
    rig.nic.ram.write(first.gpa, &[0; 20]);
    rig.to_guest.push(&chain, 20);
    assert_eq!(
        rig.nic.receive(),
        Err(NicFault::PortSecurity(first.gpa + 12))
    );
}

#[test]
fn a_full_queue_says_so_and_a_stopped_reader_keeps_its_buffers() {
    let mut rig = Rig::new(NetOptions::new(VERSION_1 | MRG_RXBUF, 4));
    rig.nic.auto_refill = false;
    rig.nic.offer();
    for _ in 0..4 {
        assert_eq!(rig.nic.send(&[0; 60], &NetHeader::default()), Ok(true));
    }
    assert_eq!(rig.nic.send(&[0; 60], &NetHeader::default()), Ok(false));
    rig.echo();
    assert_eq!(rig.nic.send(&[0; 60], &NetHeader::default()), Ok(true));
    while rig.nic.receive().expect("fine").is_some() {}
    assert_eq!((rig.nic.offered(), rig.nic.refill()), (0, 4));
    rig.nic.reset();
    assert_eq!((rig.nic.offered(), rig.nic.tx.outstanding()), (4, 0));
}
