//! Pipes: two ends meet, and neither notices the death of any process of Lasthop.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use e2e::lasthop::Lasthop;
use e2e::slotgen::Slotgen;
use e2e::{beside, paths};
use rustix::process::Signal;
use serde_json::Value;
use testkit::pipe_end::{MASTER, PipeAnswer, PipeEnd, PipeMemory, SLAVE};
use testkit::procfs;
use testkit::wait::wait_until;

const CONFIG: &str = r#"
[switch]
name = "host1"

[[port]]
name = "ids"
kind = "netmap"
pipes = true

[[pipe]]
name = "p0"
mode = "0600"
"#;

const ID: u16 = 7;

fn socket(lasthop: &Lasthop, name: &str) -> PathBuf {
    lasthop.socket(&format!("{name}.pipes"))
}

/// Returns the connected ends of the pipe of this name, if it is the only one.
fn ends(lasthop: &Lasthop, name: &str) -> Vec<Value> {
    let output = lasthop.cli(&["pipe", "list", "--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let pipes = document["pipes"].as_array().cloned().unwrap_or_default();
    let pipe = pipes.iter().find(|pipe| pipe["name"] == name);
    let open = pipe.map(|pipe| pipe["open"].clone()).unwrap_or_default();
    let ends = open[0]["ends"].as_array().cloned();
    ends.unwrap_or_default()
}

fn wait_for_ends(lasthop: &Lasthop, name: &str, number: usize) -> Vec<Value> {
    wait_until("the ends", || ends(lasthop, name).len() == number);
    ends(lasthop, name)
}

/// Both ends of a pipe, with their memory.
struct Pipe {
    path: PathBuf,
    memory: PipeMemory,
    ends: [PipeEnd; 2],
}

impl Pipe {
    fn new(lasthop: &Lasthop, name: &str) -> Self {
        let path = socket(lasthop, name);
        let memory = PipeMemory::new(0x1234_5678_9abc_def0).expect("memory");
        let joined = PipeAnswer::Join(memory.instance(), memory.inode().expect("a file"));
        let master = PipeEnd::register(&path, (ID, MASTER), 0).expect("a socket");
        assert_eq!(master.answer().expect("an answer"), PipeAnswer::Create);
        let slave = PipeEnd::register(&path, (ID, SLAVE), 0).expect("a socket");
        master.offer(&memory).expect("an offer");
        for end in [&master, &slave] {
            assert_eq!(end.answer().expect("an answer"), joined);
        }
        Self {
            path,
            memory,
            ends: [master, slave],
        }
    }

    /// Both ends have lost their connection, and come back in this order.
    fn come_back(&mut self, order: [u16; 2]) {
        for end in &self.ends {
            assert_eq!(end.answer().expect("an end"), PipeAnswer::Closed);
        }
        let back = |end| {
            let mut dialled = Err(std::io::ErrorKind::NotFound.into());
            wait_until("an end to come back", || {
                dialled = PipeEnd::come_back(&self.path, (ID, end), &self.memory);
                dialled.is_ok()
            });
            dialled.expect("an end")
        };
        self.ends = order.map(back);
    }
}

#[test]
fn ends_meet_and_come_back_after_any_death() {
    let turn = beside();
    let mut lasthop = Lasthop::start(CONFIG);
    let mut pipe = Pipe::new(&lasthop, "p0");
    let said = wait_for_ends(&lasthop, "p0", 2);
    assert_eq!(
        (&said[0]["end"], &said[1]["end"]),
        (&"master".into(), &"slave".into())
    );
    for end in &said {
        assert_eq!(end["program"], "testkit");
        assert_eq!(end["pid"], std::process::id());
    }
    let listed = lasthop.ok(&["pipe", "list"]);
    assert!(listed.contains("testkit ("), "{listed}");

    turn.step("kill -9 of control");
    let control = lasthop.pid("lasthop-control").expect("control runs");
    lasthop.kill_control();
    pipe.come_back([SLAVE, MASTER]);
    lasthop.wait_control(control);
    wait_for_ends(&lasthop, "p0", 2);

    turn.step("kill -9 of the switch, with which control is replaced, too");
    lasthop.kill_switch();
    pipe.come_back([MASTER, SLAVE]);
    wait_for_ends(&lasthop, "p0", 2);

    turn.step("upgrade");
    lasthop.ok(&["upgrade"]);
    pipe.come_back([SLAVE, MASTER]);
    wait_for_ends(&lasthop, "p0", 2);

    turn.step("kill -9 of all of Lasthop");
    lasthop.start_again();
    pipe.come_back([MASTER, SLAVE]);
    wait_for_ends(&lasthop, "p0", 2);

    turn.step("a new end gets the memory that the other has");
    let Pipe { path, memory, ends } = pipe;
    let [master, slave] = ends;
    drop(slave);
    wait_for_ends(&lasthop, "p0", 1);
    let new = PipeEnd::register(&path, (ID, SLAVE), 0).expect("a socket");
    let joined = PipeAnswer::Join(memory.instance(), memory.inode().expect("a file"));
    assert_eq!(new.answer().expect("an answer"), joined);
    drop((master, new));
    wait_for_ends(&lasthop, "p0", 0);
    lasthop.stop();
}

#[test]
fn pipes_come_and_go_with_the_configuration() {
    let _turn = beside();
    let lasthop = Lasthop::start(CONFIG);
    let of_port = Pipe::new(&lasthop, "ids");
    lasthop.ok(&["port", "set", "ids", "--slots", "256"]);
    assert_eq!(
        ends(&lasthop, "ids").len(),
        2,
        "they stay when the port changes"
    );
    lasthop.ok(&["port", "set", "ids", "--pipes", "false"]);
    for end in &of_port.ends {
        assert_eq!(end.answer().expect("an end"), PipeAnswer::Closed);
    }
    assert!(!socket(&lasthop, "ids").exists());
    let config = lasthop.folder().join("other.toml");
    let other = CONFIG.replace("p0", "p1").replace("0600", "0640");
    std::fs::write(&config, other).expect("a file");
    lasthop.ok(&["apply", config.to_str().expect("a path")]);
    assert!(!socket(&lasthop, "p0").exists());
    Pipe::new(&lasthop, "p1");
    Pipe::new(&lasthop, "ids");
    std::fs::remove_file(config).expect("the file");
    lasthop.stop();
}

#[test]
fn a_flood_of_a_pipe_takes_nothing_from_the_api_and_other_pipes() {
    let _turn = beside();
    let lasthop = Lasthop::start(CONFIG);
    let path = socket(&lasthop, "p0");
    let silent: Vec<_> = (0..64)
        .map(|_| PipeEnd::dial(&path).expect("a socket"))
        .collect();
    for _ in 0..2000 {
        let end = PipeEnd::dial(&path).expect("room in the backlog");
        // It may be closed already.
        drop(end.send(&[0xaa; 256], &[]));
    }
    Pipe::new(&lasthop, "ids");
    assert_eq!(lasthop.port("ids")["state"], "waiting");
    drop(silent);
    let log = lasthop.log();
    let lines = log.matches("end refused").count();
    assert!(lines <= 60, "{lines} log lines");
    lasthop.stop();
}

/// Starts `slotgen` with these words, under `lasthop netmap`.
fn slotgen(lasthop: &Lasthop, words: &str) -> Child {
    let mut command = Command::new(paths::binary("lasthop"));
    command.arg("--runtime-dir").arg(lasthop.folder());
    command.args(["netmap", "--poll", "sleep", "--"]);
    command.arg(paths::binary("slotgen")).args(words.split(' '));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("lasthop netmap")
}

/// Returns the last line of a program that has succeeded.
fn result_of(program: Child) -> String {
    let output = program.wait_with_output().expect("an end");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    out.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn programs_share_memory_while_all_of_lasthop_is_killed() {
    let turn = beside();
    let mut lasthop = Lasthop::start(CONFIG);
    // So long that both programs dial again, which they do once a second, before they end.
    turn.step("two programs, for five seconds");
    let receiver = slotgen(&lasthop, "rx -i netmap:p0}9 -n 100000 -V -T 60 -q 30");
    wait_for_ends(&lasthop, "p0", 1);
    let sender = slotgen(&lasthop, "tx -i netmap:p0{9 -n 100000 -R 20000 -V -T 60");
    let said = wait_for_ends(&lasthop, "p0", 2);
    for (end, program) in said.iter().zip([&sender, &receiver]) {
        assert_eq!(end["program"], "slotgen");
        assert_eq!(end["pid"], program.id());
    }
    turn.step("kill -9 of all of Lasthop, and a new start");
    lasthop.start_again();
    // The sender, too, which always finds room and never sleeps in a wait.
    let back = wait_for_ends(&lasthop, "p0", 2);
    for (end, program) in back.iter().zip([&sender, &receiver]) {
        assert_eq!(end["pid"], program.id());
    }
    turn.step("they end, and have lost nothing");
    for program in [sender, receiver] {
        let result = result_of(program);
        assert!(result.contains("frames=100000 "), "{result}");
        assert!(result.contains(" lost=0 twice=0 bad=0"), "{result}");
    }
    lasthop.stop();
}

const BALANCER: &str = r#"
[[port]]
name = "ids"
kind = "netmap"
pipes = true
slots = 4096

[[port]]
name = "gen"
kind = "netmap"
port_security = { macs = "any" }
"#;

/// A program like netmap's `lb`: it requests that pipes are in the memory of its port.
struct Balancer<'a> {
    lasthop: &'a Lasthop,
    balancer: Slotgen,
    readers: [Slotgen; 2],
    /// Frames that the readers will have received.
    expected: u64,
}

impl<'a> Balancer<'a> {
    fn balancer(lasthop: &Lasthop) -> Slotgen {
        let balancer = Slotgen::start(lasthop.folder(), "lb -i netmap:ids -p 2 -B 100");
        lasthop.wait_port("ids", "up");
        let pid = format!("\"pid\":{},", balancer.pid());
        wait_until("its pipes", || {
            let pipes = lasthop.json(&["pipe", "list"]).to_string();
            pipes.matches(&pid).count() == 2
        });
        balancer
    }

    fn reader(lasthop: &Lasthop, id: usize) -> Slotgen {
        let reader = format!("rx -i netmap:ids}}{id} -q 60");
        let reader = Slotgen::start(lasthop.folder(), &reader);
        let pid = reader.pid();
        wait_until("the reader", || {
            let pipes = lasthop.json(&["pipe", "list"]).to_string();
            pipes.contains(&format!("\"pid\":{pid},"))
        });
        reader
    }

    /// Sends frames through, which both readers get in turn.
    fn send(&mut self) {
        const FRAMES: u64 = 1000;
        let line = format!("tx -i netmap:gen -n {FRAMES} -R 20000 -b 50");
        let delivered = || self.lasthop.stats().get("ids.to_guest.packets");
        let before = delivered();
        let sent = Slotgen::start(self.lasthop.folder(), &line).printed();
        assert_eq!(sent.counts(), [FRAMES, 0, 0, 0]);
        wait_until("the switch has delivered them", || {
            delivered() == before + FRAMES
        });
        // In the order of a frame: one that sleeps has passed on all that it had.
        let [first, second] = &self.readers;
        wait_until("the readers have taken them", || {
            let state = |program: &Slotgen| procfs::status(program.pid(), "State");
            let sleeps = |program| state(program).is_some_and(|state| state.starts_with('S'));
            sleeps(&self.balancer) && sleeps(first) && sleeps(second)
        });
        self.expected += FRAMES;
    }

    /// Kills the balancer, and starts it again at once.
    fn kill_balancer(&mut self) {
        self.balancer.kill();
        self.balancer = Self::balancer(self.lasthop);
    }

    /// Kills the readers with all that they have counted, and starts them again at once.
    fn kill_readers(&mut self) {
        for (id, reader) in self.readers.iter_mut().enumerate() {
            reader.kill();
            *reader = Self::reader(self.lasthop, id);
        }
        self.expected = 0;
    }

    /// The readers end, and have received everything.
    fn finish(self) {
        let counts = self.readers.map(|reader| {
            reader.signal(Signal::INT);
            reader.printed().number("frames")
        });
        assert_eq!(counts.iter().sum::<u64>(), self.expected, "{counts:?}");
        assert_eq!(counts[0], counts[1], "in turn");
        self.balancer.signal(Signal::INT);
        let printed = self.balancer.printed();
        assert_eq!(printed.number("lost") + printed.number("bad"), 0);
        wait_until("the pipes are gone", || masters(self.lasthop) == 0);
    }
}

/// Number of master ends.
fn masters(lasthop: &Lasthop) -> usize {
    let pipes = lasthop.json(&["pipe", "list"]).to_string();
    pipes.matches("\"master\"").count()
}

/// Either end first, and each end killed and started again beside the other.
#[test]
fn a_balancer_and_its_readers_start_in_any_order_and_after_any_kill() {
    let turn = beside();
    let lasthop = Lasthop::start(&format!("[switch]\nname = \"host1\"\n{BALANCER}"));
    for readers_first in [false, true] {
        turn.step(&format!("readers first: {readers_first}"));
        let first = (!readers_first).then(|| Balancer::balancer(&lasthop));
        let readers = [0, 1].map(|id| Balancer::reader(&lasthop, id));
        let mut all = Balancer {
            lasthop: &lasthop,
            balancer: first.unwrap_or_else(|| Balancer::balancer(&lasthop)),
            readers,
            expected: 0,
        };
        all.send();
        turn.step("kill -9 of the balancer");
        all.kill_balancer();
        all.send();
        turn.step("kill -9 of both readers");
        all.kill_readers();
        all.send();
        turn.step("kill -9 of the balancer once more");
        all.kill_balancer();
        all.send();
        all.finish();
    }
    lasthop.stop();
}

/// The command, without the library: programs that would run without it are refused before.
#[test]
fn programs_without_the_library_are_refused_by_name() {
    let _turn = beside();
    let lasthop = Lasthop::start(CONFIG);
    let folder = lasthop.folder();
    let refused = |program: &str, reason: &str| {
        let output = lasthop.cli(&["netmap", "--", program]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{program}: {said}");
        assert!(said.contains(reason), "{program}: {said}");
    };
    refused("no-such-program", "there is no such program in PATH");
    refused("/etc/passwd", "no file that may be executed");
    // Copies of a program of the system, with other rights.
    for (mode, reason) in [
        ("4755", "a set-user-id program"),
        ("2755", "a set-group-id program"),
    ] {
        let copy = folder.join(format!("true-{mode}"));
        std::fs::copy("/bin/true", &copy).expect("a copy");
        let chmod = Command::new("chmod").arg(mode).arg(&copy).status();
        assert!(chmod.expect("chmod").success());
        refused(copy.to_str().expect("a path"), reason);
        std::fs::remove_file(copy).expect("the copy");
    }
    if let Some(program) = static_program() {
        refused(program, "a static program");
    }
    let output = lasthop.cli(&["netmap", "--poll", "never", "--", "true"]);
    assert_eq!(output.status.code(), Some(2));
    lasthop.stop();
}

/// Returns a static program of the system, if there is one.
fn static_program() -> Option<&'static str> {
    let mut known = ["/sbin/ldconfig", "/usr/sbin/ldconfig", "/bin/busybox"].into_iter();
    known.find(|program| {
        let mut command = Command::new("ldd");
        command
            .arg(program)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        std::path::Path::new(program).exists() && command.status().is_ok_and(|done| !done.success())
    })
}
