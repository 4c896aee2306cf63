//! The loops of netmap's programs.

use std::ffi::c_short;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libc::{POLLERR, POLLIN, POLLOUT, pollfd};

use crate::Options;
use crate::abi::{NS_BUF_CHANGED, NS_MOREFRAG, Slot};
use crate::frame;
use crate::port::{Port, RingRef, Wishes};

/// How long a receiver may keep the last slots of a sender. One that has ended never returns them.
const KEPT: Duration = Duration::from_secs(5);
/// How long the other side may take for anything else.
const PATIENCE: Duration = Duration::from_secs(20);
/// A signal asked for the end.
pub(crate) static STOP: AtomicBool = AtomicBool::new(false);

/// Numbers that are printed at the end.
#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
    pub(crate) waits: u64,
    pub(crate) lost: u64,
    pub(crate) twice: u64,
    pub(crate) bad: u64,
    pub(crate) seconds: f64,
    /// Round trips, nanoseconds.
    pub(crate) trips: Vec<u64>,
    pub(crate) note: &'static str,
}

fn stopped(options: &Options, since: Instant) -> bool {
    let limit = options.times.seconds.map(Duration::from_secs_f64);
    STOP.load(Ordering::Relaxed) || limit.is_some_and(|limit| since.elapsed() >= limit)
}

/// Waits for a port, or syncs it in a busy loop. Returns whether something may be there.
fn wait(port: &Port, options: &Options, events: c_short, millis: i32) -> io::Result<bool> {
    if options.times.busy {
        port.sync(events == POLLOUT)?;
        return Ok(true);
    }
    let mut fds = [pollfd {
        fd: port.fd,
        events,
        revents: 0,
    }];
    poll(&mut fds, millis)
}

fn poll(fds: &mut [pollfd], millis: i32) -> io::Result<bool> {
    // SAFETY: the array is as long as it says.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, millis) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::Interrupted => Ok(false),
            _ => Err(error),
        };
    }
    if fds.iter().any(|fd| fd.revents & POLLERR != 0) {
        return Err(io::Error::other("POLLERR"));
    }
    Ok(ready > 0)
}

fn wishes(options: &Options) -> Wishes {
    Wishes {
        slots: options.slots,
        rings: options.rings,
        extra: options.extra,
        header: options.header as u32,
    }
}

pub(crate) fn open(options: &Options) -> io::Result<Port> {
    let name = options.names.first().map_or("", String::as_str);
    let port = Port::open(name, wishes(options));
    let port = port.map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
    std::thread::sleep(Duration::from_secs_f64(options.times.wait));
    Ok(port)
}

/// Puts up to `most` frames into a ring; returns how many.
fn send_batch(ring: RingRef, options: &Options, template: &[u8], sent: u64, most: u64) -> u64 {
    let (mut head, mut count) = (ring.head(), 0);
    let buffer = ring.buffer_size() as usize;
    let slots = template.len().div_ceil(buffer) as u32;
    let mut space = ring.space();
    while count < most && space >= slots {
        for (at, piece) in template.chunks(buffer).enumerate() {
            let mut slot = ring.get(head);
            if options.verify || slot.flags & NS_BUF_CHANGED != 0 {
                // SAFETY: the slot is in front of `tail`, and this is the only borrow.
                let bytes = unsafe { ring.bytes(&slot) };
                bytes[..piece.len()].copy_from_slice(piece);
                if at == 0 && options.verify {
                    frame::set_number(&mut bytes[options.header..], sent + count);
                }
            }
            slot.len = piece.len() as u16;
            let is_last = at as u32 + 1 == slots;
            slot.flags = if is_last { 0 } else { NS_MOREFRAG };
            ring.set(head, slot);
            head = ring.next(head);
        }
        space -= slots;
        count += 1;
    }
    ring.advance(head);
    if count < most {
        // More slots are needed than there are.
        ring.set_cur(ring.tail());
    }
    count
}

pub(crate) fn tx(options: &Options) -> io::Result<Totals> {
    let port = open(options)?;
    let template = frame::build(
        options.len,
        options.stations.source,
        options.stations.destination,
        options.header,
    );
    for ring in &port.tx {
        for at in 0..ring.slots() {
            let mut slot = ring.get(at);
            slot.flags = NS_BUF_CHANGED;
            ring.set(at, slot);
        }
    }
    let mut totals = Totals::default();
    let since = Instant::now();
    let pause = (options.times.rate > 0)
        .then(|| Duration::from_secs_f64(options.batch as f64 / options.times.rate as f64));
    let mut due = since;
    while !stopped(options, since) && (options.count == 0 || totals.frames < options.count) {
        if let Some(pause) = pause {
            // What a wait has cost is not made up for.
            due = due.max(Instant::now() - pause) + pause;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        wait(&port, options, POLLOUT, 1000)?;
        totals.waits += 1;
        for ring in &port.tx {
            let mut most = options.batch;
            if options.count > 0 {
                most = most.min(options.count - totals.frames);
            }
            if ring.space() > 0 {
                totals.frames += send_batch(*ring, options, &template, totals.frames, most);
            }
        }
        if pause.is_some() {
            port.sync(true)?;
        }
    }
    port.sync(true)?;
    // All slots come back.
    let pending = |ring: &RingRef| ring.next(ring.tail()) != ring.head();
    let until = Instant::now() + KEPT;
    while port.tx.iter().any(pending) && Instant::now() < until {
        port.sync(true)?;
        std::thread::sleep(Duration::from_micros(50));
    }
    totals.lost = port.tx.iter().filter(|ring| pending(ring)).count() as u64;
    if let Some(rule) = &options.breaks {
        return break_rule(&port, rule);
    }
    totals.seconds = since.elapsed().as_secs_f64();
    totals.bytes = totals.frames * options.len as u64;
    Ok(totals)
}

/// Breaks a rule; returns the error that the library gives.
fn break_rule(port: &Port, rule: &str) -> io::Result<Totals> {
    let ring = *port.tx.first().ok_or(io::ErrorKind::NotFound)?;
    let (head, slot) = (ring.head(), ring.get(ring.head()));
    let count = match rule {
        "buffer" => {
            ring.set(
                head,
                Slot {
                    buf_idx: u32::MAX,
                    len: 60,
                    ..slot
                },
            );
            1
        }
        "length" => {
            ring.set(
                head,
                Slot {
                    len: u16::MAX,
                    flags: 0,
                    ..slot
                },
            );
            1
        }
        "chain" => {
            for at in 0..ring.slots() {
                let slot = ring.get(at);
                ring.set(
                    at,
                    Slot {
                        len: 60,
                        flags: NS_MOREFRAG,
                        ..slot
                    },
                );
            }
            ring.space()
        }
        // Beyond the last slot.
        _ => ring.slots(),
    };
    let to = if rule == "head" {
        ring.slots()
    } else {
        (head + count) % ring.slots()
    };
    ring.advance(to);
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        port.sync(true)?;
        let mut fds = [pollfd {
            fd: port.fd,
            events: POLLIN,
            revents: 0,
        }];
        poll(&mut fds, 10)?;
    }
    Ok(Totals::default())
}

/// Numbers of frames as they arrive.
#[derive(Default)]
struct Check {
    next: u64,
}

impl Check {
    fn see(&mut self, number: Option<u64>, totals: &mut Totals) {
        match number {
            None => totals.bad += 1,
            Some(number) if number < self.next => totals.twice += 1,
            Some(number) => {
                totals.lost += number - self.next;
                self.next = number + 1;
            }
        }
    }
}

pub(crate) fn rx(options: &Options) -> io::Result<Totals> {
    let port = open(options)?;
    let (mut totals, mut check) = (Totals::default(), Check::default());
    let mut since = Instant::now();
    let started = since;
    let mut last = since;
    let mut frame = Vec::new();
    while !stopped(options, started) && (options.count == 0 || totals.frames < options.count) {
        // Before the first frame there is no silence to notice.
        let limit = if totals.frames == 0 { 1000 } else { 100 };
        if !wait(&port, options, POLLIN, limit)? && totals.frames > 0 {
            // Silence is the end, unless it says how long.
            if last.elapsed() > Duration::from_secs_f64(options.times.silence) {
                break;
            }
            continue;
        }
        totals.waits += 1;
        for ring in &port.rx {
            let mut head = ring.head();
            let most = ring.space().min(options.batch as u32);
            if most > 0 && totals.frames == 0 {
                since = Instant::now();
            }
            for _ in 0..most {
                let slot = ring.get(head);
                totals.bytes += u64::from(slot.len);
                let is_last = slot.flags & NS_MOREFRAG == 0;
                if options.verify {
                    // SAFETY: the slot is in front of `tail`, and this is the only borrow.
                    let bytes = unsafe { ring.bytes(&slot) };
                    frame.extend_from_slice(&bytes[..usize::from(slot.len)]);
                    if is_last {
                        let whole = frame.get(options.header..).unwrap_or(&[]);
                        check.see(frame::number(whole), &mut totals);
                        frame.clear();
                    }
                }
                totals.frames += u64::from(is_last);
                head = ring.next(head);
            }
            if most > 0 {
                ring.advance(head);
                last = Instant::now();
            }
        }
    }
    for ring in &port.rx {
        ring.advance(ring.head());
    }
    port.sync(false)?;
    totals.seconds = last.saturating_duration_since(since).as_secs_f64();
    Ok(totals)
}

pub(crate) fn ping(options: &Options) -> io::Result<Totals> {
    let port = open(options)?;
    let template = frame::build(
        options.len,
        options.stations.source,
        options.stations.destination,
        options.header,
    );
    let (Some(tx), Some(rx)) = (port.tx.first(), port.rx.first()) else {
        return Err(io::Error::other("no rings"));
    };
    let mut totals = Totals::default();
    let since = Instant::now();
    let count = if options.count == 0 {
        1000
    } else {
        options.count
    };
    'pings: for number in 0..count {
        if stopped(options, since) {
            break;
        }
        let slot = Slot {
            len: template.len() as u16,
            flags: 0,
            ..tx.get(tx.head())
        };
        // SAFETY: the slot is in front of `tail`, and this is the only borrow.
        let bytes = unsafe { tx.bytes(&slot) };
        bytes[..template.len()].copy_from_slice(&template);
        frame::set_number(&mut bytes[options.header..], number);
        tx.set(tx.head(), slot);
        let sent = Instant::now();
        tx.advance(tx.next(tx.head()));
        if options.times.busy {
            port.sync(true)?;
        }
        loop {
            if stopped(options, since) || sent.elapsed() > PATIENCE {
                totals.lost += 1;
                continue 'pings;
            }
            wait(&port, options, POLLIN, 1000)?;
            totals.waits += 1;
            let mut head = rx.head();
            let mut is_back = false;
            while head != rx.tail() {
                let slot = rx.get(head);
                // SAFETY: as above.
                let bytes = unsafe { rx.bytes(&slot) };
                let whole = bytes[..usize::from(slot.len)].get(options.header..);
                is_back |= frame::number(whole.unwrap_or(&[])) == Some(number);
                head = rx.next(head);
            }
            rx.advance(head);
            if is_back {
                break;
            }
        }
        totals.trips.push(sent.elapsed().as_nanos() as u64);
        totals.frames += 1;
    }
    totals.seconds = since.elapsed().as_secs_f64();
    Ok(totals)
}

pub(crate) fn pong(options: &Options) -> io::Result<Totals> {
    let port = open(options)?;
    let (Some(tx), Some(rx)) = (port.tx.first(), port.rx.first()) else {
        return Err(io::Error::other("no rings"));
    };
    let mut totals = Totals::default();
    let since = Instant::now();
    while !stopped(options, since) && (options.count == 0 || totals.frames < options.count) {
        wait(&port, options, POLLIN, 100)?;
        totals.waits += 1;
        let (mut from, mut to) = (rx.head(), tx.head());
        let mut space = tx.space();
        while from != rx.tail() {
            let slot = rx.get(from);
            from = rx.next(from);
            if space == 0 {
                totals.lost += 1;
                continue;
            }
            let out = Slot {
                len: slot.len,
                flags: 0,
                ..tx.get(to)
            };
            // SAFETY: both slots are in front of their `tail`, and their buffers are two.
            let (source, target) = unsafe { (rx.bytes(&slot), tx.bytes(&out)) };
            let len = usize::from(slot.len);
            target[..len].copy_from_slice(&source[..len]);
            let bytes = &mut target[options.header..len];
            let is_answer = match options.stations.answers {
                Some(address) => frame::answer(bytes, address, options.stations.source),
                None => {
                    frame::swap_addresses(bytes);
                    true
                }
            };
            if !is_answer {
                continue;
            }
            tx.set(to, out);
            to = tx.next(to);
            space -= 1;
            totals.frames += 1;
        }
        rx.advance(from);
        tx.advance(to);
        if options.times.busy {
            port.sync(true)?;
        }
    }
    port.sync(true)?;
    totals.seconds = since.elapsed().as_secs_f64();
    Ok(totals)
}

/// Moves frames from one ring to another: by swapping buffers, or by copying.
fn forward(rx: RingRef, tx: RingRef, most: u64, copies: bool) -> u64 {
    let (mut from, mut to) = (rx.head(), tx.head());
    let count = u64::from(rx.space().min(tx.space())).min(most);
    for _ in 0..count {
        let (mut source, mut target) = (rx.get(from), tx.get(to));
        if copies {
            // SAFETY: both slots are in front of their `tail`, and their buffers are two.
            let (source_bytes, target_bytes) = unsafe { (rx.bytes(&source), tx.bytes(&target)) };
            let len = usize::from(source.len);
            target_bytes[..len].copy_from_slice(&source_bytes[..len]);
            target.flags = source.flags & NS_MOREFRAG;
        } else {
            std::mem::swap(&mut source.buf_idx, &mut target.buf_idx);
            target.flags = NS_BUF_CHANGED | (source.flags & NS_MOREFRAG);
            source.flags = NS_BUF_CHANGED;
            rx.set(from, source);
        }
        target.len = source.len;
        tx.set(to, target);
        (from, to) = (rx.next(from), tx.next(to));
    }
    rx.advance(from);
    tx.advance(to);
    count
}

pub(crate) fn bridge(options: &Options) -> io::Result<Totals> {
    let [one, other] = &options.names[..] else {
        return Err(io::Error::other(
            "a bridge needs two names: -i ONE -i OTHER",
        ));
    };
    let one = Port::open(one, wishes(options))?;
    let other = Port::open(other, wishes(options))?;
    let zero_copy = one.register.mem_id == other.register.mem_id;
    let mut totals = Totals {
        note: if zero_copy {
            "zerocopy supported"
        } else {
            "zerocopy not supported"
        },
        ..Totals::default()
    };
    eprintln!("slotgen: {}", totals.note);
    let copies = options.copies || !zero_copy;
    let since = Instant::now();
    while !stopped(options, since) && (options.count == 0 || totals.frames < options.count) {
        let waiting = |port: &Port| port.rx.iter().map(|ring| ring.space()).sum::<u32>();
        let mut fds = [(&one, &other), (&other, &one)].map(|(port, peer)| pollfd {
            fd: port.fd,
            events: if waiting(port) == 0 { POLLIN } else { 0 }
                | if waiting(peer) > 0 { POLLOUT } else { 0 },
            revents: 0,
        });
        poll(&mut fds, 100)?;
        totals.waits += 1;
        for (from, to) in [(&one, &other), (&other, &one)] {
            for (rx, tx) in from.rx.iter().zip(&to.tx) {
                totals.frames += forward(*rx, *tx, options.batch, copies);
            }
            to.sync(true)?;
        }
    }
    totals.seconds = since.elapsed().as_secs_f64();
    Ok(totals)
}

/// Frames of a port go to pipes in turn, by swapping buffers; those that find no room wait in
/// extra buffers.
pub(crate) fn lb(options: &Options) -> io::Result<Totals> {
    let name = options.names.first().map_or("", String::as_str);
    let port = Port::open(name, wishes(options))?;
    let base = name.strip_prefix("netmap:").unwrap_or(name);
    let mut pipes = Vec::new();
    for number in 0..options.pipes {
        // As netmap's `lb`, which swaps buffers: in the memory of the port.
        let memory = port.register.mem_id;
        let pipe = format!("{base}{{{number}/xT@{memory}");
        let pipe = Port::open(&pipe, Wishes::default())?;
        if pipe.register.mem_id != port.register.mem_id {
            return Err(io::Error::other("a pipe has another memory than the port"));
        }
        pipes.push(pipe);
    }
    let mut spare = port.take_extra();
    let extra = spare.len();
    let mut waiting: Vec<std::collections::VecDeque<(u32, u16)>> = Vec::new();
    waiting.resize_with(pipes.len(), Default::default);
    let mut totals = Totals::default();
    let since = Instant::now();
    while !stopped(options, since) && (options.count == 0 || totals.frames < options.count) {
        let mut fds = vec![pollfd {
            fd: port.fd,
            events: POLLIN,
            revents: 0,
        }];
        for (pipe, waiting) in pipes.iter().zip(&waiting) {
            fds.push(pollfd {
                fd: pipe.fd,
                events: if waiting.is_empty() { 0 } else { POLLOUT },
                revents: 0,
            });
        }
        poll(&mut fds, 100)?;
        totals.waits += 1;
        for (pipe, waiting) in pipes.iter().zip(&mut waiting) {
            let Some(tx) = pipe.tx.first() else { continue };
            while tx.space() > 0
                && let Some((buf_idx, len)) = waiting.pop_front()
            {
                spare.push(put(*tx, buf_idx, len));
            }
        }
        for rx in &port.rx {
            for _ in 0..rx.space().min(options.batch as u32) {
                let at = rx.head();
                let mut slot = rx.get(at);
                let to = (totals.frames % pipes.len().max(1) as u64) as usize;
                let Some(tx) = pipes[to].tx.first() else {
                    continue;
                };
                totals.frames += 1;
                totals.bytes += u64::from(slot.len);
                if waiting[to].is_empty() && tx.space() > 0 {
                    slot.buf_idx = put(*tx, slot.buf_idx, slot.len);
                } else if let Some(free) = spare.pop() {
                    waiting[to].push_back((slot.buf_idx, slot.len));
                    slot.buf_idx = free;
                } else {
                    totals.lost += 1;
                }
                slot.flags = NS_BUF_CHANGED;
                rx.set(at, slot);
                rx.advance(rx.next(at));
            }
        }
        for pipe in &pipes {
            pipe.sync(true)?;
        }
    }
    let held = waiting.iter().flatten().map(|(buf_idx, _)| *buf_idx);
    spare.extend(held);
    totals.bad = (extra - spare.len().min(extra)) as u64;
    port.give_extra(&spare);
    totals.seconds = since.elapsed().as_secs_f64();
    Ok(totals)
}

/// Puts a buffer into the next slot; returns the one that was there.
fn put(tx: RingRef, buf_idx: u32, len: u16) -> u32 {
    let at = tx.head();
    let mut slot = tx.get(at);
    let before = std::mem::replace(&mut slot.buf_idx, buf_idx);
    (slot.len, slot.flags) = (len, NS_BUF_CHANGED);
    tx.set(at, slot);
    tx.advance(tx.next(at));
    before
}
