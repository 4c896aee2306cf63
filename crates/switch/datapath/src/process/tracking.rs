//! The table of connections of this process: taken over from the one before, and used by all
//! workers.
//!
//! ```text
//! supervisor   the file                         control   the settings (Track)
//!      \                                         /
//!       file and settings --> the table is taken over, at once or, in a new pair, when the other
//!                             switch writes to it no more (TakeOver)
//! ```

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use conntrack::table::{Layout, PortLimits};
use conntrack::{Millis, Settings, Table, Timeouts};
use ipc::connections::{AdoptedTable, ConnectionSettings};
use ipc::driving;
use ipc::switching::{Clients, PortConfig};
use port::PortId;
use sys::foreign::ForeignFd;

use super::attach::Attachment;
use super::sweeps::Progress;
use crate::forward::tracking::Tracking;
use crate::worker::workers::Workers;

/// The table, as far as it is there.
#[derive(Default)]
pub(super) struct ConnectionTable {
    /// Its file, until the table is taken over.
    file: Option<OwnedFd>,
    /// The filter of prefilters, if there is one, until then.
    filter: Option<OwnedFd>,
    /// The settings, with the length that a file needs.
    settings: Option<ConnectionSettings>,
    table: Option<Table>,
    /// Findings in the file.
    pub(super) adopted: Option<AdoptedTable>,
    /// Number of the command that waits for the file.
    awaits: Option<u64>,
}

/// The process around the table.
pub(super) struct Around<'a> {
    pub(super) workers: &'a Workers,
    pub(super) ports: &'a BTreeMap<PortId, Attachment>,
    /// Another switch may write to the file.
    pub(super) waits: bool,
}

/// The time of the table, in all processes: milliseconds of the machine's monotonic clock.
fn now() -> Millis {
    sys::time::monotonic().as_millis() as Millis
}

impl ConnectionTable {
    /// Forgets the command of a control that is gone.
    pub(super) fn control_disconnected(&mut self) {
        self.awaits = None;
    }

    /// Checks that these settings fit the table or its file.
    fn check(&self, settings: &ConnectionSettings) -> Result<(), String> {
        let layout = Layout::new(settings.max);
        if let Some(table) = &self.table
            && table.capacity() != layout.capacity()
        {
            let capacity = table.capacity();
            return Err(format!("the table is one of {capacity} connections"));
        }
        let Some(file) = &self.file else {
            return Ok(());
        };
        let is_sound = sys::file::is_fixed(file).is_ok_and(|fixed| fixed)
            && sys::file::len(file).is_ok_and(|len| len == layout.bytes());
        is_sound
            .then_some(())
            .ok_or_else(|| "the file of the table has another length".to_owned())
    }

    /// Takes over what the file holds. No other process writes to it.
    fn adopt(&mut self) -> Result<(), String> {
        let (Some(file), Some(settings)) = (self.file.take(), &self.settings) else {
            return Ok(());
        };
        let layout = Layout::new(settings.max);
        let seed = || super::random_seed().map_err(|error| error.to_string());
        let adopted = match self.filter.take() {
            Some(filter) => {
                let files = (&file, filter.as_fd());
                Table::map_filtered(files, layout, (seed()?, seed()?), now())
            }
            None => Table::map(&file, layout, seed()?, now()),
        };
        let (table, adoption) = adopted.map_err(|error| error.to_string())?;
        let (connections, dropped) = (adoption.connections, adoption.dropped);
        match adoption.is_new {
            true => tracing::info!("the table of connections is new: it starts empty"),
            false => tracing::info!(connections, dropped, "the table of connections continues"),
        }
        self.adopted = Some(AdoptedTable {
            is_new: adoption.is_new,
            connections,
        });
        self.table = Some(table);
        Ok(())
    }

    /// Returns what each worker gets; `None` without a table.
    fn tracking(&self) -> Option<Result<Tracking, String>> {
        let (table, settings) = (self.table.clone()?, self.settings.as_ref()?);
        let own = Settings {
            timeouts: Timeouts::of(&settings.timeouts_ms),
            pick_up: settings.pick_up,
            strict: settings.strict,
        };
        let tracking = Tracking::new(table, own, settings.recovery_ms);
        Some(tracking.ok_or_else(too_many_threads))
    }

    /// Takes the file of the table and the filter, unless there is a table. Returns the command
    /// that has waited for it, with its outcome.
    pub(super) fn set_files(
        &mut self,
        files: Vec<ForeignFd>,
        around: &Around<'_>,
    ) -> Option<(u64, Result<(), String>)> {
        if self.table.is_none() && self.file.is_none() {
            let mut files = files.into_iter().map(ForeignFd::vouch);
            (self.file, self.filter) = (files.next(), files.next());
        }
        let (number, settings) = (self.awaits.take()?, self.settings.take()?);
        Some((number, self.begin(settings, around)))
    }

    /// Tracks connections with these settings, at once or when the file has come: the supervisor
    /// has sent it by another link.
    pub(super) fn track(
        &mut self,
        number: u64,
        settings: ConnectionSettings,
        around: &Around<'_>,
    ) -> Result<Progress, String> {
        if self.table.is_none() && self.file.is_none() {
            (self.awaits, self.settings) = (Some(number), Some(settings));
            return Ok(Progress::Started);
        }
        self.begin(settings, around).map(|()| Progress::Done)
    }

    fn begin(&mut self, settings: ConnectionSettings, around: &Around<'_>) -> Result<(), String> {
        self.check(&settings)?;
        let before = self.settings.replace(settings);
        if around.waits {
            return Ok(());
        }
        let began = self.take_over(around);
        if began.is_err() {
            self.settings = before;
            // The workers have left the table, or have it with the settings of before.
            let _ = self.share(around.workers);
        }
        began
    }

    /// Takes over the table, if there is one, and gives it to the workers. No other process writes
    /// to it.
    pub(super) fn take_over(&mut self, around: &Around<'_>) -> Result<(), String> {
        self.adopt()?;
        let ports = around.ports.values();
        ports.for_each(|port| self.limit(port.config(), around.workers));
        self.share(around.workers)
    }

    /// Gives the workers the table, if there is one, with the settings.
    pub(super) fn share(&self, workers: &Workers) -> Result<(), String> {
        let Some(tracking) = self.tracking() else {
            return Ok(());
        };
        let tracking = tracking?;
        let all = workers.each(move |w| w.switch.set_tracking(Some(tracking.clone())));
        match all.contains(&false) {
            true => {
                self.leave(workers);
                Err(too_many_threads())
            }
            false => Ok(()),
        }
    }

    /// Has the workers leave the table: nothing is written to it then.
    pub(super) fn leave(&self, workers: &Workers) {
        if self.table.is_some() {
            workers.each(|w| w.switch.set_tracking(None));
        }
    }

    /// Sets the limits of a port's connections.
    pub(super) fn limit(&self, port: &PortConfig, workers: &Workers) {
        if let Some(table) = &self.table {
            let id = port.id;
            let limits = workers.first(move |w| w.switch.limits(id));
            let limits = PortLimits {
                guest: !driving::is_address(&port.socket),
                connections: limits.connections,
            };
            table.set_limits(id.0 as u16, limits);
        }
    }

    /// Clears the totals of a port with a new number.
    pub(super) fn clear(&self, id: PortId) {
        if let Some(table) = &self.table {
            table.clear_port(id.0 as u16);
        }
    }

    /// Notes a guest that has started its first queue since its VMM has connected: it may have come
    /// from another host, with connections that are not known here. Processes, which connect at
    /// will, do not move.
    pub(super) fn greet(&self, port: &PortConfig) {
        if let Some(table) = &self.table
            && port.clients == Clients::VhostUser
            && !driving::is_address(&port.socket)
        {
            table.greet(port.id.0 as u16, now());
        }
    }
}

fn too_many_threads() -> String {
    "the table has too many threads".to_owned()
}
