//! `lasthop run` as a whole: real processes, and their failures.

use std::collections::BTreeSet;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::lasthop::{Place, listens, port};
use testkit::process::send;
use testkit::procfs::is_gone;
use testkit::stop::Stop;
use testkit::wait::{assert_faster, wait_for, wait_until};

pub(crate) const SWITCH: &str =
    "[switch]\nname = \"host1\"\n[[segment]]\nname = \"blue\"\nvlan = 10\n";

pub(crate) fn one_port() -> String {
    format!("{SWITCH}{}", port("vm1", "segment = \"blue\""))
}

#[test]
fn it_reports_ready_once_and_ends_cleanly() {
    for how in [Signal::TERM, Signal::INT] {
        let place = Place::new();
        let mut lasthop = place.start(&one_port());
        assert_eq!(
            place.left(),
            ["api.sock", "lasthop.lock", "supervisor.sock", "vm1.sock"]
        );
        wait_until("two children", || lasthop.children().len() == 2);
        let started = Instant::now();
        lasthop.end(how);
        // It stops without a timeout.
        assert_faster(started.elapsed(), Duration::from_secs(2));
        assert_eq!(place.left(), [""; 0]);
        assert_eq!(lasthop.rest_of_stdout(), "", "nothing but one line");
    }
}

#[test]
fn status_for_people() {
    let place = Place::new();
    let config = format!(
        "{}{}",
        one_port(),
        port("vm2", "role = \"client\"\nmtu = 9000")
    );
    let lasthop = place.start(&config);
    let text = lasthop.prints("status");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("host1: lasthop "), "{text}");
    let switch = "switch connected to control: 0 cached flows, 0 questions to it (0 dropped), \
                  1 worker, adaptive polling";
    assert_eq!(lines[1], switch, "{text}");
    assert!(lines[2].starts_with("vCPU states: "), "{text}");
    for name in ["supervisor", "control", "switch"] {
        let running = |line: &&str| line.starts_with(name) && line.contains(" running ");
        assert!(lines.iter().any(running), "{name}: {text}");
    }
    wait_until("vm2 has a reason", || {
        let list = lasthop.prints("port list");
        let vm2 = list.lines().find(|line| line.starts_with("vm2 ")).unwrap();
        vm2.ends_with("  no listener on vm2.sock")
    });
    let vm1 = lines.iter().find(|line| line.starts_with("vm1 ")).unwrap();
    assert!(vm1.contains("waiting") && vm1.contains("blue"), "{text}");
    assert_eq!(lasthop.json("stats")["ports"][0]["name"], "vm1");
    assert_eq!(lasthop.prints("fdb list"), "no entries\n");
}

#[test]
fn a_wrong_configuration_is_2_and_starts_nothing() {
    let long = "x".repeat(120);
    let table = [
        (port("vm1", "queues = 0"), 10, "port.queues"),
        (port("vm1", "") + &port("vm1", ""), 12, "port.name"),
        (port("vm1", "segment = \"red\""), 10, "port.segment"),
        (port(&long, "").replacen(&long, "vm1", 1), 9, "port.socket"),
        (port("vm1", "colour = \"red\""), 10, "port.colour"),
        ("[[port]\n".to_owned(), 6, ""),
    ];
    for (ports, line, key) in table {
        let place = Place::new();
        let (status, complaint) = place.refuses(&format!("{SWITCH}{ports}"));
        let file = place.path("lasthop.toml").display().to_string();
        let start = format!("lasthop: {file}:{line}:");
        let rest = complaint.strip_prefix(&start).expect(&complaint);
        let (column, rest) = rest.split_once(": ").unwrap();
        assert!(column.parse::<u16>().is_ok(), "{complaint}");
        assert!(rest.starts_with(key), "{complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
        assert_eq!(status, Some(2));
        assert!(!place.run_dir().exists());
    }
}

#[test]
fn a_socket_path_that_is_taken_is_2_and_nothing_is_left() {
    let place = Place::new();
    let config = format!("{}{}", one_port(), port("vm2", ""));
    std::fs::create_dir(place.run_dir()).unwrap();
    let taken = place.run_dir().join("vm2.sock");
    let place_of_key = format!(
        "{}:14:10: port.socket: ",
        place.path("lasthop.toml").display()
    );
    let refused = |why: &str| {
        let (status, complaint) = place.refuses(&config);
        let last = complaint.lines().last().unwrap();
        assert!(
            last.starts_with(&format!("lasthop: {place_of_key}")),
            "{complaint}"
        );
        assert!(last.contains(why), "{complaint}");
        assert_eq!(status, Some(2));
        assert_eq!(place.left(), ["vm2.sock"], "what was there stays there");
    };
    std::fs::write(&taken, "precious").unwrap();
    refused("is not a socket");
    assert_eq!(std::fs::read(&taken).unwrap(), b"precious");
    std::fs::remove_file(&taken).unwrap();
    let listener = UnixListener::bind(&taken).unwrap();
    refused("is in use by another process");
    assert!(listens(&taken));
    // The socket of a dead process is replaced.
    drop(listener);
    let mut lasthop = place.start(&config);
    assert!(listens(&taken));
    lasthop.end(Signal::TERM);
}

#[test]
fn missing_files_and_invalid_variables_are_named() {
    for (name, value) in [("LASTHOP_LOG", "verbose"), ("LASTHOP_HEARTBEAT", "bogus")] {
        let place = Place::new();
        let mut command = place.command(&one_port());
        command.env(name, value);
        let mut lasthop = place.spawn(command);
        assert_eq!(lasthop.wait().code(), Some(2));
        let complaint = lasthop.log();
        assert!(
            complaint.starts_with(&format!("lasthop: {name}: expected o")),
            "{complaint}"
        );
        assert!(
            complaint.ends_with(&format!("found {value:?}\n")),
            "{complaint}"
        );
        assert!(!place.run_dir().exists());
    }

    let place = Place::new();
    std::fs::write(place.run_dir(), "a file").unwrap();
    let (status, complaint) = place.refuses(&one_port());
    assert_eq!(status, Some(2));
    assert!(
        complaint.starts_with("lasthop: the runtime directory "),
        "{complaint}"
    );

    for name in ["api.sock", "supervisor.sock"] {
        let place = Place::new();
        std::fs::create_dir(place.run_dir()).unwrap();
        let file = place.run_dir().join(name);
        std::fs::write(&file, "precious").unwrap();
        let (status, complaint) = place.refuses(&one_port());
        let file = file.canonicalize().unwrap();
        let expected = format!(
            "lasthop: cannot listen on the socket {name} of Lasthop itself: {}, which exists \
             and is not a socket\n",
            file.display()
        );
        assert_eq!((status, complaint), (Some(2), expected));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    }

    let place = Place::new();
    let command = place.command("");
    std::fs::remove_file(place.path("lasthop.toml")).unwrap();
    let mut lasthop = place.spawn(command);
    assert_eq!(lasthop.wait().code(), Some(2));
    assert!(lasthop.log().contains("expected a file that can be read"));
}

#[test]
fn a_second_one_in_the_same_directory_refuses() {
    let place = Place::new();
    let mut first = place.start(&one_port());
    let mut second = place.spawn(place.command(&one_port()));
    assert_eq!(second.wait().code(), Some(2));
    assert!(
        second.log().contains("another Lasthop runs in "),
        "{}",
        second.log()
    );
    assert!(first.is_running());
    assert_eq!(first.state("vm1"), "waiting");
    assert_eq!(
        place.left(),
        ["api.sock", "lasthop.lock", "supervisor.sock", "vm1.sock"]
    );
    first.end(Signal::TERM);
    assert_eq!(place.left(), [""; 0]);
}

#[test]
fn two_in_different_directories_do_not_see_each_other() {
    let (one, two) = (Place::new(), Place::new());
    let mut first = one.start(&one_port());
    let second = two.start(&format!("{SWITCH}{}", port("vm2", "")));
    first.end(Signal::TERM);
    assert_eq!(second.state("vm2"), "waiting");
}

#[test]
fn a_new_one_waits_a_moment_for_the_sockets_of_the_last() {
    // It waits for a second. A busy machine may not let this test run in that time: then anew.
    wait_until("a run in which this test was in time", || {
        let place = Place::new();
        std::fs::create_dir(place.run_dir()).unwrap();
        let dying = UnixListener::bind(place.run_dir().join("vm1.sock")).unwrap();
        let since = Instant::now();
        let mut next = place.spawn(place.command(&one_port()));
        // It comes to the sockets after its lock.
        let lock = place.run_dir().join("lasthop.lock");
        wait_until("it has the lock", || lock.exists());
        std::thread::sleep(Duration::from_millis(100));
        let is_running = next.is_running();
        drop(dying);
        if since.elapsed() > Duration::from_millis(800) {
            return false;
        }
        assert!(is_running);
        next.wait_ready();
        next.end(Signal::TERM);
        true
    });
}

#[test]
fn without_the_supervisor_the_others_end_and_a_new_one_starts() {
    let place = Place::new();
    let mut lasthop = place.start(&one_port());
    let children = wait_for("two children", || {
        Some(lasthop.children()).filter(|children| children.len() == 2)
    });
    send(lasthop.pid("switch"), Signal::STOP);
    lasthop.signal(Signal::KILL);
    lasthop.wait();
    // The other processes may not have ended yet, and one of them cannot end by itself.
    let mut next = place.start(&one_port());
    wait_until("the others end", || {
        children.iter().all(|pid| is_gone(*pid))
    });
    assert_eq!(next.state("vm1"), "waiting");
    next.end(Signal::TERM);
    assert_eq!(place.left(), [""; 0]);
}

#[test]
fn control_is_started_again_and_knows_what_was_added() {
    let place = Place::new();
    let mut lasthop = place.start(&one_port());
    let added = lasthop.prints("port add vm2 --kind vhost-user --socket vm2.sock");
    assert_eq!(added, "port vm2 added, waiting\n");
    let switch = lasthop.pid("switch");
    let took = lasthop.kill_and_wait("control");
    assert_faster(took, Duration::from_millis(500));
    assert_eq!(lasthop.pid("switch"), switch, "the same switch");
    assert_eq!(lasthop.state("vm2"), "waiting");
    assert_eq!(
        lasthop.json("status")["switch"]["epoch"],
        2,
        "nothing is published anew"
    );
    assert!(listens(&place.run_dir().join("vm2.sock")));
    lasthop.end(Signal::TERM);
    assert_eq!(place.left(), [""; 0]);
}

#[test]
fn deaths_count_at_the_process_that_died() {
    const KILLS: u64 = 10;
    let place = Place::new();
    let mut lasthop = place.start(&one_port());
    let restarts = |name| lasthop.try_process(name).unwrap()["restarts"].as_u64();
    for kill in 1..=KILLS {
        // Control has commands on the way to the switch, which it may leave unread.
        let stop = Stop::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.is_set() {
                    lasthop.cli("stats");
                }
            });
            let _stop = stop.at_end();
            lasthop.kill_and_wait("switch");
        });
        wait_until("control is ready", || restarts("switch").is_some());
        let counted = ["control", "switch"].map(restarts);
        assert_eq!(counted, [Some(kill - 1), Some(kill)], "{}", lasthop.log());
        lasthop.kill_and_wait("control");
        let counted = ["control", "switch"].map(restarts);
        assert_eq!(counted, [Some(kill), Some(kill)], "{}", lasthop.log());
    }
    lasthop.end(Signal::TERM);
}

#[test]
fn the_switch_is_started_again_and_ports_listen_again() {
    let place = Place::new();
    let mut lasthop = place.start(&one_port());
    lasthop.prints("port add vm2 --kind vhost-user --socket vm2.sock");
    lasthop.kill_and_wait("switch");
    wait_until("both ports are back", || {
        let list = lasthop.cli("port list --json").stdout;
        String::from_utf8_lossy(&list)
            .matches("\"waiting\"")
            .count()
            == 2
    });
    assert!(listens(&place.run_dir().join("vm1.sock")));
    assert!(listens(&place.run_dir().join("vm2.sock")));
    lasthop.end(Signal::TERM);
}

#[test]
fn both_may_die_at_the_same_time_again_and_again() {
    let place = Place::new();
    let mut lasthop = place.start(&one_port());
    for round in 0..4 {
        let mut children = lasthop.children();
        if round % 2 == 1 {
            children.reverse();
        }
        children.iter().for_each(|pid| send(*pid, Signal::KILL));
        wait_until("it is as before", || {
            lasthop.children().iter().all(|pid| !children.contains(pid))
                && lasthop.cli("port show vm1").status.success()
        });
        assert!(lasthop.is_running());
    }
    lasthop.end(Signal::TERM);
    assert_eq!(place.left(), [""; 0]);
}

#[test]
fn a_client_port_dials_until_there_is_a_listener_and_again_after_it() {
    let place = Place::new();
    let lasthop = place.start(&format!("{SWITCH}{}", port("vm1", "role = \"client\"")));
    wait_until("it dials", || lasthop.state("vm1") == "dialing");
    let path = place.run_dir().join("vm1.sock");
    for _ in 0..2 {
        let listener = UnixListener::bind(&path).unwrap();
        let (socket, _) = listener.accept().unwrap();
        wait_until("it is connected", || lasthop.state("vm1") == "connected");
        std::fs::remove_file(&path).unwrap();
        drop(socket);
        wait_until("it dials again", || lasthop.state("vm1") == "dialing");
    }
    // One line per change, none per attempt.
    let log = lasthop.log();
    let about = log.lines().filter(|line| line.contains("vm1"));
    assert!(about.count() <= 12, "{log}");
}

#[test]
fn a_peer_that_does_not_accept_blocks_nothing() {
    let place = Place::new();
    let many = (0..8).map(|n| port(&format!("vm{n}"), "role = \"client\""));
    let shared = many.collect::<String>();
    std::fs::create_dir(place.run_dir()).unwrap();
    // A backlog of one, which is full.
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let path = place.run_dir().join("vm0.sock");
    let full = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&full, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&full, 0).unwrap();
    let waits = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let mut lasthop = place.start(&format!("{SWITCH}{shared}"));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(lasthop.state("vm0"), "dialing");
    let started = Instant::now();
    lasthop.end(Signal::TERM);
    assert_faster(started.elapsed(), Duration::from_secs(2));
    drop(waits);
}

#[test]
fn ports_come_and_go_at_run_time() {
    let place = Place::new();
    let mut lasthop = place.start(&one_port());
    let path = place.run_dir().join("vm2.sock");
    lasthop.prints("port add vm2 --kind vhost-user --socket vm2.sock --segment blue --queues 4");
    assert!(listens(&path));
    assert_eq!(
        lasthop.prints("port set vm2 --mtu 9000"),
        "port vm2 changed, waiting\n"
    );
    lasthop.prints("port set vm2 --socket other.sock");
    wait_until("the old one is gone", || !path.exists());
    assert!(listens(&place.run_dir().join("other.sock")));
    assert_eq!(
        lasthop.prints("port set vm2 --role client"),
        "port vm2 changed, dialing\n"
    );
    wait_until("it is gone too", || {
        !place.run_dir().join("other.sock").exists()
    });

    std::fs::write(place.run_dir().join("file"), "").unwrap();
    let refused = lasthop.cli("port add vm3 --kind vhost-user --socket file");
    assert_eq!(refused.status.code(), Some(2));
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(complaint.starts_with("lasthop: socket: "), "{complaint}");
    assert!(complaint.contains("is not a socket"), "{complaint}");
    std::fs::remove_file(place.run_dir().join("file")).unwrap();

    assert_eq!(lasthop.prints("port remove vm2"), "port vm2 removed\n");
    assert_eq!(lasthop.prints("port remove vm1"), "port vm1 removed\n");
    wait_until("no socket is left", || {
        place.left() == ["api.sock", "lasthop.lock", "supervisor.sock"]
    });
    lasthop.end(Signal::TERM);
}

#[test]
fn many_ports_start_quickly() {
    let place = Place::new();
    let ports: String = (0..256)
        .map(|n| port(&format!("vm{n}"), "queues = 4"))
        .collect();
    let started = Instant::now();
    let mut lasthop = place.start(&format!("{SWITCH}{ports}"));
    assert_faster(started.elapsed(), Duration::from_secs(5));
    let list = lasthop.json("port list");
    let waiting = list["ports"].as_array().unwrap();
    assert_eq!(
        waiting.iter().filter(|p| p["state"] == "waiting").count(),
        256
    );
    let took = lasthop.kill_and_wait("control");
    assert_faster(took, Duration::from_secs(1));
    lasthop.end(Signal::TERM);
    assert_eq!(place.left(), [""; 0]);
}

#[test]
fn its_output_may_be_closed() {
    let place = Place::new();
    let mut lasthop = place.spawn(place.command(&one_port()));
    lasthop.close_stdout();
    lasthop.wait_cli("port show vm1");
    lasthop.end(Signal::TERM);
}

#[test]
fn an_interrupt_from_the_keyboard_ends_it_cleanly() {
    let place = Place::new();
    let mut lasthop = place.start(&one_port());
    let children = lasthop.children();
    lasthop.signal_group(Signal::INT);
    assert_eq!(lasthop.wait().code(), Some(0));
    assert!(children.iter().all(|pid| is_gone(*pid)));
    assert_eq!(place.left(), [""; 0]);
    let log = lasthop.log();
    assert!(!log.contains("ERROR") && !log.contains("WARN"), "{log}");
}

#[test]
fn a_process_that_does_not_end_is_ended() {
    let place = Place::new();
    let mut lasthop = place.start(&one_port());
    send(lasthop.pid("control"), Signal::STOP);
    let started = Instant::now();
    lasthop.end(Signal::TERM);
    assert_faster(started.elapsed(), Duration::from_secs(5));
    assert_eq!(place.left(), [""; 0]);
}

#[test]
fn a_process_that_cannot_live_is_not_started_without_pause() {
    let place = Place::new();
    let mut lasthop = place.start(&one_port());
    let started = Instant::now();
    // A process may need a while to die on a busy machine.
    let mut killed = BTreeSet::new();
    while started.elapsed() < Duration::from_millis(1500) {
        for pid in lasthop.children() {
            send(pid, Signal::KILL);
            killed.insert(pid);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(killed.len() < 60, "{killed:?}");
    assert!(lasthop.is_running());
    lasthop.wait_cli("port show vm1");
    lasthop.end(Signal::TERM);
}
