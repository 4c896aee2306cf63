//! Captures: commands to the switch.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Weak};

use api::v1::{CAPTURE_BUFFER, CaptureDirection, CaptureQuery, Problem, ProblemKind};
use filter::Filter;
use ipc::capture::{CaptureCommand, MAX_CAPTURES, MAX_RING, MIN_RING, Region, Way};
use ipc::switching::{SwitchCommand, SwitchEvent};
use port::PortId;

use crate::command::StartedCapture;
use crate::engine::links::switch::SwitchLink;
use crate::engine::{SharedEngine, unavailable};

/// Bytes of the rings of all captures together, in each forwarding thread: enough for
/// [`MAX_CAPTURES`] with rings of the default length, or for two with the longest.
const ALL_RINGS: u32 = MAX_CAPTURES as u32 * CAPTURE_BUFFER;

/// The open captures.
#[derive(Debug, Default)]
pub(in crate::engine) struct Captures {
    last: u32,
    /// Captures by number.
    open: BTreeMap<u32, Capture>,
}

#[derive(Debug)]
struct Capture {
    port: PortId,
    /// Expires when the client's side of the capture is gone.
    held: Weak<()>,
    /// Bytes of its ring in each thread.
    ring: u32,
    /// Frames that end before the switch are not missed.
    keeps_prefilter: bool,
}

impl Captures {
    /// Checks that the rings of the captures in use leave room for another.
    fn room_for(&self, ring: u32) -> Result<(), Problem> {
        let used = self
            .open
            .values()
            .filter(|open| open.held.strong_count() > 0);
        let left = ALL_RINGS - used.map(|open| open.ring).sum::<u32>();
        if ring > left {
            return Err(Problem::unavailable(format!(
                "buffers of all captures are limited to {ALL_RINGS} bytes, {left} are free"
            ))
            .with_field("buffer"));
        }
        Ok(())
    }

    /// Returns whether all frames of a port are captured, denied ones included.
    pub(in crate::engine) fn needs_all(&self, port: PortId) -> bool {
        let of = |capture: &&Capture| capture.port == port && !capture.keeps_prefilter;
        let mut open = self.open.values().filter(of);
        open.any(|capture| capture.held.strong_count() > 0)
    }

    /// Ends a capture.
    pub(in crate::engine) fn end(
        &mut self,
        id: u32,
        switch: &mut SwitchLink,
    ) -> Result<(), Problem> {
        if self.open.remove(&id).is_none() {
            let detail = format!("there is no capture {id}");
            return Err(Problem::new(ProblemKind::NotFound, detail));
        }
        let ended = switch.send(SwitchCommand::EndCapture(id));
        ended.map(drop).map_err(unavailable)
    }

    /// Ends all captures.
    pub(in crate::engine) fn end_all(&mut self, switch: &mut SwitchLink) -> io::Result<()> {
        while let Some((id, _)) = self.open.pop_first() {
            switch.send(SwitchCommand::EndCapture(id))?;
        }
        Ok(())
    }

    /// Ends captures whose clients are gone without having ended them.
    pub(in crate::engine) fn end_orphans(&mut self, switch: &mut SwitchLink) -> io::Result<()> {
        let open = self.open.iter();
        let orphans = open.filter(|(_, capture)| capture.held.strong_count() == 0);
        for id in orphans.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.open.remove(&id);
            switch.send(SwitchCommand::EndCapture(id))?;
        }
        Ok(())
    }
}

fn invalid(field: &str, detail: impl Into<String>) -> Problem {
    Problem::new(ProblemKind::Invalid, detail).with_field(field)
}

/// Validates a request and returns the command to the switch.
fn command(id: u32, port: PortId, query: &CaptureQuery) -> Result<CaptureCommand, Problem> {
    Filter::parse(&query.filter).map_err(|error| invalid("filter", error.to_string()))?;
    if query.snaplen == 0 {
        return Err(invalid("snaplen", "must be at least 1"));
    }
    if query.count == Some(0) {
        return Err(invalid("count", "must be at least 1"));
    }
    let ring = query.buffer;
    if !ring.is_power_of_two() || !(MIN_RING..=MAX_RING).contains(&ring) {
        let detail = format!("must be a power of two from {MIN_RING} to {MAX_RING}");
        return Err(invalid("buffer", detail));
    }
    Ok(CaptureCommand {
        id,
        port,
        filter: query.filter.clone(),
        snaplen: query.snaplen,
        way: match query.direction {
            CaptureDirection::In => Some(Way::In),
            CaptureDirection::Out => Some(Way::Out),
            CaptureDirection::Both => None,
        },
        only_drops: query.drops,
        ring,
    })
}

/// Starts to capture a port's frames.
pub(in crate::engine) async fn capture(
    engine: &SharedEngine<'_>,
    name: &str,
    query: &CaptureQuery,
) -> Result<StartedCapture, Problem> {
    let (id, ring, held, reply) = engine.with(|e| {
        let mut ports = e.ports.configs.values();
        let port = ports.find(|port| port.name == name).map(|port| port.id);
        let port = port.ok_or_else(|| Problem::no_such("port", name))?;
        e.captures.last = e.captures.last.wrapping_add(1);
        let id = e.captures.last;
        let command = command(id, port, query)?;
        let ring = command.ring;
        e.captures.room_for(ring)?;
        let held = Arc::new(());
        if !query.keep_prefilter {
            // It shows frames that are denied.
            let now = e.now();
            e.forwarding.prefilters.stop(now, |of| of == port);
        }
        let capture = Capture {
            port,
            held: Arc::downgrade(&held),
            ring,
            keeps_prefilter: query.keep_prefilter,
        };
        e.captures.open.insert(id, capture);
        let order = SwitchCommand::Capture(command);
        Ok((id, ring, held, e.links.switch.request(order, Vec::new())))
    })?;
    let parts = reply.await.map_err(|error| {
        engine.with(|e| e.captures.open.remove(&id));
        unavailable(error)
    })?;
    let memory = parts.into_iter().find_map(|(event, mut fds)| match event {
        SwitchEvent::Capture { threads, .. } => fds.pop().map(|file| (file, threads)),
        _ => None,
    });
    let (file, threads) =
        memory.ok_or_else(|| Problem::internal("the switch sent no memory for a capture"))?;
    let region = Region::map(&file, threads.into(), ring).map_err(unavailable)?;
    let reader = region.reader().map_err(unavailable)?;
    Ok(StartedCapture {
        number: id,
        reader,
        held,
    })
}
