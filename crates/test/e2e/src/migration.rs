//! Live migration of a guest from one QEMU to another on the same host.
//!
//! QEMU 7.2 loses writes of guests under emulation now and then, also without any vhost-user
//! device: a guest that is to survive its move must not write much meanwhile.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::guest::Guest;
use testkit::wait::wait_for;

/// Bytes a second with which a migration takes a minute.
const SLOW: u64 = 1 << 20;
/// QEMU's own default.
const FAST: u64 = 128 << 20;

/// QEMU's report of a completed migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migrated {
    /// How long the guest stood still.
    pub downtime: Duration,
    /// How often its memory was gone through.
    pub passes: u64,
    /// How long it took in all.
    pub total: Duration,
}

impl Migrated {
    fn read(status: &Value) -> Migrated {
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        Migrated {
            downtime: Duration::from_millis(number(&status["downtime"])),
            passes: number(&status["ram"]["dirty-sync-count"]),
            total: Duration::from_millis(number(&status["total-time"])),
        }
    }
}

impl Guest {
    /// Waits until this QEMU, which was started for a guest that is to come, listens for it.
    pub fn wait_ready_for_arrival(&mut self) {
        let status = self.control("query-status", json!({}));
        assert_eq!(status["status"], "inmigrate", "{status}");
    }

    /// Begins to send the guest to the QEMU that waits at `socket`, so slowly that it does not end
    /// before [`Guest::let_go`]; returns when that is under way, and what is written to its memory
    /// is logged.
    pub fn migrate(&mut self, socket: &Path) {
        self.most_bytes_per_second(SLOW);
        let uri = format!("unix:{}", socket.display());
        self.control("migrate", json!({"uri": uri}));
        wait_for("the begin of a migration", || {
            let status = self.migration();
            assert_ne!(status["status"], "failed", "{status}");
            let sent = status["ram"]["transferred"].as_u64();
            sent.is_some_and(|bytes| bytes > 0).then_some(())
        });
    }

    /// Sends the rest of the guest fast.
    pub fn let_go(&mut self) {
        self.most_bytes_per_second(FAST);
    }

    fn most_bytes_per_second(&mut self, bytes: u64) {
        self.control("migrate-set-parameters", json!({"max-bandwidth": bytes}));
    }

    fn migration(&mut self) -> Value {
        self.control("query-migrate", json!({}))
    }

    /// Waits until the guest has left.
    pub fn wait_migrated(&mut self) -> Migrated {
        wait_for("the end of a migration", || {
            let status = self.migration();
            assert_ne!(status["status"], "failed", "{status}");
            (status["status"] == "completed").then(|| Migrated::read(&status))
        })
    }

    /// Cancels the migration; the guest continues here.
    pub fn cancel_migration(&mut self) {
        self.control("migrate_cancel", json!({}));
        wait_for("a migration to be given up", || {
            (self.migration()["status"] == "cancelled").then_some(())
        });
        assert_eq!(self.control("query-status", json!({}))["status"], "running");
    }
}
