use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use super::*;
use crate::features::protocol;
use crate::frontend::{
    BACKEND_IOTLB_MSG, FLAG_NEED_REPLY, FLAG_REPLY, IotlbKind, IotlbMessage, VERSION, request,
};
use crate::guest_ram::RegionSpec;
use crate::wait::LIMIT;

/// A front end with an IOMMU, and a back end that acknowledges everything.
struct Scene {
    ram: GuestRam,
    iommu: Arc<Iommu>,
    _front: FrontEnd,
    /// IOTLB messages that the back end received.
    told: Receiver<IotlbMessage>,
    /// The back end's end of the channel.
    channel: FrontEnd,
}

impl Scene {
    fn new(config: IommuConfig) -> Scene {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let mut front = FrontEnd::over(ours, LIMIT).expect("a socket");
        front.protocol = protocol::REPLY_ACK;
        let (said, told) = channel();
        let (file, files) = channel::<OwnedFd>();
        thread::spawn(move || {
            let peer = FrontEnd::over(theirs, LIMIT).expect("a socket");
            while let Ok(mut message) = peer.receive() {
                message
                    .fds
                    .drain(..)
                    .for_each(|fd| file.send(fd).expect("a test"));
                if message.request == request::IOTLB_MSG {
                    let body = IotlbMessage::from_bytes(&message.body).expect("a message");
                    let _ = said.send(body);
                }
                if message.flags & FLAG_NEED_REPLY != 0 {
                    let flags = VERSION | FLAG_REPLY;
                    let _ = peer.send_raw(message.request, flags, 8, &[0; 8], &[]);
                }
            }
        });
        let plain = GuestRam::memfd(&[RegionSpec::at(0, 64 << 20)]).expect("memory");
        let iommu = Iommu::new(&plain, config);
        iommu.attach(&mut front).expect("a back end");
        let file = files.recv_timeout(LIMIT).expect("a channel");
        Scene {
            ram: plain.behind(&iommu),
            iommu,
            _front: front,
            told,
            channel: FrontEnd::over(UnixStream::from(file), LIMIT).expect("a socket"),
        }
    }

    fn ask(&self, iova: u64, perm: u8) {
        let miss = IotlbMessage {
            perm,
            kind: IotlbKind::Miss,
            ..IotlbMessage::invalidate(iova, 0)
        };
        let flags = VERSION | FLAG_NEED_REPLY;
        self.channel
            .send_raw(BACKEND_IOTLB_MSG, flags, 32, &miss.to_bytes(), &[])
            .expect("a channel");
    }

    fn reply(&self) -> u64 {
        let message = self.channel.receive().expect("a reply");
        message.u64(BACKEND_IOTLB_MSG).expect("a number")
    }

    fn told(&self) -> IotlbMessage {
        self.told.recv_timeout(LIMIT).expect("a message")
    }
}

#[test]
fn memory_is_contiguous_for_driver_and_device_only() {
    for huge in [false, true] {
        let scene = Scene::new(IommuConfig {
            huge,
            ..IommuConfig::new(Mode::Persistent)
        });
        let len = if huge { 2 * HUGE } else { 5 * PAGE };
        let addr = scene.ram.alloc(len, 16);
        let bytes: Vec<u8> = (0..len).map(|n| (n / 7) as u8).collect();
        scene.ram.write(addr, &bytes);
        let mut back = vec![0; bytes.len()];
        scene.ram.read(addr, &mut back);
        assert_eq!(back, bytes);
        let block = if huge { HUGE } else { PAGE };
        let at = |n| scene.ram.physical(addr + n * block);
        assert!((1..len / block).all(|n| at(n) != at(n - 1) + block));
        assert_eq!(
            addr.is_multiple_of(PAGE),
            huge,
            "it crosses pages where it can"
        );
        assert_eq!(
            scene.iommu.iova(addr) + len - 1,
            scene.iommu.iova(addr + len - 1)
        );
        let first = scene.told();
        assert_eq!((first.kind, first.size), (IotlbKind::Update, block));
        assert_eq!(first.user, scene.ram.user_address(at(0) - at(0) % block));
    }
}

#[test]
fn addresses_are_used_again_at_once_or_never() {
    for (iovas, again) in [(Iovas::Reused, true), (Iovas::Fresh, false)] {
        let scene = Scene::new(IommuConfig {
            iovas,
            ..IommuConfig::new(Mode::Strict)
        });
        let [a, b] = [(); 2].map(|()| scene.ram.alloc(64, 64));
        let first = scene.ram.map(a, 64, Access::Read);
        scene.ram.unmap(a);
        let second = scene.ram.map(b, 64, Access::Write);
        assert_eq!(first - first % PAGE == second - second % PAGE, again);
        let kinds = [(); 3].map(|()| scene.told());
        assert_eq!(
            kinds.map(|m| (m.kind, m.perm)),
            [
                (IotlbKind::Update, 1),
                (IotlbKind::Invalidate, 0xb2),
                (IotlbKind::Update, 2)
            ]
        );
        assert_eq!(kinds[0].iova, kinds[1].iova);
    }
}

#[test]
fn a_page_that_is_written_after_its_invalidation_is_found() {
    let scene = Scene::new(IommuConfig::new(Mode::OnDemand));
    let addr = scene.ram.alloc(2048, 64);
    let page = scene.ram.physical(addr);
    let _ = scene.ram.map(addr, 2048, Access::Write);
    assert_eq!(scene.iommu.verify(), Ok(0));
    scene.ram.unmap(addr);
    assert_ne!(scene.ram.physical(addr), page, "the driver has another");
    let watched = scene.iommu.verify().expect("nothing was written");
    assert_eq!(watched, 2, "2048 bytes cross from one page into the next");
    let mut bytes = [0; 40];
    scene.ram.read(page, &mut bytes);
    assert!(is_canary(&bytes) && !is_canary(&bytes[..7]));
    scene.ram.store_u16(page, 7);
    let fault = scene.iommu.verify().expect_err("it was written");
    assert!(fault.contains("after INVALIDATE"), "{fault}");
}

#[test]
fn invalidations_come_in_batches_or_when_pages_run_out() {
    let count = |scene: &Scene| scene.iommu.counts().invalidations;
    let scene = Scene::new(IommuConfig::new(Mode::Batched(3)));
    let buffers = [(); 3].map(|()| scene.ram.alloc(64, 64));
    let counts = buffers.map(|addr| {
        let _ = scene.ram.map(addr, 64, Access::Read);
        scene.ram.unmap(addr);
        count(&scene)
    });
    assert_eq!(counts, [0, 0, 3]);

    let scene = Scene::new(IommuConfig::new(Mode::Reuse { pages: 2 }));
    let buffers = [(); 3].map(|()| scene.ram.alloc(64, 64));
    for _ in 0..3 {
        for addr in &buffers[..2] {
            let _ = scene.ram.map(*addr, 64, Access::Read);
            scene.ram.unmap(*addr);
        }
    }
    assert_eq!((count(&scene), scene.iommu.counts().updates), (0, 2));
    let _ = scene.ram.map(buffers[2], 64, Access::Read);
    assert_eq!((count(&scene), scene.iommu.mapped()), (1, 2));
}

#[test]
fn questions_are_answered_as_mapped() {
    for answers in [Answers::Exact, Answers::Qemu] {
        let scene = Scene::new(IommuConfig {
            answers,
            ..IommuConfig::new(Mode::OnDemand)
        });
        let page = |n: u64| 0x20_0000 + n * PAGE;
        let iova = scene
            .iommu
            .map_pages(&[page(0), page(1), page(7)], Access::Read);
        scene.ask(iova + PAGE + 5, 1);
        let told = scene.told();
        let expected = match answers {
            Answers::Exact => (iova, 2 * PAGE, page(0), 1),
            Answers::Qemu => (iova + PAGE, PAGE, page(1), 3),
        };
        let user = scene.ram.user_address(expected.2);
        assert_eq!(
            (told.iova, told.size, told.user, told.perm),
            (expected.0, expected.1, user, expected.3)
        );
        assert_eq!(scene.reply(), 0);
        scene.ask(iova, 2);
        assert_eq!(scene.reply(), 1, "it may only be read");
        scene.iommu.set(iova, page(3), Access::Both);
        scene.ask(iova, 2);
        assert_eq!(
            (scene.told().user, scene.reply()),
            (scene.ram.user_address(page(3)), 0)
        );
        scene.iommu.unmap_pages(iova, 3);
        assert_eq!(scene.told().kind, IotlbKind::Invalidate);
        scene.ask(iova, 1);
        assert_eq!(scene.reply(), 1, "nothing is there");
        let counts = scene.iommu.counts();
        assert_eq!((counts.misses, counts.refused), (4, 2));
        assert_eq!(scene.iommu.take_asked().len(), 4);
    }
}

#[test]
fn answers_can_be_late_refused_doubled_or_wrong() {
    let scene = Scene::new(IommuConfig::new(Mode::OnDemand));
    let iova = scene.iommu.map_pages(&[0x20_0000], Access::Both);
    let ask = |lie| {
        scene.iommu.lie(Some(lie));
        scene.ask(iova, 1);
    };
    ask(Lie::Refused);
    assert_eq!(scene.reply(), 1);
    ask(Lie::Doubled);
    assert_eq!((scene.reply(), scene.reply()), (0, 0));
    assert_eq!(scene.told(), scene.told());
    ask(Lie::OtherPage);
    assert_eq!(scene.reply(), 0);
    assert_ne!(scene.told().iova, iova);
    ask(Lie::Late);
    while scene.iommu.counts().misses < 4 {
        thread::yield_now();
    }
    assert!(scene.told.try_recv().is_err());
    scene.iommu.answer_held();
    assert_eq!(scene.told().iova, iova);
    ask(Lie::Nonsense);
    assert!(scene.channel.receive().is_err());
}

#[test]
fn a_ring_page_moves() {
    let scene = Scene::new(IommuConfig::new(Mode::Strict));
    let addr = scene.ram.alloc_shared(3 * PAGE, 16);
    scene.ram.fill(addr, 3 * PAGE as usize, 9);
    let (page, iova) = (
        scene.ram.physical(addr + PAGE),
        scene.iommu.iova(addr + PAGE),
    );
    scene.iommu.revoke(addr + PAGE, 1);
    scene.iommu.restore(addr + PAGE, 1);
    let moved = scene.ram.physical(addr + PAGE);
    assert_ne!(moved, page);
    assert_eq!(scene.ram.load_u16(addr + PAGE), 0x909);
    assert_eq!(scene.iommu.iova(addr + PAGE), iova);
    let all: Vec<_> = std::iter::from_fn(|| scene.told.recv_timeout(LIMIT).ok())
        .take(6)
        .collect();
    let [.., invalidate, update] = all[..] else {
        panic!("{all:?}")
    };
    assert_eq!(
        invalidate,
        IotlbMessage::invalidate(iova - iova % PAGE, PAGE)
    );
    assert_eq!(update.user, scene.ram.user_address(moved - moved % PAGE));
    assert_eq!(scene.iommu.verify(), Ok(1));
}
