//! A host with many guests: the switch is killed, and everything is upgraded, while pairs of guests
//! talk beside a hundred that are idle.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::crowd::{Books, Crowd, Talk};
use testkit::lasthop::{Place, Running, port};
use testkit::process::send;
use testkit::procfs;
use testkit::wait::{LIMIT, wait_for};

/// Guests that are idle, and pairs that talk.
const IDLE: usize = 100;
const PAIRS: usize = 2;
/// Frames that may arrive twice after a kill: a batch of the only worker.
const BATCH: u64 = 64;
/// Time between two looks at the pairs.
const LOOK: Duration = Duration::from_micros(200);

fn name(port: usize) -> String {
    format!("vm{port}")
}

/// A running Lasthop with its guests.
struct Host {
    lasthop: Running,
    crowd: Crowd,
    pairs: Vec<Talk>,
}

impl Host {
    fn start(place: &Place) -> Self {
        let ports = (0..IDLE + 2 * PAIRS).map(|number| port(&name(number), ""));
        let ports: String = ports.collect();
        let lasthop = place.start(&format!("[switch]\nname = \"host1\"\nworkers = 1\n{ports}"));
        let socket = |number: usize| lasthop.socket(&format!("{}.sock", name(number)));
        let idle: Vec<PathBuf> = (2 * PAIRS..2 * PAIRS + IDLE).map(socket).collect();
        let crowd = Crowd::connect(&idle).expect("all connect");
        let pair = |pair: usize| {
            let [one, other] = [2 * pair, 2 * pair + 1].map(socket);
            // Positions of packed queues are in a journal.
            let is_packed = pair % 2 == 1;
            Talk::connect([&one, &other], 2 * pair as u8 + 1, is_packed).expect("both connect")
        };
        let pairs = (0..PAIRS).map(pair).collect();
        let mut host = Self {
            lasthop,
            crowd,
            pairs,
        };
        host.talk_on();
        host
    }

    /// Lets the pairs talk until `done`.
    fn talk(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let until = Instant::now() + LIMIT;
        while !done(self) {
            assert!(Instant::now() < until, "{what}: {}", self.lasthop.log());
            for pair in &mut self.pairs {
                pair.step(true).expect("a sound device");
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Lets the pairs talk until frames that are sent after this call have arrived.
    fn talk_on(&mut self) {
        let sent: Vec<_> = self.pairs.iter().map(Talk::sent).collect();
        self.talk("pairs talk", |host| {
            let mut pairs = host.pairs.iter().zip(&sent);
            pairs.all(|(pair, sent)| pair.is_past(sent.map(|sent| sent + 300)))
        });
    }

    /// Waits for the last frames; returns what became of all.
    fn settle(&mut self) -> Books {
        let until = Instant::now() + LIMIT;
        while !self.pairs.iter().all(Talk::is_settled) && Instant::now() < until {
            for pair in &mut self.pairs {
                pair.step(false).expect("a sound device");
            }
            std::thread::sleep(LOOK);
        }
        let books = self.pairs.iter().map(Talk::books);
        books.fold(Books::default(), Books::plus)
    }

    /// Checks that nothing was lost, altered or reordered, and that nothing came twice after what
    /// had come twice before.
    fn check(&mut self, twice: u64) -> u64 {
        let books = self.settle();
        let is_sound = books.lost + books.reordered + books.damaged == 0;
        assert!(is_sound && books.twice <= twice, "{books:?}");
        self.crowd.check().expect("the same connections");
        books.twice
    }

    fn spares(&self) -> Vec<u32> {
        procfs::spares(self.lasthop.supervisor())
    }

    fn upgrade(&mut self) {
        let mut command = self.lasthop.command(&["upgrade"]);
        let mut upgrade = command.stdout(Stdio::null()).spawn().expect("it starts");
        let mut status = None;
        self.talk("the upgrade ends", |_| {
            status = upgrade.try_wait().expect("it can be waited for");
            status.is_some()
        });
        assert!(status.is_some_and(|status| status.success()));
        self.talk_on();
    }
}

#[test]
fn a_hundred_guests_survive_kills_and_upgrades() {
    let place = Place::new();
    let mut host = Host::start(&place);
    let mut twice = host.check(0);
    for _ in 0..2 {
        // The next switch is there before this one dies.
        let spares = wait_for("spare processes", || {
            Some(host.spares()).filter(|spares| spares.len() == 2)
        });
        host.crowd.forget();
        let switch = host.lasthop.pid("switch");
        send(switch, Signal::KILL);
        host.talk("all idle guests are served", |host| {
            host.crowd.missing() == 0
        });
        host.talk_on();
        twice = host.check(twice + BATCH);
        assert!(spares.contains(&host.lasthop.pid("switch")), "{spares:?}");
        assert!(spares.contains(&host.lasthop.pid("control")), "{spares:?}");
        host.upgrade();
        twice = host.check(twice);
    }
    let log = host.lasthop.log();
    for bad in ["not continued", "disconnected:", "session not saved"] {
        assert!(!log.contains(bad), "{bad}: {log}");
    }
    // The log has no line for each guest that continues.
    let lines = log
        .lines()
        .filter(|line| line.contains("connections continue"));
    assert_eq!(lines.count(), 4, "{log}");
    let ups = log.lines().filter(|line| line.contains("vm99"));
    assert!(ups.count() <= 4, "{log}");
    drop((host.crowd, host.pairs));
    host.lasthop.end(Signal::TERM);
}
