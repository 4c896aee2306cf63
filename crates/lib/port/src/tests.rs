use super::counters::{Counters, PortCounts, Traffic};
use super::*;

#[test]
fn names_of_drops_are_unique_and_their_order_is_the_counters() {
    let mut names: Vec<_> = REASONS.iter().map(|r| r.name()).collect();
    for (index, reason) in REASONS.iter().enumerate() {
        assert_eq!(*reason as usize, index);
        assert!(!reason.help().is_empty());
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), REASONS.len());
}

#[test]
fn counters_are_per_port_and_shared_between_mappings() {
    let fd = rustix::fs::memfd_create("counters", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, counters::SIZE).unwrap();
    let (writer, reader) = (Counters::map(&fd).unwrap(), Counters::map(&fd).unwrap());
    let last = PortId(counters::MAX_PORTS as u32 - 1);
    writer.add_from(
        last,
        Traffic {
            packets: 2,
            bytes: 120,
        },
    );
    writer.add_to(
        PortId(0),
        Traffic {
            packets: 1,
            bytes: 60,
        },
    );
    writer.add_drops(last, DropReason::FaultInjected, 3);
    let counts = reader.read(last);
    assert_eq!(
        counts.from_guest,
        Traffic {
            packets: 2,
            bytes: 120
        }
    );
    assert_eq!(counts.to_guest, Traffic::default());
    assert_eq!(counts.dropped(DropReason::FaultInjected), 3);
    assert_eq!(counts.drops.iter().sum::<u64>(), 3);
    assert_eq!(reader.read(PortId(0)).to_guest.bytes, 60);
    writer.clear(last);
    assert_eq!(
        reader.read(last),
        PortCounts {
            drops: vec![0; REASONS.len()],
            ..Default::default()
        }
    );
    assert_eq!(reader.read(PortId(0)).to_guest.packets, 1);
}

#[test]
fn copies_of_mirrors_are_counted_beside_ports_and_for_each() {
    let counters = Counters::heap();
    let last = (counters::MAX_MIRRORS - 1) as u8;
    counters.add_copy(0, 100, None);
    counters.add_copy(last, 60, None);
    counters.add_copy(last, 70, None);
    for reason in counters::COPY_LOSSES {
        counters.add_copy(last, 1000, Some(reason));
    }
    counters.add_copy(last, 1000, Some(counters::COPY_LOSSES[4]));
    let copied = |packets, bytes| Traffic { packets, bytes };
    assert_eq!(counters.read_mirror(0).copied, copied(1, 100));
    let counts = counters.read_mirror(last);
    assert_eq!(
        (counts.copied, counts.lost),
        (copied(2, 130), [1, 1, 1, 1, 2])
    );
    assert_eq!(counters.read(PortId(0)), Counters::heap().read(PortId(0)));
    assert_eq!(counters.ticks_per_second(), None);
    counters.clear_mirror(last);
    assert_eq!(
        counters.read_mirror(last),
        counters::MirrorCounts::default()
    );
    assert_eq!(counters.read_mirror(0).copied, copied(1, 100));
}

/// A file of counters that begins with these bytes.
fn counters_file(bytes: &[u8]) -> std::os::fd::OwnedFd {
    let fd = rustix::fs::memfd_create("counters", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, counters::SIZE).unwrap();
    assert_eq!(rustix::io::pwrite(&fd, bytes, 0), Ok(bytes.len()));
    fd
}

/// The header with the mirrors, and the slot of port 0.
#[test]
fn sample_of_counters() {
    let (fd, port) = (counters_file(&[]), PortId(0));
    let writer = Counters::map(&fd).unwrap();
    writer.set_ticks_per_second(1 << 30);
    let traffic = |packets, bytes| Traffic { packets, bytes };
    writer.add_from(port, traffic(1, 60));
    writer.add_to(port, traffic(2, 120));
    for (count, reason) in (1..).zip(REASONS) {
        writer.add_drops(port, *reason, count);
    }
    let (switching, copying) = (100, 200);
    writer.add_ticks(port, counters::Ticks { switching, copying });
    writer.add_masked(port);
    writer.add_copy(1, 60, None);
    for reason in counters::COPY_LOSSES {
        writer.add_copy(1, 60, Some(reason));
    }
    let mut bytes = [0; 4096 + 512];
    assert_eq!(rustix::io::pread(&fd, &mut bytes[..], 0), Ok(bytes.len()));
    let here = env!("CARGO_MANIFEST_DIR");
    let sample = testkit::samples::sample(here, "counters.bin", counters::VERSION, &bytes);
    let reader = Counters::map(&counters_file(&sample)).unwrap();
    assert_eq!(reader.ticks_per_second(), Some(1 << 30));
    assert_eq!(reader.read(port), writer.read(port));
    assert_eq!(reader.read(port).dropped(REASONS[1]), 2);
    assert_eq!(reader.read_mirror(1), writer.read_mirror(1));
}
