//! Control's view of the table of connections, which the switch writes.

use std::os::fd::OwnedFd;

use conntrack::table::{Layout, Reader};
use conntrack::{Millis, Settings, Timeouts};
use ipc::connections::ConnectionSettings;

/// The time of the table: milliseconds of the machine's monotonic clock, modulo 2^32, in all
/// processes.
#[must_use]
pub fn now() -> Millis {
    sys::time::monotonic().as_millis() as Millis
}

/// The table of connections, as the supervisor has sent it; none until a rule needs it.
#[derive(Debug, Default)]
pub struct ConnectionTable {
    /// Its file, and the view of it once the switch has made a table of this layout.
    file: Option<(OwnedFd, Option<Reader>)>,
    /// Settings that the switch has.
    settings: ConnectionSettings,
}

impl ConnectionTable {
    /// Returns whether the switch has the table.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.file.is_some()
    }

    /// Returns whether the switch has these settings.
    #[must_use]
    pub fn has(&self, settings: &ConnectionSettings) -> bool {
        self.is_there() && self.settings == *settings
    }

    /// Notes that the switch has these settings, and the table in this file, if that is new here.
    pub fn set(&mut self, file: Option<OwnedFd>, settings: ConnectionSettings) {
        self.settings = settings;
        if let Some(file) = file {
            self.file = Some((file, None));
        }
    }

    /// Returns the view of the table; `None` without one, and as long as the switch has not taken
    /// it over, as during an upgrade.
    #[must_use]
    pub fn reader(&mut self) -> Option<&Reader> {
        let (file, reader) = self.file.as_mut()?;
        if reader.is_none() {
            let layout = Layout::new(self.settings.max);
            *reader = Reader::map(file, layout).ok();
        }
        reader.as_ref()
    }

    /// Returns the settings that the switch has.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let ConnectionSettings {
            pick_up, strict, ..
        } = self.settings;
        Settings {
            timeouts: Timeouts::of(&self.settings.timeouts_ms),
            pick_up,
            strict,
        }
    }
}
