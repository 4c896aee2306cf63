//! Packages that each program and library links, as cargo resolves them: the edges that are
//! forbidden, and the trees in `docs/dev/dependencies.md`.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use e2e::paths::binary;
use serde_json::Value;

use super::{read, root};

/// Families of packages that few may link.
const FAMILIES: [(&str, &[&str]); 15] = [
    ("HTTP", &["axum", "http", "hyper", "reqwest"]),
    ("async", &["mio", "tokio"]),
    ("arguments", &["clap"]),
    ("TOML", &["toml", "toml_parser"]),
    ("schemas", &["utoipa"]),
    ("screen", &["ratatui"]),
    ("desired state", &["lasthop-config"]),
    // Guest memory, and the crates that build on it: for the switch alone.
    (
        "guest memory",
        &[
            "lasthop-datapath",
            "lasthop-memif",
            "lasthop-memory",
            "lasthop-virtio",
        ],
    ),
    // Reads frames of guests. The supervisor keeps the file of its table, and no more.
    ("tracker", &["lasthop-conntrack"]),
    ("front end", &["lasthop-vhost-frontend"]),
    // Opens interfaces, with the rights that this needs.
    ("interfaces", &["lasthop-interfaces"]),
    // TCP, DHCP and DNS of hostile guests and servers.
    ("user network", &["lasthop-usernet"]),
    ("TCP/IP stack", &["lasthop-sockets", "smoltcp"]),
    (
        "programs",
        &[
            "lasthop",
            "lasthop-control",
            "lasthop-driver",
            "lasthop-supervisor",
            "lasthop-top",
        ],
    ),
    (
        "tests",
        &["lasthop-e2e", "lasthop-testkit", "proptest", "tempfile"],
    ),
];

/// Every package of the workspace with the families that it links, itself or by another package;
/// all others are forbidden to it. Features are those of the package alone: a build of several
/// packages at once derives schemas for all, and the linker drops them from programs without use.
const LINKED: [(&str, &[&str]); 44] = [
    // The processes of Lasthop, and the command line.
    ("lasthop-supervisor", &["interfaces"]),
    ("lasthop-datapath", &["guest memory", "tracker"]),
    (
        "lasthop-driver",
        &["front end", "interfaces", "user network"],
    ),
    (
        "lasthop-control",
        &[
            "HTTP",
            "async",
            "TOML",
            "schemas",
            "desired state",
            "tracker",
            "user network",
        ],
    ),
    (
        "lasthop",
        &[
            "HTTP",
            "async",
            "arguments",
            "TOML",
            "schemas",
            "desired state",
            "tracker",
            "front end",
            "user network",
            "TCP/IP stack",
        ],
    ),
    ("lasthop-top", &["HTTP", "async", "schemas", "screen"]),
    // Libraries that programs of the host load.
    ("lasthop-sockets-preload", &["front end", "TCP/IP stack"]),
    ("lasthop-netmap-preload", &["front end"]),
    // Their parts.
    ("lasthop-api", &["schemas"]),
    ("lasthop-bpf", &[]),
    ("lasthop-ipc", &[]),
    ("lasthop-client", &["HTTP", "async", "schemas"]),
    (
        "lasthop-config",
        &["TOML", "schemas", "tracker", "user network"],
    ),
    ("lasthop-conntrack", &[]),
    ("lasthop-egress", &[]),
    ("lasthop-filter", &[]),
    ("lasthop-flow-table", &[]),
    ("lasthop-vhost-frontend", &[]),
    ("lasthop-interfaces", &[]),
    ("lasthop-interpose", &[]),
    ("lasthop-mapping", &[]),
    ("lasthop-memif", &["guest memory"]),
    ("lasthop-memory", &[]),
    ("lasthop-model", &[]),
    ("lasthop-sockets", &["front end", "TCP/IP stack"]),
    ("lasthop-netmap", &["front end"]),
    ("lasthop-netio", &[]),
    ("lasthop-offload", &[]),
    ("lasthop-pipes", &[]),
    ("lasthop-policy", &[]),
    ("lasthop-polling", &[]),
    ("lasthop-port", &[]),
    ("lasthop-process", &[]),
    ("lasthop-ring", &[]),
    ("lasthop-vcpus", &[]),
    ("lasthop-sys", &[]),
    ("lasthop-usernet", &[]),
    ("lasthop-virtio", &["guest memory"]),
    ("lasthop-wire", &[]),
    // Tests and measurements.
    ("lasthop-testkit", &["guest memory", "tests"]),
    ("lasthop-e2e", &["arguments", "guest memory", "tests"]),
    ("lasthop-hostile", &["guest memory", "tests"]),
    ("lasthop-load", &["guest memory", "tests"]),
    (
        "lasthop-fuzz",
        &[
            "HTTP",
            "async",
            "TOML",
            "schemas",
            "desired state",
            "guest memory",
            "tracker",
            "front end",
            "interfaces",
            "user network",
            "programs",
            "tests",
        ],
    ),
];

/// Packages whose trees are in `docs/dev/dependencies.md`: the process with rights, and those with
/// hostile bytes.
const TREES: [&str; 3] = ["lasthop-supervisor", "lasthop-datapath", "lasthop-driver"];

/// Runs cargo without a network, and returns its output.
fn cargo(arguments: &[&str]) -> Vec<u8> {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .args(["--locked", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {arguments:?}: {error}");
    output.stdout
}

/// The names of the workspace's packages.
fn members() -> BTreeSet<String> {
    let text = cargo(&["metadata", "--format-version=1", "--no-deps"]);
    let metadata: Value = serde_json::from_slice(&text).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let names = packages.filter_map(|package| package["name"].as_str());
    names.map(str::to_owned).collect()
}

/// The packages that a package links, without those for builds and tests: for each the way of
/// links to it, which begins with the package.
fn ways(package: &str) -> Vec<Vec<String>> {
    let arguments = ["tree", "-e", "normal", "--prefix", "depth", "-p", package];
    let print = ["--format", " {p}", "--target", "x86_64-unknown-linux-gnu"];
    let text = cargo(&[&arguments[..], &print].concat());
    let text = String::from_utf8(text).expect("cargo prints UTF-8");
    let mut way: Vec<String> = Vec::new();
    let ways = text.lines().map(|line| {
        let mut words = line.split_whitespace();
        let depth = words.next().and_then(|depth| depth.parse().ok());
        way.truncate(depth.expect("a line begins with its depth"));
        way.extend(words.next().map(str::to_owned));
        way.clone()
    });
    ways.skip(1).collect()
}

#[test]
fn packages_do_not_link_what_they_must_not_know() {
    let listed = LINKED.iter().map(|(package, _)| (*package).to_owned());
    let listed: BTreeSet<String> = listed.collect();
    assert_eq!(
        members(),
        listed,
        "every package of the workspace has a row"
    );
    let mut wrong = Vec::new();
    for (package, families) in LINKED {
        let known = |name: &&str| FAMILIES.iter().any(|(family, _)| family == name);
        assert!(families.iter().all(known), "{package}");
        let ways = ways(package);
        for (family, targets) in FAMILIES {
            let is_one = |way: &&Vec<String>| way.last().is_some_and(|n| targets.contains(&&**n));
            let way = ways.iter().filter(is_one).min_by_key(|way| way.len());
            match (way, families.contains(&family)) {
                (Some(way), false) => wrong.push(format!("{family}: {}", way.join(" > "))),
                (None, true) => wrong.push(format!("{package} does not link {family} any more")),
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "forbidden links: {wrong:#?}");
}

#[test]
fn programs_without_an_api_have_no_schemas() {
    for program in ["lasthop-supervisor", "lasthop-switch", "lasthop-driver"] {
        let Ok(output) = Command::new("nm").arg(binary(program)).output() else {
            eprintln!("skipped: no nm here");
            return;
        };
        let symbols = String::from_utf8_lossy(&output.stdout);
        assert!(symbols.contains("rust"), "{program} has symbols");
        // Glue that drops a type may be left of a build in many parts; it makes no document.
        let is_schema = |line: &&str| line.contains("utoipa") && !line.contains("drop_in_place");
        let found: Vec<_> = symbols.lines().filter(is_schema).collect();
        assert!(found.is_empty(), "{program}: {found:#?}");
    }
}

/// The tree of a package: a fenced block of Markdown.
fn tree(package: &str) -> String {
    let arguments = ["tree", "-e", "normal,no-proc-macro", "-p", package];
    let print = ["--format", "{lib}", "--target", "x86_64-unknown-linux-gnu"];
    let text = cargo(&[&arguments[..], &print].concat());
    let text = String::from_utf8(text).expect("cargo prints UTF-8");
    let (_, rows) = text.split_once('\n').expect("the package has a line");
    let command = format!("cargo {} --format '{{lib}}'", arguments.join(" "));
    format!("```\n{package}        ({command})\n{rows}```\n")
}

#[test]
fn trees_in_the_docs_are_those_of_cargo() {
    const FILE: &str = "docs/dev/dependencies.md";
    let start = "<!-- generated: BLESS=1 cargo test -p lasthop-e2e --test structure trees -->\n";
    let end = "\n## In tests only\n";
    let text = read(FILE);
    let (before, rest) = text.split_once(start).expect("the mark of the trees");
    let (_, after) = rest.split_once(end).expect("the section after the trees");
    let trees: Vec<String> = TREES.iter().map(|package| tree(package)).collect();
    let current = [before, start, &trees.join("\n"), end, after].concat();
    if std::env::var_os("BLESS").is_some() {
        fs::write(root().join(FILE), &current).expect("the page can be written");
    }
    assert!(
        read(FILE) == current,
        "{FILE} has other trees: BLESS=1 cargo test -p lasthop-e2e --test structure trees"
    );
}
