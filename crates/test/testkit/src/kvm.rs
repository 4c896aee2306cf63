//! Small VMMs of KVM's, with guests of a few instructions of real mode: they run where no kernel
//! boots, too.
//!
//! * [`HaltingVm`]: vCPUs that halt, and threads that do not run vCPUs
//! * [`KvmGuest`]: a guest that is interrupted by virtqueues over vhost-user, and that answers,
//!   works or sends

use std::io;
use std::sync::Arc;

use kvm_bindings::{kvm_regs, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};

use crate::frontend::FrontError;
use crate::guest_ram::{GuestRam, RegionSpec};

mod code;
mod guest;
mod halting;
mod vcpu;

#[cfg(test)]
mod tests;

pub use guest::{KvmGuest, KvmGuestConfig, Others, Task};
pub use halting::HaltingVm;

/// Failure to start a guest.
#[derive(Debug, thiserror::Error)]
pub enum KvmError {
    /// KVM is missing, refused, or does not run even a few instructions of real mode: a reason to
    /// skip a test.
    #[error("KVM does not work here: {0}")]
    Unavailable(#[from] io::Error),
    /// The session with the back end failed.
    #[error(transparent)]
    Front(#[from] FrontError),
    /// The back end does not offer what the guest needs.
    #[error("the back end does not offer features {0:#x}")]
    Missing(u64),
}

impl From<kvm_ioctls::Error> for KvmError {
    fn from(error: kvm_ioctls::Error) -> Self {
        Self::Unavailable(error.into())
    }
}

/// Three pages that Intel's CPUs need for real mode, behind all memory of our guests.
const TSS_AT: usize = 0xfffb_d000;

/// A VM and its memory, which begins at guest address 0.
#[derive(Debug)]
struct Machine {
    vm: VmFd,
    ram: GuestRam,
}

impl Machine {
    /// A VM with so many bytes of memory.
    fn new(bytes: u64) -> io::Result<Arc<Self>> {
        let ram = GuestRam::memfd(&[RegionSpec::at(0, bytes)])?;
        let vm = Kvm::new()?.create_vm()?;
        // CPUs of other makers do not know it.
        let _ = vm.set_tss_address(TSS_AT);
        let region = kvm_userspace_memory_region {
            memory_size: bytes,
            userspace_addr: ram.ptr(0, bytes) as u64,
            ..Default::default()
        };
        // SAFETY: the mapping lives as long as `ram`, which stands behind the VM in this structure;
        // it is the VM's only region. Threads that run vCPUs hold an `Arc` of this.
        unsafe { vm.set_user_memory_region(region)? };
        Ok(Arc::new(Self { vm, ram }))
    }

    /// A vCPU that begins with these registers, in segment 0, with its data at `data`.
    fn vcpu(&self, number: usize, registers: &kvm_regs, data: u64) -> io::Result<VcpuFd> {
        let vcpu = self.vm.create_vcpu(number as u64)?;
        let mut segments = vcpu.get_sregs()?;
        (segments.cs.base, segments.cs.selector) = (0, 0);
        (segments.ds.base, segments.ds.selector) = (data, (data >> 4) as u16);
        vcpu.set_sregs(&segments)?;
        // Bit 1 of the flags is always set.
        vcpu.set_regs(&kvm_regs {
            rflags: 2,
            ..*registers
        })?;
        Ok(vcpu)
    }
}

/// The calling thread, as the kernel numbers it.
fn own_thread() -> u32 {
    let id = rustix::thread::gettid().as_raw_nonzero().get();
    id.cast_unsigned()
}
