//! netmap's own programs on ports and pipes, from the folder that `LASTHOP_NETMAP_TOOLS` names:
//! `pkt-gen`, `bridge`, `lb`, `functional`, `ctrl-api-test`. `docs/dev/netmap-programs.md` has
//! their build.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use e2e::beside;
use e2e::lasthop::Lasthop;
use e2e::paths;
use e2e::slotgen::{Printed, Slotgen};
use rustix::process::Signal;
use testkit::skip::skipped;
use testkit::wait::wait_until;

const FRAMES: u64 = 20_000;

/// The tests of `ctrl-api-test` that fail, and the reasons.
const FAIL: [(&str, &str); 15] = [
    ("vale_attach_detach", VALE),
    ("vale_attach_detach_host_rings", VALE),
    ("vale_persistent_port", VALE),
    ("vale_polling_enable_disable", VALE),
    ("csb_mode", CSB),
    ("sync_kloop", CSB),
    ("sync_kloop_eventfds_all", CSB),
    ("sync_kloop_eventfds_all_tx", CSB),
    ("sync_kloop_eventfds_all_direct", CSB),
    ("sync_kloop_eventfds_all_direct_tx", CSB),
    ("sync_kloop_eventfds_all_direct_rx", CSB),
    ("sync_kloop_csb_enable", CSB),
    ("sync_kloop_conflict", CSB),
    ("sync_kloop_eventfds_mismatch", CSB),
    (
        "nmreq_parsing",
        "libnetmap accepts a name that the test wants refused",
    ),
];
const VALE: &str = "programs do not add, remove or attach ports";
const CSB: &str = "there is no application CSB, and no sync loop";

fn port(name: &str, segment: &str, more: &str) -> String {
    format!(
        "[[port]]\nname = \"{name}\"\nkind = \"netmap\"\nsegment = \"{segment}\"\n\
         port_security = {{ macs = \"any\" }}\n{more}\n"
    )
}

/// Two ports in each of two segments, the last two of the names of `ctrl-api-test`, and a pipe.
fn lasthop() -> Lasthop {
    let ports = [
        port("lha", "s", "queues = 2\npipes = true"),
        port("lhb", "s", "queues = 2\nslots = 4096"),
        port("lhc", "t", "slots = 4096\npipes = true"),
        port("lhd", "t", "slots = 4096"),
        port("eph0", "t", ""),
        port("Y4", "t", "pipes = true"),
    ];
    let segments = "[[segment]]\nname = \"s\"\n\n[[segment]]\nname = \"t\"\n\n";
    let pipe = "[[pipe]]\nname = \"p0\"\n";
    Lasthop::start(&format!("{segments}{}{pipe}", ports.concat()))
}

/// The folder with netmap's programs, where there is one.
fn tools() -> Option<PathBuf> {
    let folder = std::env::var_os("LASTHOP_NETMAP_TOOLS").map(PathBuf::from);
    if folder.is_none() {
        skipped("LASTHOP_NETMAP_TOOLS names no folder with netmap's programs");
    }
    folder
}

struct Tools {
    folder: PathBuf,
    runtime_dir: PathBuf,
}

impl Tools {
    /// The programs in `folder`, for the ports and pipes of this Lasthop.
    fn of(folder: PathBuf, lasthop: &Lasthop) -> Self {
        let runtime_dir = lasthop.folder();
        Self {
            folder,
            runtime_dir,
        }
    }

    fn start(&self, line: &str) -> Slotgen {
        let (program, arguments) = line.split_once(' ').expect("a program and its arguments");
        let program: &Path = &self.folder.join(program);
        Slotgen::start_program(program, "adaptive", &self.runtime_dir, arguments)
    }

    /// Runs a test of `ctrl-api-test`.
    fn passes(&self, number: usize) -> bool {
        // It looks at an error behind perror(3), which changes it where it cannot read the file.
        let errors = tempfile::tempfile().expect("a file, to read and to write");
        let mut command = Command::new(self.folder.join("ctrl-api-test"));
        command.args(["-i", "lha", "-j", &number.to_string()]);
        command.env("LD_PRELOAD", paths::binary("liblasthop_netmap.so"));
        command.env("LASTHOP_RUNTIME_DIR", &self.runtime_dir);
        command.stdout(Stdio::null()).stderr(errors);
        command.status().expect("it starts").success()
    }

    /// Starts `pkt-gen` as a receiver.
    fn receiver(&self, name: &str, more: &str) -> Slotgen {
        self.start(format!("pkt-gen -i netmap:{name} -f rx -w 0 {more}").trim())
    }

    /// Sends frames with `pkt-gen`, not faster than any receiver takes them.
    fn send(&self, name: &str, more: &str) -> Printed {
        let line = format!(
            "pkt-gen -i netmap:{name} -f tx -w 0 -n {FRAMES} -R 20000 -b 64 -S 02:00:00:00:00:01 \
             -D 02:00:00:00:00:02 {more}"
        );
        self.start(line.trim()).printed()
    }
}

/// Waits until so many ends of pipes belong to a program.
fn wait_ends(lasthop: &Lasthop, program: &str, count: usize) {
    wait_until("the ends of pipes are there", || {
        let pipes = lasthop.json(&["pipe", "list"]).to_string();
        pipes.matches(program).count() == count
    });
}

/// Frames that `pkt-gen` sent or received.
fn frames(printed: &Printed, word: &str) -> u64 {
    let mut lines = printed.0.lines();
    let rest = lines.find_map(|line| line.strip_prefix(word));
    let number = rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.unwrap_or_else(|| panic!("no frames {word}: {}", printed.0))
}

#[test]
fn pkt_gen_sends_receives_and_pings() {
    let Some(folder) = tools() else { return };
    let turn = beside();
    let lasthop = lasthop();
    let tools = Tools::of(folder, &lasthop);
    // Not `-H`: it leaves the length of the header out when it asks for one.
    for of_sender in ["", "-p 2", "-l 1514 -F 3", "-I"] {
        turn.step(&format!("pkt-gen {of_sender}"));
        let rx = tools.receiver("lhb", &format!("-n {FRAMES}"));
        lasthop.wait_port("lhb", "up");
        assert_eq!(frames(&tools.send("lha", of_sender), "Sent"), FRAMES);
        assert_eq!(frames(&rx.printed(), "Received"), FRAMES);
        lasthop.wait_port("lhb", "waiting");
    }
    turn.step("ping and pong");
    let pong = tools.start("pkt-gen -i netmap:lhb -f pong -w 0");
    lasthop.wait_port("lhb", "up");
    let ping = tools.start(
        "pkt-gen -i netmap:lha -f ping -w 0 -n 1000 -S 02:00:00:00:00:01 -D 02:00:00:00:00:02",
    );
    let pinged = ping.printed().0;
    assert!(pinged.contains("RTT over 1000 packets"), "{pinged}");
    assert!(!pinged.contains("poll error"), "{pinged}");
    pong.signal(Signal::INT);
    pong.printed();
    lasthop.stop();
}

#[test]
fn pkt_gen_does_not_notice_the_death_of_lasthop_on_a_pipe() {
    let Some(folder) = tools() else { return };
    let turn = beside();
    let mut lasthop = lasthop();
    let tools = Tools::of(folder, &lasthop);
    // The sender ends when all its slots have come back, and a receiver that ends by itself keeps
    // the last ones.
    let rx = tools.receiver("p0}1", "");
    let tx = format!("pkt-gen -i netmap:p0{{1 -f tx -w 0 -n {FRAMES} -R 10000");
    let tx = tools.start(&tx);
    wait_ends(&lasthop, "pkt-gen", 2);
    turn.step("kill -9 of all of Lasthop");
    lasthop.start_again();
    assert_eq!(frames(&tx.printed(), "Sent"), FRAMES);
    rx.signal(Signal::INT);
    assert_eq!(frames(&rx.printed(), "Received"), FRAMES);
    lasthop.stop();
}

#[test]
fn bridge_swaps_buffers_or_copies() {
    let Some(folder) = tools() else { return };
    let turn = beside();
    let lasthop = lasthop();
    let tools = Tools::of(folder, &lasthop);
    for (more, said) in [
        ("", "zerocopy supported"),
        (" -c", "zerocopy NOT supported"),
    ] {
        turn.step(&format!("bridge{more}"));
        let bridge = format!("bridge -w 0 -i netmap:lhb -i netmap:lhc{more}");
        let bridge = tools.start(&bridge);
        lasthop.wait_port("lhc", "up");
        let rx = tools.receiver("lhd", &format!("-n {FRAMES}"));
        lasthop.wait_port("lhd", "up");
        tools.send("lha", "");
        assert_eq!(frames(&rx.printed(), "Received"), FRAMES);
        bridge.signal(Signal::INT);
        let printed = bridge.printed();
        assert!(printed.0.contains(said), "{printed:?}");
        lasthop.wait_port("lhb", "waiting");
        lasthop.wait_port("lhc", "waiting");
        lasthop.wait_port("lhd", "waiting");
    }
    lasthop.stop();
}

#[test]
fn lb_spreads_frames_over_two_pipes() {
    let Some(folder) = tools() else { return };
    let _turn = beside();
    let lasthop = lasthop();
    let tools = Tools::of(folder, &lasthop);
    let lb = tools.start("lb -i netmap:lhc -p 2 -B 1000 -w 0 -o 1");
    wait_ends(&lasthop, "\"lb\"", 2);
    lasthop.wait_port("lhc", "up");
    let ends = [0, 1].map(|id| tools.receiver(&format!("lhc}}{id}"), ""));
    wait_ends(&lasthop, "pkt-gen", 2);
    // One flow for each source port.
    tools.send("lhd", "-s 10.0.0.1:1000-10.0.0.1:3000");
    wait_until("everything was received", || {
        lasthop.stats().received("lhc") == FRAMES
    });
    let received = ends.map(|end| {
        end.signal(Signal::INT);
        frames(&end.printed(), "Received")
    });
    assert_eq!(received.iter().sum::<u64>(), FRAMES, "{received:?}");
    assert!(received.iter().all(|&of_end| of_end > FRAMES / 4));
    lb.signal(Signal::INT);
    let printed = lb.printed().0;
    let said = format!("{FRAMES} packets forwarded.  0 packets dropped.");
    assert!(printed.contains(&said), "{printed}");
    assert!(printed.contains("obtained 1000 extra buffers"), "{printed}");
    lasthop.stop();
}

/// Its readers are there before it, and outlive it.
#[test]
fn lb_is_started_and_killed_beside_living_readers() {
    let Some(folder) = tools() else { return };
    let turn = beside();
    let lasthop = lasthop();
    let tools = Tools::of(folder, &lasthop);
    let listed = |program, count| wait_ends(&lasthop, program, count);
    let ends = [0, 1].map(|id| tools.receiver(&format!("lhc}}{id}"), ""));
    listed("pkt-gen", 2);
    for round in 1..=2 {
        turn.step(&format!("lb number {round}"));
        let mut lb = tools.start("lb -i netmap:lhc -p 2 -B 1000 -w 0 -o 1");
        listed("\"lb\"", 2);
        lasthop.wait_port("lhc", "up");
        let before = lasthop.stats().received("lhc");
        tools.send("lhd", "-s 10.0.0.1:1000-10.0.0.1:3000");
        wait_until("everything was received", || {
            lasthop.stats().received("lhc") == before + FRAMES
        });
        lb.kill();
        listed("\"lb\"", 0);
        lasthop.wait_port("lhc", "waiting");
    }
    let received = ends.map(|end| {
        end.signal(Signal::INT);
        frames(&end.printed(), "Received")
    });
    // What `lb` had taken from its port when it was killed is lost.
    let total = received.iter().sum::<u64>();
    assert!(
        (2 * FRAMES - 1024..=2 * FRAMES).contains(&total),
        "{received:?}"
    );
    lasthop.stop();
}

#[test]
fn functional_receives_what_it_expects() {
    let Some(folder) = tools() else { return };
    let _turn = beside();
    let lasthop = lasthop();
    let tools = Tools::of(folder, &lasthop);
    let functional = |port: &str, events: &str| {
        let stations = "-s 02:00:00:00:00:01 -d 02:00:00:00:00:02";
        tools.start(&format!(
            "functional -I netmap:{port} -w 0 -T 20 {stations} -g {events}"
        ))
    };
    let rx = functional("lhb", "-r 100:a:10 -r 1400:b:10");
    lasthop.wait_port("lhb", "up");
    functional("lha", "-t 100:a:10 -t 1400:b:10").printed();
    rx.printed();
    lasthop.stop();
}

/// Each of its tests in a process of its own, as it stops at the first that fails.
#[test]
fn ctrl_api_test_passes_but_for_what_is_not_there() {
    let Some(folder) = tools() else { return };
    let _turn = beside();
    let lasthop = lasthop();
    let tools = Tools::of(folder, &lasthop);
    let listed = tools.start("ctrl-api-test -l").printed().0;
    let names = listed.lines().filter_map(|line| {
        let (_, name) = line.strip_prefix('#')?.split_once(": ")?;
        Some(name.to_owned())
    });
    let names: Vec<String> = names.collect();
    let failed: Vec<&str> = (1..)
        .zip(&names)
        .filter_map(|(number, name)| (!tools.passes(number)).then_some(name.as_str()))
        .collect();
    assert_eq!(failed, FAIL.map(|(name, _)| name));
    assert!(names.len() - failed.len() >= 29);
    lasthop.stop();
}
