//! The confinement of the package's unit without systemd: capabilities, `no_new_privs`, the view
//! of `/proc`, system calls and address families, read from the unit itself.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::thread::CapabilitySet;

/// Members of systemd's groups of system calls.
const GROUPS: &str = include_str!("syscall-groups.txt");
/// The numbers of system calls.
const NUMBERS: &str = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";
/// Most capabilities that a kernel may know.
const CAPABILITIES: u32 = 64;

/// The `[Service]` lines of the unit and its drop-ins, in their order.
pub(crate) struct Unit(Vec<(String, String)>);

impl Unit {
    /// Reads these files of the folder `packaging`.
    pub(crate) fn of(files: &[&str]) -> Self {
        let mut lines = Vec::new();
        for file in files {
            let path = format!("{}/../../../packaging/{file}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).unwrap();
            let service = text.split("[Service]\n").nth(1).unwrap();
            let service = service.split("\n[").next().unwrap().lines();
            let pairs = service
                .filter(|line| !line.starts_with('#'))
                .filter_map(|line| line.split_once('='));
            lines.extend(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())));
        }
        Self(lines)
    }

    fn values(&self, key: &str) -> impl Iterator<Item = &str> {
        let lines = self.0.iter().filter(move |(own, _)| own == key);
        lines.map(|(_, value)| value.as_str())
    }

    fn last(&self, key: &str) -> &str {
        self.values(key).last().unwrap_or_else(|| panic!("{key}="))
    }

    /// Returns the words of all lines of a list; lines with `~` take away.
    fn list(&self, key: &str, words_of: impl Fn(&str) -> Vec<String>) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for value in self.values(key) {
            let (takes_away, words) = match value.strip_prefix('~') {
                Some(words) => (true, words),
                None => (false, value),
            };
            for word in words.split_whitespace().flat_map(&words_of) {
                match takes_away {
                    true => all.remove(&word),
                    false => all.insert(word),
                };
            }
        }
        all
    }

    /// Returns the delegated controllers.
    pub(crate) fn controllers(&self) -> BTreeSet<String> {
        self.list("Delegate", |name| vec![name.to_owned()])
    }

    /// Returns the numbers of the capabilities that the unit withholds.
    fn withheld(&self) -> Vec<u32> {
        let granted = self.list("CapabilityBoundingSet", |name| vec![name.to_owned()]);
        let granted = granted.iter().map(|name| {
            let name = name.strip_prefix("CAP_").unwrap();
            CapabilitySet::from_name(name).unwrap_or_else(|| panic!("CAP_{name}"))
        });
        let granted: CapabilitySet = granted.collect();
        let is_granted = |number: &u32| granted.bits() >> number & 1 != 0;
        (0..CAPABILITIES).filter(|n| !is_granted(n)).collect()
    }

    /// Returns the numbers of the allowed system calls.
    fn calls(&self) -> Vec<u32> {
        let groups = groups();
        let mut names = self.list("SystemCallFilter", |word| members(&groups, word));
        names.extend(members(&groups, "@default"));
        let numbers = std::fs::read_to_string(NUMBERS).unwrap();
        let numbers = numbers
            .lines()
            .filter_map(|line| line.strip_prefix("#define __NR_")?.split_once(' '));
        let numbers: BTreeMap<&str, &str> = numbers.collect();
        let number_of = |name: &String| Some(numbers.get(name.as_str())?.trim().parse().unwrap());
        names.iter().filter_map(number_of).collect()
    }

    fn families(&self) -> Vec<u32> {
        let names = self.list("RestrictAddressFamilies", |name| vec![name.to_owned()]);
        let number_of = |name: &String| match name.as_str() {
            "AF_UNIX" => libc::AF_UNIX as u32,
            "AF_INET" => libc::AF_INET as u32,
            "AF_INET6" => libc::AF_INET6 as u32,
            "AF_PACKET" => libc::AF_PACKET as u32,
            "AF_XDP" => libc::AF_XDP as u32,
            other => panic!("{other}"),
        };
        names.iter().map(number_of).collect()
    }

    /// Returns the options of the mount of `/proc` (systemd.exec(5), `ProtectProc=`).
    fn proc_options(&self) -> CString {
        let hidepid = match self.last("ProtectProc") {
            "default" => "off",
            "invisible" => "invisible",
            other => panic!("{other}"),
        };
        assert_eq!(self.last("ProcSubset"), "pid");
        CString::new(format!("hidepid={hidepid},subset=pid")).unwrap()
    }

    /// Has a command start under the unit's confinement.
    pub(crate) fn confine(&self, command: &mut Command) {
        assert_eq!(self.last("NoNewPrivileges"), "yes");
        let mut program = program(&self.calls(), &self.families());
        let (withheld, options) = (self.withheld(), self.proc_options());
        // SAFETY: the closure makes system calls only, and its values were made before.
        unsafe {
            command.pre_exec(move || {
                mount_proc(&options)?;
                for number in &withheld {
                    // Numbers that the kernel does not know.
                    libc::prctl(libc::PR_CAPBSET_DROP, *number, 0, 0, 0);
                }
                rustix::thread::set_no_new_privs(true)?;
                install(&mut program)
            });
        }
    }
}

fn groups() -> BTreeMap<&'static str, Vec<&'static str>> {
    let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut last = "";
    for line in GROUPS.lines().filter(|line| !line.starts_with('#')) {
        if line.starts_with('@') {
            last = line;
        } else {
            groups
                .entry(last)
                .or_default()
                .extend(line.split_whitespace());
        }
    }
    groups
}

/// Returns the system calls of a group, or the one of this name.
fn members(groups: &BTreeMap<&str, Vec<&str>>, word: &str) -> Vec<String> {
    if !word.starts_with('@') {
        return vec![word.to_owned()];
    }
    let all = groups.get(word).unwrap_or_else(|| panic!("{word}")).iter();
    all.flat_map(|word| members(groups, word)).collect()
}

/// Mounts `/proc` anew, for this process and its children.
fn mount_proc(options: &CString) -> io::Result<()> {
    let done = |result: libc::c_int| match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    let (none, data) = (std::ptr::null(), options.as_ptr().cast());
    let (proc, root) = (c"proc".as_ptr(), c"/".as_ptr());
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: all pointers are to constant texts, or null where the kernel allows that.
    unsafe {
        done(libc::unshare(libc::CLONE_NEWNS))?;
        done(libc::mount(none, root, none, private, std::ptr::null()))?;
        done(libc::mount(proc, c"/proc".as_ptr(), proc, 0, data))
    }
}

/// Returns a filter that refuses all other system calls, and sockets of other families.
fn program(calls: &[u32], families: &[u32]) -> Vec<libc::sock_filter> {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    const ARCHITECTURE: u32 = 0xc000_003e;
    let step = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let load = |at| step(BPF_LD | BPF_W | BPF_ABS, at, 0, 0);
    let equal = |k, jt, jf| step(BPF_JMP | BPF_JEQ | BPF_K, k, jt, jf);
    let answer = |action| step(BPF_RET | BPF_K, action, 0, 0);
    let allow = || answer(libc::SECCOMP_RET_ALLOW);
    let fail = |error: i32| answer(libc::SECCOMP_RET_ERRNO | error as u32);
    let mut program = vec![
        load(4),
        equal(ARCHITECTURE, 1, 0),
        answer(libc::SECCOMP_RET_KILL_PROCESS),
        load(0),
        equal(libc::SYS_socket as u32, 0, 2 * families.len() as u8 + 2),
        load(16),
    ];
    for family in families {
        program.extend([equal(*family, 0, 1), allow()]);
    }
    program.push(fail(libc::EAFNOSUPPORT));
    for call in calls {
        program.extend([equal(*call, 0, 1), allow()]);
    }
    program.push(fail(libc::EPERM));
    program
}

fn install(program: &mut [libc::sock_filter]) -> io::Result<()> {
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the kernel copies the program, which lives until the call returns.
    match unsafe { libc::syscall(libc::SYS_seccomp, mode, 0, &raw const filter) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
