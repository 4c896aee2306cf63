//! `lasthop net run` fails closed: a program whose calls do not come to the library is refused,
//! however it is started, and what runs without the library has no network of the host.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use e2e::lasthop::Lasthop;
use e2e::sockets::{PYTHON, lasthop, run, script, succeeds, words};
use e2e::{beside, paths};
use testkit::lasthop::port;
use testkit::skip::skipped;

/// A user without rights.
const USER: u32 = 60_003;

/// The status of a shell and others for a program that they were not permitted to start.
const NOT_PERMITTED: i32 = 126;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn word(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// Runs a compiler.
fn made(command: &mut Command) {
    let output = command.output().expect("it runs");
    assert!(
        output.status.success(),
        "{command:?}: {}",
        text(&output.stderr)
    );
}

/// A program of C, with more options for the compiler.
fn of_c(folder: &Path, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let program = folder.join(name);
    let mut gcc = Command::new("gcc");
    gcc.args(["-Wall", "-Werror", "-O1", "-o"]).arg(&program);
    made(gcc.args(options).arg(script(source)));
    program
}

/// A program of Go, by its own linker or by that of C. What its standard library needs is compiled
/// once.
fn of_go(folder: &Path, name: &str, options: &[&str]) -> PathBuf {
    let program = folder.join(name);
    let mut go = Command::new("go");
    go.arg("build").args(options).arg("-o").arg(&program);
    let home = paths::root().join("target/go");
    go.env("GOCACHE", home.join("cache")).env("GOPATH", home);
    go.env("GO111MODULE", "off")
        .env("GOTOOLCHAIN", "local")
        .env("GOFLAGS", "");
    made(go.arg(script("hidden.go")));
    program
}

/// Programs whose calls are not taken, each with the words of its refusal.
fn hidden(folder: &Path) -> Vec<(PathBuf, &'static str)> {
    let of_c = |name, options: &[&str]| of_c(folder, name, "hidden.c", options);
    let mut all = vec![
        (of_c("static", &["-static"]), "a static program"),
        (
            of_c("static-pie", &["-static-pie", "-s"]),
            "a static program",
        ),
    ];
    let Ok(version) = Command::new("go").arg("version").output() else {
        skipped("programs of Go: go is not there");
        return all;
    };
    assert!(version.status.success(), "{version:?}");
    let strip = |program: &Path, name: &str, sections: &[&str]| {
        let bare = folder.join(name);
        let mut objcopy = Command::new("objcopy");
        made(objcopy.args(sections).arg(program).arg(&bare));
        bare
    };
    let go = |name, options: &[&str]| of_go(folder, name, options);
    let external = go("external", &["-ldflags=-linkmode=external"]);
    // Without notes and names of sections there is what the linker writes into the data.
    let bare = [
        "--strip-all",
        "--remove-section=.note.*",
        "--rename-section=.go.buildinfo=.x",
    ];
    let bare = strip(
        &external,
        "bare",
        &[&bare[..], &["--remove-section=.gopclntab"]].concat(),
    );
    let pie = go(
        "pie",
        &[
            "-buildmode=pie",
            "-ldflags=-linkmode=external -s -w -buildid=",
        ],
    );
    let programs = [go("internal", &[]), external, bare, pie];
    all.extend(programs.map(|program| (program, "a Go program")));
    all
}

fn is_refused(output: &Output, status: i32, program: &Path, reason: &str) {
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{program:?}: {errors}");
    let expected = format!("{}: {reason}", program.display());
    assert!(errors.contains(&expected), "{errors}");
}

#[test]
fn a_program_whose_calls_are_not_taken_is_refused_however_it_is_started() {
    let turn = beside();
    let lasthop = lasthop(&["a"]);
    let folder = tempfile::tempdir().expect("a folder");
    turn.step("compile");
    let all = hidden(folder.path());
    turn.step("by itself, by the other command, a script, a shell, and programs");
    for (program, reason) in &all {
        let path = word(program);
        let script = folder.path().join("script");
        fs::write(&script, format!("#!/usr/bin/env {path}\n")).expect("a file");
        fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("its mode");
        for command in [&[path, "10.0.0.2", "7"][..], &[word(&script)]] {
            is_refused(&run(&lasthop, "a", 1, command), 2, program, reason);
        }
        let mut netmap = Command::new(paths::binary("lasthop"));
        let netmap = netmap.args(["netmap", "--", path]).output();
        is_refused(&netmap.expect("it ends"), 2, program, reason);
        let of_shell = format!("{path} 10.0.0.2 7");
        let of_python = format!("import os; os.execv({path:?}, ['x'])");
        for command in [
            &["sh", "-c", &of_shell][..],
            &["bash", "-c", &format!("exec {of_shell}")],
            &["sh", "-c", word(&script)],
            &["env", "-u", "LD_PRELOAD", path],
            &["nice", path],
        ] {
            let output = run(&lasthop, "a", 1, command);
            is_refused(&output, NOT_PERMITTED, program, reason);
        }
        let output = run(&lasthop, "a", 1, &[PYTHON, "-c", &of_python]);
        is_refused(&output, 1, program, reason);
        assert!(text(&output.stderr).contains("PermissionError"));
    }
    turn.step("each function of the C library");
    let launch = of_c(folder.path(), "launch", "launch.c", &[]);
    let (program, _) = &all[0];
    let printed = succeeds(&lasthop, "a", 1, &[word(&launch), word(program)]);
    let refused: String = (0..=12).map(|way| format!("{way}: error 13\n")).collect();
    assert_eq!(printed, refused);
    let printed = succeeds(&lasthop, "a", 1, &[word(&launch), "/bin/echo"]);
    let echoed: String = (0..=12)
        .map(|way| format!("{way}: 1 2 3 4 5 6 7 8\n"))
        .collect();
    assert_eq!(printed, echoed);
}

/// Listeners of the host, which programs find or not.
struct Host {
    loopback: TcpListener,
    name: String,
    _abstract: UnixListener,
    path: PathBuf,
    _path: UnixListener,
}

impl Host {
    fn new(folder: &Path) -> Self {
        // Tests of one process run at the same time: the folder is the test's own.
        let name = format!("lasthop-closed-{}", folder.display());
        let address = SocketAddr::from_abstract_name(&name).expect("an address");
        let path = folder.join("path.sock");
        let of_path = UnixListener::bind(&path).expect("a socket");
        fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("its mode");
        Self {
            loopback: TcpListener::bind("127.0.0.1:0").expect("a socket"),
            _abstract: UnixListener::bind_addr(&address).expect("a socket"),
            _path: of_path,
            name,
            path,
        }
    }

    /// A program that looks what it reaches, without the library.
    fn look(&self, script: &str) -> Vec<String> {
        let port = self.loopback.local_addr().expect("an address").port();
        let arguments = [&port.to_string(), &self.name, word(&self.path)].map(str::to_owned);
        let program = ["env", "-u", "LD_PRELOAD", PYTHON, script].map(str::to_owned);
        program.into_iter().chain(arguments).collect()
    }
}

/// The lines of a program that has nothing of the host's network.
fn nothing_of_the_host(user: u32, group: u32) -> String {
    let six = if Path::new("/proc/net/if_inet6").exists() {
        "::1: True\n"
    } else {
        ""
    };
    format!(
        "library: not there\nloopback of the host: ECONNREFUSED\nabstract socket of the host: \
         ECONNREFUSED\npath of the host: reached\noutside: ENETUNREACH\n127.0.0.1: True\n{six}user \
         and group: {user} {user} {group} {group}\ninterfaces: lo\n"
    )
}

#[test]
fn what_runs_without_the_library_has_no_network_of_the_host() {
    let _turn = beside();
    let lasthop = lasthop(&["a"]);
    let folder = tempfile::tempdir().expect("a folder");
    let host = Host::new(folder.path());
    let look = host.look(&script("outside.py"));
    let look: Vec<_> = look.iter().map(String::as_str).collect();
    let own = (rustix::process::getuid(), rustix::process::getgid());
    let expected = nothing_of_the_host(own.0.as_raw(), own.1.as_raw());
    assert_eq!(succeeds(&lasthop, "a", 1, &look), expected);
    let mut kept = words(&lasthop, "a", 1, &look);
    kept.insert(2, "--host-network".to_owned());
    let mut command = Command::new(paths::binary("lasthop"));
    let printed = text(&command.args(kept).output().expect("it ends").stdout);
    for what in ["loopback", "abstract socket", "path"] {
        assert!(
            printed.contains(&format!("{what} of the host: reached")),
            "{printed}"
        );
    }
}

/// Lasthop's command and library, and a script, where each user can read them.
fn for_everybody(folder: &Path) -> PathBuf {
    fs::set_permissions(folder, Permissions::from_mode(0o755)).expect("its mode");
    for name in ["lasthop", "liblasthop_net.so"] {
        fs::copy(paths::binary(name), folder.join(name)).expect("a copy");
    }
    fs::copy(script("outside.py"), folder.join("outside.py")).expect("a copy");
    folder.join("lasthop")
}

#[test]
fn a_user_without_rights_keeps_its_identity_in_an_empty_network() {
    let _turn = beside();
    if !rustix::process::getuid().is_root() {
        skipped("only root starts programs of another user");
        return;
    }
    let mode = format!("mode = \"0666\"\npeer_user = \"{USER}\"");
    let lasthop = Lasthop::start(&format!("[switch]\nname = \"host1\"\n{}", port("a", &mode)));
    let folder = tempfile::tempdir().expect("a folder");
    let own = for_everybody(folder.path());
    let as_user = |program: &[&str]| {
        let id = USER.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
        command.arg(&own).args(words(&lasthop, "a", 1, program));
        command.output().expect("it ends")
    };
    let host = Host::new(folder.path());
    let look = host.look(word(&folder.path().join("outside.py")));
    let look: Vec<_> = look.iter().map(String::as_str).collect();
    let output = as_user(&look);
    if text(&output.stderr).contains("no network namespace can be made here") {
        assert_eq!(output.status.code(), Some(2));
        skipped("users may make no user namespace here");
        return;
    }
    let printed = text(&output.stdout);
    assert_eq!(printed, nothing_of_the_host(USER, USER), "{output:?}");
    // The port is the user's as before.
    let plugged = as_user(&[
        PYTHON,
        "-c",
        "import socket; socket.socket(); print('plugged')",
    ]);
    assert_eq!(text(&plugged.stdout), "plugged\n", "{plugged:?}");
}

#[test]
fn without_an_empty_network_nothing_is_started() {
    let _turn = beside();
    let lasthop = lasthop(&["a"]);
    // A user namespace in which no network can be made.
    let forbid = "echo 0 >/proc/sys/user/max_net_namespaces && exec \"$@\"";
    let run = |option: &[&str]| {
        let mut words = words(&lasthop, "a", 1, &["echo", "it runs"]);
        words.splice(2..2, option.iter().map(|word| (*word).to_owned()));
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "sh", "-c", forbid, "sh"]);
        command.arg(paths::binary("lasthop")).args(words);
        command.output().expect("it ends")
    };
    let output = run(&["--host-network"]);
    if !output.status.success() {
        skipped(format!(
            "there are no user namespaces here: {}",
            text(&output.stderr)
        ));
        return;
    }
    assert_eq!(text(&output.stdout), "it runs\n");
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(text(&output.stdout), "");
    let errors = text(&output.stderr);
    assert!(
        errors.contains("no network namespace can be made here"),
        "{errors}"
    );
    assert!(errors.contains("--host-network"), "{errors}");
}
