//! A control without a switch: the API server with a test engine, which returns fixed states.

use std::path::Path;
use std::thread::JoinHandle;

use assert_cmd::Command;
use control::fake_engine::FakeEngine;
use control::server;
use tempfile::TempDir;
use tokio::sync::oneshot;

/// Returns the command `lasthop` without its environment variables.
pub(crate) fn lasthop() -> Command {
    let mut command = Command::new(testkit::programs::program("lasthop"));
    command.env_remove("LASTHOP_RUNTIME_DIR");
    command
}

/// A configuration with two segments and two ports.
const CONFIG: &str = r#"
[switch]
name = "host1"
[[segment]]
name = "blue"
vlan = 10
[[segment]]
name = "red"
[[port]]
name = "vm1"
kind = "vhost-user"
socket = "vm1.sock"
queues = 2
segment = "blue"
[[port]]
name = "vm2"
kind = "vhost-user"
socket = "vm2.sock"
role = "client"
trunk = ["blue", "red"]
"#;

/// A running test server; dropping it ends it.
pub(crate) struct Fake {
    dir: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    /// Starts it in its own runtime directory.
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let socket = std::os::unix::net::UnixListener::bind(path.join("api.sock")).unwrap();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let desired = config::parse(CONFIG, Path::new("fake.toml"), &path);
                let handle = FakeEngine::start(desired.unwrap(), &path);
                let listener = server::listener(socket.into()).unwrap();
                let shutdown = async { drop(stopped.await) };
                server::serve(listener, handle, shutdown).await;
            });
        });
        Self {
            dir,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Returns the runtime directory.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns a command for this server.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = lasthop();
        command.arg("--runtime-dir").arg(self.dir());
        command.args(line.split(' '));
        command
    }

    /// Runs a command that must succeed without errors; returns its output.
    pub(crate) fn prints(&self, line: &str) -> String {
        let done = self.command(line).assert().success().stderr("");
        String::from_utf8(done.get_output().stdout.clone()).unwrap()
    }

    /// Runs a command with `--json`; returns the document.
    pub(crate) fn json(&self, line: &str) -> serde_json::Value {
        serde_json::from_str(&self.prints(&format!("{line} --json"))).unwrap()
    }

    /// Runs a command that must fail without output; returns its exit status and error.
    pub(crate) fn fails(&self, line: &str) -> (i32, String) {
        let done = self.command(line).assert().failure().stdout("");
        let output = done.get_output();
        let error = String::from_utf8(output.stderr.clone()).unwrap();
        (output.status.code().unwrap(), error)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
