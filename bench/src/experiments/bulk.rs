//! TCP super-frames of 64 KiB through each peer in turn, each time beside a plain copy of them.

use anyhow::Result;
use load::lean::SUPER_FRAME_LEN;

use super::throughput::Run;
use crate::peers::Kind;
use crate::plan::{Layout, Plan, Traffic};
use crate::report::{Bulk, Report};

/// Bulk in both directions, split and packed.
pub(crate) fn bulk(plan: &Plan) -> Result<Report> {
    let plan = Plan {
        super_frames: true,
        ..plan.clone()
    };
    let mut run = Run::new(&plan, "bulk", &Kind::ALL);
    for layout in [Layout::Split, Layout::Packed] {
        run.setting(layout, Traffic::Bulk, &[u32::from(SUPER_FRAME_LEN)])?;
    }
    run.note("Lasthop runs with poll = \"always\", as its peers poll in any case");
    let title = "Bulk: TCP super-frames of 64 KiB in both directions, beside memcpy";
    Ok(run.report(title, |samples| Bulk { samples }))
}
