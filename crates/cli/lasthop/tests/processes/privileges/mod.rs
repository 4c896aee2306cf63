//! Rights of control and the switch, and those that Lasthop needs: none without interfaces of the
//! host.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use rustix::process::Signal;

use crate::supervisor::{SWITCH, one_port};
use testkit::lasthop::{Place, Running, listens};
use testkit::process::send;
use testkit::procfs::{self, is_gone};
use testkit::wait::wait_until;

/// User `nobody`.
const NOBODY: u32 = 65534;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the value of a line of `/proc/PID/status` (proc_pid_status(5)).
fn status_line(pid: u32, name: &str) -> String {
    procfs::status(pid, name).unwrap()
}

/// Returns the one value of four ids (real, effective, saved, of the file system).
fn only_id(pid: u32, name: &str) -> u32 {
    let line = status_line(pid, name);
    let ids: Vec<u32> = line
        .split_whitespace()
        .map(|id| id.parse().unwrap())
        .collect();
    assert_eq!(ids, [ids[0]; 4], "{name}");
    ids[0]
}

fn soft_and_hard_limit(pid: u32, name: &str) -> [String; 2] {
    let text = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let mut values = line.unwrap().split_whitespace().map(str::to_owned);
    [values.next().unwrap(), values.next().unwrap()]
}

fn has_no_rights(pid: u32) {
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        let bits = u64::from_str_radix(&status_line(pid, set), 16);
        assert_eq!(bits, Ok(0), "{set}");
    }
    assert_eq!(status_line(pid, "NoNewPrivs"), "1");
    // Each thread has a filter of system calls (SECCOMP_MODE_FILTER).
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let thread = task.unwrap().file_name().into_string().unwrap();
        assert_eq!(status_line(thread.parse().unwrap(), "Seccomp"), "2");
    }
    for name in ["Max core file size", "Max locked memory"] {
        assert_eq!(soft_and_hard_limit(pid, name), ["0", "0"], "{name}");
    }
}

/// Returns the user ids of control and the switch, which must have no rights.
fn ids(lasthop: &Running) -> [u32; 2] {
    ["control", "switch"].map(|name| {
        let pid = lasthop.pid(name);
        has_no_rights(pid);
        let id = only_id(pid, "Uid");
        assert_eq!(only_id(pid, "Gid"), id);
        id
    })
}

#[test]
fn control_and_switch_have_no_rights() {
    let place = Place::new();
    let mut lasthop = place.start(&one_port());
    let own = rustix::process::geteuid().as_raw();
    let [control, switch] = ids(&lasthop);
    if is_root() {
        assert_ne!(control, own);
        assert_ne!(switch, own);
        for name in ["control", "switch"] {
            assert_eq!(status_line(lasthop.pid(name), "Groups"), "");
        }
    } else {
        eprintln!("not root: both keep the user id of who started them");
        assert_eq!([control, switch], [own; 2]);
    }
    // Their successors have the same; the supervisor opens paths for them.
    lasthop.kill_and_wait("control");
    lasthop.kill_and_wait("switch");
    lasthop.wait_cli("port show vm1");
    assert_eq!(ids(&lasthop), [control, switch]);
    lasthop.prints("port add vm2 --kind vhost-user --socket vm2.sock --segment blue");
    assert!(listens(&place.run_dir().join("vm2.sock")));
    lasthop.end(Signal::TERM);
    assert_eq!(place.left(), [""; 0]);
}

/// Returns the session of a process (proc_pid_stat(5)).
fn session(pid: u32) -> u32 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, behind_name) = text.rsplit_once(')').unwrap();
    let mut fields = behind_name.split_whitespace();
    fields.nth(3).unwrap().parse().unwrap()
}

#[test]
fn each_has_a_session_of_its_own() {
    let place = Place::new();
    let mut lasthop = place.start(&one_port());
    for name in ["control", "switch"] {
        let pid = lasthop.pid(name);
        assert_eq!(session(pid), pid, "{name}");
    }
    lasthop.end(Signal::INT);
}

#[test]
fn shared_memory_has_a_fixed_length() {
    let place = Place::new();
    let mut lasthop = place.start(&one_port());
    let mut left = vec!["lasthop-counters", "lasthop-marks", "lasthop-state"];
    let open = fs::read_dir(format!("/proc/{}/fd", lasthop.pid("supervisor"))).unwrap();
    for entry in open {
        let path = entry.unwrap().path();
        let Ok(target) = fs::read_link(&path) else {
            continue;
        };
        let target = target.display().to_string();
        let Some(at) = left.iter().position(|name| target.contains(name)) else {
            continue;
        };
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        for length in [0, length - 1, length + 1] {
            let refused = rustix::fs::ftruncate(&file, length);
            assert_eq!(refused, Err(rustix::io::Errno::PERM), "{target}");
        }
        left.remove(at);
    }
    assert_eq!(left, [""; 0]);
    lasthop.end(Signal::TERM);
}

#[test]
fn they_end_with_the_supervisor_though_they_have_other_users() {
    let place = Place::new();
    let lasthop = place.start(&one_port());
    let pids = ["control", "switch"].map(|name| lasthop.pid(name));
    // A stopped process cannot see that its link is closed.
    for pid in pids {
        send(pid, Signal::STOP);
    }
    lasthop.signal(Signal::KILL);
    wait_until("both are gone", || pids.into_iter().all(is_gone));
}

#[test]
fn without_root_it_runs_all_the_same() {
    if !is_root() {
        eprintln!("skipped: every other test of this file runs without root here");
        return;
    }
    let place = Place::new();
    let world =
        |path: &std::path::Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755));
    let mut command = place.command(&one_port());
    world(place.path("").as_path()).unwrap();
    fs::create_dir(place.run_dir()).unwrap();
    chown(place.run_dir(), Some(NOBODY), Some(NOBODY)).unwrap();
    command.uid(NOBODY).gid(NOBODY);
    let mut lasthop = place.spawn(command);
    lasthop.wait_ready();
    assert_eq!(ids(&lasthop), [NOBODY; 2]);
    lasthop.kill_and_wait("switch");
    lasthop.wait_cli("port show vm1");
    assert_eq!(lasthop.state("vm1"), "waiting");
    lasthop.end(Signal::TERM);
    assert_eq!(place.left(), [""; 0]);
}

#[test]
fn the_api_is_for_the_owner_and_ports_are_for_whom_the_umask_says() {
    let place = Place::new();
    let mut command = place.command(&one_port());
    // SAFETY: umask is async-signal-safe and cannot fail.
    unsafe {
        command.pre_exec(|| {
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o007));
            Ok(())
        });
    }
    let mut lasthop = place.spawn(command);
    lasthop.wait_ready();
    let mode = |name| {
        let meta = fs::metadata(place.run_dir().join(name)).unwrap();
        meta.permissions().mode() & 0o777
    };
    assert_eq!(mode("api.sock"), 0o600);
    assert_eq!(mode("lasthop.lock"), 0o600);
    assert_eq!(mode("vm1.sock"), 0o770);
    lasthop.end(Signal::TERM);
}

/// Makes the system refuse `prctl(PR_GET_AUXV)`, as Linux before 6.4 does.
fn forget_auxiliary_vector() -> std::io::Result<()> {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    let step = |code: u32, k: u32, jf: u8| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    let (load, equal, answer) = (
        BPF_LD | BPF_W | BPF_ABS,
        BPF_JMP | BPF_JEQ | BPF_K,
        BPF_RET | BPF_K,
    );
    let refusal = libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32;
    let mut program = [
        step(load, 0, 0),
        step(equal, libc::SYS_prctl as u32, 3),
        step(load, 16, 0),
        step(equal, 0x4155_5856, 1),
        step(answer, refusal, 0),
        step(answer, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    rustix::thread::set_no_new_privs(true)?;
    // SAFETY: the kernel copies the program, which lives until the call returns.
    match unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const filter,
        )
    } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn a_kernel_before_6_4_will_do() {
    let place = Place::new();
    let mut command = place.command(&one_port());
    // SAFETY: system calls on values of its own are all that it makes.
    unsafe { command.pre_exec(forget_auxiliary_vector) };
    let mut lasthop = place.spawn(command);
    lasthop.wait_ready();
    assert_eq!(lasthop.state("vm1"), "waiting");
    lasthop.end(Signal::TERM);
}

/// Returns the open files of a process.
fn open_files(pid: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    entries
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .collect()
}

#[test]
fn inherited_descriptors_are_not_passed_on() {
    let place = Place::new();
    let path = place.path("left-open");
    let file = fs::File::create(&path).unwrap();
    let mut command = place.command(&one_port());
    // SAFETY: dup2 is async-signal-safe, and the file is open.
    unsafe {
        command.pre_exec(move || match libc::dup2(file.as_raw_fd(), 77) {
            77 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let mut lasthop = place.spawn(command);
    lasthop.wait_ready();
    for name in ["control", "switch"] {
        let open = open_files(lasthop.pid(name));
        assert!(!open.contains(&path), "{open:?}");
    }
    lasthop.end(Signal::TERM);
}

#[test]
fn a_service_manager_is_notified_once() {
    let place = Place::new();
    let path = place.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    let mut command = place.command(SWITCH);
    command.env("NOTIFY_SOCKET", &path);
    let mut lasthop = place.spawn(command);
    lasthop.wait_ready();
    let mut words = [0; 64];
    let length = manager.recv(&mut words).unwrap();
    assert_eq!(&words[..length], b"READY=1");
    let environment = fs::read(format!("/proc/{}/environ", lasthop.pid("control"))).unwrap();
    assert!(!String::from_utf8_lossy(&environment).contains("NOTIFY_SOCKET"));
    lasthop.kill_and_wait("control");
    wait_until("it answers", || lasthop.cli("status").status.success());
    lasthop.end(Signal::TERM);
    manager.set_nonblocking(true).unwrap();
    assert!(manager.recv(&mut words).is_err(), "no second message");
}

#[test]
fn journal_lines_have_a_priority_and_no_time() {
    // The variable is inherited, and standard error is another stream then.
    for is_journal in [true, false] {
        let place = Place::new();
        let log = fs::File::create(place.path("log")).unwrap();
        let log = log.metadata().unwrap();
        let inode = log.ino() + u64::from(!is_journal);
        let mut command = place.command(SWITCH);
        command.env("JOURNAL_STREAM", format!("{}:{inode}", log.dev()));
        let mut lasthop = place.spawn(command);
        lasthop.wait_ready();
        lasthop.kill_and_wait("switch");
        wait_until("that is logged", || {
            let log = lasthop.log();
            let mut lines = log.lines();
            let line = lines.find(|line| line.contains("switch ended"));
            line.is_some_and(|line| line.starts_with("<4>lasthop::") == is_journal)
        });
        lasthop.end(Signal::TERM);
    }
}
