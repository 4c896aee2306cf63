//! A VMM with as little as KVM needs: vCPUs that execute `HLT` in a loop, in real mode, each on a
//! thread of its own, and helper threads that sleep. No thread has a name that tells them apart.
//!
//! Without an interrupt controller in the kernel each `HLT` ends `KVM_RUN`, and the thread sleeps
//! for a moment as a vCPU does that waits for its timer.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use kvm_bindings::kvm_regs;
use kvm_ioctls::{VcpuExit, VcpuFd};

use super::{Machine, own_thread};

/// Bytes of the guest's memory, and the address of its code.
const MEMORY: u64 = 0x1000;
const CODE_AT: u64 = 0x100;
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
    threads: Vec<JoinHandle<()>>,
    _machine: Arc<Machine>,
}

impl HaltingVm {
    /// Starts a VM, and waits until each vCPU has halted.
    ///
    /// # Errors
    /// KVM is missing, refused, or does not run even this.
    pub fn start(vcpus: usize, helpers: usize) -> io::Result<Self> {
        let machine = Machine::new(MEMORY)?;
        machine.ram.write(CODE_AT, &CODE);
        let mut this = Self {
            vcpus: Vec::new(),
            helpers: Vec::new(),
            stops: Arc::default(),
            keep: Vec::new(),
            threads: Vec::new(),
            _machine: Arc::clone(&machine),
        };
        let (say, hear) = mpsc::channel();
        let registers = kvm_regs {
            rip: CODE_AT,
            ..Default::default()
        };
        for number in 0..vcpus {
            let mut vcpu = machine.vcpu(number, &registers, 0)?;
            let (say, stops) = (say.clone(), Arc::clone(&this.stops));
            let machine = Arc::clone(&machine);
            this.threads.push(std::thread::spawn(move || {
                let _alive = machine;
                if let Err(error) = halt_in_loop(&mut vcpu, &stops, &say) {
                    // The starter may be gone.
                    let _ = say.send(Err(error));
                }
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

/// Runs a vCPU until `stops`; reports its thread after the first `HLT`.
fn halt_in_loop(
    vcpu: &mut VcpuFd,
    stops: &AtomicBool,
    say: &mpsc::Sender<io::Result<u32>>,
) -> io::Result<()> {
    let mut said = false;
    while !stops.load(Ordering::Relaxed) {
        match vcpu.run() {
            Ok(VcpuExit::Hlt) => {}
            Err(error) if error.errno() == libc::EINTR => continue,
            Err(error) => return Err(error.into()),
            Ok(exit) => return Err(io::Error::other(format!("KVM_RUN ended with {exit:?}"))),
        }
        if !std::mem::replace(&mut said, true) {
            // The starter waits.
            let _ = say.send(Ok(own_thread()));
        }
        std::thread::sleep(HALT);
    }
    Ok(())
}
