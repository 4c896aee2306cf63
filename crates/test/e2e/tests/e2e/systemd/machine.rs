//! A container in which systemd has booted, by systemd-nspawn.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use testkit::procfs;
use testkit::skip::skipped;
use testkit::wait::within;

/// Time for a boot, on a busy machine.
const BOOT: Duration = Duration::from_secs(120);
/// System calls that Lasthop makes, and containers do not have by default.
const CALLS: &str = "bpf perf_event_open landlock_create_ruleset landlock_add_rule \
                     landlock_restrict_self";
/// Mounts an overlay of this host's file system in a folder, and boots systemd in it. All mounts
/// are in a namespace that ends with it.
const START: &str = r#"
    mount -t tmpfs -o size=2g machine "$1"
    mkdir "$1/upper" "$1/work" "$1/root"
    mount -t overlay machine -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
    # Container images forbid packages to start services.
    rm -f "$1/root/usr/sbin/policy-rc.d"
    exec systemd-nspawn --quiet --directory="$1/root" --register=no --keep-unit \
        --machine="lasthop-$$" --private-network --bind=/dev/net/tun --capability=all \
        --system-call-filter="$2" --boot systemd.unit=basic.target
"#;

/// A container that ends with this.
pub(super) struct Machine {
    process: Child,
    /// Process id of systemd.
    init: u32,
    _folder: tempfile::TempDir,
}

impl Machine {
    /// Boots a container; `None`, with the reason, where that is not possible.
    pub(super) fn boot() -> Option<Self> {
        for program in ["systemd-nspawn", "dpkg-deb"] {
            if Command::new(program).arg("--version").output().is_err() {
                skipped(format!("no {program} here (make setup has it)"));
                return None;
            }
        }
        if !rustix::process::geteuid().is_root() {
            skipped("systemd-nspawn needs root");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation", "private", "--pid", "--fork"])
            .args(["--kill-child", "--mount-proc", "sh", "-ec", START, "sh"])
            .arg(folder.path())
            .arg(CALLS)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let process = command.spawn().expect("unshare of util-linux");
        let mut machine = Self {
            process,
            init: 0,
            _folder: folder,
        };
        let booted = within(BOOT, || {
            let below = procfs::programs_below(machine.process.id());
            let (init, _) = below.into_iter().find(|(_, name)| name == "systemd")?;
            machine.init = init;
            machine.ask("systemctl is-active basic.target").ok()
        });
        if booted.is_none() {
            skipped("systemd does not boot in a container here");
            return None;
        }
        Some(machine)
    }

    /// Returns the path of a file in the container.
    pub(super) fn path(&self, file: &str) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.init)).join(file)
    }

    /// Returns the file of its network namespace.
    pub(super) fn namespace(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.init).into()
    }

    /// Writes a file in the container.
    pub(super) fn write(&self, file: &str, text: &str) {
        std::fs::write(self.path(file), text).expect("a file of the container");
    }

    /// Runs a line of a shell in the container; returns what it printed.
    ///
    /// # Errors
    /// What it printed, if it failed.
    pub(super) fn ask(&self, line: &str) -> Result<String, String> {
        let init = self.init.to_string();
        let output = Command::new("nsenter")
            .args([
                "--target", &init, "--mount", "--uts", "--ipc", "--net", "--pid", "--",
            ])
            .args([
                "env",
                "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                "sh",
                "-c",
                line,
            ])
            .stdin(Stdio::null())
            .output()
            .expect("nsenter of util-linux");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stdout) + &text(&output.stderr)),
        }
    }

    /// Runs a line of a shell in the container, which must succeed.
    pub(super) fn run(&self, line: &str) {
        if let Err(error) = self.ask(line) {
            panic!("{line}: {error}\n{}", self.log());
        }
    }

    /// Returns the log of the service.
    pub(super) fn log(&self) -> String {
        let log = self.ask("journalctl --unit lasthop --no-pager --lines 60");
        log.unwrap_or_else(|error| error)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
