//! A vCPU on a thread of its own, which halts within `KVM_RUN` and is ended by a signal.

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use kvm_ioctls::{VcpuExit, VcpuFd};
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

use super::code::LOOK;
use super::{Machine, own_thread};

/// Time between two signals to a thread that is to end.
const PAUSE: Duration = Duration::from_micros(100);

/// A vCPU and the thread that runs it. The thread ends with it.
#[derive(Debug)]
pub(super) struct VcpuThread {
    /// The thread, as the kernel numbers it.
    pub(super) id: u32,
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<VcpuFd>>,
}

impl VcpuThread {
    /// Runs a vCPU of `machine` on a new thread of this name.
    pub(super) fn spawn(name: &str, machine: &Arc<Machine>, mut vcpu: VcpuFd) -> io::Result<Self> {
        // A signal that nobody handles ends the process; one with a handler ends KVM_RUN.
        register_signal_handler(SIGRTMIN(), do_nothing)?;
        let stops = Arc::new(AtomicBool::new(false));
        let (say, hear) = mpsc::channel();
        let (machine, stop) = (Arc::clone(machine), Arc::clone(&stops));
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            let _alive = machine;
            // The starter waits.
            let _ = say.send(own_thread());
            run(&mut vcpu, &stop);
            vcpu
        })?;
        Ok(Self {
            id: hear.recv().map_err(io::Error::other)?,
            stops,
            thread: Some(thread),
        })
    }

    /// Returns whether the vCPU cannot run any more.
    pub(super) fn has_failed(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the thread; the vCPU is as it was, and another thread can run it.
    pub(super) fn end(&mut self) -> Option<VcpuFd> {
        let thread = self.thread.take()?;
        self.stops.store(true, Ordering::Relaxed);
        while !thread.is_finished() {
            // One that comes between the look at `stops` and KVM_RUN is lost, so there are more.
            let _ = thread.kill(SIGRTMIN());
            std::thread::sleep(PAUSE);
        }
        thread.join().ok()
    }
}

impl Drop for VcpuThread {
    fn drop(&mut self) {
        self.end();
    }
}

extern "C" fn do_nothing(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {}

/// Runs a vCPU until `stops`, or until it does what this VMM does not know.
fn run(vcpu: &mut VcpuFd, stops: &AtomicBool) {
    while !stops.load(Ordering::Relaxed) {
        match vcpu.run() {
            Err(error) if error.errno() == libc::EINTR => {}
            Ok(VcpuExit::IoOut(port, _)) if port == u16::from(LOOK) => {}
            ended => {
                eprintln!("a vCPU failed: {ended:?}");
                return;
            }
        }
    }
}
