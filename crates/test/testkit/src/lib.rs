//! Guests and VMMs for unit tests, benches, fuzzing and end-to-end tests.
//!
//! The crate is an independent oracle. It knows the virtio 1.3 and vhost-user specifications and
//! nothing of the `virtio` and `datapath` crates that it tests, so that a misreading cannot hide on
//! both sides.
//!
//! * [`guest_ram`]: guest memory in a memfd or on the heap, with an allocator
//! * [`driver`]: the driver's half of split and packed virtqueues, with pokes for hostile tests
//! * [`net`]: a guest NIC made of two driver queues, which checks the duties of the device
//! * [`netns`]: network namespaces, and the frames of their interfaces
//! * [`model`]: the device's half, as simple as possible
//! * [`echo`]: a vhost-user back end that sends every frame back
//! * [`frontend`]: a vhost-user front end
//! * [`guest`]: [`FakeGuest`], the whole guest in one call
//! * [`memif`]: a memif client
//! * [`pipe_end`]: an end of a pipe, as its server sees it
//! * [`kvm`]: small VMMs of KVM's, whose vCPUs halt, and a guest behind vhost-user
//! * [`iommu`]: a guest's IOMMU, and the IOTLB messages of its VMM
//! * [`packets`]: frames, checksum verification, an independent segmentation, numbered payloads
//! * [`precopy`]: live migration of a guest's memory by a VMM
//! * [`samples`]: committed samples of records
//! * [`clock`]: a clock that tests move
//! * [`crowd`]: many guests of one thread
//! * [`confined`]: what a list of system calls lets through
//! * [`lasthop`]: a running Lasthop in a folder of its own, and its command line
//! * [`process`]: processes that cannot outlive their test
//! * [`procfs`]: children, descriptors, memory and CPU time of processes
//! * [`skip`]: tests that cannot run here
//! * [`stop`]: the end of threads that run beside a test
//! * [`table`]: tables of test cases as text
//! * [`wait`]: waiting for events
//!
//! A test tool may panic on a mistake of the test itself (an address outside guest memory, a poke
//! of the wrong layout); a violation of the device under test comes back as an error that names the
//! rule.

pub mod clock;
pub mod confined;
pub mod crowd;
pub mod driver;
pub mod echo;
pub mod features;
pub mod frontend;
pub mod guest;
pub mod guest_ram;
pub mod iommu;
pub mod kvm;
pub mod lasthop;
pub mod memif;
pub mod metrics;
pub mod model;
pub mod net;
pub mod netns;
pub mod packets;
pub mod pipe_end;
pub mod precopy;
pub mod process;
pub mod procfs;
pub mod programs;
pub mod samples;
pub mod skip;
pub mod slots;
pub mod stop;
pub mod table;
pub mod traps;
pub mod turn;
pub mod wait;

/// Returns whether all tests must run, without omissions: `LASTHOP_LONG=1`, as in `make test-long`.
#[must_use]
pub fn is_complete_run() -> bool {
    std::env::var_os("LASTHOP_LONG").is_some_and(|value| value == "1")
}

pub use guest::{FakeGuest, GuestConfig};
