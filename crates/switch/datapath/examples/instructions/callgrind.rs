//! Runs of a scenario under valgrind's callgrind, which counts instructions and models no time.

use std::path::Path;
use std::process::Command;

use crate::ledger::Counts;

/// Function that is counted, including its callees.
const COUNTED: &str = "*serve_counted*";

/// CPU features that are hidden from the C library, so that it takes the same copy routines on
/// every x86-64 machine.
const GLIBC_TUNABLES: &str = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX2,\
    -AVX_Fast_Unaligned_Load,-SSSE3,-SSE4_1,-SSE4_2,-ERMS,-FSRM";

/// Instructions of a whole replay.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Total {
    own: u64,
    library: u64,
}

impl Total {
    pub(crate) fn per_frame(self, frames: usize) -> Counts {
        // Rounded to a tenth, as in the file.
        let share = |total: u64| (total as f64 * 10.0 / frames as f64).round() / 10.0;
        Counts {
            switch: share(self.own),
            copy: share(self.library),
        }
    }
}

/// Counts the scenario in a process of its own, so that it does not depend on earlier ones.
pub(crate) fn count(scenario: &str) -> Result<Total, String> {
    let program = std::env::current_exe().map_err(|e| format!("current executable: {e}"))?;
    let folder = tempfile::tempdir().map_err(|e| format!("no temporary folder: {e}"))?;
    let out = folder.path().join("callgrind.out");
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--quiet", "--vgdb=no", "--tool=callgrind"])
        .args(["--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--toggle-collect={COUNTED}"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(&program)
        .arg(scenario)
        .env("GLIBC_TUNABLES", GLIBC_TUNABLES);
    let output = valgrind
        .output()
        .map_err(|e| format!("valgrind does not run ({e}): 'make setup' installs it"))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{scenario} under valgrind:\n{complaint}"));
    }
    let profile = std::fs::read_to_string(&out).map_err(|e| format!("no profile: {e}"))?;
    read(&profile, &program).ok_or(format!("{scenario}: a profile that was not understood"))
}

/// Sums the own cost of functions by the file from which they were loaded. The format is
/// described in valgrind's manual, "Callgrind Format Specification".
fn read(profile: &str, program: &Path) -> Option<Total> {
    let mut total = Total::default();
    let (mut own, mut of_callee) = (false, false);
    for line in profile.lines() {
        if let Some(object) = line.strip_prefix("ob=") {
            own = Path::new(object) == program;
        } else if line.starts_with("calls=") {
            of_callee = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit()) {
            let cost: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
            let sum = if own {
                &mut total.own
            } else {
                &mut total.library
            };
            *sum += if of_callee { 0 } else { cost };
            of_callee = false;
        }
    }
    let stated = profile.lines().find_map(|l| l.strip_prefix("totals: "))?;
    (stated.parse() == Ok(total.own + total.library) && total.own > 0).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "\
events: Ir
ob=/bin/switch
fl=a.rs
fn=deliver
7 100
fi=b.rs
9 20
cob=/lib/libc.so.6
cfn=memcpy
calls=1 0
9 46
ob=/lib/libc.so.6
fn=memcpy
0 46
totals: 166
";

    #[test]
    fn costs_count_once_and_where_they_arise() {
        let total = read(PROFILE, Path::new("/bin/switch")).expect("a profile");
        let Counts { switch, copy } = total.per_frame(10);
        assert_eq!((switch, copy), (12.0, 4.6));
    }

    #[test]
    fn a_profile_that_does_not_add_up_is_refused() {
        let own = Path::new("/bin/switch");
        for (was, is) in [
            ("totals: 166", "totals: 120"),
            ("totals: 166\n", ""),
            ("7 100", "7"),
        ] {
            assert!(read(&PROFILE.replace(was, is), own).is_none(), "{is}");
        }
        assert!(read(PROFILE, Path::new("/bin/other")).is_none());
    }
}
