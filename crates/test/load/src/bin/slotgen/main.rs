//! `slotgen`: the loops of netmap's programs, over the calls of netmap's C interface and nothing
//! of Lasthop's. It takes their part in tests and benchmarks.
//! [`USAGE`] has its options.

mod abi;
mod frame;
mod modes;
mod port;

use std::ffi::c_int;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use modes::{STOP, Totals};

const USAGE: &str = "\
slotgen tx|rx|ping|pong|bridge|lb -i NAME [options]
slotgen -f tx|rx|ping|pong -i NAME [options]          as pkt-gen; in any order
  -n COUNT   frames, 0: without end      -b BATCH   frames a wait
  -l LEN     bytes of a frame            -S, -D     source and destination address
  -H LEN     virtio header: 0, 10, 12    -C CONF    TXSLOTS,RXSLOTS,TXRINGS,RXRINGS
  -w SEC     wait after opening          -R RATE    frames a second
  -c         copy (bridge)               -B COUNT   extra buffers      -p COUNT  pipes (lb)
  -s         sync in a busy loop, no poll
  -V         number the frames, and check numbers and bytes
  -a ADDRESS pong: answer ARP and ICMP echo requests for this IPv4 address, and nothing else
  -X RULE    tx: break a rule in the end: buffer, length, head or chain
  -T SEC     end after so long           -q SEC     silence after which rx ends, default 1
";

/// Options of the command line.
pub(crate) struct Options {
    pub(crate) names: Vec<String>,
    pub(crate) count: u64,
    pub(crate) batch: u64,
    pub(crate) len: usize,
    pub(crate) stations: Stations,
    pub(crate) header: usize,
    pub(crate) slots: (u32, u32),
    pub(crate) rings: (u16, u16),
    pub(crate) extra: u32,
    pub(crate) pipes: u32,
    pub(crate) copies: bool,
    pub(crate) verify: bool,
    pub(crate) breaks: Option<String>,
    pub(crate) times: Times,
}

/// Addresses of frames.
pub(crate) struct Stations {
    pub(crate) source: [u8; 6],
    pub(crate) destination: [u8; 6],
    /// The address for which requests are answered.
    pub(crate) answers: Option<Ipv4Addr>,
}

/// Waits and ends.
pub(crate) struct Times {
    pub(crate) wait: f64,
    pub(crate) rate: u64,
    pub(crate) busy: bool,
    pub(crate) seconds: Option<f64>,
    pub(crate) silence: f64,
}

fn address(text: &str) -> Option<[u8; 6]> {
    let bytes = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok());
    bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()
}

/// The request of a command line.
enum Asked {
    Usage,
    Run(Mode, Options),
}

/// A mode, by its name.
#[derive(Clone, Copy)]
struct Mode {
    name: &'static str,
    run: fn(&Options) -> io::Result<Totals>,
}

const MODES: [Mode; 6] = [
    Mode {
        name: "tx",
        run: modes::tx,
    },
    Mode {
        name: "rx",
        run: modes::rx,
    },
    Mode {
        name: "ping",
        run: modes::ping,
    },
    Mode {
        name: "pong",
        run: modes::pong,
    },
    Mode {
        name: "bridge",
        run: modes::bridge,
    },
    Mode {
        name: "lb",
        run: modes::lb,
    },
];

fn mode(name: &str) -> Result<Mode, String> {
    let found = MODES.into_iter().find(|mode| mode.name == name);
    found.ok_or_else(|| format!("expected tx, rx, ping, pong, bridge or lb, found {name:?}"))
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut chosen = None;
    let mut options = Options {
        names: Vec::new(),
        count: 0,
        batch: 512,
        len: 60,
        stations: Stations {
            source: [2, 0, 0, 0, 0, 1],
            destination: [2, 0, 0, 0, 0, 2],
            answers: None,
        },
        header: 0,
        slots: (0, 0),
        rings: (0, 0),
        extra: 0,
        pipes: 2,
        copies: false,
        verify: false,
        breaks: None,
        times: Times {
            wait: 0.0,
            rate: 0,
            busy: false,
            seconds: None,
            silence: 1.0,
        },
    };
    while let Some(option) = arguments.next() {
        match option.as_str() {
            "-h" | "--help" => return Ok(Asked::Usage),
            "-f" => {
                let name = arguments.next().ok_or("-f needs a mode")?;
                chosen = Some(mode(&name)?);
            }
            name if !name.starts_with('-') => chosen = Some(mode(name)?),
            "-c" => options.copies = true,
            "-s" => options.times.busy = true,
            "-V" => options.verify = true,
            _ => {
                let value = arguments.next().ok_or(format!("{option} needs a value"))?;
                let done = set(&mut options, &option, &value);
                done.ok_or(format!("{option} {value}: not understood"))?;
            }
        }
    }
    if options.len < frame::SHORTEST || options.names.is_empty() {
        return Err("expected -i NAME, and frames of at least 60 bytes".into());
    }
    let mode = chosen.ok_or("expected a mode: tx, rx, ping, pong, bridge or lb")?;
    Ok(Asked::Run(mode, options))
}

fn set(options: &mut Options, option: &str, value: &str) -> Option<()> {
    let number = || value.parse::<u64>().ok();
    match option {
        "-i" => options.names.push(value.to_owned()),
        "-n" => options.count = number()?,
        "-b" => options.batch = number()?.max(1),
        "-l" => options.len = number()? as usize,
        "-S" => options.stations.source = address(value)?,
        "-D" => options.stations.destination = address(value)?,
        "-H" => options.header = number()? as usize,
        "-C" => {
            let mut parts = value.split(',').map(|part| part.parse::<u32>().ok());
            let mut next = || parts.next().map_or(Some(0), |part| part);
            options.slots = (next()?, next()?);
            options.rings = (next()? as u16, next()? as u16);
        }
        "-w" => options.times.wait = value.parse().ok()?,
        "-R" => options.times.rate = number()?,
        "-B" => options.extra = number()? as u32,
        "-p" => options.pipes = number()? as u32,
        "-T" => options.times.seconds = Some(value.parse().ok()?),
        "-a" => options.stations.answers = Some(value.parse().ok()?),
        "-X" => options.breaks = Some(value.to_owned()),
        "-q" => options.times.silence = value.parse().ok()?,
        _ => return None,
    }
    Some(())
}

extern "C" fn stop(_: c_int) {
    STOP.store(true, Ordering::Relaxed);
}

fn print(mode: &str, totals: &mut Totals) {
    let rate = totals.frames as f64 / totals.seconds.max(1e-9);
    let mut line = format!(
        "slotgen {mode}: frames={} bytes={} seconds={:.6} pps={rate:.0} waits={} lost={} twice={} \
         bad={}",
        totals.frames,
        totals.bytes,
        totals.seconds,
        totals.waits,
        totals.lost,
        totals.twice,
        totals.bad,
    );
    totals.trips.sort_unstable();
    if let (Some(least), Some(most)) = (totals.trips.first(), totals.trips.last()) {
        let at = |part: f64| totals.trips[((totals.trips.len() - 1) as f64 * part) as usize];
        let mean = totals.trips.iter().sum::<u64>() / totals.trips.len() as u64;
        line += &format!(
            " min_ns={least} mean_ns={mean} p50_ns={} p99_ns={} max_ns={most}",
            at(0.5),
            at(0.99)
        );
    }
    if !totals.note.is_empty() {
        line += &format!(" ({})", totals.note);
    }
    // A reader that is gone is no error.
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn main() -> ExitCode {
    let (mode, options) = match parse(std::env::args().skip(1)) {
        Ok(Asked::Run(mode, options)) => (mode, options),
        Ok(Asked::Usage) => {
            // A reader that is gone is no error.
            let _ = std::io::stdout().write_all(USAGE.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("slotgen: {error}; `slotgen --help` has the options");
            return ExitCode::from(2);
        }
    };
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler stores a flag.
        unsafe { libc::signal(signal, stop as extern "C" fn(c_int) as usize) };
    }
    match (mode.run)(&options) {
        Ok(mut totals) => {
            print(mode.name, &mut totals);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("slotgen: {error}");
            ExitCode::FAILURE
        }
    }
}
