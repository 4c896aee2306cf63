//! A libvirtd of a test's own, with private domains, directories and users.
//!
//! It lives in namespaces of its own: its `/etc/libvirt`, `/var/lib/libvirt` and similar are the
//! test's, and a running libvirtd is not touched. All domains end with the process namespace, and
//! so when the handle is dropped.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use tempfile::TempDir;
use testkit::is_complete_run;
use testkit::process::{Process, print_end};
use testkit::procfs;
use testkit::wait::{wait_for, within};

use crate::agent::Agent;
use crate::paths;

/// How long virsh may take for a command.
const COMMAND: Duration = Duration::from_secs(60);
/// How long a guest may take to come up.
const BOOT: Duration = Duration::from_secs(60);

/// Paths of Debian (packages `libvirt-daemon-system` and `libvirt-clients`).
const PROGRAMS: [&str; 2] = ["/usr/sbin/libvirtd", "/usr/bin/virsh"];

/// Directories of libvirt that get a double, with the owner and the mode that the package has given
/// them.
const DIRECTORIES: [&str; 7] = [
    "/etc/libvirt",
    "/var/lib/libvirt",
    "/var/lib/libvirt/qemu",
    "/var/cache/libvirt",
    "/var/cache/libvirt/qemu",
    "/var/log/libvirt",
    "/var/log/libvirt/qemu",
];

/// Namespaces of its own, as `unshare` makes them; all processes in them die with it.
const NAMESPACES: [&str; 6] = [
    "--mount",
    "--pid",
    "--net",
    "--fork",
    "--kill-child",
    "--mount-proc",
];

/// Process 1 of the namespaces; `$1` is the folder with the doubles. It collects the VMMs that have
/// ended, which libvirtd has no interest in. `/run` has what would reach the machine's services,
/// and control groups would stay behind.
const INIT: &str = r#"
    set -e
    for path in etc/passwd etc/group etc/libvirt \
        var/lib/libvirt var/cache/libvirt var/log/libvirt; do
        mount --bind "$1/$path" "/$path"
    done
    mount -t tmpfs -o mode=755 tmpfs /run
    umount --recursive --lazy /sys/fs/cgroup || true
    /usr/sbin/libvirtd --config /etc/libvirt/libvirtd.conf &
    wait
"#;

/// A running libvirtd.
pub struct Libvirt {
    process: Process,
    folder: TempDir,
}

impl Libvirt {
    /// Returns whether libvirt is installed, and we may start it. If not, says so: the test is to
    /// be skipped. Panics where it is not installed and nothing may be left out.
    pub fn allowed() -> bool {
        if !PROGRAMS.iter().all(|program| Path::new(program).exists()) {
            let why = "no libvirt here: `make setup LIBVIRT=1` installs it";
            assert!(!is_complete_run(), "{why}");
            eprintln!("skipped: {why}");
            return false;
        }
        let tried = Command::new("unshare")
            .args(NAMESPACES)
            .arg("true")
            .output();
        let why = match tried {
            _ if !rustix::process::geteuid().is_root() => "only root has several users".to_owned(),
            Err(error) => format!("unshare: {error}"),
            Ok(output) if !output.status.success() => {
                String::from_utf8_lossy(&output.stderr).trim().to_owned()
            }
            Ok(_) => return true,
        };
        testkit::skip::skipped(format!("no libvirtd of our own here ({why})"));
        false
    }

    /// Starts it for a machine that has the group `lasthop` and the users that these commands
    /// (`useradd ... NAME`) make.
    pub fn start(useradd: &[String]) -> Libvirt {
        testkit::turn::needs_turn("libvirt", true);
        let folder = tempfile::Builder::new()
            .prefix("lasthop-libvirt-")
            .tempdir()
            .expect("a temporary folder");
        let root = folder.path();
        // Domains get at their consoles in it.
        open(root, 0o755);
        for directory in DIRECTORIES {
            double(root, directory);
        }
        for file in ["/etc/passwd", "/etc/group"] {
            fs::copy(file, below(root, file)).expect("everybody may read it");
        }
        add(root, "groupadd --force --system lasthop");
        for command in useradd {
            add(root, command);
        }
        configure(root);
        // libvirtd looks for hooks at its start only.
        write_hook(root, "");
        let mut args = NAMESPACES.map(str::to_owned).to_vec();
        args.extend(["sh", "-c", INIT, "init"].map(str::to_owned));
        args.push(root.display().to_string());
        let process = Process::start("libvirtd", "unshare", &args, &root.join("libvirtd.log"));
        let mut libvirt = Libvirt { process, folder };
        libvirt.wait();
        libvirt
    }

    fn wait(&mut self) {
        wait_for("libvirtd answers", || {
            if let Some(status) = self.process.ended() {
                panic!("libvirtd ended with {status}: {}", self.process.output());
            }
            let listens = self.folder.path().join("libvirt-sock").exists();
            (listens && self.try_virsh(&["uri"]).0.success()).then_some(())
        });
    }

    /// The number of one of its users.
    pub fn user(&self, name: &str) -> u32 {
        number(&below(self.folder.path(), "/etc/passwd"), name)
    }

    /// The number of one of its groups.
    pub fn group(&self, name: &str) -> u32 {
        number(&below(self.folder.path(), "/etc/group"), name)
    }

    /// Runs virsh, which must succeed, and gives what it printed.
    pub fn virsh(&self, args: &[&str]) -> String {
        let (status, said) = self.try_virsh(args);
        assert!(status.success(), "virsh {args:?}: {status}: {said}");
        said
    }

    fn try_virsh(&self, args: &[&str]) -> (ExitStatus, String) {
        let mut virsh = self.start_virsh(args);
        let status = virsh.end(COMMAND);
        let status = status.unwrap_or_else(|| panic!("virsh {args:?} takes more than {COMMAND:?}"));
        (status, virsh.output())
    }

    /// Starts virsh with something that may not come to an end.
    pub fn start_virsh(&self, args: &[&str]) -> Process {
        let folder = self.folder.path();
        let socket = folder.join("libvirt-sock");
        let uri = format!("qemu+unix:///system?socket={}", socket.display());
        let args: Vec<String> = ["--quiet", "--connect", &uri]
            .iter()
            .chain(args)
            .map(|&arg| arg.to_owned())
            .collect();
        let log = args.last().map_or("virsh", String::as_str);
        let log = folder.join(format!("virsh-{}.log", log.replace('/', "_")));
        Process::start("virsh", "virsh", &args, &log)
    }

    /// Replaces the hook of the QEMU driver, a shell script, which does nothing at first.
    pub fn set_hook(&self, script: &str) {
        write_hook(self.folder.path(), script);
    }

    /// Returns the directory with the state of each running domain, as seen from outside.
    pub fn states(&self) -> PathBuf {
        let inside = procfs::children(self.process.pid());
        let [init] = inside[..] else {
            panic!("unshare has the children {inside:?}")
        };
        PathBuf::from(format!("/proc/{init}/root/run/libvirt/qemu"))
    }

    /// Creates a place for a domain's files: any user may use it.
    pub fn place(&self, name: &str) -> Place {
        let folder = self.folder.path().join(name);
        fs::create_dir(&folder).expect("a folder in ours");
        // libvirt gives these to the user of the domain, so each has its own.
        for file in ["vmlinux", "guest.gz"] {
            fs::copy(paths::cache(file), folder.join(file)).expect("room for a guest image");
        }
        let agent = UnixListener::bind(folder.join("agent")).expect("a socket in our own folder");
        agent
            .set_nonblocking(true)
            .expect("a socket can be non-blocking");
        Place { folder, agent }
    }

    /// Starts a domain that is defined, and waits until its guest has come up.
    pub fn boot(&self, name: &str, place: &Place) -> Agent {
        self.virsh(&["start", name]);
        let stream = within(BOOT, || place.agent.accept().ok());
        let (stream, _) = stream.expect("QEMU has connected");
        stream
            .set_nonblocking(false)
            .expect("a socket can be blocking");
        let agent = Agent::new(stream);
        assert!(agent.ready(1, BOOT), "{name} did not come up");
        agent
    }

    /// Returns the output of a domain's QEMU.
    pub fn qemu_output(&self, domain: &str) -> String {
        let log = format!("/var/log/libvirt/qemu/{domain}.log");
        let log = fs::read(below(self.folder.path(), &log)).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Ends it. There must be no domain any more, and no process of these users may be left.
    pub fn stop(self, users: &[u32]) {
        assert_eq!(self.virsh(&["list", "--all", "--name"]).trim(), "");
        drop(self);
        wait_for("the end of all VMMs", || {
            let none = users.iter().all(|&user| procfs::of_user(user).is_empty());
            none.then_some(())
        });
    }

    fn print_logs(&self) {
        let logs = below(self.folder.path(), "/var/log/libvirt/qemu");
        let places = fs::read_dir(self.folder.path()).into_iter().flatten();
        let consoles = places.flatten().map(|place| place.path().join("console"));
        let logs = fs::read_dir(logs).into_iter().flatten().flatten();
        for log in logs.map(|log| log.path()).chain(consoles) {
            if let Ok(text) = fs::read(&log) {
                print_end(&log.display().to_string(), &String::from_utf8_lossy(&text));
            }
        }
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_logs();
        }
    }
}

/// Directory where a domain finds its kernel (`vmlinux`, `guest.gz`), writes its console
/// (`console`) and connects to the agent (`agent`).
pub struct Place {
    folder: PathBuf,
    agent: UnixListener,
}

impl Place {
    /// One of these files.
    pub fn path(&self, file: &str) -> String {
        self.folder.join(file).display().to_string()
    }
}

/// The double of a path of the machine's.
fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn open(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("a file of ours");
}

fn double(root: &Path, directory: &str) {
    let there = fs::metadata(directory).unwrap_or_else(|error| panic!("{directory}: {error}"));
    let double = below(root, directory);
    fs::create_dir_all(&double).expect("a folder in ours");
    chown(&double, Some(there.uid()), Some(there.gid())).expect("we are root");
    open(&double, there.mode() & 0o7777);
}

/// Runs `useradd` or `groupadd` for the doubles of `/etc/passwd` and `/etc/group`.
fn add(root: &Path, command: &str) {
    let mut words = command.split_whitespace();
    let program = words.next().expect("a command");
    let output = Command::new(program)
        .arg("--prefix")
        .arg(root)
        .args(words)
        .output();
    let output = output.unwrap_or_else(|error| panic!("{command}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {said}");
}

fn number(file: &Path, name: &str) -> u32 {
    let text = fs::read_to_string(file).expect("a file of ours");
    let mut lines = text.lines().map(|line| line.split(':'));
    let number = lines.find_map(|mut line| (line.next()? == name).then(|| line.nth(1))?);
    let number = number.unwrap_or_else(|| panic!("no {name} in {}", file.display()));
    number.parse().expect("users and groups have numbers")
}

fn write_hook(root: &Path, script: &str) {
    let hook = below(root, "/etc/libvirt/hooks/qemu.d/lasthop");
    fs::create_dir_all(hook.parent().expect("a folder")).expect("a folder in ours");
    fs::write(&hook, format!("#!/bin/sh\n{script}\n")).expect("a file of ours");
    open(&hook, 0o755);
}

/// Sockets for root alone, no other daemon that is asked, and no other security driver than DAC.
fn configure(root: &Path) {
    let daemon = format!(
        "unix_sock_dir = \"{}\"\nunix_sock_ro_perms = \"0700\"\nunix_sock_rw_perms = \"0700\"\n\
         auth_unix_ro = \"none\"\nauth_unix_rw = \"none\"\n",
        root.display()
    );
    let qemu = "security_driver = \"none\"\nstdio_handler = \"file\"\n";
    for (file, text) in [("libvirtd.conf", daemon.as_str()), ("qemu.conf", qemu)] {
        let file = below(root, "/etc/libvirt").join(file);
        fs::write(file, text).expect("a folder of ours");
    }
}
