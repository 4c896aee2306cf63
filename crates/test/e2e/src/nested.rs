//! A host in a guest of QEMU: Lasthop's binaries and a test program run there, with another kernel
//! than this machine's, `/dev/vhost-net`, and control groups of version 2 that are ours.
//!
//! A test is written as any other; a second one runs it in there:
//!
//! ```no_run
//! # use e2e::nested::{Host, Kernel};
//! fn single_frames() { /* Lasthop::start(..), Netns::new(..) and the like */ }
//!
//! fn single_frames_with_debians_kernel() {
//!     let mut host = Host::start(Kernel::Debian, module_path!());
//!     host.test("single_frames");
//!     assert_eq!(host.run("ls /dev/vhost-net"), "/dev/vhost-net\n");
//! }
//! ```
//!
//! The host has the calling test program itself, what it needs of this machine (`PROGRAMS`),
//! iperf3, ethtool and busybox. Everything is in its memory: nothing is left behind. It is one
//! emulated processor where there is no KVM, and takes about ten seconds to come up.
//!
//! | path in the host | |
//! |---|---|
//! | `/host/lasthop` and its siblings | Lasthop as it is released, without debug symbols |
//! | `/host/test` | the test program |
//! | `/host/ip`, ... | programs of this machine, in front of busybox's on the `PATH` |
//! | `/sys/fs/cgroup` | control groups; all processes are in the first one ([`enter_group`]) |
//!
//! A test that is skipped for the lack of something fails in there.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use testkit::skip::skipped;

use crate::agent::Answer;
use crate::guest::{Guest, GuestSpec};
use crate::paths;

/// Lasthop's programs.
const BINARIES: [&str; 5] = [
    "lasthop",
    "lasthop-supervisor",
    "lasthop-control",
    "lasthop-switch",
    "lasthop-driver",
];
/// Programs of this machine that tests run ([`testkit::netns`]); busybox's lack what they need.
const PROGRAMS: [&str; 2] = ["ip", "unshare"];
/// Where these are in the host.
const FOLDER: &str = "host";
/// Memory of the host. Its files are in it, and twice while the kernel unpacks them.
const MEMORY_MIB: u32 = 640;
/// How long a command or a test may take in the host.
const PATIENCE: Duration = Duration::from_secs(600);
/// Variable that tells a process that it is in such a host.
const INSIDE: &str = "LASTHOP_NESTED";
/// Variables that a test in the host has from the one that runs it.
const PASSED: [&str; 2] = ["LASTHOP_LONG", "LASTHOP_LOG"];
/// Mount point of the control groups.
const GROUPS: &str = "/sys/fs/cgroup";

/// Loads the modules, and mounts what a distribution would have mounted.
const SET_UP: &str = "
    set -e
    for module in $(cat /host-modules/order); do insmod /host-modules/$module; done
    mkdir -p /dev/pts /dev/shm /sys/fs/bpf /var/run
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mount -t tmpfs tmpfs /dev/shm
    mount -t bpf bpf /sys/fs/bpf";

/// Kernel of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// The cloud kernel of Debian 12 (6.1): without UDP segmentation offload of TAP devices and
    /// packet sockets.
    Debian,
    /// The newer one of its security updates (6.12).
    Newer,
}

impl Kernel {
    /// Returns whether its guest image is there, and notes a skipped test otherwise: `make
    /// test-long` downloads the newer one.
    pub fn has_image(self) -> bool {
        let there = paths::has_guest_image(self.image());
        if !there {
            skipped("no guest image with a newer kernel here: `make setup VIRTIO_IOMMU=1`");
        }
        there
    }

    fn image(self) -> &'static str {
        match self {
            Self::Debian => "",
            Self::Newer => paths::NEWER_KERNEL,
        }
    }
}

/// A running host; it ends when it is dropped.
pub struct Host {
    guest: Guest,
    /// Path of the tests that it runs, as the test program knows it.
    module: &'static str,
    _files: TempDir,
}

impl Host {
    /// Boots a host, and waits until it is up. It runs tests of the calling `module_path!()`.
    pub fn start(kernel: Kernel, module: &'static str) -> Self {
        let files = tempfile::Builder::new().prefix("lasthop-host-").tempdir();
        let files = files.expect("a temporary folder");
        let root = files.path().join("root");
        fill(&root.join(FOLDER)).expect("the files of a host");
        let archive = files.path().join("files.cpio");
        pack(&root, &archive).expect("an archive");
        fs::remove_dir_all(&root).expect("a folder of our own");
        let spec = GuestSpec::host("host", kernel.image(), MEMORY_MIB, &archive);
        let mut guest = spec.start().ready();
        guest.run(SET_UP);
        Self {
            guest,
            // Its first part is the test program.
            module: module.split_once("::").map_or("", |(_, path)| path),
            _files: files,
        }
    }

    /// Runs a shell script, and returns its exit status and what it wrote to both outputs.
    pub fn answer(&mut self, script: &str) -> Answer {
        let passed = PASSED.iter().filter_map(|name| {
            let value = std::env::var(name).ok()?;
            Some(format!("export {name}='{value}'\n"))
        });
        let passed: String = passed.collect();
        let script = format!(
            "export PATH=/{FOLDER}:$PATH LASTHOP_BIN=/{FOLDER} LASTHOP_ALL=1 {INSIDE}=1\n\
             {passed}cd /tmp\n{script}"
        );
        let answer = self.guest.start(&script).outcome(PATIENCE);
        answer.expect("the host stays")
    }

    /// Runs a shell script, which must succeed, and returns what it wrote.
    pub fn run(&mut self, script: &str) -> String {
        let Answer { status, output } = self.answer(script);
        assert_eq!(status, 0, "in the host: {script}\n{output}");
        output
    }

    /// Runs a test of the caller's module, by its name, which must pass. Returns what it wrote.
    pub fn test(&mut self, name: &str) -> String {
        let module = self.module;
        let output = self.run(&format!(
            "/{FOLDER}/test --exact {module}::{name} --nocapture"
        ));
        assert!(output.contains("1 passed"), "no test {name}: {output}");
        eprintln!("{output}");
        output
    }
}

/// Returns whether the calling process is in such a host.
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Moves the calling process, which is in a host, into a new control group with these of the
/// controllers "cpu", "memory" and "pids", delegated as a service manager does it
/// (<https://systemd.io/CGROUP_DELEGATION/>). What it starts is in the group, too.
pub fn enter_group(name: &str, controllers: &[&str]) {
    assert!(is_inside(), "control groups of this machine are not ours");
    let offer = |group: &Path, controllers: &[&str]| {
        let words = controllers.iter().map(|name| format!("+{name} "));
        let file = group.join("cgroup.subtree_control");
        fs::write(file, words.collect::<String>().trim_end()).expect("controllers of the kernel");
    };
    offer(Path::new(GROUPS), &["cpu", "memory", "pids"]);
    // A group has the controllers that the one above it offers.
    let above = Path::new(GROUPS).join(name);
    fs::create_dir(&above).expect("a new group");
    offer(&above, controllers);
    let own = above.join("delegated");
    fs::create_dir(&own).expect("a new group");
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&own, "user.delegate", b"1", flags).expect("an attribute");
    let process = std::process::id().to_string();
    fs::write(own.join("cgroup.procs"), process).expect("we may move");
}

/// Copies Lasthop, the calling program and those of this machine to a folder, and the libraries
/// that they need to where they are here.
fn fill(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for name in BINARIES {
        strip(&paths::binary(name), &folder.join(name))?;
    }
    strip(&std::env::current_exe()?, &folder.join("test"))?;
    for name in PROGRAMS {
        fs::copy(find(name)?, folder.join(name))?;
    }
    let root = folder.parent().unwrap_or(folder);
    for program in fs::read_dir(folder)? {
        for library in libraries(&program?.path())? {
            let copy = root.join(library.strip_prefix("/").unwrap_or(&library));
            fs::create_dir_all(copy.parent().unwrap_or(root))?;
            fs::copy(&library, &copy)?;
        }
    }
    Ok(())
}

/// Copies a program without its debug symbols, which are most of it.
fn strip(program: &Path, copy: &Path) -> io::Result<()> {
    let mut strip = Command::new("strip");
    output(strip.arg("-o").args([copy, program])).map(drop)
}

/// Returns the path of a program of this machine; administrators have more folders than others.
fn find(name: &str) -> io::Result<PathBuf> {
    let folders = ["/bin", "/sbin", "/usr/bin", "/usr/sbin"].map(Path::new);
    let mut paths = folders.map(|folder| folder.join(name)).into_iter();
    paths
        .find(|path| path.exists())
        .ok_or_else(|| io::Error::other(format!("no program {name} here")))
}

/// Returns the libraries of a program, and its loader.
fn libraries(program: &Path) -> io::Result<Vec<PathBuf>> {
    let listed = output(Command::new("ldd").arg(program))?;
    let words = listed.split_whitespace();
    let paths = words.filter(|word| word.starts_with('/') && !word.ends_with(':'));
    Ok(paths.map(PathBuf::from).collect())
}

/// Packs a folder as the kernel unpacks it (Linux, `early-userspace/buffer-format`).
fn pack(root: &Path, archive: &Path) -> io::Result<()> {
    let list = output(Command::new("find").arg(".").current_dir(root))?;
    let names = archive.with_extension("names");
    fs::write(&names, list)?;
    let mut cpio = Command::new("cpio");
    cpio.args(["--quiet", "-o", "-H", "newc", "-R", "0:0"]);
    cpio.current_dir(root).stdin(File::open(names)?);
    let status = cpio.stdout(File::create(archive)?).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("cpio: {status}")))
    }
}

/// Runs a program that must succeed; returns what it wrote.
fn output(command: &mut Command) -> io::Result<String> {
    let result = command.stdin(Stdio::null()).output()?;
    if result.status.success() {
        Ok(String::from_utf8_lossy(&result.stdout).into_owned())
    } else {
        let error = String::from_utf8_lossy(&result.stderr);
        Err(io::Error::other(format!("{command:?}: {}", error.trim())))
    }
}
