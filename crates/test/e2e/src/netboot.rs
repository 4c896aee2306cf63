//! Machines that boot over their network card with what firmware brings, and the server that they
//! boot from.
//!
//! What they boot is a program that works out a digest of itself, says it on a debug port, and
//! ends. So a test knows that every byte came, and that it was run.

mod image;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::paths;
use testkit::netns::Netns;
use testkit::process::{Process, print_end};
use testkit::wait::{LIMIT, within};

pub use image::{Image, efi, multiboot};

/// Path of EDK2 for QEMU in Debian (package `ovmf`).
const EDK2: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";
const EDK2_VARIABLES: &str = "/usr/share/OVMF/OVMF_VARS_4M.fd";
/// How long firmware may take from power-on to the end of what it boots.
const BOOT: Duration = Duration::from_secs(300);

/// A DHCP and TFTP server in a network namespace.
pub struct Server {
    process: Process,
}

impl Server {
    /// Serves the files of `folder` on `interface` to clients at 10.9.0.100 to 10.9.0.150, which
    /// are to boot `file`.
    pub fn start(netns: &Netns, interface: &str, folder: &Path, file: &str) -> Server {
        let netns = format!("--net={}", netns.path().display());
        let (root, leases) = (folder.display(), folder.join("leases"));
        let more = [
            format!("--interface={interface}"),
            format!("--tftp-root={root}"),
            format!("--dhcp-boot={file}"),
            format!("--dhcp-leasefile={}", leases.display()),
        ];
        // As root, because the folder is ours alone; no question whether an address is free, which
        // takes seconds.
        let fixed = "dnsmasq --keep-in-foreground --conf-file=/dev/null --pid-file= --user=root \
            --port=0 --bind-dynamic \
             --log-facility=- --log-dhcp --no-ping --dhcp-authoritative --enable-tftp \
             --dhcp-range=10.9.0.100,10.9.0.150,1h";
        let fixed = fixed.split_whitespace().map(str::to_owned);
        let args: Vec<String> = [netns].into_iter().chain(fixed).chain(more).collect();
        let log = folder.join("dnsmasq.log");
        let mut process = Process::start("dnsmasq", "nsenter", &args, &log);
        process.printed("dnsmasq serves", LIMIT, |line| {
            line.contains("TFTP root is")
        });
        Server { process }
    }

    /// Returns whether a file was sent to its end: its last block was acknowledged.
    pub fn has_sent(&self, file: &str) -> bool {
        let log = self.process.output();
        log.lines().any(|line| {
            let sent = line.split_once(": sent ").map(|(_, what)| what);
            sent.is_some_and(|what| what.contains(&format!("/{file} to ")))
        })
    }

    /// Returns the server's log.
    pub fn log(&self) -> String {
        self.process.output()
    }
}

/// Firmware of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Firmware {
    /// SeaBIOS, and iPXE from the card's ROM (package `ipxe-qemu`), as QEMU has them by default.
    Bios,
    /// EDK2 with its own driver.
    Edk2,
}

/// A machine without a disk; killed when dropped.
pub struct Machine {
    process: Process,
    folder: TempDir,
}

impl Machine {
    /// Starts QEMU with a network card at the switch's listening `socket`; `card` is what is said
    /// of it beyond QEMU's defaults, as `,disable-legacy=on`.
    pub fn start(firmware: Firmware, socket: &Path, card: &str) -> Machine {
        testkit::turn::needs_turn("firmware in QEMU", true);
        let folder = tempfile::Builder::new()
            .prefix("lasthop-firmware-")
            .tempdir()
            .expect("a temporary folder");
        let args = arguments(firmware, socket, card, folder.path());
        let log = folder.path().join("qemu.log");
        let process = Process::start("QEMU", "qemu-system-x86_64", &args, &log);
        Machine { process, folder }
    }

    /// Waits until it has booted, and gives the digest that the booted program said.
    pub fn digest(&mut self) -> u32 {
        let said = self.folder.path().join("said");
        let digest = within(BOOT, || {
            if let Some(status) = self.process.ended() {
                panic!("QEMU ended with {status}: {}", self.process.output());
            }
            let bytes = fs::read(&said).ok()?;
            Some(u32::from_le_bytes(*bytes.first_chunk()?))
        });
        digest.expect("a digest of what was booted")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let console = fs::read(self.folder.path().join("console")).unwrap_or_default();
            print_end("the firmware's console", &String::from_utf8_lossy(&console));
        }
    }
}

fn arguments(firmware: Firmware, socket: &Path, card: &str, folder: &Path) -> Vec<String> {
    let (accel, cpu) = match paths::accelerator() {
        "kvm" => ("kvm", "host"),
        _ => ("tcg,tb-size=64", "max"),
    };
    // QEMU 7.2 crashes with vhost-user and MSI-X under emulation.
    let vectors = if accel == "kvm" { "" } else { ",vectors=0" };
    let path = |name: &str| folder.join(name).display().to_string();
    let mut args: Vec<String> = format!(
        "-M q35 -accel {accel} -cpu {cpu} -m 256 -nographic -nodefaults -no-reboot \
         -object memory-backend-memfd,id=m,size=256M,share=on -numa node,memdev=m \
         -netdev vhost-user,id=net0,chardev=n0 -device isa-debugcon,iobase={:#x},chardev=said \
         -device virtio-net-pci,netdev=net0,mac=52:54:00:00:00:01,bootindex=1{vectors}{card}",
        image::PORT
    )
    .split_whitespace()
    .map(str::to_owned)
    .collect();
    let chardev = |what: String| ["-chardev".to_owned(), what];
    args.extend(chardev(format!(
        "socket,id=n0,path={},reconnect=1",
        socket.display()
    )));
    args.extend(chardev(format!("file,id=said,path={}", path("said"))));
    args.extend(["-serial".into(), format!("file:{}", path("console"))]);
    if firmware == Firmware::Edk2 {
        let variables = PathBuf::from(path("variables"));
        fs::copy(EDK2_VARIABLES, &variables).expect("EDK2 is installed (package ovmf)");
        let flash = "if=pflash,format=raw";
        for drive in [
            format!("{flash},unit=0,readonly=on,file={EDK2}"),
            format!("{flash},unit=1,file={}", variables.display()),
        ] {
            args.extend(["-drive".to_owned(), drive]);
        }
    }
    args
}
