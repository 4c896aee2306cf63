//! A file is applied under traffic: unchanged ports lose no frame and no connection.

use std::fs;

use e2e::beside;
use e2e::lasthop::Lasthop;
use e2e::numbered::{Stream, introduce, settle, trickle};
use e2e::uplinks::{tap, uplink, wire};
use testkit::netns::Netns;
use testkit::packets::{Flow, SequenceChecker};
use testkit::wait::LIMIT;

use std::time::Duration;

/// A port of a guest.
fn port(name: &str, more: &str) -> String {
    format!(
        "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{name}.sock\"\n{more}\n"
    )
}

/// Two ports in a segment of their own, which stay as they are, and the rest.
fn config(name: &str, segments: &str, ports: &[&String]) -> String {
    let blue = "segment = \"blue\"";
    let stay = [port("vm1", blue), port("vm2", blue)].concat();
    let head =
        format!("[switch]\nname = \"{name}\"\n[[segment]]\nname = \"blue\"\nvlan = 10\n{segments}");
    format!(
        "{head}{stay}{}",
        ports.iter().copied().cloned().collect::<String>()
    )
}

#[test]
fn who_is_not_concerned_loses_nothing() {
    let turn = beside();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let first = config("host1", "", &[]);
    let lasthop = Lasthop::start(&first);
    let (mut a, mut b) = (lasthop.connect("vm1", 1), lasthop.connect("vm2", 2));
    introduce(&mut a, &mut b, Flow::v4(1, 2));
    let switch = lasthop.pid("lasthop-switch");

    let green = "[[segment]]\nname = \"green\"\nvlan = 30\n";
    let trunk = port("vm3", "trunk = [\"blue\", \"green\"]");
    let mut files = vec![
        (
            "more ports and a segment",
            config(
                "host1",
                green,
                &[&trunk, &port("vm4", "segment = \"green\"")],
            ),
        ),
        (
            "another tag, another segment, another name",
            config(
                "host2",
                &green.replace("30", "31"),
                &[&trunk, &port("vm4", "")],
            ),
        ),
        (
            "a port that dials, and one with another socket",
            config(
                "host2",
                green,
                &[
                    &port("vm5", "role = \"client\""),
                    &port("vm4", "").replace("vm4.sock", "other.sock"),
                ],
            ),
        ),
    ];
    let netns = Netns::allowed().then(|| {
        [
            Netns::new("near", folder.path()),
            Netns::new("far", folder.path()),
        ]
    });
    if let Some([near, far]) = &netns {
        wire(near, far);
        let tap = tap("t0", &near.path(), "10.1.0.1/24", "");
        let up = uplink(&near.path(), "driver = \"packet\"");
        files.push((
            "interfaces of the host",
            config("host2", green, &[&tap, &up]),
        ));
    }
    files.push(("only the two", first));

    let (mut checker, mut steady) = (SequenceChecker::default(), Stream::new(0, Flow::v4(1, 2)));
    let file = folder.path().join("new.toml");
    let file_name = file.display().to_string();
    for round in 0..2 {
        for (what, text) in &files {
            turn.step(&format!("{what}, time {}", round + 1));
            fs::write(&file, text).expect("the file can be written");
            std::thread::scope(|scope| {
                let apply = scope.spawn(|| lasthop.ok(&["apply", &file_name]));
                while !apply.is_finished() {
                    trickle(&mut steady, (&mut a, &mut b), &mut checker, 100);
                    std::thread::sleep(Duration::from_micros(200));
                }
                let output = apply.join().expect("it is applied");
                assert!(
                    output.ends_with(" applied\n") && !output.contains("vm1"),
                    "{output}"
                );
            });
            assert_eq!(lasthop.ok(&["apply", &file_name]), "nothing to change\n");
            refuse_bad_ones(&lasthop, &file, text);
        }
    }
    settle(&mut b, &mut checker, &steady, LIMIT);
    assert_eq!(
        lasthop.pid("lasthop-switch"),
        switch,
        "the switch was restarted"
    );
    assert_eq!(lasthop.stats().drops(), [].into());
    drop((a, b));
    lasthop.stop();
}

/// Whatever is wrong with a file: what is there stays there.
fn refuse_bad_ones(lasthop: &Lasthop, file: &std::path::Path, good: &str) {
    let before = lasthop.json(&["port", "list"]);
    let names = |list: &serde_json::Value| {
        let ports = list["ports"].as_array().expect("ports are listed").iter();
        ports.map(|p| p["name"].clone()).collect::<Vec<_>>()
    };
    let precious = lasthop.socket("precious");
    fs::write(&precious, "precious").expect("a file in the way");
    let only = |more: &str| format!("[switch]\nname = \"host1\"\n{more}");
    for (bad, complaint) in [
        (
            good.replace("vlan = 10", "vlan = 5000"),
            "segment.vlan: expected an integer from 1 to 4094, found 5000",
        ),
        (
            good.replace("name = \"vm2\"", "name = \"vm1\""),
            "port.name",
        ),
        (
            format!("{good}\nname"),
            "expected \"=\" and a value behind a key, found none",
        ),
        (
            only("workers = 2\n"),
            "switch.workers: expected \"auto\", with which Lasthop was started",
        ),
        (
            only(&port("precious", "").replace("precious.sock", "precious")),
            "is not a socket",
        ),
        (
            only("[[port]]\nname = \"u\"\nkind = \"tap\"\ninterface = \"lo\"\n"),
            "lasthop: nothing was changed: interface: port `u`",
        ),
    ] {
        fs::write(file, &bad).expect("the file can be written");
        let output = lasthop.cli(&["apply", &file.display().to_string()]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(complaint), "{complaint}: {errors}");
    }
    fs::remove_file(precious).expect("the file is as it was");
    assert_eq!(names(&lasthop.json(&["port", "list"])), names(&before));
}
