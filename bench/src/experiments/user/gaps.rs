//! Checked TCP streams through a user port while its driver or the switch is killed, or all is
//! upgraded: how long nothing arrives. Beside them, streams through passt, which is killed.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use sockets::{Errno, Id};
use testkit::process::send;

use super::super::parts::{Bound, Part, Run};
use super::guest::{Guest, now};
use super::servers::at;
use super::wires::AnyWire;
use super::world::{Kind, World};
use crate::peers::lasthop::Lasthop;
use crate::plan::{Plan, progress};
use crate::report::Report;
use crate::statistics::percentile;
use crate::stop;

static GAPS: Part = Part {
    name: "gaps",
    axes: [
        "1: nothing, 2: driver killed, 3: switch killed, 4: upgrade",
        "milliseconds without a byte, of a stream",
    ],
    published: "no figure",
};
static LOST: Part = Part {
    name: "lost",
    axes: [
        "1: nothing, 2: driver killed, 3: switch killed, 4: upgrade, 5: passt killed",
        "connections lost, of 32",
    ],
    published: "no figure",
};

/// Streams, and the port of their server.
const STREAMS: usize = 32;
const PORT: u16 = 7005;
/// A stream's bytes of each tick, and the tick.
const PIECE: usize = 1 << 10;
const TICK: Duration = Duration::from_millis(1);
/// Bytes that are on their way to the client and back at most.
const WINDOW: u64 = 512 << 10;
/// Flows outlive a driver once they are older than a second.
const OLD: Duration = Duration::from_millis(1500);
/// How long a trial is watched after the kill, and an upgrade after its end.
const WATCH: Duration = Duration::from_millis(800);
/// A stream without a byte for so long after a trial is lost.
const LOST_AFTER: Duration = Duration::from_secs(3);
/// Time between looks at the session with the switch, and for an upgrade.
const LOOK: Duration = Duration::from_millis(1);
const UPGRADE: Duration = Duration::from_secs(30);
const NOTES: [&str; 3] = [
    "a server outside sends 1 KiB a millisecond on each of 32 connections, which the guest checks \
     and sends back, and which the server checks again; the gap of a stream is the longest time \
     between two arrivals at the guest in a trial",
    "the client connects to the switch again where its session ends, at once",
    "p50 and p99 are of all streams of all trials of a row; 'nothing' is a trial without a kill",
];

/// An event in a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Nothing,
    Driver,
    Switch,
    Upgrade,
}

impl Event {
    const ALL: [Self; 4] = [Self::Nothing, Self::Driver, Self::Switch, Self::Upgrade];

    /// Place in the tables.
    fn place(self) -> f64 {
        match self {
            Self::Nothing => 1.0,
            Self::Driver => 2.0,
            Self::Switch => 3.0,
            Self::Upgrade => 4.0,
        }
    }

    fn trials(self, rounds: u32) -> u32 {
        match self {
            Self::Driver => 2 * rounds,
            _ => rounds,
        }
    }
}

/// A byte of every stream, by its place.
fn byte(place: u64) -> u8 {
    (place % 251) as u8
}

/// Bytes from a place on.
fn bytes(place: u64, room: &mut [u8]) {
    for (place, to) in (place..).zip(room) {
        *to = byte(place);
    }
}

fn are_right(place: u64, got: &[u8]) -> bool {
    (place..).zip(got).all(|(place, got)| *got == byte(place))
}

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    /// Connections that have ended or whose bytes were wrong.
    failed: AtomicU64,
}

/// The server, in a thread.
struct Server(Arc<Shared>);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

impl Server {
    fn start(world: &World) -> Result<Self> {
        let address = at(PORT);
        let listener = world.outside().inside(|| Ok(TcpListener::bind(address)?))?;
        listener.set_nonblocking(true)?;
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        thread::spawn(move || serve(&listener, &own));
        Ok(Self(shared))
    }

    fn failed(&self) -> u64 {
        self.0.failed.load(Ordering::Relaxed)
    }
}

/// One connection at the server.
struct Served {
    stream: TcpStream,
    sent: u64,
    got: u64,
}

fn serve(listener: &TcpListener, shared: &Shared) {
    let mut served: Vec<Served> = Vec::new();
    while !shared.is_over.load(Ordering::Relaxed) {
        while let Ok((stream, _)) = listener.accept() {
            let set_up = stream.set_nonblocking(true);
            let set_up = set_up.and_then(|()| stream.set_nodelay(true));
            if set_up.is_ok() {
                served.push(Served {
                    stream,
                    sent: 0,
                    got: 0,
                });
            }
        }
        served.retain_mut(|one| {
            let is_well = one.turn().is_ok();
            if !is_well {
                shared.failed.fetch_add(1, Ordering::Relaxed);
            }
            is_well
        });
        thread::sleep(TICK);
    }
}

impl Served {
    /// Sends a piece, and checks what has come back.
    fn turn(&mut self) -> std::io::Result<()> {
        let mut piece = [0; PIECE];
        if self.sent - self.got < WINDOW {
            bytes(self.sent, &mut piece);
            match self.stream.write(&piece) {
                Ok(len) => self.sent += len as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        loop {
            match self.stream.read(&mut piece) {
                Ok(len) if len > 0 && are_right(self.got, &piece[..len]) => self.got += len as u64,
                Ok(_) => return Err(ErrorKind::InvalidData.into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// One connection at the guest.
struct Stream {
    id: Id,
    got: u64,
    returned: u64,
    heard: Duration,
    /// The longest time without a byte in this trial.
    gap: Duration,
    is_lost: bool,
}

/// The guest with its streams.
struct Streams {
    all: Vec<Stream>,
    looked: Duration,
}

impl Streams {
    fn open(guest: &mut Guest, to: SocketAddr) -> Result<Self> {
        let one = |id| Stream {
            id,
            got: 0,
            returned: 0,
            heard: now(),
            gap: Duration::ZERO,
            is_lost: false,
        };
        let ids = guest.open(to, STREAMS)?;
        Ok(Self {
            all: ids.into_iter().map(one).collect(),
            looked: Duration::ZERO,
        })
    }

    /// Lets the streams flow, until a time at most, while `goes` says so.
    fn run(
        &mut self,
        guest: &mut Guest,
        until: Duration,
        mut goes: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let mut is_over = false;
        while !is_over && now() < until {
            // In short steps, because what is asked may be a system call.
            guest.run((now() + 10 * LOOK).min(until), |guest| self.turn(guest))?;
            is_over = !goes()?;
        }
        Ok(())
    }

    fn turn(&mut self, guest: &mut Guest) -> Result<bool> {
        if now().saturating_sub(self.looked) >= LOOK {
            self.looked = now();
            if guest.stack.wire_mut().is_lost() {
                reconnect(guest);
            }
        }
        let mut has_worked = false;
        for stream in self.all.iter_mut().filter(|stream| !stream.is_lost) {
            match stream.turn(guest) {
                Ok(worked) => has_worked |= worked,
                Err(error) => {
                    progress(&format!("user-gaps: a stream: {error:#}"));
                    stream.is_lost = true;
                }
            }
        }
        Ok(has_worked)
    }

    /// A trial begins.
    fn begin(&mut self) {
        let now = now();
        for stream in &mut self.all {
            (stream.heard, stream.gap) = (now, Duration::ZERO);
        }
    }

    /// A trial ends: the gaps of the living, in milliseconds.
    fn end(&mut self) -> Vec<f64> {
        let now = now();
        let living = self.all.iter_mut().filter(|stream| !stream.is_lost);
        let gap = |stream: &mut Stream| stream.gap.max(now.saturating_sub(stream.heard));
        living
            .map(|stream| 1e3 * gap(stream).as_secs_f64())
            .collect()
    }

    /// Streams that have ended, and those without a byte since the last trial began.
    fn lost(&self) -> usize {
        let is_dead = |stream: &&Stream| stream.is_lost || stream.gap.is_zero();
        self.all.iter().filter(is_dead).count()
    }
}

/// To a switch that has been replaced, once it is there.
fn reconnect(guest: &mut Guest) {
    if let AnyWire::Queues(queues) = guest.stack.wire_mut() {
        // The next look tries again.
        let _ = queues.reopen();
    }
}

impl Stream {
    /// Checks what has come, and sends it back.
    fn turn(&mut self, guest: &mut Guest) -> Result<bool> {
        let mut room = [0; 4 * PIECE];
        let mut has_worked = false;
        match guest.stack.receive(self.id, &mut room, false) {
            Ok(received) => {
                ensure!(received.len > 0, "the server has ended it");
                let got = &room[..received.len];
                ensure!(are_right(self.got, got), "wrong bytes");
                self.got += received.len as u64;
                let now = now();
                self.gap = self.gap.max(now.saturating_sub(self.heard));
                self.heard = now;
                has_worked = true;
            }
            Err(Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        let len = ((self.got - self.returned) as usize).min(room.len());
        if len > 0 {
            bytes(self.returned, &mut room[..len]);
            match guest.stack.send(self.id, &room[..len], None) {
                Ok(sent) => {
                    self.returned += sent as u64;
                    has_worked = true;
                }
                Err(Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(has_worked)
    }
}

pub(crate) fn gaps(plan: &Plan) -> Result<Report> {
    let mut run = Run::new(plan, "user-gaps", &NOTES, &[]);
    for event in Event::ALL {
        run.attempt(&format!("{event:?}"), |run| with_event(run, event))?;
    }
    match Kind::Passt.missing() {
        Some(reason) => run.note(&reason),
        None => run.attempt("passt", with_passt)?,
    }
    let p99 = run.median(&GAPS, Event::Driver.place(), "p99");
    run.aim("gap, driver killed", p99, Bound::AtMost(50.0), " ms");
    Ok(run.report("User networking: checked streams through kills and upgrades"))
}

/// All trials with an event.
fn with_event(run: &mut Run<'_>, event: Event) -> Result<()> {
    let plan = run.plan;
    let (world, mut guest) = World::start(plan, Kind::Lasthop, true)?;
    let server = Server::start(&world)?;
    let mut streams = Streams::open(&mut guest, at(PORT))?;
    streams.run(&mut guest, now() + OLD, || Ok(true))?;
    let mut all = Vec::new();
    run.take(&GAPS, "p50", event.place(), || {
        for trial in 1..=event.trials(plan.rounds) {
            stop::check()?;
            let gaps = one_trial(&world, &mut guest, &mut streams, event)?;
            let worst = percentile(&gaps, 1.0).unwrap_or_default();
            progress(&format!(
                "user-gaps: {event:?}, trial {trial}: {worst:.1} ms at most"
            ));
            all.extend(gaps);
        }
        percentile(&all, 0.5).context("no stream has lived")
    })?;
    for (way, share) in [("p99", 0.99), ("max", 1.0)] {
        run.add_way(&GAPS, way, percentile(&all, share).unwrap_or_default());
    }
    // A gap that has not ended is one of a lost connection.
    streams.begin();
    streams.run(&mut guest, now() + LOST_AFTER, || Ok(true))?;
    let lost = streams.lost().max(server.failed() as usize);
    run.add_way(&LOST, Kind::Lasthop.name(), lost as f64);
    Ok(())
}

fn one_trial(
    world: &World,
    guest: &mut Guest,
    streams: &mut Streams,
    event: Event,
) -> Result<Vec<f64>> {
    let lasthop = world.lasthop()?;
    let victim = match event {
        Event::Driver => Some("driver out"),
        Event::Switch => Some("switch"),
        Event::Nothing | Event::Upgrade => None,
    };
    let pid = victim.map(|name| pid_of(lasthop, name));
    // The question took its time.
    streams.run(guest, now() + WATCH / 4, || Ok(true))?;
    streams.begin();
    if let Some(pid) = pid {
        send(pid.context("a process to kill")?, Signal::KILL);
    }
    if event == Event::Upgrade {
        let mut command = lasthop.command(&["upgrade"]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut upgrade = command.spawn()?;
        streams.run(guest, now() + UPGRADE, || still_runs(&mut upgrade))?;
    }
    streams.run(guest, now() + WATCH, || Ok(true))?;
    let gaps = streams.end();
    // Flows of a new driver are old when it is killed next.
    streams.run(guest, now() + OLD - WATCH, || Ok(true))?;
    Ok(gaps)
}

/// One of Lasthop's processes, by its name in `lasthop status`.
fn pid_of(lasthop: &Lasthop, name: &str) -> Option<u32> {
    let pid = lasthop.try_process(name)?["pid"].as_u64()?;
    u32::try_from(pid).ok()
}

/// Whether a program still runs.
///
/// # Errors
/// It has failed.
fn still_runs(child: &mut Child) -> Result<bool> {
    let ended = child.try_wait()?;
    if let Some(status) = ended {
        ensure!(status.success(), "the upgrade failed");
    }
    Ok(ended.is_none())
}

fn with_passt(run: &mut Run<'_>) -> Result<()> {
    let (mut world, mut guest) = World::start(run.plan, Kind::Passt, false)?;
    let _server = Server::start(&world)?;
    let mut streams = Streams::open(&mut guest, at(PORT))?;
    streams.run(&mut guest, now() + OLD, || Ok(true))?;
    run.take(&LOST, Kind::Passt.name(), 5.0, || {
        world.replace()?;
        *guest.stack.wire_mut() = world.wire()?;
        streams.begin();
        streams.run(&mut guest, now() + LOST_AFTER, || Ok(true))?;
        Ok(streams.lost() as f64)
    })
}
