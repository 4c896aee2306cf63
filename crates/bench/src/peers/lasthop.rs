//! Lasthop, with as many ports as wanted, all in one segment.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use tempfile::TempDir;

use super::{Kind, Peer, START};
use crate::experiments::Plan;
use crate::process::Process;

pub(super) fn start(plan: &Plan) -> Result<Peer> {
    let running = Lasthop::start(plan, 2)?;
    Ok(Peer {
        kind: Kind::Lasthop,
        sockets: [0, 1].map(|port| running.socket(port)),
        processes: vec![running.process],
        client_listens: false,
        _folder: running.folder,
    })
}

/// A running Lasthop; ended when dropped.
pub(crate) struct Lasthop {
    process: Process,
    /// From the start of the program to "ready".
    pub(crate) start_up: Duration,
    folder: TempDir,
}

impl Lasthop {
    /// Starts Lasthop with `ports` listening ports and waits until it is ready.
    pub(crate) fn start(plan: &Plan, ports: u32) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("lasthop-bench-")
            .tempdir()?;
        let file = folder.path().join("lasthop.toml");
        fs::write(&file, configuration(ports))?;
        let runtime = runtime(folder.path());
        fs::create_dir(&runtime)?;
        let program = plan.bin.join("lasthop");
        let words: [&str; 5] = [
            &program.to_string_lossy(),
            "run",
            &format!("--config={}", file.display()),
            "--runtime-dir",
            &runtime.to_string_lossy(),
        ];
        let log = folder.path().join("log");
        let begin = Instant::now();
        let cores = [plan.cores[0]];
        let mut process = Process::start("lasthop", &cores, &words.map(str::to_owned), &log)?;
        process.wait_output("being ready", START, |output| {
            output
                .lines()
                .any(|line| line == "lasthop: ready")
                .then_some(())
        })?;
        Ok(Self {
            process,
            start_up: begin.elapsed(),
            folder,
        })
    }

    /// The process that all others are below.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The socket of a port, counted from 0.
    pub(crate) fn socket(&self, port: u32) -> PathBuf {
        runtime(self.folder.path()).join(format!("p{port}.sock"))
    }

    /// Ends it in order.
    pub(crate) fn end(mut self) {
        self.process.end(START);
    }
}

fn runtime(folder: &Path) -> PathBuf {
    folder.join("run")
}

fn configuration(ports: u32) -> String {
    let mut text = "[switch]\nname = \"bench\"\n".to_owned();
    for port in 0..ports {
        let socket = format!("p{port}.sock");
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "\n[[port]]\nname = \"p{port}\"\nkind = \"vhost-user\"\nsocket = \"{socket}\"\n"
        );
    }
    text
}
