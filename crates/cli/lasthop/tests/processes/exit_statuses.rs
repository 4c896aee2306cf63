//! The exit status of commands: 2 where the request, a file or the environment is wrong and nothing
//! was changed, 1 where a valid command failed at run time.

use std::fs;
use std::process::{Command, Output};

use testkit::lasthop::{Place, port};
use testkit::table::rows;

fn config() -> String {
    format!("[switch]\nname = \"host1\"\n{}", port("vm1", ""))
}

/// Checks the status and the message of a command.
fn check(line: &str, output: &Output, status: i32, part: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{line}: {said}");
    assert!(said.contains(part), "{line}: {said}");
}

#[test]
fn commands_to_a_running_lasthop() {
    let place = Place::new();
    let mut lasthop = place.start(&config());
    fs::write(place.path("empty.toml"), "# nothing\n").unwrap();
    fs::write(place.path("wrong.toml"), "[swich]\n").unwrap();
    fs::write(place.path("same.toml"), config()).unwrap();
    fs::write(place.path("no.pcap"), "no capture").unwrap();
    let root = place.path("");
    lasthop.prints("fdb add 52:54:00:00:00:0a --port vm1");
    lasthop.prints("port add vm2 --kind vhost-user --socket vm2.sock");
    // Command, status, part of the message.
    let table = rows(
        r#"
        status | 0 | ""
        stats --explain | 0 | ""
        port list --wrong | 2 | unexpected argument
        port | 2 | Usage
        port add | 2 | required
        port show vm9 | 2 | there is no port
        port add vm1 --kind vhost-user --socket x.sock | 2 | vm1
        port add vm3 --kind vhost-user --socket vm1.sock | 2 | vm1.sock
        port set vm1 --queues x | 2 | expected an integer\n
        port set vm1 --queues 65 | 2 | expected an integer from 1 to 64\n
        port set vm1 --mtu 1 | 2 | expected an integer from 68 to 9216\n
        flows --limit 0 | 2 | expected an integer from 1 to 1024\n
        connections list --limit 1025 | 2 | expected an integer from 1 to 1024\n
        connections list --port vm9 | 2 | there is no port
        connections count vlan 5 | 2 | column 1: a frame has this
        connections count tcp and dst port 80 | 0 | ""
        connections flush --segment none | 2 | there is no segment
        connections flush port x | 2 | column 6
        connections flush --port vm1 tcp | 0 | ""
        port set vm1 | 2 | nothing to change: see lasthop port set --help
        port set vm1 --dry-run | 2 | nothing to change
        segment set default | 2 | nothing to change: see lasthop segment set --help
        qos-class set default | 2 | nothing to change: see lasthop qos-class set --help
        qos-group set g | 2 | nothing to change: see lasthop qos-group set --help
        port set vm1 --mtu 9000 --dry-run | 3 | ""
        port remove vm9 | 2 | there is no port
        segment remove default | 2 | default
        mirror remove m | 2 | there is no mirror
        fdb add 52:54:00:00:00:0A --port vm2 | 2 | is at port vm1 already; --replace moves it
        fdb add 52:54:00:00:00:0a --port vm1 | 0 | ""
        fdb add 52:54:00:00:00:0a --port vm2 --replace | 0 | ""
        fdb add 01:00:5e:00:00:01 --port vm2 | 2 | unicast
        fdb remove 52:54:00:00:00:0b | 2 | there is no static entry
        apply ROOT/wrong.toml | 2 | expected the key switch, or another of
        apply ROOT/none.toml | 2 | No such file
        apply ROOT | 2 | directory
        apply ROOT/empty.toml | 2
          | expected a port, found none: --allow-empty removes all, now 2 ports
        apply ROOT/empty.toml --dry-run | 2 | --allow-empty
        apply ROOT/empty.toml --dry-run --allow-empty | 3 | ""
        apply ROOT/same.toml --dry-run | 3 | ""
        reload --dry-run | 3 | ""
        trace --port vm1 arp | 2 | expression
        trace --port vm1 --pcap ROOT/no.pcap | 2 | neither pcap nor pcapng
        trace --port vm1 --pcap ROOT/none.pcap | 2 | No such file
        trace --port vm1 --expect drop ether 52:54:00:00:00:01 > 52:54:00:00:00:02 type 0x88b5
          | 4 | would pass
        capture vm1 -w ROOT/none/x | 2 | No such file
        capture vm9 -w ROOT/x | 2 | there is no port
        capture vm1 -w ROOT/same.toml | 2 | exists already
        capture vm1 -w /dev/full | 1 | No space left
        egress show vm1 | 2 | vm1
        user flows vm1 | 2 | vm1
        acl show none | 2 | none
        upgrade --to ROOT | 2 | refused
        man --out ROOT/same.toml/x | 2 | Not a directory
        top | 2 | terminal
        "#,
    );
    for [line, status, part] in table {
        let line = line.replace("ROOT", root.to_str().unwrap().trim_end_matches('/'));
        let output = lasthop.cli(&line);
        check(&line, &output, status.parse().unwrap(), &part);
    }
    let moved = lasthop.prints("fdb add 52:54:00:00:00:0a --port vm1 --replace");
    let said = "static entry 52:54:00:00:00:0a moved from port vm2 to port vm1\n";
    assert_eq!(moved, said);
    assert_eq!(
        lasthop.json("port list")["ports"].as_array().unwrap().len(),
        2
    );
    lasthop.prints(&format!(
        "apply {}/empty.toml --allow-empty",
        root.display()
    ));
    lasthop.terminate();
}

#[test]
fn commands_without_a_lasthop() {
    let place = Place::new();
    fs::write(place.path("file"), "").unwrap();
    let run = |dir: &str, words: &[&str]| {
        let mut command = Command::new(testkit::programs::program("lasthop"));
        command.arg("--runtime-dir").arg(place.path(dir));
        command.args(words).output().unwrap()
    };
    for line in [
        "status",
        "stats --watch",
        "events",
        "port remove vm1",
        "reload",
        "upgrade",
    ] {
        let words: Vec<_> = line.split(' ').collect();
        check(line, &run("none", &words), 1, "is `lasthop run` running?");
        // It will not be there either when Lasthop is started.
        check(line, &run("file", &words), 2, "Not a directory");
    }
}

#[test]
fn a_start_that_a_restart_does_not_mend() {
    let place = Place::new();
    let wrong = port("vm1", "").replace("vm1.sock", "none/vm1.sock");
    for (config, part) in [
        ("[swich]\n", "expected the key switch"),
        (&wrong, "a path where a socket can be made"),
        (
            "[metrics]\nlisten = \"10.0.0.1:1\"\n",
            "expected a loopback address",
        ),
    ] {
        let (status, said) = place.refuses(config);
        assert_eq!(status, Some(2), "{said}");
        assert!(said.contains(part), "{said}");
    }
    // The runtime directory cannot be made.
    let place = Place::new();
    fs::write(place.run_dir(), "").unwrap();
    let (status, said) = place.refuses(&config());
    assert_eq!(status, Some(2), "{said}");
    let other = "File exists (os error 17): --runtime-dir or LASTHOP_RUNTIME_DIR selects another";
    assert!(said.contains(other), "{said}");
    fs::remove_file(place.run_dir()).unwrap();
    // Another one has it.
    let mut first = place.start(&config());
    let (status, said) = place.refuses(&config());
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("another Lasthop runs in"), "{said}");
    first.terminate();
    // The unit does not try again.
    let unit = include_str!("../../../../../packaging/lasthop.service");
    let prevented: Vec<_> = unit
        .lines()
        .filter_map(|line| line.strip_prefix("RestartPreventExitStatus="))
        .collect();
    assert_eq!(prevented, ["2"]);
}
