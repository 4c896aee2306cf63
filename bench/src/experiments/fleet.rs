//! Cost of the supervisor and control by the number of guests: connections, changes, queries, and
//! rest. The guests are idle; `dense` has those that talk.

mod front_ends;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::lasthop::port_table;
use e2e::statistics::median;
use e2e::table::table;
use rustix::process::Signal;
use serde::Serialize;
use testkit::frontend::FrontEnd;
use testkit::lasthop::listens;
use testkit::packets::ethernet;
use testkit::process::send;
use testkit::{FakeGuest, GuestConfig, procfs};

use self::front_ends::FrontEnds;
use crate::peers::lasthop::{self, Lasthop};
use crate::plan::{Plan, progress};
use crate::report::{Figures, Report};
use crate::sample::wait_quiet;
use crate::stop;

/// Numbers of guests.
const GUESTS: [usize; 4] = [10, 100, 500, 1000];
/// Processes, the supervisor first.
const PROCESSES: [&str; 3] = ["supervisor", "lasthop-switch", "lasthop-control"];
/// Time until searches that follow a connection are over.
const SETTLES: Duration = Duration::from_secs(25);
/// Minimum time of a look at idle processes.
const IDLE: Duration = Duration::from_secs(10);
/// Stations of the table that is listed, and those of a port.
const STATIONS: usize = 20_000;
const OF_PORT: usize = 4000;
/// Frames that a port sends at once, with new addresses, and the time until all are learned.
const AT_ONCE: usize = 100;
const LEARNS: Duration = Duration::from_secs(60);
/// Name of the port with a front end that is up while the others connect.
const STEADY: &str = "steady";
/// Rules of the list of all ports.
const RULES: usize = 10;

/// Figures of a number of guests by name, in the order of the table.
type Values = Vec<(&'static str, Vec<f64>)>;

#[derive(Debug, Serialize)]
struct Column {
    build: &'static str,
    guests: usize,
    values: Values,
}

#[derive(Debug, Default, Serialize)]
struct Fleet {
    columns: Vec<Column>,
}

impl Figures for Fleet {
    fn tables(&self) -> String {
        let mut head = vec![String::new()];
        let of = |column: &Column| format!("{}: {}", column.build, column.guests);
        head.extend(self.columns.iter().map(of));
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in self.columns.iter().flat_map(|column| &column.values) {
            if !names.contains(name) {
                names.push(name);
            }
        }
        let row = |name: &&str| {
            let cell = |column: &Column| {
                let values = column.values.iter().find(|(of, _)| of == name);
                values.map_or_else(String::new, |(_, values)| shown(values))
            };
            let cells = self.columns.iter().map(cell);
            [(*name).to_owned()].into_iter().chain(cells).collect()
        };
        table(&head, &names.iter().map(row).collect::<Vec<_>>())
    }
}

/// Returns the median, with least and most where there are several.
fn shown(values: &[f64]) -> String {
    let middle = median(values).unwrap_or(f64::NAN);
    let digits = if middle < 1.0 { 2 } else { 1 };
    if values.len() < 2 {
        return format!("{middle:.digits$}");
    }
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    format!("{middle:.digits$} ({low:.digits$}-{high:.digits$})")
}

/// See the module.
pub(crate) fn fleet(plan: &Plan) -> Result<Report> {
    let mut fleet = Fleet::default();
    let mut notes = vec![
        "guests are plain vhost-user front ends of 16 MiB, idle, all of one process; a session's \
         messages are sent without waiting for replies; medians, least and most"
            .to_owned(),
    ];
    for guests in &GUESTS {
        for (bin, build) in [(Some(&plan.bin), "this"), (plan.before.as_ref(), "before")] {
            let Some(bin) = bin else { continue };
            wait_quiet(plan.patience / 20)?;
            match one_size(plan, bin, *guests) {
                Ok(values) => {
                    progress(&format!("fleet: {build}, {guests} guests: {values:?}"));
                    let guests = *guests;
                    fleet.columns.push(Column {
                        build,
                        guests,
                        values,
                    });
                }
                Err(error) => {
                    stop::check()?;
                    let note = format!("{build}, {guests} guests: {error:#}");
                    progress(&note);
                    notes.push(note);
                }
            }
        }
    }
    let title = "Supervisor and control by the number of guests";
    Ok(Report::new(plan, "fleet", title, notes, fleet))
}

fn one_size(plan: &Plan, bin: &Path, guests: usize) -> Result<Values> {
    let plan = Plan {
        bin: bin.to_owned(),
        ..plan.clone()
    };
    let mut host = Host::start(&plan, guests)?;
    let mut values = host.connections(&plan)?;
    values.extend(host.rest(&plan)?);
    values.extend(host.changes(&plan)?);
    values.extend(host.queries(&plan)?);
    values.extend(host.death(&plan)?);
    host.lasthop.end();
    Ok(values)
}

/// A Lasthop with its guests.
struct Host {
    lasthop: Lasthop,
    guests: usize,
    front_ends: FrontEnds,
}

/// Returns the list of all ports; another `number`, another rule.
fn list(number: usize) -> String {
    let mut text = "\n[[acl]]\nname = \"all\"\ndirection = \"to-guest\"\n".to_owned();
    text += "segments = [\"default\"]\n";
    for rule in number..number + RULES {
        text += &format!("[[acl.rule]]\nname = \"r{rule}\"\naction = \"drop\"\n");
        text += &format!(
            "protocol = \"tcp\"\ndestination_ports = [{}]\n",
            1000 + rule
        );
    }
    text
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Host {
    fn start(plan: &Plan, guests: usize) -> Result<Self> {
        let text = Self::configuration(guests, None);
        let lasthop = lasthop::start_with(plan, plan.shared_cores(), &text)?;
        let sockets = (0..guests).map(|port| lasthop.socket_of(&format!("p{port}")));
        let front_ends = FrontEnds::new(sockets.collect::<Vec<_>>())?;
        Ok(Self {
            lasthop,
            guests,
            front_ends,
        })
    }

    /// Returns the configuration, where one port may have another weight.
    fn configuration(guests: usize, changed: Option<(usize, usize)>) -> String {
        let mut text = "[switch]\nname = \"bench\"\n".to_owned();
        text += &port_table(STEADY, "default");
        for port in 0..guests {
            text += &port_table(&format!("p{port}"), "default");
            if let Some((_, weight)) = changed.filter(|(at, _)| *at == port) {
                text += &format!("weight = {weight}\n");
            }
        }
        text
    }

    /// All connect at once, while one that is up asks and waits again and again.
    fn connections(&mut self, plan: &Plan) -> Result<Values> {
        let (mut all, mut longest) = (Vec::new(), Vec::new());
        let mut steady = FrontEnd::connect(&self.lasthop.socket_of(STEADY), SETTLES)?;
        for _ in 0..plan.rounds {
            let mut wait = Duration::ZERO;
            let times = self.front_ends.connect(|| {
                let asked = Instant::now();
                steady.get_features()?;
                wait = wait.max(asked.elapsed());
                Ok(())
            })?;
            all.extend(times.last().map(|time| ms(*time)));
            longest.push(ms(wait));
            self.front_ends.disconnect();
            stop::sleep(Duration::from_millis(500))?;
        }
        self.front_ends.connect(|| Ok(()))?;
        Ok(vec![
            ("all connect, ms", all),
            ("longest reply to one that is up meanwhile, ms", longest),
        ])
    }

    fn pids(&self) -> Result<Vec<u32>> {
        let of = |name: &&str| match *name {
            "supervisor" => Some(self.lasthop.supervisor()),
            name => self.lasthop.program(name),
        };
        let pids = PROCESSES.iter().map(of).collect::<Option<Vec<_>>>();
        pids.context("a process is missing")
    }

    /// CPU time and memory of the processes while nothing happens.
    fn rest(&mut self, plan: &Plan) -> Result<Values> {
        stop::sleep(SETTLES)?;
        let pids = self.pids()?;
        let used = |pids: &[u32]| -> Vec<f64> {
            pids.iter().map(|pid| procfs::cpu_seconds(*pid)).collect()
        };
        let (began, before) = (Instant::now(), used(&pids));
        stop::sleep(plan.idle.max(IDLE))?;
        let seconds = began.elapsed().as_secs_f64();
        let percent: Vec<f64> = used(&pids)
            .into_iter()
            .zip(before)
            .map(|(now, before)| 100.0 * (now - before) / seconds)
            .collect();
        let mib = |kib: u64| kib as f64 / 1024.0;
        let touched = |pid: u32| mib(procfs::private_kib(pid));
        let size = procfs::status(pids[1], "VmSize").unwrap_or_default();
        let size: u64 = size.trim_end_matches(" kB").trim().parse().unwrap_or(0);
        Ok(vec![
            ("idle CPU of the supervisor, % of a core", vec![percent[0]]),
            ("idle CPU of the switch", vec![percent[1]]),
            ("idle CPU of control", vec![percent[2]]),
            ("memory of the supervisor, MiB", vec![touched(pids[0])]),
            ("memory of the switch", vec![touched(pids[1])]),
            ("memory of control", vec![touched(pids[2])]),
            ("address space of the switch, MiB", vec![mib(size)]),
        ])
    }

    /// Runs a command of the command line a few times. Returns the times in milliseconds.
    fn timed(&self, plan: &Plan, words: impl Fn(usize) -> Vec<String>) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        for round in 0..plan.rounds as usize {
            let words = words(round);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let began = Instant::now();
            self.lasthop.ask(&words)?;
            times.push(ms(began.elapsed()));
        }
        Ok(times)
    }

    /// Changes of the desired state, by a file and by the API.
    fn changes(&mut self, plan: &Plan) -> Result<Values> {
        let file = self.lasthop.folder().with_file_name("changed.toml");
        let apply = |text: &dyn Fn(usize) -> String| {
            self.timed(plan, |round| {
                fs::write(&file, text(round)).expect("the file can be written");
                vec!["apply".to_owned(), file.display().to_string()]
            })
        };
        let guests = self.guests;
        let one =
            apply(&|round| Self::configuration(guests, Some((7 * round % guests, 20 + round))))?;
        let all = apply(&|round| Self::configuration(guests, None) + &list(round))?;
        let command = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let add = self.timed(plan, |round| {
            command(&format!(
                "port add x{round} --kind vhost-user --socket x{round}.sock --segment default"
            ))
        })?;
        let remove = self.timed(plan, |round| command(&format!("port remove x{round}")))?;
        Ok(vec![
            ("apply of one changed port, ms", one),
            ("apply of a changed list of all ports, ms", all),
            ("port add, ms", add),
            ("port remove, ms", remove),
        ])
    }

    fn queries(&mut self, plan: &Plan) -> Result<Values> {
        let command = |words: &'static [&'static str]| {
            self.timed(plan, |_| {
                words.iter().map(|word| (*word).to_owned()).collect()
            })
        };
        let mut values = vec![
            ("status, ms", command(&["status"])?),
            ("stats, ms", command(&["stats"])?),
            ("port list, ms", command(&["port", "list"])?),
            ("port show, ms", command(&["port", "show", "p0"])?),
        ];
        let metrics = (0..plan.rounds).map(|_| self.metrics());
        values.push(("/metrics, ms", metrics.collect::<Result<_>>()?));
        let guests = self.learn()?;
        values.push((
            "fdb list of 20 000 stations, ms",
            command(&["fdb", "list"])?,
        ));
        drop(guests);
        Ok(values)
    }

    /// Returns the time of a request for the metrics.
    fn metrics(&self) -> Result<f64> {
        let began = Instant::now();
        let mut socket = UnixStream::connect(self.lasthop.folder().join("api.sock"))?;
        socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: l\r\nConnection: close\r\n\r\n")?;
        let mut page = String::new();
        socket.read_to_string(&mut page)?;
        ensure!(page.starts_with("HTTP/1.1 200"), "{page:.80}");
        Ok(ms(began.elapsed()))
    }

    /// Has control learn stations of guests of their own. They stay as long as the guests.
    fn learn(&self) -> Result<Vec<FakeGuest>> {
        let mut guests = Vec::new();
        for port in 0..STATIONS / OF_PORT {
            let (name, socket) = (format!("s{port}"), format!("s{port}.sock"));
            self.lasthop
                .ask(&e2e::lasthop::add_port(&name, &socket, "default"))?;
            let path = self.lasthop.socket_of(&name);
            guests.push(FakeGuest::connect(&path, GuestConfig::default())?);
        }
        let learned = || {
            let fdb = self.lasthop.ask(&["fdb", "list", "--json"]);
            fdb.unwrap_or_default().matches("\"52:54:01:").count()
        };
        let began = Instant::now();
        while learned() < STATIONS {
            ensure!(began.elapsed() < LEARNS, "only {} are learned", learned());
            // Few frames of a port may wait for control at a time.
            for first in (0..OF_PORT as u32).step_by(AT_ONCE) {
                for (port, guest) in (0..).zip(&mut guests) {
                    for number in first..first + AT_ONCE as u32 {
                        let [.., a, b] = number.to_be_bytes();
                        let source = [0x52, 0x54, 1, port, a, b];
                        // Nobody has this address: the frames are flooded.
                        let frame = ethernet([0x52, 0x54, 0, 0, 0, 1], source, 0x88b5, &[0; 46]);
                        guest.send(&frame)?;
                    }
                }
                stop::sleep(Duration::from_millis(2))?;
            }
        }
        Ok(guests)
    }

    /// `kill -9` of the supervisor, so that all processes end, and a start.
    fn death(&mut self, plan: &Plan) -> Result<Values> {
        let (mut all, mut middle) = (Vec::new(), Vec::new());
        for _ in 0..plan.rounds {
            let pids = self.pids()?;
            send(pids[0], Signal::KILL);
            while !pids.iter().all(|pid| procfs::is_gone(*pid)) {
                stop::sleep(Duration::from_millis(1))?;
            }
            self.front_ends.disconnect();
            self.lasthop.restart()?;
            let times = self.front_ends.connect(|| Ok(()))?;
            all.extend(times.last().map(|time| ms(*time)));
            middle.push(ms(times[times.len() / 2]));
            let api: PathBuf = self.lasthop.folder().join("api.sock");
            while !listens(&api) || self.lasthop.ask(&["status"]).is_err() {
                stop::sleep(Duration::from_millis(10))?;
            }
        }
        Ok(vec![
            ("after the supervisor's death: half are served, ms", middle),
            ("after the supervisor's death: all are served, ms", all),
        ])
    }
}
