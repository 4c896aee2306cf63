//! Linux guests in QEMU: Debian's cloud kernel, busybox, iperf3, and an agent that runs commands.
//!
//! The command line follows what is known to work: `vectors=0` because QEMU 7.2 crashes with
//! vhost-user and MSI-X under emulation, `no_timer_check` because guests hang at boot now and then
//! without it.

use std::fs::File;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::agent::{Agent, Job};
use crate::iommu::Iommu;
use crate::lasthop::Lasthop;
use crate::nobody;
use crate::paths;
use crate::qmp::Qmp;
use testkit::netns::Netns;
use testkit::process::{Process, print_end};
use testkit::wait::{LIMIT, within};

/// After so long a guest that has not come up is taken for one that hangs.
const HANGS: Duration = Duration::from_secs(60);
/// How long a guest may take to come up; emulated guests on a busy machine are slow.
const BOOT: Duration = Duration::from_secs(180);
/// How long an ordinary command in a guest may take.
const COMMAND: Duration = Duration::from_secs(120);

/// Guests at the ports "vm1" and "vm2", with the addresses 10.0.0.1 and 10.0.0.2, that are up.
pub fn two_guests(lasthop: &Lasthop) -> (Guest, Guest) {
    let specs = [("vm1", 1), ("vm2", 2)].map(|(port, n)| GuestSpec::at(lasthop, port, n));
    let [one, two] = boot(specs);
    (one, two)
}

/// Boots guests at once; returns them when they are up.
pub fn boot<const N: usize>(specs: [GuestSpec; N]) -> [Guest; N] {
    specs.map(|spec| spec.start()).map(Guest::ready)
}

/// Back end of the guest's network card.
#[derive(Debug, Clone)]
enum Plug {
    /// A vhost-user socket; `listen` when QEMU listens and the switch dials.
    VhostUser { socket: PathBuf, listen: bool },
    /// A network that QEMU or another program makes: options of `-netdev` without its id.
    Netdev(String),
    /// Another QEMU, without any switch; frames go over a stream socket.
    BackToBack { socket: PathBuf, listen: bool },
    /// No network card at all.
    None,
}

/// A guest to be started.
#[derive(Debug, Clone)]
pub struct GuestSpec {
    name: String,
    plug: Plug,
    mac: String,
    kernel_args: Vec<String>,
    device_options: Vec<String>,
    pairs: u32,
    memory_mib: u32,
    memory: Memory,
    arrival: Option<PathBuf>,
    names_threads: bool,
    iommu: Option<Iommu>,
    /// Folder of the guest image, below that of all images.
    image: PathBuf,
    /// An uncompressed cpio archive with more files.
    files: Option<PathBuf>,
    /// Archives of the guest image behind `guest.gz`.
    archives: Vec<&'static str>,
    /// The socket of a second vhost-user port: the card `eth1`.
    second: Option<PathBuf>,
    /// The namespace in which QEMU runs, as `nobody`.
    namespace: Option<PathBuf>,
}

/// Backing of a guest's memory.
#[derive(Clone, Copy, Debug)]
enum Memory {
    Shared,
    Private,
    WithoutFile,
}

impl Memory {
    /// QEMU's option `share`, where there is a file.
    fn share(self) -> Option<&'static str> {
        match self {
            Memory::Shared => Some("on"),
            Memory::Private => Some("off"),
            Memory::WithoutFile => None,
        }
    }
}

impl GuestSpec {
    fn new(name: &str, plug: Plug) -> GuestSpec {
        GuestSpec {
            name: name.to_owned(),
            plug,
            mac: mac_of(name),
            kernel_args: vec!["ipv6.disable=1".to_owned()],
            device_options: Vec::new(),
            pairs: 1,
            memory_mib: 96,
            memory: Memory::Shared,
            arrival: None,
            names_threads: true,
            iommu: None,
            image: PathBuf::new(),
            files: None,
            archives: Vec::new(),
            second: None,
            namespace: None,
        }
    }

    /// A guest without a network card that has the modules of a host and these `files`, an
    /// uncompressed cpio archive. The guest image is in the folder `image` below that of all
    /// images.
    pub(crate) fn host(name: &str, image: &str, memory_mib: u32, files: &Path) -> GuestSpec {
        GuestSpec {
            memory_mib,
            memory: Memory::WithoutFile,
            image: image.into(),
            files: Some(files.to_owned()),
            archives: vec!["host-modules.gz"],
            ..GuestSpec::new(name, Plug::None)
        }
    }

    /// The same guest with keepalived and `/router-modules`, and memory for them.
    pub fn router(mut self) -> GuestSpec {
        self.archives.push("router.gz");
        self.memory_mib = 160;
        self
    }

    /// The same guest with a second card, `eth1`, at another port of Lasthop's.
    pub fn second_card(mut self, lasthop: &Lasthop, port: &str) -> GuestSpec {
        self.second = Some(lasthop.socket_of(port));
        self
    }

    /// A guest for a port of Lasthop's, with the address 10.0.0.`number`.
    pub fn at(lasthop: &Lasthop, port: &str, number: u8) -> GuestSpec {
        GuestSpec::dialing(port, lasthop.socket_of(port)).ip(&format!("10.0.0.{number}/24"))
    }

    /// A guest whose QEMU dials the switch's listening `socket`, and dials again after a
    /// disconnect.
    pub fn dialing(name: &str, socket: PathBuf) -> GuestSpec {
        GuestSpec::new(
            name,
            Plug::VhostUser {
                socket,
                listen: false,
            },
        )
    }

    /// A guest whose QEMU listens on `socket`, for a port in the client role.
    pub fn listening(name: &str, socket: PathBuf) -> GuestSpec {
        GuestSpec::new(
            name,
            Plug::VhostUser {
                socket,
                listen: true,
            },
        )
    }

    /// A guest that is connected to another one without a switch. The listening one must be started
    /// first.
    pub fn back_to_back(name: &str, socket: PathBuf, listen: bool) -> GuestSpec {
        GuestSpec::new(name, Plug::BackToBack { socket, listen })
    }

    /// A guest with a network of QEMU's own: options of `-netdev` without its id.
    pub fn netdev(name: &str, options: &str) -> GuestSpec {
        GuestSpec::new(name, Plug::Netdev(options.to_owned()))
    }

    /// QEMU runs as `nobody`, in a namespace.
    pub fn as_nobody(mut self, namespace: &Netns) -> GuestSpec {
        self.namespace = Some(namespace.path());
        self
    }

    /// The address of `eth0`, with prefix length: `10.0.0.1/24`.
    pub fn ip(self, address: &str) -> GuestSpec {
        self.kernel_arg(format!("lasthop.ip={address}"))
    }

    /// The MTU of `eth0`, offered to the guest through `VIRTIO_NET_F_MTU`.
    pub fn mtu(self, mtu: u16) -> GuestSpec {
        self.kernel_arg(format!("lasthop.mtu={mtu}"))
            .device_option(&format!("host_mtu={mtu}"))
    }

    /// VLAN sub-interfaces of `eth0`, as `10:10.1.0.1/24,20:10.2.0.1/24`.
    pub fn vlans(self, vlans: &str) -> GuestSpec {
        self.kernel_arg(format!("lasthop.vlan={vlans}"))
    }

    /// The MAC address; by default it is made from the name.
    pub fn mac(mut self, mac: &str) -> GuestSpec {
        mac.clone_into(&mut self.mac);
        self
    }

    /// Queue pairs; the guest gets as many CPUs, and its driver then uses them all.
    pub fn pairs(mut self, pairs: u32) -> GuestSpec {
        self.pairs = pairs;
        self.device_option("mq=on")
    }

    /// A QEMU that does not name its threads.
    pub fn without_thread_names(mut self) -> GuestSpec {
        self.names_threads = false;
        self
    }

    /// Memory that QEMU keeps to itself, although it hands a file over: nothing that the guest
    /// writes is seen.
    pub fn private_memory(mut self) -> GuestSpec {
        self.memory = Memory::Private;
        self
    }

    /// Memory for which QEMU has no file at all, as it makes it by default: none can be shared.
    pub fn memory_without_file(mut self) -> GuestSpec {
        self.memory = Memory::WithoutFile;
        self
    }

    /// Returns the same guest at another socket, on the same side of it, as a migration target: its
    /// source is the QEMU in which it runs now ([`Guest::migrate`]).
    pub fn arriving(mut self, there: PathBuf, migration: &Path) -> GuestSpec {
        match &mut self.plug {
            Plug::VhostUser { socket, .. } | Plug::BackToBack { socket, .. } => *socket = there,
            Plug::Netdev(_) | Plug::None => panic!("such a guest does not migrate"),
        }
        self.arrival = Some(migration.to_owned());
        self
    }

    /// A guest whose card is behind an IOMMU.
    pub fn iommu(mut self, iommu: Iommu) -> GuestSpec {
        self.iommu = Some(iommu);
        self.image = iommu.image().into();
        self.kernel_arg(iommu.kernel_arguments().to_owned())
            .device_option(iommu.card())
    }

    /// Packed queues instead of split ones.
    pub fn packed(self) -> GuestSpec {
        self.device_option("packed=on")
    }

    /// No checksum or segmentation offload in either direction.
    pub fn no_offloads(mut self) -> GuestSpec {
        let names = [
            "csum",
            "gso",
            "host_tso4",
            "host_tso6",
            "host_ecn",
            "host_ufo",
        ];
        let guest_names = [
            "guest_csum",
            "guest_tso4",
            "guest_tso6",
            "guest_ecn",
            "guest_ufo",
        ];
        self.device_options.extend(
            names
                .iter()
                .chain(&guest_names)
                .map(|name| format!("{name}=off")),
        );
        self
    }

    /// With IPv6, which is off by default because its announcements disturb exact counters.
    pub fn ipv6(mut self) -> GuestSpec {
        self.kernel_args.retain(|arg| arg != "ipv6.disable=1");
        self
    }

    fn kernel_arg(mut self, arg: String) -> GuestSpec {
        self.kernel_args.push(arg);
        self
    }

    /// An option of QEMU's `virtio-net-pci` device.
    pub fn device_option(mut self, option: &str) -> GuestSpec {
        self.device_options.push(option.to_owned());
        self
    }

    /// QEMU's arguments; its own sockets and logs are in `folder`.
    fn arguments(&self, folder: &Path) -> Vec<String> {
        let path = |name: &str| folder.join(name).display().to_string();
        let accel = paths::accelerator();
        let (accel, cpu) = if accel == "kvm" {
            ("kvm", "host")
        } else {
            ("tcg,tb-size=64", "max")
        };
        let mut args = words(&format!(
            "-M q35 -accel {accel} -cpu {cpu} -smp {} -m {}",
            self.pairs, self.memory_mib
        ));
        if self.names_threads {
            args.extend(["-name".into(), format!("{},debug-threads=on", self.name)]);
        }
        if let Some(share) = self.memory.share() {
            let memory = self.memory_mib;
            args.extend(words(&format!(
                "-object memory-backend-memfd,id=m,size={memory}M,share={share} -numa node,memdev=m"
            )));
        }
        args.extend(words("-nographic -nodefaults"));
        args.extend(["-serial".into(), format!("file:{}", path("console"))]);
        args.extend([
            "-chardev".into(),
            format!("socket,id=agent,path={}", path("agent")),
        ]);
        args.extend([
            "-chardev".into(),
            format!("socket,id=qmp,path={}", path("qmp")),
        ]);
        args.extend(words("-serial chardev:agent -mon chardev=qmp,mode=control"));
        args.extend(["-kernel".into(), self.image("vmlinux")]);
        args.extend(["-initrd".into(), self.initramfs(folder)]);
        args.extend(["-append".into(), self.kernel_command_line()]);
        args.extend(self.iommu.map(Iommu::devices).unwrap_or_default());
        args.extend(self.plug_arguments());
        if let Some(socket) = &self.arrival {
            args.extend(["-incoming".into(), format!("unix:{}", socket.display())]);
        }
        args
    }

    /// Returns the path of a file of the guest image.
    fn image(&self, file: &str) -> String {
        paths::cache(self.image.join(file)).display().to_string()
    }

    /// Returns the path of the guest's first file system: the kernel unpacks archives one behind
    /// another. An uncompressed one comes first, because it has to begin at a multiple of 4 bytes.
    fn initramfs(&self, folder: &Path) -> String {
        if self.files.is_none() && self.archives.is_empty() {
            return self.image("guest.gz");
        }
        let whole = folder.join("initramfs");
        let mut out = File::create(&whole).expect("a file in our own folder");
        let archives = ["guest.gz"].iter().chain(&self.archives);
        let archives = archives.map(|file| PathBuf::from(self.image(file)));
        for part in self.files.clone().into_iter().chain(archives) {
            let mut part = File::open(part).expect("an archive");
            std::io::copy(&mut part, &mut out).expect("space for the archives");
        }
        whole.display().to_string()
    }

    fn kernel_command_line(&self) -> String {
        // Tests of ciphers and work against faults of CPUs would take a quarter of the boot.
        let fixed = "console=ttyS0 quiet no_timer_check tsc=reliable panic=-1 \
                     cryptomgr.notests mitigations=off";
        format!("{fixed} {}", self.kernel_args.join(" "))
    }

    fn plug_arguments(&self) -> Vec<String> {
        let mut arguments = match &self.plug {
            Plug::None => return Vec::new(),
            Plug::VhostUser { socket, listen } => self.vhost_user(0, socket, *listen),
            Plug::Netdev(options) => vec!["-netdev".into(), format!("{options},id=net0")],
            Plug::BackToBack { socket, listen } => {
                let server = if *listen { "on" } else { "off" };
                let address = format!("addr.type=unix,addr.path={}", socket.display());
                vec![
                    "-netdev".into(),
                    format!("stream,id=net0,server={server},{address}"),
                ]
            }
        };
        arguments.extend(["-device".into(), self.device(0, &self.mac)]);
        if let Some(socket) = &self.second {
            arguments.extend(self.vhost_user(1, socket, false));
            let mac = mac_of(&format!("{}, second card", self.name));
            arguments.extend(["-device".into(), self.device(1, &mac)]);
        }
        arguments
    }

    fn vhost_user(&self, card: u8, socket: &Path, listen: bool) -> Vec<String> {
        let mode = if listen {
            "server=on,wait=off"
        } else {
            "reconnect=1"
        };
        let chardev = format!("socket,id=n{card},path={},{mode}", socket.display());
        let queues = self.pairs;
        let netdev = format!("vhost-user,id=net{card},chardev=n{card},queues={queues}");
        vec!["-chardev".into(), chardev, "-netdev".into(), netdev]
    }

    fn device(&self, card: u8, mac: &str) -> String {
        let mut device = format!("virtio-net-pci,netdev=net{card},mac={mac},romfile=");
        if paths::accelerator() != "kvm" {
            device.push_str(",vectors=0");
        }
        for option in &self.device_options {
            device.push(',');
            device.push_str(option);
        }
        device
    }

    /// Starts QEMU and returns at once: several guests boot side by side. See [`Guest::ready`].
    pub fn start(self) -> Guest {
        testkit::turn::needs_turn("a guest of QEMU", true);
        let folder = tempfile::Builder::new()
            .prefix("lasthop-guest-")
            .tempdir()
            .expect("a temporary folder");
        let listen = |name| {
            UnixListener::bind(folder.path().join(name)).expect("a socket in our own folder")
        };
        let (agent, qmp) = (listen("agent"), listen("qmp"));
        let args = self.arguments(folder.path());
        let log = folder.path().join("qemu.log");
        let mut command = Command::new("qemu-system-x86_64");
        command.args(&args);
        if let Some(namespace) = &self.namespace {
            nobody::give(&[
                folder.path(),
                &folder.path().join("agent"),
                &folder.path().join("qmp"),
            ]);
            command = nobody::command(&command, namespace);
        }
        let begun = Instant::now();
        let process = Process::spawn(&format!("QEMU {}", self.name), command, &log);
        let mut process = process.unwrap_or_else(|error| panic!("{error}"));
        let agent = Agent::new(accept(&agent, &mut process));
        let qmp = accept(&qmp, &mut process);
        Guest {
            name: self.name,
            process,
            agent,
            qmp: QmpLater::Stream(qmp),
            folder,
            begun,
        }
    }
}

/// A locally administered MAC address that belongs to a name.
pub fn mac_of(name: &str) -> String {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let [a, b, c, _] = hash.to_be_bytes();
    format!("52:54:00:{a:02x}:{b:02x}:{c:02x}")
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// QEMU's connection to one of our sockets.
fn accept(listener: &UnixListener, process: &mut Process) -> UnixStream {
    listener
        .set_nonblocking(true)
        .expect("a socket can be non-blocking");
    let stream = within(LIMIT, || match listener.accept() {
        Ok((stream, _)) => Some(stream),
        Err(_) => process
            .ended()
            .map(|status| panic!("QEMU ended with {status}: {}", process.output())),
    });
    let stream = stream.expect("QEMU connects");
    stream
        .set_nonblocking(false)
        .expect("a socket can be blocking");
    stream
}

/// The control connection. QEMU speaks only once it runs: where it waits for the switch, that is
/// later.
enum QmpLater {
    Stream(UnixStream),
    Ready(Qmp),
    Taken,
}

/// A running guest; QEMU is killed when it is dropped.
pub struct Guest {
    name: String,
    process: Process,
    agent: Agent,
    qmp: QmpLater,
    folder: TempDir,
    /// When the guest was started, last of all.
    begun: Instant,
}

impl Guest {
    /// Waits until the guest has come up.
    pub fn ready(mut self) -> Guest {
        self.wait_boot(1);
        self
    }

    /// Waits until the guest has come up. An emulated guest on a busy machine is reset once for
    /// each of two faults: kernels on several processors have hung early at boot, before their
    /// drivers, and a kernel's clock has run too fast, see [`Guest::clock_runs_fast`].
    fn wait_boot(&mut self, boot: u32) {
        let emulated = paths::accelerator() != "kvm";
        if emulated && !self.agent.ready(boot, HANGS) {
            let pointers = self.instruction_pointers();
            let name = &self.name;
            eprintln!("guest {name} hangs at boot and is reset:\n{pointers}");
            self.push_reset();
        }
        self.wait_up(boot);
        if emulated && self.clock_runs_fast() {
            let measured = self.run("dmesg | grep tsc: || true");
            let name = &self.name;
            eprintln!("the clock of guest {name} runs fast, and it is reset:\n{measured}");
            let boots = self.agent.boots();
            self.push_reset();
            self.wait_up(boots + 1);
        }
    }

    fn wait_up(&self, boot: u32) {
        assert!(
            self.agent.ready(boot, BOOT),
            "guest {} did not come up within {BOOT:?}",
            self.name
        );
    }

    fn push_reset(&mut self) {
        self.begun = Instant::now();
        self.control("system_reset", json!({}));
    }

    /// Returns whether the guest has counted more than twice the time since its start. A guest that
    /// had counted sixty times as much gave up neighbours and replies before they could answer.
    fn clock_runs_fast(&mut self) -> bool {
        let uptime = self.run("cat /proc/uptime");
        let seconds = uptime.split(' ').next().and_then(|word| word.parse().ok());
        let seconds: f64 = seconds.unwrap_or_else(|| panic!("no uptime: {uptime}"));
        seconds > 2.0 * self.begun.elapsed().as_secs_f64()
    }

    /// Returns the lines of the processors' registers that say what is executed.
    fn instruction_pointers(&mut self) -> String {
        let arguments = json!({"command-line": "info registers -a"});
        let registers = self.control("human-monitor-command", arguments);
        let lines = registers.as_str().unwrap_or_default().lines();
        let lines = lines.filter(|line| line.contains("CPU#") || line.contains("IP="));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Starts a shell command in the guest.
    pub fn start(&mut self, command: &str) -> Job {
        self.agent.start(command)
    }

    /// How often the driver has seen its link go or come.
    pub fn link_changes(&mut self) -> String {
        self.run("cat /sys/class/net/eth0/carrier_changes")
    }

    /// Runs a shell command in the guest, which must succeed, and gives its output.
    pub fn run(&mut self, command: &str) -> String {
        self.start(command).wait(COMMAND)
    }

    /// Runs a shell command in the guest and gives its exit status.
    pub fn status(&mut self, command: &str) -> i32 {
        self.start(command)
            .outcome(COMMAND)
            .map_or(-1, |answer| answer.status)
    }

    /// Resets the guest as a push of the reset button does, and waits until it is up again.
    pub fn reset(&mut self) {
        let boots = self.agent.boots();
        self.push_reset();
        self.wait_boot(boots + 1);
    }

    /// Reboots the guest from inside, as a distribution does that takes the network down first, and
    /// waits until it is up again. Without that, Linux 6.1 hangs now and then under load: its
    /// shutdown marks the device as broken, and `start_xmit` waits without end for buffers that a
    /// broken queue never returns.
    pub fn reboot(&mut self) {
        let boots = self.agent.boots();
        self.begun = Instant::now();
        drop(self.start("ip link set eth0 down; reboot -f"));
        self.wait_boot(boots + 1);
    }

    /// Runs a command of QEMU's machine protocol.
    pub fn control(&mut self, command: &str, arguments: Value) -> Value {
        self.qmp = match std::mem::replace(&mut self.qmp, QmpLater::Taken) {
            QmpLater::Stream(stream) => QmpLater::Ready(Qmp::new(stream)),
            other => other,
        };
        let QmpLater::Ready(qmp) = &mut self.qmp else {
            panic!("no control connection to {}", self.name)
        };
        qmp.execute(command, arguments)
    }

    /// Stops the guest's CPUs; the network card stays plugged.
    pub fn pause(&mut self) {
        self.control("stop", json!({}));
    }

    /// Resumes a paused guest.
    pub fn resume(&mut self) {
        self.control("cont", json!({}));
    }

    /// `kill -9` of QEMU.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Asks QEMU to end, as an operator does, and waits for it.
    pub fn quit(&mut self) -> ExitStatus {
        self.process.signal(Signal::TERM);
        self.process.end(LIMIT).expect("QEMU ends on SIGTERM")
    }

    /// Returns the output of QEMU itself: its errors about the back end, among others.
    pub fn qemu_output(&self) -> String {
        self.process.output()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let console = std::fs::read(self.folder.path().join("console")).unwrap_or_default();
            print_end(
                &format!("{}'s console", self.name),
                &String::from_utf8_lossy(&console),
            );
        }
    }
}
