//! Random frames, where this kernel can be asked.

use testkit::netns::Netns;
use testkit::skip::skipped;

use crate::{compare, kernel};

/// Packets that are compared.
const PACKETS: usize = 20_000;
/// Another one than that of the runs by hand.
const SEED: u64 = 0x1a57_0b0e;
/// The kernel whose answers are ours, but for the list of differences.
const KNOWN: &str = "6.18.";

#[test]
fn the_kernel_agrees() {
    if !Netns::allowed() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let report = match compare::run(SEED, PACKETS, folder.path()) {
        Ok(report) => report,
        Err(why) => return skipped(why),
    };
    assert!(report.packets >= PACKETS);
    for verdict in ["new", "original", "reply", "related-reply", "invalid"] {
        let count = report.verdicts.get(verdict).copied().unwrap_or_default();
        assert!(count > 100, "{verdict}: {count}");
    }
    let release = kernel::release();
    if release.starts_with(KNOWN) {
        assert!(report.wrong.is_empty(), "{}", report.wrong.join("\n"));
    } else {
        // Other kernels may differ: that is no fault of ours.
        for difference in &report.wrong {
            eprintln!("Linux {release}: {difference}");
        }
    }
}
