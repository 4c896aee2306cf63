//! Programs of the system with `lasthop net run`.

use std::process::{Command, Output, Stdio};

use testkit::lasthop::port;
use testkit::process::Process;

use crate::lasthop::Lasthop;
use crate::paths;

/// Debian's Python, whose modules are those of the system.
pub const PYTHON: &str = "/usr/bin/python3";

/// A Lasthop with ports that programs may connect to.
pub fn lasthop(names: &[&str]) -> Lasthop {
    let security = "port_security = { dhcp_server = true }";
    let ports: String = names.iter().map(|name| port(name, security)).collect();
    Lasthop::start(&format!("[switch]\nname = \"host1\"\n{ports}"))
}

/// The path of a program's text in the folder of tests of sockets.
pub fn script(name: &str) -> String {
    let path = paths::root()
        .join("crates/test/e2e/tests/e2e/sockets")
        .join(name);
    path.to_str().expect("text").to_owned()
}

/// The words of `lasthop net run` for a program at a port, with the address 10.0.0.`number`; 0: one
/// by DHCP.
pub fn words(lasthop: &Lasthop, port: &str, number: u8, program: &[&str]) -> Vec<String> {
    let socket = lasthop.socket_of(port);
    let address = match number {
        0 => String::new(),
        _ => format!("--address=10.0.0.{number}/24"),
    };
    let run = ["net", "run", "--socket"].map(str::to_owned);
    let options = [socket.to_str().expect("text"), &address, "--"];
    let options = options.into_iter().filter(|word| !word.is_empty());
    run.into_iter()
        .chain(options.map(str::to_owned))
        .chain(program.iter().map(|word| (*word).to_owned()))
        .collect()
}

/// A program that runs on.
pub fn start(lasthop: &Lasthop, port: &str, number: u8, program: &[&str]) -> Process {
    let words = words(lasthop, port, number, program);
    let log = lasthop.folder().join(format!("{port}.log"));
    Process::start(program[0], paths::binary("lasthop"), &words, &log)
}

/// A program that ends.
pub fn run(lasthop: &Lasthop, port: &str, number: u8, program: &[&str]) -> Output {
    let child = Command::new(paths::binary("lasthop"))
        .args(words(lasthop, port, number, program))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    child.wait_with_output().expect("it ends")
}

/// A program that succeeds; returns what it printed.
pub fn succeeds(lasthop: &Lasthop, port: &str, number: u8, program: &[&str]) -> String {
    let output = run(lasthop, port, number, program);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{program:?}: {printed}{errors}");
    printed
}
