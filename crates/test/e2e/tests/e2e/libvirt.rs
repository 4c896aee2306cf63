//! The libvirt example of docs/user/guests.md: two domains, each with a user of its own, talk,
//! survive the death of the switch, and cannot take each other's port. The hook of the package
//! gives a port the bandwidth of its domain. With the changes of docs/user/iommu.md a domain has an
//! IOMMU.
//!
//! Users, port and domain are taken from that page. What must differ here is put in their place:
//! another name, paths, the guest image instead of a disk, and emulation where KVM does not work.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use e2e::agent::Agent;
use e2e::lasthop::Lasthop;
use e2e::libvirt::{Libvirt, Place};
use e2e::{machine, paths};
use serde_json::{Value, json};
use testkit::process::Process;
use testkit::procfs;
use testkit::wait::wait_for;

/// The page with the example.
const PAGE: &str = "docs/user/guests.md";
/// Domains, their users and their ports.
const NAMES: [&str; 2] = ["vm1", "vm2"];
const TIMEOUT: Duration = Duration::from_secs(180);

/// The example, in pieces.
struct Example {
    useradd: String,
    port: String,
    domain: String,
    emulated: String,
}

impl Example {
    fn read() -> Example {
        let page = fs::read_to_string(paths::root().join(PAGE)).expect("a page");
        let (_, section) = page.split_once("\n## libvirt\n").expect("a section");
        let (section, _) = section.split_once("\n## ").expect("another one");
        let blocks = |language: &str| -> Vec<String> {
            let start = format!("```{language}\n");
            let blocks = section.split(&start).skip(1);
            let ends = blocks.filter_map(|block| block.split_once("```"));
            ends.map(|(block, _)| block.to_owned()).collect()
        };
        let one = |language: &str| {
            let blocks = blocks(language);
            assert_eq!(blocks.len(), 1, "{PAGE}, libvirt: {language}");
            blocks.concat()
        };
        let (useradd, port) = (one("sh"), one("toml"));
        let Ok([domain, emulated]) = <[String; 2]>::try_from(blocks("xml")) else {
            panic!("{PAGE}, libvirt: a domain, and what differs under emulation")
        };
        Example {
            useradd,
            port,
            domain,
            emulated,
        }
    }

    /// The command that makes a user.
    fn useradd(&self, user: &str) -> String {
        swap(&self.useradd, &[(" vm1\n", format!(" {user}"))])
    }

    /// A port, with the number of its user, which this machine does not know by name.
    fn port(&self, name: &str, user: u32) -> String {
        let port = swap(
            &self.port,
            &[
                ("\nuser = \"vm1\"", format!("\nuser = \"{user}\"")),
                ("peer_user = \"vm1\"", format!("peer_user = \"{user}\"")),
            ],
        );
        port.replace("vm1", name)
    }

    /// A domain whose MAC and IP address end with `number`.
    fn domain(&self, name: &str, user: &str, number: u8, socket: &Path, place: &Place) -> String {
        let (before, rest) = self.domain.split_once("<disk ").expect("a disk");
        let (_, after) = rest.split_once("</disk>").expect("its end");
        let domain = [before, &serial_ports(place), after].concat();
        let domain = swap(
            &domain,
            &[
                ("<name>vm1<", format!("<name>{name}<")),
                ("<label>vm1:vm1<", format!("<label>{user}:{user}<")),
                ("52:54:00:00:00:01", format!("52:54:00:00:00:0{number}")),
                ("/run/lasthop/vm1.sock", socket.display().to_string()),
                ("</os>", format!("{}</os>", kernel(number, place))),
            ],
        );
        self.emulate(domain)
    }

    /// The domain as it must be on a host without KVM.
    fn emulate(&self, domain: String) -> String {
        if paths::accelerator() == "kvm" {
            return domain;
        }
        let (first, _) = self.emulated.split_once('\n').expect("lines");
        let (_, last) = self.emulated.split_once("-->\n").expect("a comment");
        swap(
            &domain,
            &[
                ("<domain type='kvm'>", first.to_owned()),
                ("mode='host-passthrough'", "mode='maximum'".to_owned()),
                ("</domain>\n", last.to_owned()),
            ],
        )
    }
}

/// Other text in the place of text that the page has once.
fn swap(text: &str, what: &[(&str, String)]) -> String {
    what.iter().fold(text.to_owned(), |text, (what, by)| {
        assert_eq!(text.matches(what).count(), 1, "{PAGE}: {what} in {text}");
        text.replace(what, by)
    })
}

fn serial_ports(place: &Place) -> String {
    format!(
        "<serial type='file'><source path='{}'/><target port='0'/></serial>
         <serial type='unix'><source mode='connect' path='{}'/><target port='1'/></serial>",
        place.path("console"),
        place.path("agent")
    )
}

fn kernel(number: u8, place: &Place) -> String {
    format!(
        "<kernel>{}</kernel><initrd>{}</initrd>
         <cmdline>console=ttyS0 quiet no_timer_check tsc=reliable panic=-1 ipv6.disable=1 \
         lasthop.ip=10.0.0.{number}/24</cmdline>",
        place.path("vmlinux"),
        place.path("guest.gz")
    )
}

/// As the package's unit has it.
fn belongs_to_the_group(runtime: &Path, group: u32) {
    let parent = runtime.parent().expect("a folder");
    let open = |path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
    open(parent, 0o755).expect("a folder of ours");
    chown(runtime, None, Some(group)).expect("we are root");
    open(runtime, 0o750).expect("a folder of ours");
}

fn define(libvirt: &Libvirt, name: &str, xml: &str, place: &Place) {
    let file = place.path("domain.xml");
    fs::write(&file, xml).expect("a folder of ours");
    libvirt.virsh(&["define", "--validate", &file]);
    let names = libvirt.virsh(&["list", "--all", "--name"]);
    assert!(names.lines().any(|line| line.trim() == name), "{names}");
}

fn remove(libvirt: &Libvirt, name: &str) {
    libvirt.virsh(&["destroy", name]);
    libvirt.virsh(&["undefine", name]);
}

fn talk(guest: &mut Agent, address: &str) {
    let said = guest.start(&format!("ping -q -c 20 -i 0.05 -W 5 {address}"));
    let said = said.wait(TIMEOUT);
    assert!(said.contains(" 0% packet loss"), "{said}");
}

/// A user's QEMU, which is the only thing that it runs.
fn vmm(user: u32) -> u32 {
    let processes = procfs::of_user(user);
    let [vmm] = processes[..] else {
        panic!("user {user} runs {processes:?}")
    };
    vmm
}

#[test]
fn the_readmes_domains_talk_and_keep_their_ports() {
    let turn = machine();
    if !Libvirt::allowed() {
        return;
    }
    let example = Example::read();
    turn.step("start libvirtd");
    let libvirt = Libvirt::start(&NAMES.map(|user| example.useradd(user)));
    let users = NAMES.map(|user| libvirt.user(user));
    let ports = NAMES.map(|name| example.port(name, libvirt.user(name)));
    let lasthop = Lasthop::start(&format!("[switch]\nname = \"host1\"\n{}", ports.concat()));
    belongs_to_the_group(&lasthop.folder(), libvirt.group("lasthop"));

    turn.step("boot two domains, each with a user of its own");
    let sockets = NAMES.map(|name| lasthop.socket(&format!("{name}.sock")));
    let places = NAMES.map(|name| libvirt.place(name));
    for (number, name) in [(1, NAMES[0]), (2, NAMES[1])] {
        let at = usize::from(number) - 1;
        let xml = example.domain(name, name, number, &sockets[at], &places[at]);
        define(&libvirt, name, &xml, &places[at]);
    }
    let mut vm1 = libvirt.boot("vm1", &places[0]);
    let mut vm2 = libvirt.boot("vm2", &places[1]);
    let vmms = users.map(vmm);
    for name in NAMES {
        let port = lasthop.wait_port(name, "up");
        assert_eq!(port["ring"], "packed", "{port}");
    }
    talk(&mut vm1, "10.0.0.2");
    talk(&mut vm2, "10.0.0.1");

    turn.step("the switch is killed");
    let steady = vm1.start("ping -q -c 300 -i 0.01 -W 5 10.0.0.2");
    let before = lasthop.pid("lasthop-control").expect("control runs");
    lasthop.kill_switch();
    lasthop.wait_control(before);
    steady.wait(TIMEOUT);
    talk(&mut vm1, "10.0.0.2");
    talk(&mut vm2, "10.0.0.1");
    assert_eq!(users.map(vmm), vmms, "the VMMs are still the same");
    let log = lasthop.log();
    assert!(!log.contains("disconnected"), "{log}");

    turn.step("a domain of another user's does not get at the socket");
    libvirt.virsh(&["destroy", "vm1"]);
    lasthop.wait_port("vm1", "waiting");
    let place = libvirt.place("thief");
    let xml = example.domain("thief", "vm2", 3, &sockets[0], &place);
    define(&libvirt, "thief", &xml, &place);
    let thief = Thief::start(&libvirt);
    wait_for("the thief has no rights", || {
        let said = libvirt.qemu_output("thief");
        said.contains("Permission denied").then_some(())
    });
    assert_eq!(rejected_connections(&lasthop), 0);
    turn.step("and is rejected where the mode allows it");
    lasthop.ok(&["port", "set", "vm1", "--mode", "0666"]);
    lasthop.wait_reason(
        "vm1",
        &format!("rejected a connection of user {}", users[1]),
    );
    assert!(rejected_connections(&lasthop) > 0);
    let shown = lasthop.ok(&["port", "show", "vm1"]);
    let stranger = format!("last rejected uid {}", users[1]);
    assert!(shown.contains(&stranger), "{shown}");
    thief.end(&libvirt);

    turn.step("the port is its own user's");
    lasthop.ok(&["port", "set", "vm1", "--mode", "0600"]);
    let mut vm1 = libvirt.boot("vm1", &places[0]);
    talk(&mut vm1, "10.0.0.2");
    for name in NAMES {
        remove(&libvirt, name);
        lasthop.wait_port(name, "waiting");
    }
    for (socket, user) in sockets.iter().zip(users) {
        let socket = fs::metadata(socket).expect("the port listens");
        assert_eq!((socket.uid(), socket.mode() & 0o777), (user, 0o600));
    }
    libvirt.stop(&users);
    lasthop.stop();
}

/// The page with a domain's IOMMU.
const IOMMU_PAGE: &str = "docs/user/iommu.md";

/// The domain with what the page has for an IOMMU, and its kernel with strict mappings.
fn with_iommu(domain: &str) -> String {
    let page = fs::read_to_string(paths::root().join(IOMMU_PAGE)).expect("a page");
    let (_, rest) = page.split_once("\n```xml\n").expect("an example");
    let (example, _) = rest.split_once("```").expect("its end");
    let of = |from: &str, to: &str| {
        let start = example.find(from).expect(from);
        let end = example[start..].find(to).expect(to) + start + to.len();
        example[start..end].to_owned()
    };
    let card = of("<driver iommu=", "/>");
    let (before, rest) = domain.split_once("<features>").expect("features");
    let (_, after) = rest.split_once("</features>").expect("their end");
    let domain = [before, &of("<features>", "</features>"), after].concat();
    swap(
        &domain,
        &[
            (
                "<devices>",
                format!("<devices>{}", of("<iommu ", "</iommu>")),
            ),
            ("<driver queues='2' packed='on'/>", card),
            (
                "panic=-1",
                "panic=-1 intel_iommu=on iommu.strict=1".to_owned(),
            ),
        ],
    )
}

#[test]
fn a_domain_with_an_iommu_talks_and_survives_the_switch() {
    let turn = machine();
    if !Libvirt::allowed() {
        return;
    }
    let example = Example::read();
    let libvirt = Libvirt::start(&NAMES.map(|user| example.useradd(user)));
    let users = NAMES.map(|user| libvirt.user(user));
    let required = format!("{}iommu = \"required\"\n", example.port("vm1", users[0]));
    let ports = [required, example.port("vm2", users[1])];
    let lasthop = Lasthop::start(&format!("[switch]\nname = \"host1\"\n{}", ports.concat()));
    belongs_to_the_group(&lasthop.folder(), libvirt.group("lasthop"));
    let places = NAMES.map(|name| libvirt.place(name));
    let sockets = NAMES.map(|name| lasthop.socket_of(name));
    let domain = |at: usize| {
        let (name, number) = (NAMES[at], at as u8 + 1);
        example.domain(name, name, number, &sockets[at], &places[at])
    };
    define(&libvirt, "vm1", &with_iommu(&domain(0)), &places[0]);
    define(&libvirt, "vm2", &domain(1), &places[1]);
    let mut vm1 = libvirt.boot("vm1", &places[0]);
    let mut vm2 = libvirt.boot("vm2", &places[1]);
    talk(&mut vm1, "10.0.0.2");
    talk(&mut vm2, "10.0.0.1");
    let translation = &lasthop.port("vm1")["translation"];
    assert!(
        translation["invalidations"].as_u64() > Some(0),
        "{translation}"
    );

    turn.step("the switch is killed");
    let before = lasthop.pid("lasthop-control").expect("control runs");
    lasthop.kill_switch();
    lasthop.wait_control(before);
    talk(&mut vm1, "10.0.0.2");
    for name in NAMES {
        remove(&libvirt, name);
    }
    libvirt.stop(&users);
    lasthop.stop();
}

/// The bandwidth of a domain, and the limits of its port for it.
const BANDWIDTH: &str = "<bandwidth>
    <inbound average='12500' burst='2500'/><outbound average='25000' burst='1024'/>
  </bandwidth>";

fn limits_of_bandwidth() -> Value {
    json!({
        "from_guest": {"bits_per_second": 200_000_000, "bits_burst": 8_388_608},
        "to_guest": {"bits_per_second": 100_000_000, "bits_burst": 20_480_000},
    })
}

/// The hook of the package, whose warnings go to a file in the place of a domain.
struct Hook {
    programs: PathBuf,
    log: PathBuf,
}

impl Hook {
    fn new(place: &Place) -> Hook {
        let programs = PathBuf::from(place.path("bin"));
        let log = PathBuf::from(place.path("hook.log"));
        fs::create_dir(&programs).expect("a folder of ours");
        let logger = programs.join("logger");
        let script = format!("#!/bin/sh\ncat >>'{}'\n", log.display());
        fs::write(&logger, script).expect("a folder of ours");
        fs::set_permissions(logger, Permissions::from_mode(0o755)).expect("a file of ours");
        symlink(paths::binary("lasthop"), programs.join("lasthop")).expect("a folder of ours");
        Hook { programs, log }
    }

    /// Returns the script for a Lasthop in this directory.
    fn script(&self, runtime: &Path) -> String {
        format!(
            "export PATH='{}:/usr/bin:/bin' LASTHOP_RUNTIME_DIR='{}'\nexec '{}' \"$@\"",
            self.programs.display(),
            runtime.display(),
            paths::root().join("packaging/libvirt-hook").display()
        )
    }

    fn warnings(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

#[test]
fn the_bandwidth_of_a_domain_is_that_of_its_port() {
    let turn = machine();
    if !Libvirt::allowed() {
        return;
    }
    let example = Example::read();
    let libvirt = Libvirt::start(&[example.useradd("vm1")]);
    let user = libvirt.user("vm1");
    let lasthop = Lasthop::start(&format!(
        "[switch]\nname = \"host1\"\n{}",
        example.port("vm1", user)
    ));
    belongs_to_the_group(&lasthop.folder(), libvirt.group("lasthop"));
    let place = libvirt.place("vm1");
    let socket = lasthop.socket_of("vm1");
    let xml = example.domain("vm1", "vm1", 1, &socket, &place);
    let model = "<model type='virtio'/>";
    let xml = swap(&xml, &[(model, format!("{BANDWIDTH}{model}"))]);
    define(&libvirt, "vm1", &xml, &place);
    let hook = Hook::new(&place);
    let limits = || lasthop.port("vm1")["limits"].clone();

    turn.step("a domain is started, and its port has its bandwidth");
    libvirt.set_hook(&hook.script(&lasthop.folder()));
    libvirt.virsh(&["start", "vm1"]);
    assert_eq!(limits(), limits_of_bandwidth());

    turn.step("the bandwidth of running domains is set again");
    lasthop.ok(&["port", "set", "vm1", "--limit", "from-guest:none"]);
    assert_ne!(limits(), limits_of_bandwidth());
    let running = format!("--running={}", libvirt.states().display());
    lasthop.ok(&["libvirt-hook", &running]);
    assert_eq!(limits(), limits_of_bandwidth());

    turn.step("the domain ends, and so does its bandwidth");
    libvirt.virsh(&["destroy", "vm1"]);
    assert_eq!(limits(), Value::Null);
    assert_eq!(hook.warnings(), "");

    turn.step("without Lasthop it is a warning, and the domain starts");
    libvirt.set_hook(&hook.script(Path::new("/nowhere")));
    libvirt.virsh(&["start", "vm1"]);
    assert_eq!(limits(), Value::Null);
    let warnings = hook.warnings();
    assert!(warnings.contains("/nowhere/api.sock"), "{warnings}");
    remove(&libvirt, "vm1");
    libvirt.stop(&[user]);
    lasthop.stop();
}

/// Returns the number of rejected connections of `vm1`.
fn rejected_connections(lasthop: &Lasthop) -> u64 {
    let port = lasthop.port("vm1");
    let times = port["front_ends"]["rejected_connections"].as_u64();
    times.unwrap_or_else(|| panic!("{port}"))
}

/// A domain that does not get its port: `virsh start` waits for its QEMU, which keeps connecting.
struct Thief {
    virsh: Process,
}

impl Thief {
    fn start(libvirt: &Libvirt) -> Thief {
        let virsh = libvirt.start_virsh(&["start", "thief"]);
        Thief { virsh }
    }

    fn end(mut self, libvirt: &Libvirt) {
        remove(libvirt, "thief");
        let status = self
            .virsh
            .end(TIMEOUT)
            .expect("virsh has nothing to wait for");
        assert!(
            !status.success(),
            "it never started: {}",
            self.virsh.output()
        );
    }
}
