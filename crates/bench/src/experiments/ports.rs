//! What ports cost while nothing happens: CPU, memory, time to start.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use testkit::guest_ram::RegionSpec;
use testkit::{FakeGuest, GuestConfig};

use super::{Plan, progress};
use crate::peers::lasthop::Lasthop;
use crate::procfs::{CpuTimes, family_kib, family_seconds};
use crate::report::{Body, Report};
use crate::sample::wait_quiet;
use crate::stop;

const IDLE_PORTS: [u32; 3] = [1, 16, 64];
const GROWTH_PORTS: [u32; 4] = [1, 16, 64, 256];
/// Memory of a guest that never sends.
const GUEST_BYTES: u64 = 32 << 20;
/// What attaching stirs up has settled by then.
const SETTLE: Duration = Duration::from_secs(1);
/// How often a row is measured before it is given up.
const ATTEMPTS: usize = 3;
/// Share of a core that others may use meanwhile.
const QUIET: f64 = 0.1;

/// CPU use without traffic, by number of attached, connected ports.
pub(crate) fn idle(plan: &Plan) -> Result<Report> {
    let columns = vec!["ports", "CPU, % of a core"];
    rows(
        plan,
        "idle",
        "CPU use without traffic, all processes",
        columns,
        &IDLE_PORTS,
        idle_row,
    )
}

/// Memory and start-up time by number of ports.
pub(crate) fn growth(plan: &Plan) -> Result<Report> {
    let columns = vec![
        "ports",
        "start-up, ms",
        "attaching a guest, ms",
        "memory, MiB",
        "memory with guests, MiB",
        "KiB a port",
    ];
    let title = "Memory of all processes and start-up time";
    rows(plan, "growth", title, columns, &GROWTH_PORTS, growth_row)
}

/// Measures each row until nobody disturbs it, or it is given up.
fn rows(
    plan: &Plan,
    name: &'static str,
    title: &str,
    columns: Vec<&'static str>,
    ports: &[u32],
    row: impl Fn(&Plan, u32) -> Result<Vec<f64>>,
) -> Result<Report> {
    let (mut rows, mut notes, mut discarded) = (Vec::new(), Vec::new(), 0);
    for &ports in ports {
        let before = rows.len();
        for _ in 0..ATTEMPTS {
            wait_quiet(plan.patience / 20)?;
            let (start, cpu) = (Instant::now(), CpuTimes::now());
            let values = row(plan, ports)?;
            let cpu = CpuTimes::now().since(cpu);
            let others = (cpu.others() + cpu.steal) / start.elapsed().as_secs_f64();
            let shown: Vec<String> = columns
                .iter()
                .zip(&values)
                .map(|(column, value)| format!("{column} {value:.2}"))
                .collect();
            progress(&format!(
                "{name}: {} (others {:.0} %)",
                shown.join(", "),
                100.0 * others
            ));
            if others <= QUIET {
                rows.push(values);
                break;
            }
            discarded += 1;
        }
        if rows.len() == before {
            notes.push(format!("{ports} ports: given up, others used the machine"));
        }
    }
    if discarded > 0 {
        notes.push(format!(
            "{discarded} measurements were discarded because others used the machine"
        ));
    }
    Ok(Report::new(
        plan,
        name,
        title,
        notes,
        Body::Table { columns, rows },
    ))
}

fn idle_row(plan: &Plan, ports: u32) -> Result<Vec<f64>> {
    let lasthop = Lasthop::start(plan, ports)?;
    let guests = attach(&lasthop, ports)?;
    stop::sleep(SETTLE)?;
    let (start, used) = (Instant::now(), family_seconds(lasthop.pid()));
    stop::sleep(plan.idle)?;
    let used = family_seconds(lasthop.pid()) - used;
    let percent = 100.0 * used / start.elapsed().as_secs_f64();
    drop(guests);
    lasthop.end();
    Ok(vec![f64::from(ports), percent])
}

fn growth_row(plan: &Plan, ports: u32) -> Result<Vec<f64>> {
    let lasthop = Lasthop::start(plan, ports)?;
    let alone = mib(family_kib(lasthop.pid()));
    let begin = Instant::now();
    let guests = attach(&lasthop, ports)?;
    let attaching = begin.elapsed();
    stop::sleep(SETTLE)?;
    let attached = mib(family_kib(lasthop.pid()));
    let start_up = lasthop.start_up;
    drop(guests);
    lasthop.end();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let ports = f64::from(ports);
    Ok(vec![
        ports,
        ms(start_up),
        ms(attaching) / ports,
        alone,
        attached,
        attached * 1024.0 / ports,
    ])
}

/// One guest on each port, with its link up.
fn attach(lasthop: &Lasthop, ports: u32) -> Result<Vec<FakeGuest>> {
    let one = |port: u32| {
        stop::check()?;
        let config = GuestConfig {
            regions: Some(vec![RegionSpec::at(0, GUEST_BYTES)]),
            ..GuestConfig::default()
        };
        let number = u8::try_from(port % 250).unwrap_or_default() + 1;
        let mut guest = FakeGuest::connect(&lasthop.socket(port), config.guest(number))
            .with_context(|| format!("guest {port} is not attached"))?;
        guest
            .wait_link()
            .with_context(|| format!("guest {port} has no link"))?;
        Ok(guest)
    };
    (0..ports).map(one).collect()
}

fn mib(kib: u64) -> f64 {
    u32::try_from(kib).map_or(f64::MAX, f64::from) / 1024.0
}
