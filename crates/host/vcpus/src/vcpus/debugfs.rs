//! vCPU threads by KVM's own list (Linux, `virt/kvm/kvm_main.c`: `kvm_create_vm_debugfs`,
//! `kvm_create_vcpu_debugfs`).
//!
//! ```text
//! kvm/PID-FD/           a VM: the thread that created it, and the number of its descriptor
//! kvm/PID-FD/vcpuN/pid  the thread that ran vCPU N last; 0 before its first run
//! ```
//!
//! It needs debugfs, root, and the host's PID namespace. Where the descriptors of the process can
//! be listed, there must be one `anon_inode:kvm-vcpu:N` for each vCPU of the list; without
//! `CAP_SYS_PTRACE` they cannot, and the list counts by itself.

use std::fs::{DirEntry, ReadDir};
use std::io;
use std::iter::Take;
use std::path::Path;

use super::{MOST_FOLLOWED, Work};

/// The place where debugfs is mounted.
pub const MOUNTED_AT: &str = "/sys/kernel/debug";
/// `DEBUGFS_MAGIC` of `linux/magic.h`.
const MAGIC: u64 = 0x6462_6720;
/// Most VMs that are read.
const MOST_VMS: usize = 4096;
/// Most descriptors of one process that are read.
const MOST_DESCRIPTORS: usize = 1 << 16;

/// Reason why there is no list.
#[derive(Debug, thiserror::Error)]
pub enum NoList {
    /// Another file system, or none, is where debugfs should be.
    #[error("debugfs is not mounted at {MOUNTED_AT}")]
    NotMounted,
    /// KVM was not loaded, or has no such list.
    #[error("debugfs has no list of KVM's")]
    NoKvm,
    /// This process may not read it.
    #[error("debugfs cannot be read ({0})")]
    Refused(io::Error),
}

/// Reason why a process's vCPU threads are not known by the list.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ListError {
    /// It has no VM of KVM's.
    #[error("no VM of KVM's in debugfs is the VMM's")]
    NoVm,
    /// No vCPU has a thread.
    #[error("debugfs names no thread of the VM: no vCPU has run, or Linux is older than 6.0")]
    NotStarted,
    /// The list and the descriptors of the process do not agree.
    #[error("debugfs lists {listed} vCPUs, and the VMM has descriptors of {open}")]
    Count {
        /// vCPUs in debugfs.
        listed: usize,
        /// Descriptors of vCPUs.
        open: usize,
    },
}

/// A VM of KVM's.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Vm {
    /// The thread that created it.
    creator: u32,
    /// The thread of each vCPU; 0 before its first run.
    vcpus: Vec<u32>,
}

/// All VMs of KVM's on this host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Vms(Vec<Vm>);

impl Vms {
    /// Reads the list at once.
    ///
    /// # Errors
    /// As [`VmScan::of`].
    pub fn read(root: &Path) -> Result<Self, NoList> {
        VmScan::of(root).map(VmScan::all)
    }

    /// Returns the vCPU threads of a process. `threads` are its threads, as far as they are
    /// visible; `open` is the number of its descriptors of vCPUs, if they are.
    ///
    /// # Errors
    /// The reason why they are not known.
    pub fn of_process(
        &self,
        process: u32,
        threads: Option<&[u32]>,
        open: Option<usize>,
    ) -> Result<Vec<u32>, ListError> {
        let has = |thread: &u32| threads.is_some_and(|all| all.contains(thread));
        let owned =
            |vm: &&Vm| vm.creator == process || has(&vm.creator) || vm.vcpus.iter().any(&has);
        let vcpus = self.0.iter().filter(owned).flat_map(|vm| &vm.vcpus);
        let listed: Vec<u32> = vcpus.copied().collect();
        if listed.is_empty() {
            return Err(ListError::NoVm);
        }
        if let Some(open) = open.filter(|open| *open != listed.len()) {
            let listed = listed.len();
            return Err(ListError::Count { listed, open });
        }
        // A thread of another process: its number, or that of the VM's creator, is in use again.
        let stranger = |vcpu: &u32| threads.is_some() && !has(vcpu);
        let mut started: Vec<u32> = listed.into_iter().filter(|vcpu| *vcpu != 0).collect();
        started.retain(|vcpu| !stranger(vcpu));
        started.sort_unstable();
        started.dedup();
        started.truncate(MOST_FOLLOWED);
        if started.is_empty() {
            return Err(ListError::NotStarted);
        }
        Ok(started)
    }
}

/// The VMs of KVM's, as far as they were read.
#[derive(Debug)]
pub struct VmScan {
    entries: ReadDir,
    vms: Vec<Vm>,
    /// The directory of the last one, until it is read.
    vcpus: Option<ReadDir>,
}

impl VmScan {
    /// Begins the list in debugfs, which is mounted at `root` ([`MOUNTED_AT`]).
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn of(root: &Path) -> Result<Self, NoList> {
        let system = rustix::fs::statfs(root).map_err(|error| NoList::Refused(error.into()))?;
        if system.f_type.cast_unsigned() != MAGIC {
            return Err(NoList::NotMounted);
        }
        Self::of_list(&root.join("kvm"))
    }

    fn of_list(list: &Path) -> Result<Self, NoList> {
        let entries = std::fs::read_dir(list).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => NoList::NoKvm,
            _ => NoList::Refused(error),
        })?;
        Ok(Self {
            entries,
            vms: Vec::new(),
            vcpus: None,
        })
    }

    /// Reads on; `false`: there is more for the next turn.
    pub fn advance(&mut self, work: &mut Work) -> bool {
        while work.take() {
            if let (Some(vcpus), Some(vm)) = (&mut self.vcpus, self.vms.last_mut()) {
                match vcpus.next().filter(|_| vm.vcpus.len() < MOST_FOLLOWED) {
                    Some(entry) => vm.vcpus.extend(entry.ok().as_ref().and_then(vcpu_of)),
                    None => self.vcpus = None,
                }
                continue;
            }
            let Some(entry) = self.entries.next().filter(|_| self.vms.len() < MOST_VMS) else {
                return true;
            };
            if let Some((entry, creator)) = entry.ok().and_then(|e| creator_of(&e).map(|c| (e, c)))
            {
                let vcpus = Vec::new();
                self.vms.push(Vm { creator, vcpus });
                self.vcpus = std::fs::read_dir(entry.path()).ok();
            }
        }
        false
    }

    /// Returns the VMs that were read.
    #[must_use]
    pub fn vms(self) -> Vms {
        Vms(self.vms)
    }

    fn all(mut self) -> Vms {
        self.advance(&mut Work::of(usize::MAX));
        self.vms()
    }
}

/// Returns the thread that created the VM of a directory.
fn creator_of(vm: &DirEntry) -> Option<u32> {
    let name = vm.file_name();
    let (creator, _) = name.to_str()?.split_once('-')?;
    creator.parse().ok()
}

/// Returns the thread of the vCPU of a directory, if it is one.
fn vcpu_of(entry: &DirEntry) -> Option<u32> {
    let name = entry.file_name();
    name.to_str()?.strip_prefix("vcpu")?.parse::<u32>().ok()?;
    // Kernels before 6.0 have no such file; then no vCPU has a thread.
    let text = std::fs::read_to_string(entry.path().join("pid")).unwrap_or_default();
    Some(text.trim_end().parse().unwrap_or_default())
}

/// The number of a process's descriptors of vCPUs, as far as they were read.
#[derive(Debug)]
pub struct DescriptorScan {
    entries: Take<ReadDir>,
    count: usize,
}

impl DescriptorScan {
    /// Begins.
    ///
    /// # Errors
    /// The process is gone, or its descriptors cannot be listed without `CAP_SYS_PTRACE`.
    pub fn of(process: u32) -> io::Result<Self> {
        let entries = std::fs::read_dir(format!("/proc/{process}/fd"))?;
        Ok(Self {
            entries: entries.take(MOST_DESCRIPTORS),
            count: 0,
        })
    }

    /// Reads on. Returns the number when it is known; `None`: there is more for the next turn.
    ///
    /// # Errors
    /// As [`DescriptorScan::of`].
    pub fn advance(&mut self, work: &mut Work) -> io::Result<Option<usize>> {
        while work.take() {
            let Some(entry) = self.entries.next() else {
                return Ok(Some(self.count));
            };
            // A descriptor may be closed meanwhile; the right to read one is that to read all.
            let target = match std::fs::read_link(entry?.path()) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
                target => target.unwrap_or_default(),
            };
            let name = target.as_os_str().as_encoded_bytes();
            self.count += usize::from(name.starts_with(b"anon_inode:kvm-vcpu:"));
        }
        Ok(None)
    }
}

/// Returns the number of a process's descriptors of vCPUs at once.
///
/// # Errors
/// As [`DescriptorScan::of`].
pub fn vcpu_descriptors(process: u32) -> io::Result<usize> {
    let mut scan = DescriptorScan::of(process)?;
    let all = scan.advance(&mut Work::of(usize::MAX))?;
    Ok(all.unwrap_or(scan.count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(creator: u32, vcpus: &[u32]) -> Vm {
        let vcpus = vcpus.to_vec();
        Vm { creator, vcpus }
    }

    #[test]
    fn vcpus_are_those_of_the_vmm() {
        let vms = Vms(vec![vm(10, &[11, 12]), vm(20, &[21])]);
        let threads = [10, 11, 12, 13];
        assert_eq!(
            vms.of_process(10, Some(&threads), Some(2)),
            Ok(vec![11, 12])
        );
        assert_eq!(vms.of_process(10, None, None), Ok(vec![11, 12]), "hidden");
        assert_eq!(vms.of_process(30, None, None), Err(ListError::NoVm));
    }

    #[test]
    fn a_vm_may_be_made_by_any_thread_of_the_vmm() {
        // As of Firecracker and Cloud Hypervisor: the thread may have ended since.
        let vms = Vms(vec![vm(14, &[15]), vm(99, &[16])]);
        let threads = [10, 14, 15, 16];
        assert_eq!(vms.of_process(10, Some(&threads), None), Ok(vec![15, 16]));
    }

    #[test]
    fn the_descriptors_of_the_vmm_must_agree() {
        let vms = Vms(vec![vm(10, &[11, 12])]);
        for open in [0, 1, 3] {
            let count = Err(ListError::Count { listed: 2, open });
            assert_eq!(vms.of_process(10, None, Some(open)), count);
        }
    }

    #[test]
    fn a_vcpu_that_has_not_run_has_no_thread() {
        let vms = Vms(vec![vm(10, &[0, 12]), vm(20, &[0])]);
        assert_eq!(vms.of_process(10, None, Some(2)), Ok(vec![12]));
        assert_eq!(
            vms.of_process(20, None, Some(1)),
            Err(ListError::NotStarted)
        );
    }

    #[test]
    fn a_thread_of_another_process_is_not_taken() {
        let vms = Vms(vec![vm(10, &[99, 12])]);
        assert_eq!(vms.of_process(10, Some(&[10, 12]), None), Ok(vec![12]));
    }

    #[test]
    fn the_list_is_read_as_kvm_lays_it_out() {
        let root = tempfile::tempdir().unwrap();
        let list = root.path().join("kvm");
        let file = |path: &str, text: &str| {
            let path = list.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        file("exits", "7\n");
        file("10-11/vcpu0/pid", "12\n");
        file("10-11/vcpu1/guest_mode", "0\n");
        file("10-11/vcpus/pid", "5\n");
        file("x-1/vcpu0/pid", "13\n");
        let mut read = VmScan::of_list(&list).unwrap().all();
        read.0[0].vcpus.sort_unstable();
        assert_eq!(read, Vms(vec![vm(10, &[0, 12])]));
        let missing = VmScan::of_list(&root.path().join("none"));
        assert!(matches!(missing, Err(NoList::NoKvm)), "{missing:?}");
        let plain = Vms::read(root.path());
        assert!(matches!(plain, Err(NoList::NotMounted)), "{plain:?}");
    }

    #[test]
    fn lists_are_read_in_turns_of_bounded_work() {
        let root = tempfile::tempdir().unwrap();
        for vm in 10..15 {
            for vcpu in 0..4 {
                let dir = root.path().join(format!("{vm}-7/vcpu{vcpu}"));
                std::fs::create_dir_all(&dir).unwrap();
                std::fs::write(dir.join("pid"), "12\n").unwrap();
            }
        }
        let mut scan = VmScan::of_list(root.path()).unwrap();
        let mut turns = 1;
        while !scan.advance(&mut Work::of(4)) {
            turns += 1;
        }
        // Five VMs with four vCPUs and the end of each directory, and the end of the list.
        assert_eq!(turns, (5 * (1 + 4 + 1) + 1usize).div_ceil(4));
        let Vms(vms) = scan.vms();
        assert_eq!(vms.len(), 5);
        assert!(vms.iter().all(|vm| vm.vcpus == [12; 4]), "{vms:?}");
        let files: Vec<_> = (0..50)
            .map(|_| std::fs::File::open("/dev/null").unwrap())
            .collect();
        let mut scan = DescriptorScan::of(std::process::id()).unwrap();
        let mut turns = 1;
        while scan.advance(&mut Work::of(4)).unwrap().is_none() {
            turns += 1;
        }
        assert!(turns > files.len() / 4, "{turns} turns");
    }

    #[test]
    fn this_process_has_no_vcpus() {
        assert_eq!(vcpu_descriptors(std::process::id()).unwrap(), 0);
        assert!(vcpu_descriptors(u32::MAX).is_err());
    }
}
