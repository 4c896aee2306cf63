//! vCPUs of a real VM of KVM's are found in debugfs and by tracepoints. Skipped where KVM does not
//! run even a few instructions of real mode, or the rights are missing.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use testkit::kvm::HaltingVm;
use testkit::process::Process;
use testkit::skip::skipped;
use testkit::wait::{wait_for, wait_until};
use vcpus::load::LoadError;
use vcpus::vcpus::debugfs::{self, Vms};
use vcpus::vcpus::names;
use vcpus::vcpus::tracepoints::Tracepoints;

const VCPUS: usize = 2;
const HELPERS: usize = 3;

/// The VMs are of one process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn vm() -> Option<(HaltingVm, MutexGuard<'static, ()>)> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    match HaltingVm::start(VCPUS, HELPERS) {
        Ok(vm) => Some((vm, alone)),
        Err(error) => {
            skipped(format!("KVM does not work here ({error})"));
            None
        }
    }
}

fn own_threads() -> Vec<u32> {
    let threads = names::threads_of(std::process::id()).unwrap();
    threads.into_iter().map(|(id, _)| id).collect()
}

/// A process with a debugfs in a mount namespace of its own, and the path to it.
fn debugfs() -> Option<(Process, PathBuf, tempfile::TempDir)> {
    let mount = format!("mount -t debugfs none {}", debugfs::MOUNTED_AT);
    let tried = Command::new("unshare")
        .args(["--mount", "sh", "-c", &mount])
        .output();
    if !tried.as_ref().is_ok_and(|output| output.status.success()) {
        skipped(format!("debugfs cannot be mounted here ({tried:?})"));
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = format!("{mount} && exec sleep infinity");
    let args = ["--mount", "sh", "-c", &script].map(str::to_owned);
    let process = Process::start("debugfs", "unshare", &args, &folder.path().join("log"));
    let root = format!("/proc/{}/root{}", process.pid(), debugfs::MOUNTED_AT).into();
    Some((process, root, folder))
}

#[test]
fn debugfs_lists_exactly_the_vcpus() {
    let Some((vm, _alone)) = vm() else {
        return;
    };
    let Some((_process, root, _folder)) = debugfs() else {
        return;
    };
    let vms = wait_for("debugfs is mounted", || Vms::read(&root).ok());
    let own = std::process::id();
    let open = debugfs::vcpu_descriptors(own).unwrap();
    assert_eq!(open, VCPUS);
    let found = vms.of_process(own, Some(&own_threads()), Some(open));
    assert_eq!(found.as_ref(), Ok(&vm.vcpus), "with the descriptors");
    let found = vms.of_process(own, Some(&own_threads()), None);
    assert_eq!(found, Ok(vm.vcpus.clone()), "without");
    drop(vm);
    wait_until("the VM is gone", || {
        let vms = Vms::read(&root).unwrap();
        vms.of_process(own, Some(&own_threads()), None).is_err()
    });
}

#[test]
fn tracepoints_show_exactly_the_vcpus_and_only_while_armed() {
    let Some((vm, _alone)) = vm() else {
        return;
    };
    let tracepoints = match Tracepoints::load() {
        Ok(tracepoints) => tracepoints,
        Err(error @ LoadError::Object(_)) => panic!("{error}"),
        Err(error) => return skipped(error),
    };
    let own = std::process::id();
    std::thread::sleep(Duration::from_millis(20));
    assert!(tracepoints.seen().is_empty(), "not armed");
    tracepoints.arm(true);
    let mut seen = BTreeSet::new();
    wait_until("both vCPUs are seen", || {
        seen.extend(tracepoints.seen().remove(&own).unwrap_or_default());
        seen.len() >= VCPUS
    });
    std::thread::sleep(Duration::from_millis(20));
    seen.extend(tracepoints.seen().remove(&own).unwrap_or_default());
    assert!(seen.iter().eq(&vm.vcpus), "{seen:?}, {vm:?}");
    tracepoints.arm(false);
    let _ = tracepoints.seen();
    // An event that had begun before is over.
    std::thread::sleep(Duration::from_millis(20));
    let _ = tracepoints.seen();
    std::thread::sleep(Duration::from_millis(20));
    assert!(tracepoints.seen().is_empty(), "not armed any more");
}
