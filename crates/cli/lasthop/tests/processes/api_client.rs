//! A client that is generated from `docs/openapi.json` works with a running Lasthop.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::lasthop::{Place, port};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");
const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/processes/api_client");

/// Returns the Python into which `make setup` has installed the generator.
fn python() -> Option<PathBuf> {
    let tools = Path::new(ROOT).join(".cache/python");
    let installed = tools.join("installed").exists();
    installed.then(|| tools.join("bin/python"))
}

/// Returns the output of a command, which must succeed.
fn prints(command: &mut Command) -> String {
    let done = command.output().unwrap();
    let output = [&done.stdout[..], &done.stderr[..]].concat();
    let output = String::from_utf8_lossy(&output);
    assert!(done.status.success(), "{output}");
    String::from_utf8(done.stdout).unwrap()
}

/// Generates the client, a package in `dir`. Warnings are errors.
fn generate(python: &Path, dir: &Path) {
    let mut command = Command::new(python);
    command.args(["-m", "openapi_python_client", "generate", "--meta", "none"]);
    command
        .args(["--fail-on-warning", "--path"])
        .arg(Path::new(ROOT).join("docs/openapi.json"));
    command
        .arg("--config")
        .arg(Path::new(FILES).join("generate.yml"));
    command.arg("--output-path").arg(dir.join("lasthop_api"));
    prints(&mut command);
}

#[test]
fn a_generated_client_asks_changes_and_understands_a_refusal() {
    let Some(python) = python() else {
        eprintln!("note: no Python tools here ('make setup' installs them), no client is made");
        return;
    };
    let place = Place::new();
    generate(&python, &place.path("."));
    let mut lasthop = place.start(&(port("vm1", "") + &port("vm2", "")));
    let mut script = Command::new(python);
    script.arg("-B").arg(Path::new(FILES).join("script.py"));
    script
        .arg(place.run_dir().join("api.sock"))
        .env("PYTHONPATH", place.path("."));
    let found: Value = serde_json::from_str(&prints(&mut script)).unwrap();
    let problem = |status, kind, field: Value| {
        let kind = format!("urn:lasthop:problem:{kind}");
        json!({ "status": status, "type": kind, "field": field })
    };
    let expected = json!({
        "ports": ["vm1", "vm2"],
        "dry": ["change", "port", "vm1", true],
        "mtu": 9000,
        "outdated": problem(412, "outdated", json!(null)),
        "wrong": problem(422, "invalid", json!("mtu")),
        "missing": problem(404, "not-found", json!(null)),
    });
    assert_eq!(found, expected);
    let mtu = |port: &str| lasthop.json(&format!("port show {port}"))["mtu"].clone();
    assert_eq!((mtu("vm1"), mtu("vm2")), (json!(9000), json!(null)));
    lasthop.end(Signal::TERM);
}
