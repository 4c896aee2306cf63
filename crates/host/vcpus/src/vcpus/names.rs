//! vCPU threads by the names that VMMs give them: QEMU `CPU 3/KVM`, or `ALL CPUs/TCG` where one
//! thread emulates all (it names threads with `-name guest,debug-threads=on`, as libvirt does),
//! Cloud Hypervisor `vcpu3`, Firecracker `fc_vcpu 3`, crosvm `crosvm_vcpu3`. The operator's pattern
//! takes precedence.

use std::fs::ReadDir;
use std::io;
use std::iter::Take;

use super::{MOST_FOLLOWED, Work};

/// Most threads of one process that are read.
const MOST: usize = 2048;

/// Known names of vCPU threads.
const KNOWN: [&str; 6] = [
    "CPU */KVM",
    "CPU */TCG",
    "ALL CPUs/TCG",
    "vcpu*",
    "fc_vcpu *",
    "crosvm_vcpu*",
];

/// A thread, and its name.
pub type Thread = (u32, String);

/// Returns whether a name matches a pattern: `*` stands for any characters, `?` for one.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // Place to continue at if the part after the last `*` does not match: its place, and the first
    // character that it leaves.
    let mut star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == b'?' || *c == name[n] => (p, n) = (p + 1, n + 1),
            _ => {
                let Some((at, from)) = star else {
                    return false;
                };
                star = Some((at, from + 1));
                (p, n) = (at + 1, from + 1);
            }
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

/// The threads of a process, at most the first 2048, as far as they were read.
#[derive(Debug)]
pub struct ThreadScan {
    entries: Take<ReadDir>,
    threads: Vec<Thread>,
}

impl ThreadScan {
    /// Begins.
    ///
    /// # Errors
    /// The process is gone, or hidden.
    pub fn of(process: u32) -> io::Result<Self> {
        let entries = std::fs::read_dir(format!("/proc/{process}/task"))?;
        Ok(Self {
            entries: entries.take(MOST),
            threads: Vec::new(),
        })
    }

    /// Reads on; `false`: there is more for the next turn.
    pub fn advance(&mut self, work: &mut Work) -> bool {
        while work.take() {
            let Some(entry) = self.entries.next() else {
                return true;
            };
            let Ok(entry) = entry else { continue };
            let id = entry.file_name().to_str().and_then(|id| id.parse().ok());
            // A thread may end meanwhile.
            if let (Some(id), Ok(name)) = (id, std::fs::read(entry.path().join("comm"))) {
                let name = String::from_utf8_lossy(&name);
                self.threads.push((id, name.trim_end().to_owned()));
            }
        }
        false
    }

    /// Returns the threads that were read.
    #[must_use]
    pub fn threads(self) -> Vec<Thread> {
        self.threads
    }
}

/// Returns the number of threads of a process, by one system call: Linux has it, plus two, as the
/// number of links of their directory (`proc_task_getattr`). `None` if the process is gone, or
/// hidden.
#[must_use]
pub fn thread_count(process: u32) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    let directory = std::fs::metadata(format!("/proc/{process}/task")).ok()?;
    Some(directory.nlink())
}

/// Returns the threads of a process at once.
///
/// # Errors
/// As [`ThreadScan::of`].
pub fn threads_of(process: u32) -> io::Result<Vec<Thread>> {
    let mut scan = ThreadScan::of(process)?;
    scan.advance(&mut Work::of(usize::MAX));
    Ok(scan.threads())
}

/// Returns the threads whose names match the pattern, or one of the known names without a pattern.
#[must_use]
pub fn named(threads: &[Thread], pattern: Option<&str>) -> Vec<u32> {
    let fits = |name: &str| match pattern {
        Some(pattern) => matches(pattern, name),
        None => KNOWN.iter().any(|known| matches(known, name)),
    };
    let fitting = threads.iter().filter(|(_, name)| fits(name));
    let mut named: Vec<u32> = fitting.map(|(id, _)| *id).collect();
    named.sort_unstable();
    named.truncate(MOST_FOLLOWED);
    named
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn threads(names: &[&str]) -> Vec<Thread> {
        let numbered = (10..).zip(names);
        numbered
            .map(|(id, name)| (id, (*name).to_owned()))
            .collect()
    }

    #[test]
    fn processors_are_known_by_the_names_that_vmms_give_them() {
        let qemu = threads(&[
            "qemu-system-x86",
            "IO mon_iothread",
            "CPU 0/KVM",
            "CPU 11/KVM",
        ]);
        assert_eq!(named(&qemu, None), [12, 13]);
        let others = [
            "CPU 1/TCG",
            "ALL CPUs/TCG",
            "vcpu0",
            "fc_vcpu 0",
            "crosvm_vcpu12",
        ];
        for name in others {
            assert_eq!(named(&threads(&["vmm", name]), None), [11], "{name}");
        }
    }

    #[test]
    fn where_names_say_nothing_no_thread_is_taken() {
        let plain = threads(&["qemu-kvm", "qemu-kvm", "qemu-kvm"]);
        assert_eq!(named(&plain, None), [0; 0]);
    }

    #[test]
    fn what_the_operator_says_goes_before() {
        let both = threads(&["vmm", "lcore-1", "CPU 0/KVM"]);
        assert_eq!(named(&both, Some("lcore-*")), [11]);
        assert_eq!(named(&both, Some("other")), [0; 0], "none is none");
        let many = vec!["vcpu1"; 3 * MOST_FOLLOWED];
        assert_eq!(named(&threads(&many), None).len(), MOST_FOLLOWED);
    }

    #[test]
    fn patterns_are_matched_as_a_whole() {
        for (pattern, name) in [
            ("", ""),
            ("*", ""),
            ("*", "a"),
            ("a?c", "abc"),
            ("a*c", "ac"),
            ("a*b*c", "aXbYbZc"),
            ("CPU */KVM", "CPU 12/KVM"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("", "a"),
            ("?", ""),
            ("a", "ab"),
            ("b", "ab"),
            ("a*c", "acb"),
            ("CPU */KVM", "CPU 12/KV"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    /// Matches by the definition.
    fn slowly(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => {
                slowly(rest, name) || (!name.is_empty() && slowly(pattern, &name[1..]))
            }
            ([b'?', p @ ..], [_, n @ ..]) => slowly(p, n),
            ([a, p @ ..], [b, n @ ..]) => a == b && slowly(p, n),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn patterns_mean_what_they_say(pattern in "[ab*?]{0,8}", name in "[ab]{0,8}") {
            prop_assert_eq!(matches(&pattern, &name), slowly(pattern.as_bytes(), name.as_bytes()));
        }
    }

    #[test]
    fn a_further_thread_changes_their_number() {
        let mut cat = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let of_one = thread_count(cat.id()).unwrap();
        drop(cat.stdin.take());
        cat.wait().unwrap();
        // This program has more threads than one that has one.
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(thread_count(std::process::id()).unwrap() > of_one));
        });
    }

    #[test]
    fn threads_are_read_in_turns_of_bounded_work() {
        let (keep, wait) = std::sync::mpsc::channel::<()>();
        let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
        let threads: Vec<_> = (0..20)
            .map(|_| {
                let wait = std::sync::Arc::clone(&wait);
                std::thread::spawn(move || {
                    let _ = wait.lock().unwrap().recv();
                })
            })
            .collect();
        let mut scan = ThreadScan::of(std::process::id()).unwrap();
        let mut turns = 0;
        loop {
            let (mut work, before) = (Work::of(3), scan.threads.len());
            turns += 1;
            let is_done = scan.advance(&mut work);
            assert!(work.used() <= 3 && scan.threads.len() - before <= 3);
            if is_done {
                break;
            }
        }
        assert!(turns >= 7, "{turns} turns");
        assert!(scan.threads().len() > 20);
        drop(keep);
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn a_thread_of_this_process_is_found_by_its_name() {
        let (say, hear) = std::sync::mpsc::channel();
        let (keep, wait) = std::sync::mpsc::channel::<()>();
        let body = move || {
            let id = rustix::thread::gettid().as_raw_nonzero().get();
            say.send(id.cast_unsigned()).unwrap();
            let _ = wait.recv();
        };
        let builder = std::thread::Builder::new().name("CPU 7/KVM".into());
        let thread = builder.spawn(body).unwrap();
        let id = hear.recv().unwrap();
        let all = threads_of(std::process::id()).unwrap();
        assert_eq!(named(&all, Some("CPU 7/*")), [id]);
        assert!(threads_of(u32::MAX).is_err());
        assert_eq!(thread_count(u32::MAX), None);
        drop(keep);
        thread.join().unwrap();
    }
}
