//! Prefilters: denied frames from the wire of an uplink end in the kernel.
//!
//! Everything is in network namespaces of the test's own; where they cannot be had, or the kernel
//! loads no program, a test says so and ends.

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use e2e::lasthop::Lasthop;
use e2e::nested::{Host, Kernel, is_inside};
use e2e::uplinks::{ask, driver_pid, tap, uplink, wire};
use e2e::{beside, is_long, machine};
use mapping::SharedWords;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open};
use serde_json::Value;
use testkit::netns::{Netns, Wire};
use testkit::packets::{self, Flow};
use testkit::process::send as signal;
use testkit::skip::skipped;
use testkit::stop::Stop;
use testkit::wait::wait_for;

/// The address of the TAP port's interface.
pub(crate) const MAC: &str = "52:54:00:00:00:0a";

/// Frames of the far namespace and of ARP pass, all others are denied.
const LIST: &str = r#"
[[acl]]
name = "in"
direction = "to-guest"
ports = ["t0"]
[[acl.rule]]
name = "arp"
action = "allow"
ether_type = "arp"
priority = 30
[[acl.rule]]
name = "far"
action = "allow"
source = ["10.1.0.0/24"]
priority = 20
[[acl.rule]]
name = "others"
action = "drop"
priority = 10
"#;

/// An uplink over a wire, and a TAP port in its segment.
pub(crate) struct World {
    pub(crate) far: Netns,
    pub(crate) near: Netns,
    pub(crate) lasthop: Lasthop,
    pub(crate) config: String,
    // The uplink's interface is in it.
    host: Netns,
    folder: tempfile::TempDir,
}

impl World {
    /// A world with the usual list. `None`: not on this machine.
    fn new(driver: &str, up: &str, port: &str, more: &str) -> Option<Self> {
        Self::with(driver, up, port, &[more, LIST].concat())
    }

    /// A world with these lists, or other parts of a configuration.
    pub(crate) fn with(driver: &str, up: &str, port: &str, more: &str) -> Option<Self> {
        if !Netns::allowed() {
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [host, far, near] = ["host", "far", "near"].map(|name| Netns::new(name, folder.path()));
        wire(&host, &far);
        far.ip("address add 10.1.0.9/24 dev wire0");
        let port = format!("mac = \"{MAC}\"\n{port}");
        let config = [
            tap("t0", &near.path(), "10.1.0.1/24", &port),
            uplink(&host.path(), &format!("driver = \"{driver}\"\n{up}")),
            more.to_owned(),
        ]
        .concat();
        let lasthop = Lasthop::start(&config);
        let status = lasthop.wait_port("uplink", "up");
        if let Some(reason) = status["prefilter"]["reason"].as_str() {
            skipped(format!("no prefilter here: {reason}"));
            return None;
        }
        let world = Self {
            far,
            near,
            lasthop,
            config,
            host,
            folder,
        };
        let is_xdp = driver == "xdp" || up.contains("xdp");
        if !up.contains("off") {
            world.wait_prefilter(if is_xdp { "xdp" } else { "socket" });
        }
        Some(world)
    }

    fn wait_prefilter(&self, back_end: &str) {
        wait_for("a prefilter", || {
            (self.lasthop.port("uplink")["prefilter"]["back_end"] == back_end).then_some(())
        });
    }

    fn ended(&self) -> u64 {
        let frames = &self.lasthop.port("uplink")["prefilter"]["frames"];
        frames.as_u64().expect("a number")
    }

    /// Waits until more frames have ended at the wire, at least this number.
    fn wait_ended(&self, more: u64) {
        let before = self.ended();
        wait_for("frames that end at the wire", || {
            (self.ended() >= before + more).then_some(())
        });
    }

    pub(crate) fn apply(&self, config: &str) {
        let file = self.folder.path().join("next.toml");
        std::fs::write(&file, config).expect("a file");
        self.lasthop.ok(&["apply", &file.to_string_lossy()]);
    }
}

fn mac() -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, 0x0a]
}

/// Returns a frame from a host elsewhere to the TAP port's interface.
fn denied(number: u16) -> Vec<u8> {
    let flow = Flow {
        dst_mac: mac(),
        src_mac: [2, 0, 0, 0, 0, 0x77],
        src: [192, 0, 2, (number % 200) as u8].into(),
        dst: [10, 1, 0, 1].into(),
        ..Flow::v4(1, 2)
    };
    packets::udp(&flow.ports(number, 9), &[0; 18])
}

/// Sends such frames until it is stopped, as fast as it can; returns their number.
fn flood(wire: &Wire, stop: &Stop, frame: impl Fn(u16) -> Vec<u8>) -> u64 {
    let frames: Vec<_> = (0..512).map(frame).collect();
    let mut sent = 0;
    while !stop.is_set() {
        for frame in &frames {
            wire.send(frame);
        }
        sent += frames.len() as u64;
    }
    sent
}

/// Sockets of both ends, which may ask each other.
fn sockets(world: &World) -> [UdpSocket; 2] {
    [world.far.udp("10.1.0.9:7"), world.near.udp("10.1.0.1:7")]
}

#[test]
fn a_denied_flood_ends_at_the_wire_and_others_are_heard() {
    let turn = machine();
    let Some(world) = World::new("packet", "", "", "") else {
        return;
    };
    let [far, near] = sockets(&world);
    ask(&far, &near);
    let before = world.lasthop.stats();
    let (stop, out) = (Stop::default(), world.far.wire("wire0"));
    let sent = std::thread::scope(|scope| {
        let _stop = stop.at_end();
        let sender = scope.spawn(|| flood(&out, &stop, denied));
        turn.step("a flood");
        world.wait_ended(100_000);
        ask(&far, &near);
        let list = world.lasthop.ok(&["prefilter", "list", "--port", "uplink"]);
        assert!(list.contains("in/others") && list.contains(MAC), "{list}");
        turn.step("control dies: what it knew is forgotten, and counters stay");
        let ended = world.ended();
        world.lasthop.replace_control();
        assert!(world.ended() >= ended);
        world.wait_ended(50_000);
        turn.step("the switch dies: nothing else ends");
        let ended = world.ended();
        world.lasthop.replace_switch();
        world.wait_ended(50_000);
        assert!(world.ended() > ended);
        ask(&far, &near);
        turn.step("an upgrade: the table is handed over");
        world.lasthop.ok(&["upgrade"]);
        world.lasthop.wait_port("uplink", "up");
        world.wait_ended(50_000);
        ask(&far, &near);
        turn.step("a capture sees denied frames");
        let file = world.folder.path().join("denied.pcapng");
        let path = file.to_string_lossy();
        let capture = [
            "capture", "uplink", "--drops", "--count", "5000", "-w", &path,
        ];
        world.lasthop.ok(&capture);
        world.wait_ended(50_000);
        stop.set();
        sender.join().expect("it sends")
    });
    turn.step("all of them are counted, by the switch or at the wire");
    let counted = || {
        let stats = world.lasthop.stats().since(&before);
        let port = world.lasthop.port("uplink");
        let lost = port["driver_status"]["dropped_by_kernel"].as_u64();
        stats.get("uplink.drops.acl-denied") + lost.unwrap_or_default()
    };
    // The death of the switch costs a batch, and what the kernel dropped since its last report;
    // others send, too, and some of that is denied.
    let all = wait_for("the last frames", || {
        let all = counted();
        (all + sent / 100 >= sent).then_some(all)
    });
    assert!(all <= sent + 256, "{all} of {sent}");
    let rule = |lists: &Value| -> Option<u64> {
        let rules = lists["lists"][0]["rules"].as_array()?;
        let of = rules.iter().find(|rule| rule["name"] == "others")?;
        of["packets"].as_u64()
    };
    wait_for("the hits of the rule", || {
        let hits = rule(&world.lasthop.json(&["acl", "show", "in"]))?;
        (hits >= world.ended()).then_some(())
    });
}

#[test]
fn the_first_frame_after_a_change_of_lists_arrives() {
    let turn = beside();
    let Some(world) = World::new("packet", "", "", "") else {
        return;
    };
    let [far, near] = sockets(&world);
    ask(&far, &near);
    let (stop, out) = (Stop::default(), world.far.wire("wire0"));
    let (own, inside) = (world.far.wire("wire0"), world.near.wire("t0"));
    std::thread::scope(|scope| {
        let _stop = stop.at_end();
        scope.spawn(|| flood(&out, &stop, denied));
        let open = LIST.replace("\"10.1.0.0/24\"", "\"10.1.0.0/24\", \"192.0.2.250/32\"");
        let open = world.config.replace(LIST, &open);
        for round in 0..5 {
            turn.step(&format!("round {round}"));
            world.wait_ended(20_000);
            let mut frame = denied(round);
            // From 192.0.2.250; the sum of the header no matter.
            frame[29] = 250;
            world.apply(&open);
            own.send(&frame);
            wait_for("the frame", || {
                let got = inside.take()?;
                (got.get(26..30) == Some(&[192, 0, 2, 250])).then_some(())
            });
            world.apply(&world.config);
        }
    });
}

#[test]
fn tags_count_and_a_prefilter_can_be_switched_off() {
    let turn = beside();
    let segment = "[[segment]]\nname = \"seven\"\nvlan = 7\n";
    let trunk = "trunk = [\"seven\", \"default\"]\n";
    let Some(world) = World::new("packet", trunk, "segment = \"seven\"\n", segment) else {
        return;
    };
    // The station is known by a frame of its own.
    let inside = world.near.wire("t0");
    let mut own = denied(1);
    own[..6].copy_from_slice(&[0xff; 6]);
    own[6..12].copy_from_slice(&mac());
    inside.send(&own);
    let (stop, out) = (Stop::default(), world.far.wire("wire0"));
    let tagged = |number| packets::vlan_tagged(&denied(number), 7);
    std::thread::scope(|scope| {
        let _stop = stop.at_end();
        scope.spawn(|| flood(&out, &stop, tagged));
        turn.step("tagged frames, of which the kernel takes the tags off");
        world.wait_ended(20_000);
        let list = world.lasthop.ok(&["prefilter", "list"]);
        assert!(list.contains("VLAN 7"), "{list}");
        turn.step("off: they reach the switch");
        world
            .lasthop
            .ok(&["port", "set", "uplink", "--prefilter", "off"]);
        assert_eq!(world.lasthop.port("uplink")["prefilter"], Value::Null);
        let before = world.lasthop.stats().get("uplink.drops.acl-denied");
        wait_for("denied frames", || {
            let now = world.lasthop.stats().get("uplink.drops.acl-denied");
            (now > before + 1000).then_some(())
        });
        turn.step("on again");
        let set = |to| {
            let set = ["port", "set", "uplink", "--prefilter", to];
            world.lasthop.cli(&set)
        };
        assert!(set("socket").status.success());
        world.wait_ended(20_000);
        turn.step("one that there is not is refused, and changes nothing");
        let refused = set("wire");
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            !refused.status.success() && error.contains("socket"),
            "{error}"
        );
        world.wait_ended(20_000);
    });
}

#[test]
fn an_uplink_with_xdp_has_a_prefilter_before_packets_are_made() {
    let turn = beside();
    let Some(world) = World::new("xdp", "", "", "") else {
        return;
    };
    let [far, near] = sockets(&world);
    ask(&far, &near);
    let driver = || driver_pid(&world.lasthop, "uplink");
    let (stop, out) = (Stop::default(), world.far.wire("wire0"));
    std::thread::scope(|scope| {
        let _stop = stop.at_end();
        scope.spawn(|| flood(&out, &stop, denied));
        turn.step("a flood");
        world.wait_ended(50_000);
        ask(&far, &near);
        turn.step("an upgrade: its driver has the prefilter from the start");
        world.lasthop.ok(&["upgrade"]);
        world.lasthop.wait_port("uplink", "up");
        world.wait_ended(50_000);
        ask(&far, &near);
        let log = world.lasthop.log();
        let restarts = log.matches("driver restarts with a prefilter").count();
        assert!(restarts <= 1, "{log}");
        let before = driver();
        turn.step("the driver dies: its successor has the prefilter");
        signal(before.expect("a driver"), Signal::KILL);
        wait_for("another", || driver().filter(|now| Some(*now) != before));
        world.wait_ended(50_000);
        ask(&far, &near);
        turn.step("off, with the same driver, and on again, with the next");
        let before = driver();
        let set = |to| ["port", "set", "uplink", "--prefilter", to];
        world.lasthop.ok(&set("off"));
        let count = || world.lasthop.stats().get("uplink.drops.acl-denied");
        let denied = count();
        wait_for("denied frames", || (count() > denied + 1000).then_some(()));
        assert_eq!(driver(), before);
        world.lasthop.ok(&set("auto"));
        world.wait_prefilter("xdp");
        world.wait_ended(50_000);
        ask(&far, &near);
    });
    let restarts = &world.lasthop.port("uplink")["driver_status"]["restarts"];
    assert_eq!(*restarts, 1, "those that the prefilter needed are none");
}

#[test]
fn packet_sockets_have_a_prefilter_by_xdp() {
    let turn = machine();
    let Some(world) = World::new("packet", "prefilter = \"xdp\"\n", "", "") else {
        return;
    };
    let [far, near] = sockets(&world);
    ask(&far, &near);
    let set = |to| ["port", "set", "uplink", "--prefilter", to];
    let (stop, out) = (Stop::default(), world.far.wire("wire0"));
    std::thread::scope(|scope| {
        let _stop = stop.at_end();
        scope.spawn(|| flood(&out, &stop, denied));
        turn.step("a flood");
        world.wait_ended(50_000);
        ask(&far, &near);
        for place in ["socket", "xdp"] {
            turn.step(&format!("{place}, while frames are forwarded"));
            world.lasthop.ok(&set(place));
            world.wait_prefilter(place);
            world.wait_ended(50_000);
            ask(&far, &near);
        }
        turn.step("another Lasthop cannot have one there, and forwards all the same");
        let up = uplink(
            &world.host.path(),
            "driver = \"packet\"\nprefilter = \"xdp\"",
        );
        let other = Lasthop::start(&up);
        let status = other.wait_port("uplink", "up");
        let reason = status["prefilter"]["reason"].as_str().unwrap_or_default();
        assert!(reason.contains("another XDP program"), "{status}");
        other.stop();
        turn.step("an upgrade: the program stays");
        world.lasthop.ok(&["upgrade"]);
        world.lasthop.wait_port("uplink", "up");
        world.wait_prefilter("xdp");
        world.wait_ended(50_000);
        ask(&far, &near);
        turn.step("the switch dies");
        world.lasthop.kill_switch();
        world.wait_ended(50_000);
        ask(&far, &near);
    });
    turn.step("off: the program is gone, and another one can be attached");
    world.lasthop.ok(&set("off"));
    let link = world.host.ip("-details link show up0");
    assert!(!link.contains("prog/xdp"), "{link}");
    let settings = world.lasthop.port("uplink");
    assert_eq!(settings["prefilter"], Value::Null);
    ask(&far, &near);
}

/// Gives the tables of a supervisor another layout number, as if an earlier build had made them.
/// Returns how many there are.
fn make_other(supervisor: u32) -> usize {
    let process = Pid::from_raw(supervisor.cast_signed()).expect("a process");
    let process = pidfd_open(process, PidfdFlags::empty()).expect("it runs");
    let folder = format!("/proc/{supervisor}/fdinfo");
    let entries = std::fs::read_dir(folder).expect("its descriptors");
    let mut tables = 0;
    for entry in entries.flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let size = format!("value_size:\t{}\n", offload::layout::SIZE);
        let number = entry.file_name().to_string_lossy().parse().ok();
        let (true, Some(number)) = (text.contains(&size), number) else {
            continue;
        };
        let table = pidfd_getfd(&process, number, PidfdGetfdFlags::empty());
        let memory = SharedWords::<{ offload::layout::SIZE }>::map(
            table.expect("a descriptor").as_fd(),
            true,
        );
        let memory = memory.expect("a table");
        let layout = memory.word(offload::layout::LAYOUT_AT);
        layout.store(offload::layout::LAYOUT - 1, Ordering::Relaxed);
        tables += 1;
    }
    tables
}

#[test]
fn an_upgrade_to_another_layout_leaves_the_programs_alone_and_reports_it() {
    let turn = beside();
    let Some(world) = World::new("packet", "", "", "") else {
        return;
    };
    let [far, near] = sockets(&world);
    ask(&far, &near);
    assert!(make_other(world.lasthop.supervisor()) > 0, "no table");
    turn.step("upgrade");
    let report = world.lasthop.ok(&["upgrade"]);
    assert!(report.contains("prefilters need a restart"), "{report}");
    world.lasthop.wait_port("uplink", "up");
    let has_reason = || {
        let reason = &world.lasthop.port("uplink")["prefilter"]["reason"];
        let text = reason.as_str()?;
        text.contains("restart Lasthop").then_some(())
    };
    wait_for("the reason", has_reason);
    turn.step("nothing ends, also after it was off and on");
    let (stop, out) = (Stop::default(), world.far.wire("wire0"));
    std::thread::scope(|scope| {
        let _stop = stop.at_end();
        scope.spawn(|| flood(&out, &stop, denied));
        let set = |to| ["port", "set", "uplink", "--prefilter", to];
        let denied = || world.lasthop.stats().get("uplink.drops.acl-denied");
        let before = denied();
        wait_for("denied frames", || {
            (denied() > before + 20_000).then_some(())
        });
        assert_eq!(world.ended(), 0);
        ask(&far, &near);
        world.lasthop.ok(&set("off"));
        world.lasthop.ok(&set("auto"));
        wait_for("a reason again", || {
            world.lasthop.port("uplink")["prefilter"]["reason"].as_str()?;
            Some(())
        });
        assert_eq!(world.ended(), 0);
        ask(&far, &near);
    });
}

/// Linux 6.1 has `AF_XDP` sockets that another process cannot use.
#[test]
fn an_uplink_with_xdp_is_served_whatever_the_kernel_has() {
    let _turn = beside();
    let Some(world) = World::new("xdp", "prefilter = \"off\"\n", "", "") else {
        return;
    };
    let [far, near] = sockets(&world);
    ask(&far, &near);
    let back_end = world.lasthop.port("uplink")["driver_status"]["back_end"].clone();
    let log = world.lasthop.log();
    assert!(
        back_end == "xdp (copy)" || log.contains("\"packet\" is used"),
        "{back_end}: {log}"
    );
}

#[test]
fn floods_end_with_other_kernels() {
    if is_inside() {
        return;
    }
    let turn = machine();
    for kernel in [Kernel::Debian, Kernel::Newer] {
        if kernel == Kernel::Newer && !(is_long() && kernel.has_image()) {
            continue;
        }
        turn.step("boot");
        let mut host = Host::start(kernel, module_path!());
        turn.step(host.run("uname -r").trim());
        host.test("tags_count_and_a_prefilter_can_be_switched_off");
        host.test("an_uplink_with_xdp_is_served_whatever_the_kernel_has");
        if is_long() {
            host.test("packet_sockets_have_a_prefilter_by_xdp");
        }
        if kernel == Kernel::Newer {
            host.test("an_uplink_with_xdp_has_a_prefilter_before_packets_are_made");
        }
    }
}
