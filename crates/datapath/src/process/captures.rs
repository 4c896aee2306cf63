//! Captures of ports: the session thread allocates the memory and adds the taps to the workers.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use channel::capture::{CaptureCommand, MAX_CAPTURES, Region};
use channel::switching::SwitchEvent;
use filter::Filter;
use port::PortId;

use super::Process;
use crate::tap::Tap;

/// A capture that has not ended.
#[derive(Debug)]
struct Open {
    port: PortId,
    region: Region,
}

/// All captures that have not ended.
#[derive(Debug, Default)]
pub(super) struct Captures {
    open: BTreeMap<u32, Open>,
}

impl Process {
    /// Starts a capture of a port, and sends its memory to control.
    pub(super) fn capture(&mut self, order: &CaptureCommand) -> Result<(), String> {
        if !self.ports.contains_key(&order.port) {
            return Err("no such port".to_owned());
        }
        let open = &mut self.captures.open;
        if open.len() >= MAX_CAPTURES || open.contains_key(&order.id) {
            return Err(format!("there are {} captures already", open.len()));
        }
        let filter = Filter::parse(&order.filter).map_err(|e| e.to_string())?;
        let filter = Arc::new(filter);
        let threads = self.workers.threads();
        let (region, file) = Region::create(threads, order.ring).map_err(|e| e.to_string())?;
        let writers = (0..threads).map(|thread| region.writer(thread));
        let writers: Vec<_> = writers
            .collect::<Result<_, _>>()
            .map_err(|e| e.to_string())?;
        for (thread, writer) in writers.into_iter().enumerate() {
            let tap = Tap {
                id: order.id,
                port: order.port,
                filter: Arc::clone(&filter),
                snaplen: order.snaplen,
                way: order.way,
                only_drops: order.only_drops,
                writer,
            };
            self.workers.on(thread, move |w| w.switch.add_tap(tap));
        }
        let port = order.port;
        self.captures.open.insert(order.id, Open { port, region });
        let report = SwitchEvent::Capture {
            id: order.id,
            threads: threads as u16,
        };
        self.report(&report, &[file.as_fd()]);
        Ok(())
    }

    /// Ends a capture. A capture that has ended before is no error.
    pub(super) fn end_capture(&mut self, id: u32) {
        if let Some(open) = self.captures.open.remove(&id) {
            self.workers.each(move |w| w.switch.remove_tap(id));
            open.region.end();
        }
    }

    /// Ends the captures of one port, or all captures.
    pub(super) fn end_captures(&mut self, of: Option<PortId>) {
        let open = self.captures.open.iter();
        let matches = |open: &Open| of.is_none_or(|port| port == open.port);
        let ids: Vec<u32> = open
            .filter(|(_, o)| matches(o))
            .map(|(id, _)| *id)
            .collect();
        ids.into_iter().for_each(|id| self.end_capture(id));
    }
}
