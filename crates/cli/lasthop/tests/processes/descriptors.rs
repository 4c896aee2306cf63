//! A low limit of descriptors: what one port has many of never stops another.

use std::os::unix::process::CommandExt;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use testkit::frontend::FrontEnd;
use testkit::lasthop::{Place, Running, listens, port};
use testkit::procfs;
use testkit::wait::{LIMIT, wait_until};
use testkit::{FakeGuest, GuestConfig};

/// Starts Lasthop with this hard limit of a resource, for each process.
fn start(place: &Place, config: &str, (resource, limit): (Resource, u64)) -> Running {
    let mut command = place.command(config);
    let limit = Rlimit {
        current: Some(limit),
        maximum: Some(limit),
    };
    // SAFETY: the closure makes one system call.
    unsafe { command.pre_exec(move || Ok(setrlimit(resource, limit)?)) };
    place.spawn(command)
}

fn user_port(name: &str, net: u8, listen: &str) -> String {
    format!(
        "[[segment]]\nname = \"{name}\"\n[[port]]\nname = \"{name}\"\nkind = \"user\"\n\
         segment = \"{name}\"\nnetwork = \"10.77.{net}.0/24\"\n\
         [[port.forward]]\nlisten = \"{listen}\"\nto = \"10.77.{net}.15:22\"\n"
    )
}

#[test]
fn a_range_of_forwards_leaves_descriptors_to_other_ports() {
    let place = Place::new();
    let many = user_port("many", 1, "tcp 127.0.93.1:21000-21999");
    let few = user_port("few", 2, "udp 127.0.93.1:22000-22009");
    let ports: String = (1..=8).map(|n| port(&format!("vm{n}"), "")).collect();
    let config = format!("[switch]\nname = \"shares\"\n{many}{few}{ports}");
    let mut lasthop = start(&place, &config, (Resource::Nofile, 512));
    lasthop.wait_ready();
    wait_until("both user ports have a process", || {
        let is_up = |name: &&str| lasthop.state(name) == "up";
        ["many", "few"].iter().all(is_up)
    });
    for n in 1..=8 {
        assert!(listens(&lasthop.socket(&format!("vm{n}.sock"))));
    }
    let refused = lasthop.json("port forward list many").take();
    let first = &refused[0];
    assert_eq!(first["state"], "refused", "{refused}");
    let count = first["refused"].as_u64().unwrap();
    assert!((900..1000).contains(&count), "{refused}");
    let reason = first["reason"].as_str().unwrap();
    let opened = 1000 - count;
    let range = format!(
        "{count} of 1000: tcp 127.0.93.1:{}-21999: ",
        21_000 + opened
    );
    assert!(reason.starts_with(&range), "{reason}");
    for word in ["the limit of 512", "LimitNOFILE=", "need one of "] {
        assert!(reason.contains(word), "{reason}");
    }
    let listed = lasthop.prints("port forward list many");
    assert!(
        listed.contains("refused") && listed.contains("LimitNOFILE="),
        "{listed}"
    );
    let few = lasthop.json("port forward list few").take();
    assert_eq!(few[0]["refused"], 0, "{few}");
    let lines = lasthop.log();
    let lines = lines
        .lines()
        .filter(|line| line.contains("no forward"))
        .count();
    assert_eq!(lines, 1, "one line for a range");
    // Another port, and another user port, come later.
    let added = lasthop.cli("port add later --kind vhost-user --socket later.sock");
    assert!(added.status.success(), "{added:?}");
    assert!(listens(&lasthop.socket("later.sock")));
    let words = "port add third --kind user --network 10.77.3.0/24 --segment default";
    let added = lasthop.cli(words);
    assert!(added.status.success(), "{added:?}");
    wait_until("it has a process", || lasthop.state("third") == "up");
    let listen = ["tcp 127.0.93.1:23000", "10.77.3.15:22"];
    let added = lasthop.run(&["port", "forward", "add", "third", listen[0], listen[1]]);
    assert!(added.status.success(), "{added:?}");
    let upgraded = lasthop.cli("upgrade");
    assert!(upgraded.status.success(), "{upgraded:?}");
    let after = lasthop.json("port forward list many").take();
    assert_eq!(after[0]["refused"], count, "{after}");
    lasthop.end(Signal::TERM);
    assert_eq!(place.left(), [""; 0]);
}

#[test]
fn a_start_with_too_low_a_limit_says_how_many_are_needed() {
    let ports: String = (1..=300).map(|n| port(&format!("vm{n}"), "")).collect();
    let config = format!("[switch]\nname = \"shares\"\n{ports}");
    let place = Place::new();
    let mut refused = start(&place, &config, (Resource::Nofile, 256));
    let status = refused.wait();
    let log = refused.log();
    assert_eq!(status.code(), Some(2), "{log}");
    let needed: u64 = log
        .split("300 sockets need ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("{log}"));
    assert!(log.contains("and the limit is 256 (LimitNOFILE="), "{log}");
    drop(refused);
    assert!(
        getrlimit(Resource::Nofile)
            .maximum
            .is_none_or(|most| most > needed)
    );
    // So many are enough, for all processes.
    let mut lasthop = start(&place, &config, (Resource::Nofile, needed));
    lasthop.wait_ready();
    assert_eq!(lasthop.state("vm300"), "waiting");
    lasthop.end(Signal::TERM);
    assert_eq!(place.left(), [""; 0]);
}

/// A host that is full: the guests that are up stay, others are refused with the reason, and served
/// when there is room again.
#[test]
fn without_descriptors_for_another_guest_those_that_are_up_stay() {
    const PORTS: usize = 48;
    let name = |n: usize| format!("vm{n}");
    let ports: String = (0..PORTS).map(|n| port(&name(n), "")).collect();
    let place = Place::new();
    let config = format!("[switch]\nname = \"full\"\n{ports}");
    let mut lasthop = start(&place, &config, (Resource::Nofile, 320));
    lasthop.wait_ready();
    // The supervisor needs descriptors for them, which it opens soon after the start.
    lasthop.wait_for_spares();
    let socket = |n: usize| lasthop.socket(&format!("vm{n}.sock"));
    let connect = |n: usize| {
        let config = GuestConfig {
            timeout: Duration::from_secs(2),
            ..GuestConfig::default()
        };
        let mut guest = FakeGuest::connect(&socket(n), config).ok()?;
        guest.wait_link().ok().map(|()| guest)
    };
    let mut guests: Vec<FakeGuest> = (0..PORTS).map_while(connect).collect();
    let up = guests.len();
    assert!((8..PORTS - 20).contains(&up), "{up} guests");
    // Those that follow have the reason. Some of them may have got the last descriptors, which the
    // guest before has given back.
    let waiting: Vec<FrontEnd> = (up..PORTS)
        .map(|n| FrontEnd::connect(&socket(n), LIMIT).unwrap())
        .collect();
    wait_until("the reasons of refusals", || {
        let is_refused = |n: &usize| {
            let port = lasthop.json(&format!("port show {}", name(*n)));
            let reason = port["reason"].as_str().unwrap_or_default();
            reason.contains("descriptors") && port["state"] != "up"
        };
        (up..PORTS).filter(is_refused).count() >= (PORTS - up) / 2
    });
    for guest in &mut guests {
        guest.wait_link().unwrap();
    }
    let states = lasthop.json("port list");
    let states = states["ports"].as_array().unwrap().iter();
    let up_now = states.filter(|port| port["state"] == "up").count();
    assert!(up_now + 1 >= up, "{up_now} of {up}");
    let log = lasthop.log();
    let lines = log.lines().filter(|line| line.contains("accept failed"));
    assert!(lines.count() <= PORTS - up + 1, "one line a port: {log}");
    drop(guests.split_off(up - 4));
    // One of them may have been accepted and closed: a VMM connects again.
    drop(waiting);
    for n in up..up + 3 {
        wait_until("there is room again", || connect(n).is_some());
    }
    lasthop.end(Signal::TERM);
    assert_eq!(place.left(), [""; 0]);
}

/// A switch without address space for the memory of another guest: those that are up stay, others
/// are refused with the reason, and served when there is room again.
#[test]
fn without_address_space_for_another_guest_those_that_are_up_stay() {
    const PORTS: usize = 8;
    let ports: String = (0..PORTS).map(|n| port(&format!("vm{n}"), "")).collect();
    let config = format!("[switch]\nname = \"full\"\n{ports}");
    let place = Place::new();
    let connect = |lasthop: &Running, n: usize| {
        let config = GuestConfig {
            timeout: Duration::from_secs(2),
            ..GuestConfig::default()
        };
        let mut guest = FakeGuest::connect(&lasthop.socket(&format!("vm{n}.sock")), config).ok()?;
        guest.wait_link().ok().map(|()| guest)
    };
    let mut measured = place.start(&config);
    let size = procfs::status(measured.pid("switch"), "VmSize").unwrap();
    let size: u64 = size.trim_end_matches(" kB").trim().parse().unwrap();
    let guest = connect(&measured, 0).unwrap();
    let memory = measured.json("port show vm0")["memory_bytes"].as_u64();
    drop(guest);
    measured.end(Signal::TERM);
    // Half of a guest's memory is left for all else.
    let room = 7 * memory.unwrap() / 2;
    let mut lasthop = start(&place, &config, (Resource::As, (size << 10) + room));
    lasthop.wait_ready();
    let switch = lasthop.pid("switch");
    let mut guests: Vec<FakeGuest> = (0..PORTS).map_while(|n| connect(&lasthop, n)).collect();
    let up = guests.len();
    assert!((1..PORTS).contains(&up), "{up} guests");
    wait_until("the reason", || {
        let refused = lasthop.json(&format!("port show vm{up}"));
        let reason = refused["reason"].as_str().unwrap_or_default();
        reason.contains("vm.max_map_count")
    });
    for guest in &mut guests {
        guest.wait_link().unwrap();
    }
    guests.pop();
    wait_until("there is room again", || connect(&lasthop, up).is_some());
    assert_eq!(lasthop.pid("switch"), switch);
    lasthop.end(Signal::TERM);
    assert_eq!(place.left(), [""; 0]);
}
