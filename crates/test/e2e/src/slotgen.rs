//! `slotgen`, which has the loops of netmap's programs, and programs of netmap's own, with the
//! library in front of them.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::paths;

/// A running program; killed when dropped.
pub struct Slotgen {
    child: Option<Child>,
}

/// The last line of a program.
#[derive(Debug)]
pub struct Printed(pub String);

impl Printed {
    /// One of its numbers.
    pub fn number(&self, name: &str) -> u64 {
        let words = self.0.split_whitespace();
        let mut values = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let value = values.next().and_then(|value| value.parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in {}", self.0))
    }

    /// Frames, and those that were lost, came twice, or were not whole.
    pub fn counts(&self) -> [u64; 4] {
        ["frames", "lost", "twice", "bad"].map(|name| self.number(name))
    }
}

impl Slotgen {
    /// Starts it with arguments that are separated by spaces.
    pub fn start(runtime_dir: impl AsRef<Path>, arguments: &str) -> Self {
        Self::start_waiting("adaptive", runtime_dir, arguments)
    }

    /// Starts it with a value of `LASTHOP_NETMAP_POLL`.
    pub fn start_waiting(mode: &str, runtime_dir: impl AsRef<Path>, arguments: &str) -> Self {
        Self::start_program(&paths::binary("slotgen"), mode, runtime_dir, arguments)
    }

    /// Starts another program.
    pub fn start_program(
        program: &Path,
        mode: &str,
        runtime_dir: impl AsRef<Path>,
        arguments: &str,
    ) -> Self {
        let child = Command::new(program)
            .args(arguments.split(' '))
            .env("LD_PRELOAD", paths::binary("liblasthop_netmap.so"))
            .env("LASTHOP_RUNTIME_DIR", runtime_dir.as_ref())
            .env("LASTHOP_NETMAP_POLL", mode)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        Self { child: Some(child) }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid() as i32).expect("it runs");
        kill_process(pid, signal).expect("it runs");
    }

    /// Kills it; it is gone when this returns.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn output(mut self) -> Output {
        let child = self.child.take().expect("it was not waited for");
        child.wait_with_output().expect("it ends")
    }

    /// Waits for its end, which is a good one.
    pub fn printed(self) -> Printed {
        let output = self.output();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}: {errors}", output.status);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Printed(text + &errors)
    }

    /// Waits for its end, which is a bad one; returns what it said.
    pub fn fails(self) -> String {
        let output = self.output();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

impl Drop for Slotgen {
    fn drop(&mut self) {
        self.kill();
    }
}
