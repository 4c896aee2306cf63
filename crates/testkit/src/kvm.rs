//! A VMM with as little as KVM needs: vCPUs that execute `HLT` in a loop, in real mode, each on a
//! thread of its own, and helper threads that sleep. No thread has a name that tells them apart.
//!
//! Without an interrupt controller in the kernel each `HLT` ends `KVM_RUN`, and the thread sleeps
//! for a moment as a vCPU does that waits for its timer. That works where no kernel boots, too.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

// `linux/kvm.h`: requests, and the sizes of structures in them.
const CREATE_VM: u64 = 0xae01;
const VCPU_MMAP_SIZE: u64 = 0xae04;
const CREATE_VCPU: u64 = 0xae41;
const SET_TSS_ADDRESS: u64 = 0xae47;
const SET_MEMORY: u64 = 0x4020_ae46;
const RUN: u64 = 0xae80;
const SET_REGISTERS: u64 = 0x4090_ae82;
const GET_SEGMENTS: u64 = 0x8138_ae83;
const SET_SEGMENTS: u64 = 0x4138_ae84;
/// Words of `struct kvm_regs`, and those of the instruction pointer and the flags.
const REGISTERS: usize = 18;
const RIP: usize = 16;
const RFLAGS: usize = 17;
/// Words of `struct kvm_sregs`; it begins with the base of CS, and behind it limit and selector.
const SEGMENTS: usize = 39;
/// Offset of the reason in `struct kvm_run`, and the reason `HLT`.
const REASON_AT: usize = 8;
const EXIT_HLT: u32 = 5;

/// Bytes of the guest's memory, and the address of its code.
const MEMORY: usize = 0x1000;
const CODE_AT: usize = 0x100;
/// `hlt; jmp -3`, in any mode.
const CODE: [u8; 3] = [0xf4, 0xeb, 0xfd];
/// Sleep of a halted vCPU.
const HALT: Duration = Duration::from_millis(1);

/// A running VMM; its threads are this process's.
#[derive(Debug)]
pub struct HaltingVm {
    /// The threads of the vCPUs.
    pub vcpus: Vec<u32>,
    /// The threads that sleep.
    pub helpers: Vec<u32>,
    stops: Arc<AtomicBool>,
    keep: Vec<mpsc::Sender<()>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    _vm: Arc<OwnedFd>,
}

impl HaltingVm {
    /// Starts a VM, and waits until each vCPU has halted.
    ///
    /// # Errors
    /// KVM is missing, refused, or does not run even this.
    pub fn start(vcpus: usize, helpers: usize) -> io::Result<Self> {
        let kvm: OwnedFd = File::options()
            .read(true)
            .write(true)
            .open("/dev/kvm")?
            .into();
        let vm = Arc::new(descriptor(request(&kvm, CREATE_VM, 0)?));
        let run_bytes = request(&kvm, VCPU_MMAP_SIZE, 0)? as usize;
        // Intel's CPUs need it for real mode; others do not know it.
        let _ = request(&vm, SET_TSS_ADDRESS, 0xfffb_d000);
        let memory = Arc::new(Mapping::new(None, MEMORY)?);
        // SAFETY: the code lies within the new mapping, which nobody else uses yet.
        unsafe { std::ptr::copy(CODE.as_ptr(), memory.0.add(CODE_AT), CODE.len()) };
        // `struct kvm_userspace_memory_region`: slot and flags, guest address, bytes, address.
        let region = [0u64, 0, MEMORY as u64, memory.0 as u64];
        request(&vm, SET_MEMORY, region.as_ptr() as u64)?;
        let mut this = Self {
            vcpus: Vec::new(),
            helpers: Vec::new(),
            stops: Arc::default(),
            keep: Vec::new(),
            threads: Vec::new(),
            _vm: Arc::clone(&vm),
        };
        let (say, hear) = mpsc::channel();
        for number in 0..vcpus as u64 {
            let vcpu = descriptor(request(&vm, CREATE_VCPU, number)?);
            let (say, stops) = (say.clone(), Arc::clone(&this.stops));
            let (vm, memory) = (Arc::clone(&vm), Arc::clone(&memory));
            this.threads.push(std::thread::spawn(move || {
                let _alive = (vm, memory);
                let ran = halt_in_loop(&vcpu, run_bytes, &stops, &say);
                if let Err(error) = &ran {
                    // The starter may be gone.
                    let _ = say.send(Err(io::Error::new(error.kind(), error.to_string())));
                }
                ran
            }));
        }
        for _ in 0..vcpus {
            let id = hear.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            this.vcpus.push(id?);
        }
        for _ in 0..helpers {
            let (keep, wait) = mpsc::channel::<()>();
            let say = say.clone();
            this.threads.push(std::thread::spawn(move || {
                // The starter waits.
                let _ = say.send(Ok(own_thread()));
                let _ = wait.recv();
                Ok(())
            }));
            this.keep.push(keep);
            let id = hear.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            this.helpers.push(id?);
        }
        this.vcpus.sort_unstable();
        Ok(this)
    }
}

impl Drop for HaltingVm {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        self.keep.clear();
        for thread in self.threads.drain(..) {
            // A vCPU that failed has said so.
            let _ = thread.join();
        }
    }
}

fn own_thread() -> u32 {
    let id = rustix::thread::gettid().as_raw_nonzero().get();
    id.cast_unsigned()
}

/// Runs a vCPU until `stops`; reports its thread after the first `HLT`.
fn halt_in_loop(
    vcpu: &OwnedFd,
    run_bytes: usize,
    stops: &AtomicBool,
    say: &mpsc::Sender<io::Result<u32>>,
) -> io::Result<()> {
    let run = Mapping::new(Some(vcpu), run_bytes)?;
    let mut segments = [0u64; SEGMENTS];
    request(vcpu, GET_SEGMENTS, segments.as_mut_ptr() as u64)?;
    // Base 0, and selector 0 behind the limit's 32 bits.
    segments[0] = 0;
    segments[1] &= !(0xffff << 32);
    request(vcpu, SET_SEGMENTS, segments.as_ptr() as u64)?;
    let mut registers = [0u64; REGISTERS];
    registers[RIP] = CODE_AT as u64;
    // Bit 1 is always set.
    registers[RFLAGS] = 2;
    request(vcpu, SET_REGISTERS, registers.as_ptr() as u64)?;
    let mut said = false;
    while !stops.load(Ordering::Relaxed) {
        match request(vcpu, RUN, 0) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            done => done?,
        };
        // SAFETY: the mapping begins with a `struct kvm_run`, which the kernel does not write while
        // the vCPU does not run.
        let reason = unsafe { run.0.add(REASON_AT).cast::<u32>().read_volatile() };
        if reason != EXIT_HLT {
            return Err(io::Error::other(format!(
                "KVM_RUN ended for reason {reason}"
            )));
        }
        if !std::mem::replace(&mut said, true) {
            // The starter waits.
            let _ = say.send(Ok(own_thread()));
        }
        std::thread::sleep(HALT);
    }
    Ok(())
}

/// A mapping of a vCPU's `struct kvm_run`, or of memory.
#[derive(Debug)]
struct Mapping(*mut u8, usize);

// SAFETY: it owns its addresses; the guest's memory is written before the guest runs only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: Option<&OwnedFd>, bytes: usize) -> io::Result<Self> {
        let (fd, flags) = match file {
            Some(file) => (file.as_raw_fd(), libc::MAP_SHARED),
            None => (-1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS),
        };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases no other memory.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(at.cast(), bytes))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the range that was mapped, and there is no reference into it.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

fn request(fd: &OwnedFd, request: u64, argument: u64) -> io::Result<i32> {
    // SAFETY: the argument is a number, or the address of a structure of the size that the request
    // names, which lives as long as this call; guest memory lives as long as its VM.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(done)
}

fn descriptor(number: i32) -> OwnedFd {
    // SAFETY: the requests that create something return a new descriptor, which has no other owner.
    unsafe { OwnedFd::from_raw_fd(number) }
}
