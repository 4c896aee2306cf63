//! Commands about user ports, with the API server of a test engine.

use crate::support::Fake;

/// A test server with the user port "out".
fn fake() -> Fake {
    let fake = Fake::start();
    fake.prints("port add out --kind user --segment blue --network6 fd00:1::/64");
    fake
}

/// Runs a command with arguments that have blanks; returns its exit status and all that it prints.
fn run(fake: &Fake, line: &str, more: &[&str]) -> (i32, String) {
    let done = fake.command(line).args(more).output().unwrap();
    let text = [done.stdout, done.stderr].concat();
    (
        done.status.code().unwrap(),
        String::from_utf8(text).unwrap(),
    )
}

#[test]
fn flows_and_leases_are_tables() {
    let fake = fake();
    let text = "\
PROTOCOL GUEST PORT PEER STATE AGE FROM GUEST TO GUEST WAITS FOR
tcp 10.0.2.15:40000 vm1 192.0.2.1:443 established 1 min 1 s 2.0 KiB - guest-window
";
    let stalled = "\
PROTOCOL GUEST PORT PEER STATE WAITS FOR PROGRESS UNACKED WINDOW PENDING QUEUED ROOM TIMER
RETRANSMITTED
tcp 10.0.2.15:40000 vm1 192.0.2.1:443 established guest-window 1 min 1 s 0 B 0 B 300.0 KiB 0 B
43.0 KiB probe in 4 s 2
";
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let flows = fake.prints("user flows out --limit 20");
    assert_eq!(squeezed(&flows), squeezed(text), "{flows}");
    for option in ["--stalled", "--stalled=60"] {
        let flows = fake.prints(&format!("user flows {option} out"));
        assert_eq!(squeezed(&flows), squeezed(stalled), "{flows}");
    }
    assert_eq!(fake.fails("user flows out --stalled=86401").0, 2);
    let flow = &fake.json("user flows out")["flows"][0];
    assert_eq!(flow["waits_for"], "guest-window");
    assert_eq!(flow["tcp"]["pending_bytes"], 300 << 10);
    assert_eq!(
        (&flow["age_ms"], &flow["to_guest_bytes"]),
        (&61_500.into(), &().into())
    );
    let leases = fake.prints("user leases out");
    assert!(
        squeezed(&leases).starts_with("MAC ADDRESS PORT TIME LEFT"),
        "{leases}"
    );
    assert!(
        leases.contains("52:54:00:00:00:01  10.0.2.15  -"),
        "{leases}"
    );
    assert_eq!(fake.json("user leases out")["leases"][0]["seconds"], 3590);
    let (status, error) = fake.fails("user leases vm9");
    assert_eq!((status, &*error), (2, "lasthop: there is no port `vm9`\n"));
    assert_eq!(fake.fails("user flows out --limit 0").0, 2);
}

#[test]
fn forwards_are_added_and_removed_one_by_one() {
    let fake = fake();
    assert_eq!(fake.prints("port forward list out"), "no forwards\n");
    let ssh = "tcp 127.0.0.1:2222";
    let added = run(&fake, "port forward add out", &[ssh, "vm1:22"]);
    assert_eq!(added, (0, format!("{ssh} leads to vm1:22\n")));
    let added = run(
        &fake,
        "port forward add out",
        &["tcp [::1]:8000-8009", "[fd00:1::9]:80"],
    );
    assert_eq!(added.0, 0, "{}", added.1);
    let list = fake.prints("port forward list out");
    assert!(list.starts_with("LISTEN"), "{list}");
    assert!(
        list.contains(ssh) && list.contains("tcp [::1]:8000-8009"),
        "{list}"
    );
    let listed = fake.json("port forward list out");
    assert_eq!(
        (&listed[0]["listen"], &listed[0]["state"]),
        (&ssh.into(), &"ready".into())
    );
    let again = run(
        &fake,
        "port forward add out",
        &["tcp  127.0.0.1:2222", "vm1:23"],
    );
    let text = format!("lasthop: nothing was changed: \"{ssh}\" leads to vm1:22 already\n");
    assert_eq!(again, (2, text));
    for (listen, to, word) in [
        ("tcp 127.0.0.1:2223", "vm9:22", "a port of the same segment"),
        (
            "tcp [::1]:8005",
            "[fd00:1::9]:22",
            "a port that no other forward has",
        ),
        (
            "tcp [::1]:2222",
            "vm1:22",
            "an IPv6 address in port_security.addresses",
        ),
        ("2223", "vm1:22", "tcp 127.0.0.1:2222"),
    ] {
        let (status, text) = run(&fake, "port forward add out", &[listen, to]);
        assert_eq!(status, 2, "{text}");
        assert!(
            text.contains(word) && text.contains("nothing was changed"),
            "{text}"
        );
    }
    let removed = run(&fake, "port forward remove out", &[ssh]);
    assert_eq!(removed, (0, format!("{ssh} leads nowhere any more\n")));
    let (status, text) = run(&fake, "port forward remove out", &[ssh]);
    assert_eq!(status, 2);
    assert!(text.contains("there is no forward of"), "{text}");
    assert!(!fake.prints("export").contains("2222"));
    for line in ["port forward list vm1", "port forward remove vm1 tcp"] {
        let (status, text) = fake.fails(line);
        assert_eq!(status, 2);
        assert!(text.contains("is not of kind `user`"), "{text}");
    }
}

#[test]
fn forwards_say_why_they_are_not_ready() {
    let fake = fake();
    let taken = "tcp 127.0.0.1:2299";
    let (status, text) = run(&fake, "port forward add out", &[taken, "vm1:22"]);
    assert_eq!(status, 1);
    let expected = "every 5 seconds: tcp 127.0.0.1:2299: Address already in use\n";
    assert!(text.ends_with(expected), "{text}");
    let early = "udp 127.0.0.1:5353";
    let added = run(&fake, "port forward add out", &[early, "10.0.2.30:53"]);
    assert_eq!(added, (0, format!("{early} leads to 10.0.2.30:53\n")));
    let list = fake.prints("port forward list out");
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = list.lines().map(words).collect();
    assert_eq!(lines[0], "LISTEN TO STATE REASON");
    let refused = format!("{taken} vm1:22 refused Address already in use");
    assert_eq!(
        lines[1..],
        [refused, format!("{early} 10.0.2.30:53 ready -")]
    );
    let listed = fake.json("port forward list out");
    let first = &listed[0];
    assert_eq!(
        (&first["state"], &first["refused"]),
        (&"refused".into(), &1.into())
    );
    assert_eq!(first["reason"], "Address already in use");
    assert!(listed[1].get("reason").is_none());
}
